//! The transport: what the runtime calls.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use inbox_core::{
    Acked, Capacity, Delivery, Receipt, Transport, TransportError, TransportErrorKind,
    capability::{Capabilities, Lease, MaxAge, Ordering},
};
use tokio_util::sync::DropGuard;

use crate::{
    admin,
    client::Remote,
    config::{MOST_LEASE, SqsConfig},
    handover::Shared,
    keep, poll,
};

/// One consumer of a queue. See the [crate](crate) for what an operator should know.
///
/// Dropping it without [`close`](Transport::close) gives back what is held in the background, as long as the runtime runs.
pub struct SqsTransport {
    remote: Remote,
    capabilities: Capabilities,
    shared: Arc<Shared>,
    _stop: DropGuard,
}

/// Tasks of this adapter end with the transport, and none is ever aborted.
#[allow(clippy::disallowed_methods, reason = "an adapter's own tasks, see above")]
fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    drop(tokio::spawn(task));
}

impl SqsTransport {
    /// Connects, and makes sure that the queue is there. Messages are asked for with the first
    /// [`receive`](Transport::receive).
    ///
    /// # Errors
    /// `InvalidConfig`; `Unavailable` when the service does not answer within the connect timeout; `NotFound` when there is
    /// no such queue; `Unauthorized` when there are no credentials, or the service refuses them or what they ask for.
    pub async fn connect(config: SqsConfig) -> Result<Self, TransportError> {
        let remote = Remote::connect(config, "connect").await?;
        let shared = Arc::new(Shared::new(&remote));
        let stop = shared.closed.clone().drop_guard();
        spawn(poll::poll(Arc::clone(&shared), remote.clone()));
        spawn(keep::keep(Arc::clone(&shared), remote.clone()));
        spawn(keep::look_after(Arc::clone(&shared), remote.config.lease));
        let capabilities = capabilities(remote.config.is_fifo(), remote.max_body);
        Ok(Self { remote, capabilities, shared, _stop: stop })
    }
}

/// What SQS promises for such a queue.
fn capabilities(fifo: bool, max_body: usize) -> Capabilities {
    Capabilities {
        name: "sqs",
        ordering: if fifo { Ordering::Key } else { Ordering::None },
        lease: Lease::Ceiling(MOST_LEASE),
        // Of a FIFO queue, what is given back is handed over again without the service, which does not count it.
        delivery_count: !fifo,
        suspect_flag: false,
        exclusive_keys: fifo,
        max_body: Some(max_body),
        durable: true,
    }
}

#[async_trait]
impl Transport for SqsTransport {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn receive(&self, capacity: Capacity) -> Result<Vec<Delivery>, TransportError> {
        self.shared.receive(capacity).await
    }

    async fn ack(&self, receipts: Vec<Receipt>) -> Result<Acked, TransportError> {
        Ok(self.shared.ack(&self.remote, receipts).await)
    }

    async fn release(&self, receipts: Vec<Receipt>) -> Result<(), TransportError> {
        self.shared.release(receipts);
        Ok(())
    }

    async fn max_age(&self) -> Result<MaxAge, TransportError> {
        admin::max_age(&self.remote).await
    }

    fn connected(&self) -> bool {
        self.shared.connected()
    }

    async fn close(&self, deadline: Duration) -> Result<(), TransportError> {
        self.shared.closed.cancel();
        self.shared.wake();
        let mut left = self.shared.left.subscribe();
        // An error says that the task is gone, which is what was waited for.
        match tokio::time::timeout(deadline, left.wait_for(|left| *left)).await {
            Ok(Ok(_) | Err(_)) => Ok(()),
            Err(_) => Err(TransportError::new(TransportErrorKind::Unavailable, "close").context(
                "the deadline passed before the receives that were under way had ended; what they bring comes again when \
                 its lease ends, if this process does not live to give it back",
            )),
        }
    }
}

impl Drop for SqsTransport {
    fn drop(&mut self) {
        self.shared.closed.cancel();
        self.shared.wake();
    }
}

impl fmt::Debug for SqsTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (waiting, out) = self.shared.counts();
        f.debug_struct("SqsTransport")
            .field("config", &self.remote.config)
            .field("connected", &self.connected())
            .field("waiting", &waiting)
            .field("out", &out)
            .finish_non_exhaustive()
    }
}
