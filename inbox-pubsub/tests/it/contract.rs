//! The guarantees of the transport contract that this adapter keeps in its own way.

use std::{sync::Arc, time::Duration};

use inbox_core::{Transport, TransportErrorKind, capability::MaxAge, memory::MemoryStore};

use crate::support::{Act, Running, Topic, ack, at_most, counts, numbers, quiet, receipts, receive, until};

#[tokio::test]
async fn dropped_receipts_come_again_here_in_their_places() {
    let topic = Topic::new("").await;
    topic.publish(0..12, 1).await;
    let transport = topic.connect().await;
    let mut first = receive(&transport, 8).await;
    assert_eq!(numbers(&first), [0, 1, 2, 3, 4, 5, 6, 7]);
    let (six, two) = (first.remove(6), first.remove(2));
    drop(six);
    drop(two);
    let again = receive(&transport, 6).await;
    assert_eq!(numbers(&again), [2, 6, 8, 9, 10, 11]);
    assert_eq!(again[0].receipt.session().id(), first[0].receipt.session().id());
    assert_eq!(again[0].source.coordinates, again[0].source.coordinates, "the service's id of the message");
    ack(&transport, again).await;
    ack(&transport, first).await;
    until("all is acked", async || topic.backlog().await == 0).await;
}

/// Nobody here receives any more, so the service gets it; and everything behind it of its key, which would overtake.
#[tokio::test]
async fn what_nobody_takes_up_goes_to_another_consumer_with_what_follows_it() {
    let topic = Topic::new("").await;
    topic.publish(0..5, 1).await;
    let transport = topic.connect().await;
    let mut held = receive(&transport, 5).await;
    let tail = held.split_off(3);
    let released = vec![held.remove(1)];
    assert_eq!((numbers(&released), numbers(&held)), (vec![1], vec![0, 2]));
    transport.release(receipts(released)).await.expect("released");
    // 0 is done; 2, 3 and 4 are behind what was given back, and stale once it has gone.
    let two = held.remove(1);
    ack(&transport, held).await;
    tokio::time::sleep(Duration::from_millis(1_800)).await;
    drop(two);
    drop(tail);
    until("all four came again", async || counts(&transport) == (4, 0)).await;
    let other = topic.connect().await;
    // To whom of the two is the service's choice: this one is asked no more once it has nothing.
    transport.close(Duration::from_secs(10)).await.expect("closed");
    let again = receive(&other, 4).await;
    assert_eq!(numbers(&again), [1, 2, 3, 4]);
    ack(&other, again).await;
    until("all is acked", async || topic.backlog().await == 0).await;
}

/// What lies between the service and this process when earlier messages of its key are given back is behind them again.
#[tokio::test]
async fn what_is_on_its_way_does_not_overtake_what_was_given_back() {
    let topic = Topic::new("").await;
    topic.publish(0..60, 1).await;
    let transport = topic.connect().await;
    // The emulator does not keep to the limit: it has sent the rest too.
    let held = receive(&transport, 10).await;
    assert_eq!(numbers(&held), (0..10).collect::<Vec<u32>>());
    transport.release(receipts(held)).await.expect("released");
    // Nobody receives for so long that the service gets them.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let all = receive(&transport, 60).await;
    assert_eq!(numbers(&all), (0..60).collect::<Vec<u32>>());
    ack(&transport, all).await;
    until("all is acked", async || topic.backlog().await == 0).await;
}

#[tokio::test]
async fn close_gives_back_in_order_and_ends_what_waits() {
    let topic = Topic::new("").await;
    topic.publish(0..60, 3).await;
    let transport = topic.connect().await;
    let held = receive(&transport, 40).await;
    let close = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        transport.close(Duration::from_secs(10)).await
    };
    // Another 20 may come before.
    let waiting = async {
        let mut rest = Vec::new();
        loop {
            match transport.receive(at_most(30)).await {
                Ok(deliveries) => rest.extend(deliveries),
                Err(error) => return (rest, error.kind()),
            }
        }
    };
    let ((rest, kind), closed) = tokio::join!(waiting, close);
    closed.expect("closed");
    assert_eq!(kind, TransportErrorKind::Closed);
    assert!(!transport.connected());
    transport.close(Duration::from_secs(1)).await.expect("twice is fine");
    assert!(held.iter().all(|delivery| delivery.receipt.session().is_lost()));
    let acked = transport.ack(receipts(held)).await.expect("no error");
    assert_eq!((acked.acked, acked.lost), (0, 40), "a lost session is counted");
    drop(rest);
    let other = topic.connect().await;
    let again = receive(&other, 60).await;
    for key in 0..3 {
        let of_key: Vec<u32> = numbers(&again).into_iter().filter(|n| n % 3 == key).collect();
        assert_eq!(of_key, (0..20).map(|n| n * 3 + key).collect::<Vec<u32>>());
    }
    ack(&other, again).await;
}

#[tokio::test]
async fn a_subscription_that_confirms_and_keeps_order() {
    let topic = Topic::new("&exactly_once=true").await;
    topic.publish(0..300, 7).await;
    let transport = topic.connect().await;
    let mut held = receive(&transport, 300).await;
    let rest = held.split_off(200);
    // In whatever order they come: the adapter sends them in that of delivery.
    held.reverse();
    ack(&transport, held).await;
    assert_eq!(topic.backlog().await, 100, "confirmed is confirmed");
    transport.close(Duration::from_secs(10)).await.expect("closed");
    drop(rest);
    let other = topic.connect().await;
    let again = receive(&other, 100).await;
    for key in 0..7 {
        let of_key: Vec<u32> = numbers(&again).into_iter().filter(|n| n % 7 == key).collect();
        assert!(of_key.is_sorted(), "key {key}: {of_key:?}");
    }
    ack(&other, again).await;
    assert_eq!(topic.backlog().await, 0);
}

#[tokio::test]
async fn a_receive_that_waits_wakes_up_and_nothing_acked_comes_again() {
    let topic = Topic::new("").await;
    let transport = topic.connect().await;
    let publish = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        topic.publish(0..5, 2).await;
    };
    let (deliveries, ()) = tokio::join!(receive(&transport, 5), publish);
    ack(&transport, deliveries).await;
    quiet(&transport, Duration::from_secs(12)).await;
}

#[tokio::test]
async fn the_backlog_counts_what_is_leased() {
    let topic = Topic::new("").await;
    topic.publish(0..30, 3).await;
    assert_eq!(topic.backlog().await, 30);
    let transport = topic.connect().await;
    let mut held = receive(&transport, 30).await;
    assert_eq!(topic.backlog().await, 30);
    // The first of each key: the emulator does not count an acknowledgement before those of the earlier ones.
    let rest = held.split_off(18);
    ack(&transport, held).await;
    until("18 are acked", async || topic.backlog().await == 12).await;
    assert_eq!(inbox_pubsub::count_messages(&topic.url().replace("?topic", "-audit?topic")).await.ok(), Some(12));
    drop(rest);
}

#[tokio::test]
async fn the_age_is_the_services() {
    let topic = Topic::new("").await;
    let transport = topic.connect().await;
    let age = transport.max_age().await.expect("an age");
    assert_eq!(age, MaxAge::AtMost(Duration::from_secs(7 * 86_400)));
}

/// A producer that sends each message three times: they come in one receive, and have one effect each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_in_one_receive_have_one_effect() {
    let topic = Topic::new("").await;
    for _ in 0..3 {
        topic.publish(0..20, 4).await;
    }
    let transport = topic.connect().await;
    let held = receive(&transport, 60).await;
    let mut all = numbers(&held);
    all.sort_unstable();
    assert_eq!(all, (0..60).map(|n| n / 3).collect::<Vec<u32>>());
    transport.release(receipts(held)).await.expect("released");
    let running = Running::start(transport, MemoryStore::default(), 100, Arc::new(|_| Act::Succeed));
    until("all is acked", async || topic.backlog().await == 0).await;
    let numbers = running.handle.numbers();
    let store = running.stop().await;
    assert_eq!((numbers.applied, numbers.duplicates), (20, 40));
    for key in 0..4 {
        let expected: Vec<String> = (0..5).map(|n| (n * 4 + key).to_string()).collect();
        assert_eq!(store.log(&format!("key-{key}")), expected, "key {key}");
    }
}
