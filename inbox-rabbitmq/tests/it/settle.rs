//! Giving back: a released or dropped delivery is the queue's again at once.

use std::time::{Duration, Instant};

use inbox_core::{Capacity, Transport};
use inbox_rabbitmq::QueueType;

use crate::support::{Queue, ack, empty, number, quiet, receive};

async fn given_back(queue_type: QueueType, release: bool) {
    let queue = Queue::of(queue_type).await;
    queue.publish(0..20).await;
    let transport = queue.consumer().await;
    let mut held = receive(&transport, 20).await;
    quiet(&transport, Duration::from_millis(200)).await;
    let back: Vec<_> = held.drain(5..15).collect();
    let session = back[0].receipt.session().id();
    let started = Instant::now();
    if release {
        transport.release(back.into_iter().map(|delivery| delivery.receipt).collect()).await.unwrap();
    } else {
        drop(back);
    }
    let again = receive(&transport, 10).await;
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    let mut numbers: Vec<u32> = again.iter().map(number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (5..15).collect::<Vec<_>>());
    for delivery in &again {
        assert_eq!(delivery.receipt.session().id(), session, "nothing was lost by it");
        assert!(!delivery.suspect, "the broker flags it, and it was not in flight when anything died");
        let counted = (queue_type == QueueType::Quorum).then_some(2);
        assert_eq!(delivery.delivery_count, counted, "a quorum queue counts");
    }
    ack(&transport, held).await;
    ack(&transport, again).await;
    empty(&queue, transport).await;
    queue.delete().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_released_delivery_comes_again() {
    given_back(QueueType::Classic, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_released_delivery_of_a_quorum_queue_comes_again() {
    given_back(QueueType::Quorum, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_delivery_comes_again() {
    given_back(QueueType::Classic, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_delivery_of_a_quorum_queue_comes_again() {
    given_back(QueueType::Quorum, false).await;
}

/// A channel keeps acknowledgements to a quorum queue back while the queue is busy, and those are lost with it unless they
/// are waited for.
async fn acked_and_left_at_once(queue_type: QueueType) {
    let queue = Queue::of(queue_type).await;
    for round in 0..8 {
        queue.publish(round * 400..round * 400 + 400).await;
        let transport = queue.consumer().await;
        let held = receive(&transport, 400).await;
        ack(&transport, held).await;
        empty(&queue, transport).await;
    }
    queue.delete().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_acked_right_before_the_end_stays_acked() {
    acked_and_left_at_once(QueueType::Classic).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_acked_to_a_quorum_queue_right_before_the_end_stays_acked() {
    acked_and_left_at_once(QueueType::Quorum).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ack_settles_only_its_own() {
    let queue = Queue::new().await;
    queue.publish(0..10).await;
    let transport = queue.consumer().await;
    let mut held = receive(&transport, 10).await;
    // The last one: an ack of several would take all before it along.
    ack(&transport, held.split_off(9)).await;
    transport.close(Duration::from_secs(5)).await.unwrap();
    drop(held);
    let next = queue.consumer().await;
    let again = receive(&next, 9).await;
    let mut left: Vec<u32> = again.iter().map(number).collect();
    left.sort_unstable();
    assert_eq!(left, (0..9).collect::<Vec<_>>());
    quiet(&next, Duration::from_millis(300)).await;
    queue.delete().await;
}

/// What is acked behind a message that is held takes room at the broker until it is told, which it is soon.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_held_for_long_does_not_hold_up_the_others() {
    let queue = Queue::new().await;
    queue.publish(0..1_000).await;
    let transport = queue.consumer().await;
    let room = Capacity { messages: 10, bytes: usize::MAX };
    let mut first = transport.receive(room).await.unwrap();
    let held = first.remove(0);
    ack(&transport, first).await;
    let started = Instant::now();
    // Were each ack kept for as long as it may be, this would take 20 seconds.
    let mut last = 0;
    while last < 999 {
        let more = transport.receive(Capacity { messages: 9, bytes: usize::MAX }).await.unwrap();
        last = more.iter().map(number).max().unwrap_or(0).max(last);
        ack(&transport, more).await;
    }
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
    ack(&transport, vec![held]).await;
    empty(&queue, transport).await;
    queue.delete().await;
}
