//! What is held is bounded, by count and by bytes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use inbox_core::{Bytes, Capacity, Message, Publisher, Transport, memory::MemoryStore};

use crate::{
    service::Service,
    support::{Act, PATIENCE, Queue, Running, counts, receipts, until},
};

/// 10,000 messages wait, and a hundred may be held: the service never has more of them held than that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_more_is_held_than_the_bound() {
    let service = Service::start();
    let queue = Queue::of(&service, "", "lease=30s&wait=1s").await;
    queue.publish(0..10_000, 1_000).await;
    let transport = Arc::new(queue.connect().await);
    let seen = Arc::new(AtomicUsize::new(0));
    let (watched, most) = (Arc::clone(&transport), Arc::clone(&seen));
    let running = Running::start(
        Arc::clone(&transport),
        MemoryStore::default(),
        100,
        Arc::new(move |_| {
            let (waiting, out) = counts(&watched);
            most.fetch_max(waiting + out, Ordering::Relaxed);
            Act::Succeed
        }),
    );
    until("some are done", async || queue.backlog().await < 9_000).await;
    until("all are done", async || queue.backlog().await == 0).await;
    running.stop().await;
    let (held, here) = (service.most_held(&queue.name), seen.load(Ordering::Relaxed));
    assert!(held <= 100 && here <= 100, "{held} were held as the service sees it, {here} here");
    assert!(held > 50, "the bound was never near: {held}");
    let receives = service.requests("ReceiveMessage").len();
    assert!(receives < 2_500, "{receives} receives for 10,000 messages");
}

/// While nothing of a message is known, it may be as large as the queue takes: never so many are asked for that they might
/// not fit.
#[tokio::test]
async fn never_more_bytes_are_held_than_the_bound() {
    let service = Service::start();
    let queue = Queue::of(&service, "", "lease=30s&wait=1s").await;
    let publisher = inbox_sqs::publisher(&queue.url()).await.expect("a publisher");
    let sized = |n: u32| Message::new(Bytes::from(vec![b'x'; 400_000])).id(n.to_string());
    assert!(publisher.publish((0..20).map(sized).collect()).await.iter().all(Result::is_ok));
    let transport = queue.connect().await;
    let bytes = 3 << 20;
    let mut done = 0;
    while done < 20 {
        let capacity = Capacity { messages: 100, bytes };
        let received = tokio::time::timeout(PATIENCE, transport.receive(capacity)).await.expect("in time");
        let received = received.expect("received");
        assert!(service.held(&queue.name) * 400_000 <= bytes, "{} are held", service.held(&queue.name));
        done += received.len();
        transport.ack(receipts(received)).await.expect("acked");
    }
    for request in service.requests("ReceiveMessage") {
        assert!(request.body["MaxNumberOfMessages"].as_u64() <= Some(3), "{}", request.body);
    }
    // One that is larger than the bound comes all the same.
    assert!(publisher.publish(vec![sized(20)]).await[0].is_ok());
    let one = tokio::time::timeout(PATIENCE, transport.receive(Capacity { messages: 10, bytes: 1 })).await;
    assert_eq!(one.expect("in time").expect("received").len(), 1);
}

/// Nothing to do costs one request at a time.
#[tokio::test]
async fn an_idle_consumer_asks_once_at_a_time() {
    let service = Service::start();
    let queue = Queue::of(&service, "", "lease=30s&wait=1s&polls=8").await;
    let transport = queue.connect().await;
    let capacity = Capacity { messages: 1_000, bytes: 64 << 20 };
    assert!(tokio::time::timeout(Duration::from_millis(4_500), transport.receive(capacity)).await.is_err());
    let receives = service.requests("ReceiveMessage").len();
    assert!((4..=6).contains(&receives), "{receives} receives in 4.5 s");
    // And one that the service does not keep waiting does not storm it.
    let busy = Queue::of(&service, "", "lease=30s&wait=0s").await;
    let transport = busy.connect().await;
    assert!(tokio::time::timeout(Duration::from_secs(2), transport.receive(capacity)).await.is_err());
    let more = service.requests("ReceiveMessage").len() - receives;
    assert!((4..=13).contains(&more), "{more} receives in 2 s");
}
