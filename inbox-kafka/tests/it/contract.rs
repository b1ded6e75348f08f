//! The guarantees of the transport contract, by number.

use std::time::{Duration, UNIX_EPOCH};

use inbox_core::{Bytes, Capacity, IdText, Message, Publisher, Receipt, Transport, TransportErrorKind};

use crate::support::{Topic, ack, at_most, number, quiet, receive};

fn receipts(deliveries: Vec<inbox_core::Delivery>) -> Vec<Receipt> {
    deliveries.into_iter().map(|delivery| delivery.receipt).collect()
}

#[tokio::test]
async fn t01_t02_what_is_published_comes_as_it_was() {
    let topic = Topic::new(1).await;
    let publisher = inbox_kafka::publisher(&topic.url("")).await.expect("a publisher");
    let full = Message::new(Bytes::from_static(b"\x00\xff{}"))
        .id("order-1")
        .kind("payment.captured")
        .key(&b"\x01key"[..])
        .header("Trace", "x")
        .header("trace", &b"\xff\x00"[..])
        .header("empty", "")
        .produced_at(UNIX_EPOCH + Duration::from_millis(1_700_000_000_123));
    let bare = Message::new(Bytes::new());
    for result in publisher.publish(vec![full.clone(), bare]).await {
        result.expect("published");
    }
    let transport = topic.member("").await;
    let deliveries = receive(&transport, 2).await;
    let got = &deliveries[0].message;
    assert_eq!((&got.body, &got.id, &got.kind, &got.key), (&full.body, &full.id, &full.kind, &full.key));
    assert_eq!(got.produced_at, full.produced_at);
    let theirs: Vec<(&str, &Bytes)> = got.headers.iter().filter(|(name, _)| !name.starts_with("message-")).collect();
    assert_eq!(theirs, full.headers.iter().collect::<Vec<_>>());
    let source = &deliveries[0].source;
    assert_eq!((&*source.name, source.coordinates.as_deref()), (topic.name.as_str(), Some("0/0")));
    assert_eq!((deliveries[0].partition, deliveries[0].delivery_count, deliveries[0].suspect), (Some(0), None, false));
    let got = &deliveries[1].message;
    assert!(
        got.body.is_empty() && got.id.is_none() && got.kind.is_none() && got.key.is_none() && got.headers.is_empty()
    );
    assert!(got.produced_at.is_some(), "the client's clock");
    assert_eq!(deliveries[1].source.coordinates.as_deref(), Some("0/1"));
}

#[tokio::test]
async fn t02_other_headers_by_url() {
    let topic = Topic::new(1).await;
    let names = "id_header=x-id&kind_header=x-kind";
    let publisher = inbox_kafka::publisher(&topic.url(names)).await.expect("a publisher");
    let sent = Message::new(Bytes::new()).id("7").kind("k");
    publisher.publish(vec![sent]).await.remove(0).expect("published");
    let plain = topic.member("").await;
    assert_eq!(receive(&plain, 1).await[0].message.id, None);
    plain.close(Duration::from_secs(10)).await.expect("closed");
    let named = topic.member(names).await;
    let message = &receive(&named, 1).await[0].message;
    assert_eq!((&message.id, message.kind.as_deref()), (&Some(IdText::new("7")), Some("k")));
}

#[tokio::test]
async fn t03_t05_dropped_receipts_come_again_in_order_before_anything_new() {
    let topic = Topic::new(1).await;
    topic.publish(0..10, 1).await;
    let transport = topic.member("").await;
    let mut first = receive(&transport, 6).await;
    assert_eq!(first.iter().map(number).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    let (four, one) = (first.remove(4), first.remove(1));
    let kept = first.len();
    drop(four);
    drop(one);
    let again = receive(&transport, 6).await;
    assert_eq!(again.iter().map(number).collect::<Vec<_>>(), [1, 4, 6, 7, 8, 9]);
    assert_eq!(again[0].receipt.session().id(), first[0].receipt.session().id());
    assert_eq!(kept, 4);
    ack(&transport, again).await;
    ack(&transport, first).await;
    transport.close(Duration::from_secs(10)).await.expect("closed");
    assert_eq!(topic.lag().await, 0);
}

#[tokio::test]
async fn t04_never_more_than_the_capacity() {
    let topic = Topic::new(1).await;
    let publisher = inbox_kafka::publisher(&topic.url("")).await.expect("a publisher");
    let body = |n: usize| Message::new(Bytes::from(vec![b'x'; n]));
    let sizes = [100, 10, 10, 10, 500, 10];
    for result in publisher.publish(sizes.into_iter().map(body).collect()).await {
        result.expect("published");
    }
    let transport = topic.member("").await;
    let mut got = Vec::new();
    let mut held = Vec::new();
    while got.iter().sum::<usize>() < sizes.len() {
        let deliveries = transport.receive(Capacity { messages: 2, bytes: 40 }).await.expect("received");
        let bytes: usize = deliveries.iter().map(|delivery| delivery.message.size()).sum();
        assert!(deliveries.len() <= 2 && (bytes <= 40 || deliveries.len() == 1), "{deliveries:?}");
        got.push(deliveries.len());
        held.extend(deliveries);
    }
    let order: Vec<usize> = held.iter().map(|delivery| delivery.message.body.len()).collect();
    assert_eq!(order, sizes);
}

#[tokio::test]
async fn t06_a_dropped_receive_loses_nothing() {
    let topic = Topic::new(2).await;
    topic.publish(0..400, 7).await;
    let transport = topic.member("prefetch=7").await;
    let mut seen = Vec::new();
    let mut step = 0_u64;
    while seen.len() < 400 {
        step += 1;
        let patience = Duration::from_micros(step * 37 % 1_500);
        if let Ok(deliveries) = tokio::time::timeout(patience, transport.receive(at_most(3))).await {
            let deliveries = deliveries.expect("received");
            if step.is_multiple_of(5) {
                drop(deliveries);
            } else {
                seen.extend(deliveries.iter().map(number));
                ack(&transport, deliveries).await;
            }
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..400).collect::<Vec<_>>(), "each once, since nothing acked comes again");
    transport.close(Duration::from_secs(10)).await.expect("closed");
    assert_eq!(topic.lag().await, 0);
}

#[tokio::test]
async fn t07_after_a_restart_the_acked_do_not_come_and_the_others_do() {
    let topic = Topic::new(1).await;
    topic.publish(0..20, 1).await;
    let transport = topic.member("").await;
    let mut deliveries = receive(&transport, 20).await;
    // 0..5 and 7..20 are acked; the watermark stays at 5.
    let held: Vec<_> = deliveries.drain(5..7).collect();
    ack(&transport, deliveries).await;
    transport.close(Duration::from_secs(10)).await.expect("closed");
    assert!(held[0].receipt.session().is_lost());
    assert_eq!(topic.lag().await, 15);
    let acked = transport.ack(receipts(held)).await.expect("no error");
    assert_eq!((acked.acked, acked.lost), (0, 2), "t08: a lost session is counted");
    let next = topic.member("").await;
    let again = receive(&next, 15).await;
    assert_eq!(again.iter().map(number).collect::<Vec<_>>(), (5..20).collect::<Vec<_>>());
    ack(&next, again).await;
    next.close(Duration::from_secs(10)).await.expect("closed");
    let last = topic.member("").await;
    quiet(&last, Duration::from_secs(4)).await;
}

#[tokio::test]
async fn t07_acks_are_committed_while_running() {
    let topic = Topic::new(4).await;
    topic.publish(0..100, 13).await;
    let transport = topic.member("").await;
    let deliveries = receive(&transport, 100).await;
    ack(&transport, deliveries).await;
    // Nobody receives now: acking needs neither `receive` nor the caller of it.
    crate::support::until("the lag reaches 0", async || topic.lag().await == 0).await;
    assert!(transport.connected());
}

#[tokio::test]
async fn t09_released_deliveries_come_again() {
    let topic = Topic::new(1).await;
    topic.publish(0..6, 1).await;
    let transport = topic.member("").await;
    let mut deliveries = receive(&transport, 4).await;
    deliveries.reverse();
    transport.release(receipts(deliveries)).await.expect("released");
    let again = receive(&transport, 6).await;
    assert_eq!(again.iter().map(number).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    ack(&transport, again).await;
}

#[tokio::test]
async fn t09_release_wakes_a_receive_that_waits() {
    let topic = Topic::new(1).await;
    topic.publish(0..1, 1).await;
    let transport = topic.member("").await;
    let held = receive(&transport, 1).await;
    let waiting = transport.receive(at_most(1));
    let give_back = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        drop(held);
    };
    let (deliveries, ()) = tokio::join!(waiting, give_back);
    assert_eq!(deliveries.expect("received").len(), 1);
}

#[tokio::test]
async fn t10_close_ends_a_receive_and_gives_back_what_is_held() {
    let topic = Topic::new(1).await;
    topic.publish(0..3, 1).await;
    let transport = topic.member("").await;
    let held = receive(&transport, 3).await;
    let close = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        transport.close(Duration::from_secs(10)).await
    };
    let (received, closed) = tokio::join!(transport.receive(at_most(1)), close);
    closed.expect("closed");
    assert_eq!(received.expect_err("closed").kind(), TransportErrorKind::Closed);
    let later = transport.receive(at_most(1)).await.expect_err("closed");
    assert_eq!(later.kind(), TransportErrorKind::Closed);
    transport.close(Duration::from_secs(1)).await.expect("twice is fine");
    assert!(held.iter().all(|delivery| delivery.receipt.session().is_lost()));
    let other = topic.member("").await;
    assert_eq!(receive(&other, 3).await.len(), 3, "others get it at once");
}

#[tokio::test]
async fn a_waiting_receive_wakes_up() {
    let topic = Topic::new(1).await;
    let transport = topic.member("").await;
    let publish = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        topic.publish(0..1, 1).await;
    };
    let (deliveries, ()) = tokio::join!(receive(&transport, 1), publish);
    ack(&transport, deliveries).await;
}

#[tokio::test]
async fn what_kafka_promises() {
    let topic = Topic::new(1).await;
    let transport = topic.member("").await;
    let capabilities = transport.capabilities();
    assert_eq!(capabilities.name, "kafka");
    assert!(capabilities.exclusive_keys && capabilities.durable && !capabilities.delivery_count);
    let age = transport.max_age().await.expect("an age");
    // The defaults of Kafka 4: 7 days, a segment of 7 days, an hour ahead, five minutes between looks.
    let hours = Duration::from_secs(3_600);
    assert_eq!(age, inbox_core::capability::MaxAge::AtMost(hours * (14 * 24 + 1) + Duration::from_secs(300)));
}
