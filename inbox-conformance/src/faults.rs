//! Honest trouble: transports and stores that keep their contract and have a bad day. Generic, so that every subject
//! can be given the same day.

use std::{
    collections::VecDeque,
    error::Error,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use inbox_core::{
    Acked, Blame, Candidate, Capacity, Claims, ConsumerId, Delivery, InboxStore, Limits, MessageId, Receipt,
    StoreError, StoreErrorKind, Transport, TransportError,
    capability::{Capabilities, MaxAge},
    failure_store::{Failure, FailureStore},
};

/// Hands over the first `first` deliveries in one answer and in the order of their ids, so that a batch is the same on
/// every broker, whatever its partitions made of it. Ids are UUIDv7: this is the order in which they were made, which
/// within one key is that of publishing.
pub(crate) struct Gathered {
    inner: Arc<dyn Transport>,
    first: usize,
    held: Mutex<Option<Vec<Delivery>>>,
}

impl Gathered {
    pub(crate) fn new(inner: Arc<dyn Transport>, first: usize) -> Self {
        Self { inner, first, held: Mutex::new(Some(Vec::new())) }
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Option<Vec<Delivery>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Transport for Gathered {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }
    async fn receive(&self, capacity: Capacity) -> Result<Vec<Delivery>, TransportError> {
        loop {
            let missing = match &*self.held() {
                Some(held) => self.first - held.len(),
                None => 0,
            };
            if missing == 0 {
                if let Some(mut held) = self.held().take() {
                    held.sort_by(|a, b| id_of(a).cmp(&id_of(b)));
                    return Ok(held);
                }
                return self.inner.receive(capacity).await;
            }
            let more = self.inner.receive(Capacity { messages: missing, ..capacity }).await?;
            if let Some(held) = &mut *self.held() {
                held.extend(more);
            }
        }
    }
    async fn ack(&self, receipts: Vec<Receipt>) -> Result<Acked, TransportError> {
        self.inner.ack(receipts).await
    }
    async fn release(&self, receipts: Vec<Receipt>) -> Result<(), TransportError> {
        self.inner.release(receipts).await
    }
    async fn max_age(&self) -> Result<MaxAge, TransportError> {
        self.inner.max_age().await
    }
    fn connected(&self) -> bool {
        self.inner.connected()
    }
    async fn close(&self, deadline: Duration) -> Result<(), TransportError> {
        drop(self.held().take());
        self.inner.close(deadline).await
    }
}

fn id_of(delivery: &Delivery) -> Option<&[u8]> {
    delivery.message.id.as_ref().map(|id| &id.as_bytes()[..])
}

/// Loses every acknowledgement: between COMMIT and ack, the process might as well be dead.
pub(crate) struct LostAcks {
    inner: Arc<dyn Transport>,
    /// How many were lost.
    pub(crate) lost: Arc<AtomicUsize>,
    /// Kept, or dropping them would hand the messages over again at once.
    receipts: Mutex<Vec<Receipt>>,
}

impl LostAcks {
    pub(crate) fn new(inner: Arc<dyn Transport>) -> Self {
        Self { inner, lost: Arc::default(), receipts: Mutex::default() }
    }
}

#[async_trait]
impl Transport for LostAcks {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }
    async fn receive(&self, capacity: Capacity) -> Result<Vec<Delivery>, TransportError> {
        self.inner.receive(capacity).await
    }
    async fn ack(&self, receipts: Vec<Receipt>) -> Result<Acked, TransportError> {
        let lost = receipts.len();
        self.receipts.lock().unwrap_or_else(PoisonError::into_inner).extend(receipts);
        self.lost.fetch_add(lost, Ordering::SeqCst);
        Ok(Acked { acked: 0, lost })
    }
    async fn release(&self, receipts: Vec<Receipt>) -> Result<(), TransportError> {
        self.inner.release(receipts).await
    }
    async fn max_age(&self) -> Result<MaxAge, TransportError> {
        self.inner.max_age().await
    }
    fn connected(&self) -> bool {
        self.inner.connected()
    }
    async fn close(&self, deadline: Duration) -> Result<(), TransportError> {
        self.inner.close(deadline).await
    }
}

/// How a commit ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CommitEnd {
    /// As the store says.
    Honest,
    /// `CommitUnknown`, though it has committed.
    UnknownCommitted,
    /// `CommitUnknown`, and it was rolled back.
    UnknownRolledBack,
    /// `Contention`: a serialization failure or a deadlock at COMMIT.
    Contention,
}

/// What is going to happen to a [`Faulty`] store.
#[derive(Debug, Default)]
pub(crate) struct Troubles {
    /// Whether the database is away: nothing begins, nothing is counted.
    pub(crate) away: AtomicBool,
    /// How the next commits end; after them, honestly.
    pub(crate) commits: Mutex<VecDeque<CommitEnd>>,
    /// Transactions refused so far.
    pub(crate) refused: AtomicUsize,
}

impl Troubles {
    pub(crate) fn at_commits(ends: impl IntoIterator<Item = CommitEnd>) -> Arc<Self> {
        Arc::new(Self { commits: Mutex::new(ends.into_iter().collect()), ..Self::default() })
    }

    fn available(&self, operation: &'static str) -> Result<(), StoreError> {
        if self.away.load(Ordering::SeqCst) {
            self.refused.fetch_add(1, Ordering::SeqCst);
            return Err(StoreError::new(StoreErrorKind::Unavailable, operation).context("the suite says so"));
        }
        Ok(())
    }
}

/// A store that meets [`Troubles`].
pub(crate) struct Faulty<St> {
    pub(crate) inner: St,
    pub(crate) troubles: Arc<Troubles>,
}

impl<St: InboxStore> InboxStore for Faulty<St> {
    type Tx = St::Tx;

    async fn register(&self, consumer: &str) -> Result<ConsumerId, StoreError> {
        self.troubles.available("register")?;
        self.inner.register(consumer).await
    }
    async fn begin(&self, limits: &Limits) -> Result<St::Tx, StoreError> {
        self.troubles.available("begin")?;
        self.inner.begin(limits).await
    }
    async fn claim(
        &self,
        tx: &mut St::Tx,
        consumer: ConsumerId,
        candidates: &[Candidate],
    ) -> Result<Claims, StoreError> {
        self.inner.claim(tx, consumer, candidates).await
    }
    async fn unclaim(&self, tx: &mut St::Tx, claims: &mut Claims, ids: &[MessageId]) -> Result<(), StoreError> {
        self.inner.unclaim(tx, claims, ids).await
    }
    async fn check(&self, tx: &mut St::Tx, claims: &Claims) -> Result<(), StoreError> {
        self.inner.check(tx, claims).await
    }
    async fn commit(&self, tx: St::Tx, claims: Claims) -> Result<(), StoreError> {
        let end = self.troubles.commits.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        match end.unwrap_or(CommitEnd::Honest) {
            CommitEnd::Honest => self.inner.commit(tx, claims).await,
            CommitEnd::UnknownCommitted => {
                self.inner.commit(tx, claims).await?;
                Err(StoreError::new(StoreErrorKind::CommitUnknown, "commit"))
            }
            CommitEnd::UnknownRolledBack => {
                self.inner.rollback(tx).await?;
                Err(StoreError::new(StoreErrorKind::CommitUnknown, "commit"))
            }
            CommitEnd::Contention => {
                self.inner.rollback(tx).await?;
                Err(StoreError::new(StoreErrorKind::Contention, "commit"))
            }
        }
    }
    async fn rollback(&self, tx: St::Tx) -> Result<(), StoreError> {
        self.inner.rollback(tx).await
    }
    fn classify(&self, error: &(dyn Error + 'static)) -> Blame {
        self.inner.classify(error)
    }
}

impl<St: FailureStore> FailureStore for Faulty<St> {
    async fn record_attempt(&self, consumer: ConsumerId, failure: &Failure) -> Result<Option<u32>, StoreError> {
        self.troubles.available("record_attempt")?;
        self.inner.record_attempt(consumer, failure).await
    }
    async fn give_up(&self, tx: &mut St::Tx, claims: &mut Claims, failure: &Failure) -> Result<(), StoreError> {
        self.inner.give_up(tx, claims, failure).await
    }
    async fn keep(&self, tx: &mut St::Tx, consumer: ConsumerId, failure: &Failure) -> Result<(), StoreError> {
        self.inner.keep(tx, consumer, failure).await
    }
    async fn forget_attempts(&self, tx: &mut St::Tx, consumer: ConsumerId, id: MessageId) -> Result<(), StoreError> {
        self.inner.forget_attempts(tx, consumer, id).await
    }
}
