//! The producing side of the queue.

use std::time::Duration;

use async_trait::async_trait;
use backon::Retryable;
use inbox_core::{Message, Publisher, TransportError, TransportErrorKind, clock, envelope};
use sqlx::{SqlitePool, sqlite::SqliteSynchronous};

use crate::{error, queue::QueueConfig, sql::queue as sql, time::millis};

/// SQLite takes a row of a gigabyte; headers are stored in base64.
const MOST_BYTES: usize = 500_000_000;

/// Publishes to a topic in a file, durably: one transaction a call.
#[derive(Clone, Debug)]
pub struct SqlitePublisher {
    pool: SqlitePool,
    topic: i64,
}

impl SqlitePublisher {
    /// Opens the topic, which must exist.
    ///
    /// # Errors
    /// `NotFound` when file or topic are missing.
    pub async fn connect(config: &QueueConfig) -> Result<Self, TransportError> {
        let pool = config.pool(false, SqliteSynchronous::Full, 1).await?;
        let topic = config.topic_id(&pool).await?;
        Ok(Self { pool, topic })
    }

    async fn store(&self, messages: &[Message]) -> Result<(), sqlx::Error> {
        let mut tx = self.pool.begin_with("BEGIN IMMEDIATE").await?;
        let now = millis(clock::now());
        for message in messages {
            sqlx::query(sql::PUBLISH)
                .bind(self.topic)
                .bind(message.id.as_ref().map(|id| id.as_bytes().to_vec()))
                .bind(message.kind.clone())
                .bind(message.key.as_ref().map(|key| key.to_vec()))
                .bind((!message.headers.is_empty()).then(|| envelope::encode_headers(&message.headers)))
                .bind(message.origin.clone())
                .bind(message.produced_at.map(millis))
                .bind(now)
                .bind(message.body.to_vec())
                .execute(&mut *tx)
                .await?;
        }
        tx.commit().await
    }
}

#[async_trait]
impl Publisher for SqlitePublisher {
    async fn publish(&self, messages: Vec<Message>) -> Vec<Result<(), TransportError>> {
        // A task of its own: dropping this future must not cut a transaction in half on a pooled connection.
        let publisher = self.clone();
        let too_large: Vec<bool> = messages.iter().map(|message| message.size() > MOST_BYTES).collect();
        let messages: Vec<Message> = messages.into_iter().filter(|message| message.size() <= MOST_BYTES).collect();
        let stored = crate::transport::spawn(async move {
            let store = || publisher.store(&messages);
            store.retry(error::patience()).when(error::is_busy).await
        })
        .await;
        let failed = match stored {
            Ok(Ok(())) => None,
            Ok(Err(error)) => {
                let error = error::transport(error, "publish");
                Some((error.kind(), inbox_core::report(&error)))
            }
            Err(error) => Some((TransportErrorKind::Unexpected, error.to_string())),
        };
        let answer = |too_large: bool| match &failed {
            _ if too_large => Err(TransportError::new(TransportErrorKind::TooLarge, "publish")
                .context(format!("a message takes more than {MOST_BYTES} bytes"))),
            Some((kind, text)) => Err(TransportError::new(*kind, "publish").context(text.clone())),
            None => Ok(()),
        };
        too_large.into_iter().map(answer).collect()
    }

    async fn close(&self, deadline: Duration) -> Result<(), TransportError> {
        drop(tokio::time::timeout(deadline, self.pool.close()).await);
        Ok(())
    }
}
