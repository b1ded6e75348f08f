//! Handlers that fail.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use inbox_core::{
    BoxError, Bytes, Candidate, InboxError, InboxStore, Limits, Message, MessageId, Numbers, StoreErrorKind,
    failure_store::Reason, id::fingerprint,
};
use uuid::Uuid;

use super::scene::{Act, Call, Running, Scene, Script, good, labels, message, messages, script};
use crate::{
    ensure, ensure_eq,
    faults::{CommitEnd, Faulty, Gathered, LostAcks, Troubles},
    harness::{CaseResult, FullStoreSubject, Need, until},
    suite::Stage,
};

impl<S: FullStoreSubject> Scene<S> {
    /// The same subjects, another topic and consumer.
    async fn afresh(&self) -> Result<Self, BoxError> {
        Self::set((Arc::clone(&self.transport), Arc::clone(&self.subject))).await
    }

    /// The same topic and consumer, as another process sees them.
    async fn restarted(&self) -> Result<Self, BoxError> {
        Ok(Self { store: self.subject.open().await?, ..self.clone() })
    }

    /// Publishes `messages`, and runs them as one batch first, until the broker has nothing left.
    async fn run_together(&self, messages: Vec<Message>, attempts: u32, script: Script) -> Result<Numbers, BoxError> {
        let transport = Arc::new(Gathered::new(self.link.connect().await?, messages.len()));
        self.publish(messages).await?;
        let inbox = self.inbox(transport, Arc::clone(&self.store), script).lanes(1).max_attempts(attempts);
        let running = Running::start(inbox)?;
        self.no_backlog().await?;
        let numbers = running.handle.numbers();
        running.stop().await?;
        Ok(numbers)
    }

    fn ordered(&self) -> bool {
        Need::Ordering.met_by_transport(&*self.transport)
    }
}

pub(super) async fn e17_only_the_failing_message_is_retried<S: FullStoreSubject>(scene: Scene<S>) -> CaseResult {
    for position in [0, 2, 4] {
        let scene = scene.afresh().await?;
        let labels = labels("a", 5);
        let failing = labels[position].clone();
        let three_times =
            script(move |call| if call.label == failing && call.nth <= 3 { Act::Fail } else { Act::Succeed });
        scene.run_together(messages(labels.iter().map(String::as_str)), 5, three_times).await?;
        scene.each_once(&labels).await?;
        for (at, label) in labels.iter().enumerate() {
            let (calls, most) = (scene.journal.of(label), if at == position { 4 } else { 2 });
            ensure!(calls <= most, "message {at} was called {calls} times when message {position} failed");
        }
        if scene.ordered() {
            scene.keys_in_order().await?;
        }
        ensure_eq!(scene.failures().await?.len(), 0, "failures left when all is done");
    }
    // A failure in company is not the message's: with one attempt, it is done all the same.
    let scene = scene.afresh().await?;
    let in_company = script(|call| if call.label == "b0" && call.nth == 1 { Act::Fail } else { Act::Succeed });
    scene.run_together(messages(["a0", "b0", "c0"]), 1, in_company).await?;
    scene.each_once(&["a0", "b0", "c0"]).await?;
    scene.failures_are(&[]).await
}

pub(super) async fn e18_a_failing_message_holds_back_its_key_only<S: FullStoreSubject>(scene: Scene<S>) -> CaseResult {
    let labels = labels("abc", 3);
    let others_done = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&others_done);
    let held_back =
        script(move |call| if call.label == "a000" && !seen.load(Ordering::SeqCst) { Act::Fail } else { Act::Succeed });
    scene.publish(messages(labels.iter().map(String::as_str))).await?;
    let transport = Arc::new(Gathered::new(scene.link.connect().await?, 9));
    let inbox = scene.inbox(transport, Arc::clone(&scene.store), held_back).lanes(1).max_attempts(1_000);
    let running = Running::start(inbox)?;
    scene.until_effects(6).await?;
    let before = scene.effects().await?;
    ensure!(before.iter().all(|effect| !effect.starts_with('a')), "effects while a000 fails: {before:?}");
    others_done.store(true, Ordering::SeqCst);
    scene.no_backlog().await?;
    running.stop().await?;
    scene.each_once(&labels).await?;
    if scene.ordered() { scene.keys_in_order().await } else { Ok(()) }
}

pub(super) async fn e19_a_batch_in_which_all_fail_is_bounded<S: FullStoreSubject>(scene: Scene<S>) -> CaseResult {
    for attempts in [1, 3] {
        let scene = scene.afresh().await?;
        let labels = labels("abcdefgh", 1);
        scene.run_together(messages(labels.iter().map(String::as_str)), attempts, script(|_| Act::Fail)).await?;
        let calls = scene.journal.calls().len();
        let most = (attempts as usize + 2) * 8;
        ensure!(calls <= most, "{calls} calls for 8 messages of {attempts} attempts, {most} may be");
        let expected: Vec<(&str, Reason)> = labels.iter().map(|label| (label.as_str(), Reason::MaxAttempts)).collect();
        scene.failures_are(&expected).await?;
        for row in scene.failures().await? {
            ensure_eq!(row.attempts, attempts, "the attempts of a failures row");
        }
        scene.each_once::<&str>(&[]).await?;
    }
    // Two that wait for their next attempt are due together: each still runs alone, or one more call is not counted.
    let scene = scene.afresh().await?;
    let due_together = script(|call| match (call.label, call.nth) {
        ("a0", 1) | ("b0", 1 | 2) => Act::Fail,
        ("c0", _) => Act::Sleep(Duration::from_millis(100)),
        _ => Act::Succeed,
    });
    let numbers = scene.run_together(messages(["a0", "b0", "c0"]), 5, due_together).await?;
    scene.each_once(&["a0", "b0", "c0"]).await?;
    ensure_eq!((scene.journal.of("b0"), numbers.attempts_failed), (3, 3), "calls of b0, and attempts counted in all");
    Ok(())
}

pub(super) async fn e20_flaky_handlers_are_bounded<S: FullStoreSubject>(scene: Scene<S>) -> CaseResult {
    for _ in 0..8 {
        let scene = scene.afresh().await?;
        let pattern: [u8; 4] = std::array::from_fn(|_| fastrand::u8(..));
        let flaky = script(move |call| {
            let at = usize::from(call.label.as_bytes()[0] - b'a');
            let fails = (pattern[at] >> (call.nth - 1).min(7)) & 1 == 1;
            if fails { Act::Fail } else { Act::Succeed }
        });
        scene.run_together(messages(["a", "b", "c", "d"]), 1, flaky).await?;
        let calls = scene.journal.calls();
        ensure!(
            calls.len() <= 12,
            "{} calls for 4 flaky messages of one attempt ({pattern:?}): {calls:?}",
            calls.len()
        );
        let effects = scene.effects().await?;
        let failures = scene.failures().await?;
        let mut ends: Vec<String> =
            failures.iter().filter_map(|row| row.body.as_deref().map(super::scene::label)).collect();
        ends.extend(effects.iter().cloned());
        ends.sort();
        ensure_eq!(ends, ["a", "b", "c", "d"], "effects {effects:?} and quarantined ones together ({pattern:?})");
    }
    Ok(())
}

pub(super) async fn e21_copies_share_the_fate_of_a_failing_first<S: FullStoreSubject>(scene: Scene<S>) -> CaseResult {
    let (a, b) = (message("a"), message("b"));
    let twice = script(|call| if call.label == "a" && call.nth <= 2 { Act::Fail } else { Act::Succeed });
    scene.run_together(vec![a.clone(), a.clone(), b, a], 5, twice).await?;
    scene.each_once(&["a", "b"]).await?;
    ensure!(scene.journal.of("a") <= 4, "the failing message was called {} times", scene.journal.of("a"));
    let scene = scene.afresh().await?;
    let (b, a) = (message("b"), message("a"));
    let always = script(|call| if call.label == "a" { Act::Fail } else { Act::Succeed });
    scene.run_together(vec![b, a.clone(), a.clone(), a], 2, always).await?;
    scene.each_once(&["b"]).await?;
    scene.failures_are(&[("a", Reason::MaxAttempts)]).await
}

pub(super) async fn e22_a_second_content_of_an_id_is_kept<S: FullStoreSubject>(scene: Scene<S>) -> CaseResult {
    let first = message("a");
    let second = first.with_body(Bytes::from("another content"));
    scene.publish(vec![first.clone()]).await?;
    scene.finish().await?;
    scene.publish(vec![second.clone()]).await?;
    scene.finish().await?;
    scene.each_once(&["a"]).await?;
    scene.failures_are(&[("another content", Reason::IdConflict)]).await?;
    scene.publish(vec![second.clone()]).await?;
    scene.finish().await?;
    let seen: Vec<u32> = scene.failures().await?.iter().map(|row| row.seen).collect();
    ensure_eq!(seen, vec![2], "how often the second content was seen, by row");
    // The second content comes while the first one is held.
    let scene = scene.afresh().await?;
    let b = message("b");
    scene.run_together(vec![first.clone(), second, first, b], 5, good()).await?;
    scene.each_once(&["a", "b"]).await?;
    scene.failures_are(&[("another content", Reason::IdConflict)]).await
}

pub(super) async fn e23_a_suspect_waits_behind_its_key<S: FullStoreSubject>(scene: Scene<S>) -> CaseResult {
    // The re-run of the first two ends in an unknown COMMIT that was rolled back.
    let a1_fails = script(|call| if call.label == "a1" && call.nth == 1 { Act::Fail } else { Act::Succeed });
    scene.publish(messages(["a0", "b0", "a1"])).await?;
    let transport = Arc::new(Gathered::new(scene.link.connect().await?, 3));
    let troubles = Troubles::at_commits([CommitEnd::UnknownRolledBack]);
    let store = Faulty { inner: Arc::clone(&scene.store), troubles };
    let running = Running::start(scene.inbox(transport, store, a1_fails).lanes(1))?;
    scene.no_backlog().await?;
    running.stop().await?;
    scene.each_once(&["a0", "b0", "a1"]).await?;
    if scene.ordered() {
        scene.keys_in_order().await?;
    }
    // The first one fails in the re-run, and then alone.
    let scene = scene.afresh().await?;
    let both = script(|call| match (call.label, call.nth) {
        ("a1", 1) | ("a0", 2 | 3) => Act::Fail,
        _ => Act::Succeed,
    });
    scene.run_together(messages(["a0", "b0", "a1"]), 5, both).await?;
    scene.each_once(&["a0", "b0", "a1"]).await?;
    if scene.ordered() { scene.keys_in_order().await } else { Ok(()) }
}

pub(super) async fn e24_an_id_held_elsewhere_holds_back_its_key_only<S: FullStoreSubject>(
    scene: Scene<S>,
) -> CaseResult {
    for commits in [true, false] {
        let scene = scene.afresh().await?;
        let batch = messages(["a0", "x0", "x1", "b0"]);
        let consumer = scene.store.register(&scene.name).await?;
        let text = batch[1].id.as_ref().ok_or("no id")?.as_bytes().clone();
        let id = MessageId::from_uuid(Uuid::try_parse_ascii(&text)?);
        let mut elsewhere = scene.store.begin(&Limits::default()).await?;
        let held = Candidate { id, fingerprint: fingerprint(&batch[1]), time: id.time() };
        let mut claims = scene.store.claim(&mut elsewhere, consumer, &[held]).await?;
        scene.publish(batch).await?;
        let transport = Arc::new(Gathered::new(scene.link.connect().await?, 4));
        let inbox = scene.inbox(transport, Arc::clone(&scene.store), good()).lanes(1);
        let running = Running::start(inbox.claim_wait(Duration::from_millis(50)))?;
        scene.until_effects(2).await?;
        scene.each_once(&["a0", "b0"]).await?;
        if commits {
            let applied = scene.subject.apply(&mut elsewhere, &scene.name, "x0").await;
            applied.map_err(|error| format!("an effect could not be applied: {error:?}"))?;
            claims.done(id);
            scene.store.commit(elsewhere, claims).await?;
        } else {
            scene.store.rollback(elsewhere).await?;
        }
        scene.no_backlog().await?;
        let numbers = running.handle.numbers();
        running.stop().await?;
        scene.each_once(&["a0", "b0", "x0", "x1"]).await?;
        ensure_eq!(numbers.attempts_failed, 0, "attempts counted while an id was held elsewhere");
        if scene.ordered() {
            scene.keys_in_order().await?;
        }
    }
    Ok(())
}

pub(super) async fn e25_the_last_attempt_quarantines<S: FullStoreSubject>(scene: Scene<S>) -> CaseResult {
    let poison = message("a0");
    let fails = |call: &Call<'_>| if call.label == "a0" { Act::Fail } else { Act::Succeed };
    scene.run_together(vec![poison.clone(), message("a1"), message("b0")], 3, script(fails)).await?;
    scene.each_once(&["a1", "b0"]).await?;
    scene.failures_are(&[("a0", Reason::MaxAttempts)]).await?;
    let row = &scene.failures().await?[0];
    ensure_eq!(row.attempts, 3, "the attempts in the row");
    ensure!(row.error.contains("as the script says"), "the row's error is {:?}", row.error);
    ensure_eq!(row.id_text, poison.id.as_ref().map(|id| id.as_bytes().clone()), "the id in the row");
    let calls = scene.journal.of("a0");
    ensure_eq!(calls, 3, "calls of a message that is first in its batch and fails three times");
    // A copy that comes later is acked and not run.
    scene.publish(vec![poison]).await?;
    let running = Running::start(scene.connected(script(fails)).await?)?;
    scene.no_backlog().await?;
    running.stop().await?;
    ensure_eq!(scene.journal.of("a0"), calls, "calls after one more copy");
    scene.failures_are(&[("a0", Reason::MaxAttempts)]).await
}

pub(super) async fn e26_a_rejected_message_is_quarantined_at_once<S: FullStoreSubject>(scene: Scene<S>) -> CaseResult {
    let rejects = script(|call| if call.label == "a0" { Act::Reject } else { Act::Succeed });
    scene.run_together(messages(["b0", "a0", "a1"]), 5, rejects).await?;
    scene.each_once(&["b0", "a1"]).await?;
    scene.failures_are(&[("a0", Reason::Rejected)]).await?;
    ensure!(scene.journal.of("a0") <= 2, "a rejected message was called {} times", scene.journal.of("a0"));
    Ok(())
}

pub(super) async fn e27_a_panic_is_a_failed_attempt<S: FullStoreSubject>(scene: Scene<S>) -> CaseResult {
    let panics = script(|call| match (call.label, call.nth) {
        ("a0", 1) | ("b0", _) => Act::Panic,
        _ => Act::Succeed,
    });
    scene.run_together(messages(["a0", "b0", "c0"]), 2, panics).await?;
    scene.each_once(&["a0", "c0"]).await?;
    scene.failures_are(&[("b0", Reason::MaxAttempts)]).await?;
    let row = &scene.failures().await?[0];
    ensure!(row.error.contains("b0 panics as the script says"), "the row's error is {:?}", row.error);
    Ok(())
}

pub(super) async fn e28_a_handler_beyond_its_timeout_is_a_failed_attempt<S: FullStoreSubject>(
    scene: Scene<S>,
) -> CaseResult {
    let hangs = script(|call| match (call.label, call.nth) {
        ("a0", 1) | ("b0", _) => Act::Hang,
        _ => Act::Succeed,
    });
    let batch = messages(["a0", "b0", "c0"]);
    scene.publish(batch).await?;
    let transport = Arc::new(Gathered::new(scene.link.connect().await?, 3));
    let inbox = scene.inbox(transport, Arc::clone(&scene.store), hangs).lanes(1).max_attempts(2);
    let running = Running::start(inbox.handler_timeout(Duration::from_millis(250)))?;
    scene.no_backlog().await?;
    running.stop().await?;
    scene.each_once(&["a0", "c0"]).await?;
    scene.failures_are(&[("b0", Reason::MaxAttempts)]).await
}

pub(super) async fn e29_a_swallowed_error_is_a_failed_attempt<S: FullStoreSubject>(scene: Scene<S>) -> CaseResult {
    let swallows = script(|call| match (call.label, call.nth) {
        ("b0", 1) | ("c0", _) => Act::Swallow,
        _ => Act::Succeed,
    });
    scene.run_together(messages(["a0", "b0", "c0", "d0"]), 2, swallows).await?;
    scene.each_once(&["a0", "b0", "d0"]).await?;
    scene.failures_are(&[("c0", Reason::MaxAttempts)]).await
}

pub(super) async fn e30_a_handlers_own_commit_or_rollback_stops_run<S: FullStoreSubject>(
    scene: Scene<S>,
) -> CaseResult {
    for (act, then) in [
        (Act::RawCommit, Act::Careless),
        (Act::RawCommit, Act::Succeed),
        (Act::RawRollback, Act::Careless),
        (Act::RawRollback, Act::Succeed),
    ] {
        let scene = scene.afresh().await?;
        let labels = labels("a", 5);
        scene.publish(messages(labels.iter().map(String::as_str))).await?;
        let transport = Arc::new(Gathered::new(scene.link.connect().await?, 5));
        let raw = script(move |call| match call.label {
            "a000" => Act::Succeed,
            "a001" => act,
            _ => then,
        });
        let running = Running::start(scene.inbox(transport, Arc::clone(&scene.store), raw).lanes(1))?;
        let ended = running.ended().await?;
        let escaped =
            matches!(&ended, Err(InboxError::Store(error)) if error.kind() == StoreErrorKind::TransactionEscaped);
        ensure!(escaped, "run() ended with {ended:?} after {act:?}, then {then:?}");
        scene.each_once::<&str>(&[]).await?;
        ensure_eq!(scene.link.backlog().await?, 5, "what is not acked after {act:?}, then {then:?}");
        scene.finish().await?;
        scene.each_once(&labels).await?;
    }
    Ok(())
}

pub(super) async fn e31_attempts_survive_a_restart<S: FullStoreSubject>(scene: Scene<S>) -> CaseResult {
    scene.publish(messages(["a0"])).await?;
    let slowly = inbox_core::Backoff { first: Duration::from_millis(200), most: Duration::from_millis(200) };
    for restart in 1..=3 {
        let scene = scene.restarted().await?;
        let inbox = scene.connected(script(|_| Act::Fail)).await?.max_attempts(4).backoff(slowly);
        let running = Running::start(inbox)?;
        until("a failed attempt", || async { Ok(running.handle.numbers().attempts_failed > 0) }).await?;
        running.stop().await?;
        let row = scene.failures().await?;
        let [row] = &row[..] else { return Err(format!("one row expected: {row:?}").into()) };
        ensure_eq!((row.reason, row.attempts), (Reason::Retrying, restart), "the row after run {restart}");
    }
    let scene = scene.restarted().await?;
    let running = Running::start(scene.connected(script(|_| Act::Fail)).await?.max_attempts(4).backoff(slowly))?;
    scene.no_backlog().await?;
    running.stop().await?;
    scene.failures_are(&[("a0", Reason::MaxAttempts)]).await?;
    ensure_eq!(scene.failures().await?[0].attempts, 4, "attempts in all");
    ensure_eq!(scene.journal.of("a0"), 4, "handler calls in all");
    Ok(())
}

pub(super) async fn e32_a_handler_sees_its_attempt<S: FullStoreSubject>(scene: Scene<S>) -> CaseResult {
    let attempts = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&attempts);
    let notes = script(move |call| {
        seen.lock().unwrap().push(call.message.attempt());
        if call.nth < 3 { Act::Fail } else { Act::Succeed }
    });
    scene.run_together(messages(["a0"]), 5, notes).await?;
    scene.each_once(&["a0"]).await?;
    ensure_eq!(*attempts.lock().unwrap(), vec![1, 2, 3], "the attempts that the handler saw");
    Ok(())
}

pub(super) async fn e33_a_quarantined_message_that_comes_again_stays_one_row<S: FullStoreSubject>(
    scene: Scene<S>,
) -> CaseResult {
    scene.publish(messages(["a0"])).await?;
    let transport = LostAcks::new(scene.link.connect().await?);
    let lost = Arc::clone(&transport.lost);
    let inbox = scene.inbox(Arc::new(transport), Arc::clone(&scene.store), script(|_| Act::Reject));
    let running = Running::start(inbox)?;
    until("a commit without an ack", || async { Ok(lost.load(Ordering::SeqCst) >= 1) }).await?;
    drop(running);
    scene.finish().await?;
    scene.each_once::<&str>(&[]).await?;
    scene.failures_are(&[("a0", Reason::Rejected)]).await?;
    ensure_eq!(scene.journal.of("a0"), 1, "handler calls");
    Ok(())
}
