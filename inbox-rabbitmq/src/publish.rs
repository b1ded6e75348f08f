//! The publisher: confirmed, mandatory, persistent, and many messages under way at once.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::future::join_all;
use inbox_core::{Message, Publisher, TransportError, TransportErrorKind, report};
use lapin::{
    BasicProperties, Channel, Confirmation,
    message::BasicReturnMessage,
    options::{BasicPublishOptions, ConfirmSelectOptions},
    types::ShortString,
};
use tokio::{sync::Semaphore, time::Instant};

use crate::{
    admin,
    config::RabbitMqConfig,
    connection::{self, Connected},
    convert, error,
};

/// How many calls of `publish` are served at once, each on a channel of its own.
const CHANNELS: u32 = 32;
/// How much is under way in a call: messages, and bytes of bodies.
const ROUND: (usize, usize) = (500, 8 << 20);

/// Publishes to a queue by its name, or to an exchange with one routing key.
///
/// `Ok` means that every queue the message was routed to has stored it, by its own guarantees. A message that no queue is
/// bound for is an error (`Rejected`), as is one that a queue refuses (`max-length` with `overflow=reject-publish`).
pub struct RabbitMqPublisher {
    config: RabbitMqConfig,
    exchange: ShortString,
    routing_key: ShortString,
    /// Not the consumer's: a broker that is out of memory or disk stops reading from connections that publish.
    connected: tokio::sync::Mutex<Option<Arc<Connected>>>,
    /// Channels of that connection that nobody uses, with nothing under way.
    idle: Mutex<Vec<Channel>>,
    permits: Semaphore,
}

/// A message that can be sent, and its place in the call.
struct Ready<'a> {
    at: usize,
    message: &'a Message,
    properties: BasicProperties,
}

/// What became of the messages of a call.
type Answers = Vec<Option<Result<(), TransportError>>>;

impl RabbitMqPublisher {
    /// Connects, and makes sure that the queue or the exchange exists.
    ///
    /// # Errors
    /// As [`RabbitMqTransport::connect`](crate::RabbitMqTransport::connect); `InvalidConfig` also when neither a queue nor
    /// an exchange is named.
    pub async fn connect(config: RabbitMqConfig) -> Result<Self, TransportError> {
        config.check()?;
        let (exchange, routing_key) = config.target()?;
        let about = if exchange.is_empty() { ("queue", routing_key) } else { ("exchange", exchange) };
        let deadline = Instant::now() + config.connect_timeout;
        let connected = connection::open(&config, "connect", deadline).await?;
        admin::verify(&connected, &config, about, deadline).await?;
        let (exchange, routing_key) = (exchange.into(), routing_key.into());
        Ok(Self {
            config,
            exchange,
            routing_key,
            connected: tokio::sync::Mutex::new(Some(Arc::new(connected))),
            idle: Mutex::default(),
            permits: Semaphore::new(CHANNELS as usize),
        })
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Channel>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection, a new one when the old one is broken.
    async fn connection(&self, deadline: Instant) -> Result<Arc<Connected>, TransportError> {
        // Whoever has it may be waiting for a broker.
        let mut slot = tokio::time::timeout_at(deadline, self.connected.lock()).await.map_err(|_| self.late())?;
        if let Some(connected) = slot.as_ref().filter(|connected| connected.is_open()) {
            return Ok(Arc::clone(connected));
        }
        self.idle().clear();
        *slot = None;
        let deadline = deadline.min(Instant::now() + self.config.connect_timeout);
        let connected = Arc::new(connection::attempt(&self.config, "publish", deadline).await?);
        *slot = Some(Arc::clone(&connected));
        Ok(connected)
    }

    fn late(&self) -> TransportError {
        TransportError::new(TransportErrorKind::Unavailable, "publish").context(format!(
            "not confirmed within `publish_timeout`, {:?}: is the broker out of memory or disk?",
            self.config.publish_timeout
        ))
    }

    async fn channel(&self, connected: &Connected) -> Result<Channel, lapin::Error> {
        let idle = || self.idle().pop();
        while let Some(channel) = idle() {
            if channel.status().connected() {
                return Ok(channel);
            }
        }
        let channel = connected.amqp.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(channel)
    }

    /// Publishes a round and waits for all of it: what the broker answers for each, or an error after which nothing is
    /// known of any.
    async fn round(&self, ready: &[Ready<'_>]) -> Result<Vec<Result<(), TransportError>>, Failed> {
        let deadline = Instant::now() + self.config.publish_timeout;
        let connected = self.connection(deadline).await.map_err(|error| Failed { code: None, error })?;
        let work = async {
            let channel = self.channel(&connected).await?;
            let answers = self.confirmed(&channel, ready).await?;
            // Only now: on a channel that somebody gave up, answers would come for messages that nobody remembers.
            self.idle().push(channel);
            Ok(answers)
        };
        match tokio::time::timeout_at(deadline, work).await {
            Ok(Ok(answers)) => Ok(answers),
            Ok(Err(error)) => Err(Failed { code: error::code_of(&error), error: error::of("publish", error) }),
            Err(_) => {
                // What is under way would otherwise be sent much later, and meanwhile stay in memory.
                connected.cut();
                Err(Failed { code: None, error: self.late() })
            }
        }
    }

    async fn confirmed(
        &self,
        channel: &Channel,
        ready: &[Ready<'_>],
    ) -> Result<Vec<Result<(), TransportError>>, lapin::Error> {
        let options = BasicPublishOptions { mandatory: true, immediate: false };
        // All are handed to lapin before the first is awaited, in order: each takes its number when it is first polled.
        let sent = join_all(ready.iter().map(|ready| {
            let (exchange, key) = (self.exchange.clone(), self.routing_key.clone());
            channel.basic_publish(exchange, key, options, &ready.message.body, ready.properties.clone())
        }))
        .await;
        let mut confirmations = Vec::with_capacity(sent.len());
        for confirm in sent {
            confirmations.push(confirm?.await?);
        }
        Ok(judged(ready, confirmations))
    }

    /// Publishes what is left after a round that the broker ended because of one message: each alone, so that it alone
    /// fails. Those that were stored before are stored twice by it, under the same id and still in order.
    async fn one_by_one(&self, ready: &[Ready<'_>], answers: &mut Answers) -> Result<(), TransportError> {
        for alone in ready.chunks(1) {
            let at = alone[0].at;
            match self.round(alone).await {
                Ok(mut answer) => answers[at] = answer.pop(),
                Err(failed) if failed.is_the_messages_fault() => answers[at] = Some(Err(failed.of_the_message())),
                Err(failed) => return Err(failed.error),
            }
        }
        Ok(())
    }

    async fn publish_all(&self, messages: &[Message], answers: &mut Answers) -> Result<(), TransportError> {
        let deadline = Instant::now() + self.config.publish_timeout;
        let frame_max = match self.connection(deadline).await?.amqp.configuration().frame_max() {
            0 => usize::MAX,
            most => usize::try_from(most).unwrap_or(usize::MAX),
        };
        let mut ready = Vec::with_capacity(messages.len());
        for (at, message) in messages.iter().enumerate() {
            match convert::properties(message, &self.config.names, frame_max) {
                Ok(properties) => ready.push(Ready { at, message, properties }),
                Err(error) => answers[at] = Some(Err(error)),
            }
        }
        let mut left = &ready[..];
        while !left.is_empty() {
            let (round, rest) = left.split_at(round_of(left));
            left = rest;
            match self.round(round).await {
                Ok(done) => round.iter().zip(done).for_each(|(ready, done)| answers[ready.at] = Some(done)),
                Err(failed) if failed.is_the_messages_fault() => self.one_by_one(round, answers).await?,
                // What comes after it is not sent: it would be stored before what has failed.
                Err(failed) => return Err(failed.error),
            }
        }
        Ok(())
    }
}

/// How many of these messages are under way at once; at least one.
fn round_of(ready: &[Ready<'_>]) -> usize {
    let mut bytes = 0;
    let fits = ready.iter().take(ROUND.0).take_while(|ready| {
        bytes += ready.message.body.len();
        bytes <= ROUND.1
    });
    fits.count().max(1)
}

/// What the confirmations of a round say of each message.
///
/// Lapin hands a returned message to whichever confirmation comes next, which is the right one only by luck: a broker
/// confirms many at once. Those of the whole round are all of it, so the returned ones are recognised by their content.
fn judged(ready: &[Ready<'_>], confirmations: Vec<Confirmation>) -> Vec<Result<(), TransportError>> {
    let mut returned = Vec::new();
    let mut answers: Vec<Result<(), TransportError>> = Vec::with_capacity(ready.len());
    for confirmation in confirmations {
        answers.push(match &confirmation {
            Confirmation::Ack(_) => Ok(()),
            Confirmation::Nack(_) => Err(TransportError::new(TransportErrorKind::Rejected, "publish")
                .context("a queue did not take the message: it is full, or its node failed")),
            Confirmation::NotRequested => {
                Err(TransportError::new(TransportErrorKind::Unexpected, "publish")
                    .context("the channel does not confirm"))
            }
        });
        returned.extend(confirmation.take_message());
    }
    for returned in &returned {
        let mut found = false;
        for (ready, answer) in ready.iter().zip(&mut answers).filter(|(ready, _)| is(returned, ready)) {
            found = true;
            if answer.is_ok() {
                *answer = Err(unroutable(returned, ready));
            }
        }
        if !found {
            // It must be one of them: none is known to be stored.
            for answer in answers.iter_mut().filter(|answer| answer.is_ok()) {
                *answer = Err(TransportError::new(TransportErrorKind::Rejected, "publish")
                    .context("the broker returned a message of this call that cannot be recognised"));
            }
        }
    }
    answers
}

fn is(returned: &BasicReturnMessage, ready: &Ready<'_>) -> bool {
    returned.delivery.data == ready.message.body[..] && returned.delivery.properties == ready.properties
}

fn unroutable(returned: &BasicReturnMessage, ready: &Ready<'_>) -> TransportError {
    let id = ready.message.id.as_ref().map_or_else(|| "without an id".to_owned(), inbox_core::IdText::display);
    TransportError::new(TransportErrorKind::Rejected, "publish").context(format!(
        "unroutable: no queue is bound to the exchange `{}` for the routing key `{}` (message {id}; the broker says {} {})",
        returned.delivery.exchange.as_str().escape_debug(),
        returned.delivery.routing_key.as_str().escape_debug(),
        returned.reply_code,
        returned.reply_text,
    ))
}

/// A round of which nothing is known.
struct Failed {
    /// The broker's code, when it was the broker that ended the channel.
    code: Option<u16>,
    error: TransportError,
}

impl Failed {
    /// The broker answers so to a message that it does not take, and ends the channel with all that is under way on it.
    fn is_the_messages_fault(&self) -> bool {
        self.code == Some(error::PRECONDITION_FAILED)
    }

    fn of_the_message(self) -> TransportError {
        let words = report(&self.error);
        // AMQP has a code of its own for it, which RabbitMQ does not use.
        let too_large = words.contains("larger than") || words.contains("message size");
        let kind = if too_large { TransportErrorKind::TooLarge } else { TransportErrorKind::Rejected };
        TransportError::new(kind, "publish").context("the broker does not take this message").source(self.error)
    }
}

#[async_trait]
impl Publisher for RabbitMqPublisher {
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
        let until = Instant::now() + deadline;
        let closing = async {
            // Whoever publishes has one; nobody gets one any more afterwards.
            drop(self.permits.acquire_many(CHANNELS).await);
            self.permits.close();
            if let Some(connected) = self.connected.lock().await.take() {
                connected.close().await;
            }
            // Behind it: closing both at once is an error to lapin.
            self.idle().clear();
        };
        tokio::time::timeout_at(until, closing).await.map_err(|_| {
            self.permits.close();
            TransportError::new(TransportErrorKind::Unavailable, "close")
                .context("the deadline passed before all was confirmed")
        })
    }
}

/// The error without what is said of every error: its kind and operation are repeated.
fn said(error: &TransportError) -> String {
    let words = report(error);
    words.split_once("): ").map_or(words.clone(), |(_, said)| said.to_owned())
}

fn closed() -> TransportError {
    TransportError::new(TransportErrorKind::Closed, "publish").context("the publisher was closed")
}

impl fmt::Debug for RabbitMqPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitMqPublisher").field("config", &self.config).finish_non_exhaustive()
    }
}
