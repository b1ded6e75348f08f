//! One case for each guarantee of a store.

mod failures;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use inbox_core::{
    Blame, BoxError, Candidate, Claim, Claims, ConsumerId, InboxStore, Limits, MessageId, StoreError, StoreErrorKind,
    maintenance::Maintenance,
};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use uuid::Uuid;

use self::failures::{
    s10_attempts_are_counted_until_there_is_a_claim, s11_giving_up_is_part_of_the_transaction,
    s12_kept_copies_share_a_row, s17_the_operator_sees_what_is_there,
};
use crate::{
    ensure, ensure_eq,
    harness::{CaseResult, FullStoreSubject, StoreSubject, Tx, unique, waiting},
    suite::{Case, Stage, cases},
};

pub(crate) fn all<S: FullStoreSubject>() -> Vec<Case<Arc<S>>> {
    let mut all = claim_path();
    all.extend(beyond_the_claim_path());
    all.sort_by_key(|case| case.name);
    all
}

/// What [`InboxStore`] alone promises.
pub(crate) fn claim_path<S: StoreSubject>() -> Vec<Case<Arc<S>>> {
    cases![StoreStage<S>:
        s01_one_committed_transaction_gets_new,
        s02_a_claim_lives_as_long_as_its_transaction,
        s03_a_claim_waits_for_an_open_one,
        s04_another_fingerprint_is_a_conflict,
        s05_an_unclaimed_id_is_new_again,
        s06_an_unresolved_id_stops_the_commit,
        s07_a_swallowed_error_stops_the_commit [StatementsAbort],
        s08_a_handlers_own_commit_or_rollback_keeps_nothing [RawTransactionControl],
        s09_commit_is_visible_to_everybody,
        s13_consumers_are_independent,
        s15_a_handlers_error_is_the_messages,
        s16_overlapping_claims_never_deadlock,
    ]
}

/// What the other traits of a store promise.
pub(crate) fn beyond_the_claim_path<S: FullStoreSubject>() -> Vec<Case<Arc<S>>> {
    cases![StoreStage<S>:
        s10_attempts_are_counted_until_there_is_a_claim [FailureStore],
        s11_giving_up_is_part_of_the_transaction [FailureStore],
        s12_kept_copies_share_a_row [FailureStore],
        s14_migrate_may_run_again_and_at_once [Maintenance],
        s17_the_operator_sees_what_is_there [Operator],
    ]
}

/// A store with a fresh consumer and scope of effects.
pub(crate) struct StoreStage<S: StoreSubject> {
    subject: Arc<S>,
    store: Arc<S::Store>,
    name: String,
    consumer: ConsumerId,
}

// Not derived: `S` itself is not cloned.
impl<S: StoreSubject> Clone for StoreStage<S> {
    fn clone(&self) -> Self {
        Self {
            subject: Arc::clone(&self.subject),
            store: Arc::clone(&self.store),
            name: self.name.clone(),
            consumer: self.consumer,
        }
    }
}

impl<S: StoreSubject> Stage for StoreStage<S> {
    type Subjects = Arc<S>;

    async fn set(subject: Arc<S>) -> Result<Self, BoxError> {
        let store = waiting("the store to open", subject.open()).await?;
        let name = unique("consumer");
        let consumer = store.register(&name).await?;
        Ok(Self { subject, store, name, consumer })
    }
}

fn ids<const N: usize>() -> [MessageId; N] {
    std::array::from_fn(|_| MessageId::from_uuid(Uuid::now_v7()))
}

fn candidate(id: MessageId) -> Candidate {
    Candidate { id, fingerprint: 1, time: id.time() }
}

fn candidates(ids: &[MessageId]) -> Vec<Candidate> {
    ids.iter().copied().map(candidate).collect()
}

/// Long enough that no claim of a case that should succeed runs into it.
const PATIENT: Limits = Limits { claim_wait: Duration::from_secs(20), statement_timeout: Duration::from_secs(30) };

impl<S: StoreSubject> StoreStage<S> {
    /// The same database as another process sees it.
    async fn elsewhere(&self) -> Result<Self, BoxError> {
        let store = waiting("another store object", self.subject.open()).await?;
        let consumer = store.register(&self.name).await?;
        ensure_registered(consumer, self.consumer)?;
        Ok(Self { store, ..self.clone() })
    }

    /// Begins and claims; what may succeed later is tried again, as a single writer needs it.
    async fn claim(&self, candidates: &[Candidate]) -> Result<(Tx<S>, Claims), BoxError> {
        waiting(format!("a claim of {} ids", candidates.len()), async {
            loop {
                match self.try_claim(&PATIENT, candidates).await {
                    Ok(claimed) => return Ok(claimed),
                    Err(error) if error.is_retryable() => sleep(Duration::from_millis(5)).await,
                    Err(error) => return Err(error.into()),
                }
            }
        })
        .await
    }

    async fn try_claim(&self, limits: &Limits, candidates: &[Candidate]) -> Result<(Tx<S>, Claims), StoreError> {
        let mut tx = self.store.begin(limits).await?;
        match self.store.claim(&mut tx, self.consumer, candidates).await {
            Ok(claims) => Ok((tx, claims)),
            Err(error) => {
                drop(self.store.rollback(tx).await);
                Err(error)
            }
        }
    }

    async fn apply(&self, tx: &mut Tx<S>, id: MessageId) -> CaseResult {
        let applied = self.subject.apply(tx, &self.name, &id.to_string()).await;
        applied.map_err(|error| format!("an effect could not be applied: {error:?}").into())
    }

    /// Claims, applies the effect of each `New` id and commits.
    async fn process(&self, ids: &[MessageId]) -> Result<Vec<MessageId>, BoxError> {
        let (mut tx, mut claims) = self.claim(&candidates(ids)).await?;
        let new: Vec<MessageId> = ids.iter().copied().filter(|id| claims.get(*id) == Some(Claim::New)).collect();
        for id in &new {
            self.apply(&mut tx, *id).await?;
            claims.done(*id);
        }
        self.store.commit(tx, claims).await?;
        Ok(new)
    }

    /// Looks what a claim of `ids` finds, and takes it back.
    async fn found(&self, ids: &[MessageId]) -> Result<Vec<Option<Claim>>, BoxError> {
        let (tx, claims) = self.claim(&candidates(ids)).await?;
        self.store.rollback(tx).await?;
        Ok(ids.iter().map(|id| claims.get(*id)).collect())
    }

    async fn effects_are(&self, ids: &[MessageId], when: &str) -> CaseResult {
        let effects = waiting("the effects", self.subject.effects(&self.name)).await?;
        let expected: Vec<String> = ids.iter().map(MessageId::to_string).collect();
        ensure_eq!(effects, expected, "the effects {when}");
        Ok(())
    }

    /// Neither claims nor effects are there.
    async fn nothing_of(&self, ids: &[MessageId], after: &str) -> CaseResult {
        self.effects_are(&[], after).await?;
        let found = self.found(ids).await?;
        ensure_eq!(found, vec![Some(Claim::New); ids.len()], "what a claim finds {after}");
        Ok(())
    }
}

fn ensure_registered(again: ConsumerId, first: ConsumerId) -> CaseResult {
    ensure_eq!(again, first, "the number of a consumer registered twice");
    Ok(())
}

fn kind_of<T>(result: Result<T, StoreError>) -> Result<(), StoreErrorKind> {
    result.map(drop).map_err(|error| error.kind())
}

async fn s01_one_committed_transaction_gets_new<S: StoreSubject>(stage: StoreStage<S>) -> CaseResult {
    let ids: [MessageId; 20] = ids();
    let mut racers = JoinSet::new();
    for _ in 0..6 {
        let racer = stage.elsewhere().await?;
        let mut mine = ids;
        fastrand::shuffle(&mut mine);
        racers.spawn(async move { racer.process(&mine).await });
    }
    let mut new = Vec::new();
    while let Some(racer) = racers.join_next().await {
        new.extend(racer??);
    }
    new.sort_unstable();
    ensure_eq!(new, ids.to_vec(), "the ids that were New to some committed transaction");
    let mut effects = stage.subject.effects(&stage.name).await?;
    effects.sort_unstable();
    ensure_eq!(effects, ids.map(|id| id.to_string()).to_vec(), "the effects");
    Ok(())
}

async fn s02_a_claim_lives_as_long_as_its_transaction<S: StoreSubject>(stage: StoreStage<S>) -> CaseResult {
    let [a, b] = ids();
    let (mut tx, mut claims) = stage.claim(&candidates(&[a, b])).await?;
    stage.apply(&mut tx, a).await?;
    claims.done(a);
    stage.store.rollback(tx).await?;
    stage.nothing_of(&[a, b], "after a rollback").await?;
    let (mut tx, _claims) = stage.claim(&candidates(&[a, b])).await?;
    stage.apply(&mut tx, a).await?;
    drop(tx);
    stage.nothing_of(&[a, b], "after a transaction was dropped").await
}

async fn s03_a_claim_waits_for_an_open_one<S: StoreSubject>(stage: StoreStage<S>) -> CaseResult {
    for (commits, expected) in [(true, Claim::Duplicate), (false, Claim::New)] {
        let [id] = ids();
        let (mut tx, mut claims) = stage.claim(&[candidate(id)]).await?;
        let other = stage.elsewhere().await?;
        let mut waiter = JoinSet::new();
        waiter.spawn(async move { other.found(&[id]).await });
        // Too short a wait proves nothing but can only let a wrong store pass, never fail a right one.
        if let Ok(Some(early)) = timeout(Duration::from_millis(150), waiter.join_next()).await {
            return Err(format!("a claim did not wait for the open one, it found {:?}", early?).into());
        }
        stage.apply(&mut tx, id).await?;
        claims.done(id);
        if commits {
            stage.store.commit(tx, claims).await?
        } else {
            stage.store.rollback(tx).await?
        }
        let found = waiting("the claim that waited", waiter.join_next()).await.ok_or("no waiter")???;
        ensure_eq!(found, vec![Some(expected)], "what the waiting claim found (the first one commits: {commits})");
    }
    let [held, free] = ids();
    let (tx, _claims) = stage.claim(&[candidate(held)]).await?;
    let other = stage.elsewhere().await?;
    let impatient = Limits { claim_wait: Duration::from_millis(100), ..PATIENT };
    let answer = waiting("the bound of a claim's wait", other.try_claim(&impatient, &candidates(&[free, held]))).await;
    let kind = kind_of(answer);
    // With a single writer it is `begin` that waits, and the database is what is not there.
    let fits = kind == Err(StoreErrorKind::ClaimTimeout)
        || (!stage.subject.features().concurrent && kind.is_err_and(StoreErrorKind::is_retryable));
    ensure!(fits, "a claim that waited too long says {kind:?}");
    stage.store.rollback(tx).await?;
    let found = stage.found(&[free, held]).await?;
    ensure_eq!(found, vec![Some(Claim::New); 2], "what is left of a claim that waited too long");
    Ok(())
}

async fn s04_another_fingerprint_is_a_conflict<S: StoreSubject>(stage: StoreStage<S>) -> CaseResult {
    let [a, b] = ids();
    stage.process(&[a]).await?;
    let other = |id, fingerprint| Candidate { fingerprint, ..candidate(id) };
    for fingerprint in [0, -1, i32::MIN, i32::MAX] {
        let (tx, claims) = stage.claim(&[other(a, fingerprint), other(b, fingerprint)]).await?;
        stage.store.rollback(tx).await?;
        let found = (claims.get(a), claims.get(b));
        ensure_eq!(
            found,
            (Some(Claim::Conflict), Some(Claim::New)),
            "fingerprint {fingerprint} against 1, and a new id"
        );
    }
    ensure_eq!(stage.found(&[a]).await?, vec![Some(Claim::Duplicate)], "the same fingerprint again");
    // Each id with one of its own, in another order than the ids', so that a store which takes one for another's is found
    // out.
    let many: [MessageId; 40] = ids();
    let (old, mixed): (Vec<_>, Vec<_>) = many
        .into_iter()
        .zip((0..).map(|n| n * 17 % 40))
        .map(|(id, own)| match own % 3 {
            0 => (None, (other(id, own), Claim::New)),
            1 => (Some(other(id, own)), (other(id, own), Claim::Duplicate)),
            _ => (Some(other(id, own)), (other(id, own + 40), Claim::Conflict)),
        })
        .unzip();
    let old: Vec<Candidate> = old.into_iter().flatten().collect();
    let (tx, mut claims) = stage.claim(&old).await?;
    old.iter().for_each(|old| claims.done(old.id));
    stage.store.commit(tx, claims).await?;
    let (again, expected): (Vec<Candidate>, Vec<Claim>) = mixed.into_iter().rev().unzip();
    let (tx, claims) = stage.claim(&again).await?;
    stage.store.rollback(tx).await?;
    let found: Vec<_> = again.iter().map(|again| claims.get(again.id)).collect();
    ensure_eq!(found, expected.into_iter().map(Some).collect::<Vec<_>>(), "of 40, each with a fingerprint of its own");
    Ok(())
}

async fn s05_an_unclaimed_id_is_new_again<S: StoreSubject>(stage: StoreStage<S>) -> CaseResult {
    let [a, b, c] = ids();
    let (mut tx, mut claims) = stage.claim(&candidates(&[a, b, c])).await?;
    stage.apply(&mut tx, a).await?;
    claims.done(a);
    stage.store.unclaim(&mut tx, &mut claims, &[b, c]).await?;
    ensure_eq!((claims.get(b), claims.new_ids()), (None, 1), "what the claims say after `unclaim`");
    let other = stage.elsewhere().await?;
    let mut waiter = JoinSet::new();
    waiter.spawn(async move { other.found(&[b]).await });
    stage.store.commit(tx, claims).await?;
    let found = waiting("the claim that waited", waiter.join_next()).await.ok_or("no waiter")???;
    ensure_eq!(found, vec![Some(Claim::New)], "what a claim that waited finds of an unclaimed id");
    let found = stage.found(&[a, b, c]).await?;
    ensure_eq!(found, [Claim::Duplicate, Claim::New, Claim::New].map(Some).to_vec(), "after the commit");
    stage.effects_are(&[a], "after the commit").await
}

async fn s06_an_unresolved_id_stops_the_commit<S: StoreSubject>(stage: StoreStage<S>) -> CaseResult {
    let [a, b] = ids();
    let (mut tx, mut claims) = stage.claim(&candidates(&[a, b])).await?;
    stage.apply(&mut tx, a).await?;
    claims.done(a);
    let answer = kind_of(stage.store.commit(tx, claims).await);
    ensure_eq!(answer, Err(StoreErrorKind::Unresolved), "commit with an id of which nothing was said");
    stage.nothing_of(&[a, b], "after that commit").await
}

async fn s07_a_swallowed_error_stops_the_commit<S: StoreSubject>(stage: StoreStage<S>) -> CaseResult {
    let [a, b] = ids();
    let (mut tx, mut claims) = stage.claim(&candidates(&[a, b])).await?;
    stage.apply(&mut tx, a).await?;
    ensure!(stage.subject.failing_statement(&mut tx).await.is_err(), "the failing statement did not fail");
    // What a handler that swallows the error would go on with; it may be refused.
    drop(stage.subject.apply(&mut tx, &stage.name, "after the swallowed error").await);
    claims.done(a);
    claims.done(b);
    let checked = kind_of(stage.store.check(&mut tx, &claims).await);
    ensure!(checked.is_err(), "check found nothing wrong after a failed statement");
    let answer = kind_of(stage.store.commit(tx, claims).await);
    ensure_eq!(answer, Err(StoreErrorKind::TransactionAborted), "commit after a swallowed error");
    stage.nothing_of(&[a, b], "after that commit").await
}

async fn s08_a_handlers_own_commit_or_rollback_keeps_nothing<S: StoreSubject>(stage: StoreStage<S>) -> CaseResult {
    for commits in [true, false] {
        let [a, b] = ids();
        let sent = if commits { "COMMIT" } else { "ROLLBACK" };
        let (mut tx, mut claims) = stage.claim(&candidates(&[a, b])).await?;
        stage.apply(&mut tx, a).await?;
        claims.done(a);
        let answer =
            if commits { stage.subject.raw_commit(&mut tx).await } else { stage.subject.raw_rollback(&mut tx).await };
        // Whether the statement itself is refused is the store's choice; so are those that follow.
        drop(answer);
        drop(stage.subject.apply(&mut tx, &stage.name, &b.to_string()).await);
        claims.done(b);
        let checked = kind_of(stage.store.check(&mut tx, &claims).await);
        ensure_eq!(checked, Err(StoreErrorKind::TransactionEscaped), "check after the handler's own {sent}");
        let answer = kind_of(stage.store.commit(tx, claims).await);
        ensure_eq!(answer, Err(StoreErrorKind::TransactionEscaped), "commit after the handler's own {sent}");
        stage.nothing_of(&[a, b], &format!("after the handler's own {sent}")).await?;
    }
    Ok(())
}

async fn s09_commit_is_visible_to_everybody<S: StoreSubject>(stage: StoreStage<S>) -> CaseResult {
    let [a, b] = ids();
    stage.process(&[b, a]).await?;
    stage.effects_are(&[b, a], "after the commit").await?;
    let other = stage.elsewhere().await?;
    ensure_eq!(other.found(&[a, b]).await?, vec![Some(Claim::Duplicate); 2], "what another store object finds");
    ensure_eq!(other.process(&[a, b]).await?, vec![], "what is New in a batch of duplicates that commits");
    stage.effects_are(&[b, a], "after a batch of duplicates").await
}

async fn s13_consumers_are_independent<S: StoreSubject>(stage: StoreStage<S>) -> CaseResult {
    let [a] = ids();
    stage.process(&[a]).await?;
    let again = stage.elsewhere().await?;
    ensure_registered(again.consumer, stage.consumer)?;
    let name = unique("another-consumer");
    let mut registering = JoinSet::new();
    for _ in 0..4 {
        let (store, name) = (Arc::clone(&stage.store), name.clone());
        registering.spawn(async move { store.register(&name).await });
    }
    let mut numbers = BTreeSet::new();
    while let Some(number) = registering.join_next().await {
        numbers.insert(number??);
    }
    let numbers: Vec<ConsumerId> = numbers.into_iter().collect();
    let [number] = numbers[..] else { return Err(format!("one name, registered at once: {numbers:?}").into()) };
    ensure!(number != stage.consumer, "two names share number {number:?}");
    let other = StoreStage { name, consumer: number, ..stage.clone() };
    ensure_eq!(other.found(&[a]).await?, vec![Some(Claim::New)], "what another consumer finds of the id");
    ensure_eq!(other.process(&[a]).await?, vec![a], "what is New to another consumer");
    ensure_eq!(stage.found(&[a]).await?, vec![Some(Claim::Duplicate)], "what the first consumer finds");
    Ok(())
}

async fn s14_migrate_may_run_again_and_at_once<S: FullStoreSubject>(stage: StoreStage<S>) -> CaseResult {
    let [a] = ids();
    stage.process(&[a]).await?;
    let mut migrations = JoinSet::new();
    for _ in 0..4 {
        let store = stage.subject.open().await?;
        migrations.spawn(async move {
            store.migrate().await?;
            store.migrate().await
        });
    }
    while let Some(migration) = waiting("migrations", migrations.join_next()).await {
        migration??;
    }
    ensure_eq!(stage.found(&[a]).await?, vec![Some(Claim::Duplicate)], "what a claim finds after migrating again");
    stage.effects_are(&[a], "after migrating again").await
}

#[derive(Debug)]
struct Plain;

impl std::fmt::Display for Plain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Text that a store which reads texts would fall for.
        f.write_str("deadlock detected: connection reset by peer (40001)")
    }
}

impl std::error::Error for Plain {}

async fn s15_a_handlers_error_is_the_messages<S: StoreSubject>(stage: StoreStage<S>) -> CaseResult {
    ensure_eq!(stage.store.classify(&Plain), Blame::Message, "an error that only reads like the database's");
    let (mut tx, _claims) = stage.claim(&[]).await?;
    let Err(error) = stage.subject.failing_statement(&mut tx).await else {
        return Err("the failing statement did not fail".into());
    };
    stage.store.rollback(tx).await?;
    ensure_eq!(stage.store.classify(error.cause()), Blame::Message, "a statement that is wrong");
    Ok(())
}

async fn s16_overlapping_claims_never_deadlock<S: StoreSubject>(stage: StoreStage<S>) -> CaseResult {
    for _ in 0..5 {
        let ids: [MessageId; 300] = ids();
        let mut racers = JoinSet::new();
        for n in 0..4 {
            let racer = stage.elsewhere().await?;
            let mut mine = ids[n * 20..n * 20 + 240].to_vec();
            if n % 2 == 0 {
                mine.reverse()
            } else {
                fastrand::shuffle(&mut mine)
            }
            racers.spawn(async move {
                // Claimed once, so that contention is seen and not tried again.
                let (tx, mut claims) = racer.once(&mine).await?;
                let new: Vec<MessageId> = mine.into_iter().filter(|id| claims.get(*id) == Some(Claim::New)).collect();
                new.iter().for_each(|id| claims.done(*id));
                racer.store.commit(tx, claims).await?;
                Ok::<_, BoxError>(new.len())
            });
        }
        let mut new = 0;
        while let Some(racer) = waiting("overlapping claims", racers.join_next()).await {
            new += racer??;
        }
        ensure_eq!(new, 300, "New ids of four overlapping batches");
    }
    Ok(())
}

impl<S: StoreSubject> StoreStage<S> {
    /// Begins and claims; only a single writer's full queue is waited out.
    async fn once(&self, ids: &[MessageId]) -> Result<(Tx<S>, Claims), BoxError> {
        if self.subject.features().concurrent {
            Ok(self.try_claim(&PATIENT, &candidates(ids)).await?)
        } else {
            self.claim(&candidates(ids)).await
        }
    }
}
