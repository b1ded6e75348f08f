//! A broker, a fresh queue, and a few ways to drive a transport.

use std::{
    collections::BTreeSet,
    ops::Range,
    time::{Duration, Instant},
};

use inbox_core::{Bytes, Capacity, Delivery, Message, Publisher, Transport, config::TransportUrl, report};
use inbox_rabbitmq::{QueueType, RabbitMqAdmin, RabbitMqConfig, RabbitMqPublisher, RabbitMqTransport};

/// How long a case waits for what must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// `rabbitmq://user:password@host:port`, without a slash behind it.
pub(crate) fn broker() -> String {
    let url = std::env::var("INBOX_TEST_RABBITMQ").expect(
        "INBOX_TEST_RABBITMQ is not set: these tests need a real broker, `rabbitmq://user:password@host:port`; \
         `cargo xtask services up rabbitmq` starts one",
    );
    url.trim_end_matches('/').to_owned()
}

/// Without a login.
pub(crate) fn hosts() -> String {
    TransportUrl::parse(&broker()).expect("a URL").authority().to_owned()
}

pub(crate) fn port() -> u16 {
    let hosts = hosts();
    let (_, port) = hosts.rsplit_once(':').expect("INBOX_TEST_RABBITMQ names a port");
    port.parse().expect("a port")
}

/// A queue of its own for one case. `delete` it, or it stays.
pub(crate) struct Queue {
    pub(crate) name: String,
    queue_type: QueueType,
}

impl Queue {
    pub(crate) async fn new() -> Self {
        Self::of(QueueType::Classic).await
    }

    /// A name that nobody has.
    pub(crate) fn unmade() -> Self {
        Self { name: unique(), queue_type: QueueType::Classic }
    }

    pub(crate) async fn of(queue_type: QueueType) -> Self {
        let queue = Self { queue_type, ..Self::unmade() };
        queue.make().await;
        queue
    }

    pub(crate) async fn make(&self) {
        let admin = self.admin().await;
        admin.provision().await.expect("provisioned");
        admin.close().await;
    }

    pub(crate) async fn delete(&self) {
        let admin = self.admin().await;
        admin.delete().await.expect("deleted");
        admin.close().await;
    }

    pub(crate) fn config(&self) -> RabbitMqConfig {
        RabbitMqConfig::from_url(&broker()).expect("a URL").queue(&*self.name).queue_type(self.queue_type)
    }

    /// By way of a port of this machine.
    pub(crate) fn config_by(&self, port: u16) -> RabbitMqConfig {
        RabbitMqConfig::from_url(&broker().replace(&hosts(), &format!("127.0.0.1:{port}")))
            .expect("a URL")
            .queue(&*self.name)
    }

    pub(crate) async fn admin(&self) -> RabbitMqAdmin {
        RabbitMqAdmin::connect(self.config()).await.expect("connected")
    }

    pub(crate) async fn consumer(&self) -> RabbitMqTransport {
        RabbitMqTransport::connect(self.config()).await.expect("connected")
    }

    pub(crate) async fn ready(&self) -> u64 {
        let admin = self.admin().await;
        let ready = admin.ready().await.expect("a count");
        admin.close().await;
        ready
    }

    /// Publishes messages with the given numbers as bodies and ids.
    pub(crate) async fn publish(&self, numbers: Range<u32>) {
        let publisher = RabbitMqPublisher::connect(self.config()).await.expect("a publisher");
        for result in publisher.publish(numbers.map(numbered).collect()).await {
            result.expect("published");
        }
        publisher.close(PATIENCE).await.expect("closed");
    }
}

pub(crate) fn unique() -> String {
    format!("it-{}", uuid::Uuid::now_v7().simple())
}

pub(crate) fn numbered(n: u32) -> Message {
    Message::new(Bytes::from(n.to_string())).id(format!("id-{n}")).kind("numbered").key(format!("key-{}", n % 7))
}

pub(crate) fn number(delivery: &Delivery) -> u32 {
    std::str::from_utf8(&delivery.message.body).expect("text").parse().expect("a number")
}

pub(crate) fn at_most(messages: usize) -> Capacity {
    Capacity { messages, bytes: 64 << 20 }
}

/// Receives once.
pub(crate) async fn some(transport: &RabbitMqTransport, most: usize) -> Vec<Delivery> {
    match tokio::time::timeout(PATIENCE, transport.receive(at_most(most))).await {
        Ok(Ok(deliveries)) => deliveries,
        Ok(Err(error)) => panic!("{}", report(&error)),
        Err(_) => panic!("nothing came in time: {transport:?}"),
    }
}

/// Receives until there are `n` deliveries.
pub(crate) async fn receive(transport: &RabbitMqTransport, n: usize) -> Vec<Delivery> {
    let mut all = Vec::new();
    while all.len() < n {
        all.extend(some(transport, n - all.len()).await);
    }
    all
}

/// Nothing comes for a while.
pub(crate) async fn quiet(transport: &RabbitMqTransport, time: Duration) {
    if let Ok(result) = tokio::time::timeout(time, transport.receive(at_most(10))).await {
        panic!("nothing should have come: {result:?}");
    }
}

/// Acks; how many of them counted, and how many were lost.
pub(crate) async fn try_ack(transport: &RabbitMqTransport, deliveries: Vec<Delivery>) -> (usize, usize) {
    let receipts = deliveries.into_iter().map(|delivery| delivery.receipt).collect();
    let acked = tokio::time::timeout(PATIENCE, transport.ack(receipts)).await.expect("in time").expect("no error");
    (acked.acked, acked.lost)
}

pub(crate) async fn ack(transport: &RabbitMqTransport, deliveries: Vec<Delivery>) {
    let n = deliveries.len();
    assert_eq!(try_ack(transport, deliveries).await, (n, 0));
}

/// Receives and acks until every number of the range has come.
pub(crate) async fn drain(transport: &RabbitMqTransport, numbers: Range<u32>) -> Vec<u32> {
    let (mut seen, mut missing) = (Vec::new(), numbers.collect::<BTreeSet<u32>>());
    while !missing.is_empty() {
        let deliveries = some(transport, 1_000).await;
        for delivery in &deliveries {
            seen.push(number(delivery));
            missing.remove(&number(delivery));
        }
        try_ack(transport, deliveries).await;
    }
    seen
}

/// Nothing is left in the queue, also of what consumers held: they are gone.
pub(crate) async fn empty(queue: &Queue, transport: RabbitMqTransport) {
    transport.close(PATIENCE).await.expect("closed");
    // A queue hears of it a moment later.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(queue.ready().await, 0);
}

/// Waits for a condition that nothing signals.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
