//! A broker, a fresh topic, and a few ways to drive a transport.

use std::{
    collections::BTreeSet,
    sync::{Mutex, Once},
    time::{Duration, Instant},
};

use inbox_core::{Bytes, Capacity, Delivery, Message, Publisher, Transport, report};
use inbox_kafka::{KafkaConfig, KafkaTransport};

/// How long a case waits for what must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// `kafka://host:port`, without a slash behind it.
pub(crate) fn broker() -> String {
    let url = std::env::var("INBOX_TEST_KAFKA")
        .expect("INBOX_TEST_KAFKA is not set: these tests need a real broker, `kafka://host:port`");
    url.trim_end_matches('/').to_owned()
}

pub(crate) fn hosts() -> String {
    broker().trim_start_matches("kafka://").to_owned()
}

/// A topic of its own for one case.
pub(crate) struct Topic {
    pub(crate) name: String,
}

impl Topic {
    pub(crate) async fn new(partitions: u32) -> Self {
        let topic = Self { name: format!("it-{}", uuid::Uuid::now_v7().simple()) };
        inbox_kafka::provision(&format!("{}/{}?partitions={partitions}", broker(), topic.name))
            .await
            .expect("provisioned");
        topic
    }

    pub(crate) fn url(&self, query: &str) -> String {
        format!("{}/{}?{query}", broker(), self.name)
    }

    /// A member of the group `g`, with the shortest sessions that a broker allows by default.
    pub(crate) async fn member(&self, query: &str) -> KafkaTransport {
        inbox_kafka::connect(&self.url(&format!("group={}-g&{query}", self.name))).await.expect("connected")
    }

    pub(crate) async fn lag(&self) -> i64 {
        inbox_kafka::group_lag(&self.url(&format!("group={}-g", self.name))).await.expect("a lag")
    }

    pub(crate) async fn count(&self) -> u64 {
        inbox_kafka::count_records(&self.url("")).await.expect("a count")
    }

    /// Publishes messages with the given numbers as bodies and ids, keyed by the number modulo `keys`.
    pub(crate) async fn publish(&self, numbers: std::ops::Range<u32>, keys: u32) {
        let publisher = inbox_kafka::publisher(&self.url("")).await.expect("a publisher");
        let messages = numbers.map(|n| numbered(n, keys)).collect();
        for result in publisher.publish(messages).await {
            result.expect("published");
        }
        publisher.close(PATIENCE).await.expect("closed");
    }

    pub(crate) fn config(&self) -> KafkaConfig {
        KafkaConfig::new(hosts(), &*self.name).group(format!("{}-g", self.name))
    }
}

pub(crate) fn numbered(n: u32, keys: u32) -> Message {
    Message::new(Bytes::from(n.to_string())).id(format!("id-{n}")).kind("numbered").key(format!("key-{}", n % keys))
}

pub(crate) fn number(delivery: &Delivery) -> u32 {
    std::str::from_utf8(&delivery.message.body).expect("text").parse().expect("a number")
}

pub(crate) fn at_most(messages: usize) -> Capacity {
    Capacity { messages, bytes: 64 << 20 }
}

/// Receives until there are `n` deliveries.
pub(crate) async fn receive(transport: &KafkaTransport, n: usize) -> Vec<Delivery> {
    let mut all = Vec::new();
    while all.len() < n {
        all.extend(some(transport, n - all.len()).await);
    }
    all
}

/// Receives once.
pub(crate) async fn some(transport: &KafkaTransport, most: usize) -> Vec<Delivery> {
    match tokio::time::timeout(PATIENCE, transport.receive(at_most(most))).await {
        Ok(Ok(deliveries)) => deliveries,
        Ok(Err(error)) => panic!("{}", report(&error)),
        Err(_) => panic!("nothing came in time: {transport:?}"),
    }
}

/// Nothing comes for a while.
pub(crate) async fn quiet(transport: &KafkaTransport, time: Duration) {
    if let Ok(result) = tokio::time::timeout(time, transport.receive(at_most(10))).await {
        panic!("nothing should have come: {result:?}");
    }
}

pub(crate) async fn ack(transport: &KafkaTransport, deliveries: Vec<Delivery>) {
    let n = deliveries.len();
    let acked = transport.ack(deliveries.into_iter().map(|delivery| delivery.receipt).collect()).await.expect("acked");
    assert_eq!((acked.acked, acked.lost), (n, 0));
}

/// Receives and acks until every number of `0..n` has come.
pub(crate) async fn drain(transport: &KafkaTransport, n: u32) -> Vec<u32> {
    let (mut seen, mut missing) = (Vec::new(), (0..n).collect::<BTreeSet<u32>>());
    while !missing.is_empty() {
        let deliveries = receive(transport, 1).await;
        for delivery in &deliveries {
            seen.push(number(delivery));
            missing.remove(&number(delivery));
        }
        ack(transport, deliveries).await;
    }
    seen
}

/// Waits for a condition that nothing signals.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Everything that is logged from now on, at any level: by rdkafka through `log`, by us and librdkafka through `tracing`.
pub(crate) fn collect_logs() -> &'static Mutex<String> {
    static LINES: Mutex<String> = Mutex::new(String::new());
    static ONCE: Once = Once::new();

    fn add(line: &str) {
        LINES.lock().expect("not poisoned").push_str(line);
    }

    struct Lines;
    impl log::Log for Lines {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            true
        }
        fn log(&self, record: &log::Record<'_>) {
            add(&format!("{}: {}\n", record.target(), record.args()));
        }
        fn flush(&self) {}
    }
    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            add(&String::from_utf8_lossy(bytes));
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    ONCE.call_once(|| {
        log::set_logger(&Lines).expect("the only logger");
        log::set_max_level(log::LevelFilter::Trace);
        let everything = tracing_subscriber::fmt().with_max_level(tracing_subscriber::filter::LevelFilter::TRACE);
        let subscriber = everything.with_ansi(false).with_writer(|| Lines).finish();
        tracing::subscriber::set_global_default(subscriber).expect("the only subscriber");
    });
    &LINES
}

/// Deletes a topic.
pub(crate) async fn delete(topic: &str) {
    use rdkafka::{
        ClientConfig,
        admin::{AdminClient, AdminOptions},
        client::DefaultClientContext,
    };
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", hosts()).create().expect("an admin client");
    let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(10)));
    for result in admin.delete_topics(&[topic], &options).await.expect("an answer") {
        result.expect("deleted");
    }
}
