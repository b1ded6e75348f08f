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
    config::RedisConfig,
    handover::{Member, Shared},
    keep,
    poll::{self, Reader},
};

/// One consumer of a group. See the [crate](crate) for what an operator should know.
///
/// Dropping it without [`close`](Transport::close) gives back what is held in the background, as long as the runtime runs.
pub struct RedisTransport {
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

impl RedisTransport {
    /// Connects, looks for the stream, which must exist, and makes the group unless it is there. Messages are asked for
    /// with the first [`receive`](Transport::receive).
    ///
    /// # Errors
    /// `InvalidConfig`, also when the key is no stream; `Unavailable` when the server does not answer within the connect
    /// timeout; `NotFound` when there is no such stream; `Unauthorized` when the server refuses the user, the password or
    /// what they ask for.
    pub async fn connect(config: RedisConfig) -> Result<Self, TransportError> {
        let member = Member::new(config.required_group()?);
        let remote = Remote::connect(config, "connect").await?;
        admin::make_group(&remote, &member.group, "connect").await?;
        admin::sweep(&remote, &member.group).await;
        let capabilities = capabilities(&remote.config, admin::is_durable(&remote).await?);
        let (shared, reader) = (Arc::new(Shared::new(&remote, member)), Arc::new(Reader::default()));
        let stop = shared.closed.clone().drop_guard();
        spawn(poll::poll(Arc::clone(&shared), remote.clone(), Arc::clone(&reader)));
        spawn(keep::keep(Arc::clone(&shared), remote.clone(), reader));
        spawn(keep::look_after(Arc::clone(&shared), remote.config.lease));
        Ok(Self { remote, capabilities, shared, _stop: stop })
    }
}

/// What Redis promises.
fn capabilities(config: &RedisConfig, durable: bool) -> Capabilities {
    Capabilities {
        name: "redis",
        // What comes again comes behind what is out, and another consumer may have the next message of the same key.
        ordering: Ordering::None,
        lease: Lease::Extended { timeout: config.lease },
        delivery_count: true,
        // Of what was held when its group ended nobody knows it.
        suspect_flag: false,
        exclusive_keys: false,
        max_body: None,
        durable,
    }
}

#[async_trait]
impl Transport for RedisTransport {
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
        // Who trims a stream, and how, cannot be asked for.
        Ok(MaxAge::Unbounded)
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
                "the deadline passed before the server had everything back; what it has not comes again when its lease ends",
            )),
        }
    }
}

impl Drop for RedisTransport {
    fn drop(&mut self) {
        self.shared.closed.cancel();
        self.shared.wake();
    }
}

impl fmt::Debug for RedisTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (waiting, out) = self.shared.counts();
        f.debug_struct("RedisTransport")
            .field("config", &self.remote.config)
            .field("connected", &self.connected())
            .field("waiting", &waiting)
            .field("out", &out)
            .finish_non_exhaustive()
    }
}
