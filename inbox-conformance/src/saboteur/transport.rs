//! Wrong transports.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use inbox_core::{
    Acked, BoxError, Bytes, Capacity, Delivery, Headers, InFlight, Message, Publisher, Receipt, Session, Transport,
    TransportError,
    capability::{Capabilities, MaxAge},
};

use crate::harness::{Link, TransportSubject, unique};

/// What a transport does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the table of saboteurs says it of each")]
pub enum TransportSabotage {
    None,
    SkipsSome,
    ChangesHeaders,
    AcksAtReceive,
    LosesDropped,
    IgnoresCapacity,
    Reorders,
    IsNotCancelSafe,
    AcksNothing,
    CountsLostAsAcked,
    LosesWithSession,
    AcksReleased,
    NeverCloses,
    ConfirmsUnstored,
    SharesGroups,
    Broadcasts,
    MiscountsDeliveries,
}

impl TransportSabotage {
    /// Whether receipts are exchanged for its own, so that what happens to them is its business.
    fn exchanges_receipts(self) -> bool {
        matches!(self, Self::AcksAtReceive | Self::LosesDropped | Self::AcksNothing | Self::LosesWithSession)
    }
}

/// A subject whose transports and publishers are wrong in one way.
pub struct SabotagedTransportSubject {
    inner: Arc<dyn TransportSubject>,
    how: TransportSabotage,
}

impl std::fmt::Debug for SabotagedTransportSubject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SabotagedTransportSubject").field("how", &self.how).finish_non_exhaustive()
    }
}

impl SabotagedTransportSubject {
    /// Makes `inner` wrong.
    #[must_use]
    pub fn new(inner: Arc<dyn TransportSubject>, how: TransportSabotage) -> Self {
        Self { inner, how }
    }
}

#[async_trait]
impl TransportSubject for SabotagedTransportSubject {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn can_break_sessions(&self) -> bool {
        self.inner.can_break_sessions()
    }
    fn can_lose_leases(&self) -> bool {
        self.inner.can_lose_leases()
    }
    async fn fresh(&self) -> Result<Arc<dyn Link>, BoxError> {
        let inner = self.inner.fresh().await?;
        Ok(Arc::new(SabotagedLink { inner, how: self.how, connected: Mutex::default() }))
    }
}

struct SabotagedLink {
    inner: Arc<dyn Link>,
    how: TransportSabotage,
    connected: Mutex<Vec<Weak<SabotagedTransport>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SabotagedLink {
    fn wrap(&self, inner: Arc<dyn Transport>) -> Arc<dyn Transport> {
        let transport = Arc::new(SabotagedTransport {
            inner,
            how: self.how,
            session: Mutex::default(),
            out: InFlight::new(),
            handed_over: AtomicUsize::new(0),
        });
        lock(&self.connected).push(Arc::downgrade(&transport));
        transport
    }
}

#[async_trait]
impl Link for SabotagedLink {
    async fn connect(&self) -> Result<Arc<dyn Transport>, BoxError> {
        let inner = if self.how == TransportSabotage::Broadcasts && !lock(&self.connected).is_empty() {
            self.inner.connect_group(&unique("group")).await?
        } else {
            self.inner.connect().await?
        };
        Ok(self.wrap(inner))
    }
    async fn connect_group(&self, group: &str) -> Result<Arc<dyn Transport>, BoxError> {
        let inner = if self.how == TransportSabotage::SharesGroups {
            self.inner.connect().await?
        } else {
            self.inner.connect_group(group).await?
        };
        Ok(self.wrap(inner))
    }
    async fn publisher(&self) -> Result<Arc<dyn Publisher>, BoxError> {
        Ok(Arc::new(SabotagedPublisher { inner: self.inner.publisher().await?, how: self.how }))
    }
    async fn break_sessions(&self) -> Result<(), BoxError> {
        let connected: Vec<_> = lock(&self.connected).iter().filter_map(Weak::upgrade).collect();
        for transport in connected.into_iter().filter(|transport| transport.how.exchanges_receipts()) {
            let old = std::mem::take(&mut *lock(&transport.session));
            old.mark_lost();
            let held = transport.out.forget(&old);
            if self.how == TransportSabotage::LosesWithSession {
                transport.inner.ack(held).await?;
            }
        }
        self.inner.break_sessions().await
    }
    async fn lose_lease(&self, place: usize) -> Result<(), BoxError> {
        self.inner.lose_lease(place).await
    }
    async fn backlog(&self) -> Result<u64, BoxError> {
        self.inner.backlog().await
    }
}

struct SabotagedTransport {
    inner: Arc<dyn Transport>,
    how: TransportSabotage,
    session: Mutex<Session>,
    /// The honest receipts, where they are exchanged.
    out: InFlight<Receipt>,
    handed_over: AtomicUsize,
}

impl SabotagedTransport {
    async fn sabotage(&self, deliveries: Vec<Delivery>) -> Result<Vec<Delivery>, TransportError> {
        let mut kept = Vec::new();
        let mut swallowed = Vec::new();
        for mut delivery in deliveries {
            let number = self.handed_over.fetch_add(1, Ordering::Relaxed);
            match self.how {
                TransportSabotage::SkipsSome if number % 10 == 9 => {
                    swallowed.push(delivery.receipt);
                    continue;
                }
                TransportSabotage::ChangesHeaders => delivery.message.headers = as_text(&delivery.message.headers),
                TransportSabotage::MiscountsDeliveries => {
                    delivery.delivery_count = Some(1);
                    delivery.suspect = false;
                }
                TransportSabotage::AcksAtReceive => {
                    let session = lock(&self.session).clone();
                    let spent = Receipt::new(session, 0, Weak::<Nobody>::new());
                    swallowed.push(std::mem::replace(&mut delivery.receipt, spent));
                }
                how if how.exchanges_receipts() => {
                    let session = lock(&self.session).clone();
                    let spare = Receipt::new(session.clone(), 0, Weak::<Nobody>::new());
                    let honest = std::mem::replace(&mut delivery.receipt, spare);
                    delivery.receipt = self.out.hold(&session, honest);
                }
                _ => {}
            }
            kept.push(delivery);
        }
        self.inner.ack(swallowed).await?;
        if self.how == TransportSabotage::Reorders {
            kept.reverse();
        }
        Ok(kept)
    }
}

/// The owner of receipts that settle nothing.
struct Nobody;

impl inbox_core::transport::ReceiptOwner for Nobody {
    fn dropped(&self, _token: u64) {}
}

fn as_text(headers: &Headers) -> Headers {
    headers
        .iter()
        .map(|(name, value)| (name.to_owned(), Bytes::from(String::from_utf8_lossy(value).into_owned())))
        .collect()
}

#[async_trait]
impl Transport for SabotagedTransport {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn receive(&self, capacity: Capacity) -> Result<Vec<Delivery>, TransportError> {
        loop {
            let capacity = match self.how {
                TransportSabotage::IgnoresCapacity => Capacity { messages: capacity.messages * 3, bytes: usize::MAX },
                _ => capacity,
            };
            let mut deliveries = self.inner.receive(capacity).await?;
            if self.how == TransportSabotage::IsNotCancelSafe {
                // Between this await and its end, the messages are nobody's.
                let mut spilling = Spilling { receipts: Vec::new() };
                for delivery in &mut deliveries {
                    let spare = Receipt::new(delivery.receipt.session().clone(), 0, Weak::<Nobody>::new());
                    spilling.receipts.push(std::mem::replace(&mut delivery.receipt, spare));
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
                for (delivery, honest) in deliveries.iter_mut().zip(std::mem::take(&mut spilling.receipts)) {
                    delivery.receipt = honest;
                }
            }
            let deliveries = self.sabotage(deliveries).await?;
            if !deliveries.is_empty() {
                return Ok(deliveries);
            }
        }
    }

    async fn ack(&self, receipts: Vec<Receipt>) -> Result<Acked, TransportError> {
        let all = receipts.len();
        match self.how {
            // What it was given it keeps, as one who forgets to tell the broker would.
            TransportSabotage::AcksNothing => {
                let kept = self.out.settle(receipts);
                let session = lock(&self.session).clone();
                let acked = kept.len();
                Spilling { receipts: kept.into_iter().map(|honest| self.out.hold(&session, honest)).collect() }.spill();
                Ok(Acked { acked, lost: all - acked })
            }
            TransportSabotage::CountsLostAsAcked => {
                self.inner.ack(receipts).await?;
                Ok(Acked { acked: all, lost: 0 })
            }
            TransportSabotage::AcksAtReceive => Ok(Acked { acked: all, lost: 0 }),
            how if how.exchanges_receipts() => {
                let honest = self.out.settle(receipts);
                let lost = all - honest.len();
                let acked = self.inner.ack(honest).await?;
                Ok(Acked { acked: acked.acked, lost: acked.lost + lost })
            }
            _ => self.inner.ack(receipts).await,
        }
    }

    async fn release(&self, receipts: Vec<Receipt>) -> Result<(), TransportError> {
        match self.how {
            TransportSabotage::AcksReleased => self.inner.ack(receipts).await.map(drop),
            TransportSabotage::AcksAtReceive => Ok(()),
            how if how.exchanges_receipts() => self.inner.release(self.out.settle(receipts)).await,
            _ => self.inner.release(receipts).await,
        }
    }

    async fn max_age(&self) -> Result<MaxAge, TransportError> {
        self.inner.max_age().await
    }

    fn connected(&self) -> bool {
        self.inner.connected()
    }

    async fn close(&self, deadline: Duration) -> Result<(), TransportError> {
        if self.how == TransportSabotage::NeverCloses { Ok(()) } else { self.inner.close(deadline).await }
    }
}

/// Receipts that are lost when they are dropped: neither settled nor given back.
struct Spilling {
    receipts: Vec<Receipt>,
}

impl Spilling {
    fn spill(self) {
        drop(self);
    }
}

impl Drop for Spilling {
    fn drop(&mut self) {
        for receipt in self.receipts.drain(..) {
            // Taken apart, so that its owner is not told.
            let _token = receipt.into_token();
        }
    }
}

struct SabotagedPublisher {
    inner: Arc<dyn Publisher>,
    how: TransportSabotage,
}

#[async_trait]
impl Publisher for SabotagedPublisher {
    async fn publish(&self, messages: Vec<Message>) -> Vec<Result<(), TransportError>> {
        if self.how != TransportSabotage::ConfirmsUnstored {
            return self.inner.publish(messages).await;
        }
        let all = messages.len();
        let stored =
            messages.into_iter().enumerate().filter(|(n, _)| n % 10 != 9).map(|(_, message)| message).collect();
        let mut answers = self.inner.publish(stored).await;
        answers.resize_with(all, || Ok(()));
        answers
    }

    async fn close(&self, deadline: Duration) -> Result<(), TransportError> {
        self.inner.close(deadline).await
    }
}
