//! The store contract, upkeep: schema and counts.

use std::{future::Future, sync::Arc};

use crate::{
    error::StoreError,
    store::{ConsumerId, InboxStore},
};

/// Upkeep of a store's tables.
pub trait Maintenance: InboxStore {
    /// Creates the tables or brings them up to date. Safe to call from many processes at once; touches nothing that is
    /// not the inbox's.
    ///
    /// # Errors
    /// `Schema` when the tables are of a newer version than this program knows.
    fn migrate(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// How much is kept for a consumer. Counts rows: not for a hot path.
    ///
    /// # Errors
    /// As any statement.
    fn counts(&self, consumer: ConsumerId) -> impl Future<Output = Result<Counts, StoreError>> + Send;
}

impl<S: Maintenance> Maintenance for Arc<S> {
    fn migrate(&self) -> impl Future<Output = Result<(), StoreError>> + Send {
        (**self).migrate()
    }
    fn counts(&self, consumer: ConsumerId) -> impl Future<Output = Result<Counts, StoreError>> + Send {
        (**self).counts(consumer)
    }
}

/// How many rows are kept for a consumer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Ids claimed.
    pub claims: u64,
    /// Messages with failed attempts that are still tried.
    pub retrying: u64,
    /// Messages that wait for a person.
    pub quarantined: u64,
}
