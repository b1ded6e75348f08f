//! The store contract, claim path: claiming ids and running effects in one transaction of the user's database.

use std::{
    collections::{HashMap, HashSet},
    error::Error,
    future::Future,
    sync::Arc,
    time::{Duration, SystemTime},
};

use crate::{
    error::{StoreError, StoreErrorKind},
    id::MessageId,
};

/// A database that remembers which ids a consumer has processed, in the same transaction as the effects.
///
/// This trait is the claim path and all that a consumer loop of one's own needs:
///
/// ```text
/// let mut tx = store.begin(&limits).await?;
/// let mut claims = store.claim(&mut tx, consumer, &candidates).await?;
/// for each id that is New: run the effect with `tx`, then claims.done(id);
/// store.commit(tx, claims).await?;      // Ok: acknowledge at the broker. Err: acknowledge nothing.
/// ```
///
/// What must not be done: commit the transaction by its own method or by SQL (the claims would not be checked),
/// acknowledge before `commit` returned `Ok`, take an error of `commit` for "not committed" (see `CommitUnknown`).
pub trait InboxStore: Send + Sync + 'static {
    /// The transaction that handlers get as `&mut Tx`: they can use it but neither commit nor roll it back by mistake.
    type Tx: Send + 'static;

    /// Makes the consumer known and returns the number under which its claims are kept. Idempotent.
    ///
    /// # Errors
    /// `Schema` when the tables are missing or of another version; `Unavailable`, `Unauthorized` as the database says.
    fn register(&self, consumer: &str) -> impl Future<Output = Result<ConsumerId, StoreError>> + Send;

    /// Begins a transaction: READ COMMITTED, READ WRITE, whatever the user's defaults are.
    ///
    /// # Cancel safety
    /// **Not cancel safe.** Call it in a task that nobody aborts.
    /// # Errors
    /// `Unavailable` when no connection can be had.
    fn begin(&self, limits: &Limits) -> impl Future<Output = Result<Self::Tx, StoreError>> + Send;

    /// Claims `candidates` in one statement, in ascending order of their ids. An id may stand in `candidates` once.
    ///
    /// # Guarantees
    /// - S-01: of all transactions that claim an id, at most one that commits gets `New`.
    /// - S-02: a claim lives exactly as long as its transaction: rolled back, it is as if it never was.
    /// - S-03: an id that another open transaction has claimed makes this call wait, for `limits.claim_wait` at most.
    /// - S-04: an id claimed under another fingerprint is `Conflict`, not `Duplicate`.
    /// # Caller must
    /// call it once a transaction, as its first statement.
    /// # Errors
    /// `ClaimTimeout` when the wait was too long: the transaction can only be rolled back, nothing stays claimed.
    fn claim(
        &self,
        tx: &mut Self::Tx,
        consumer: ConsumerId,
        candidates: &[Candidate],
    ) -> impl Future<Output = Result<Claims, StoreError>> + Send;

    /// Takes back claims of this transaction whose messages did not run: they will be `New` again (S-05).
    ///
    /// # Errors
    /// As any statement.
    fn unclaim(
        &self,
        tx: &mut Self::Tx,
        claims: &mut Claims,
        ids: &[MessageId],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Looks whether `tx` is still the transaction that claimed, and able to go on.
    ///
    /// # Errors
    /// `TransactionAborted` after a failed statement, `TransactionEscaped` after a COMMIT or ROLLBACK by SQL,
    /// `Unavailable` when the connection is gone.
    fn check(&self, tx: &mut Self::Tx, claims: &Claims) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Commits effects and claims together. The last statement before COMMIT is the store's own, and looks whether the
    /// transaction is the one that claimed.
    ///
    /// # Guarantees
    /// - S-06: fails, and commits nothing, while a `New` id is unresolved ([`Claims::done`] was not called for it).
    /// - S-07: fails, and commits nothing, when a statement failed and the handler swallowed the error.
    /// - S-08: after a handler's own `COMMIT` neither claims nor effects of the batch are kept; after its own
    ///   `ROLLBACK` no later statement of the batch leaves an effect. This call says `TransactionEscaped`.
    /// - S-09: `Ok` means that claims and effects are durable.
    /// # Errors
    /// `CommitUnknown`: it may have committed; claim the ids again. Every other kind: nothing was committed.
    fn commit(&self, tx: Self::Tx, claims: Claims) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Rolls back and waits until the database has done so. A connection in doubt is closed, never reused.
    ///
    /// # Errors
    /// `Unavailable` when the connection broke: the database rolls back by itself.
    fn rollback(&self, tx: Self::Tx) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Whose fault an error of a handler is, found by walking its `source()` chain. Codes, never error text.
    fn classify(&self, error: &(dyn Error + 'static)) -> Blame;
}

impl<S: InboxStore> InboxStore for Arc<S> {
    type Tx = S::Tx;

    fn register(&self, consumer: &str) -> impl Future<Output = Result<ConsumerId, StoreError>> + Send {
        (**self).register(consumer)
    }
    fn begin(&self, limits: &Limits) -> impl Future<Output = Result<Self::Tx, StoreError>> + Send {
        (**self).begin(limits)
    }
    fn claim(
        &self,
        tx: &mut Self::Tx,
        consumer: ConsumerId,
        candidates: &[Candidate],
    ) -> impl Future<Output = Result<Claims, StoreError>> + Send {
        (**self).claim(tx, consumer, candidates)
    }
    fn unclaim(
        &self,
        tx: &mut Self::Tx,
        claims: &mut Claims,
        ids: &[MessageId],
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        (**self).unclaim(tx, claims, ids)
    }
    fn check(&self, tx: &mut Self::Tx, claims: &Claims) -> impl Future<Output = Result<(), StoreError>> + Send {
        (**self).check(tx, claims)
    }
    fn commit(&self, tx: Self::Tx, claims: Claims) -> impl Future<Output = Result<(), StoreError>> + Send {
        (**self).commit(tx, claims)
    }
    fn rollback(&self, tx: Self::Tx) -> impl Future<Output = Result<(), StoreError>> + Send {
        (**self).rollback(tx)
    }
    fn classify(&self, error: &(dyn Error + 'static)) -> Blame {
        (**self).classify(error)
    }
}

/// Bounds of one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long a claim may wait for another transaction that holds the same id.
    pub claim_wait: Duration,
    /// How long one statement of a handler may run.
    pub statement_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { claim_wait: Duration::from_millis(250), statement_timeout: Duration::from_secs(30) }
    }
}

/// The number of a registered consumer within its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConsumerId(pub i32);

/// An id to claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The key.
    pub id: MessageId,
    /// Four bytes of type and payload, see [`fingerprint`](crate::id::fingerprint).
    pub fingerprint: i32,
    /// The id's own time: that of a UUIDv7, else the producer's, else the broker's. A claim is stamped with the later
    /// of this and now.
    pub time: Option<SystemTime>,
}

/// What a claim found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// This transaction is the first: run it.
    New,
    /// Processed before, with the same content.
    Duplicate,
    /// The id was used before, for another content.
    Conflict,
}

/// Whose fault a failure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The message's or its handler's: an attempt is counted.
    Message,
    /// The database's or the network's: nothing is counted, the work is done again.
    Infrastructure,
    /// An earlier statement's in the same transaction, whose error was swallowed: it cannot be pinned on one message.
    Unpinned,
    /// Another transaction's (deadlock, serialization failure): nothing is counted, done again with jitter.
    Contention,
}

/// What one transaction has claimed, and what of it is still unresolved.
#[derive(Debug)]
#[must_use = "claims are given to `commit`, or the transaction is rolled back"]
pub struct Claims {
    consumer: ConsumerId,
    transaction: u64,
    found: HashMap<MessageId, Claim>,
    unresolved: HashSet<MessageId>,
}

impl Claims {
    /// For stores: what the claim of `consumer` found. `transaction` is the store's own mark of the transaction, by
    /// which [`commit`](InboxStore::commit) knows it again.
    pub fn new(consumer: ConsumerId, transaction: u64, found: HashMap<MessageId, Claim>) -> Self {
        let unresolved = found.iter().filter(|(_, claim)| **claim == Claim::New).map(|(id, _)| *id).collect();
        Self { consumer, transaction, found, unresolved }
    }

    /// The consumer that claimed.
    #[must_use]
    pub fn consumer(&self) -> ConsumerId {
        self.consumer
    }

    /// For stores: the mark given to [`new`](Self::new).
    #[must_use]
    pub fn transaction(&self) -> u64 {
        self.transaction
    }

    /// What was found for `id`; `None` if it was not among the candidates or was unclaimed.
    #[must_use]
    pub fn get(&self, id: MessageId) -> Option<Claim> {
        self.found.get(&id).copied()
    }

    /// The message of this `New` id ran to success in this transaction.
    pub fn done(&mut self, id: MessageId) {
        self.unresolved.remove(&id);
    }

    /// For stores: `id` was given up in this transaction; its failures row is written.
    pub fn given_up(&mut self, id: MessageId) {
        self.unresolved.remove(&id);
    }

    /// For stores: the claim of `id` was deleted in this transaction.
    pub fn unclaimed(&mut self, id: MessageId) {
        self.unresolved.remove(&id);
        self.found.remove(&id);
    }

    /// How many ids are `New` in this transaction.
    #[must_use]
    pub fn new_ids(&self) -> usize {
        self.found.values().filter(|claim| **claim == Claim::New).count()
    }

    /// For stores: the error of S-06, to be returned by `commit` before it does anything, after a rollback.
    ///
    /// # Errors
    /// `Unresolved` while a `New` id is neither done, given up nor unclaimed.
    pub fn resolved(&self) -> Result<(), StoreError> {
        let Some(first) = self.unresolved.iter().min() else {
            return Ok(());
        };
        Err(StoreError::new(StoreErrorKind::Unresolved, "commit").context(format!(
            "{} claimed id(s) neither done, given up nor unclaimed, {first} among them; nothing was committed; call \
             `Claims::done` for each id whose effect is in the transaction",
            self.unresolved.len(),
        )))
    }
}

/// Sorts candidates by id, as every claim statement must: two transactions that claim in one order cannot deadlock.
///
/// # Panics
/// When an id stands there twice: which copy's fingerprint would be stored?
#[must_use]
pub fn sorted(candidates: &[Candidate]) -> Vec<Candidate> {
    let mut sorted = candidates.to_vec();
    sorted.sort_unstable_by_key(|candidate| candidate.id);
    assert!(
        sorted.windows(2).all(|pair| pair[0].id != pair[1].id),
        "an id stands in the candidates of a claim once; the caller removes copies"
    );
    sorted
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn id(n: u128) -> MessageId {
        MessageId::from_uuid(Uuid::from_u128(n))
    }

    #[test]
    fn a_new_id_is_unresolved_until_it_is_said_what_became_of_it() {
        let found = [(id(1), Claim::New), (id(2), Claim::Duplicate), (id(3), Claim::New), (id(4), Claim::New)];
        let mut claims = Claims::new(ConsumerId(1), 0, found.into());
        claims.done(id(1));
        claims.given_up(id(3));
        let kind = claims.resolved().map_err(|error| error.kind());
        assert_eq!(kind, Err(StoreErrorKind::Unresolved));
        claims.unclaimed(id(4));
        assert!(claims.resolved().is_ok());
        assert_eq!((claims.get(id(4)), claims.new_ids()), (None, 2));
    }
}
