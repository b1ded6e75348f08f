//! What people and tools see of a store: object-safe, out of the runtime's reach.

use std::sync::Arc;

use async_trait::async_trait;

use crate::{error::StoreError, failure_store::FailureRow, maintenance::Counts};

/// A store as an operator sees it.
#[async_trait]
pub trait Operator: Send + Sync + 'static {
    /// How much is kept for the consumer of this name; zeros if there is none.
    ///
    /// # Errors
    /// As any statement.
    async fn counts_of(&self, consumer: &str) -> Result<Counts, StoreError>;

    /// The consumer's failures rows, oldest first, at most `most`. A `retrying` row whose id has a claim by now is not
    /// shown: somebody has finished it.
    ///
    /// # Errors
    /// As any statement.
    async fn failures(&self, consumer: &str, most: u32) -> Result<Vec<FailureRow>, StoreError>;
}

#[async_trait]
impl<O: Operator + ?Sized> Operator for Arc<O> {
    async fn counts_of(&self, consumer: &str) -> Result<Counts, StoreError> {
        (**self).counts_of(consumer).await
    }
    async fn failures(&self, consumer: &str, most: u32) -> Result<Vec<FailureRow>, StoreError> {
        (**self).failures(consumer, most).await
    }
}
