//! Kafka, by rdkafka alone: a thread that polls.

use std::{
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Instant,
};

use anyhow::{Context as _, Result, bail};
use inbox::Bytes;
use rdkafka::{
    ClientConfig, Message as _,
    consumer::{BaseConsumer, CommitMode, Consumer as _},
    message::{BorrowedMessage, Headers as _},
};
use tokio::sync::oneshot;

use super::{
    Job,
    clock::Clock,
    consume::{Acks, Inlets, Record, SILENCE, Source},
    offsets::{Offsets, Place},
};
use crate::address::Address;

/// A member of the group.
pub(crate) struct Kafka {
    topic: Arc<str>,
    consumer: Arc<BaseConsumer>,
    offsets: Arc<Mutex<Offsets>>,
}

/// Stores offsets. librdkafka commits what is stored once a second.
#[derive(Clone)]
pub(crate) struct Stores {
    topic: Arc<str>,
    consumer: Arc<BaseConsumer>,
    offsets: Arc<Mutex<Offsets>>,
}

impl Acks for Stores {
    type Mark = Place;

    async fn done(&self, marks: Vec<Place>) -> Result<()> {
        let mut offsets = self.offsets.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock: a lower offset must not be stored behind a higher one.
        for place in offsets.done(&marks) {
            self.consumer.store_offset(&self.topic, place.partition, place.offset)?;
        }
        Ok(())
    }
}

impl Source for Kafka {
    type Acks = Stores;

    fn acks(&self) -> Stores {
        let Self { topic, consumer, offsets } = self;
        Stores { topic: Arc::clone(topic), consumer: Arc::clone(consumer), offsets: Arc::clone(offsets) }
    }

    async fn feed(&mut self, inlets: Inlets<Place>) -> Result<()> {
        let (consumer, offsets) = (Arc::clone(&self.consumer), Arc::clone(&self.offsets));
        let (said, polled) = oneshot::channel();
        let body = move || drop(said.send(poll(&consumer, &offsets, &inlets)));
        let thread = thread::Builder::new().name("poll".to_owned()).spawn(body)?;
        polled.await.context("the thread that polls is gone")??;
        drop(thread);
        Ok(())
    }

    async fn leave(self) -> Result<()> {
        Ok(self.consumer.commit_consumer_state(CommitMode::Sync)?)
    }
}

impl Kafka {
    /// Joins the group of the job.
    pub(crate) fn join(job: &Job) -> Result<Self> {
        let Address::Kafka { topic, .. } = &job.address else { bail!("only Kafka is consumed like this") };
        let consumer = Arc::new(consumer(&job.address, false)?);
        Ok(Self { topic: topic.as_str().into(), consumer, offsets: Arc::default() })
    }
}

/// A member of the group, with librdkafka's own defaults for fetching. What auto commit commits is what was stored.
fn consumer(address: &Address, stores_by_itself: bool) -> Result<BaseConsumer> {
    let Address::Kafka { hosts, topic, group } = address else { bail!("only Kafka is consumed like this") };
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", hosts)
        .set("group.id", group)
        .set("auto.offset.reset", "earliest")
        .set("enable.auto.commit", "true")
        .set("auto.commit.interval.ms", "1000")
        .set("enable.auto.offset.store", if stores_by_itself { "true" } else { "false" })
        .create()?;
    consumer.subscribe(&[topic.as_str()])?;
    Ok(consumer)
}

/// The next record. A poll comes back without one when it has served an event, too.
fn next(consumer: &BaseConsumer) -> Result<BorrowedMessage<'_>> {
    let begin = Instant::now();
    while begin.elapsed() < SILENCE {
        if let Some(record) = consumer.poll(SILENCE) {
            return Ok(record?);
        }
    }
    bail!("no record came within {SILENCE:?}")
}

/// Polls every record of the topic and does nothing with it.
pub(crate) async fn raw(job: &Job, clock: &Clock) -> Result<u64> {
    let (job, clock) = (job.clone(), clock.clone());
    let polled = tokio::task::spawn_blocking(move || -> Result<()> {
        let consumer = consumer(&job.address, true)?;
        let mut bytes = 0;
        for at in 0..job.records {
            let record = next(&consumer).with_context(|| format!("after {at} records"))?;
            clock.received();
            bytes += record.payload().map_or(0, <[u8]>::len);
        }
        clock.done();
        if bytes == 0 {
            bail!("the records were empty");
        }
        consumer.commit_consumer_state(CommitMode::Sync)?;
        Ok(())
    });
    polled.await??;
    Ok(0)
}

fn poll(consumer: &BaseConsumer, offsets: &Mutex<Offsets>, inlets: &Inlets<Place>) -> Result<()> {
    for at in 0..inlets.records {
        let polled = next(consumer).with_context(|| format!("after {at} records"))?;
        inlets.received();
        let place = Place { partition: polled.partition(), offset: polled.offset() };
        let id = polled.headers().into_iter().flat_map(|headers| headers.iter()).find(|one| one.key == "message-id");
        let body = Bytes::copy_from_slice(polled.payload().context("a record has no body")?);
        let record = Record::new(place, id.and_then(|id| id.value), body)?;
        offsets.lock().unwrap_or_else(PoisonError::into_inner).polled(place);
        if inlets.lane(polled.key()).blocking_send(record).is_err() {
            // Its task has failed, and says why.
            return Ok(());
        }
    }
    Ok(())
}
