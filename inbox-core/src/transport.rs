//! The broker contract: what every transport does alike, so that one handler has one guarantee on all of them.
//!
//! A transport hands over [`Delivery`]s and takes their [`Receipt`]s back, by [`ack`](Transport::ack) (done for good) or
//! [`release`](Transport::release) (not attempted, hand it to somebody soon). There is no `nack`: a failed attempt is
//! the inbox's business, never the broker's.

use std::{
    collections::HashSet,
    fmt,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{
    capability::{Capabilities, MaxAge},
    error::TransportError,
    message::Message,
};

/// One subscription at one broker.
///
/// # Implementing
/// Keep what settles a delivery in an [`InFlight`](crate::InFlight) table and hand out its receipts: it keeps the rules
/// about sessions and dropped receipts for you. Run `inbox-conformance` against the result.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// In what this broker differs. Constant for the life of the transport, and true (T-14).
    fn capabilities(&self) -> &Capabilities;

    /// Hands over up to `capacity`; waits until there is at least one delivery.
    ///
    /// # Guarantees
    /// - T-01: a published message is handed over at least once.
    /// - T-02: content, id, kind, key and headers are as published.
    /// - T-03: a delivery that was not acked is handed over again once its receipt is dropped, its session is lost or
    ///   its lease ends.
    /// - T-04: never more than `capacity.messages`; the first message is handed over whatever its size, further ones
    ///   while the sum of sizes stays within `capacity.bytes`.
    /// - Where [`Capabilities::ordering`] promises an order, deliveries of one key come in it, also when they come
    ///   again (T-05); where [`Capabilities::exclusive_keys`] does, a key is with one consumer of the group at a time
    ///   (T-15).
    /// - T-12: groups are independent of each other. T-13: the consumers of one group share its messages.
    /// # Caller must
    /// call it from one task at a time.
    /// # Cancel safety
    /// Dropping the future loses nothing: what was taken but not returned is handed over again (T-06).
    /// # Errors
    /// `Unavailable`: retry with backoff (the transport reconnects by itself). `Closed` after [`close`](Self::close).
    /// Every other kind is fatal.
    async fn receive(&self, capacity: Capacity) -> Result<Vec<Delivery>, TransportError>;

    /// Settles deliveries for good. Called only after COMMIT.
    ///
    /// # Guarantees
    /// - T-07: an acked delivery is not handed over again to this group, also after a restart.
    /// - T-08: a receipt whose session is lost is counted in [`Acked::lost`] and is not an error.
    /// - Acking never waits for [`receive`](Self::receive).
    /// # Cancel safety
    /// Not cancel safe: dropping the future leaves it open which receipts were settled; those that were not are handed
    /// over again.
    /// # Errors
    /// `Unavailable`: what was not settled counts as lost.
    async fn ack(&self, receipts: Vec<Receipt>) -> Result<Acked, TransportError>;

    /// Gives deliveries back unattempted, to be handed over again soon, to this consumer or another (T-09).
    ///
    /// # Cancel safety
    /// As [`ack`](Self::ack): what was not given back comes again when its lease or session ends.
    /// # Errors
    /// `Unavailable`: as if the receipts had been dropped.
    async fn release(&self, receipts: Vec<Receipt>) -> Result<(), TransportError>;

    /// The oldest that a message of this subscription can be when it is handed over.
    ///
    /// # Errors
    /// `Unavailable` when the broker cannot be asked now.
    async fn max_age(&self) -> Result<MaxAge, TransportError>;

    /// Whether the broker is there as far as the transport knows. For health checks; costs nothing.
    fn connected(&self) -> bool;

    /// Settles what was acked, gives back what is held, and leaves the broker so that others take over at once. Further
    /// calls of [`receive`](Self::receive) fail with `Closed` (T-10).
    ///
    /// # Errors
    /// `Unavailable` when `deadline` passed first; nothing is lost by it.
    async fn close(&self, deadline: Duration) -> Result<(), TransportError>;
}

impl fmt::Debug for dyn Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport").field("name", &self.capabilities().name).finish_non_exhaustive()
    }
}

/// How much [`Transport::receive`] may hand over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// At most this many deliveries; at least 1.
    pub messages: usize,
    /// At most this many bytes together, as [`Message::size`] counts them.
    pub bytes: usize,
}

/// What became of acked receipts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acked {
    /// Settled for good.
    pub acked: usize,
    /// Not settled: the session or lease was lost, the message comes again and its claim will say `Duplicate`.
    pub lost: usize,
}

/// One hand-over of a message. It may repeat.
#[derive(Debug)]
pub struct Delivery {
    /// The content.
    pub message: Message,
    /// What settles it.
    pub receipt: Receipt,
    /// Where it came from.
    pub source: Source,
    /// The partition, where the broker has such a thing; [`Ordering::Partition`](crate::capability::Ordering) is about
    /// it.
    pub partition: Option<u64>,
    /// How often the broker has handed it over, this time included, where it counts.
    pub delivery_count: Option<u32>,
    /// Whether it may have been in flight when a process died.
    pub suspect: bool,
}

/// Where a message came from: for people, for the scope of ids, and to recognise a message that has no id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// The topic, queue or subscription.
    pub name: Arc<str>,
    /// What names this message at the broker, the same in every delivery (`3/4711`: partition and offset).
    pub coordinates: Option<Box<str>>,
}

impl Source {
    /// A source without coordinates.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self { name: name.into(), coordinates: None }
    }

    /// Adds the message's coordinates at the broker.
    #[must_use]
    pub fn coordinates(mut self, coordinates: impl Into<Box<str>>) -> Self {
        self.coordinates = Some(coordinates.into());
        self
    }
}

/// Settles one delivery, once: plain data that carries no type of an SDK.
///
/// Dropping an unsettled receipt tells the adapter, which hands the message over again (T-03).
pub struct Receipt {
    session: Session,
    token: u64,
    owner: Weak<dyn ReceiptOwner>,
}

/// The adapter's side of a receipt; [`InFlight`](crate::InFlight) implements it.
pub trait ReceiptOwner: Send + Sync {
    /// The receipt with this token was dropped without being settled. Must not block.
    fn dropped(&self, token: u64);
}

impl Receipt {
    /// A receipt of `session`; `token` is the owner's own number for the delivery.
    #[must_use]
    pub fn new(session: Session, token: u64, owner: Weak<dyn ReceiptOwner>) -> Self {
        Self { session, token, owner }
    }

    /// The session it belongs to.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The adapter's number for the delivery.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Whether its message may not be started any more: its session is ending, or its own lease is lost.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.session.is_ending() || self.session.has_lost(self.token)
    }

    /// Takes the receipt apart without telling the owner: for the adapter that is settling it.
    #[must_use]
    pub fn into_token(mut self) -> u64 {
        self.owner = Weak::<Nobody>::new();
        self.token
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.upgrade() {
            owner.dropped(self.token);
        }
        // Behind the owner, who marks losses under the lock of its table: nothing is marked after this.
        self.session.forget_lost(self.token);
    }
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receipt").field("session", &self.session.id()).field("token", &self.token).finish()
    }
}

struct Nobody;

impl ReceiptOwner for Nobody {
    fn dropped(&self, _token: u64) {}
}

/// The connection, channel or partition assignment that receipts belong to.
///
/// A session *ends* in two steps. While it is *ending* (a revoke, say) nothing of it is started any more, what waits is
/// dropped, and what runs may still finish and be acked. Once it is *lost* its receipts settle nothing.
///
/// Where each delivery has a lease of its own, single receipts of a live session can be lost too: see
/// [`InFlight::lose`](crate::InFlight::lose).
#[derive(Clone)]
pub struct Session {
    inner: Arc<SessionState>,
}

struct SessionState {
    id: u64,
    ending: CancellationToken,
    lost: CancellationToken,
    /// Receipts that are out and settle nothing, and how many: nearly always none, so that looking costs nothing.
    lost_receipts: Mutex<HashSet<u64>>,
    lost_count: AtomicUsize,
    lost_one: Notify,
}

impl Session {
    /// A new session, live.
    #[must_use]
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            inner: Arc::new(SessionState {
                id: NEXT.fetch_add(1, Ordering::Relaxed),
                ending: CancellationToken::new(),
                lost: CancellationToken::new(),
                lost_receipts: Mutex::default(),
                lost_count: AtomicUsize::new(0),
                lost_one: Notify::new(),
            }),
        }
    }

    /// A number that no other session of this process has.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.inner.id
    }

    /// For the adapter: nothing more of this session should be started.
    pub fn mark_ending(&self) {
        self.inner.ending.cancel();
    }

    /// For the adapter: receipts of this session settle nothing any more.
    pub fn mark_lost(&self) {
        self.inner.ending.cancel();
        self.inner.lost.cancel();
    }

    /// The lease of one delivery is lost, the session lives on. Its message is not started any more, and the runtime
    /// gives back what it holds of the same key behind it, which must not overtake.
    pub(crate) fn mark_receipt_lost(&self, token: u64) {
        let mut lost = self.inner.lost_receipts.lock().unwrap_or_else(PoisonError::into_inner);
        lost.insert(token);
        self.inner.lost_count.store(lost.len(), Ordering::Release);
        drop(lost);
        self.inner.lost_one.notify_one();
    }

    fn has_lost(&self, token: u64) -> bool {
        self.inner.lost_count.load(Ordering::Acquire) > 0
            && self.inner.lost_receipts.lock().unwrap_or_else(PoisonError::into_inner).contains(&token)
    }

    /// The receipt is gone.
    fn forget_lost(&self, token: u64) {
        if self.inner.lost_count.load(Ordering::Acquire) > 0 {
            let mut lost = self.inner.lost_receipts.lock().unwrap_or_else(PoisonError::into_inner);
            lost.remove(&token);
            self.inner.lost_count.store(lost.len(), Ordering::Release);
        }
    }

    /// Waits until a receipt may have been lost. For one waiter; cancel safe.
    pub(crate) async fn lost_one(&self) {
        self.inner.lost_one.notified().await;
    }

    /// Whether nothing more of this session should be started. True for a lost session too.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.inner.ending.is_cancelled()
    }

    /// Whether receipts of this session settle nothing any more.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.inner.lost.is_cancelled()
    }

    /// Waits until the session is ending or lost. Cancel safe.
    pub async fn ending(&self) {
        self.inner.ending.cancelled().await;
    }

    /// Waits until the session is lost. Cancel safe.
    pub async fn lost(&self) {
        self.inner.lost.cancelled().await;
    }
}

impl Default for Session {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("id", &self.id())
            .field("ending", &self.is_ending())
            .field("lost", &self.is_lost())
            .finish()
    }
}

#[async_trait]
impl<T: Transport + ?Sized> Transport for Arc<T> {
    fn capabilities(&self) -> &Capabilities {
        (**self).capabilities()
    }
    async fn receive(&self, capacity: Capacity) -> Result<Vec<Delivery>, TransportError> {
        (**self).receive(capacity).await
    }
    async fn ack(&self, receipts: Vec<Receipt>) -> Result<Acked, TransportError> {
        (**self).ack(receipts).await
    }
    async fn release(&self, receipts: Vec<Receipt>) -> Result<(), TransportError> {
        (**self).release(receipts).await
    }
    async fn max_age(&self) -> Result<MaxAge, TransportError> {
        (**self).max_age().await
    }
    fn connected(&self) -> bool {
        (**self).connected()
    }
    async fn close(&self, deadline: Duration) -> Result<(), TransportError> {
        (**self).close(deadline).await
    }
}
