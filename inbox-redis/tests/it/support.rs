//! A server, a fresh stream, and a few ways to drive a transport.

use std::{
    collections::BTreeSet,
    ops::Range,
    time::{Duration, Instant},
};

use inbox_core::{Bytes, Capacity, Delivery, Message, Publisher, Transport, config::TransportUrl, report};
use inbox_redis::RedisTransport;
use redis::{FromRedisValue, aio::MultiplexedConnection, cmd};

/// How long a case waits for what must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// `redis://host:port`, without a slash behind it.
pub(crate) fn server() -> String {
    let url = std::env::var("INBOX_TEST_REDIS").expect(
        "INBOX_TEST_REDIS is not set: these tests need a real server, `redis://host:port`; `cargo xtask services up redis` \
         starts one",
    );
    url.trim_end_matches('/').to_owned()
}

pub(crate) fn address() -> String {
    TransportUrl::parse(&server()).expect("a URL").authority().to_owned()
}

/// A stream of its own for one case, with a group. `delete` it, or it stays.
pub(crate) struct Stream {
    pub(crate) server: String,
    pub(crate) name: String,
    /// Further keys of its URLs.
    pub(crate) keys: &'static str,
}

impl Stream {
    pub(crate) async fn new(keys: &'static str) -> Self {
        Self::at(server(), keys).await
    }

    pub(crate) async fn at(server: String, keys: &'static str) -> Self {
        let stream = Self { server, name: unique(), keys };
        inbox_redis::provision(&stream.url()).await.expect("provisioned");
        stream
    }

    pub(crate) fn url(&self) -> String {
        format!("{}?stream={}&group=it&{}", self.server, self.name, self.keys)
    }

    pub(crate) async fn consumer(&self) -> RedisTransport {
        inbox_redis::connect(&self.url()).await.unwrap_or_else(|error| panic!("{}", report(&error)))
    }

    pub(crate) async fn connection(&self) -> MultiplexedConnection {
        let client = redis::Client::open(&*self.server).expect("a URL");
        client.get_multiplexed_async_connection().await.expect("connected")
    }

    /// Runs a command; `{}` is the stream's key.
    pub(crate) async fn run<T: FromRedisValue>(&self, command: &str) -> T {
        let mut words = command.split(' ');
        let mut call = cmd(words.next().expect("a command"));
        for word in words {
            call.arg(if word == "{}" { &self.name } else { word });
        }
        call.query_async(&mut self.connection().await).await.unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    /// The ids of what is pending, and with whom.
    pub(crate) async fn pending(&self) -> Vec<(String, String, u64, u32)> {
        self.run("XPENDING {} it - + 100000").await
    }

    pub(crate) async fn backlog(&self) -> u64 {
        inbox_redis::backlog(&self.url()).await.unwrap_or_else(|error| panic!("{}", report(&error)))
    }

    /// Publishes messages with the given numbers as bodies and ids.
    pub(crate) async fn publish(&self, numbers: Range<u32>) {
        let publisher = inbox_redis::publisher(&self.url()).await.expect("a publisher");
        for result in publisher.publish(numbers.map(numbered).collect()).await {
            result.expect("published");
        }
        publisher.close(PATIENCE).await.expect("closed");
    }

    pub(crate) async fn delete(&self) {
        self.run::<()>("DEL {}").await;
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
pub(crate) async fn some(transport: &RedisTransport, most: usize) -> Vec<Delivery> {
    match tokio::time::timeout(PATIENCE, transport.receive(at_most(most))).await {
        Ok(Ok(deliveries)) => deliveries,
        Ok(Err(error)) => panic!("{}", report(&error)),
        Err(_) => panic!("nothing came in time: {transport:?}"),
    }
}

/// Receives until there are `n` deliveries.
pub(crate) async fn receive(transport: &RedisTransport, n: usize) -> Vec<Delivery> {
    let mut all = Vec::new();
    while all.len() < n {
        all.extend(some(transport, n - all.len()).await);
    }
    all
}

/// Nothing comes for a while.
pub(crate) async fn quiet(transport: &RedisTransport, time: Duration) {
    if let Ok(result) = tokio::time::timeout(time, transport.receive(at_most(10))).await {
        panic!("nothing should have come: {result:?}");
    }
}

/// Acks; how many of them counted, and how many were lost.
pub(crate) async fn try_ack(transport: &RedisTransport, deliveries: Vec<Delivery>) -> (usize, usize) {
    let receipts = deliveries.into_iter().map(|delivery| delivery.receipt).collect();
    let acked = tokio::time::timeout(PATIENCE, transport.ack(receipts)).await.expect("in time").expect("no error");
    (acked.acked, acked.lost)
}

pub(crate) async fn ack(transport: &RedisTransport, deliveries: Vec<Delivery>) {
    let n = deliveries.len();
    assert_eq!(try_ack(transport, deliveries).await, (n, 0));
}

/// Receives and acks until every number of the range has come.
pub(crate) async fn drain(transport: &RedisTransport, numbers: Range<u32>) {
    let mut missing = numbers.collect::<BTreeSet<u32>>();
    while !missing.is_empty() {
        let deliveries = some(transport, 1_000).await;
        for delivery in &deliveries {
            missing.remove(&number(delivery));
        }
        try_ack(transport, deliveries).await;
    }
}

/// Waits for a condition that nothing signals.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
