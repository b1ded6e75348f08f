//! An adapter that is wrong on purpose: the table has to show it.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use inbox::{
    Acked, Capacity, Delivery, Receipt, Transport, TransportError,
    capability::{Capabilities, MaxAge},
};

/// Acknowledges the first of what it receives at once, and keeps it for itself.
pub(crate) struct Loses {
    inner: Arc<dyn Transport>,
}

impl Loses {
    pub(crate) fn new(inner: Arc<dyn Transport>) -> Self {
        Self { inner }
    }
}

#[async_trait]
impl Transport for Loses {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn receive(&self, capacity: Capacity) -> Result<Vec<Delivery>, TransportError> {
        loop {
            let mut deliveries = self.inner.receive(capacity).await?;
            let lost = deliveries.remove(0);
            self.inner.ack(vec![lost.receipt]).await?;
            if !deliveries.is_empty() {
                return Ok(deliveries);
            }
        }
    }

    async fn ack(&self, receipts: Vec<Receipt>) -> Result<Acked, TransportError> {
        self.inner.ack(receipts).await
    }

    async fn release(&self, receipts: Vec<Receipt>) -> Result<(), TransportError> {
        self.inner.release(receipts).await
    }

    async fn max_age(&self) -> Result<MaxAge, TransportError> {
        self.inner.max_age().await
    }

    fn connected(&self) -> bool {
        self.inner.connected()
    }

    async fn close(&self, deadline: Duration) -> Result<(), TransportError> {
        self.inner.close(deadline).await
    }
}
