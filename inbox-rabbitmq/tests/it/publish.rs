//! `Ok` means stored, and nothing else is `Ok`.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use inbox_core::{Bytes, Message, Publisher, TransportError, TransportErrorKind, report};
use inbox_rabbitmq::{ExchangeType, RabbitMqConfig, RabbitMqPublisher};
use lapin::{
    Channel, Connection, ConnectionProperties,
    options::{BasicGetOptions, QueueBindOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable, ShortString},
};

use crate::support::{PATIENCE, Queue, broker, numbered, unique};

async fn plain() -> (Connection, Channel) {
    let url = broker().replacen("rabbitmq:", "amqp:", 1);
    let connection = Connection::connect(&url, ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    (connection, channel)
}

fn is_unroutable(result: Result<(), TransportError>) -> String {
    let error = result.expect_err("unroutable");
    let text = report(&error);
    assert_eq!(error.kind(), TransportErrorKind::Rejected, "{text}");
    assert!(text.contains("unroutable"), "{text}");
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_no_queue_is_bound_for_is_an_error() {
    let queue = Queue::new().await;
    let exchange = unique();
    let config = queue.config().exchange(&*exchange).exchange_type(ExchangeType::Topic).routing_key("shop.paid");
    let admin = inbox_rabbitmq::RabbitMqAdmin::connect(config.clone()).await.unwrap();
    admin.provision().await.unwrap();
    let bound = RabbitMqPublisher::connect(config.clone()).await.unwrap();
    let elsewhere = RabbitMqPublisher::connect(config.routing_key("shop.lost")).await.unwrap();
    for result in bound.publish(vec![numbered(0), numbered(1)]).await {
        result.unwrap();
    }
    for result in elsewhere.publish(vec![numbered(2), numbered(3)]).await {
        let text = is_unroutable(result);
        assert!(text.contains(&exchange) && text.contains("`shop.lost`") && text.contains("id-"), "{text}");
    }
    assert_eq!(queue.ready().await, 2);
    // The queue goes, and with it what was bound; the publisher says so at once.
    queue.delete().await;
    is_unroutable(bound.publish(vec![numbered(4)]).await.remove(0));
    queue.make().await;
    admin.delete().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_is_gone_is_an_error() {
    let queue = Queue::new().await;
    let publisher = RabbitMqPublisher::connect(queue.config()).await.unwrap();
    publisher.publish(vec![numbered(0)]).await.remove(0).unwrap();
    queue.delete().await;
    is_unroutable(publisher.publish(vec![numbered(1)]).await.remove(0));
}

/// Where the broker confirms many at once, the one that was returned is still told from its neighbours.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_thousand_messages_those_that_are_unroutable() {
    let queue = Queue::new().await;
    let exchange = unique();
    let config = queue.config().exchange(&*exchange).exchange_type(ExchangeType::Headers);
    let only_exchange =
        RabbitMqConfig::from_url(&broker()).unwrap().exchange(&*exchange).exchange_type(ExchangeType::Headers);
    let admin = inbox_rabbitmq::RabbitMqAdmin::connect(only_exchange).await.unwrap();
    admin.provision().await.unwrap();
    let (_connection, channel) = plain().await;
    let mut wanted = FieldTable::default();
    wanted.insert("x-match".into(), AMQPValue::LongString("all".into()));
    wanted.insert("wanted".into(), AMQPValue::LongString("yes".into()));
    let (name, to): (ShortString, ShortString) = (queue.name.as_str().into(), exchange.as_str().into());
    channel.queue_bind(name, to, "".into(), QueueBindOptions::default(), wanted).await.unwrap();
    let publisher = RabbitMqPublisher::connect(config.clone()).await.unwrap();
    let is_wanted = |n: u32| n % 3 != 1;
    let message = |n: u32| {
        let message = numbered(n).header("bin", vec![0, 255]).header("twice", "a").header("twice", "b");
        message.header("wanted", if is_wanted(n) { "yes" } else { "no" })
    };
    let results = publisher.publish((0..1_000).map(message).collect()).await;
    for (n, result) in (0..1_000).zip(results) {
        if is_wanted(n) { result.unwrap() } else { assert!(is_unroutable(result).contains(&format!("id-{n};"))) }
    }
    assert_eq!(queue.ready().await, u64::from((0..1_000).map(|n| u32::from(is_wanted(n))).sum::<u32>()));
    let both = inbox_rabbitmq::RabbitMqAdmin::connect(config).await.unwrap();
    both.delete().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_full_queue_refuses_is_an_error() {
    let queue = Queue::unmade();
    let (_connection, channel) = plain().await;
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(5));
    arguments.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    let declared = channel.queue_declare(queue.name.as_str().into(), QueueDeclareOptions::durable(), arguments).await;
    declared.unwrap();
    let publisher = RabbitMqPublisher::connect(queue.config()).await.unwrap();
    let mut stored = 0;
    for n in 0..10 {
        match publisher.publish(vec![numbered(n)]).await.remove(0) {
            Ok(()) => stored += 1,
            Err(error) => {
                assert_eq!(error.kind(), TransportErrorKind::Rejected, "{}", report(&error));
                assert!(report(&error).contains("it is full"), "{}", report(&error));
            }
        }
    }
    assert_eq!((stored, queue.ready().await), (5, 5));
    queue.delete().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_too_large_does_not_keep_its_neighbours() {
    let queue = Queue::new().await;
    let publisher = RabbitMqPublisher::connect(queue.config()).await.unwrap();
    // More than any broker's default: 128 MiB, and 16 MiB since 4.0.
    let body = Message::new(Bytes::from(vec![b'x'; (128 << 20) + 1])).id("large");
    let header = numbered(2).header("h", vec![b'x'; 200_000]);
    let results = publisher.publish(vec![numbered(0), body, numbered(1), header, numbered(3)]).await;
    let kinds: Vec<_> = results.iter().map(|result| result.as_ref().map_err(TransportError::kind).copied()).collect();
    let large = Err(TransportErrorKind::TooLarge);
    assert_eq!(kinds, [Ok(()), large, Ok(()), large, Ok(())]);
    // Those before the large one may have been stored twice, under the same id.
    assert!((3..=4).contains(&queue.ready().await));
    publisher.publish(vec![numbered(4)]).await.remove(0).expect("it goes on");
    queue.delete().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_persistent_and_other_clients_understand_them() {
    let queue = Queue::new().await;
    let publisher = RabbitMqPublisher::connect(queue.config()).await.unwrap();
    let message = numbered(7).header("content-type", "application/json").header("trace", "x");
    publisher.publish(vec![message]).await.remove(0).unwrap();
    let (_connection, channel) = plain().await;
    let got = channel.basic_get(queue.name.as_str().into(), BasicGetOptions { no_ack: true }).await.unwrap().unwrap();
    let properties = &got.delivery.properties;
    assert_eq!(*properties.delivery_mode(), Some(2));
    let text = |value: &Option<ShortString>| value.as_ref().map(ToString::to_string);
    assert_eq!(text(properties.message_id()).as_deref(), Some("id-7"));
    assert_eq!(text(properties.kind()).as_deref(), Some("numbered"));
    assert_eq!(text(properties.content_type()).as_deref(), Some("application/json"));
    let headers = properties.headers().as_ref().expect("headers").inner();
    assert_eq!(headers.get("trace"), Some(&AMQPValue::LongString("x".into())));
    assert_eq!(headers.get("message-key"), Some(&AMQPValue::LongString("key-0".into())));
    queue.delete().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_at_once_and_some_that_give_up() {
    let queue = Queue::new().await;
    let publisher = Arc::new(RabbitMqPublisher::connect(queue.config()).await.unwrap());
    let publish = |n: u32| {
        let publisher = Arc::clone(&publisher);
        async move {
            let publishing = publisher.publish(vec![numbered(n), numbered(n + 1_000)]);
            // Every fifth is dropped in the midst of it.
            let patience = if n.is_multiple_of(5) { Duration::from_millis(u64::from(n % 7)) } else { PATIENCE };
            match tokio::time::timeout(patience, publishing).await {
                Ok(results) => results.into_iter().map(Result::unwrap).count(),
                Err(_) => 0,
            }
        }
    };
    let confirmed: usize = join_all((0..200).map(publish)).await.into_iter().sum();
    assert!(confirmed >= 320, "{confirmed}");
    let stored = queue.ready().await;
    assert!(stored >= u64::try_from(confirmed).unwrap() && stored <= 400, "{stored} of {confirmed}");
    publisher.close(PATIENCE).await.unwrap();
    let error = publisher.publish(vec![numbered(1)]).await.remove(0).expect_err("closed");
    assert_eq!(error.kind(), TransportErrorKind::Closed);
    queue.delete().await;
}
