//! Every broker with every database: for tests only, `tests/conformance.rs` runs the end-to-end cases of
//! `inbox-conformance` over all pairs, and `tests/readme.rs` keeps the README's table of brokers. What a transport or a store
//! does by itself is tested in its own crate.

#[path = "../../inbox-kafka/tests/subject/mod.rs"]
mod kafka;
#[path = "../../inbox-postgres/tests/subject/mod.rs"]
mod postgres;
#[path = "../../inbox-pubsub/tests/subject/mod.rs"]
mod pubsub;
#[path = "../../inbox-rabbitmq/tests/subject/mod.rs"]
mod rabbitmq;
#[path = "../../inbox-redis/tests/subject/mod.rs"]
mod redis;
#[path = "../../inbox-sqlite/tests/subject/mod.rs"]
mod sqlite;
#[path = "../../inbox-sqs/tests/subject/mod.rs"]
mod sqs;

use std::{io, sync::Arc, time::Duration};

use inbox_conformance::{Suite, TransportSubject, memory::MemoryBrokerSubject};
use inbox_core::capability::Capabilities;

use crate::{
    kafka::KafkaSubject,
    postgres::PostgresSubject,
    pubsub::PubsubSubject,
    rabbitmq::RabbitMqSubject,
    redis::RedisSubject,
    sqlite::{FileSubject, QueueSubject},
    sqs::SqsSubject,
};

/// The end-to-end cases over each pair that no crate runs by itself.
///
/// # Errors
/// When there is no place for temporary files.
pub fn suite() -> io::Result<Suite> {
    // SQLite has one writer, and servers have other work: a case may take longer here.
    let suite = Suite::new().deadline(Duration::from_secs(90));
    let suite = suite.end_to_end(&queue()?, &server());
    let suite = over_both(suite, &Arc::new(KafkaSubject))?;
    let suite = over_both(suite, &RabbitMqSubject::classic())?;
    let suite = over_both(suite, &RedisSubject::brisk())?;
    let suite = over_both(suite, &SqsSubject::standard())?;
    let suite = over_both(suite, &SqsSubject::fifo())?;
    over_both(suite, &PubsubSubject::ordered())
}

/// Takes away what the cases have made at brokers: they may be somebody's own.
pub fn clean() {
    rabbitmq::clean();
    redis::clean();
    sqs::clean();
}

/// What each broker promises, as its own suite compares it with the transport's word.
///
/// # Errors
/// When there is no place for temporary files.
pub fn brokers() -> io::Result<Vec<(&'static str, Capabilities)>> {
    Ok(vec![
        ("Kafka", KafkaSubject.capabilities()),
        ("RabbitMQ", RabbitMqSubject::classic().capabilities()),
        ("Redis Streams", RedisSubject::unset().capabilities()),
        ("SQS, standard queue", SqsSubject::standard().capabilities()),
        ("SQS, FIFO queue", SqsSubject::fifo().capabilities()),
        ("Pub/Sub, ordered", PubsubSubject::ordered().capabilities()),
        ("Pub/Sub, exactly once", PubsubSubject::exactly_once().capabilities()),
        ("SQLite", queue()?.capabilities()),
        ("memory", MemoryBrokerSubject::default().capabilities()),
    ])
}

fn over_both<T: TransportSubject>(suite: Suite, transport: &Arc<T>) -> io::Result<Suite> {
    let file = Arc::new(FileSubject { dir: tempfile::tempdir()? });
    Ok(suite.end_to_end(transport, &server()).end_to_end(transport, &file))
}

fn server() -> Arc<PostgresSubject> {
    Arc::new(PostgresSubject { pooled: None })
}

fn queue() -> io::Result<Arc<QueueSubject>> {
    Ok(Arc::new(QueueSubject { dir: tempfile::tempdir()? }))
}
