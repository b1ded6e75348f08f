//! The transaction of the in-memory store, as handlers see it, and its errors.

use std::{
    collections::{HashMap, HashSet},
    error::Error,
    fmt,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;

use super::store::{Database, Row};
use crate::{id::MessageId, store::ConsumerId};

/// The handler's transaction of a [`MemoryStore`](super::MemoryStore): a small key-value API for effects, READ
/// COMMITTED, and hooks that behave as SQL would where a handler misbehaves.
///
/// Two transactions that `put` one key do not wait for each other; the later commit wins. Dropping it rolls back.
pub struct MemoryTx {
    pub(super) database: Arc<Database>,
    pub(super) number: u64,
    pub(super) claim_wait: Duration,
    pub(super) state: TxState,
    pub(super) staged: Staged,
}

/// What a statement of this transaction meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TxState {
    Open,
    /// A statement failed: everything but a rollback fails.
    Aborted,
    /// The connection is gone.
    Lost,
    /// Ended by the handler's own COMMIT or ROLLBACK: outside a transaction everything is read-only.
    Escaped,
}

/// What becomes visible at commit, in the order in which it was done.
#[derive(Default)]
pub(super) struct Staged {
    pub(super) values: HashMap<String, Bytes>,
    pub(super) log: Vec<(String, String)>,
    pub(super) claims: HashMap<(ConsumerId, MessageId), super::store::ClaimRow>,
    pub(super) forgotten: HashSet<(ConsumerId, MessageId)>,
    pub(super) given_up: Vec<Row>,
    pub(super) kept: Vec<Row>,
}

impl MemoryTx {
    /// The value of `key`: this transaction's own, else the committed one.
    ///
    /// # Errors
    /// [`MemoryError::Aborted`] after a failed statement. Reading goes on after an escape.
    pub fn get(&self, key: &str) -> Result<Option<Bytes>, MemoryError> {
        match self.state {
            TxState::Open | TxState::Escaped => {}
            TxState::Aborted => return Err(MemoryError::Aborted),
            TxState::Lost => return Err(MemoryError::Unavailable),
        }
        Ok(self.staged.values.get(key).cloned().or_else(|| self.database.value(key)))
    }

    /// Sets `key` to `value`.
    ///
    /// # Errors
    /// [`MemoryError::Aborted`] after a failed statement, [`MemoryError::ReadOnly`] after the handler's own COMMIT or
    /// ROLLBACK, or an injected fault.
    pub fn put(&mut self, key: impl Into<String>, value: impl Into<Bytes>) -> Result<(), MemoryError> {
        self.write()?;
        self.staged.values.insert(key.into(), value.into());
        Ok(())
    }

    /// Adds `value` behind the others of `log`, which [`MemoryStore::log`](super::MemoryStore::log) reads.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn append(&mut self, log: impl Into<String>, value: impl Into<String>) -> Result<(), MemoryError> {
        self.write()?;
        self.staged.log.push((log.into(), value.into()));
        Ok(())
    }

    /// A statement that fails, as one with a wrong column name would: the transaction is aborted.
    ///
    /// # Errors
    /// Always: [`MemoryError::Failed`], or what [`put`](Self::put) would say.
    pub fn fail(&mut self) -> Result<(), MemoryError> {
        self.write()?;
        self.discard(TxState::Aborted);
        Err(MemoryError::Failed)
    }

    /// What a handler's own `COMMIT` does: it is refused, and the transaction is gone.
    ///
    /// # Errors
    /// Always: [`MemoryError::CommitRefused`], or [`MemoryError::Aborted`] after a failed statement.
    pub fn raw_commit(&mut self) -> Result<(), MemoryError> {
        let aborted = self.state == TxState::Aborted;
        self.discard(TxState::Escaped);
        Err(if aborted { MemoryError::Aborted } else { MemoryError::CommitRefused })
    }

    /// What a handler's own `ROLLBACK` does: the transaction is gone, and later statements are refused.
    pub fn raw_rollback(&mut self) {
        self.discard(TxState::Escaped);
    }

    fn write(&mut self) -> Result<(), MemoryError> {
        match self.state {
            TxState::Open => {}
            TxState::Aborted => return Err(MemoryError::Aborted),
            TxState::Lost => return Err(MemoryError::Unavailable),
            TxState::Escaped => return Err(MemoryError::ReadOnly),
        }
        if let Some(fault) = self.database.statement_fault() {
            self.discard(if fault == MemoryError::Unavailable { TxState::Lost } else { TxState::Aborted });
            return Err(fault);
        }
        Ok(())
    }

    /// Forgets what was done and lets go of the claimed ids, so that those who wait for them go on.
    pub(super) fn discard(&mut self, state: TxState) {
        self.staged = Staged::default();
        self.state = state;
        self.database.let_go(self.number);
    }
}

impl Drop for MemoryTx {
    fn drop(&mut self) {
        self.database.let_go(self.number);
    }
}

impl fmt::Debug for MemoryTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryTx").field("number", &self.number).field("state", &self.state).finish_non_exhaustive()
    }
}

/// What a statement of a [`MemoryTx`] can fail with.
/// [`classify`](crate::InboxStore::classify) finds it in an error's `source()` chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryError {
    /// The statement itself is wrong.
    Failed,
    /// An earlier statement failed: nothing goes until the transaction is rolled back.
    Aborted,
    /// A write outside the transaction, after the handler's own COMMIT or ROLLBACK.
    ReadOnly,
    /// The handler's own COMMIT is refused.
    CommitRefused,
    /// Injected: the database is not there.
    Unavailable,
    /// Injected: a deadlock or serialization failure.
    Contention,
}

impl fmt::Display for MemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Failed => "the statement failed",
            Self::Aborted => "the transaction is aborted by an earlier failed statement",
            Self::ReadOnly => "a write outside the inbox's transaction is refused",
            Self::CommitRefused => "a handler's own commit is refused",
            Self::Unavailable => "the database is not there",
            Self::Contention => "the transaction lost against another one",
        })
    }
}

impl Error for MemoryError {}
