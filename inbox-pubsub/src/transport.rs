//! The transport: what the runtime calls.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use google_cloud_pubsub::client::{Subscriber, SubscriptionAdmin};
use inbox_core::{
    Acked, Capacity, Delivery, IdText, Receipt, Transport, TransportError, TransportErrorKind,
    capability::{Capabilities, Lease, MaxAge, Ordering},
};
use tokio_util::sync::DropGuard;

use crate::{
    admin,
    config::PubsubConfig,
    convert,
    handover::Shared,
    pull::{self, Reader},
};

/// One consumer of a subscription. See the [crate](crate) for what an operator should know.
///
/// Dropping it without [`close`](Transport::close) gives back what is held in the background, as long as the runtime runs.
pub struct PubsubTransport {
    config: PubsubConfig,
    capabilities: Capabilities,
    admin: SubscriptionAdmin,
    shared: Arc<Shared>,
    /// Ends the tasks when the transport is dropped.
    _stop: DropGuard,
}

/// Tasks of this adapter end with the transport, and none is ever aborted.
#[allow(clippy::disallowed_methods, reason = "an adapter's own tasks, see above")]
fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    drop(tokio::spawn(task));
}

impl PubsubTransport {
    /// Connects, and makes sure that the subscription is there and as the configuration says. Messages are asked for with
    /// the first [`receive`](Transport::receive).
    ///
    /// # Errors
    /// `InvalidConfig`; `Unavailable` when the service does not answer within the connect timeout; `NotFound` when there is
    /// no such subscription; `Unauthorized` when the credentials are missing or refused.
    pub async fn connect(config: PubsubConfig) -> Result<Self, TransportError> {
        const OPERATION: &str = "connect";
        config.check()?;
        let path = config.subscription_path()?;
        let admin = admin::subscriptions(&config, OPERATION).await?;
        let subscription = admin::verify(&config, &admin, OPERATION).await?;
        let subscriber =
            admin::bounded(&config, OPERATION, admin::client!(&config, Subscriber::builder()).build()).await?;
        let topic = topic_name(&config, &subscription.topic)?;
        admin::warn_of(&subscription);
        let ordered = subscription.enable_message_ordering;
        let shared = Arc::new(Shared::new(&topic, config.envelope.clone(), ordered, config.max_lease));
        let stop = shared.closed.clone().drop_guard();
        let reader = Reader { shared: Arc::clone(&shared), config: config.clone(), path: path.clone(), subscriber };
        spawn(reader.run());
        spawn(pull::look_after(Arc::clone(&shared)));
        spawn(pull::watch(Arc::clone(&shared), admin.clone(), path));
        let capabilities = capabilities(ordered, config.max_lease);
        Ok(Self { config, capabilities, admin, shared, _stop: stop })
    }

    /// Test hook: ends the lease of the message with this id, as `max_lease` would. The service gets it back and delivers it
    /// again; its receipt settles nothing any more. False when it is not out here.
    pub fn lose_lease(&self, id: &IdText) -> bool {
        self.shared.end_lease(id)
    }
}

/// What Pub/Sub promises for such a subscription.
fn capabilities(ordered: bool, max_lease: Duration) -> Capabilities {
    Capabilities {
        name: "pubsub",
        ordering: if ordered { Ordering::Key } else { Ordering::None },
        lease: Lease::Ceiling(max_lease),
        delivery_count: false,
        suspect_flag: false,
        exclusive_keys: false,
        max_body: Some(convert::MAX_BODY),
        durable: true,
    }
}

/// The scope of ids: the topic, so that a subscription that was made anew finds its claims.
fn topic_name(config: &PubsubConfig, topic: &str) -> Result<String, TransportError> {
    if topic == "_deleted-topic_" {
        return config.topic_path().map_err(|_| {
            TransportError::new(TransportErrorKind::InvalidConfig, "connect").context(
                "the subscription's topic was deleted; to consume what is left, name it: `topic=…` is part of the ids' scope",
            )
        });
    }
    Ok(topic.to_owned())
}

#[async_trait]
impl Transport for PubsubTransport {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn receive(&self, capacity: Capacity) -> Result<Vec<Delivery>, TransportError> {
        self.shared.receive(capacity).await
    }

    async fn ack(&self, receipts: Vec<Receipt>) -> Result<Acked, TransportError> {
        Ok(self.shared.ack(receipts).await)
    }

    async fn release(&self, receipts: Vec<Receipt>) -> Result<(), TransportError> {
        self.shared.release(receipts);
        Ok(())
    }

    async fn max_age(&self) -> Result<MaxAge, TransportError> {
        admin::max_age(&self.config, &self.admin).await
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
            Err(_) => Err(TransportError::new(TransportErrorKind::Unavailable, "close")
                .context("the deadline passed before everything was given back; leases end by themselves")),
        }
    }
}

impl fmt::Debug for PubsubTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (waiting, out) = self.shared.counts();
        f.debug_struct("PubsubTransport")
            .field("config", &self.config)
            .field("connected", &self.connected())
            .field("waiting", &waiting)
            .field("out", &out)
            .finish_non_exhaustive()
    }
}
