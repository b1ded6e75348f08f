//! The publisher: many entries in one transaction, which the server runs as a whole or not at all.

use std::{fmt, time::Duration};

use async_trait::async_trait;
use inbox_core::{Message, Publisher, TransportError, TransportErrorKind};
use redis::{Pipeline, Value};
use tokio::sync::Semaphore;

use crate::{
    admin,
    client::{Remote, said},
    config::RedisConfig,
    convert, error,
};

/// How many calls of `publish` are served at once.
const CALLS: u32 = 64;
/// How much is in a transaction: messages, and bytes. Nobody else is served while it runs.
const ROUND: (usize, usize) = (500, 8 << 20);

/// Publishes to a stream.
///
/// `Ok` means that the server has it, as safely as its settings say: see the [crate](crate). A stream that does not exist is
/// an error (`NotFound`), and is not made by publishing to it.
pub struct RedisPublisher {
    remote: Remote,
    permits: Semaphore,
}

/// A message that can be sent, and its place in the call.
struct Ready<'a> {
    at: usize,
    fields: Vec<convert::Field<'a>>,
}

impl Ready<'_> {
    fn size(&self) -> usize {
        self.fields.iter().map(|(name, value)| name.len() + value.len()).sum()
    }
}

/// What became of the messages of a call.
type Answers = Vec<Option<Result<(), TransportError>>>;

impl RedisPublisher {
    /// Connects, and makes sure that the stream exists.
    ///
    /// # Errors
    /// As [`RedisTransport::connect`](crate::RedisTransport::connect); no group is needed.
    pub async fn connect(config: RedisConfig) -> Result<Self, TransportError> {
        let remote = Remote::connect(config, "connect").await?;
        admin::verify(&remote, "connect").await?;
        Ok(Self { remote, permits: Semaphore::new(CALLS as usize) })
    }

    async fn publish_all(&self, messages: &[Message], answers: &mut Answers) -> Result<(), TransportError> {
        let mut ready = Vec::with_capacity(messages.len());
        for (at, message) in messages.iter().enumerate() {
            match convert::fields(message, &self.remote.config.names) {
                Ok(fields) => ready.push(Ready { at, fields }),
                Err(error) => answers[at] = Some(Err(error)),
            }
        }
        let mut left = &ready[..];
        while !left.is_empty() {
            let (round, rest) = left.split_at(round_of(left));
            left = rest;
            // What comes after a round that failed is not sent: it would be stored before that is.
            let said = self.round(round).await?;
            round.iter().zip(said).for_each(|(ready, said)| answers[ready.at] = Some(said));
        }
        Ok(())
    }

    /// Publishes a round: what the server answers for each, or an error after which nothing is known of any.
    async fn round(&self, round: &[Ready<'_>]) -> Result<Vec<Result<(), TransportError>>, TransportError> {
        let remote = &self.remote;
        let mut all = Pipeline::with_capacity(round.len());
        all.atomic().ignore_errors();
        for ready in round {
            let add = all.cmd("XADD").arg(&*remote.stream).arg("NOMKSTREAM").arg("*");
            for (name, value) in &ready.fields {
                add.arg(&**name).arg(&**value);
            }
        }
        let refused = |error| remote.refused("publish", error);
        let mut connection = remote.connection().await.map_err(refused)?;
        let answers: Vec<Value> = remote.noted(all.query_async(&mut connection).await).map_err(refused)?;
        if answers.len() != round.len() {
            return Err(TransportError::new(TransportErrorKind::Unexpected, "publish").context("not answered for each"));
        }
        Ok(answers.into_iter().map(|answer| self.judged(answer)).collect())
    }

    fn judged(&self, answer: Value) -> Result<(), TransportError> {
        let stream = self.remote.stream.escape_debug();
        match answer {
            Value::BulkString(_) | Value::SimpleString(_) => Ok(()),
            Value::Nil => Err(TransportError::new(TransportErrorKind::NotFound, "publish")
                .context(format!("the stream `{stream}` does not exist; `inbox::provision(url)` creates it"))),
            Value::ServerError(error) => {
                let kind = error::of_answer(error.code(), error.details());
                let words = error.details().unwrap_or_default();
                Err(TransportError::new(kind, "publish")
                    .context(format!("the stream `{stream}`: {} {words}", error.code())))
            }
            _ => Err(TransportError::new(TransportErrorKind::Unexpected, "publish").context("no answer to a message")),
        }
    }
}

/// How many of these messages are under way at once; at least one.
fn round_of(ready: &[Ready<'_>]) -> usize {
    let mut bytes = 0;
    let fits = ready.iter().take(ROUND.0).take_while(|ready| {
        bytes += ready.size();
        bytes <= ROUND.1
    });
    fits.count().max(1)
}

#[async_trait]
impl Publisher for RedisPublisher {
    async fn publish(&self, messages: Vec<Message>) -> Vec<Result<(), TransportError>> {
        let Ok(_permit) = self.permits.acquire().await else {
            return messages.iter().map(|_| Err(closed())).collect();
        };
        let mut answers: Answers = messages.iter().map(|_| None).collect();
        let failed = self.publish_all(&messages, &mut answers).await.err();
        let unanswered = || {
            Err(match &failed {
                Some(error) => TransportError::new(error.kind(), "publish").context(said(error)),
                None => TransportError::new(TransportErrorKind::Unexpected, "publish").context("no answer"),
            })
        };
        answers.into_iter().map(|answer| answer.unwrap_or_else(unanswered)).collect()
    }

    async fn close(&self, deadline: Duration) -> Result<(), TransportError> {
        // Whoever publishes has one; nobody gets one any more afterwards.
        let ended = tokio::time::timeout(deadline, self.permits.acquire_many(CALLS)).await;
        self.permits.close();
        ended.map(drop).map_err(|_| {
            TransportError::new(TransportErrorKind::Unavailable, "close")
                .context("the deadline passed before all was confirmed")
        })
    }
}

fn closed() -> TransportError {
    TransportError::new(TransportErrorKind::Closed, "publish").context("the publisher was closed")
}

impl fmt::Debug for RedisPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisPublisher").field("config", &self.remote.config).finish_non_exhaustive()
    }
}
