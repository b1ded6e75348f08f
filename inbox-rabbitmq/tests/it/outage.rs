//! Connections, channels and queues go away and come back: the transport waits, says so, and goes on.

use std::{
    collections::BTreeSet,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use inbox_core::{Publisher, Transport, TransportErrorKind, report};
use inbox_rabbitmq::{QueueType, RabbitMqPublisher, RabbitMqTransport};

use crate::{
    proxy::Proxy,
    support::{
        PATIENCE, Queue, ack, at_most, drain, empty, number, numbered, port, quiet, receive, some, try_ack, until,
    },
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_cut_again_and_again() {
    let queue = Queue::new().await;
    queue.publish(0..500).await;
    let proxy = Proxy::start(port()).await.unwrap();
    let transport = RabbitMqTransport::connect(queue.config_by(proxy.port)).await.unwrap();
    let mut seen = BTreeSet::new();
    for _ in 0..8 {
        let deliveries = receive(&transport, 20).await;
        seen.extend(deliveries.iter().map(number));
        let session = deliveries[0].receipt.session().clone();
        // While they are acked: an answer that meets the end of its connection must not be waited for.
        let ((acked, lost), ()) = tokio::join!(try_ack(&transport, deliveries), async { proxy.cut() });
        assert_eq!(acked + lost, 20);
        tokio::time::timeout(Duration::from_secs(2), session.lost()).await.expect("lost at once");
    }
    while seen.len() < 500 || transport.unsettled() > 0 || queue.ready().await > 0 {
        let deliveries = some(&transport, 100).await;
        seen.extend(deliveries.iter().map(number));
        ack(&transport, deliveries).await;
    }
    empty(&queue, transport).await;
    queue.delete().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receipts_of_a_broken_session_are_lost_and_their_messages_come_again() {
    let queue = Queue::new().await;
    queue.publish(0..10).await;
    let proxy = Proxy::start(port()).await.unwrap();
    let transport = RabbitMqTransport::connect(queue.config_by(proxy.port)).await.unwrap();
    let held = receive(&transport, 10).await;
    assert!(held.iter().all(|delivery| !delivery.suspect), "nothing was in flight before");
    let session = held[0].receipt.session().clone();
    proxy.cut();
    tokio::time::timeout(Duration::from_secs(2), session.lost()).await.expect("lost at once");
    assert_eq!(try_ack(&transport, held).await, (0, 10));
    let again = receive(&transport, 10).await;
    assert!(again.iter().all(|delivery| delivery.suspect), "they were in flight when the session ended");
    assert_ne!(again[0].receipt.session().id(), session.id());
    assert!(transport.connected());
    ack(&transport, again).await;
    empty(&queue, transport).await;
    queue.delete().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_falls_silent_is_noticed_by_its_heartbeats() {
    let queue = Queue::new().await;
    queue.publish(0..10).await;
    let proxy = Proxy::start(port()).await.unwrap();
    let config = queue.config_by(proxy.port).heartbeat(Duration::from_secs(1)).connect_timeout(Duration::from_secs(2));
    let transport = RabbitMqTransport::connect(config).await.unwrap();
    let held = receive(&transport, 10).await;
    let session = held[0].receipt.session().clone();
    proxy.open(false);
    proxy.flow(false);
    let silent = Instant::now();
    // An ack is written into a silent connection and counts as sent: the message comes again, and is known then.
    assert_eq!(try_ack(&transport, held).await, (10, 0));
    tokio::time::timeout(Duration::from_secs(8), session.lost()).await.expect("lost by the heartbeat");
    println!("noticed after {:?}", silent.elapsed());
    assert!(!transport.connected());
    quiet(&transport, Duration::from_secs(3)).await;
    proxy.cut();
    proxy.flow(true);
    proxy.open(true);
    assert_eq!(receive(&transport, 10).await.len(), 10);
    assert!(transport.connected());
    queue.delete().await;
}

async fn deleted_and_made_again(queue_type: QueueType) {
    let queue = Queue::of(queue_type).await;
    queue.publish(0..5).await;
    let transport = queue.consumer().await;
    let held = receive(&transport, 5).await;
    queue.delete().await;
    until("it is noticed", async || !transport.connected()).await;
    assert!(held[0].receipt.session().is_lost());
    assert_eq!(try_ack(&transport, held).await, (0, 5));
    // Nobody reads, and that is not the end: receive waits.
    quiet(&transport, Duration::from_secs(2)).await;
    assert!(!transport.connected());
    queue.make().await;
    queue.publish(5..10).await;
    assert_eq!(drain(&transport, 5..10).await.len(), 5);
    assert!(transport.connected());
    empty(&queue, transport).await;
    queue.delete().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_is_deleted_and_made_again_works_again() {
    deleted_and_made_again(QueueType::Classic).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quorum_queue_that_is_deleted_and_made_again_works_again() {
    deleted_and_made_again(QueueType::Quorum).await;
}

/// A producer that publishes each message until it is confirmed, while the queue goes and comes back: what was unconfirmed
/// when it came back, or is published later, all arrives.
async fn deleted_under_a_producer(queue_type: QueueType) {
    let queue = Queue::of(queue_type).await;
    let transport = queue.consumer().await;
    let publisher = RabbitMqPublisher::connect(queue.config()).await.unwrap();
    let made_again = AtomicBool::new(false);
    let promised = Mutex::new(None);
    let producing = async {
        let (mut stored, mut refused) = (BTreeSet::new(), 0);
        for n in 0.. {
            // Asked before it is sent: what was sent earlier may be in the queue that is gone.
            let mut counts = made_again.load(Ordering::SeqCst);
            while let Err(error) = publisher.publish(vec![numbered(n)]).await.remove(0) {
                let text = report(&error);
                // A message that meets the end of a quorum queue costs the connection: the broker says `INTERNAL_ERROR`.
                let kinds = [TransportErrorKind::Rejected, TransportErrorKind::Unavailable];
                assert!(!counts && kinds.contains(&error.kind()), "{text}");
                refused += 1;
                tokio::time::sleep(Duration::from_millis(5)).await;
                counts = made_again.load(Ordering::SeqCst);
            }
            stored.extend(counts.then_some(n));
            if stored.len() > 200 {
                break;
            }
        }
        assert!(refused > 3, "the queue was never away");
        *promised.lock().unwrap() = Some(stored);
    };
    let disturbing = async {
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(200)).await;
            queue.delete().await;
            tokio::time::sleep(Duration::from_millis(300)).await;
            queue.make().await;
        }
        made_again.store(true, Ordering::SeqCst);
    };
    let receiving = async {
        let (started, mut seen) = (Instant::now(), BTreeSet::new());
        while promised.lock().unwrap().as_ref().is_none_or(|promised: &BTreeSet<u32>| !promised.is_subset(&seen)) {
            if let Ok(received) =
                tokio::time::timeout(Duration::from_millis(200), transport.receive(at_most(100))).await
            {
                let deliveries = received.unwrap();
                seen.extend(deliveries.iter().map(number));
                try_ack(&transport, deliveries).await;
            }
            assert!(started.elapsed() < 2 * PATIENCE, "{seen:?} of {promised:?}");
        }
    };
    tokio::join!(producing, disturbing, receiving);
    empty(&queue, transport).await;
    queue.delete().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_is_deleted_under_a_producer_loses_nothing_from_then_on() {
    deleted_under_a_producer(QueueType::Classic).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quorum_queue_that_is_deleted_under_a_producer_loses_nothing_from_then_on() {
    deleted_under_a_producer(QueueType::Quorum).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publisher_whose_connection_is_cut_goes_on() {
    let queue = Queue::new().await;
    let proxy = Proxy::start(port()).await.unwrap();
    let config = queue.config_by(proxy.port).publish_timeout(Duration::from_secs(2));
    let publisher = RabbitMqPublisher::connect(config).await.unwrap();
    let publish = async |n| publisher.publish(vec![numbered(n)]).await.remove(0);
    publish(0).await.unwrap();
    for n in 1..4 {
        proxy.cut();
        until("it is published", async || publish(n).await.is_ok()).await;
    }
    // Nobody answers: that is an error, in time.
    proxy.open(false);
    proxy.flow(false);
    let started = Instant::now();
    let error = publish(4).await.expect_err("no confirmation");
    assert_eq!(error.kind(), TransportErrorKind::Unavailable, "{}", report(&error));
    assert!(report(&error).contains("publish_timeout"), "{}", report(&error));
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
    proxy.cut();
    proxy.flow(true);
    proxy.open(true);
    publish(5).await.unwrap();
    publisher.close(PATIENCE).await.unwrap();
    let transport = queue.consumer().await;
    let mut missing = BTreeSet::from([0, 1, 2, 3, 5]);
    while !missing.is_empty() {
        let deliveries = some(&transport, 10).await;
        missing.retain(|n| deliveries.iter().all(|delivery| number(delivery) != *n));
        ack(&transport, deliveries).await;
    }
    queue.delete().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_while_the_broker_is_silent_keeps_to_the_deadline() {
    let queue = Queue::new().await;
    queue.publish(0..3).await;
    let proxy = Proxy::start(port()).await.unwrap();
    let transport = RabbitMqTransport::connect(queue.config_by(proxy.port)).await.unwrap();
    let held = receive(&transport, 1).await;
    proxy.flow(false);
    let started = Instant::now();
    let error = transport.close(Duration::from_secs(1)).await.expect_err("no answer");
    assert_eq!(error.kind(), TransportErrorKind::Unavailable);
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    let error = transport.receive(at_most(1)).await.expect_err("closed");
    assert_eq!(error.kind(), TransportErrorKind::Closed);
    drop(held);
    proxy.cut();
    until("all is given back", async || queue.ready().await == 3).await;
    queue.delete().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transport_that_is_dropped_gives_everything_back() {
    let queue = Queue::new().await;
    queue.publish(0..50).await;
    let transport = queue.consumer().await;
    let held = receive(&transport, 20).await;
    drop(transport);
    until("all is given back", async || queue.ready().await == 50).await;
    drop(held);
    queue.delete().await;
}
