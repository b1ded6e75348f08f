//! Nothing commits on the inbox's connection unless the store says so.
//!
//! SQLite asks a commit hook before every COMMIT, that of an autocommitted statement included, and tells a rollback hook
//! about every rollback, whoever caused it (<https://www.sqlite.org/c3ref/commit_hook.html>). So a handler's own
//! `COMMIT` becomes a ROLLBACK, and after a `ROLLBACK`, an `INSERT OR ROLLBACK`, a `RAISE(ROLLBACK)` or a full disk no
//! later statement of the batch leaves an effect.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use sqlx::{Database, Sqlite, SqliteConnection, sqlite::LockedSqliteHandle};
use sqlx_core::transaction::TransactionManager;

/// The state of the one transaction that the store's one connection can have.
#[derive(Debug, Default)]
pub(crate) struct Guard {
    /// Counts transactions; the number of the current one.
    transaction: AtomicU64,
    /// The number of the transaction that the store itself commits: no other COMMIT passes.
    armed: AtomicU64,
    /// The current transaction has ended in a way that the store did not ask for, or is ending.
    ended: AtomicBool,
}

impl Guard {
    /// Sets the hooks of a new connection.
    pub(crate) async fn install(self: Arc<Self>, connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
        let mut handle: LockedSqliteHandle<'_> = connection.lock_handle().await?;
        let guard = Arc::clone(&self);
        handle.set_commit_hook(move || guard.armed.load(Ordering::SeqCst) == guard.current());
        handle.set_rollback_hook(move || self.ended.store(true, Ordering::SeqCst));
        Ok(())
    }

    /// The store has begun a transaction. Nothing commits it, whatever was armed before.
    pub(crate) fn begun(&self) {
        self.transaction.fetch_add(1, Ordering::SeqCst);
        self.ended.store(false, Ordering::SeqCst);
    }

    /// Whether the current transaction is the one with this number, and still open.
    pub(crate) fn is_open(&self, transaction: u64) -> bool {
        !self.ended.load(Ordering::SeqCst) && self.current() == transaction
    }

    /// The number of the current transaction; numbers begin with 1.
    pub(crate) fn current(&self) -> u64 {
        self.transaction.load(Ordering::SeqCst)
    }

    /// Lets the COMMIT of the current transaction pass.
    pub(crate) fn arm(&self) {
        self.armed.store(self.current(), Ordering::SeqCst);
    }
}

/// How deep sqlx thinks the connection is in transactions: 1 in the store's own, more when a nested one was begun and
/// never ended, 0 outside. A connection that comes back with another number than 0 is in doubt.
pub(crate) fn depth(connection: &SqliteConnection) -> usize {
    <<Sqlite as Database>::TransactionManager as TransactionManager>::get_transaction_depth(connection)
}
