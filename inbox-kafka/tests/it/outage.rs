//! The broker goes away and comes back: the transport waits, says so, and goes on.

use std::time::Duration;

use inbox_core::{Publisher, Transport, TransportErrorKind, report};
use rdkafka::{mocking::MockCluster, producer::DefaultProducerContext};

use crate::support::{Topic, ack, at_most, number, numbered, receive, until};

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_assignment_that_is_lost_stores_nothing() {
    let cluster: MockCluster<'_, DefaultProducerContext> = MockCluster::new(1).expect("a mock cluster");
    cluster.create_topic("t", 1, 1).expect("a topic");
    let url = format!(
        "kafka://{}/t?group=g&session_timeout=3s&kafka.heartbeat.interval.ms=500&kafka.reconnect.backoff.max.ms=500\
         &revoke_timeout=60s",
        cluster.bootstrap_servers()
    );
    let publisher = inbox_kafka::publisher(&url).await.expect("a publisher");
    publisher.publish((0..10).map(|n| numbered(n, 5)).collect()).await.into_iter().for_each(|r| r.expect("published"));
    let transport = inbox_kafka::connect(&url).await.expect("connected");
    let held = receive(&transport, 10).await;
    let session = held[0].receipt.session().clone();
    cluster.broker_down(1).expect("down");
    let lost = tokio::time::timeout(Duration::from_secs(20), session.lost()).await;
    lost.expect("lost as soon as the session has timed out: nothing is waited for");
    let acked = transport.ack(held.into_iter().map(|delivery| delivery.receipt).collect()).await.expect("no error");
    assert_eq!((acked.acked, acked.lost), (0, 10));
    cluster.broker_up(1).expect("up");
    let again = receive(&transport, 10).await;
    assert_eq!(again.iter().map(number).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
    assert_ne!(again[0].receipt.session().id(), session.id());
    ack(&transport, again).await;
    transport.close(Duration::from_secs(20)).await.expect("closed");
}

/// `INBOX_TEST_KAFKA_RESTART`: a command that kills the broker and starts it again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "kills the broker, which other cases share"]
async fn a_real_broker_that_is_killed_and_started_again() {
    let restart = std::env::var("INBOX_TEST_KAFKA_RESTART").expect("a command that restarts the broker");
    let topic = Topic::new(3).await;
    topic.publish(0..300, 17).await;
    let transport = topic.member("session_timeout=10s").await;
    let mut held = receive(&transport, 300).await;
    let rest = held.split_off(100);
    ack(&transport, rest).await;
    let status = tokio::task::spawn_blocking(move || std::process::Command::new("sh").args(["-c", &restart]).status());
    assert!(status.await.expect("ran").expect("started").success());
    until("the broker is back", async || inbox_kafka::provision(&topic.url("")).await.is_ok()).await;
    topic.publish(300..600, 17).await;
    // Receipts from before the outage settle, or are lost and their messages come again.
    let mut missing: std::collections::BTreeSet<u32> = (300..600).collect();
    let acked = transport.ack(held.drain(..).map(|delivery| delivery.receipt).collect()).await.expect("no error");
    println!("of 100 receipts from before, {} were lost", acked.lost);
    while !missing.is_empty() {
        let deliveries = receive(&transport, 1).await;
        for delivery in &deliveries {
            missing.remove(&number(delivery));
        }
        transport.ack(deliveries.into_iter().map(|delivery| delivery.receipt).collect()).await.expect("acked");
    }
    until("the lag reaches 0", async || topic.lag().await == 0).await;
    assert!(transport.connected());
    transport.close(Duration::from_secs(20)).await.expect("closed");
}
