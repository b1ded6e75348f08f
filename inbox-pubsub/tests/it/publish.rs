//! The publisher against the emulator.

use std::time::Duration;

use inbox_core::{Bytes, Message, Publisher, TransportErrorKind, report};

use crate::support::{Topic, ack, numbered, receive};

#[tokio::test]
async fn what_is_published_comes_as_it_was() {
    let topic = Topic::new("").await;
    let publisher = inbox_pubsub::publisher(&topic.url()).await.expect("a publisher");
    let full = Message::new(Bytes::from_static(b"\x00\xff{}"))
        .id("order-1")
        .kind("payment.captured")
        .key(&b"\x01\xffkey"[..])
        .header("Trace", "x")
        .header("trace", &b"\xff\x00"[..])
        .header("empty", "")
        .produced_at(std::time::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123));
    let bare = Message::new(Bytes::new());
    for result in publisher.publish(vec![full.clone(), bare]).await {
        result.expect("published");
    }
    let transport = topic.connect().await;
    let deliveries = receive(&transport, 2).await;
    let of = |full: bool| deliveries.iter().find(|d| d.message.id.is_some() == full).expect("came");
    let got = &of(true).message;
    assert_eq!((&got.body, &got.id, &got.kind, &got.key), (&full.body, &full.id, &full.kind, &full.key));
    assert_eq!(got.produced_at, full.produced_at);
    assert!(got.stored_at.is_some());
    let own = |name: &str| name.starts_with("message-");
    let theirs: Vec<(&str, &Bytes)> = got.headers.iter().filter(|(name, _)| !own(name)).collect();
    assert_eq!(theirs, full.headers.iter().collect::<Vec<_>>());
    let source = &of(true).source;
    assert!(source.name.ends_with(&topic.name) && source.coordinates.is_some(), "{source:?}");
    let got = &of(false).message;
    assert!(
        got.body.is_empty() && got.id.is_none() && got.kind.is_none() && got.key.is_none() && got.headers.is_empty()
    );
    ack(&transport, deliveries).await;
}

#[tokio::test]
async fn one_that_is_too_large_is_refused_alone_and_its_key_goes_on() {
    let topic = Topic::new("").await;
    let publisher = inbox_pubsub::publisher(&topic.url()).await.expect("a publisher");
    let large = |size: usize| Message::new(Bytes::from(vec![b'x'; size])).key("key-0");
    let answers = publisher.publish(vec![numbered(0, 1), large(10_000_001), large(5_000_000), numbered(1, 1)]).await;
    let kinds: Vec<_> = answers.iter().map(|answer| answer.as_ref().err().map(|error| error.kind())).collect();
    assert_eq!(kinds, [None, Some(TransportErrorKind::TooLarge), None, None], "{answers:?}");
    publisher.close(Duration::from_secs(10)).await.expect("closed");
    let closed = publisher.publish(vec![numbered(2, 1)]).await.remove(0).expect_err("closed");
    assert_eq!(closed.kind(), TransportErrorKind::Closed, "{}", report(&closed));
}

/// The client keeps a task for each key that it has seen, for ever: the publisher does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_keys_do_not_pile_up() {
    let topic = Topic::new("&ordering=false").await;
    let publisher = inbox_pubsub::publisher(&topic.url()).await.expect("a publisher");
    let mut most = 0;
    for part in 0..13_u32 {
        let messages = (part * 1_000..(part + 1) * 1_000).map(|n| numbered(n, u32::MAX)).collect();
        for answer in publisher.publish(messages).await {
            answer.expect("published");
        }
        most = most.max(tokio::runtime::Handle::current().metrics().num_alive_tasks());
    }
    let alive = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert!(most >= 10_000, "the client does pile up tasks: {most}");
    assert!(alive < 6_000, "{alive} tasks are alive");
}
