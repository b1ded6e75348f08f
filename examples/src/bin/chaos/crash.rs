//! Crashes, made through the public traits only: wrappers around `ack` and `publish` that drop everything there.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use inbox::{
    Acked, Capacity, Delivery, Message, Publisher, Receipt, Transport, TransportError, TransportErrorKind,
    capability::{Capabilities, MaxAge},
};
use tokio::sync::Notify;

/// How a crash is made, and how many there were.
#[derive(Debug)]
pub(crate) struct Crash {
    chance: f64,
    rng: Mutex<fastrand::Rng>,
    abort: bool,
    dead: AtomicBool,
    died: Notify,
    pub(crate) count: Arc<AtomicU64>,
}

impl Crash {
    /// One life of a part that may crash, with this chance at each call.
    pub(crate) fn new(seed: u64, chance: f64, abort: bool, count: Arc<AtomicU64>) -> Arc<Self> {
        let rng = Mutex::new(fastrand::Rng::with_seed(seed));
        Arc::new(Self { chance, rng, abort, dead: AtomicBool::new(false), died: Notify::new(), count })
    }

    /// Whether this life is over, now or since an earlier call.
    fn strikes(&self) -> bool {
        if self.dead.load(Ordering::SeqCst) {
            return true;
        }
        if self.rng.lock().unwrap_or_else(PoisonError::into_inner).f64() >= self.chance {
            return false;
        }
        if self.abort {
            std::process::abort();
        }
        self.dead.store(true, Ordering::SeqCst);
        self.count.fetch_add(1, Ordering::SeqCst);
        self.died.notify_one();
        true
    }

    /// Whether it has happened.
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    /// Waits for the crash.
    pub(crate) async fn died(&self) {
        self.died.notified().await;
    }
}

fn gone(operation: &'static str) -> TransportError {
    TransportError::new(TransportErrorKind::Unavailable, operation).context("crashed on purpose")
}

/// Crashes after COMMIT and before the acknowledgement.
#[derive(Debug)]
pub(crate) struct CrashingTransport<T> {
    pub(crate) inner: T,
    pub(crate) crash: Arc<Crash>,
}

#[async_trait]
impl<T: Transport> Transport for CrashingTransport<T> {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn receive(&self, capacity: Capacity) -> Result<Vec<Delivery>, TransportError> {
        self.inner.receive(capacity).await
    }

    async fn ack(&self, receipts: Vec<Receipt>) -> Result<Acked, TransportError> {
        if self.crash.strikes() {
            return Err(gone("ack"));
        }
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
        self.inner.close(deadline).await
    }
}

/// Crashes after the broker has confirmed and before the relay knows.
pub(crate) struct CrashingPublisher<P> {
    pub(crate) inner: P,
    pub(crate) crash: Arc<Crash>,
}

#[async_trait]
impl<P: Publisher> Publisher for CrashingPublisher<P> {
    async fn publish(&self, messages: Vec<Message>) -> Vec<Result<(), TransportError>> {
        let confirmed = self.inner.publish(messages).await;
        if self.crash.strikes() {
            return confirmed.iter().map(|_| Err(gone("publish"))).collect();
        }
        confirmed
    }

    async fn close(&self, deadline: Duration) -> Result<(), TransportError> {
        self.inner.close(deadline).await
    }
}
