//! Leases are extended for what is held, and end after `max_lease`.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use inbox_core::{Transport, memory::MemoryStore};

use crate::support::{Act, Proxy, Running, Topic, ack, numbers, quiet, receipts, receive, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_slower_than_the_lease_runs_once() {
    let topic = Topic::new("").await;
    topic.publish(0..1, 1).await;
    let calls = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&calls);
    let slow: crate::support::Decide = Arc::new(move |n| {
        noted.lock().unwrap().push((n, Instant::now()));
        Act::Sleep(Duration::from_secs(25))
    });
    let store = MemoryStore::default();
    let first = Running::start(topic.connect().await, store.clone(), 10, Arc::clone(&slow));
    until("the handler runs", async || calls.lock().unwrap().len() == 1).await;
    // Another one that would be given it if the lease of ten seconds ended.
    let second = Running::start(topic.connect().await, store.clone(), 10, slow);
    until("it is acked", async || topic.backlog().await == 0).await;
    first.stop().await;
    second.stop().await;
    assert_eq!(calls.lock().unwrap().len(), 1, "one run");
    assert_eq!(store.log("key-0"), ["0"], "one effect");
}

#[tokio::test]
async fn a_lease_ends_after_the_longest_time() {
    let topic = Topic::new("&max_lease=11s").await;
    topic.publish(0..4, 2).await;
    let transport = topic.connect().await;
    let mut held = receive(&transport, 4).await;
    held.sort_by_key(crate::support::number);
    let kept = held.split_off(2);
    ack(&transport, held).await;
    assert!(kept.iter().all(|delivery| !delivery.receipt.is_ending()));
    until("the leases are lost", async || kept.iter().all(|delivery| delivery.receipt.is_ending())).await;
    assert!(!kept[0].receipt.session().is_lost(), "the session lives on");
    let again = receive(&transport, 2).await;
    assert_eq!(numbers(&again).len(), 2);
    let acked = transport.ack(receipts(kept)).await.expect("no error");
    assert_eq!((acked.acked, acked.lost), (0, 2));
    ack(&transport, again).await;
    until("all is acked", async || topic.backlog().await == 0).await;
    quiet(&transport, Duration::from_secs(1)).await;
}

/// The lease of a message begins when it comes, however long the consumer has waited for it.
#[tokio::test]
async fn waiting_costs_no_lease() {
    let topic = Topic::new("&max_lease=11s").await;
    let transport = topic.connect().await;
    quiet(&transport, Duration::from_secs(12)).await;
    topic.publish(0..1, 1).await;
    let held = receive(&transport, 1).await;
    quiet(&transport, Duration::from_secs(2)).await;
    assert!(!held[0].receipt.is_ending());
    ack(&transport, held).await;
}

/// Nobody hears of a lease that ends at the service while the connection is broken: only the answer to the acknowledgement
/// tells, where there is one.
#[tokio::test]
async fn a_receipt_that_expired_before_its_acknowledgement_is_lost() {
    let topic = Topic::new("&exactly_once=true").await;
    let mut proxy = Proxy::start().await;
    let transport = inbox_pubsub::connect(&topic.url_at(&proxy.address.to_string())).await.expect("connected");
    topic.publish(0..3, 1).await;
    let held = receive(&transport, 3).await;
    proxy.cut().await;
    let other = topic.connect().await;
    let again = receive(&other, 3).await;
    assert_eq!(numbers(&again), [0, 1, 2], "after the lease of ten seconds, in order");
    proxy.mend().await;
    until("it is back", async || transport.connected()).await;
    let acked = transport.ack(receipts(held)).await.expect("no error");
    assert_eq!((acked.acked, acked.lost), (0, 3));
    ack(&other, again).await;
    until("all is acked", async || topic.backlog().await == 0).await;
}

/// Behind a lost message nothing of its key may be started here, or it would overtake.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_lease_takes_its_followers_along() {
    let topic = Topic::new("&max_lease=12s").await;
    topic.publish(0..6, 2).await;
    let calls = Arc::new(Mutex::new(BTreeMap::<u32, u32>::new()));
    let noted = Arc::clone(&calls);
    let decide: crate::support::Decide = Arc::new(move |n| {
        let mut calls = noted.lock().unwrap();
        let nth = calls.entry(n).or_default();
        *nth += 1;
        // The first of key 0 takes longer than its lease may last, once.
        if n == 0 && *nth == 1 { Act::Block(Duration::from_secs(20)) } else { Act::Succeed }
    });
    let timeout = Duration::from_secs(5);
    let running = Running::start_for(timeout, topic.connect().await, MemoryStore::default(), 10, decide);
    until("all is acked", async || topic.backlog().await == 0).await;
    let store = running.stop().await;
    assert_eq!(store.log("key-0"), ["0", "2", "4"]);
    assert_eq!(store.log("key-1"), ["1", "3", "5"]);
}
