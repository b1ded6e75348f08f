//! The transport: what the runtime calls.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use async_trait::async_trait;
use inbox_core::{
    Acked, Capacity, Delivery, Receipt, Transport, TransportError, TransportErrorKind,
    capability::{Capabilities, Lease, MaxAge, Ordering},
};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::DropGuard;

use crate::{
    admin,
    config::RabbitMqConfig,
    connection,
    consume::{self, Shared},
    settle,
};

/// Tasks of this adapter end with the transport, and none is ever aborted.
#[allow(clippy::disallowed_methods, reason = "an adapter's own task, see above")]
fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    // It tells by itself when it has ended.
    drop(tokio::spawn(task));
}

/// One consumer of a queue. See the [crate](crate) for what an operator should know.
///
/// Dropping it without [`close`](Transport::close) leaves the broker too, in the background.
pub struct RabbitMqTransport {
    shared: Arc<Shared>,
    capabilities: Capabilities,
    /// Serves one `receive` at a time.
    receiving: tokio::sync::Mutex<()>,
    ended: watch::Receiver<bool>,
    _stop: DropGuard,
}

impl RabbitMqTransport {
    /// Connects and looks for the queue, which must exist. The first [`receive`](Transport::receive) subscribes to it.
    ///
    /// # Errors
    /// `InvalidConfig`, also for a virtual host that does not exist; `Unavailable` when no broker answers within the
    /// connect timeout; `NotFound` when there is no such queue; `Unauthorized` when the broker refuses the user or the
    /// password, or the TLS handshake fails. That the user may not read the queue is said by the first `receive`.
    pub async fn connect(config: RabbitMqConfig) -> Result<Self, TransportError> {
        config.check()?;
        let capabilities = capabilities(&config);
        let shared = Arc::new(Shared::new(config)?);
        let deadline = Instant::now() + shared.config.connect_timeout;
        let connected = connection::open(&shared.config, "connect", deadline).await?;
        let queue = shared.config.required_queue()?;
        admin::verify(&connected, &shared.config, ("queue", queue), deadline).await?;
        let (ended, end) = watch::channel(false);
        spawn(consume::keep(Arc::clone(&shared), connected, ended));
        let stop = shared.closed.clone().drop_guard();
        Ok(Self { shared, capabilities, receiving: tokio::sync::Mutex::default(), ended: end, _stop: stop })
    }

    /// How many deliveries the broker has handed to this consumer that are not settled: those that wait for a
    /// [`receive`](Transport::receive) and those that were received. Never more than callers of `receive` had room for,
    /// with what they held, nor than the prefetch. The broker counts them as unacknowledged, and for a moment what was
    /// acked; it cannot be asked for that over AMQP.
    #[must_use]
    pub fn unsettled(&self) -> usize {
        self.shared.in_flight.len()
    }
}

/// What RabbitMQ promises.
fn capabilities(config: &RabbitMqConfig) -> Capabilities {
    Capabilities {
        name: "rabbitmq",
        // What comes again comes at its old place in the queue, but behind what is out already; and another consumer of
        // the queue may have the next message of the same key.
        ordering: Ordering::None,
        lease: config.consumer_timeout.map_or(Lease::Session, Lease::Ceiling),
        delivery_count: false,
        // What another consumer gave back without an attempt is flagged as if that one had died.
        suspect_flag: false,
        exclusive_keys: false,
        max_body: None,
        durable: true,
    }
}

fn closed() -> TransportError {
    TransportError::new(TransportErrorKind::Closed, "receive").context("the transport was closed")
}

#[async_trait]
impl Transport for RabbitMqTransport {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn receive(&self, capacity: Capacity) -> Result<Vec<Delivery>, TransportError> {
        let _one_at_a_time = self.receiving.lock().await;
        self.shared.make_room(capacity);
        loop {
            if self.shared.closed.is_cancelled() {
                return Err(closed());
            }
            if let Some(error) = self.shared.refusal() {
                return Err(error);
            }
            let ready = self.shared.hand_over(capacity);
            if !ready.is_empty() {
                return Ok(ready);
            }
            tokio::select! {
                () = self.shared.arrived.notified() => {}
                () = self.shared.closed.cancelled() => {}
            }
        }
    }

    async fn ack(&self, receipts: Vec<Receipt>) -> Result<Acked, TransportError> {
        let sent = receipts.len();
        let acked = settle::ack(self.shared.in_flight.settle(receipts)).await;
        Ok(Acked { acked, lost: sent - acked })
    }

    async fn release(&self, receipts: Vec<Receipt>) -> Result<(), TransportError> {
        settle::give_back(self.shared.in_flight.settle(receipts), &self.shared.returned).await;
        Ok(())
    }

    async fn max_age(&self) -> Result<MaxAge, TransportError> {
        // A TTL of the queue or of a policy could bound it, and cannot be asked for over AMQP.
        Ok(MaxAge::Unbounded)
    }

    fn connected(&self) -> bool {
        self.shared.is_consuming()
    }

    async fn close(&self, deadline: Duration) -> Result<(), TransportError> {
        let until = Instant::now() + deadline;
        self.shared.closed.cancel();
        let mut ended = self.ended.clone();
        // An error says that the task is gone, which is what was waited for.
        match tokio::time::timeout_at(until, ended.wait_for(|ended| *ended)).await {
            Ok(Ok(_) | Err(_)) => Ok(()),
            Err(_) => Err(TransportError::new(TransportErrorKind::Unavailable, "close").context(
                "the broker did not answer before the deadline; it gives back what is held when it misses the heartbeat",
            )),
        }
    }
}

impl fmt::Debug for RabbitMqTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitMqTransport")
            .field("config", &self.shared.config)
            .field("connected", &self.connected())
            .field("waiting", &self.shared.waiting())
            .field("unsettled", &self.unsettled())
            .finish()
    }
}
