//! What hand-written contestants have in common: a source of records, and a channel to each of their tasks.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use anyhow::{Context as _, Result};
use inbox::{Bytes, postgres::sqlx::PgPool};
use tokio::{
    sync::mpsc::{Receiver, Sender, channel},
    task::JoinSet,
};
use uuid::Uuid;

use super::{Job, WAITING, clock::Clock, receipts};

/// How long nothing may come before a contestant gives up.
pub(crate) const SILENCE: Duration = Duration::from_secs(60);

/// A record, as a loop needs it.
#[derive(Debug)]
pub(crate) struct Record<M> {
    /// By what it is acknowledged.
    pub(crate) mark: M,
    pub(crate) id: Uuid,
    pub(crate) fingerprint: i32,
    pub(crate) body: Bytes,
}

impl<M> Record<M> {
    /// With the id as it came.
    pub(crate) fn new(mark: M, id: Option<&[u8]>, body: Bytes) -> Result<Self> {
        let id = Uuid::try_parse_ascii(id.context("a record has no id")?)?;
        let fingerprint = crc32fast::hash(&body).cast_signed();
        Ok(Self { mark, id, fingerprint, body })
    }
}

/// What acknowledges records. Each task has one.
pub(crate) trait Acks: Clone + Send + Sync + 'static {
    /// What a record is acknowledged by.
    type Mark: Send + 'static;

    /// The transaction of these records has committed.
    fn done(&self, marks: Vec<Self::Mark>) -> impl Future<Output = Result<()>> + Send;
}

/// A queue, as its SDK shows it.
pub(crate) trait Source: Sized + Send + 'static {
    type Acks: Acks;

    fn acks(&self) -> Self::Acks;

    /// Hands as many records as `inlets` says to the tasks of their keys.
    fn feed(&mut self, inlets: Inlets<Mark<Self>>) -> impl Future<Output = Result<()>> + Send;

    /// Waits until what is done is acknowledged. No task has an [`Acks`] any more.
    fn settled(&mut self) -> impl Future<Output = Result<()>> {
        async { Ok(()) }
    }

    /// Leaves the broker, which is not measured.
    fn leave(self) -> impl Future<Output = Result<()>>;
}

/// What a source's records are acknowledged by.
pub(crate) type Mark<S> = <<S as Source>::Acks as Acks>::Mark;

/// The ways to the tasks.
pub(crate) struct Inlets<M> {
    lanes: Vec<Sender<Record<M>>>,
    clock: Clock,
    /// How many records there are.
    pub(crate) records: usize,
}

impl<M> Inlets<M> {
    /// A record has come.
    pub(crate) fn received(&self) {
        self.clock.received();
    }

    /// The way to the task of a key: records of one key go to one task, so that they are done in their order.
    pub(crate) fn lane(&self, key: Option<&[u8]>) -> &Sender<Record<M>> {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        // The remainder is below their number.
        &self.lanes[usize::try_from(hasher.finish() % self.lanes.len() as u64).unwrap_or(0)]
    }
}

/// What a task of a hand-written loop works with.
pub(crate) struct Lane<S: Source> {
    pub(crate) records: Receiver<Record<Mark<S>>>,
    pub(crate) pool: PgPool,
    pub(crate) acks: S::Acks,
}

/// Runs `lane` in `lanes` tasks, each fed with the records of its keys, until all records of the source are done; how
/// many transactions they committed.
pub(crate) async fn through_lanes<S: Source, F>(
    mut source: S,
    job: &Job,
    clock: &Clock,
    lanes: usize,
    lane: impl Fn(Lane<S>) -> F,
) -> Result<u64>
where
    F: Future<Output = Result<u64>> + Send + 'static,
{
    let pool = receipts::pool(&job.database, lanes).await?;
    let mut tasks = JoinSet::new();
    let mut inlets = Inlets { lanes: Vec::new(), clock: clock.clone(), records: job.records };
    for _ in 0..lanes {
        let (inlet, records) = channel((WAITING / lanes).max(1));
        inlets.lanes.push(inlet);
        tasks.spawn(lane(Lane { records, pool: pool.clone(), acks: source.acks() }));
    }
    let mut feeding = JoinSet::new();
    feeding.spawn(async move { source.feed(inlets).await.map(|()| source) });
    let mut transactions = 0;
    while let Some(ended) = tasks.join_next().await {
        transactions += ended??;
    }
    let mut source = feeding.join_next().await.context("nothing was fed")???;
    source.settled().await?;
    clock.done();
    source.leave().await?;
    pool.close().await;
    Ok(transactions)
}
