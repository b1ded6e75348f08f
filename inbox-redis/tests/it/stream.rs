//! What others do to a stream while a service runs.

use std::time::Duration;

use inbox_core::{Publisher, Transport, TransportErrorKind};

use crate::support::{PATIENCE, Stream, ack, drain, numbered, receive, try_ack, until};

#[tokio::test]
async fn a_stream_that_is_deleted_and_made_again() {
    let stream = Stream::new("lease=2s").await;
    stream.publish(0..5).await;
    let transport = stream.consumer().await;
    let publisher = inbox_redis::publisher(&stream.url()).await.unwrap();
    let held = receive(&transport, 5).await;
    let session = held[0].receipt.session().clone();
    stream.delete().await;
    tokio::time::timeout(PATIENCE, session.lost()).await.expect("noticed");
    assert_eq!(try_ack(&transport, held).await, (0, 5));
    let refused = publisher.publish(vec![numbered(9)]).await.remove(0).expect_err("it is not made by publishing");
    assert_eq!(refused.kind(), TransportErrorKind::NotFound);
    let waiting = tokio::time::timeout(Duration::from_millis(300), transport.receive(crate::support::at_most(1)));
    assert!(waiting.await.is_err(), "it waits");
    until("it is known", async || !transport.connected()).await;
    // Somebody's own XADD makes it, without a group.
    stream.run::<()>("XADD {} * body 5 message-id five").await;
    stream.publish(6..10).await;
    let again = receive(&transport, 5).await;
    assert!(transport.connected());
    ack(&transport, again).await;
    assert_eq!(stream.backlog().await, 0);
    transport.close(PATIENCE).await.unwrap();
    stream.delete().await;
}

#[tokio::test]
async fn a_stream_that_is_trimmed_loses_what_was_cut() {
    let stream = Stream::new("lease=2s").await;
    stream.publish(0..10).await;
    let transport = stream.consumer().await;
    let held = receive(&transport, 4).await;
    stream.run::<()>("XTRIM {} MAXLEN 3").await;
    until("its lease is lost", async || held.iter().all(|delivery| delivery.receipt.is_ending())).await;
    assert_eq!(try_ack(&transport, held).await, (0, 4));
    // What was neither cut nor handed over comes.
    drain(&transport, 7..10).await;
    assert_eq!(stream.backlog().await, 0);
    stream.delete().await;
}

#[tokio::test]
async fn what_is_acked_is_deleted_on_request() {
    let stream = Stream::new("delete=true").await;
    stream.publish(0..10).await;
    let transport = stream.consumer().await;
    let mut held = receive(&transport, 10).await;
    let rest = held.split_off(6);
    ack(&transport, held).await;
    assert_eq!(inbox_redis::count_entries(&stream.url()).await.unwrap(), 4);
    assert_eq!(stream.backlog().await, 4, "counted, since something was deleted");
    ack(&transport, rest).await;
    assert_eq!(stream.backlog().await, 0);
    stream.delete().await;
}

#[tokio::test]
async fn trimming_leaves_what_some_group_has_not_acked() {
    let stream = Stream::new("").await;
    let other = format!("{}?stream={}&group=other", stream.server, stream.name);
    inbox_redis::provision(&other).await.unwrap();
    stream.publish(0..20).await;
    let (first, second) = (stream.consumer().await, inbox_redis::connect(&other).await.unwrap());
    ack(&first, receive(&first, 20).await).await;
    assert_eq!(inbox_redis::trim(&other).await.unwrap(), 0, "the other one has read nothing");
    let mut held = receive(&second, 12).await;
    let late = held.remove(5);
    ack(&second, held).await;
    assert_eq!(inbox_redis::trim(&other).await.unwrap(), 5);
    ack(&second, vec![late]).await;
    assert_eq!(inbox_redis::trim(&other).await.unwrap(), 6);
    ack(&second, receive(&second, 8).await).await;
    assert_eq!(inbox_redis::trim(&other).await.unwrap(), 8);
    stream.publish(20..22).await;
    ack(&first, receive(&first, 2).await).await;
    ack(&second, receive(&second, 2).await).await;
    assert_eq!((stream.backlog().await, inbox_redis::backlog(&other).await.unwrap()), (0, 0));
    stream.delete().await;
}

#[tokio::test]
async fn consumers_that_were_not_seen_for_long_are_removed() {
    let stream = Stream::new("").await;
    // None of these is old.
    for name in ["inbox-young", "other"] {
        stream.run::<()>(&format!("XGROUP CREATECONSUMER {{}} it {name}")).await;
    }
    let transport = stream.consumer().await;
    assert_eq!(stream.run::<Vec<redis::Value>>("XINFO CONSUMERS {} it").await.len(), 2);
    transport.close(PATIENCE).await.unwrap();
    stream.delete().await;
}
