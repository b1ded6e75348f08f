//! How much is held, and for how long without anybody who asks.

use std::time::Duration;

use inbox_core::{Bytes, Capacity, Message, Publisher, Transport};

use crate::support::{PATIENCE, Stream, ack, at_most, drain, quiet, receive, some, until};

#[tokio::test]
async fn ten_thousand_messages_wait_and_a_hundred_are_held() {
    let stream = Stream::new("").await;
    stream.publish(0..10_000).await;
    let transport = stream.consumer().await;
    let (mut held, mut seen) = (Vec::new(), 0);
    while seen < 2_000 {
        let free = 100 - held.len();
        if free > 0 {
            held.extend(some(&transport, free).await);
        }
        assert!(held.len() <= 100);
        if seen % 400 == 0 {
            assert!(stream.pending().await.len() <= 100, "more than there was room for");
        }
        let done: Vec<_> = held.drain(..held.len().min(50)).collect();
        seen += done.len();
        ack(&transport, done).await;
    }
    drop(held);
    transport.close(PATIENCE).await.unwrap();
    assert_eq!(stream.backlog().await, 10_000 - seen as u64);
    stream.delete().await;
}

#[tokio::test]
async fn large_messages_are_asked_for_by_their_size() {
    let stream = Stream::new("").await;
    let publisher = inbox_redis::publisher(&stream.url()).await.unwrap();
    let publish = async |numbers: std::ops::Range<u32>| {
        let large = |n: u32| Message::new(Bytes::from(vec![b'x'; 1 << 20])).id(n.to_string());
        for result in publisher.publish(numbers.map(large).collect()).await {
            result.unwrap();
        }
    };
    let transport = stream.consumer().await;
    let capacity = Capacity { messages: 1_000, bytes: 5 << 20 };
    let (mut seen, mut most) = (0, 0);
    // Until one was seen, it is not known how large they are.
    for (published, all) in [(0..1, 1), (1..25, 25)] {
        publish(published).await;
        while seen < all {
            let some = tokio::time::timeout(PATIENCE, transport.receive(capacity)).await.unwrap().unwrap();
            most = most.max(stream.pending().await.len());
            seen += some.len();
            ack(&transport, some).await;
        }
    }
    assert!((1..=5).contains(&most), "{most} MiB were held");
    transport.close(PATIENCE).await.unwrap();
    stream.delete().await;
}

#[tokio::test]
async fn what_nobody_asks_for_goes_to_others() {
    let stream = Stream::new("").await;
    let (idle, other) = (stream.consumer().await, stream.consumer().await);
    quiet(&idle, Duration::from_millis(100)).await;
    // Its read is still under way.
    stream.publish(0..5).await;
    until("it has come to the one that does not ask", async || !stream.pending().await.is_empty()).await;
    drain(&other, 0..5).await;
    assert_eq!(stream.backlog().await, 0);
    stream.delete().await;
}

#[tokio::test]
async fn what_is_given_back_comes_again_at_once() {
    let stream = Stream::new("wait=10s&lease=30s").await;
    stream.publish(0..4).await;
    let transport = stream.consumer().await;
    for _ in 0..5 {
        let held = receive(&transport, 4).await;
        let (again, _) = tokio::join!(
            tokio::time::timeout(Duration::from_secs(3), transport.receive(at_most(4))),
            // When the other one waits at the server.
            async {
                tokio::time::sleep(Duration::from_millis(200)).await;
                transport.release(held.into_iter().map(|delivery| delivery.receipt).collect()).await.unwrap();
            }
        );
        drop(again.expect("soon").unwrap());
    }
    let began = std::time::Instant::now();
    transport.close(PATIENCE).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    stream.delete().await;
}
