//! The claim path.

use std::{collections::HashMap, error::Error, sync::Arc, time::Duration};

use backon::Retryable;
use inbox_core::{
    Blame, Candidate, Claim, Claims, ConsumerId, InboxStore, Limits, MessageId, StoreError, StoreErrorKind, clock,
    maintenance::Maintenance, store::sorted,
};
use sqlx::{AssertSqlSafe, Connection, Row, Sqlite, SqlitePool, Transaction, sqlite::SqlitePoolOptions};
use uuid::Uuid;

use crate::{
    config::SqliteConfig,
    error,
    guard::{Guard, depth},
    sql,
    time::{millis, millis_of},
};

/// How long a lane waits for the one connection that writes.
const TURN: Duration = Duration::from_secs(120);

/// The inbox in a SQLite file.
///
/// SQLite has one writer at a time, so this store has one writing connection of its own, with durable commits
/// (`synchronous=FULL`) in write-ahead mode; lanes take turns. Cloning is cheap and shares it.
#[derive(Clone, Debug)]
pub struct SqliteInboxStore {
    pub(crate) writer: SqlitePool,
    pub(crate) reader: SqlitePool,
    pub(crate) guard: Arc<Guard>,
}

impl SqliteInboxStore {
    /// Opens the database in `file` (a path, or `sqlite:PATH`); the file is made if it is not there, the tables are not:
    /// call [`migrate`](Maintenance::migrate), or use [`builder`](Self::builder).
    ///
    /// # Errors
    /// `InvalidConfig` when the file cannot be opened or is no database.
    pub async fn open(file: &str) -> Result<Self, StoreError> {
        SqliteConfig::new(file)?.open().await
    }

    /// Settings, and then [`open`](SqliteConfig::open).
    ///
    /// # Errors
    /// As [`SqliteConfig::new`].
    pub fn builder(file: &str) -> Result<SqliteConfig, StoreError> {
        SqliteConfig::new(file)
    }

    /// Opens the database that `pool` uses, with connections of its own. The pool is not touched.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn new(pool: &SqlitePool) -> Result<Self, StoreError> {
        SqliteConfig::of((*pool.connect_options()).clone()).open().await
    }

    pub(crate) async fn with(config: SqliteConfig) -> Result<Self, StoreError> {
        let guard: Arc<Guard> = Arc::default();
        let options = config.connect_options();
        let open = || {
            let guard = Arc::clone(&guard);
            SqlitePoolOptions::new()
                .max_connections(1)
                .acquire_timeout(config.busy_timeout.max(TURN))
                .idle_timeout(None)
                .max_lifetime(None)
                .test_before_acquire(false)
                .after_connect(move |connection, _| Box::pin(Arc::clone(&guard).install(connection)))
                // A connection in doubt is closed, never reused.
                .after_release(|connection, _| {
                    let clean = depth(connection) == 0;
                    Box::pin(async move { Ok(clean) })
                })
                .connect_with(options.clone())
        };
        let writer = open
            .retry(error::patience())
            .when(error::is_busy)
            .await
            .map_err(|error| error::store(error, "open").context("the database file cannot be opened"))?;
        let file: String =
            sqlx::query_scalar(sql::FILE).fetch_one(&writer).await.map_err(|error| error::store(error, "open"))?;
        if file.is_empty() {
            return Err(StoreError::new(StoreErrorKind::InvalidConfig, "open").context(
                "an in-memory database: the store's own connections would see another one; accepted: a file",
            ));
        }
        let reader = SqlitePoolOptions::new().max_connections(2).connect_lazy_with(options.clone());
        let store = Self { writer, reader, guard };
        if config.migrate_on_start {
            store.migrate().await?;
        }
        Ok(store)
    }

    /// Begins a transaction of the store's own connection.
    pub(crate) async fn begin_own(&self, operation: &'static str) -> Result<Transaction<'static, Sqlite>, StoreError> {
        let begin = || self.begin_once(operation);
        begin.retry(error::patience()).when(|error| error.kind() == StoreErrorKind::Contention).await
    }

    async fn begin_once(&self, operation: &'static str) -> Result<Transaction<'static, Sqlite>, StoreError> {
        let tx = self.writer.begin_with(sql::BEGIN).await.map_err(|error| error::store(error, operation))?;
        self.guard.begun();
        Ok(tx)
    }

    /// Commits a transaction whose statements were all the store's own.
    pub(crate) async fn commit_own(
        &self,
        tx: Transaction<'static, Sqlite>,
        operation: &'static str,
    ) -> Result<(), StoreError> {
        self.guard.arm();
        tx.commit().await.map_err(|error| match error::store(error, operation) {
            error if error.kind() == StoreErrorKind::Unavailable => {
                StoreError::new(StoreErrorKind::CommitUnknown, operation).source(error)
            }
            error => error,
        })
    }
}

fn hex(id: MessageId) -> String {
    id.as_uuid().simple().to_string()
}

/// Ids as the JSON array that statements take.
pub(crate) fn json_ids(ids: impl Iterator<Item = MessageId>) -> String {
    let quoted: Vec<String> = ids.map(|id| format!("\"{}\"", hex(id))).collect();
    format!("[{}]", quoted.join(","))
}

impl InboxStore for SqliteInboxStore {
    type Tx = Transaction<'static, Sqlite>;

    async fn register(&self, consumer: &str) -> Result<ConsumerId, StoreError> {
        crate::migrate::require(self).await?;
        if let Some(known) = self.consumer_of(consumer).await? {
            return Ok(known);
        }
        let mut tx = self.begin_own("register").await?;
        let fail = |error| error::store(error, "register");
        sqlx::query(sql::REGISTER).bind(consumer).execute(&mut *tx).await.map_err(fail)?;
        let id: i64 = sqlx::query_scalar(sql::CONSUMER).bind(consumer).fetch_one(&mut *tx).await.map_err(fail)?;
        self.commit_own(tx, "register").await?;
        i32::try_from(id).map(ConsumerId).map_err(|error| {
            StoreError::new(StoreErrorKind::Unexpected, "register").context("too many consumers").source(error)
        })
    }

    /// `limits` have no effect: SQLite has one writer, so a claim never waits for another transaction, and a statement
    /// cannot be stopped.
    async fn begin(&self, _limits: &Limits) -> Result<Self::Tx, StoreError> {
        // Who is busy is asked again by the runtime, or by the loop of one's own.
        self.begin_once("begin").await
    }

    async fn claim(
        &self,
        tx: &mut Self::Tx,
        consumer: ConsumerId,
        candidates: &[Candidate],
    ) -> Result<Claims, StoreError> {
        let fail = |error| error::store(error, "claim");
        let now = millis(clock::now());
        let rows: Vec<String> = sorted(candidates)
            .iter()
            .map(|c| format!("[\"{}\",{},{}]", hex(c.id), c.fingerprint, c.time.map_or(now, millis)))
            .collect();
        let new = sqlx::query(sql::CLAIM)
            .bind(consumer.0)
            .bind(now)
            .bind(format!("[{}]", rows.join(",")))
            .fetch_all(&mut **tx)
            .await
            .map_err(fail)?;
        let mut found: HashMap<MessageId, Claim> = HashMap::with_capacity(candidates.len());
        for row in &new {
            let id: Uuid = row.try_get(0).map_err(fail)?;
            found.insert(MessageId::from_uuid(id), Claim::New);
        }
        if new.len() < candidates.len() {
            let known = candidates.iter().filter(|candidate| !found.contains_key(&candidate.id));
            let known: HashMap<MessageId, i32> = known.map(|c| (c.id, c.fingerprint)).collect();
            let rows = sqlx::query(sql::FINGERPRINTS)
                .bind(consumer.0)
                .bind(json_ids(known.keys().copied()))
                .fetch_all(&mut **tx)
                .await
                .map_err(fail)?;
            for row in &rows {
                let id = MessageId::from_uuid(row.try_get(0).map_err(fail)?);
                let fingerprint: i32 = row.try_get(1).map_err(fail)?;
                let same = known.get(&id) == Some(&fingerprint);
                found.insert(id, if same { Claim::Duplicate } else { Claim::Conflict });
            }
        }
        if found.len() != candidates.len() {
            return Err(
                StoreError::new(StoreErrorKind::Contention, "claim").context("claims vanished while they were read")
            );
        }
        Ok(Claims::new(consumer, self.guard.current(), found))
    }

    async fn unclaim(&self, tx: &mut Self::Tx, claims: &mut Claims, ids: &[MessageId]) -> Result<(), StoreError> {
        sqlx::query(sql::UNCLAIM)
            .bind(claims.consumer().0)
            .bind(json_ids(ids.iter().copied()))
            .execute(&mut **tx)
            .await
            .map_err(|error| error::store(error, "unclaim"))?;
        ids.iter().for_each(|id| claims.unclaimed(*id));
        Ok(())
    }

    async fn check(&self, tx: &mut Self::Tx, claims: &Claims) -> Result<(), StoreError> {
        // A statement that still runs (its future was dropped) may be about to end the transaction: wait for it.
        tx.ping().await.map_err(|error| error::store(error, "check"))?;
        // A nested transaction that a handler began and forgot: sqlx would release a savepoint and send no COMMIT.
        if self.guard.is_open(claims.transaction()) && depth(tx) == 1 {
            return Ok(());
        }
        let last = tx.lock_handle().await.map_err(|error| error::store(error, "check"))?.last_error();
        if last.is_some_and(|error| error::is_outage(&error)) {
            return Err(StoreError::new(StoreErrorKind::Unavailable, "check").context(
                "the database ended the transaction: the disk is full, or cannot be read or written; nothing is kept",
            ));
        }
        Err(StoreError::new(StoreErrorKind::TransactionEscaped, "check").context(
            "the transaction has ended inside a handler (COMMIT, ROLLBACK, INSERT OR ROLLBACK, RAISE(ROLLBACK)), or a nested \
             one was never ended; nothing of the batch is kept",
        ))
    }

    async fn commit(&self, mut tx: Self::Tx, claims: Claims) -> Result<(), StoreError> {
        if let Err(error) = claims.resolved() {
            self.rollback(tx).await?;
            return Err(error);
        }
        if let Err(error) = self.check(&mut tx, &claims).await {
            drop(self.rollback(tx).await);
            return Err(error);
        }
        #[cfg(feature = "failpoints")]
        fail::fail_point!("inbox::e");
        self.commit_own(tx, "commit").await
    }

    async fn rollback(&self, mut tx: Self::Tx) -> Result<(), StoreError> {
        // A statement whose future was dropped may still run, and may end the transaction: wait for it before asking.
        drop(tx.ping().await);
        let was_open = self.guard.is_open(self.guard.current());
        let rolled_back = tx.rollback().await;
        // If it had ended already there is nothing to roll back, and SQLite says so by an error.
        if was_open { rolled_back.map_err(|error| error::store(error, "rollback")) } else { Ok(()) }
    }

    fn classify(&self, error: &(dyn Error + 'static)) -> Blame {
        error::blame(error)
    }
}

/// For tests of other crates: runs SQL text as a handler might.
#[doc(hidden)]
pub async fn run_sql(tx: &mut Transaction<'_, Sqlite>, text: &str) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(text.to_owned())).execute(&mut **tx).await.map(drop)
}

/// The time of a column in milliseconds.
pub(crate) fn time_of(row: &sqlx::sqlite::SqliteRow, column: usize) -> Result<std::time::SystemTime, sqlx::Error> {
    row.try_get(column).map(millis_of)
}
