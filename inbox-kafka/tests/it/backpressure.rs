//! A consumer that takes nothing keeps what it has, takes no more, and stays in the group.

use std::time::Duration;

use inbox_core::Transport;

use crate::support::{Topic, ack, number, receive, some};

fn waiting(transport: &inbox_kafka::KafkaTransport) -> usize {
    let shown = format!("{transport:?}");
    let rest = shown.split("waiting: ").nth(1).expect("shown");
    rest.split(',').next().expect("a number").parse().expect("a number")
}

#[tokio::test]
async fn a_full_consumer_pauses_and_stays_in_the_group() {
    let topic = Topic::new(4).await;
    topic.publish(0..3_000, 97).await;
    let small = "prefetch=100&session_timeout=6s&revoke_timeout=1s&kafka.max.poll.interval.ms=6000";
    let transport = topic.member(small).await;
    let mut held = receive(&transport, 10).await;
    for _ in 0..9 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(waiting(&transport) <= 100, "{transport:?}");
    }
    assert!(held.iter().all(|delivery| !delivery.receipt.session().is_ending()), "still a member");
    assert!(transport.connected());
    // Another member still gets its share, though this one is paused: rebalances are served.
    let other = topic.member("prefetch=100&session_timeout=6s").await;
    let theirs = receive(&other, 1).await;
    other.close(Duration::from_secs(10)).await.expect("closed");
    drop(theirs);
    // And everything comes, also of the partitions that went away and came back while they were paused.
    let mut seen: Vec<u32> = held.iter().map(number).collect();
    drop(held.drain(..));
    while {
        seen.sort_unstable();
        seen.dedup();
        seen.len() < 3_000
    } {
        let deliveries = some(&transport, 200).await;
        seen.extend(deliveries.iter().map(number));
        ack(&transport, deliveries).await;
    }
}

#[tokio::test]
async fn pausing_and_resuming_neither_loses_nor_doubles() {
    let topic = Topic::new(3).await;
    topic.publish(0..2_000, 97).await;
    let transport = topic.member("prefetch=50").await;
    let mut seen = Vec::new();
    let mut pauses = 0;
    while seen.len() < 2_000 {
        let deliveries = some(&transport, 40).await;
        seen.extend(deliveries.iter().map(number));
        ack(&transport, deliveries).await;
        if pauses < 12 && seen.len() > pauses * 100 {
            pauses += 1;
            // Longer than the thread waits before it pauses.
            tokio::time::sleep(Duration::from_millis(400)).await;
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..2_000).collect::<Vec<_>>());
    transport.close(Duration::from_secs(10)).await.expect("closed");
    assert_eq!(topic.lag().await, 0);
}

#[tokio::test]
async fn the_bound_counts_bytes_too() {
    let topic = Topic::new(1).await;
    let publisher = inbox_kafka::publisher(&topic.url("")).await.expect("a publisher");
    let big = (0..40).map(|_| inbox_core::Message::new(inbox_core::Bytes::from(vec![b'x'; 100_000]))).collect();
    for result in inbox_core::Publisher::publish(&publisher, big).await {
        result.expect("published");
    }
    let transport = topic.member("prefetch_bytes=500000").await;
    let capacity = inbox_core::Capacity { messages: 1, bytes: 1 };
    let first = transport.receive(capacity).await.expect("received");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!((1..=6).contains(&waiting(&transport)), "{transport:?}");
    let rest = receive(&transport, 39).await;
    ack(&transport, first).await;
    ack(&transport, rest).await;
}
