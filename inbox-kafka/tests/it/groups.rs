//! Members that come and go.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use inbox_core::{Delivery, Transport, TransportErrorKind};
use inbox_kafka::KafkaTransport;
use rdkafka::{
    ClientConfig,
    consumer::{BaseConsumer, Consumer},
};
use tokio::task::JoinSet;

use crate::support::{Topic, ack, at_most, drain, number, receive, until};

/// What each member has seen: how often a number was handed over and acked.
#[derive(Default)]
struct Ledger {
    handed: BTreeMap<u32, u32>,
    acked: BTreeSet<u32>,
}

/// Receives and acks in random order, holding some back for a while, as lanes do. Honours sessions that end.
async fn work(transport: Arc<KafkaTransport>, ledger: Arc<Mutex<Ledger>>, seed: u32) {
    let mut held: Vec<Delivery> = Vec::new();
    let mut state = seed;
    loop {
        match tokio::time::timeout(Duration::from_millis(20), transport.receive(at_most(17))).await {
            Ok(Ok(deliveries)) => {
                let mut ledger = ledger.lock().expect("not poisoned");
                for delivery in &deliveries {
                    *ledger.handed.entry(number(delivery)).or_default() += 1;
                }
                held.extend(deliveries);
            }
            Ok(Err(error)) => {
                assert_eq!(error.kind(), TransportErrorKind::Closed);
                return;
            }
            Err(_) => {}
        }
        held.retain(|delivery| !delivery.receipt.session().is_lost());
        let mut batch = Vec::new();
        while held.len() > 40 || (!held.is_empty() && !state.is_multiple_of(3)) {
            state = state.wrapping_mul(1_103_515_245).wrapping_add(12_345);
            batch.push(held.swap_remove((state >> 16) as usize % held.len()));
        }
        state = state.wrapping_add(1);
        for delivery in batch {
            let n = number(&delivery);
            // One by one: the answer says how many were lost, not which.
            let acked = transport.ack(vec![delivery.receipt]).await.expect("acked");
            if acked.lost == 0 {
                ledger.lock().expect("not poisoned").acked.insert(n);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_come_and_go_under_load_and_nothing_is_lost() {
    const TOTAL: u32 = 6_000;
    let topic = Topic::new(6).await;
    let ledger = Arc::new(Mutex::new(Ledger::default()));
    let mut tasks = JoinSet::new();
    let join = async |tasks: &mut JoinSet<()>, seed| {
        let member = Arc::new(topic.member("revoke_timeout=2s&prefetch=50").await);
        let task = tasks.spawn(work(Arc::clone(&member), Arc::clone(&ledger), seed));
        (member, task)
    };
    let mut members = vec![join(&mut tasks, 1).await];
    for round in 0..6_u32 {
        topic.publish(round * TOTAL / 6..(round + 1) * TOTAL / 6, 101).await;
        match round {
            0 | 1 | 3 => members.push(join(&mut tasks, round + 2).await),
            // Most often in the middle of a rebalance, and before it was given any partition.
            2 => members.remove(1).0.close(Duration::from_secs(10)).await.expect("closed"),
            // Without a close, while it holds receipts.
            4 => members.remove(0).1.abort(),
            _ => {}
        }
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
    // The default session lasts 45 s: in less than that, nobody has waited for a member that was gone.
    until("every number was acked", async || ledger.lock().expect("not poisoned").acked.len() == TOTAL as usize).await;
    until("the lag reaches 0", async || topic.lag().await == 0).await;
    for (member, _) in members {
        member.close(Duration::from_secs(10)).await.expect("closed");
    }
    while let Some(ended) = tasks.join_next().await {
        assert!(ended.is_ok() || ended.is_err_and(|error| error.is_cancelled()), "no worker failed");
    }
    let (handed, again) = {
        let ledger = ledger.lock().expect("not poisoned");
        (ledger.handed.len(), ledger.handed.values().filter(|times| **times > 1).count())
    };
    assert_eq!(handed, TOTAL as usize);
    println!("{again} of {TOTAL} were handed over more than once");
    let last = topic.member("").await;
    crate::support::quiet(&last, Duration::from_secs(4)).await;
}

/// The members that the broker knows of.
fn members_of(group: &str) -> usize {
    let client: BaseConsumer =
        ClientConfig::new().set("bootstrap.servers", crate::support::hosts()).create().expect("a client");
    let list = client.fetch_group_list(Some(group), Duration::from_secs(10)).expect("a list");
    list.groups().iter().map(|group| group.members().len()).sum()
}

#[tokio::test]
async fn a_member_without_partitions_leaves_at_once_too() {
    let topic = Topic::new(1).await;
    topic.publish(0..3, 1).await;
    let one = topic.member("").await;
    let deliveries = receive(&one, 3).await;
    ack(&one, deliveries).await;
    let group = format!("{}-g", topic.name);
    // Closed in the middle of its first rebalance, and after it.
    for time in [0, 400, 5_000] {
        let idle = topic.member("").await;
        tokio::time::sleep(Duration::from_millis(time)).await;
        idle.close(Duration::from_secs(10)).await.expect("closed");
        assert_eq!(members_of(&group), 1, "closed after {time} ms");
    }
    let idle = topic.member("").await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(members_of(&group), 2);
    drop(idle);
    until("the dropped member has left", async || members_of(&group) == 1).await;
}

#[tokio::test]
async fn each_offset_is_acked_before_the_committed_offset_passes_it() {
    let topic = Topic::new(1).await;
    topic.publish(0..200, 1).await;
    let mut acked: BTreeSet<u32> = BTreeSet::new();
    let (mut state, mut expected) = (7_u32, 0);
    // Each life acks some in random order and ends; the next one starts at the first that the life before did not ack.
    for life in 0..8 {
        let transport = topic.member("").await;
        let first = receive(&transport, 1).await;
        let start = number(&first[0]);
        assert!((0..start).all(|n| acked.contains(&n)), "life {life} starts at {start}, and not all below was acked");
        assert_eq!(start, expected, "what could be committed was, by close");
        let mut held = first;
        held.extend(receive(&transport, 40.min(199 - start as usize)).await);
        let mut batch = Vec::new();
        for _ in 0..held.len() * 3 / 4 {
            state = state.wrapping_mul(1_103_515_245).wrapping_add(12_345);
            batch.push(held.swap_remove((state >> 16) as usize % held.len()));
        }
        acked.extend(batch.iter().map(number));
        ack(&transport, batch).await;
        expected = held.iter().map(number).min().expect("a quarter is held");
        transport.close(Duration::from_secs(10)).await.expect("closed");
    }
}

#[tokio::test]
async fn a_member_that_stops_acking_and_is_dropped_leaves_the_rest_to_others() {
    let topic = Topic::new(4).await;
    topic.publish(0..100, 23).await;
    let stuck = topic.member("").await;
    let held = receive(&stuck, 100).await;
    let other = topic.member("").await;
    let started = Instant::now();
    drop(stuck);
    assert!(started.elapsed() < Duration::from_millis(50), "dropping does not wait: {:?}", started.elapsed());
    let seen = drain(&other, 100).await;
    assert_eq!(seen.len(), 100);
    assert!(held.iter().all(|delivery| delivery.receipt.session().is_lost()));
    other.close(Duration::from_secs(10)).await.expect("closed");
    assert_eq!(topic.lag().await, 0);
}

#[tokio::test]
async fn a_revoke_waits_for_acks_and_then_nothing_comes_twice() {
    let topic = Topic::new(4).await;
    topic.publish(0..200, 31).await;
    // Without commits in the background, so that only the revoke can have committed.
    let one = topic.member("revoke_timeout=10s&kafka.auto.commit.interval.ms=600000").await;
    let held = receive(&one, 200).await;
    let two = topic.member("").await;
    let ending = async {
        loop {
            if held.iter().any(|delivery| delivery.receipt.session().is_ending()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), ending).await.expect("a revoke begins");
    let lost: Vec<bool> = held.iter().map(|delivery| delivery.receipt.session().is_lost()).collect();
    assert!(lost.iter().all(|lost| !lost), "ending, not lost");
    // Acked late, within the time that a revoke waits.
    tokio::time::sleep(Duration::from_millis(500)).await;
    ack(&one, held).await;
    topic.publish(200..300, 31).await;
    let (mut from_one, mut from_two) = (Vec::new(), Vec::new());
    while from_one.len() + from_two.len() < 100 {
        tokio::select! {
            deliveries = one.receive(at_most(10)) => from_one.extend(deliveries.expect("received")),
            deliveries = two.receive(at_most(10)) => from_two.extend(deliveries.expect("received")),
            () = tokio::time::sleep(Duration::from_secs(20)) => panic!("{} + {}", from_one.len(), from_two.len()),
        }
    }
    let all: Vec<u32> = from_one.iter().chain(&from_two).map(number).collect();
    assert!(all.iter().all(|n| *n >= 200), "what was acked during the revoke was committed by it: {all:?}");
    assert!(!from_two.is_empty(), "the partitions are shared");
    ack(&one, from_one).await;
    ack(&two, from_two).await;
}

#[tokio::test]
async fn an_ack_after_the_revoke_timeout_is_lost_and_the_new_owner_has_the_message() {
    let topic = Topic::new(2).await;
    topic.publish(0..40, 17).await;
    let one = topic.member("revoke_timeout=500ms").await;
    let held = receive(&one, 40).await;
    let two = topic.member("").await;
    let theirs = receive(&two, 1).await;
    let moved: BTreeSet<u32> =
        held.iter().filter(|delivery| delivery.receipt.session().is_lost()).map(number).collect();
    assert!(!moved.is_empty() && moved.len() < 40, "one partition of two has moved: {}", moved.len());
    assert!(theirs.iter().all(|delivery| moved.contains(&number(delivery))));
    let acked = one.ack(held.into_iter().map(|delivery| delivery.receipt).collect()).await.expect("no error");
    assert_eq!((acked.acked, acked.lost), (40 - moved.len(), moved.len()));
    let mut seen: BTreeSet<u32> = theirs.iter().map(number).collect();
    ack(&two, theirs).await;
    while seen.len() < moved.len() {
        let more = receive(&two, 1).await;
        seen.extend(more.iter().map(number));
        ack(&two, more).await;
    }
    assert_eq!(seen, moved, "the zombie's acks moved nothing");
    until("the lag reaches 0", async || topic.lag().await == 0).await;
}

#[tokio::test]
async fn static_members_come_back_to_their_partitions() {
    let topic = Topic::new(2).await;
    topic.publish(0..20, 7).await;
    let query = "instance=pod-0&session_timeout=6s";
    let transport = topic.member(query).await;
    let deliveries = receive(&transport, 20).await;
    ack(&transport, deliveries).await;
    transport.close(Duration::from_secs(10)).await.expect("closed");
    assert_eq!(topic.lag().await, 0, "close commits, though it does not leave the group");
    let again = topic.member(query).await;
    topic.publish(20..30, 7).await;
    let deliveries = receive(&again, 10).await;
    assert!(deliveries.iter().all(|delivery| number(delivery) >= 20));
}

#[tokio::test]
async fn two_processes_with_one_instance_name() {
    let topic = Topic::new(1).await;
    topic.publish(0..1, 1).await;
    let first = topic.member("instance=pod-0&session_timeout=6s").await;
    let held = receive(&first, 1).await;
    let second = topic.member("instance=pod-0&session_timeout=6s").await;
    assert_eq!(receive(&second, 1).await.len(), 1);
    let error = loop {
        match tokio::time::timeout(Duration::from_secs(20), first.receive(at_most(1))).await.expect("in time") {
            Ok(deliveries) => drop(deliveries),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), TransportErrorKind::InvalidConfig, "{}", inbox_core::report(&error));
    assert!(inbox_core::report(&error).contains("fenced"), "{}", inbox_core::report(&error));
    let lost = tokio::time::timeout(Duration::from_secs(10), held[0].receipt.session().lost()).await;
    lost.expect("somebody else owns it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_whose_members_share_in_another_way() {
    let topic = Topic::new(2).await;
    let range: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", crate::support::hosts())
        .set("group.id", format!("{}-g", topic.name))
        .set("partition.assignment.strategy", "range")
        .create()
        .expect("a consumer");
    range.subscribe(&[&topic.name]).expect("subscribed");
    let deadline = Instant::now() + Duration::from_secs(20);
    while range.assignment().expect("an assignment").count() == 0 {
        assert!(Instant::now() < deadline);
        drop(range.poll(Duration::from_millis(100)));
    }
    let ours = topic.member("").await;
    let error = tokio::time::timeout(Duration::from_secs(20), ours.receive(at_most(1))).await;
    let error = error.expect("in time").expect_err("cannot join");
    assert_eq!(error.kind(), TransportErrorKind::InvalidConfig, "{}", inbox_core::report(&error));
}

#[tokio::test]
async fn two_topics_of_one_url() {
    let one = Topic::new(2).await;
    let two = Topic::new(2).await;
    one.publish(0..20, 5).await;
    two.publish(20..40, 5).await;
    let url = format!("{}/{},{}?group={}-g", crate::support::broker(), one.name, two.name, one.name);
    let transport = inbox_kafka::connect(&url).await.expect("connected");
    let deliveries = receive(&transport, 40).await;
    let places: BTreeSet<(String, u64)> = deliveries
        .iter()
        .map(|delivery| (delivery.source.name.to_string(), delivery.partition.expect("a partition")))
        .collect();
    let numbers: BTreeSet<u64> = places.iter().map(|(_, number)| *number).collect();
    assert_eq!(places.len(), numbers.len(), "one number never means two partitions: {places:?}");
    ack(&transport, deliveries).await;
    transport.close(Duration::from_secs(10)).await.expect("closed");
    assert_eq!(inbox_kafka::group_lag(&url).await.expect("a lag"), 0);
    assert_eq!(inbox_kafka::count_records(&url).await.expect("a count"), 40);
}
