//! Where the database is and how long is waited for it. No I/O.

use std::{path::PathBuf, time::Duration};

use inbox_core::{StoreError, StoreErrorKind};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};

/// Settings of a [`SqliteInboxStore`](crate::SqliteInboxStore).
#[derive(Clone, Debug)]
pub struct SqliteConfig {
    pub(crate) options: SqliteConnectOptions,
    pub(crate) busy_timeout: Duration,
    pub(crate) migrate_on_start: bool,
}

impl SqliteConfig {
    /// A database file: a path, or a URL `sqlite:PATH`. The file is made if it is not there.
    ///
    /// # Errors
    /// `InvalidConfig` for an in-memory database or a URL with a query: neither keeps the inbox's promise.
    pub fn new(file: &str) -> Result<Self, StoreError> {
        let path = file.strip_prefix("sqlite://").or_else(|| file.strip_prefix("sqlite:")).unwrap_or(file);
        let refused = if path.is_empty() {
            Some("the path of the database file is missing; accepted: a path, or `sqlite:PATH`")
        } else if path.contains(":memory:") {
            Some("an in-memory database is gone with its connection; accepted: the path of a file")
        } else if path.contains('?') {
            Some("a query is not accepted here; use the builder's methods")
        } else {
            None
        };
        match refused {
            Some(text) => Err(StoreError::new(StoreErrorKind::InvalidConfig, "open").context(text)),
            None => Ok(Self::of(SqliteConnectOptions::new().filename(PathBuf::from(path)).create_if_missing(true))),
        }
    }

    pub(crate) fn of(options: SqliteConnectOptions) -> Self {
        Self { options, busy_timeout: Duration::from_secs(30), migrate_on_start: false }
    }

    /// How long is waited while another process writes. Default: 30 s.
    #[must_use]
    pub fn busy_timeout(mut self, busy_timeout: Duration) -> Self {
        self.busy_timeout = busy_timeout;
        self
    }

    /// Whether opening also makes the tables. Default: no; call [`migrate`](inbox_core::maintenance::Maintenance::migrate).
    #[must_use]
    pub fn migrate_on_start(mut self, migrate: bool) -> Self {
        self.migrate_on_start = migrate;
        self
    }

    /// Opens the store.
    ///
    /// # Errors
    /// `InvalidConfig` when the file cannot be opened or is no database; `Schema` as `migrate`.
    pub async fn open(self) -> Result<crate::SqliteInboxStore, StoreError> {
        crate::SqliteInboxStore::with(self).await
    }

    /// What every connection of the store shares: durable commits, in write-ahead mode.
    pub(crate) fn connect_options(&self) -> SqliteConnectOptions {
        self.options
            .clone()
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(self.busy_timeout)
    }
}
