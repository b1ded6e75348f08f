//! SQLite for the transactional inbox: a store ([`SqliteInboxStore`]) and a durable queue ([`SqliteTransport`],
//! [`SqlitePublisher`]), so that the inbox works with nothing installed.
//!
//! # The store
//! Tables `inbox_*` in the user's file. One writing connection of the store's own, write-ahead mode, `synchronous=FULL`.
//! SQLite has one writer: lanes take turns, and a handler that is slow makes everybody wait. A statement cannot be
//! stopped, so a handler's timeout takes effect when the statement that runs has ended.
//!
//! A statement that fails does not abort the transaction in SQLite: a handler that swallows the error commits the rest.
//! What ends the transaction (`COMMIT`, `ROLLBACK`, `INSERT OR ROLLBACK`, `RAISE(ROLLBACK)`, a full disk) is noticed, and
//! nothing of the batch is kept.
//!
//! # The queue
//! `sqlite:FILE/topic?group=NAME&lease=30s`. Groups are independent; members of a group share its messages and may be
//! processes of their own. Messages are kept for ever. Use another file than the store's: both need its one writer.
//! The id, kind, key and headers of a message are columns, as they were published.

mod config;
mod error;
mod failures;
mod guard;
mod migrate;
mod publish;
mod queue;
mod sql;
mod store;
mod time;
mod transport;

pub use sqlx;

#[doc(hidden)]
pub use crate::store::run_sql;
pub use crate::{
    config::SqliteConfig, publish::SqlitePublisher, queue::QueueConfig, store::SqliteInboxStore,
    transport::SqliteTransport,
};

use inbox_core::TransportError;

/// Connects a consumer by URL.
///
/// # Errors
/// As [`QueueConfig::parse`] and [`SqliteTransport::connect`].
pub async fn connect(url: &str) -> Result<SqliteTransport, TransportError> {
    SqliteTransport::connect(&QueueConfig::parse(url)?).await
}

/// Connects a publisher by URL.
///
/// # Errors
/// As [`QueueConfig::parse`] and [`SqlitePublisher::connect`].
pub async fn publisher(url: &str) -> Result<SqlitePublisher, TransportError> {
    SqlitePublisher::connect(&QueueConfig::parse(url)?).await
}

/// Makes file and topic by URL; what is there stays.
///
/// # Errors
/// As [`QueueConfig::parse`] and [`QueueConfig::provision`].
pub async fn provision(url: &str) -> Result<(), TransportError> {
    QueueConfig::parse(url)?.provision().await
}

/// The transaction that handlers get: `async fn handle(event: E, tx: &mut SqliteTransaction<'_>)`.
pub type SqliteTransaction<'a> = sqlx::Transaction<'a, sqlx::Sqlite>;
