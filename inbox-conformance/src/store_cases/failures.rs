//! What a store remembers of messages that fail.

use bytes::Bytes;
use inbox_core::{
    BoxError, Claim, InboxStore, Message, MessageId, Source,
    failure_store::{Failure, FailureStore, Reason},
    maintenance::{Counts, Maintenance},
    operator::Operator,
};

use super::{StoreStage, candidate, candidates, ids};
use crate::{
    ensure, ensure_eq,
    harness::{CaseResult, FullStoreSubject, unique, until},
};

fn failure(id: MessageId, reason: Reason, fingerprint: i32) -> Failure {
    let message = Message::new(Bytes::from_static(b"\0body \xff")).id("id \0 \u{1f980}").kind("kind").header("h", "v");
    let source = Source::new("topic").coordinates("3/17");
    Failure { id, fingerprint, reason, error: "what went wrong".to_owned(), message, source }
}

pub(super) async fn s10_attempts_are_counted_until_there_is_a_claim<S: FullStoreSubject>(
    stage: StoreStage<S>,
) -> CaseResult {
    let [a] = ids();
    let other = stage.elsewhere().await?;
    for (n, at) in [&stage, &other, &stage].into_iter().enumerate() {
        let counted = at.store.record_attempt(stage.consumer, &failure(a, Reason::Retrying, 1)).await?;
        ensure_eq!(counted.map(|n| n as usize), Some(n + 1), "the attempts counted so far");
    }
    let rows = stage.store.failures(&stage.name, 10).await?;
    ensure!(
        matches!(&rows[..], [row] if row.reason == Reason::Retrying && row.attempts == 3 && row.body.is_none()),
        "the row of an id that is still tried is {rows:?}"
    );
    let (mut tx, _claims) = stage.claim(&[candidate(a)]).await?;
    stage.store.forget_attempts(&mut tx, stage.consumer, a).await?;
    stage.store.rollback(tx).await?;
    let counted = stage.store.record_attempt(stage.consumer, &failure(a, Reason::Retrying, 1)).await?;
    ensure_eq!(counted, Some(4), "attempts after a rolled back success");
    let (mut tx, mut claims) = stage.claim(&[candidate(a)]).await?;
    stage.store.forget_attempts(&mut tx, stage.consumer, a).await?;
    claims.done(a);
    stage.store.commit(tx, claims).await?;
    let counted = other.store.record_attempt(stage.consumer, &failure(a, Reason::Retrying, 1)).await?;
    ensure_eq!(counted, None, "an attempt of an id that has a claim");
    ensure_eq!(stage.store.failures(&stage.name, 10).await?.len(), 0, "rows after success");
    let counts = stage.store.counts(stage.consumer).await?;
    ensure_eq!(counts, Counts { claims: 1, retrying: 0, quarantined: 0 }, "counts after success");
    // Another process finishes it, which knows of no attempt.
    let [b] = ids();
    stage.store.record_attempt(stage.consumer, &failure(b, Reason::Retrying, 1)).await?;
    other.process(&[b]).await?;
    ensure_eq!(stage.store.failures(&stage.name, 10).await?.len(), 0, "rows after somebody else's success");
    let counts = stage.store.counts(stage.consumer).await?;
    ensure_eq!(counts, Counts { claims: 2, retrying: 0, quarantined: 0 }, "counts after somebody else's success");
    Ok(())
}

pub(super) async fn s11_giving_up_is_part_of_the_transaction<S: FullStoreSubject>(stage: StoreStage<S>) -> CaseResult {
    let [a, b] = ids();
    for _ in 0..2 {
        stage.store.record_attempt(stage.consumer, &failure(a, Reason::Retrying, 1)).await?;
    }
    let given_up = failure(a, Reason::MaxAttempts, 1);
    let (mut tx, mut claims) = stage.claim(&candidates(&[a, b])).await?;
    stage.store.give_up(&mut tx, &mut claims, &given_up).await?;
    stage.store.rollback(tx).await?;
    let counts = stage.store.counts(stage.consumer).await?;
    ensure_eq!(counts, Counts { claims: 0, retrying: 1, quarantined: 0 }, "counts after a rollback");
    let (mut tx, mut claims) = stage.claim(&candidates(&[a, b])).await?;
    stage.store.give_up(&mut tx, &mut claims, &given_up).await?;
    stage.apply(&mut tx, b).await?;
    claims.done(b);
    stage.store.commit(tx, claims).await?;
    let rows = stage.store.failures(&stage.name, 10).await?;
    let [row] = &rows[..] else { return Err(format!("one row expected: {rows:?}").into()) };
    ensure_eq!((row.id, row.reason, row.attempts, row.seen), (a, Reason::MaxAttempts, 2, 1), "the row");
    ensure_eq!(row.body, Some(given_up.message.body.clone()), "the row's body");
    ensure_eq!(row.id_text, given_up.message.id.as_ref().map(|id| id.as_bytes().clone()), "the row's id text");
    ensure_eq!((row.kind.as_deref(), &*row.error), (Some("kind"), "what went wrong"), "the row's kind and error");
    ensure_eq!(row.source, given_up.source, "the row's source");
    ensure_eq!(stage.found(&[a, b]).await?, vec![Some(Claim::Duplicate); 2], "what a claim finds");
    let counted = stage.store.record_attempt(stage.consumer, &failure(a, Reason::Retrying, 1)).await?;
    ensure_eq!(counted, None, "an attempt of an id that was given up");
    stage.effects_are(&[b], "of the rest of the batch").await
}

pub(super) async fn s12_kept_copies_share_a_row<S: FullStoreSubject>(stage: StoreStage<S>) -> CaseResult {
    let [a, b] = ids();
    stage.process(&[a]).await?;
    let keep = async |fingerprint, commits| {
        let (mut tx, claims) = stage.claim(&[candidate(a)]).await?;
        let conflict = failure(b, Reason::IdConflict, fingerprint);
        stage.store.keep(&mut tx, stage.consumer, &conflict).await?;
        if commits {
            stage.store.commit(tx, claims).await?
        } else {
            stage.store.rollback(tx).await?
        }
        let mut rows = stage.store.failures(&stage.name, 10).await?;
        rows.sort_by_key(|row| row.seen);
        Ok::<_, BoxError>(rows.iter().map(|row| row.seen).collect::<Vec<_>>())
    };
    ensure_eq!(keep(2, false).await?, Vec::<u32>::new(), "rows after a rollback");
    ensure_eq!(keep(2, true).await?, vec![1], "copies seen, by row, after the first one");
    ensure_eq!(keep(2, true).await?, vec![2], "copies seen, by row, after the same content again");
    ensure_eq!(keep(3, true).await?, vec![1, 2], "copies seen, by row, after another content");
    let rows = stage.store.failures(&stage.name, 10).await?;
    ensure!(rows.iter().all(|row| row.reason == Reason::IdConflict && row.body.is_some()), "rows: {rows:?}");
    Ok(())
}

pub(super) async fn s17_the_operator_sees_what_is_there<S: FullStoreSubject>(stage: StoreStage<S>) -> CaseResult {
    let nobody = stage.store.counts_of(&unique("nobody")).await?;
    ensure_eq!(nobody, Counts::default(), "counts of a consumer that is not there");
    let all: [MessageId; 5] = ids();
    for id in all {
        let (mut tx, mut claims) = stage.claim(&[candidate(id)]).await?;
        stage.store.give_up(&mut tx, &mut claims, &failure(id, Reason::Rejected, 1)).await?;
        stage.store.commit(tx, claims).await?;
    }
    let [retried] = ids();
    stage.store.record_attempt(stage.consumer, &failure(retried, Reason::Retrying, 1)).await?;
    let rows = stage.store.failures(&stage.name, 3).await?;
    let seen: Vec<MessageId> = rows.iter().map(|row| row.id).collect();
    ensure_eq!(seen, all[..3].to_vec(), "the oldest three failures");
    let expected = Counts { claims: 5, retrying: 1, quarantined: 5 };
    ensure_eq!(stage.store.counts_of(&stage.name).await?, expected, "counts by name");
    ensure_eq!(stage.store.counts(stage.consumer).await?, expected, "counts by number");
    until("all failures", || async { Ok(stage.store.failures(&stage.name, 100).await?.len() == 6) }).await
}
