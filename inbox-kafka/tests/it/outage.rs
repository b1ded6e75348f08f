//! The broker goes away and comes back: the transport waits, says so, and goes on.

use std::time::Duration;

use inbox_core::{Publisher, Transport, TransportErrorKind, report};
use rdkafka::{mocking::MockCluster, producer::DefaultProducerContext};

use crate::support::{ack, at_most, number, numbered, receive, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_gone_for_a_while() {
    let cluster: MockCluster<'_, DefaultProducerContext> = MockCluster::new(1).expect("a mock cluster");
    cluster.create_topic("t", 2, 1).expect("a topic");
    let url = format!("kafka://{}/t?group=g&kafka.reconnect.backoff.max.ms=500", cluster.bootstrap_servers());
    let publisher = inbox_kafka::publisher(&format!("{url}&kafka.message.timeout.ms=3000")).await.expect("a publisher");
    let transport = inbox_kafka::connect(&url).await.expect("connected");
    publisher.publish((0..10).map(|n| numbered(n, 5)).collect()).await.into_iter().for_each(|r| r.expect("published"));
    let deliveries = receive(&transport, 10).await;
    ack(&transport, deliveries).await;
    assert!(transport.connected());
    cluster.broker_down(1).expect("down");
    until("it is noticed", async || !transport.connected()).await;
    let waited = tokio::time::timeout(Duration::from_secs(1), transport.receive(at_most(1))).await;
    assert!(waited.is_err(), "receive waits: {waited:?}");
    let error = publisher.publish(vec![numbered(99, 1)]).await.remove(0).expect_err("nobody there");
    assert_eq!(error.kind(), TransportErrorKind::Unavailable, "{}", report(&error));
    let again = inbox_kafka::connect(&format!("{url}&connect_timeout=1s")).await.expect_err("nobody there");
    assert_eq!(again.kind(), TransportErrorKind::Unavailable);
    cluster.broker_up(1).expect("up");
    until("it is noticed", async || transport.connected()).await;
    publisher.publish((10..20).map(|n| numbered(n, 5)).collect()).await.into_iter().for_each(|r| r.expect("published"));
    let mut seen = Vec::new();
    while !(10..20).all(|n| seen.contains(&n)) {
        let deliveries = receive(&transport, 1).await;
        seen.extend(deliveries.iter().map(number));
        transport.ack(deliveries.into_iter().map(|delivery| delivery.receipt).collect()).await.expect("acked");
    }
    transport.close(Duration::from_secs(20)).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_while_the_broker_is_gone_keeps_to_the_deadline() {
    let cluster: MockCluster<'_, DefaultProducerContext> = MockCluster::new(1).expect("a mock cluster");
    cluster.create_topic("t", 2, 1).expect("a topic");
    let url = format!("kafka://{}/t?group=g", cluster.bootstrap_servers());
    let publisher = inbox_kafka::publisher(&url).await.expect("a publisher");
    publisher.publish((0..10).map(|n| numbered(n, 5)).collect()).await.into_iter().for_each(|r| r.expect("published"));
    let transport = inbox_kafka::connect(&url).await.expect("connected");
    let deliveries = receive(&transport, 10).await;
    cluster.broker_down(1).expect("down");
    until("it is noticed", async || !transport.connected()).await;
    ack(&transport, deliveries).await;
    let started = std::time::Instant::now();
    let closed = transport.close(Duration::from_secs(2)).await;
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    let error = closed.expect_err("what was acked is not committed");
    assert_eq!(error.kind(), TransportErrorKind::Unavailable);
}
