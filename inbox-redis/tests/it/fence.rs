//! Leases: extended, lost, and taken over.

use std::time::Duration;

use inbox_core::Transport;

use crate::support::{PATIENCE, Stream, ack, number, quiet, receive, some, try_ack, until};

/// Another consumer, of another kind, takes everything that is pending.
async fn steal(stream: &Stream) {
    for (id, ..) in stream.pending().await {
        stream.run::<redis::Value>(&format!("XCLAIM {{}} it thief 0 {id}")).await;
    }
}

#[tokio::test]
async fn a_handler_slower_than_the_lease_keeps_its_message() {
    let stream = Stream::new("lease=1s").await;
    stream.publish(0..3).await;
    let (slow, other) = (stream.consumer().await, stream.consumer().await);
    let held = receive(&slow, 3).await;
    quiet(&other, Duration::from_secs(4)).await;
    assert!(held.iter().all(|delivery| !delivery.receipt.is_ending()));
    ack(&slow, held).await;
    assert_eq!(stream.backlog().await, 0);
    stream.delete().await;
}

#[tokio::test]
async fn what_a_dead_process_held_is_taken_after_a_lease() {
    let stream = Stream::new("lease=1s").await;
    stream.publish(0..20).await;
    // It reads and is never heard of again.
    stream.run::<redis::Value>("XREADGROUP GROUP it dead COUNT 20 STREAMS {} >").await;
    let heir = stream.consumer().await;
    let taken = receive(&heir, 20).await;
    assert!(taken.iter().all(|delivery| delivery.delivery_count == Some(2) && delivery.suspect));
    ack(&heir, taken).await;
    assert_eq!(stream.backlog().await, 0);
    stream.delete().await;
}

#[tokio::test]
async fn an_ack_of_what_another_consumer_has_is_lost() {
    let stream = Stream::new("").await;
    stream.publish(0..4).await;
    let transport = stream.consumer().await;
    let held = receive(&transport, 4).await;
    steal(&stream).await;
    assert_eq!(try_ack(&transport, held).await, (0, 4));
    assert_eq!(stream.pending().await.len(), 4, "the thief has them");
    stream.delete().await;
}

#[tokio::test]
async fn an_ack_of_what_another_consumer_had_meanwhile_is_lost() {
    let stream = Stream::new("").await;
    stream.publish(0..1).await;
    let transport = stream.consumer().await;
    let held = receive(&transport, 1).await;
    let (id, me, ..) = stream.pending().await.remove(0);
    steal(&stream).await;
    stream.run::<redis::Value>(&format!("XCLAIM {{}} it {me} 0 {id}")).await;
    assert_eq!(try_ack(&transport, held).await, (0, 1), "it was handed over twice since");
    assert_eq!(stream.pending().await.len(), 1);
    stream.delete().await;
}

#[tokio::test]
async fn a_lost_lease_is_noticed_before_anything_is_acked() {
    let stream = Stream::new("lease=2s").await;
    stream.publish(0..2).await;
    let transport = stream.consumer().await;
    let mut held = receive(&transport, 2).await;
    let (id, ..) = stream.pending().await.remove(0);
    stream.run::<redis::Value>(&format!("XCLAIM {{}} it thief 0 {id}")).await;
    until("the loss is noticed", async || held[0].receipt.is_ending()).await;
    assert!(!held[1].receipt.is_ending() && !held[0].receipt.session().is_lost());
    let lost = held.remove(0);
    ack(&transport, held).await;
    // The thief holds it for a lease, and extends nothing.
    let again = some(&transport, 5).await;
    assert_eq!((number(&again[0]), again.len()), (number(&lost), 1));
    assert_eq!(try_ack(&transport, vec![lost]).await, (0, 1));
    ack(&transport, again).await;
    stream.delete().await;
}

#[tokio::test]
async fn a_release_of_what_another_consumer_has_takes_nothing_away() {
    let stream = Stream::new("").await;
    stream.publish(0..2).await;
    let transport = stream.consumer().await;
    let held = receive(&transport, 2).await;
    steal(&stream).await;
    transport.release(held.into_iter().map(|delivery| delivery.receipt).collect()).await.unwrap();
    transport.close(PATIENCE).await.unwrap();
    assert!(stream.pending().await.iter().all(|(_, owner, ..)| owner == "thief"));
    stream.delete().await;
}

#[tokio::test]
async fn closing_gives_back_what_was_never_seen() {
    let stream = Stream::new("").await;
    stream.publish(0..3).await;
    let transport = stream.consumer().await;
    ack(&transport, receive(&transport, 3).await).await;
    let consumers: Vec<std::collections::HashMap<String, redis::Value>> = stream.run("XINFO CONSUMERS {} it").await;
    let me: String = redis::from_redis_value(consumers[0]["name"].clone()).unwrap();
    stream.publish(3..5).await;
    // The answer to a read that was lost on its way.
    stream.run::<redis::Value>(&format!("XREADGROUP GROUP it {me} COUNT 2 STREAMS {{}} >")).await;
    transport.close(PATIENCE).await.unwrap();
    let another = stream.consumer().await;
    let given_back = receive(&another, 2).await;
    assert!(given_back.iter().all(|delivery| !delivery.suspect), "no lease has ended");
    ack(&another, given_back).await;
    stream.delete().await;
}
