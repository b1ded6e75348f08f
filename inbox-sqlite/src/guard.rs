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

use sqlx::{SqliteConnection, sqlite::LockedSqliteHandle};

/// The state of the one transaction that the store's one connection can have.
#[derive(Debug, Default)]
pub(crate) struct Guard {
    /// The store itself is committing.
    armed: AtomicBool,
    /// The transaction has ended in a way that the store did not ask for, or is ending.
    ended: AtomicBool,
    /// The store ended the transaction and the connection may be used again.
    clean: AtomicBool,
    /// Counts transactions.
    transaction: AtomicU64,
}

impl Guard {
    pub(crate) fn new() -> Arc<Self> {
        let guard = Self::default();
        guard.clean.store(true, Ordering::SeqCst);
        Arc::new(guard)
    }

    /// Sets the hooks of a new connection.
    pub(crate) async fn install(self: Arc<Self>, connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
        let mut handle: LockedSqliteHandle<'_> = connection.lock_handle().await?;
        let guard = Arc::clone(&self);
        handle.set_commit_hook(move || guard.armed.load(Ordering::SeqCst));
        handle.set_rollback_hook(move || self.ended.store(true, Ordering::SeqCst));
        Ok(())
    }

    /// The store has begun a transaction; until [`finished`](Self::finished) its connection is in doubt.
    pub(crate) fn begun(&self) -> u64 {
        self.armed.store(false, Ordering::SeqCst);
        self.ended.store(false, Ordering::SeqCst);
        self.clean.store(false, Ordering::SeqCst);
        self.transaction.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Whether the current transaction is the one with this number, and still open.
    pub(crate) fn is_open(&self, transaction: u64) -> bool {
        !self.ended.load(Ordering::SeqCst) && self.transaction.load(Ordering::SeqCst) == transaction
    }

    pub(crate) fn current(&self) -> u64 {
        self.transaction.load(Ordering::SeqCst)
    }

    /// Lets the next COMMIT pass.
    pub(crate) fn arm(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }

    /// The store's COMMIT or ROLLBACK has returned; `clean` if it went as asked.
    pub(crate) fn finished(&self, clean: bool) {
        self.armed.store(false, Ordering::SeqCst);
        self.clean.store(clean, Ordering::SeqCst);
    }

    /// Whether the connection may be used again. One in doubt is closed.
    pub(crate) fn is_clean(&self) -> bool {
        self.clean.load(Ordering::SeqCst)
    }
}
