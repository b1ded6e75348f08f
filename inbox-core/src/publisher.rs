//! The producing side of a broker.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;

use crate::{error::TransportError, message::Message};

/// Publishes to one topic, queue or exchange.
#[async_trait]
pub trait Publisher: Send + Sync + 'static {
    /// Publishes `messages` and waits until the broker has confirmed each.
    ///
    /// # Guarantees
    /// - T-11: `Ok` at place *i* means that the broker has stored message *i*; `Err` that it may or may not have.
    /// - Messages of one key are stored in the order given, if all calls for that key come one after the other.
    /// # Cancel safety
    /// Dropping the future leaves it open which messages were stored: publish them again, the inbox makes it harmless.
    async fn publish(&self, messages: Vec<Message>) -> Vec<Result<(), TransportError>>;

    /// Waits until nothing is under way and leaves the broker.
    ///
    /// # Errors
    /// `Unavailable` when `deadline` passed first.
    async fn close(&self, deadline: Duration) -> Result<(), TransportError>;
}

impl fmt::Debug for dyn Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Publisher")
    }
}

#[async_trait]
impl<P: Publisher + ?Sized> Publisher for Arc<P> {
    async fn publish(&self, messages: Vec<Message>) -> Vec<Result<(), TransportError>> {
        (**self).publish(messages).await
    }
    async fn close(&self, deadline: Duration) -> Result<(), TransportError> {
        (**self).close(deadline).await
    }
}
