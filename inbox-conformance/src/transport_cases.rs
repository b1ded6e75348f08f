//! One case for each guarantee of a transport.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt;
use inbox_core::{
    Acked, BoxError, Capacity, Delivery, Message, Receipt, Session, Transport, TransportErrorKind, capability::Ordering,
};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use uuid::Uuid;

use crate::{
    ensure, ensure_eq,
    harness::{CaseResult, Link, TransportSubject, until, waiting},
    suite::{Case, Stage, cases},
};

pub(crate) fn all() -> Vec<Case<Arc<dyn TransportSubject>>> {
    cases![TransportStage:
        t01_every_message_is_handed_over,
        t02_content_is_as_published,
        t03_an_unacked_delivery_comes_again,
        t04_capacity_is_kept,
        t05_a_key_keeps_its_order_also_when_it_comes_again [Ordering, ManyOfAKey],
        t06_a_cancelled_receive_loses_nothing,
        t07_an_acked_delivery_never_comes_again,
        t08_receipts_of_a_lost_session_are_lost_not_errors [BreakSessions],
        t09_a_released_delivery_comes_again_soon,
        t10_close_gives_back_and_ends,
        t11_publish_answers_for_each_message [ManyOfAKey],
        t12_groups_are_independent,
        t13_consumers_of_a_group_compete,
        t14_capabilities_are_honest,
        t15_a_key_is_with_one_consumer_at_a_time [ExclusiveKeys],
    ]
}

/// A fresh topic.
pub(crate) struct TransportStage {
    subject: Arc<dyn TransportSubject>,
    link: Arc<dyn Link>,
}

impl Stage for TransportStage {
    type Subjects = Arc<dyn TransportSubject>;

    async fn set(subject: Self::Subjects) -> Result<Self, BoxError> {
        let link = waiting("a fresh topic", subject.fresh()).await?;
        Ok(Self { subject, link })
    }
}

/// Room for `messages` of any size.
fn room(messages: usize) -> Capacity {
    Capacity { messages, bytes: usize::MAX }
}

/// Message number `n`, with an id of its own and one of `keys` keys.
fn message(n: usize, keys: usize) -> Message {
    Message::new(Bytes::from(n.to_string()))
        .id(Uuid::now_v7().to_string())
        .kind("conformance.case")
        .key(format!("key-{}", n % keys))
}

fn number(message: &Message) -> Result<usize, BoxError> {
    Ok(std::str::from_utf8(&message.body)?.parse()?)
}

fn numbers(deliveries: &[Delivery]) -> Result<BTreeSet<usize>, BoxError> {
    deliveries.iter().map(|delivery| number(&delivery.message)).collect()
}

fn receipts(deliveries: Vec<Delivery>) -> Vec<Receipt> {
    deliveries.into_iter().map(|delivery| delivery.receipt).collect()
}

impl TransportStage {
    async fn publish(&self, messages: Vec<Message>) -> CaseResult {
        let publisher = self.link.publisher().await?;
        for (n, answer) in waiting("publish", publisher.publish(messages)).await.into_iter().enumerate() {
            answer.map_err(|error| format!("message {n} was not published: {}", inbox_core::report(&error)))?;
        }
        Ok(())
    }

    async fn no_backlog(&self) -> CaseResult {
        until("the backlog to reach 0", || async { Ok(self.link.backlog().await? == 0) }).await
    }
}

/// Receives until `want` deliveries are held.
async fn receive(transport: &dyn Transport, want: usize) -> Result<Vec<Delivery>, BoxError> {
    let mut held = Vec::new();
    while held.len() < want {
        let what = format!("{want} deliveries, {} came", held.len());
        held.extend(waiting(what, transport.receive(room(want - held.len()))).await?);
    }
    Ok(held)
}

async fn ack(transport: &dyn Transport, deliveries: Vec<Delivery>) -> CaseResult {
    let all = deliveries.len();
    let acked = waiting("ack", transport.ack(receipts(deliveries))).await?;
    ensure_eq!(acked, Acked { acked: all, lost: 0 }, "ack of {all} live deliveries");
    Ok(())
}

async fn t01_every_message_is_handed_over(stage: TransportStage) -> CaseResult {
    let transport = stage.link.connect().await?;
    for batch in 0..4 {
        stage.publish((0..50).map(|n| message(batch * 50 + n, 7)).collect()).await?;
    }
    let mut seen = BTreeSet::new();
    while seen.len() < 200 {
        let what = format!("200 messages, {} came", seen.len());
        let deliveries = waiting(what, transport.receive(room(64))).await?;
        ensure!(!deliveries.is_empty(), "receive returned without a delivery");
        seen.extend(numbers(&deliveries)?);
        ack(&*transport, deliveries).await?;
    }
    ensure_eq!(seen, (0..200).collect(), "what was handed over");
    stage.no_backlog().await
}

async fn t02_content_is_as_published(stage: TransportStage) -> CaseResult {
    let bytes: Vec<u8> = (0..=255).collect();
    let published = [
        Message::new(Bytes::new()).id(Uuid::now_v7().to_string()).kind("empty").key("a"),
        Message::new(Bytes::from(bytes.clone())).id("größe 🦀").kind("Ünïcode/🦀").key(bytes.clone()),
        Message::new(Bytes::from(vec![7; 100_000]))
            .id("plain text")
            .kind("headers")
            .key("a")
            .header("text", "value")
            .header("binary", bytes)
            .header("empty", "")
            .header("twice", "one")
            .header("twice", "two"),
        Message::new(Bytes::from_static(b"neither id nor kind nor key nor headers")),
    ];
    let transport = stage.link.connect().await?;
    stage.publish(published.to_vec()).await?;
    let received = receive(&*transport, published.len()).await?;
    for message in &published {
        let same = |delivery: &&Delivery| delivery.message.body == message.body;
        let found = &received.iter().find(same).ok_or_else(|| format!("the body of {message:?} did not come"))?.message;
        ensure_eq!(found.id, message.id, "the id of {message:?}");
        ensure_eq!(found.kind, message.kind, "the kind of {message:?}");
        ensure_eq!(found.key, message.key, "the key of {message:?}");
        // An adapter may show its envelope's headers too; the message's own come in order.
        let mut headers = found.headers.iter();
        for header in message.headers.iter() {
            ensure!(
                headers.any(|other| other == header),
                "header `{}` of {message:?} is missing or out of order",
                header.0
            );
        }
    }
    ack(&*transport, received).await
}

async fn t03_an_unacked_delivery_comes_again(stage: TransportStage) -> CaseResult {
    let transport = stage.link.connect().await?;
    stage.publish((0..6).map(|n| message(n, 2)).collect()).await?;
    let mut held = receive(&*transport, 6).await?;
    let mut dropped = BTreeSet::new();
    for delivery in held.drain(..3) {
        dropped.insert(number(&delivery.message)?);
    }
    let again = receive(&*transport, 3).await?;
    ensure_eq!(numbers(&again)?, dropped, "what came again after its receipts were dropped");
    held.extend(again);
    // A consumer that vanishes with all that it holds, as a crash would have it.
    drop(transport);
    let another = stage.link.connect().await?;
    let taken_over = receive(&*another, 6).await?;
    ensure_eq!(numbers(&taken_over)?, (0..6).collect(), "what came to another consumer after the first one vanished");
    drop(held);
    ack(&*another, taken_over).await?;
    stage.no_backlog().await
}

async fn t04_capacity_is_kept(stage: TransportStage) -> CaseResult {
    let transport = stage.link.connect().await?;
    let sized = |n: usize| Message::new(Bytes::from(format!("{n:01000}"))).id(Uuid::now_v7().to_string()).key("k");
    stage.publish((0..12).map(sized).collect()).await?;
    let mut seen = BTreeSet::new();
    let capacities = [room(1), room(3), Capacity { messages: 10, bytes: 2_500 }, Capacity { messages: 10, bytes: 1 }];
    for capacity in capacities.into_iter().cycle() {
        if seen.len() == 12 {
            break;
        }
        let deliveries = waiting("the next of 12 messages", transport.receive(capacity)).await?;
        ensure!(deliveries.len() <= capacity.messages, "{} deliveries for {capacity:?}", deliveries.len());
        let bytes: usize = deliveries.iter().map(|delivery| delivery.message.size()).sum();
        ensure!(deliveries.len() == 1 || bytes <= capacity.bytes, "{bytes} bytes for {capacity:?}");
        seen.extend(numbers(&deliveries)?);
        ack(&*transport, deliveries).await?;
    }
    Ok(())
}

async fn t05_a_key_keeps_its_order_also_when_it_comes_again(stage: TransportStage) -> CaseResult {
    let transport = stage.link.connect().await?;
    stage.publish((0..40).map(|n| message(n, 2)).collect()).await?;
    let mut held = Vec::new();
    while held.len() < 40 {
        held.extend(waiting("40 deliveries", transport.receive(room(7))).await?);
    }
    in_order(&held, 0)?;
    let mut later = Vec::new();
    for delivery in std::mem::take(&mut held) {
        if number(&delivery.message)? < 10 { held.push(delivery) } else { later.push(delivery) }
    }
    ack(&*transport, held).await?;
    fastrand::shuffle(&mut later);
    let released = later.split_off(15);
    drop(later);
    transport.release(receipts(released)).await?;
    let again = receive(&*transport, 30).await?;
    in_order(&again, 10)?;
    ack(&*transport, again).await?;
    stage.no_backlog().await
}

/// The deliveries of each of two keys are the numbers from `first` on.
fn in_order(deliveries: &[Delivery], first: usize) -> CaseResult {
    let mut by_key: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for delivery in deliveries {
        let number = number(&delivery.message)?;
        by_key.entry(number % 2).or_default().push(number);
    }
    for (key, numbers) in by_key {
        let expected: Vec<usize> = (first..40).filter(|n| n % 2 == key).collect();
        ensure_eq!(numbers, expected, "the order of key {key}");
    }
    Ok(())
}

async fn t06_a_cancelled_receive_loses_nothing(stage: TransportStage) -> CaseResult {
    let transport = stage.link.connect().await?;
    let mut seen = BTreeSet::new();
    for n in 0..60 {
        let (published, received) = tokio::join!(stage.publish(vec![message(n, 5)]), async {
            // At once at the first await, or somewhere later.
            if n % 3 == 0 {
                return transport.receive(room(2)).now_or_never();
            }
            timeout(Duration::from_micros(fastrand::u64(0..2_000)), transport.receive(room(2))).await.ok()
        });
        published?;
        if let Some(deliveries) = received {
            let deliveries = deliveries?;
            seen.extend(numbers(&deliveries)?);
            ack(&*transport, deliveries).await?;
        }
    }
    while seen.len() < 60 {
        let what = format!("60 messages after cancelled receives, {} came", seen.len());
        let deliveries = waiting(what, transport.receive(room(10))).await?;
        seen.extend(numbers(&deliveries)?);
        ack(&*transport, deliveries).await?;
    }
    stage.no_backlog().await
}

async fn t07_an_acked_delivery_never_comes_again(stage: TransportStage) -> CaseResult {
    let transport = stage.link.connect().await?;
    stage.publish((0..20).map(|n| message(n, 20)).collect()).await?;
    let deliveries = receive(&*transport, 20).await?;
    ack(&*transport, deliveries).await?;
    waiting("close", transport.close(Duration::from_secs(10))).await?;
    drop(transport);
    stage.no_backlog().await?;
    let restarted = stage.link.connect().await?;
    stage.publish((20..25).map(|n| message(n, 5)).collect()).await?;
    let deliveries = receive(&*restarted, 5).await?;
    ensure_eq!(numbers(&deliveries)?, (20..25).collect(), "what came after the restart");
    ack(&*restarted, deliveries).await?;
    stage.no_backlog().await
}

async fn t08_receipts_of_a_lost_session_are_lost_not_errors(stage: TransportStage) -> CaseResult {
    let transport = stage.link.connect().await?;
    stage.publish((0..5).map(|n| message(n, 2)).collect()).await?;
    let held = receive(&*transport, 5).await?;
    stage.link.break_sessions().await?;
    for delivery in &held {
        waiting("the session to be lost", delivery.receipt.session().lost()).await;
    }
    let answer = waiting("ack", transport.ack(receipts(held))).await?;
    ensure_eq!(answer, Acked { acked: 0, lost: 5 }, "ack of receipts whose session is lost");
    let again = receive(&*transport, 5).await?;
    ensure_eq!(numbers(&again)?, (0..5).collect(), "what came again in the new session");
    ack(&*transport, again).await?;
    stage.no_backlog().await
}

async fn t09_a_released_delivery_comes_again_soon(stage: TransportStage) -> CaseResult {
    let transport = stage.link.connect().await?;
    stage.publish((0..6).map(|n| message(n, 6)).collect()).await?;
    let mut held = receive(&*transport, 6).await?;
    let released = held.split_off(3);
    let expected = numbers(&released)?;
    transport.release(receipts(released)).await?;
    ack(&*transport, held).await?;
    let again = receive(&*transport, 3).await?;
    ensure_eq!(numbers(&again)?, expected, "what came again after its release");
    ack(&*transport, again).await?;
    stage.no_backlog().await
}

async fn t10_close_gives_back_and_ends(stage: TransportStage) -> CaseResult {
    let transport = stage.link.connect().await?;
    stage.publish((0..4).map(|n| message(n, 2)).collect()).await?;
    let mut held = receive(&*transport, 4).await?;
    let acked = held.remove(0);
    let left: BTreeSet<usize> = numbers(&held)?;
    ack(&*transport, vec![acked]).await?;
    let mut waiter = JoinSet::new();
    let other = Arc::clone(&transport);
    waiter.spawn(async move { other.receive(room(1)).await.map_err(|error| error.kind()).map(|some| some.len()) });
    tokio::task::yield_now().await;
    waiting("close", transport.close(Duration::from_secs(10))).await?;
    let waited = waiting("the receive that waited at close", waiter.join_next()).await.ok_or("no waiter")??;
    ensure_eq!(waited, Err(TransportErrorKind::Closed), "the receive that waited at close");
    let after = transport.receive(room(1)).await.map(|some| some.len()).map_err(|error| error.kind());
    ensure_eq!(after, Err(TransportErrorKind::Closed), "a receive after close");
    let another = stage.link.connect().await?;
    let taken_over = receive(&*another, 3).await?;
    ensure_eq!(numbers(&taken_over)?, left, "what another consumer got after close");
    drop(held);
    ack(&*another, taken_over).await?;
    stage.no_backlog().await
}

async fn t11_publish_answers_for_each_message(stage: TransportStage) -> CaseResult {
    let publisher = stage.link.publisher().await?;
    ensure_eq!(publisher.publish(Vec::new()).await.len(), 0, "answers for no messages");
    let mut messages: Vec<Message> = (0..500).map(|n| message(n, 20)).collect();
    let too_large = stage.subject.capabilities().max_body.map(|most| {
        messages.insert(250, Message::new(Bytes::from(vec![b'x'; most + 1])).id(Uuid::now_v7().to_string()));
        250
    });
    let all = messages.len();
    let answers = waiting("publish", publisher.publish(messages)).await;
    ensure_eq!(answers.len(), all, "the number of answers");
    for (n, answer) in answers.into_iter().enumerate() {
        let expected = if Some(n) == too_large { Err(TransportErrorKind::TooLarge) } else { Ok(()) };
        ensure_eq!(answer.map_err(|error| error.kind()), expected, "the answer for message {n}");
    }
    waiting("the publisher's close", publisher.close(Duration::from_secs(10))).await?;
    let transport = stage.link.connect().await?;
    let stored = receive(&*transport, 500).await?;
    ensure_eq!(numbers(&stored)?, (0..500).collect(), "what the broker stored");
    ack(&*transport, stored).await
}

async fn t12_groups_are_independent(stage: TransportStage) -> CaseResult {
    let own = stage.link.connect().await?;
    let other = stage.link.connect_group("other").await?;
    stage.publish((0..20).map(|n| message(n, 20)).collect()).await?;
    let first = receive(&*own, 20).await?;
    ack(&*own, first).await?;
    stage.no_backlog().await?;
    let second = receive(&*other, 20).await?;
    ensure_eq!(numbers(&second)?, (0..20).collect(), "what the other group got after the first had acked all");
    ack(&*other, second).await
}

async fn t13_consumers_of_a_group_compete(stage: TransportStage) -> CaseResult {
    stage.publish((0..300).map(|n| message(n, 50)).collect()).await?;
    let mut consumers = JoinSet::new();
    let (all_done, done) = tokio::sync::watch::channel(());
    for _ in 0..2 {
        let transport = stage.link.connect().await?;
        let mut done = done.clone();
        consumers.spawn(async move {
            let mut acked = Vec::new();
            loop {
                let deliveries = tokio::select! {
                    received = transport.receive(room(5)) => received?,
                    _ = done.changed() => return Ok::<_, BoxError>(acked),
                };
                let seen: Vec<usize> = numbers(&deliveries)?.into_iter().collect();
                let answer = transport.ack(receipts(deliveries)).await?;
                // What a rebalance took away in between was not acked and comes again.
                if answer.lost == 0 {
                    acked.extend(seen);
                }
                tokio::task::yield_now().await;
            }
        });
    }
    stage.no_backlog().await?;
    // One that was late may still be given what the other one has acked.
    sleep(Duration::from_millis(300)).await;
    drop(all_done);
    let mut acked = Vec::new();
    while let Some(consumer) = consumers.join_next().await {
        acked.extend(consumer??);
    }
    acked.sort_unstable();
    let distinct: BTreeSet<usize> = acked.iter().copied().collect();
    ensure_eq!(acked.len(), distinct.len(), "deliveries acked, against messages");
    Ok(())
}

async fn t14_capabilities_are_honest(stage: TransportStage) -> CaseResult {
    let transport = stage.link.connect().await?;
    let capabilities = stage.subject.capabilities();
    ensure_eq!(transport.capabilities(), &capabilities, "the transport's word against the subject's");
    stage.publish(vec![message(0, 1)]).await?;
    for count in 1..=3_u32 {
        let delivery = receive(&*transport, 1).await?.remove(0);
        if capabilities.delivery_count {
            ensure_eq!(delivery.delivery_count, Some(count), "the delivery count");
        }
        if capabilities.ordering == Ordering::Partition {
            ensure!(delivery.partition.is_some(), "ordered by partition, but the delivery names none");
        }
        ensure!(!delivery.suspect, "suspect, though no session was lost");
    }
    if capabilities.suspect_flag && stage.subject.can_break_sessions() {
        let held = receive(&*transport, 1).await?;
        stage.link.break_sessions().await?;
        let again = receive(&*transport, 1).await?;
        ensure!(again[0].suspect, "not suspect, though it was held when its session was lost");
        drop(held);
    }
    Ok(())
}

/// Which deliveries of which key are held by which consumer, and in what session.
type Holders = Mutex<Vec<(Bytes, usize, Session)>>;

/// Receives and acks until told to stop; fails when a key is with another consumer too.
async fn hold_and_ack(
    consumer: usize,
    transport: Arc<dyn Transport>,
    holders: Arc<Holders>,
    mut done: tokio::sync::watch::Receiver<()>,
) -> CaseResult {
    loop {
        let deliveries = tokio::select! {
            received = transport.receive(room(3)) => received?,
            _ = done.changed() => return Ok(()),
        };
        {
            let mut holders = holders.lock().unwrap();
            for delivery in &deliveries {
                let key = delivery.message.key.clone().ok_or("a message lost its key")?;
                // What a rebalance is taking away may come to the other one already.
                let other = holders.iter().any(|(k, c, session)| *k == key && *c != consumer && !session.is_ending());
                ensure!(!other, "key {key:?} came to consumer {consumer} while another one holds it");
                holders.push((key, consumer, delivery.receipt.session().clone()));
            }
        }
        // Long enough for the other one to be given the same key, were it not for the promise.
        sleep(Duration::from_millis(2)).await;
        // Before the ack, after which the other one may have the key.
        holders.lock().unwrap().retain(|(_, holder, _)| *holder != consumer);
        transport.ack(receipts(deliveries)).await?;
    }
}

async fn t15_a_key_is_with_one_consumer_at_a_time(stage: TransportStage) -> CaseResult {
    stage.publish((0..120).map(|n| message(n, 4)).collect()).await?;
    let holders = Arc::new(Holders::default());
    let (all_done, done) = tokio::sync::watch::channel(());
    let mut consumers = JoinSet::new();
    for consumer in 0..2 {
        let transport = stage.link.connect().await?;
        consumers.spawn(hold_and_ack(consumer, transport, Arc::clone(&holders), done.clone()));
    }
    let drained = async {
        let drained = stage.no_backlog().await;
        drop(all_done);
        drained
    };
    let ended = async {
        while let Some(consumer) = consumers.join_next().await {
            consumer??;
        }
        Ok::<_, BoxError>(())
    };
    // A consumer that fails must not leave the other case waiting for the backlog.
    tokio::try_join!(drained, ended)?;
    Ok(())
}
