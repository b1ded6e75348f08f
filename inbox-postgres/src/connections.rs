//! The store's own connections: how they are opened, how transactions begin and end on them, and how those in doubt are
//! never used again.
//!
//! Nobody can take a connection out of sqlx's `Transaction`, and the pool's hooks do not see which one they are given
//! (neither its process nor whether the server is in a transaction), so doubt about one condemns all: the pool is closed
//! and replaced. Transactions that are open go on; their connections are closed when they end.

use std::{
    fmt,
    future::Future,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use inbox_core::{Limits, StoreError, StoreErrorKind};
use sqlx::{
    AssertSqlSafe, Connection, Database, Decode, Executor, PgConnection, PgPool, Postgres, Row, SqlSafeStr, SqlStr,
    Type,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use sqlx_core::transaction::TransactionManager;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::{
    PgTransaction,
    config::{PgConfig, server},
    error::{code, is_answer, is_lost, kind_of, store_error},
    pooler::{self, Settings},
    sql,
};

/// How long a ROLLBACK may take before its connection is closed instead.
const ROLLBACK_BOUND: Duration = Duration::from_secs(5);
/// How much longer than the server's own bound an answer may take.
const GRACE: Duration = Duration::from_secs(10);
/// The longest that PostgreSQL takes for a time-out, in milliseconds.
const MOST_MS: i64 = 2_147_483_647;

pub(crate) struct Connections {
    options: PgConnectOptions,
    /// Behind a pooler: what each transaction sets.
    pooled: Option<Settings>,
    /// Without one: how a connection is asked for that a pooler would give.
    plain: PgConnectOptions,
    most: u32,
    connect_timeout: Duration,
    /// Made when it is first needed, and again after a doubt.
    pool: Mutex<Option<PgPool>>,
    /// The longest bound of a statement that any transaction was begun with, in milliseconds.
    longest: AtomicU64,
}

impl Connections {
    pub(crate) fn new(config: &PgConfig) -> Self {
        let mut options = config.options.clone();
        if options.get_application_name().is_none() {
            options = options.application_name("inbox");
        }
        let plain = pooler::pooled(options.clone());
        Self {
            options: if config.transaction_pooler { plain.clone() } else { pooler::direct(options, &config.settings) },
            pooled: config.transaction_pooler.then(|| config.settings.clone()),
            plain,
            most: config.connections,
            connect_timeout: config.connect_timeout,
            pool: Mutex::new(None),
            longest: AtomicU64::new(20_000),
        }
    }

    pub(crate) fn server(&self) -> String {
        server(&self.options)
    }

    pub(crate) fn is_pooled(&self) -> bool {
        self.pooled.is_some()
    }

    pub(crate) fn user(&self) -> &str {
        self.options.get_username()
    }

    pub(crate) fn database(&self) -> &str {
        self.options.get_database().unwrap_or_else(|| self.options.get_username())
    }

    fn pool(&self) -> PgPool {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        pool.get_or_insert_with(|| {
            let is_pooled = self.is_pooled();
            PgPoolOptions::new()
                .max_connections(self.most)
                .acquire_timeout(self.connect_timeout)
                // A connection that died while it was idle shows itself at BEGIN, which is tried again on another one.
                .test_before_acquire(false)
                .after_connect(move |connection, _| {
                    Box::pin(async move { if is_pooled { Ok(()) } else { prepare(connection).await } })
                })
                // sqlx would give out a connection with a transaction left open (a nested one that was forgotten).
                .after_release(|connection, _| {
                    let ended = !connection.is_in_transaction();
                    Box::pin(async move { Ok(ended) })
                })
                .connect_lazy_with(self.options.clone())
        })
        .clone()
    }

    /// Uses none of the connections again that are open now.
    pub(crate) fn condemn(&self) {
        let pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(pool) = pool {
            tracing::debug!("a connection is in doubt; all idle ones are closed");
            // Marks the pool as closed at once; what the future would wait for is of no interest.
            drop(pool.close());
        }
    }

    /// Connects and disconnects, trying again while the server may still be starting.
    pub(crate) async fn try_once(&self) -> Result<(), StoreError> {
        let deadline = Instant::now() + self.connect_timeout;
        let mut last = None;
        let mut pause = Duration::from_millis(50);
        loop {
            match timeout_at(deadline, PgConnection::connect_with(&self.options)).await {
                Ok(Ok(mut connection)) => {
                    let checked = timeout_at(deadline, self.check_direct("connect", &mut connection)).await;
                    // A farewell that fails leaves nothing behind.
                    drop(timeout(ROLLBACK_BOUND, connection.close()).await);
                    return checked.unwrap_or_else(|_| Err(self.no_answer("connect", self.connect_timeout)));
                }
                Ok(Err(error)) if may_be_starting(&error) => last = Some(error),
                Ok(Err(error)) => return Err(self.no_connection("connect", error).await),
                Err(_) => break,
            }
            if Instant::now() + pause >= deadline {
                break;
            }
            sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
        Err(match last {
            Some(error) => self.no_connection("connect", error).await,
            None => self.no_answer("connect", self.connect_timeout),
        })
    }

    /// Fails unless the connection is the server's as it was asked for, or a pooler is expected.
    pub(crate) async fn check_direct(
        &self,
        operation: &'static str,
        connection: &mut PgConnection,
    ) -> Result<(), StoreError> {
        // As one message of the protocol, which no pooler can tear apart. Also where one is expected: it takes clients
        // while there is no server.
        let is_direct = self.ask(operation, scalar::<bool>(sql::IS_DIRECT.into_sql_str(), connection)).await?;
        if is_direct || self.is_pooled() {
            return Ok(());
        }
        Err(StoreError::new(StoreErrorKind::InvalidConfig, operation).context(pooler::looks_like_one(&self.server())))
    }

    /// Begins a transaction for handlers.
    pub(crate) async fn begin(&self, limits: &Limits) -> Result<PgTransaction<'static>, StoreError> {
        let lock = milliseconds(limits.claim_wait);
        let statement = milliseconds(limits.statement_timeout);
        let claim = lock.saturating_add(1_000).min(MOST_MS).max(statement);
        self.longest.fetch_max(claim.unsigned_abs(), Ordering::Relaxed);
        self.begin_with("begin", AssertSqlSafe(sql::begin(lock, claim, statement)).into_sql_str()).await
    }

    /// Begins a transaction by `statement`. The connection that it meets may have died while it was idle, so that it is
    /// tried once more than there can be such connections; but not where the server has refused a new one.
    pub(crate) async fn begin_with(
        &self,
        operation: &'static str,
        statement: SqlStr,
    ) -> Result<PgTransaction<'static>, StoreError> {
        let statement = match &self.pooled {
            Some(settings) => pooler::begin(&statement, settings),
            None => statement,
        };
        // The pool's own bound comes first, and says more.
        let deadline = Instant::now() + self.connect_timeout + Duration::from_millis(500);
        for _ in 0..self.most {
            match self.try_begin(statement.clone(), deadline).await {
                Some(Ok(tx)) => return Ok(tx),
                Some(Err(error)) if is_lost(&error) && !kind_of(&error).is_fatal() && Instant::now() < deadline => {}
                Some(Err(error)) => return Err(self.no_connection(operation, error).await),
                None => return Err(self.no_answer(operation, self.connect_timeout)),
            }
        }
        match self.try_begin(statement, deadline).await {
            Some(Ok(tx)) => Ok(tx),
            Some(Err(error)) => Err(self.no_connection(operation, error).await),
            None => Err(self.no_answer(operation, self.connect_timeout)),
        }
    }

    /// `None` when the deadline passed. A BEGIN whose answer nobody has seen, also because the caller was dropped,
    /// leaves a connection that sqlx takes for a clean one (its issue 4393).
    async fn try_begin(
        &self,
        statement: SqlStr,
        deadline: Instant,
    ) -> Option<Result<PgTransaction<'static>, sqlx::Error>> {
        let pool = self.pool();
        let mut doubt = Doubt { connections: self, is_open: true };
        let begun = timeout_at(deadline, pool.begin_with(statement)).await.ok()?;
        doubt.is_open = match &begun {
            Ok(_) => false,
            Err(sqlx::Error::PoolTimedOut) => false,
            Err(error) => !is_lost(error),
        };
        Some(begun)
    }

    /// Waits for the answer to a statement, not much longer than the server itself would work on it.
    pub(crate) async fn ask<T>(
        &self,
        operation: &'static str,
        statement: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, StoreError> {
        match self.answer(statement).await {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(error)) => Err(store_error(operation, error)),
            None => Err(self.no_answer(operation, self.patience())),
        }
    }

    /// As [`ask`](Self::ask), for callers who look at the error; `None` when there was no answer in time.
    pub(crate) async fn answer<T>(
        &self,
        statement: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Option<Result<T, sqlx::Error>> {
        let answer = timeout(self.patience(), statement).await.ok();
        if answer.is_none() {
            self.condemn();
        }
        answer
    }

    pub(crate) fn patience(&self) -> Duration {
        Duration::from_millis(self.longest.load(Ordering::Relaxed)).saturating_add(GRACE)
    }

    /// Rolls back and waits for it.
    pub(crate) async fn rollback(&self, tx: PgTransaction<'static>) -> Result<(), StoreError> {
        let mut ending = Box::pin(roll_back(tx));
        match timeout(ROLLBACK_BOUND, &mut ending).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                if !is_lost(&error) {
                    self.condemn();
                }
                let context = "the rollback was not confirmed; the database rolls back by itself";
                Err(StoreError::new(StoreErrorKind::Unavailable, "rollback").context(context).source(error))
            }
            Err(_) => {
                // Before the connection goes back, so that it is closed and not used again.
                self.condemn();
                drop(ending);
                Err(self.no_answer("rollback", ROLLBACK_BOUND))
            }
        }
    }

    /// Sends COMMIT: an error says whether it may have committed.
    pub(crate) async fn commit(&self, tx: PgTransaction<'static>, operation: &'static str) -> Result<(), StoreError> {
        match timeout(self.patience(), tx.commit()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) if is_answer(&error) && !matches!(code(&error), Some("40003" | "08007")) => {
                let kind = match kind_of(&error) {
                    // A deferred trigger of a handler's that runs too long, or one that meets a missing table.
                    StoreErrorKind::Unavailable if code(&error) == Some("57014") => StoreErrorKind::Unexpected,
                    StoreErrorKind::Schema | StoreErrorKind::Unauthorized => StoreErrorKind::Unexpected,
                    kind => kind,
                };
                let context = "the database refused to commit; nothing was committed";
                Err(StoreError::new(kind, operation).context(context).source(error))
            }
            Ok(Err(error)) => {
                if !is_lost(&error) {
                    self.condemn();
                }
                Err(unknown(operation).source(error))
            }
            Err(_) => {
                self.condemn();
                Err(unknown(operation))
            }
        }
    }

    async fn no_connection(&self, operation: &'static str, mut error: sqlx::Error) -> StoreError {
        // The code that PgBouncer has for what it does not take in a start, and for much else.
        if !self.is_pooled() && code(&error) == Some("08P01") {
            match self.connect_plainly().await {
                Some(Ok(())) => {
                    return StoreError::new(StoreErrorKind::InvalidConfig, operation)
                        .context(pooler::looks_like_one(&self.server()))
                        .source(error);
                }
                // What is wrong besides, the password for one.
                Some(Err(besides)) => error = besides,
                None => {}
            }
        }
        let (server, database) = (self.server(), self.database());
        let kind = match kind_of(&error) {
            // Before there is a connection: the server's address, its certificate, its protocol.
            StoreErrorKind::Unexpected if code(&error).is_none() => StoreErrorKind::Unavailable,
            // 25006 in answer to BEGIN READ WRITE: something in between that knows of standbys.
            StoreErrorKind::TransactionAborted => StoreErrorKind::Unavailable,
            kind => kind,
        };
        let context = match (&error, kind) {
            (sqlx::Error::PoolTimedOut, _) => format!(
                "no connection to {server} within {:?}: the server cannot be reached, or all {} connections of the \
                 store are in use",
                self.connect_timeout, self.most,
            ),
            (_, StoreErrorKind::Unauthorized) => {
                format!("{server} refuses user `{}` for database `{database}`", self.options.get_username())
            }
            (_, StoreErrorKind::InvalidConfig) => format!("{server} has no database `{database}`"),
            _ => format!("no connection to {server}"),
        };
        StoreError::new(kind, operation).context(context).source(error)
    }

    /// Whether there is a connection for who asks for nothing particular; `None` when there was no answer in time.
    async fn connect_plainly(&self) -> Option<Result<(), sqlx::Error>> {
        let connection = timeout(self.connect_timeout, PgConnection::connect_with(&self.plain)).await.ok()?;
        match connection {
            Ok(connection) => {
                drop(timeout(ROLLBACK_BOUND, connection.close()).await);
                Some(Ok(()))
            }
            Err(error) => Some(Err(error)),
        }
    }

    fn no_answer(&self, operation: &'static str, within: Duration) -> StoreError {
        StoreError::new(StoreErrorKind::Unavailable, operation)
            .context(format!("no answer from {} within {within:?}; the connection is closed", self.server()))
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections").field("server", &self.server()).field("most", &self.most).finish_non_exhaustive()
    }
}

/// Condemns the connections if it is dropped open.
struct Doubt<'a> {
    connections: &'a Connections,
    is_open: bool,
}

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        if self.is_open {
            self.connections.condemn();
        }
    }
}

/// The only value of a statement's only row, by the simple protocol.
pub(crate) async fn scalar<T>(statement: SqlStr, connection: &mut PgConnection) -> Result<T, sqlx::Error>
where
    T: for<'r> Decode<'r, Postgres> + Type<Postgres>,
{
    sqlx::raw_sql(statement).fetch_one(connection).await?.try_get(0)
}

/// What a new connection is told. Servers before 14, and platforms that cannot, go without it.
async fn prepare(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    if connection.server_version_num().is_some_and(|version| version >= 140_000) {
        match connection.execute(sql::NOTICE_CLOSED_CONNECTIONS).await {
            Ok(_) => {}
            Err(error) if is_answer(&error) => tracing::debug!(%error, "closed connections are noticed late"),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn roll_back(mut tx: PgTransaction<'static>) -> Result<(), sqlx::Error> {
    // A statement whose future was dropped may still be answered with an error, which is not the rollback's. A nested
    // transaction whose beginning was dropped has queued a ROLLBACK of the whole, which this sends.
    let mut in_sync = tx.ping().await;
    while matches!(&in_sync, Err(error) if is_answer(error)) {
        in_sync = tx.ping().await;
    }
    in_sync?;
    // Beginnings of nested transactions that were forgotten, down to ours.
    while depth(&tx) > 1 {
        PgManager::rollback(&mut tx).await?;
    }
    if depth(&tx) == 1 { tx.rollback().await } else { Ok(()) }
}

type PgManager = <Postgres as Database>::TransactionManager;

/// How deep sqlx takes the transaction to be nested: 1 for ours alone, the only state in which its `commit` sends COMMIT.
/// A handler that forgets (`mem::forget`) a nested transaction makes it more, one that drops its beginning half-way less.
pub(crate) fn depth(tx: &PgTransaction<'_>) -> usize {
    PgManager::get_transaction_depth(tx)
}

fn may_be_starting(error: &sqlx::Error) -> bool {
    match code(error) {
        Some(code) => matches!(code, "57P03" | "53300"),
        None => matches!(error, sqlx::Error::Io(_)),
    }
}

fn unknown(operation: &'static str) -> StoreError {
    StoreError::new(StoreErrorKind::CommitUnknown, operation)
        .context("COMMIT was sent and its answer was lost; it may have committed")
}

fn milliseconds(duration: Duration) -> i64 {
    // Zero would mean no bound at all.
    i64::try_from(duration.as_millis()).unwrap_or(MOST_MS).clamp(1, MOST_MS)
}
