//! What the real service does and the emulator does not: against the stand-in.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use inbox_core::{Publisher, Transport, TransportErrorKind, memory::MemoryStore, report};

use crate::{
    standin::NOT_FOUND,
    stub::{PERMISSION_DENIED, Stub, UNAVAILABLE},
    support::{Act, Running, ack, at_most, counts, numbered, numbers, receipts, receive, until},
};

/// 10,000 messages, and at no time more than the bound is outstanding at the service: handed out, waiting here, waiting in
/// the client and on the way together. By one stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bound_of_the_inbox_is_the_services_limit() {
    let stub = Stub::start().await;
    stub.fill(0..10_000, 50);
    let decide: crate::support::Decide = Arc::new(|_| Act::Succeed);
    let transport = inbox_pubsub::connect(&stub.url("")).await.expect("connected");
    let running = Running::start(transport, MemoryStore::default(), 100, decide);
    until("all is acked", async || stub.seen().acked.len() == 10_000).await;
    let store = running.stop().await;
    for key in 0..50 {
        let expected: Vec<String> = (0..200).map(|n| (n * 50 + key).to_string()).collect();
        assert_eq!(store.log(&format!("k{key}")), expected, "key {key}");
    }
    let seen = stub.seen();
    assert_eq!((seen.most_out, seen.pulls.len()), (100, 1));
    let pull = &seen.pulls[0];
    assert_eq!(pull.subscription, "projects/p/subscriptions/sub");
    assert_eq!((pull.max_outstanding_messages, pull.ack_deadline_seconds), (100, 10));
    assert!(pull.max_outstanding_bytes >= 10_000_000 && !pull.client_id.is_empty(), "{pull:?}");
    for call in ["StreamingPull", "Acknowledge"] {
        assert_eq!(seen.routing_of(call), Some("subscription=projects/p/subscriptions/sub"), "{call}");
    }
}

/// What is out and what only waits here alike.
#[tokio::test]
async fn leases_are_extended_for_everything_that_is_held() {
    let stub = Stub::start().await;
    stub.fill(0..20, 5);
    let transport = inbox_pubsub::connect(&stub.url("")).await.expect("connected");
    let held = transport.receive(at_most(20)).await.expect("received");
    until("the rest waits", async || counts(&transport) == (20 - held.len(), held.len())).await;
    // Each twice, so that nothing was left out the second time.
    let extended = || stub.seen().extended.iter().map(|(_, ids)| ids).sum::<usize>();
    until("all were extended twice", async || extended() >= 40).await;
    let seen = stub.seen();
    assert!(seen.extended.iter().all(|(seconds, ids)| *seconds == 10 && *ids <= 20), "{:?}", seen.extended);
    assert!(seen.nacked.is_empty(), "{:?}", seen.nacked);
    assert_eq!(seen.routing_of("ModifyAckDeadline"), Some("subscription=projects/p/subscriptions/sub"));
    assert!(held.iter().all(|delivery| !delivery.receipt.is_ending()));
}

/// Whoever holds all that a stream may deliver and asks for more gets a stream with a larger limit.
#[tokio::test]
async fn the_limit_grows_with_what_is_asked_for() {
    let stub = Stub::start().await;
    stub.fill(0..200, 7);
    let transport = inbox_pubsub::connect(&stub.url("")).await.expect("connected");
    let mut held = Vec::new();
    while held.len() < 200 {
        let more = tokio::time::timeout(Duration::from_secs(10), transport.receive(at_most(7))).await;
        held.extend(more.expect("in time").expect("received"));
    }
    let mut all = numbers(&held);
    all.sort_unstable();
    assert_eq!(all, (0..200).collect::<Vec<u32>>(), "each once");
    ack(&transport, held).await;
    until("all is acked", async || stub.seen().acked.len() == 200).await;
    let limits: Vec<i64> = stub.seen().pulls.iter().map(|pull| pull.max_outstanding_messages).collect();
    assert_eq!(limits[0], 7);
    assert!(limits.windows(2).all(|two| two[1] >= two[0] * 2) && limits.len() <= 6, "{limits:?}");
    assert!(stub.seen().nacked.is_empty(), "{:?}", stub.seen().nacked);
}

#[tokio::test]
async fn a_delivery_is_counted_where_the_service_counts() {
    let stub = Stub::start().await;
    stub.fill(0..1, 1);
    let transport = inbox_pubsub::connect(&stub.url("")).await.expect("connected");
    let first = receive(&transport, 1).await;
    assert_eq!(first[0].delivery_count, Some(1));
    transport.close(Duration::from_secs(10)).await.expect("closed");
    assert_eq!(stub.seen().nacked, ["0"], "given back at once");
    let transport = inbox_pubsub::connect(&stub.url("")).await.expect("connected");
    assert_eq!(receive(&transport, 1).await[0].delivery_count, Some(2));
}

/// Nobody takes it up here: the service gets it, and in the order of delivery.
#[tokio::test]
async fn what_is_given_back_goes_to_the_service_after_a_while() {
    let stub = Stub::start().await;
    stub.fill(0..8, 2);
    let transport = inbox_pubsub::connect(&stub.url("")).await.expect("connected");
    let mut held = receive(&transport, 8).await;
    // 2 of key 0; 4 and 6 are behind it, and 6 is dropped at once, 4 later.
    let (six, four, two) = (held.remove(6), held.remove(4), held.remove(2));
    transport.release(vec![six.receipt, two.receipt]).await.expect("released");
    until("they are given back", async || stub.seen().nacked.len() == 2).await;
    assert_eq!(stub.seen().nacked, ["2", "6"]);
    // What is behind them is stale by now: it is not handed over again here before them.
    drop(four);
    until("so is what follows", async || stub.seen().nacked.len() == 3).await;
    assert_eq!(stub.seen().nacked, ["2", "6", "4"]);
    ack(&transport, held).await;
}

#[tokio::test]
async fn an_acknowledgement_that_is_not_confirmed_is_lost() {
    let stub = Stub::exactly_once().await;
    stub.seen().refuse_acks = Some(b'3');
    stub.fill(0..10, 10);
    let transport = inbox_pubsub::connect(&stub.url("&exactly_once=true")).await.expect("connected");
    let held = receive(&transport, 10).await;
    let acked = transport.ack(receipts(held)).await.expect("no error");
    assert_eq!((acked.acked, acked.lost), (9, 1));
    assert_eq!(stub.seen().acked.len(), 9);
}

#[tokio::test]
async fn a_stream_that_ends_is_opened_again_and_its_receipts_stay_good() {
    let stub = Stub::start().await;
    stub.fill(0..5, 1);
    let transport = inbox_pubsub::connect(&stub.url("")).await.expect("connected");
    // With room for more: a full consumer does not look at its stream.
    let mut held = Vec::new();
    while held.len() < 5 {
        held.extend(transport.receive(at_most(10)).await.expect("received"));
    }
    stub.seen().refuse_streams = Some(UNAVAILABLE);
    until("it is tried again", async || stub.seen().pulls.len() >= 3).await;
    assert!(held.iter().all(|delivery| !delivery.receipt.is_ending()));
    ack(&transport, held).await;
    until("they are acked", async || stub.seen().acked.len() == 5).await;
    stub.seen().refuse_streams = None;
    stub.fill(5..6, 1);
    let next = receive(&transport, 1).await;
    assert_eq!(numbers(&next), [5]);
}

/// A refusal may pass: only one that lasts ends the consumer.
#[tokio::test]
async fn a_subscription_that_was_deleted_is_said_after_a_while() {
    for (code, kind) in
        [(NOT_FOUND, TransportErrorKind::NotFound), (PERMISSION_DENIED, TransportErrorKind::Unauthorized)]
    {
        let stub = Stub::start().await;
        stub.seen().refuse_streams = Some(code);
        let transport = inbox_pubsub::connect(&stub.url("&connect_timeout=2s")).await.expect("connected");
        let waited = tokio::time::timeout(Duration::from_secs(1), transport.receive(at_most(1))).await;
        assert!(waited.is_err(), "not yet: {waited:?}");
        let error = transport.receive(at_most(1)).await.expect_err("refused for good");
        assert_eq!(error.kind(), kind, "{}", report(&error));
        assert!(report(&error).contains("projects/p/subscriptions/sub"), "{}", report(&error));
        assert!(!transport.connected());
        transport.close(Duration::from_secs(5)).await.expect("closed");
    }
}

#[tokio::test]
async fn a_missing_permission_is_named() {
    let stub = Stub::start().await;
    stub.seen().refuse_get = Some((403, "PERMISSION_DENIED"));
    let error = inbox_pubsub::connect(&stub.url("")).await.expect_err("refused");
    assert_eq!(error.kind(), TransportErrorKind::Unauthorized, "{}", report(&error));
    assert!(report(&error).contains("`pubsub.subscriptions.get`"), "{}", report(&error));
    // One that comes later is unknown, and no reason to stop.
    stub.seen().refuse_get = None;
    let transport = inbox_pubsub::connect(&stub.url("")).await.expect("connected");
    stub.seen().refuse_get = Some((403, "PERMISSION_DENIED"));
    assert_eq!(transport.max_age().await.ok(), Some(inbox_core::capability::MaxAge::Unknown));
}

#[tokio::test]
async fn publishing_by_key_pauses_at_an_error_and_goes_on() {
    let stub = Stub::start().await;
    let publisher = inbox_pubsub::publisher(&stub.url("&publish_timeout=1s")).await.expect("a publisher");
    stub.seen().refuse_publish = Some(UNAVAILABLE);
    let answers = publisher.publish((0..4).map(|n| numbered(n, 2)).collect()).await;
    for answer in answers {
        assert_eq!(answer.expect_err("refused").kind(), TransportErrorKind::Unavailable);
    }
    stub.seen().refuse_publish = Some(3);
    let error = publisher.publish(vec![numbered(9, 2)]).await.remove(0).expect_err("refused");
    assert_eq!(error.kind(), TransportErrorKind::Rejected, "the message's fault: {}", report(&error));
    stub.seen().refuse_publish = None;
    for answer in publisher.publish((0..4).map(|n| numbered(n, 2)).collect()).await {
        answer.expect("published");
    }
    let seen = stub.seen();
    assert_eq!(seen.routing_of("Publish"), Some("topic=projects/p/topics/top"));
    for key in 0..2 {
        let of_key = seen.published.iter().flat_map(|request| &request.messages);
        let of_key = of_key.filter(|message| message.ordering_key == format!("key-{key}"));
        let bodies: Vec<&[u8]> = of_key.map(|message| &message.data[..]).collect();
        assert_eq!(bodies, [key.to_string().as_bytes(), (key + 2).to_string().as_bytes()]);
    }
    let message = &seen.published[0].messages[0];
    assert!(seen.published[0].topic == "projects/p/topics/top" && message.attributes.contains_key("message-id"));
}

/// What runs when the transport is dropped without a word is given back all the same.
#[tokio::test]
async fn a_transport_that_is_dropped_gives_back() {
    let stub = Stub::start().await;
    stub.fill(0..5, 1);
    let transport = inbox_pubsub::connect(&stub.url("")).await.expect("connected");
    let held = Mutex::new(receive(&transport, 3).await);
    drop(transport);
    until("all is given back", async || stub.seen().nacked.len() >= 3).await;
    let nacked = stub.seen().nacked.clone();
    assert!(nacked.is_sorted(), "{nacked:?}");
    drop(held);
}
