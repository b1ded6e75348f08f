//! Leases are extended for what is held, and what has lost its lease is lost, with what follows it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use inbox_core::{Transport, memory::MemoryStore};

use crate::{
    service::Service,
    support::{Act, Decide, Queue, Running, ack, at_most, counts, numbers, quiet, receipts, receive, until},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_slower_than_the_lease_runs_once() {
    let queue = Queue::standard("lease=10s&wait=1s").await;
    queue.publish(0..1, 1).await;
    let calls = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&calls);
    let slow: Decide = Arc::new(move |n| {
        noted.lock().unwrap().push((n, Instant::now()));
        Act::Sleep(Duration::from_secs(25))
    });
    let store = MemoryStore::default();
    let first = Running::start(queue.connect().await, store.clone(), 10, Arc::clone(&slow));
    until("the handler runs", async || calls.lock().unwrap().len() == 1).await;
    // Another one that would be given it if the lease of ten seconds ended.
    let second = Running::start(queue.connect().await, store.clone(), 10, slow);
    queue.drained().await;
    first.stop().await;
    second.stop().await;
    assert_eq!(calls.lock().unwrap().len(), 1, "one run");
    assert_eq!(store.log("key-0"), ["0"], "one effect");
}

/// All that is held, ten to a request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_leases_are_extended_together() {
    let service = Service::start();
    let queue = Queue::of(&service, "", "lease=4s&wait=1s").await;
    queue.publish(0..95, 1).await;
    let transport = queue.connect().await;
    let held = receive(&transport, 95).await;
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert_eq!(service.held(&queue.name), 95, "nothing came back in more than two leases");
    let requests = service.requests("ChangeMessageVisibilityBatch");
    assert!((20..80).contains(&requests.len()), "{} requests for 95 messages and 9 s", requests.len());
    for request in &requests {
        for entry in request.body["Entries"].as_array().expect("entries") {
            assert_eq!(entry["VisibilityTimeout"], 4);
        }
    }
    ack(&transport, held).await;
    assert_eq!(queue.backlog().await, 0);
}

/// A FIFO queue says that a receipt handle has expired.
#[tokio::test]
async fn a_receipt_that_expired_before_the_ack_is_lost() {
    let service = Service::start();
    let queue = Queue::of(&service, ".fifo", "lease=30s&wait=1s").await;
    queue.publish(0..3, 3).await;
    let transport = queue.connect().await;
    let held = receive(&transport, 3).await;
    service.end_lease(&queue.name, "id-1");
    let acked = transport.ack(receipts(held)).await.expect("no error");
    assert_eq!((acked.acked, acked.lost), (2, 1));
    let again = receive(&transport, 1).await;
    assert_eq!(numbers(&again), [1]);
    ack(&transport, again).await;
    assert_eq!(queue.backlog().await, 0);
}

/// A standard queue takes an old receipt handle without a word: the transport has its own clock.
#[tokio::test]
async fn a_lease_that_nobody_extends_ends_by_the_clock_of_this_process() {
    let service = Service::start();
    let queue = Queue::of(&service, "", "lease=2s&wait=0s").await;
    service.fail_entries(|action, _| (action == "ChangeMessageVisibilityBatch").then_some(("InternalError", false)));
    queue.publish(0..2, 1).await;
    let transport = queue.connect().await;
    let held = receive(&transport, 2).await;
    assert!(held.iter().all(|delivery| !delivery.receipt.is_ending()));
    until("the leases are lost", async || held.iter().all(|delivery| delivery.receipt.is_ending())).await;
    assert!(!held[0].receipt.session().is_lost(), "the session lives on");
    let again = receive(&transport, 2).await;
    assert_eq!(again[0].delivery_count, Some(2));
    let acked = transport.ack(receipts(held)).await.expect("no error");
    assert_eq!((acked.acked, acked.lost), (0, 2));
    ack(&transport, again).await;
    assert_eq!(queue.backlog().await, 0);
}

/// Behind a lost message nothing of its group may be handed over here or be acked, or it would overtake.
#[tokio::test]
async fn a_lost_lease_takes_the_later_ones_of_its_group_along() {
    let service = Service::start();
    let queue = Queue::of(&service, ".fifo", "lease=4s&wait=1s").await;
    // Numbers 0, 2, 4 of one group and 1, 3, 5 of another.
    queue.publish(0..6, 2).await;
    let transport = queue.connect().await;
    let mut held = receive(&transport, 6).await;
    held.sort_by_key(crate::support::number);
    service.end_lease(&queue.name, "id-2");
    until("2 and 4 are lost", async || held[2].receipt.is_ending() && held[4].receipt.is_ending()).await;
    let live: Vec<u32> = held.iter().filter(|held| !held.receipt.is_ending()).map(crate::support::number).collect();
    assert_eq!(live, [0, 1, 3, 5], "the first of its group and the other group stay");
    let acked = transport.ack(receipts(held)).await.expect("no error");
    assert_eq!((acked.acked, acked.lost), (4, 2));
    let again = receive(&transport, 2).await;
    assert_eq!(numbers(&again), [2, 4]);
    ack(&transport, again).await;
    assert_eq!(queue.backlog().await, 0);
}

/// The same with an inbox: a handler whose message loses its lease, and followers that wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_overtakes_a_message_that_lost_its_lease() {
    let service = Service::start();
    let queue = Queue::of(&service, ".fifo", "lease=4s&wait=1s").await;
    queue.publish(0..10, 2).await;
    let calls = Arc::new(Mutex::new(BTreeMap::<u32, u32>::new()));
    let noted = Arc::clone(&calls);
    let decide: Decide = Arc::new(move |n| {
        let mut calls = noted.lock().unwrap();
        let nth = calls.entry(n).or_default();
        *nth += 1;
        if n == 0 && *nth == 1 { Act::Sleep(Duration::from_secs(6)) } else { Act::Succeed }
    });
    let running = Running::start(queue.connect().await, MemoryStore::default(), 10, decide);
    until("the handler runs", async || calls.lock().unwrap().contains_key(&0)).await;
    service.end_lease(&queue.name, "id-0");
    queue.drained().await;
    let store = running.stop().await;
    assert_eq!(store.log("key-0"), ["0", "2", "4", "6", "8"]);
    assert_eq!(store.log("key-1"), ["1", "3", "5", "7", "9"]);
}

/// What came for a receive that is gone is not kept from others.
#[tokio::test]
async fn what_nobody_asks_for_goes_back() {
    let service = Service::start();
    let queue = Queue::of(&service, "", "lease=30s&wait=1s").await;
    let idle = queue.connect().await;
    quiet(&idle, Duration::from_millis(300)).await;
    // The receive at the service still waits.
    queue.publish(0..3, 1).await;
    until("they came to the one that does not ask", async || service.held(&queue.name) > 0).await;
    until("they have arrived there", async || counts(&idle) != (0, 0)).await;
    let other = queue.connect().await;
    let began = Instant::now();
    let taken_over = receive(&other, 3).await;
    assert!(began.elapsed() < Duration::from_secs(10), "long before the lease has ended");
    ack(&other, taken_over).await;
    drop(idle);
}

/// A closed transport waits for the receive that is under way, since what it brings would be invisible for a lease.
#[tokio::test]
async fn what_comes_while_closing_goes_back() {
    let service = Service::start();
    let queue = Queue::of(&service, "", "lease=30s&wait=4s").await;
    let transport = Arc::new(queue.connect().await);
    quiet(&transport, Duration::from_millis(300)).await;
    let closing = Arc::clone(&transport);
    let closing = tokio::spawn(async move { closing.close(Duration::from_secs(10)).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    queue.publish(0..5, 1).await;
    closing.await.expect("no panic").expect("closed in time");
    assert_eq!(service.held(&queue.name), 0, "all is visible");
    let error = transport.receive(at_most(1)).await.expect_err("closed");
    assert_eq!(error.kind(), inbox_core::TransportErrorKind::Closed);
    let other = queue.connect().await;
    let taken_over = receive(&other, 5).await;
    ack(&other, taken_over).await;
}
