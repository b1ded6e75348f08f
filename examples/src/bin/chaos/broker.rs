//! The topic of a run: its URL, what is on it, and what a group has left.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, bail};
use async_trait::async_trait;
use inbox::{Message, Publisher, TransportError};

use crate::args::Role;

/// Ends the name of the queue by which it is counted what was published, where each group has a queue.
const PUBLISHED: &str = "published";

/// The topic of one run.
#[derive(Clone, Debug)]
pub(crate) struct Broker {
    base: String,
    topic: String,
}

impl Broker {
    pub(crate) fn new(base: &str, run: &str) -> Self {
        Self { base: base.trim_end_matches('/').to_owned(), topic: format!("chaos-{run}") }
    }

    /// The topic's URL, with a group and what makes a crashed member's messages come back soon.
    pub(crate) fn url(&self, group: Option<&str>) -> String {
        let (broker, query) = self.parts();
        if self.is_pubsub() {
            // Without a group: the topic, and the subscription by which it is counted what was published to it.
            let (project, group) = (broker.trim_end_matches('/'), group.unwrap_or(PUBLISHED));
            // Not ordered: every payment is a key, and the emulator has a thread for each key of an ordered subscription.
            let keys = "lease=10s&ordering=false";
            return format!("{project}/{topic}-{group}?topic={topic}&{keys}{query}", topic = self.topic);
        }
        if self.is_rabbitmq() {
            // Without a group: the exchange, and the queue by which it is counted what was published to it.
            let queue = format!("{}-{}", self.topic, group.unwrap_or(PUBLISHED));
            return format!("{broker}?queue={queue}&exchange={}&exchange_type=fanout&prefetch=100{query}", self.topic);
        }
        if self.is_redis() {
            let group = group.map(|group| format!("&group={group}")).unwrap_or_default();
            return format!("{broker}?stream={}{group}&lease=2s{query}", self.topic);
        }
        if self.is_sqs() {
            // Without a group: the queue by which it is counted what was published.
            let (region, group) = (broker.trim_end_matches('/'), group.unwrap_or(PUBLISHED));
            return format!("{region}/{}-{group}?lease=4s&wait=1s{query}", self.topic);
        }
        let url = format!("{}/{}", self.base, self.topic);
        match group {
            None => url,
            // A static member that comes back after a crash has its partitions at once.
            Some(group) if self.is_kafka() => {
                format!("{url}?group={}-{group}&instance={group}&session_timeout=10s", self.topic)
            }
            Some(group) => format!("{url}?group={group}&lease=2s"),
        }
    }

    /// The broker's URL without its keys, and those keys to be appended to a query.
    fn parts(&self) -> (&str, String) {
        let (broker, query) = self.base.split_once('?').unwrap_or((&self.base, ""));
        (broker, if query.is_empty() { String::new() } else { format!("&{query}") })
    }

    fn is_rabbitmq(&self) -> bool {
        self.base.starts_with("rabbitmq") || self.base.starts_with("amqp")
    }

    fn is_redis(&self) -> bool {
        self.base.starts_with("redis")
    }

    fn is_sqs(&self) -> bool {
        self.base.starts_with("sqs:")
    }

    fn is_pubsub(&self) -> bool {
        self.base.starts_with("pubsub:")
    }

    /// A publisher to the topic. A queue of SQS has one group: there every group's gets a copy, as SNS would do it.
    pub(crate) async fn publisher(&self) -> Result<Arc<dyn Publisher>, TransportError> {
        if !self.is_sqs() {
            return inbox::publisher(&self.url(None)).await;
        }
        let mut queues = vec![inbox::publisher(&self.url(None)).await?];
        for role in Role::ALL.into_iter().filter(|role| role.is_consumer()) {
            queues.push(inbox::publisher(&self.url(Some(role.name()))).await?);
        }
        Ok(Arc::new(FanOut(queues)))
    }

    fn is_kafka(&self) -> bool {
        self.base.starts_with("kafka")
    }

    /// How many messages are on the topic: read from the broker.
    pub(crate) async fn published(&self) -> anyhow::Result<u64> {
        if self.is_kafka() {
            #[cfg(feature = "kafka")]
            return inbox::kafka::count_records(&self.url(None)).await.context("count the topic's records");
        }
        #[cfg(feature = "pubsub")]
        if self.is_pubsub() {
            return inbox::pubsub::count_messages(&self.url(None)).await.context("count the topic's messages");
        }
        #[cfg(feature = "rabbitmq")]
        if self.is_rabbitmq() {
            return inbox::rabbitmq::count_ready(&self.url(None)).await.context("count the exchange's messages");
        }
        #[cfg(feature = "redis")]
        if self.is_redis() {
            return inbox::redis::count_entries(&self.url(None)).await.context("count the stream's messages");
        }
        #[cfg(feature = "sqs")]
        if self.is_sqs() {
            return inbox::sqs::backlog(&self.url(None)).await.context("count the queue's messages");
        }
        if self.base.starts_with("sqlite") {
            return inbox::sqlite::QueueConfig::parse(&self.url(None))?.published().await.context("count the messages");
        }
        bail!("no such transport in this build: {}; accepted: sqlite:FILE, kafka://host:port", self.base)
    }

    /// How many messages a group has not acknowledged.
    pub(crate) async fn backlog(&self, group: &str) -> anyhow::Result<u64> {
        if self.is_kafka() {
            #[cfg(feature = "kafka")]
            {
                let lag = inbox::kafka::group_lag(&self.url(Some(group))).await.context("read the group's lag")?;
                return Ok(u64::try_from(lag).unwrap_or(0));
            }
        }
        #[cfg(feature = "pubsub")]
        if self.is_pubsub() {
            let url = self.url(Some(group));
            return match inbox::pubsub::backlog(&url).await {
                Err(error) if error.kind() == inbox::TransportErrorKind::NotFound => {
                    inbox::provision(&url).await.context("make the subscription")?;
                    inbox::pubsub::backlog(&url).await.context("make the subscription that counts")
                }
                counted => counted.context("read the subscription's backlog"),
            };
        }
        #[cfg(feature = "rabbitmq")]
        if self.is_rabbitmq() {
            return self.queued(&self.url(Some(group))).await;
        }
        #[cfg(feature = "redis")]
        if self.is_redis() {
            let url = self.url(Some(group));
            inbox::provision(&url).await.context("make the group")?;
            return inbox::redis::backlog(&url).await.context("count the group's messages");
        }
        #[cfg(feature = "sqs")]
        if self.is_sqs() {
            let url = self.url(Some(group));
            inbox::provision(&url).await.context("make the queue")?;
            return inbox::sqs::backlog(&url).await.context("count the queue's messages");
        }
        Ok(inbox::sqlite::QueueConfig::parse(&self.url(Some(group)))?.backlog().await?)
    }

    /// What waits in a queue. A broker does not say what consumers hold, which is worked off or comes back soon: nothing is
    /// left when there has been nothing for a while.
    #[cfg(feature = "rabbitmq")]
    async fn queued(&self, url: &str) -> anyhow::Result<u64> {
        use inbox::rabbitmq::{RabbitMqAdmin, RabbitMqConfig};
        let admin = RabbitMqAdmin::connect(RabbitMqConfig::from_url(url)?).await?;
        admin.provision().await.context("make the queue")?;
        let mut ready = 0;
        for _ in 0..20 {
            ready = admin.ready().await.context("count the queue's messages")?;
            if ready > 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        admin.close().await;
        Ok(ready)
    }
}

/// Publishes to each of several queues.
struct FanOut(Vec<Arc<dyn Publisher>>);

#[async_trait]
impl Publisher for FanOut {
    async fn publish(&self, messages: Vec<Message>) -> Vec<Result<(), TransportError>> {
        let mut answers: Vec<Result<(), TransportError>> = messages.iter().map(|_| Ok(())).collect();
        for queue in &self.0 {
            let own = queue.publish(messages.clone()).await;
            // Stored is what every queue has stored.
            answers.iter_mut().zip(own).filter(|(answer, _)| answer.is_ok()).for_each(|(answer, own)| *answer = own);
        }
        answers
    }

    async fn close(&self, deadline: Duration) -> Result<(), TransportError> {
        for queue in &self.0 {
            queue.close(deadline).await?;
        }
        Ok(())
    }
}
