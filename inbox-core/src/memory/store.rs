//! An in-process database that keeps the store contract.

use std::{
    collections::{BTreeMap, HashMap},
    error::Error,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use super::tx::{MemoryError, MemoryTx, Staged, TxState};
use crate::{
    clock,
    error::{StoreError, StoreErrorKind},
    failure_store::{Failure, FailureRow, FailureStore, Reason},
    id::MessageId,
    maintenance::{Counts, Maintenance},
    operator::Operator,
    store::{Blame, Candidate, Claim, Claims, ConsumerId, InboxStore, Limits, sorted},
};

/// A database that lives in this process. Clones are handles of the same database.
#[derive(Clone, Default)]
pub struct MemoryStore {
    database: Arc<Database>,
}

impl MemoryStore {
    /// An empty database.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What was committed under `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<Bytes> {
        self.database.value(key)
    }

    /// What was appended to `log` and committed, in the order of the commits.
    #[must_use]
    pub fn log(&self, log: &str) -> Vec<String> {
        self.database.data().logs.get(log).cloned().unwrap_or_default()
    }

    /// Faults to come, for tests.
    #[must_use]
    pub fn faults(&self) -> Faults {
        Faults { database: Arc::clone(&self.database) }
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let data = self.database.data();
        f.debug_struct("MemoryStore")
            .field("claims", &data.claims.len())
            .field("failures", &data.rows.len())
            .finish_non_exhaustive()
    }
}

/// Makes coming calls on a [`MemoryStore`] fail. Faults stand in a queue: each is met once, by whoever comes next.
#[derive(Clone)]
pub struct Faults {
    database: Arc<Database>,
}

impl Faults {
    /// The next `n` calls of `begin` or `register` fail with `Unavailable`.
    pub fn fail_begins(&self, n: u32) {
        self.database.data().faults.begins += n;
    }

    /// The next commit that would succeed ends as `fault` says.
    pub fn at_commit(&self, fault: CommitFault) {
        self.database.data().faults.commits.push(fault);
    }

    /// The next statement of a handler fails with [`MemoryError::Contention`].
    pub fn contention(&self) {
        self.database.data().faults.statements.push(MemoryError::Contention);
    }

    /// The next statement of a handler fails with [`MemoryError::Unavailable`].
    pub fn connection_lost(&self) {
        self.database.data().faults.statements.push(MemoryError::Unavailable);
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.database.data().faults.fmt(f)
    }
}

/// How an injected fault ends a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitFault {
    /// `CommitUnknown`, and it has committed.
    UnknownCommitted,
    /// `CommitUnknown`, and it was rolled back.
    UnknownRolledBack,
    /// `Contention`, rolled back.
    Contention,
}

#[derive(Debug, Default)]
struct Injected {
    begins: u32,
    commits: Vec<CommitFault>,
    statements: Vec<MemoryError>,
}

impl Injected {
    fn take<T>(queue: &mut Vec<T>) -> Option<T> {
        if queue.is_empty() { None } else { Some(queue.remove(0)) }
    }
}

/// What all handles share.
#[derive(Default)]
pub(super) struct Database {
    data: Mutex<Data>,
    /// Some transaction let go of its claimed ids.
    ended: Notify,
}

#[derive(Default)]
struct Data {
    transactions: u64,
    consumers: HashMap<String, ConsumerId>,
    claims: HashMap<(ConsumerId, MessageId), ClaimRow>,
    /// Ids claimed by transactions that are still open: what a lock on the row would be.
    open: HashMap<(ConsumerId, MessageId), u64>,
    rows: BTreeMap<u64, Row>,
    row_numbers: u64,
    values: HashMap<String, Bytes>,
    logs: HashMap<String, Vec<String>>,
    faults: Injected,
}

#[derive(Clone, Copy)]
pub(super) struct ClaimRow {
    fingerprint: i32,
    /// The later of the time of claiming and the id's own: pruning, once it comes, goes by it.
    #[expect(dead_code, reason = "stamped by the contract; read when there is a pruner")]
    claimed_at: SystemTime,
}

/// A failures row with what it is found by.
pub(super) struct Row {
    consumer: ConsumerId,
    fingerprint: i32,
    row: FailureRow,
}

impl Row {
    fn new(consumer: ConsumerId, failure: &Failure) -> Self {
        let retrying = failure.reason == Reason::Retrying;
        Self {
            consumer,
            fingerprint: failure.fingerprint,
            row: FailureRow {
                id: failure.id,
                reason: failure.reason,
                attempts: 0,
                seen: 1,
                error: failure.error.clone(),
                id_text: failure.message.id.as_ref().map(|id| id.as_bytes().clone()),
                kind: failure.message.kind.clone(),
                body: (!retrying).then(|| failure.message.body.clone()),
                source: failure.source.clone(),
                last_failed_at: clock::now(),
            },
        }
    }
}

impl Data {
    fn retrying(&self, consumer: ConsumerId, id: MessageId) -> Option<u64> {
        self.find(|row| row.consumer == consumer && row.row.id == id && row.row.reason == Reason::Retrying)
    }

    fn find(&self, is: impl Fn(&Row) -> bool) -> Option<u64> {
        self.rows.iter().find(|(_, row)| is(row)).map(|(number, _)| *number)
    }

    /// Whether it counts the attempts of a message that somebody has finished meanwhile.
    fn finished(&self, row: &Row) -> bool {
        row.row.reason == Reason::Retrying && self.claims.contains_key(&(row.consumer, row.row.id))
    }

    fn insert(&mut self, row: Row) {
        self.row_numbers += 1;
        self.rows.insert(self.row_numbers, row);
    }

    fn apply(&mut self, staged: Staged) {
        self.claims.extend(staged.claims);
        self.values.extend(staged.values);
        for (log, value) in staged.log {
            self.logs.entry(log).or_default().push(value);
        }
        for (consumer, id) in staged.forgotten {
            if let Some(number) = self.retrying(consumer, id) {
                self.rows.remove(&number);
            }
        }
        for mut row in staged.given_up {
            if let Some(counted) = self.retrying(row.consumer, row.row.id).and_then(|number| self.rows.remove(&number))
            {
                row.row.attempts = counted.row.attempts;
            }
            self.insert(row);
        }
        for row in staged.kept {
            let same = |other: &Row| {
                other.consumer == row.consumer
                    && other.row.id == row.row.id
                    && other.fingerprint == row.fingerprint
                    && other.row.reason != Reason::Retrying
            };
            match self.find(same).and_then(|number| self.rows.get_mut(&number)) {
                Some(kept) => {
                    kept.row.seen += 1;
                    kept.row.last_failed_at = row.row.last_failed_at;
                }
                None => self.insert(row),
            }
        }
    }

    fn counts(&self, consumer: ConsumerId) -> Counts {
        let rows = || self.rows.values().filter(|row| row.consumer == consumer);
        Counts {
            claims: self.claims.keys().filter(|(of, _)| *of == consumer).count() as u64,
            retrying: rows().filter(|row| row.row.reason == Reason::Retrying && !self.finished(row)).count() as u64,
            quarantined: rows().filter(|row| row.row.reason != Reason::Retrying).count() as u64,
        }
    }
}

impl Database {
    fn data(&self) -> MutexGuard<'_, Data> {
        // No code of anybody else runs under this lock, so poisoned data is still whole.
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn value(&self, key: &str) -> Option<Bytes> {
        self.data().values.get(key).cloned()
    }

    pub(super) fn statement_fault(&self) -> Option<MemoryError> {
        Injected::take(&mut self.data().faults.statements)
    }

    /// The transaction of this number holds nothing any more.
    pub(super) fn let_go(&self, number: u64) {
        self.data().open.retain(|_, holder| *holder != number);
        self.ended.notify_waiters();
    }

    /// Claims from `at` on, in order; `false` at an id that another open transaction has claimed.
    fn claim_on(&self, tx: &mut MemoryTx, consumer: ConsumerId, run: &mut ClaimRun) -> bool {
        let mut data = self.data();
        while let Some(candidate) = run.candidates.get(run.at) {
            let key = (consumer, candidate.id);
            let claim = match (data.claims.get(&key), data.open.get(&key)) {
                (Some(row), _) if row.fingerprint == candidate.fingerprint => Claim::Duplicate,
                (Some(_), _) => Claim::Conflict,
                (None, Some(_)) => return false,
                (None, None) => {
                    data.open.insert(key, tx.number);
                    let now = clock::now();
                    let claimed_at = candidate.time.map_or(now, |time| time.max(now));
                    tx.staged.claims.insert(key, ClaimRow { fingerprint: candidate.fingerprint, claimed_at });
                    Claim::New
                }
            };
            run.found.insert(candidate.id, claim);
            run.at += 1;
        }
        true
    }
}

struct ClaimRun {
    candidates: Vec<Candidate>,
    at: usize,
    found: HashMap<MessageId, Claim>,
}

fn error(kind: StoreErrorKind, operation: &'static str) -> StoreError {
    StoreError::new(kind, operation)
}

/// Whether a statement of the store's own can run in `tx`.
fn usable(tx: &MemoryTx, operation: &'static str) -> Result<(), StoreError> {
    match tx.state {
        TxState::Open => Ok(()),
        TxState::Aborted => Err(error(StoreErrorKind::TransactionAborted, operation)
            .context("a statement failed and its error was swallowed; return it with `?`")),
        TxState::Lost => Err(error(StoreErrorKind::Unavailable, operation).source(MemoryError::Unavailable)),
        TxState::Escaped => Err(error(StoreErrorKind::TransactionEscaped, operation)
            .context("a handler ended the inbox's transaction itself; nothing of this batch was kept")),
    }
}

impl InboxStore for MemoryStore {
    type Tx = MemoryTx;

    async fn register(&self, consumer: &str) -> Result<ConsumerId, StoreError> {
        let mut data = self.database.data();
        if let Some(left) = data.faults.begins.checked_sub(1) {
            data.faults.begins = left;
            return Err(error(StoreErrorKind::Unavailable, "register").source(MemoryError::Unavailable));
        }
        let next = i32::try_from(data.consumers.len() + 1)
            .map_err(|source| error(StoreErrorKind::Unexpected, "register").source(source))?;
        Ok(*data.consumers.entry(consumer.to_owned()).or_insert(ConsumerId(next)))
    }

    async fn begin(&self, limits: &Limits) -> Result<MemoryTx, StoreError> {
        let mut data = self.database.data();
        if let Some(left) = data.faults.begins.checked_sub(1) {
            data.faults.begins = left;
            return Err(error(StoreErrorKind::Unavailable, "begin").source(MemoryError::Unavailable));
        }
        data.transactions += 1;
        Ok(MemoryTx {
            database: Arc::clone(&self.database),
            number: data.transactions,
            claim_wait: limits.claim_wait,
            state: TxState::Open,
            staged: Staged::default(),
        })
    }

    async fn claim(
        &self,
        tx: &mut MemoryTx,
        consumer: ConsumerId,
        candidates: &[Candidate],
    ) -> Result<Claims, StoreError> {
        usable(tx, "claim")?;
        let mut run = ClaimRun { candidates: sorted(candidates), at: 0, found: HashMap::new() };
        let deadline = Instant::now() + tx.claim_wait;
        loop {
            // Made before the look, so that no end of a transaction after it is missed.
            let ended = self.database.ended.notified();
            if self.database.claim_on(tx, consumer, &mut run) {
                return Ok(Claims::new(consumer, tx.number, run.found));
            }
            if timeout_at(deadline, ended).await.is_err() {
                tx.discard(TxState::Aborted);
                return Err(error(StoreErrorKind::ClaimTimeout, "claim"));
            }
        }
    }

    async fn unclaim(&self, tx: &mut MemoryTx, claims: &mut Claims, ids: &[MessageId]) -> Result<(), StoreError> {
        usable(tx, "unclaim")?;
        for id in ids.iter().filter(|id| claims.get(**id) == Some(Claim::New)).copied().collect::<Vec<_>>() {
            tx.staged.claims.remove(&(claims.consumer(), id));
            claims.unclaimed(id);
        }
        Ok(())
    }

    async fn check(&self, tx: &mut MemoryTx, claims: &Claims) -> Result<(), StoreError> {
        usable(tx, "check")?;
        if tx.number == claims.transaction() {
            return Ok(());
        }
        Err(error(StoreErrorKind::TransactionEscaped, "check").context("the claims are another transaction's"))
    }

    async fn commit(&self, mut tx: MemoryTx, claims: Claims) -> Result<(), StoreError> {
        claims.resolved()?;
        self.check(&mut tx, &claims).await?;
        let staged = std::mem::take(&mut tx.staged);
        let mut data = self.database.data();
        let fault = Injected::take(&mut data.faults.commits);
        if matches!(fault, None | Some(CommitFault::UnknownCommitted)) {
            data.apply(staged);
        }
        drop(data);
        match fault {
            None => Ok(()),
            Some(CommitFault::Contention) => Err(error(StoreErrorKind::Contention, "commit")),
            Some(CommitFault::UnknownCommitted | CommitFault::UnknownRolledBack) => {
                Err(error(StoreErrorKind::CommitUnknown, "commit"))
            }
        }
    }

    async fn rollback(&self, tx: MemoryTx) -> Result<(), StoreError> {
        drop(tx);
        Ok(())
    }

    fn classify(&self, error: &(dyn Error + 'static)) -> Blame {
        let mut cause = Some(error);
        while let Some(error) = cause {
            if let Some(error) = error.downcast_ref() {
                return match error {
                    MemoryError::Unavailable => Blame::Infrastructure,
                    MemoryError::Contention => Blame::Contention,
                    MemoryError::Aborted => Blame::Unpinned,
                    MemoryError::Failed | MemoryError::ReadOnly | MemoryError::CommitRefused => Blame::Message,
                };
            }
            cause = error.source();
        }
        Blame::Message
    }
}

impl FailureStore for MemoryStore {
    async fn record_attempt(&self, consumer: ConsumerId, failure: &Failure) -> Result<Option<u32>, StoreError> {
        let mut data = self.database.data();
        if data.claims.contains_key(&(consumer, failure.id)) {
            return Ok(None);
        }
        let mut row = Row::new(consumer, &Failure { reason: Reason::Retrying, ..failure.clone() });
        let number = match data.retrying(consumer, failure.id) {
            Some(number) => number,
            None => {
                data.row_numbers += 1;
                data.row_numbers
            }
        };
        row.row.attempts = data.rows.get(&number).map_or(0, |row| row.row.attempts) + 1;
        let attempts = row.row.attempts;
        data.rows.insert(number, row);
        Ok(Some(attempts))
    }

    async fn give_up(&self, tx: &mut MemoryTx, claims: &mut Claims, failure: &Failure) -> Result<(), StoreError> {
        usable(tx, "give_up")?;
        if claims.get(failure.id) != Some(Claim::New) {
            return Err(error(StoreErrorKind::Unexpected, "give_up")
                .context(format!("{} is no `New` id of this transaction", failure.id)));
        }
        tx.staged.given_up.push(Row::new(claims.consumer(), failure));
        claims.given_up(failure.id);
        Ok(())
    }

    async fn keep(&self, tx: &mut MemoryTx, consumer: ConsumerId, failure: &Failure) -> Result<(), StoreError> {
        usable(tx, "keep")?;
        tx.staged.kept.push(Row::new(consumer, failure));
        Ok(())
    }

    async fn forget_attempts(&self, tx: &mut MemoryTx, consumer: ConsumerId, id: MessageId) -> Result<(), StoreError> {
        usable(tx, "forget_attempts")?;
        tx.staged.forgotten.insert((consumer, id));
        Ok(())
    }
}

impl Maintenance for MemoryStore {
    async fn migrate(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn counts(&self, consumer: ConsumerId) -> Result<Counts, StoreError> {
        Ok(self.database.data().counts(consumer))
    }
}

#[async_trait]
impl Operator for MemoryStore {
    async fn counts_of(&self, consumer: &str) -> Result<Counts, StoreError> {
        let data = self.database.data();
        Ok(data.consumers.get(consumer).map(|consumer| data.counts(*consumer)).unwrap_or_default())
    }

    async fn failures(&self, consumer: &str, most: u32) -> Result<Vec<FailureRow>, StoreError> {
        let data = self.database.data();
        let Some(consumer) = data.consumers.get(consumer) else { return Ok(Vec::new()) };
        let rows = data.rows.values().filter(|row| row.consumer == *consumer && !data.finished(row));
        Ok(rows.take(most as usize).map(|row| row.row.clone()).collect())
    }
}
