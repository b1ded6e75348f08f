//! The transport: what the runtime calls.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use inbox_core::{
    Acked, Capacity, Delivery, Receipt, Transport, TransportError, TransportErrorKind,
    capability::{Capabilities, Lease, MaxAge, Ordering},
};
use tokio::sync::{oneshot, watch};

use crate::{admin, config::KafkaConfig, handover::Shared, poll};

/// How long a transport that is dropped tries to leave the group in order.
const DROPPED: Duration = Duration::from_secs(5);

/// One member of a consumer group. See the [crate](crate) for what an operator should know.
///
/// Dropping it without [`close`](Transport::close) leaves the group too, in the background; what was acked since the last
/// commit may then be handed over again.
pub struct KafkaTransport {
    config: KafkaConfig,
    capabilities: Capabilities,
    shared: Arc<Shared>,
    ended: watch::Receiver<bool>,
}

impl KafkaTransport {
    /// Joins the group. Waits until a broker has answered, not until partitions are assigned.
    ///
    /// # Errors
    /// `InvalidConfig`; `Unavailable` when no broker answers within the connect timeout; `NotFound` when a topic does not
    /// exist; `Unauthorized` when the broker refuses the login, the topic, or the TLS handshake fails.
    pub async fn connect(config: KafkaConfig) -> Result<Self, TransportError> {
        config.check()?;
        config.required_group()?;
        admin::verify(&config, "connect").await?;
        let prefetch = Capacity { messages: config.prefetch, bytes: config.prefetch_bytes };
        let shared = Arc::new(Shared::new(&config.topics, prefetch));
        let (subscribed, answer) = oneshot::channel();
        let (ended, end) = watch::channel(false);
        poll::start(&config, Arc::clone(&shared), subscribed, ended)?;
        let capabilities = capabilities();
        let transport = Self { config, capabilities, shared, ended: end };
        answer.await.unwrap_or_else(|_| {
            Err(TransportError::new(TransportErrorKind::Unexpected, "connect").context("the polling thread has ended"))
        })?;
        Ok(transport)
    }
}

/// What Kafka promises.
fn capabilities() -> Capabilities {
    Capabilities {
        name: "kafka",
        ordering: Ordering::Partition,
        lease: Lease::Session,
        delivery_count: false,
        suspect_flag: false,
        exclusive_keys: true,
        max_body: None,
        durable: true,
    }
}

#[async_trait]
impl Transport for KafkaTransport {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn receive(&self, capacity: Capacity) -> Result<Vec<Delivery>, TransportError> {
        self.shared.receive(capacity).await
    }

    async fn ack(&self, receipts: Vec<Receipt>) -> Result<Acked, TransportError> {
        Ok(self.shared.ack(receipts))
    }

    async fn release(&self, receipts: Vec<Receipt>) -> Result<(), TransportError> {
        self.shared.release(receipts);
        Ok(())
    }

    async fn max_age(&self) -> Result<MaxAge, TransportError> {
        admin::max_age(&self.config).await
    }

    fn connected(&self) -> bool {
        self.shared.connected()
    }

    async fn close(&self, deadline: Duration) -> Result<(), TransportError> {
        self.shared.stop(Instant::now() + deadline);
        let mut ended = self.ended.clone();
        let context = match tokio::time::timeout(deadline, ended.wait_for(|ended| *ended)).await {
            // An error says that the thread is gone, which is what was waited for.
            Ok(Ok(_) | Err(_)) if !self.shared.is_uncommitted() => return Ok(()),
            Ok(Ok(_) | Err(_)) => "the last offsets were not committed: what was acked last comes again",
            Err(_) => "the deadline passed before the group was left; it goes on in the background",
        };
        Err(TransportError::new(TransportErrorKind::Unavailable, "close").context(context))
    }
}

impl Drop for KafkaTransport {
    fn drop(&mut self) {
        self.shared.stop(Instant::now() + DROPPED);
    }
}

impl fmt::Debug for KafkaTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (waiting, in_flight) = self.shared.counts();
        f.debug_struct("KafkaTransport")
            .field("config", &self.config)
            .field("connected", &self.connected())
            .field("waiting", &waiting)
            .field("in_flight", &in_flight)
            .field("unfinished", &self.shared.unfinished())
            .finish()
    }
}
