//! The loop: poll, settle what was polled in the database, and only then store the offsets.

use std::{
    collections::HashMap,
    fmt,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use anyhow::bail;
use backon::{BackoffBuilder, ExponentialBuilder, Retryable};
use inbox::{
    Blame, Claim, Claims, ConsumerId, InboxStore, Limits, StoreError, StoreErrorKind,
    failure_store::{FailureStore, Reason},
    id::of_conflict,
    postgres::{PgInboxStore, PgTransaction, sqlx},
    report,
};
use rdkafka::{
    consumer::{BaseConsumer, Consumer},
    error::{KafkaError, KafkaResult},
};

use crate::records::{Record, Work};

/// How many records one poll takes at most: one transaction.
const MOST: usize = 100;
const MAX_ATTEMPTS: u32 = 3;

/// Why a transaction did not commit, or may not have.
#[derive(Debug)]
enum Trouble {
    /// Nobody's fault: the same again. An unknown COMMIT too: if it did commit, the next claim says `Duplicate`.
    Later(String),
    /// A message's fault; whose is known when it was alone.
    Message(String),
    /// To try again would not help.
    Fatal(String),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Later(text) | Self::Message(text) | Self::Fatal(text)) = self;
        f.write_str(text)
    }
}

impl std::error::Error for Trouble {}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        match error.kind() {
            kind if kind.is_retryable() => Self::Later(report(&error)),
            // A constraint that is looked at at COMMIT; a failed statement whose error was swallowed.
            StoreErrorKind::Unexpected | StoreErrorKind::TransactionAborted => Self::Message(report(&error)),
            _ => Self::Fatal(report(&error)),
        }
    }
}

pub(crate) struct Loop<'a> {
    pub(crate) store: &'a PgInboxStore,
    pub(crate) consumer: ConsumerId,
    pub(crate) topic: &'a str,
    pub(crate) effects: &'a str,
    pub(crate) stop: &'a AtomicBool,
}

impl Loop<'_> {
    /// Consumes until `records` are settled or somebody stops it, and says how many of them were duplicates. With `dies`
    /// it stores no offset, as a process that is killed between COMMIT and the next commit of offsets.
    ///
    /// A rebalance needs no code: records whose partition is gone are settled all the same, its next owner finds
    /// duplicates, and to store an offset of it is refused.
    pub(crate) async fn run(&self, kafka: &BaseConsumer, records: usize, dies: bool) -> anyhow::Result<usize> {
        let (mut settled, mut duplicates) = (0, 0);
        while settled < records && !self.stop.load(Ordering::Relaxed) {
            let polled = tokio::task::block_in_place(|| poll(kafka))?;
            if !polled.is_empty() {
                duplicates += self.settle(&polled).await?;
            }
            settled += polled.len();
            // Each has its outcome in the database. What is stored is committed by rdkafka, also when it is dropped.
            let last: HashMap<i32, i64> = polled.iter().map(|record| (record.partition, record.offset)).collect();
            for (partition, offset) in last.into_iter().filter(|_| !dies) {
                if let Err(error) = kafka.store_offset(self.topic, partition, offset) {
                    eprintln!("records of partition {partition} will come again, as duplicates: {error}");
                }
            }
        }
        Ok(duplicates)
    }

    async fn settle(&self, records: &[Record]) -> anyhow::Result<usize> {
        match self.persistently(records, None).await {
            Err(Trouble::Message(_)) => {}
            outcome => return Ok(outcome?),
        }
        // One of them fails: each in a transaction of its own, in their order.
        let mut duplicates = 0;
        for record in records {
            duplicates += self.settle_alone(record).await?;
        }
        Ok(duplicates)
    }

    async fn settle_alone(&self, record: &Record) -> anyhow::Result<usize> {
        let mut give_up = None;
        for pause in backoff().build() {
            let error = match self.persistently(std::slice::from_ref(record), give_up.as_deref()).await {
                Err(Trouble::Message(error)) if give_up.is_none() => error,
                outcome => return Ok(outcome?),
            };
            // Counted in the database, so that a restart does not forget it. `None`: somebody else has finished it.
            let failure = record.failure(record.id, Reason::Retrying, &error);
            match self.store.record_attempt(self.consumer, &failure).await {
                Ok(Some(attempts)) if attempts >= MAX_ATTEMPTS => give_up = Some(error),
                Err(error) if !error.is_retryable() => return Err(error.into()),
                Ok(_) | Err(_) => tokio::time::sleep(pause).await,
            }
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
        }
        bail!("stopped while {} was tried; it comes again", record.id)
    }

    /// The transaction again and again while nobody is to blame. If it takes longer than `max.poll.interval.ms`, the group
    /// goes on without this member, which joins again at its next poll.
    async fn persistently(&self, records: &[Record], give_up: Option<&str>) -> Result<usize, Trouble> {
        (|| self.once(records, give_up))
            .retry(backoff())
            .when(|trouble| matches!(trouble, Trouble::Later(_)) && !self.stop.load(Ordering::Relaxed))
            .notify(|trouble, pause| eprintln!("again in {pause:?}: {trouble}"))
            .await
    }

    /// Claims, works and commits; says how many were duplicates.
    async fn once(&self, records: &[Record], give_up: Option<&str>) -> Result<usize, Trouble> {
        let mut tx = self.store.begin(&Limits::default()).await?;
        match self.work(&mut tx, records, give_up).await {
            Ok((claims, duplicates)) => Ok(self.store.commit(tx, claims).await.map(|()| duplicates)?),
            Err(trouble) => {
                // An error of the rollback says nothing new: without its connection, the database rolls back by itself.
                drop(self.store.rollback(tx).await);
                Err(trouble)
            }
        }
    }

    async fn work(
        &self,
        tx: &mut PgTransaction<'static>,
        records: &[Record],
        give_up: Option<&str>,
    ) -> Result<(Claims, usize), Trouble> {
        let mut firsts = HashMap::new();
        for record in records {
            firsts.entry(record.id).or_insert(record);
        }
        let candidates: Vec<_> = firsts.values().map(|record| record.candidate()).collect();
        let mut claims = self.store.claim(tx, self.consumer, &candidates).await?;
        let mut duplicates = 0;
        for record in records {
            // A further copy in the poll shares the first one's fate; a further content is another message.
            let claim = match firsts.get(&record.id) {
                Some(first) if std::ptr::eq(*first, record) => claims.get(record.id),
                Some(first) if first.fingerprint == record.fingerprint => Some(Claim::Duplicate),
                _ => Some(Claim::Conflict),
            };
            match (claim, &record.work, give_up) {
                (Some(Claim::New), Work::Run(captured), None) => {
                    let query = format!("INSERT INTO {} (payment, cents) VALUES ($1, $2)", self.effects);
                    let query = sqlx::query(sqlx::AssertSqlSafe(query)).bind(&captured.payment).bind(captured.cents);
                    query.execute(&mut **tx).await.map_err(|error| match self.store.classify(&error) {
                        Blame::Infrastructure | Blame::Contention => Trouble::Later(report(&error)),
                        Blame::Message | Blame::Unpinned => Trouble::Message(report(&error)),
                    })?;
                    if records.len() == 1 {
                        self.store.forget_attempts(tx, self.consumer, record.id).await?;
                    }
                    claims.done(record.id);
                }
                (Some(Claim::New), work, _) => {
                    let failure = match (work, give_up) {
                        (Work::Keep(reason, error), _) => record.failure(record.id, *reason, error),
                        (Work::Run(_), error) => {
                            record.failure(record.id, Reason::MaxAttempts, error.unwrap_or_default())
                        }
                    };
                    self.store.give_up(tx, &mut claims, &failure).await?;
                }
                (Some(Claim::Duplicate), ..) => duplicates += 1,
                // The claim is another message's: kept beside it, or this one would vanish.
                (Some(Claim::Conflict), ..) => {
                    let id = of_conflict(record.id, record.fingerprint);
                    let failure = record.failure(id, Reason::IdConflict, "the id was used before, for another content");
                    self.store.keep(tx, self.consumer, &failure).await?;
                }
                (None, ..) => return Err(Trouble::Fatal(format!("the store says nothing of {}", record.id))),
            }
        }
        Ok((claims, duplicates))
    }
}

fn backoff() -> ExponentialBuilder {
    let (first, most) = (Duration::from_millis(100), Duration::from_secs(5));
    ExponentialBuilder::default().with_min_delay(first).with_max_delay(most).with_jitter().without_max_times()
}

/// What is there; an idle topic is waited for a little.
fn poll(kafka: &BaseConsumer) -> KafkaResult<Vec<Record>> {
    let mut records = Vec::new();
    let mut wait = Duration::from_millis(200);
    while records.len() < MOST {
        match kafka.poll(wait) {
            None => break,
            Some(Ok(record)) => records.push(Record::new(&record)),
            Some(Err(error @ KafkaError::MessageConsumptionFatal(_))) => return Err(error),
            // rdkafka connects again by itself.
            Some(Err(error)) => eprintln!("kafka: {error}"),
        }
        wait = Duration::ZERO;
    }
    Ok(records)
}
