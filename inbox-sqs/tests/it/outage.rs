//! The service goes away, or the queue, and comes back.

use std::{sync::Arc, time::Duration};

use inbox_core::{Publisher, Transport, TransportErrorKind, memory::MemoryStore, report};
use serde_json::json;

use crate::{
    service::{Service, delete_queue},
    support::{Act, Queue, Running, ack, at_most, numbered, numbers, receipts, receive, until},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_is_deleted_and_made_again() {
    let queue = Queue::standard("lease=4s&wait=1s").await;
    queue.publish(0..5, 1).await;
    let transport = queue.connect().await;
    let held = receive(&transport, 5).await;
    delete_queue(&queue.url()).await;
    until("it is noticed", async || {
        drop(tokio::time::timeout(Duration::from_millis(100), transport.receive(at_most(1))).await);
        !transport.connected()
    })
    .await;
    let acked = transport.ack(receipts(held)).await.expect("no error");
    assert_eq!((acked.acked, acked.lost), (0, 5));
    let gone = inbox_sqs::connect(&queue.url()).await.expect_err("no queue");
    assert_eq!(gone.kind(), TransportErrorKind::NotFound);
    inbox_sqs::provision(&queue.url()).await.expect("made again");
    queue.publish(10..13, 1).await;
    let mut again = receive(&transport, 3).await;
    again.sort_by_key(crate::support::number);
    assert_eq!(numbers(&again), [10, 11, 12]);
    assert!(transport.connected());
    ack(&transport, again).await;
    assert_eq!(queue.backlog().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_is_gone_for_a_while() {
    let service = Service::start();
    let queue = Queue::of(&service, "", "lease=30s&wait=1s&request_timeout=1s").await;
    let transport = queue.connect().await;
    let publisher = inbox_sqs::publisher(&queue.url()).await.expect("a publisher");
    queue.publish(0..10, 5).await;
    let held = receive(&transport, 10).await;
    service.set_down(true);
    let waited = tokio::time::timeout(Duration::from_secs(2), transport.receive(at_most(1))).await;
    assert!(waited.is_err(), "receive waits: {waited:?}");
    assert!(!transport.connected());
    let refused = publisher.publish(vec![numbered(10, 5)]).await.remove(0).expect_err("nobody is there");
    assert_eq!(refused.kind(), TransportErrorKind::Unavailable, "{}", report(&refused));
    service.set_down(false);
    // The leases have not ended meanwhile.
    ack(&transport, held).await;
    assert!(publisher.publish(vec![numbered(10, 5)]).await[0].is_ok());
    let came = receive(&transport, 1).await;
    assert_eq!(numbers(&came), [10]);
    assert!(transport.connected());
    ack(&transport, came).await;
    assert_eq!(queue.backlog().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_inbox_goes_on_behind_an_unsteady_service() {
    let service = Service::start();
    let queue = Queue::of(&service, ".fifo", "lease=4s&wait=1s&request_timeout=1s").await;
    queue.publish(0..600, 20).await;
    let decide: crate::support::Decide = Arc::new(|_| Act::Sleep(Duration::from_micros(500)));
    let running = Running::start(queue.connect().await, MemoryStore::default(), 100, decide);
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        service.set_down(true);
        tokio::time::sleep(Duration::from_millis(300)).await;
        service.set_down(false);
    }
    queue.drained().await;
    let store = running.stop().await;
    for key in 0..20 {
        let expected: Vec<String> = (0..30).map(|n| (n * 20 + key).to_string()).collect();
        assert_eq!(store.log(&format!("key-{key}")), expected, "key {key}");
    }
}

/// What the service says when it has too much to do, it says of receives too.
#[tokio::test]
async fn a_service_that_throttles_is_asked_less_often() {
    let service = Service::start();
    let queue = Queue::of(&service, "", "lease=30s&wait=1s").await;
    queue.publish(0..1, 1).await;
    service.meddle(|request| {
        let throttled = request.action == "ReceiveMessage";
        throttled.then(|| (400, json!({ "__type": "com.amazonaws.sqs#RequestThrottled", "message": "slow down" })))
    });
    let transport = queue.connect().await;
    let waited = tokio::time::timeout(Duration::from_secs(3), transport.receive(at_most(10))).await;
    assert!(waited.is_err(), "{waited:?}");
    let receives = service.requests("ReceiveMessage").len();
    assert!((3..=12).contains(&receives), "{receives} receives in 3 s");
    assert!(!transport.connected());
    service.meddle(|_| None);
    let came = receive(&transport, 1).await;
    ack(&transport, came).await;
}
