//! The broker's `consumer_timeout`: a delivery that is held for too long costs the channel.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::StreamExt;
use inbox_core::{Inbox, Transport, capability::Lease, config::duration, memory::MemoryStore};
use inbox_rabbitmq::{QueueType, RabbitMqTransport};
use lapin::{
    Connection, ConnectionProperties,
    options::{BasicConsumeOptions, BasicQosOptions},
    types::FieldTable,
};

use crate::{
    inbox::{Running, slowly},
    support::{Queue, ack, broker, empty, number, receive, try_ack},
};

/// What the broker is configured with.
fn ceiling() -> Duration {
    let text = std::env::var("INBOX_TEST_RABBITMQ_TIMEOUT").unwrap_or_else(|_| "20s".to_owned());
    duration(&text).expect("INBOX_TEST_RABBITMQ_TIMEOUT is a duration")
}

/// After the ceiling, the broker takes its time to look.
fn patience() -> Duration {
    ceiling() * 2 + Duration::from_secs(10)
}

/// That the other cases test anything: a plain consumer loses its channel.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_broker_closes_the_channel_of_a_plain_consumer() {
    let queue = Queue::new().await;
    queue.publish(0..2).await;
    let url = broker().replacen("rabbitmq:", "amqp:", 1);
    let connection = Connection::connect(&url, ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    channel.basic_qos(10, BasicQosOptions::default()).await.unwrap();
    let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
    let mut consumer = channel.basic_consume(queue.name.as_str().into(), "".into(), options, arguments).await.unwrap();
    let started = Instant::now();
    let held = consumer.next().await.unwrap().unwrap();
    let ended = async {
        loop {
            match consumer.next().await {
                Some(Ok(_)) => {}
                Some(Err(error)) => break error.to_string(),
                None => panic!("the stream ended without an error"),
            }
        }
    };
    let error = tokio::time::timeout(patience(), ended).await.expect("the broker has no such `consumer_timeout`");
    println!("after {:?}: {error}", started.elapsed());
    assert!(error.contains("timed out"), "{error}");
    assert!(started.elapsed() >= ceiling(), "{:?}", started.elapsed());
    drop(held);
    queue.delete().await;
}

async fn held_for_too_long(queue_type: QueueType) {
    let queue = Queue::of(queue_type).await;
    queue.publish(0..20).await;
    let config = queue.config().consumer_timeout(Some(ceiling())).prefetch(15);
    let transport = RabbitMqTransport::connect(config).await.unwrap();
    let mut held = receive(&transport, 10).await;
    let session = held[0].receipt.session().clone();
    // Acks do not help one that is held: only the first is.
    let stuck = vec![held.remove(0)];
    ack(&transport, held).await;
    let started = Instant::now();
    tokio::time::timeout(patience(), session.lost()).await.expect("the session is lost");
    println!("lost after {:?}", started.elapsed());
    assert_eq!(try_ack(&transport, stuck).await, (0, 1), "the channel is gone");
    // The rest, what was ready in the buffer too, comes in a new session.
    let mut again = receive(&transport, 11).await;
    assert!(started.elapsed() < patience() + Duration::from_secs(5));
    assert!(again.iter().all(|delivery| delivery.receipt.session().id() != session.id()));
    assert!(transport.connected());
    again.sort_by_key(number);
    assert_eq!(again.iter().map(number).collect::<Vec<_>>(), [vec![0], (10..20).collect()].concat());
    ack(&transport, again).await;
    empty(&queue, transport).await;
    queue.delete().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delivery_that_is_held_for_too_long_loses_nothing() {
    held_for_too_long(QueueType::Classic).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delivery_of_a_quorum_queue_that_is_held_for_too_long_loses_nothing() {
    held_for_too_long(QueueType::Quorum).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_a_consumer_that_is_paused_costs_no_channel() {
    let queue = Queue::new().await;
    queue.publish(0..30).await;
    let config = queue.config().consumer_timeout(Some(ceiling())).prefetch(40);
    let transport = RabbitMqTransport::connect(config).await.unwrap();
    let first = receive(&transport, 1).await;
    let session = first[0].receipt.session().clone();
    ack(&transport, first).await;
    // Nobody asks for more, for longer than the broker allows.
    tokio::time::sleep(ceiling() + Duration::from_secs(8)).await;
    assert!(!session.is_lost() && transport.connected(), "{transport:?}");
    let mut rest = receive(&transport, 29).await;
    for delivery in &rest {
        let (id, suspect) = (delivery.receipt.session().id(), delivery.suspect);
        assert_eq!((id, suspect), (session.id(), false), "{delivery:?}");
    }
    rest.sort_by_key(number);
    assert_eq!(rest.iter().map(number).collect::<Vec<_>>(), (1..30).collect::<Vec<_>>());
    ack(&transport, rest).await;
    empty(&queue, transport).await;
    queue.delete().await;
}

/// A handler that takes longer than the broker waits, of a service that was told nothing of it: the channel goes while it
/// runs, its message comes again, and its effect is there once.
async fn a_handler_beyond_the_ceiling(queue_type: QueueType) {
    let queue = Queue::of(queue_type).await;
    queue.publish(0..30).await;
    let long = ceiling() + Duration::from_secs(6);
    let transport = Arc::new(RabbitMqTransport::connect(queue.config().consumer_timeout(None)).await.unwrap());
    let running = Running::start(
        Arc::clone(&transport),
        MemoryStore::new(),
        move |inbox| inbox.handler_timeout(long * 2).max_batch(1),
        move |n| if n == 7 { long } else { Duration::ZERO },
    );
    let started = Instant::now();
    while running.handle.numbers().applied < 30 || running.handle.numbers().in_flight > 0 {
        assert!(started.elapsed() < long + patience(), "{:?}", running.handle.numbers());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let numbers = running.handle.numbers();
    println!("{numbers:?} after {:?}", started.elapsed());
    assert!(
        numbers.lost_acks >= 1 && numbers.received > 30 && numbers.duplicates >= 1,
        "the channel was lost: {numbers:?}"
    );
    assert_eq!((numbers.applied, numbers.attempts_failed), (30, 0), "{numbers:?}");
    let mut effects = running.stop().await.log("effects");
    effects.sort_unstable_by_key(|effect| effect.parse::<u32>().unwrap());
    assert_eq!(effects, (0..30).map(|n| n.to_string()).collect::<Vec<_>>(), "each once");
    assert_eq!(queue.ready().await, 0);
    queue.delete().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_effect_of_a_handler_beyond_the_ceiling_is_there_once() {
    a_handler_beyond_the_ceiling(QueueType::Classic).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_effect_of_a_handler_beyond_the_ceiling_of_a_quorum_queue_is_there_once() {
    a_handler_beyond_the_ceiling(QueueType::Quorum).await;
}

/// An inbox that could not keep to the ceiling that the URL tells does not start.
#[tokio::test]
async fn a_handler_timeout_beyond_the_ceiling_of_the_url_is_refused() {
    let queue = Queue::new().await;
    let url = |timeout: &str| format!("{}?queue={}&consumer_timeout={timeout}", broker(), queue.name);
    let inbox = async |timeout: &str, handler: u64| {
        let transport = inbox_rabbitmq::connect(&url(timeout)).await.unwrap();
        let inbox = Inbox::new("it", transport, MemoryStore::new()).on_any(slowly(|_| Duration::ZERO));
        inbox.handler_timeout(Duration::from_secs(handler)).build()
    };
    for (told, handler) in [("20s", 20), ("20s", 30), ("20s", 3_600), ("5m", 300)] {
        let refused = inbox(told, handler).await.expect_err("too long").to_string();
        assert!(refused.contains("`handler_timeout`") && refused.contains(&format!("{handler}s")), "{refused}");
    }
    for (told, handler) in [("20s", 10), ("5m", 200), ("none", 3_600)] {
        inbox(told, handler).await.unwrap();
    }
    queue.delete().await;
}

/// What an inbox is checked by.
#[tokio::test]
async fn the_url_tells_the_ceiling() {
    let queue = Queue::new().await;
    for (told, lease) in [
        ("", Lease::Ceiling(Duration::from_secs(1_800))),
        ("&consumer_timeout=20s", Lease::Ceiling(Duration::from_secs(20))),
        ("&consumer_timeout=none", Lease::Session),
    ] {
        let transport = inbox_rabbitmq::connect(&format!("{}?queue={}{told}", broker(), queue.name)).await.unwrap();
        assert_eq!(transport.capabilities().lease, lease);
    }
    queue.delete().await;
}
