//! How hand-written contestants read the topic: a thread that polls, and a channel to each of their tasks.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use inbox::postgres::sqlx::PgPool;
use rdkafka::{
    ClientConfig, Message as _,
    consumer::{BaseConsumer, CommitMode, Consumer as _},
    message::{BorrowedMessage, Headers as _},
};
use tokio::{
    sync::{
        mpsc::{Receiver, Sender, channel},
        oneshot,
    },
    task::JoinSet,
};
use uuid::Uuid;

use super::{
    Job, WAITING,
    clock::Clock,
    offsets::{Offsets, Place},
    receipts,
};

/// How long nothing may come before a contestant gives up.
const SILENCE: Duration = Duration::from_secs(60);

/// A record, as a loop needs it.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) place: Place,
    pub(crate) id: Uuid,
    pub(crate) fingerprint: i32,
    pub(crate) body: Vec<u8>,
}

/// What the tasks of a hand-written loop share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) pool: PgPool,
    topic: Arc<str>,
    consumer: Arc<BaseConsumer>,
    offsets: Arc<Mutex<Offsets>>,
}

impl Shared {
    /// Stores the offsets of records whose transaction has committed. librdkafka commits what is stored once a second.
    pub(crate) fn done(&self, places: &[Place]) -> Result<()> {
        let mut offsets = self.offsets.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock: a lower offset must not be stored behind a higher one.
        for place in offsets.done(places) {
            self.consumer.store_offset(&self.topic, place.partition, place.offset)?;
        }
        Ok(())
    }
}

/// A member of the group, with librdkafka's own defaults for fetching. What auto commit commits is what was stored.
fn consumer(job: &Job, stores_by_itself: bool) -> Result<BaseConsumer> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", crate::servers::hosts(&job.kafka)?)
        .set("group.id", &job.group)
        .set("auto.offset.reset", "earliest")
        .set("enable.auto.commit", "true")
        .set("auto.commit.interval.ms", "1000")
        .set("enable.auto.offset.store", if stores_by_itself { "true" } else { "false" })
        .create()?;
    consumer.subscribe(&[job.topic.as_str()])?;
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
        let consumer = consumer(&job, true)?;
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

/// Runs `lane` in `lanes` tasks, each fed with the records of its keys, until all records of the topic are done; how
/// many transactions they committed.
pub(crate) async fn through_lanes<F>(
    job: &Job,
    clock: &Clock,
    lanes: usize,
    lane: impl Fn(Receiver<Record>, Shared) -> F,
) -> Result<u64>
where
    F: Future<Output = Result<u64>> + Send + 'static,
{
    let shared = Shared {
        pool: receipts::pool(&job.database, lanes).await?,
        topic: job.topic.as_str().into(),
        consumer: Arc::new(consumer(job, false)?),
        offsets: Arc::default(),
    };
    let mut tasks = JoinSet::new();
    let mut inlets = Vec::new();
    for _ in 0..lanes {
        let (inlet, outlet) = channel((WAITING / lanes).max(1));
        inlets.push(inlet);
        tasks.spawn(lane(outlet, shared.clone()));
    }
    let (said, polled) = oneshot::channel();
    let thread = {
        let (shared, clock, records) = (shared.clone(), clock.clone(), job.records);
        let body = move || drop(said.send(poll(&shared, &clock, records, &inlets)));
        thread::Builder::new().name("poll".to_owned()).spawn(body)?
    };
    let mut transactions = 0;
    while let Some(ended) = tasks.join_next().await {
        transactions += ended??;
    }
    clock.done();
    polled.await.context("the thread that polls is gone")??;
    drop(thread);
    shared.consumer.commit_consumer_state(CommitMode::Sync)?;
    shared.pool.close().await;
    Ok(transactions)
}

/// Hands `records` records to the tasks of their keys, then closes the channels.
fn poll(shared: &Shared, clock: &Clock, records: usize, lanes: &[Sender<Record>]) -> Result<()> {
    for at in 0..records {
        let polled = next(&shared.consumer).with_context(|| format!("after {at} records"))?;
        clock.received();
        let place = Place { partition: polled.partition(), offset: polled.offset() };
        let id = polled.headers().into_iter().flat_map(|headers| headers.iter()).find(|one| one.key == "message-id");
        let id = Uuid::try_parse_ascii(id.and_then(|id| id.value).context("a record has no id")?)?;
        let body = polled.payload().context("a record has no body")?.to_vec();
        let fingerprint = crc32fast::hash(&body).cast_signed();
        shared.offsets.lock().unwrap_or_else(PoisonError::into_inner).polled(place);
        let lane = lane_of(polled.key(), lanes.len());
        if lanes[lane].blocking_send(Record { place, id, fingerprint, body }).is_err() {
            // Its task has failed, and says why.
            return Ok(());
        }
    }
    Ok(())
}

/// Records of one key go to one task, so that they are done in their order.
fn lane_of(key: Option<&[u8]>, lanes: usize) -> usize {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    // The remainder is below `lanes`.
    usize::try_from(hasher.finish() % lanes as u64).unwrap_or(0)
}
