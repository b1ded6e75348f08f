//! The service goes away and comes back.

use std::{sync::Arc, time::Duration};

use inbox_core::{Publisher, Transport, TransportErrorKind, memory::MemoryStore, report};

use crate::support::{Act, Proxy, Running, Topic, ack, at_most, numbered, numbers, receive, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_is_gone_for_a_while() {
    let topic = Topic::new("").await;
    let mut proxy = Proxy::start().await;
    let url = topic.url_at(&proxy.address.to_string());
    let transport = inbox_pubsub::connect(&url).await.expect("connected");
    let publisher = inbox_pubsub::publisher(&format!("{url}&publish_timeout=2s")).await.expect("a publisher");
    topic.publish(0..10, 5).await;
    let held = receive(&transport, 10).await;
    assert!(transport.connected());
    proxy.cut().await;
    until("it is noticed", async || !transport.connected()).await;
    let waited = tokio::time::timeout(Duration::from_secs(1), transport.receive(at_most(1))).await;
    assert!(waited.is_err(), "receive waits: {waited:?}");
    let refused = publisher.publish(vec![numbered(10, 5)]).await.remove(0).expect_err("nobody is there");
    assert_eq!(refused.kind(), TransportErrorKind::Unavailable, "{}", report(&refused));
    proxy.mend().await;
    until("it is back", async || transport.connected()).await;
    // The key that failed may be published again.
    until("it publishes", async || publisher.publish(vec![numbered(10, 5)]).await.remove(0).is_ok()).await;
    // The leases were not ended by the broken stream: within ten seconds they are extended again, or the messages come
    // again, to be found done.
    ack(&transport, held).await;
    let mut seen = Vec::new();
    while !seen.contains(&10) {
        let again = receive(&transport, 1).await;
        seen.extend(numbers(&again));
        ack(&transport, again).await;
    }
    until("all is acked", async || {
        if let Ok(Ok(more)) = tokio::time::timeout(Duration::from_millis(200), transport.receive(at_most(10))).await {
            ack(&transport, more).await;
        }
        topic.backlog().await == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_inbox_goes_on_behind_an_unsteady_connection() {
    let topic = Topic::new("").await;
    let mut proxy = Proxy::start().await;
    let transport = inbox_pubsub::connect(&topic.url_at(&proxy.address.to_string())).await.expect("connected");
    let decide: crate::support::Decide = Arc::new(|_| Act::Sleep(Duration::from_millis(2)));
    let running = Running::start(transport, MemoryStore::default(), 100, decide);
    for part in 0..5 {
        topic.publish(part * 200..(part + 1) * 200, 10).await;
        tokio::time::sleep(Duration::from_millis(150)).await;
        proxy.cut().await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        proxy.mend().await;
    }
    until("all is acked", async || topic.backlog().await == 0).await;
    let store = running.stop().await;
    for key in 0..10 {
        let mut numbers: Vec<u32> =
            store.log(&format!("key-{key}")).iter().map(|n| n.parse().expect("a number")).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..100).map(|n| n * 10 + key).collect::<Vec<u32>>(), "each effect of key {key} once");
    }
}

/// The consumer outlives its subscription if it is made again soon; what the old one held is nobody's any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_that_is_made_again_is_consumed_again() {
    let topic = Topic::new("").await;
    let decide: crate::support::Decide =
        Arc::new(|n| if n == 10 { Act::Sleep(Duration::from_secs(3)) } else { Act::Succeed });
    let running = Running::start(topic.connect().await, MemoryStore::default(), 100, decide);
    topic.publish(0..10, 5).await;
    until("all is acked", async || topic.backlog().await == 0).await;
    // One runs while its subscription goes.
    topic.publish(10..11, 5).await;
    until("it is under way", async || running.handle.numbers().received == 11).await;
    topic.delete_subscription().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    inbox_pubsub::provision(&topic.url()).await.expect("made again");
    topic.publish(11..50, 5).await;
    until("all is acked", async || running.handle.numbers().applied == 50).await;
    until("nothing is left", async || counted(&topic).await == 0).await;
    let store = running.stop().await;
    for key in 0..5 {
        let expected: Vec<String> = (0..10).map(|n| (n * 5 + key).to_string()).collect();
        assert_eq!(store.log(&format!("key-{key}")), expected, "key {key}");
    }
}

/// What the subscription has that is not leased.
async fn counted(topic: &Topic) -> u64 {
    inbox_pubsub::count_messages(&topic.url()).await.expect("counted")
}
