//! A FIFO queue keeps each group in order, whatever is given back.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use inbox_core::{Delivery, Transport, memory::MemoryStore};

use crate::{
    service::Service,
    support::{Act, Decide, Queue, Running, at_most, number, quiet, receipts, receive},
};

/// 50 keys with 200 messages each, and a handler that fails now and then.
async fn keys_keep_their_order(instances: usize) {
    let service = Service::start();
    let queue = Queue::of(&service, ".fifo", "lease=10s&wait=1s").await;
    queue.publish(0..10_000, 50).await;
    let decide: Decide = Arc::new(|_| if fastrand::u32(0..20) == 0 { Act::Fail } else { Act::Succeed });
    let store = MemoryStore::default();
    let mut running = Vec::new();
    for _ in 0..instances {
        running.push(Running::start(queue.connect().await, store.clone(), 2_000, Arc::clone(&decide)));
    }
    queue.drained().await;
    for running in running {
        running.stop().await;
    }
    for key in 0..50 {
        let expected: Vec<String> = (0..200).map(|n| (n * 50 + key).to_string()).collect();
        assert_eq!(store.log(&format!("key-{key}")), expected, "key {key}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_keep_their_order_though_handlers_fail() {
    keys_keep_their_order(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_keep_their_order_over_two_instances() {
    keys_keep_their_order(2).await;
}

/// Acks some of what came of each key, and gives the rest back, dropped or released, in any order: always the next one of
/// the key comes next.
#[tokio::test]
async fn a_key_keeps_its_order_also_when_it_comes_again() {
    let service = Service::start();
    let queue = Queue::of(&service, ".fifo", "lease=30s&wait=1s").await;
    queue.publish(0..60, 3).await;
    let transport = queue.connect().await;
    let mut next = [0, 1, 2];
    let mut acked = 0;
    while acked < 60 {
        let mut by_key: BTreeMap<u32, Vec<Delivery>> = BTreeMap::new();
        let received = tokio::time::timeout(Duration::from_secs(30), transport.receive(at_most(7)));
        for delivery in received.await.expect("in time").expect("received") {
            by_key.entry(number(&delivery) % 3).or_default().push(delivery);
        }
        let mut back = Vec::new();
        for (key, mut deliveries) in by_key {
            let first = &mut next[key as usize];
            for (n, delivery) in deliveries.iter().enumerate() {
                assert_eq!(number(delivery), *first + 3 * u32::try_from(n).unwrap(), "key {key}");
            }
            let rest = deliveries.split_off(fastrand::usize(0..=deliveries.len()));
            *first += 3 * u32::try_from(deliveries.len()).unwrap();
            acked += deliveries.len();
            let done = transport.ack(receipts(deliveries)).await.expect("acked");
            assert_eq!(done.lost, 0);
            back.extend(rest);
        }
        fastrand::shuffle(&mut back);
        let released = back.split_off(fastrand::usize(0..=back.len()));
        drop(back);
        transport.release(receipts(released)).await.expect("released");
    }
    assert_eq!(queue.backlog().await, 0);
}

/// What is given back and not taken up again goes to others, and what is held behind it of its group goes with it.
#[tokio::test]
async fn what_goes_back_to_the_service_takes_the_later_ones_along() {
    let service = Service::start();
    let queue = Queue::of(&service, ".fifo", "lease=30s&wait=1s").await;
    queue.publish(0..4, 1).await;
    let transport = queue.connect().await;
    let mut held = receive(&transport, 4).await;
    let later = held.split_off(2);
    let given_back = held.pop().expect("number 1");
    transport.release(vec![given_back.receipt]).await.expect("released");
    // Nobody receives here for a while.
    let other = queue.connect().await;
    quiet(&other, Duration::from_millis(500)).await;
    crate::support::until("the later ones are lost", async || later.iter().all(|late| late.receipt.is_ending())).await;
    // Of the group nothing comes while the first one is held.
    quiet(&other, Duration::from_millis(500)).await;
    crate::support::ack(&transport, held).await;
    let taken_over = receive(&other, 3).await;
    assert_eq!(crate::support::numbers(&taken_over), [1, 2, 3]);
    let acked = transport.ack(receipts(later)).await.expect("no error");
    assert_eq!((acked.acked, acked.lost), (0, 2));
    crate::support::ack(&other, taken_over).await;
    assert_eq!(queue.backlog().await, 0);
}
