//! The consuming side of the queue: leases in a table, extended by a task as long as the process lives.

use std::{
    collections::{HashMap, VecDeque},
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use inbox_core::{
    Acked, Bytes, Capacity, Delivery, IdText, InFlight, Message, Receipt, Session, Source, Transport, TransportError,
    TransportErrorKind,
    capability::{Capabilities, Lease, MaxAge, Ordering},
    clock, envelope,
};
use sqlx::{
    Row, SqlitePool,
    sqlite::{SqliteRow, SqliteSynchronous},
};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    error,
    queue::QueueConfig,
    sql::queue as sql,
    time::{millis, millis_of},
};

/// How long the queue is not looked at while it is empty, at first and at most.
const LOOK: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(25));

/// How many messages may wait, known to the group and leased to nobody, because another member holds their key.
const MOST_WAITING: i64 = 10_000;

/// Tasks of this adapter end with the transport, and none is ever aborted.
#[allow(clippy::disallowed_methods, reason = "an adapter's own tasks, see above")]
pub(crate) fn spawn<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> tokio::task::JoinHandle<T> {
    tokio::spawn(task)
}

/// Consumes a topic in a file as a member of a group.
///
/// Every member may be a process of its own. A message that was handed over is leased to its member; the lease is
/// extended as long as the process lives, so that only the messages of a dead one are handed to others.
#[derive(Debug)]
pub struct SqliteTransport {
    queue: Arc<Queue>,
    capabilities: Capabilities,
    /// Serves one `receive` at a time; what a dropped call has fetched waits in the buffer.
    receiving: tokio::sync::Mutex<()>,
    _stop: DropGuard,
}

/// What settles a delivery: its number, and the lease under which it went out.
#[derive(Clone, Copy, Debug)]
struct Held {
    seq: i64,
    lease: i64,
}

#[derive(Debug)]
struct Queue {
    /// Writes; one connection, since SQLite has one writer. Not durable before the next checkpoint: what a power cut
    /// takes is an acknowledgement, and the message is a duplicate then.
    writer: SqlitePool,
    reader: SqlitePool,
    topic: i64,
    group: i64,
    owner: i64,
    source: Arc<str>,
    lease: Duration,
    session: Session,
    in_flight: InFlight<Held>,
    buffer: Mutex<VecDeque<(Held, Delivery)>>,
    closed: CancellationToken,
}

impl SqliteTransport {
    /// Opens the topic, which must exist, for a group, which is made on first use.
    ///
    /// # Errors
    /// `NotFound` when file or topic are missing, `InvalidConfig` without a group.
    pub async fn connect(config: &QueueConfig) -> Result<Self, TransportError> {
        config.check()?;
        let writer = config.pool(false, SqliteSynchronous::Normal, 1).await?;
        let reader = config.pool(false, SqliteSynchronous::Normal, 1).await?;
        let topic = config.topic_id(&reader).await?;
        let group = config.group_id(&writer, topic).await?;
        let closed = CancellationToken::new();
        let queue = Arc::new(Queue {
            writer,
            reader,
            topic,
            group,
            owner: number(),
            source: config.topic.as_str().into(),
            lease: config.lease,
            session: Session::new(),
            in_flight: InFlight::new(),
            buffer: Mutex::default(),
            closed: closed.clone(),
        });
        drop(spawn(keep(Arc::clone(&queue))));
        let capabilities = Capabilities {
            name: "sqlite",
            ordering: Ordering::Key,
            lease: Lease::Extended { timeout: config.lease },
            delivery_count: true,
            suspect_flag: true,
            exclusive_keys: true,
            // SQLite's own limit is a gigabyte.
            max_body: None,
            durable: true,
        };
        Ok(Self { queue, capabilities, receiving: tokio::sync::Mutex::default(), _stop: closed.drop_guard() })
    }
}

/// A random positive number, unlike any other with all likelihood.
fn number() -> i64 {
    let (high, _) = uuid::Uuid::new_v4().as_u64_pair();
    i64::try_from(high >> 1).unwrap_or(i64::MAX)
}

fn json(numbers: &[i64]) -> String {
    format!("[{}]", numbers.iter().map(i64::to_string).collect::<Vec<_>>().join(","))
}

/// Extends leases, and gives back what was dropped, until the transport is closed or dropped.
async fn keep(queue: Arc<Queue>) {
    let mut tick = tokio::time::interval(queue.lease / 4);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let done = tokio::select! {
            () = queue.closed.cancelled() => break,
            _ = tick.tick() => queue.extend().await,
            () = queue.in_flight.dropped() => queue.give_back(queue.in_flight.take_dropped()).await,
        };
        if let Err(error) = done {
            // The lease ends by itself then; nothing is lost.
            tracing::warn!(%error, "a lease could not be looked after");
        }
    }
    queue.session.mark_lost();
    if let Err(error) = queue.release_all().await {
        tracing::debug!(%error, "leases were not given back; they end by themselves");
    }
    queue.writer.close().await;
    queue.reader.close().await;
}

impl Queue {
    fn buffer(&self) -> std::sync::MutexGuard<'_, VecDeque<(Held, Delivery)>> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn until(&self) -> i64 {
        millis(clock::now() + self.lease)
    }

    async fn extend(&self) -> Result<(), sqlx::Error> {
        // What waits in the buffer is in the table, too.
        let mut seqs = Vec::new();
        self.in_flight.for_each(|_, _, held| seqs.push(held.seq));
        if seqs.is_empty() {
            return Ok(());
        }
        sqlx::query(sql::EXTEND)
            .bind(self.group)
            .bind(self.owner)
            .bind(self.until())
            .bind(json(&seqs))
            .execute(&self.writer)
            .await
            .map(drop)
    }

    async fn release_all(&self) -> Result<(), sqlx::Error> {
        sqlx::query(sql::RELEASE_ALL).bind(self.group).bind(self.owner).execute(&self.writer).await.map(drop)
    }

    async fn give_back(&self, held: Vec<Held>) -> Result<(), sqlx::Error> {
        self.settle(sql::RELEASE, held).await.map(drop)
    }

    /// Runs a statement for deliveries, lease by lease, in one transaction; how many rows it found.
    async fn settle(&self, statement: &'static str, held: Vec<Held>) -> Result<u64, sqlx::Error> {
        let mut by_lease: HashMap<i64, Vec<i64>> = HashMap::new();
        for Held { seq, lease } in held {
            by_lease.entry(lease).or_default().push(seq);
        }
        if by_lease.is_empty() {
            return Ok(0);
        }
        let mut tx = self.writer.begin_with("BEGIN IMMEDIATE").await?;
        let mut found = 0;
        for (lease, seqs) in by_lease {
            let done = sqlx::query(statement).bind(self.group).bind(lease).bind(json(&seqs)).execute(&mut *tx).await?;
            found += done.rows_affected();
        }
        tx.commit().await?;
        Ok(found)
    }

    /// Leases messages, as many as `capacity` has room for, and puts them into the buffer.
    async fn fetch(&self, capacity: Capacity) -> Result<(), sqlx::Error> {
        let now = millis(clock::now());
        let any: bool =
            sqlx::query_scalar(sql::ANY).bind(self.topic).bind(self.group).bind(now).fetch_one(&self.reader).await?;
        if !any {
            return Ok(());
        }
        let lease = number();
        let most = i64::try_from(capacity.messages).unwrap_or(i64::MAX);
        let mut tx = self.writer.begin_with("BEGIN IMMEDIATE").await?;
        let until = self.until();
        let waiting: i64 = sqlx::query_scalar(sql::WAITING).bind(self.group).bind(now).fetch_one(&mut *tx).await?;
        // Those that wait for their key must not keep the others from coming, up to a bound.
        if waiting < most.saturating_add(MOST_WAITING) {
            let admitted = sqlx::query(sql::ADMIT)
                .bind(self.group)
                .bind(self.topic)
                .bind(most)
                .execute(&mut *tx)
                .await?
                .rows_affected();
            if admitted > 0 {
                sqlx::query(sql::ADVANCE).bind(self.group).execute(&mut *tx).await?;
            }
        }
        sqlx::query(sql::TAKE)
            .bind(self.group)
            .bind(self.owner)
            .bind(lease)
            .bind(until)
            .bind(now)
            .bind(most)
            .bind(i64::try_from(capacity.bytes).unwrap_or(i64::MAX))
            .execute(&mut *tx)
            .await?;
        let rows = sqlx::query(sql::TAKEN).bind(self.group).bind(lease).fetch_all(&mut *tx).await?;
        let mut deliveries = Vec::with_capacity(rows.len());
        for row in &rows {
            deliveries.push(self.delivery(row, lease)?);
        }
        // Deliveries whose transaction fails to commit are dropped here, and with them their receipts.
        tx.commit().await?;
        self.buffer().extend(deliveries);
        Ok(())
    }

    fn delivery(&self, row: &SqliteRow, lease: i64) -> Result<(Held, Delivery), sqlx::Error> {
        let bytes = |column: usize| row.try_get::<Option<Vec<u8>>, _>(column).map(|bytes| bytes.map(Bytes::from));
        let seq: i64 = row.try_get(0)?;
        let count: u32 = row.try_get(1)?;
        let mut message = Message::new(bytes(10)?.unwrap_or_default());
        message.id = bytes(3)?.map(IdText::new);
        message.kind = row.try_get(4)?;
        message.key = bytes(5)?;
        message.headers = bytes(6)?.and_then(|headers| envelope::decode_headers(&headers)).unwrap_or_default();
        message.origin = row.try_get(7)?;
        message.produced_at = row.try_get::<Option<i64>, _>(8)?.map(millis_of);
        message.stored_at = row.try_get::<Option<i64>, _>(9)?.map(millis_of);
        let held = Held { seq, lease };
        let delivery = Delivery {
            message: envelope::Envelope::default().open(message),
            receipt: self.in_flight.hold(&self.session, held),
            source: Source::new(Arc::clone(&self.source)).coordinates(seq.to_string()),
            partition: None,
            delivery_count: Some(count),
            suspect: row.try_get(2)?,
        };
        Ok((held, delivery))
    }

    /// Takes from the buffer what fits.
    fn hand_over(&self, capacity: Capacity) -> Vec<Delivery> {
        let mut buffer = self.buffer();
        let mut bytes = 0;
        let mut fits = 0;
        for (_, delivery) in buffer.iter().take(capacity.messages) {
            bytes += delivery.message.size();
            if fits > 0 && bytes > capacity.bytes {
                break;
            }
            fits += 1;
        }
        buffer.drain(..fits).map(|(_, delivery)| delivery).collect()
    }
}

fn closed(operation: &'static str) -> TransportError {
    TransportError::new(TransportErrorKind::Closed, operation).context("the transport was closed")
}

/// Waits for a task that outlives this future when it is dropped.
async fn finished<T: Send + 'static>(
    operation: &'static str,
    task: impl Future<Output = Result<T, sqlx::Error>> + Send + 'static,
) -> Result<T, TransportError> {
    match spawn(task).await {
        Ok(done) => done.map_err(|error| error::transport(error, operation)),
        Err(error) => Err(TransportError::new(TransportErrorKind::Unexpected, operation).source(error)),
    }
}

#[async_trait]
impl Transport for SqliteTransport {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn receive(&self, capacity: Capacity) -> Result<Vec<Delivery>, TransportError> {
        let _one_at_a_time = self.receiving.lock().await;
        let mut pause = LOOK.0;
        loop {
            if self.queue.closed.is_cancelled() {
                return Err(closed("receive"));
            }
            let ready = self.queue.hand_over(capacity);
            if !ready.is_empty() {
                return Ok(ready);
            }
            let queue = Arc::clone(&self.queue);
            let fetched = finished("receive", async move { queue.fetch(capacity).await }).await;
            if self.queue.closed.is_cancelled() {
                return Err(closed("receive"));
            }
            fetched?;
            if self.queue.buffer().is_empty() {
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = self.queue.closed.cancelled() => {}
                }
                pause = (pause * 2).min(LOOK.1);
            }
        }
    }

    async fn ack(&self, receipts: Vec<Receipt>) -> Result<Acked, TransportError> {
        let sent = receipts.len();
        let held = self.queue.in_flight.settle(receipts);
        let queue = Arc::clone(&self.queue);
        let found = finished("ack", async move { queue.settle(sql::ACK, held).await }).await?;
        let acked = usize::try_from(found).unwrap_or(sent).min(sent);
        Ok(Acked { acked, lost: sent - acked })
    }

    async fn release(&self, receipts: Vec<Receipt>) -> Result<(), TransportError> {
        let held = self.queue.in_flight.settle(receipts);
        let queue = Arc::clone(&self.queue);
        finished("release", async move { queue.give_back(held).await }).await
    }

    async fn max_age(&self) -> Result<MaxAge, TransportError> {
        Ok(MaxAge::Unbounded)
    }

    fn connected(&self) -> bool {
        !self.queue.closed.is_cancelled()
    }

    async fn close(&self, deadline: Duration) -> Result<(), TransportError> {
        self.queue.closed.cancel();
        self.queue.buffer().clear();
        let until = Instant::now() + deadline;
        tokio::time::timeout_at(until, self.queue.writer.close_event()).await.map_err(|_| {
            TransportError::new(TransportErrorKind::Unavailable, "close")
                .context("the deadline passed; leases end by themselves")
        })?;
        Ok(())
    }
}
