//! For the suite of `inbox-conformance`, on the queue and the store in files.

#![allow(clippy::expect_used, reason = "a test program without a temporary folder can only say so")]

use std::sync::Arc;

use async_trait::async_trait;
use inbox_conformance::{Link, StoreFeatures, StoreSubject, TransportSubject, harness::unique};
use inbox_core::{
    BoxError, HandlerError, Publisher, Transport,
    capability::{Capabilities, Lease, Ordering},
};
use inbox_sqlite::{
    QueueConfig, SqliteInboxStore, SqlitePublisher, SqliteTransaction, SqliteTransport, run_sql,
    sqlx::{self, SqlitePool, sqlite::SqliteConnectOptions},
};
use tempfile::TempDir;

/// Short, because a case holds the one writer on purpose.
const BUSY: std::time::Duration = std::time::Duration::from_secs(10);

#[allow(dead_code, reason = "not used by all who share this file")]
pub(crate) struct QueueSubject {
    pub(crate) dir: TempDir,
}

#[async_trait]
impl TransportSubject for QueueSubject {
    fn name(&self) -> &str {
        "sqlite"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "sqlite",
            ordering: Ordering::Key,
            lease: Lease::Extended { timeout: std::time::Duration::from_secs(30) },
            delivery_count: true,
            suspect_flag: true,
            exclusive_keys: true,
            max_body: None,
            durable: true,
        }
    }

    async fn fresh(&self) -> Result<Arc<dyn Link>, BoxError> {
        // A file each: cases run side by side, and a file has one writer.
        let file = self.dir.path().join(unique("queue"));
        let config = QueueConfig::new(file, "topic").group("own");
        config.provision().await?;
        config.backlog().await?;
        Ok(Arc::new(QueueLink { config }))
    }
}

struct QueueLink {
    config: QueueConfig,
}

#[async_trait]
impl Link for QueueLink {
    async fn connect(&self) -> Result<Arc<dyn Transport>, BoxError> {
        Ok(Arc::new(SqliteTransport::connect(&self.config).await?))
    }

    async fn connect_group(&self, group: &str) -> Result<Arc<dyn Transport>, BoxError> {
        Ok(Arc::new(SqliteTransport::connect(&self.config.clone().group(group)).await?))
    }

    async fn publisher(&self) -> Result<Arc<dyn Publisher>, BoxError> {
        Ok(Arc::new(SqlitePublisher::connect(&self.config).await?))
    }

    async fn break_sessions(&self) -> Result<(), BoxError> {
        Err("a file has no connection to break".into())
    }

    async fn backlog(&self) -> Result<u64, BoxError> {
        Ok(self.config.backlog().await?)
    }
}

pub(crate) struct FileSubject {
    pub(crate) dir: TempDir,
}

impl FileSubject {
    fn file(&self) -> String {
        self.dir.path().join("app.db").display().to_string()
    }

    async fn pool(&self) -> Result<SqlitePool, sqlx::Error> {
        let options = SqliteConnectOptions::new()
            .filename(self.file())
            .create_if_missing(true)
            .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal);
        let pool = SqlitePool::connect_with(options.busy_timeout(std::time::Duration::from_secs(60))).await?;
        sqlx::query(
            "CREATE TABLE IF NOT EXISTS effects (number INTEGER PRIMARY KEY AUTOINCREMENT, scope TEXT, effect TEXT)",
        )
        .execute(&pool)
        .await?;
        Ok(pool)
    }
}

impl StoreSubject for FileSubject {
    type Store = SqliteInboxStore;

    fn name(&self) -> &str {
        "sqlite"
    }

    fn features(&self) -> StoreFeatures {
        StoreFeatures { concurrent: false, statements_abort: false, ..StoreFeatures::default() }
    }

    async fn open(&self) -> Result<Arc<SqliteInboxStore>, BoxError> {
        self.pool().await?.close().await;
        Ok(Arc::new(SqliteInboxStore::builder(&self.file())?.busy_timeout(BUSY).migrate_on_start(true).open().await?))
    }

    async fn apply(&self, tx: &mut SqliteTransaction<'static>, scope: &str, effect: &str) -> Result<(), HandlerError> {
        sqlx::query("INSERT INTO effects (scope, effect) VALUES (?1, ?2)")
            .bind(scope)
            .bind(effect)
            .execute(&mut **tx)
            .await?;
        Ok(())
    }

    async fn effects(&self, scope: &str) -> Result<Vec<String>, BoxError> {
        let pool = self.pool().await?;
        let effects = sqlx::query_scalar("SELECT effect FROM effects WHERE scope = ?1 ORDER BY number")
            .bind(scope)
            .fetch_all(&pool)
            .await?;
        pool.close().await;
        Ok(effects)
    }

    async fn failing_statement(&self, tx: &mut SqliteTransaction<'static>) -> Result<(), HandlerError> {
        // A failed statement alone does not abort a transaction in SQLite; this one ends it.
        Ok(run_sql(tx, "INSERT OR ROLLBACK INTO effects (number) VALUES (1), (1)").await?)
    }

    async fn raw_commit(&self, tx: &mut SqliteTransaction<'static>) -> Result<(), HandlerError> {
        Ok(run_sql(tx, "COMMIT").await?)
    }

    async fn raw_rollback(&self, tx: &mut SqliteTransaction<'static>) -> Result<(), HandlerError> {
        Ok(run_sql(tx, "ROLLBACK").await?)
    }
}
