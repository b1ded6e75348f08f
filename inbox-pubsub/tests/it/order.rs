//! Order of keys and the bound on what is held, end to end.

use std::{sync::Arc, time::Duration};

use inbox_core::memory::MemoryStore;

use crate::support::{Act, Running, Topic, counts, until};

async fn keys_keep_their_order(query: &'static str, instances: usize) {
    let topic = Topic::new(query).await;
    topic.publish(0..10_000, 50).await;
    // Now and then, whatever the message: an attempt later it may succeed.
    let decide: crate::support::Decide = Arc::new(|_| if fastrand::u8(..) < 5 { Act::Fail } else { Act::Succeed });
    let store = MemoryStore::default();
    let mut running = Vec::new();
    for _ in 0..instances {
        running.push(Running::start(topic.connect().await, store.clone(), 2_000, Arc::clone(&decide)));
    }
    until("all is acked", async || topic.backlog().await == 0).await;
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
    keys_keep_their_order("", 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_keep_their_order_where_acks_are_confirmed() {
    keys_keep_their_order("&exactly_once=true", 1).await;
}

/// The emulator does not keep to a stream's limit. What this process takes in and hands out stays within the bound all the
/// same; one response of the emulator's, a hundred messages, waits in the client. How the limit is kept with a service that
/// knows it is the stub's case.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_more_is_held_than_the_bound() {
    let topic = Topic::new("&ordering=false").await;
    topic.publish(0..10_000, 1_000).await;
    let transport = Arc::new(topic.connect().await);
    let watched = Arc::clone(&transport);
    let mut most = 0;
    let mut done = 0;
    let mut held = Vec::new();
    while done < 10_000 {
        let room = 100 - held.len();
        if room > 0 && done + held.len() < 10_000 {
            let received = tokio::time::timeout(
                Duration::from_secs(30),
                inbox_core::Transport::receive(&*transport, crate::support::at_most(room)),
            );
            let received = received.await.unwrap_or_else(|_| panic!("not in time: {done} done, {transport:?}"));
            held.extend(received.expect("received"));
        }
        let (waiting, out) = counts(&watched);
        most = most.max(waiting + out);
        assert!(out <= 100 && waiting + out <= 100, "{waiting} wait and {out} are out");
        // Some, so that the bound is met again and again.
        let some = held.split_off(held.len() / 3);
        done += some.len();
        crate::support::ack(&transport, some).await;
    }
    assert!(most >= 99, "the bound was never met: {most}");
}
