//! The publisher.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use async_trait::async_trait;
use inbox_core::{Message, Publisher, TransportError, TransportErrorKind, envelope::Envelope};
use rdkafka::{
    ClientContext, Statistics,
    config::{FromClientConfigAndContext as _, RDKafkaLogLevel},
    error::{KafkaError, RDKafkaErrorCode},
    message::{Header, OwnedHeaders},
    producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer},
};
use tokio::sync::Notify;

use crate::{admin, config::KafkaConfig, convert, error, rebalance};

/// How long a full queue of the client is given to send something.
const QUEUE_FULL: Duration = Duration::from_millis(5);

type Client = ThreadedProducer<Context>;

/// Publishes to one topic, by an idempotent producer that waits for all replicas in sync.
///
/// A message with a key goes to the partition that a Java producer would choose (murmur2), and messages of one key are
/// stored in the order of publishing. What is not confirmed within `message.timeout.ms` (30 s) is an error.
pub struct KafkaPublisher {
    config: KafkaConfig,
    client: Mutex<Option<Arc<Client>>>,
}

impl KafkaPublisher {
    /// Connects, and makes sure that the topic exists. The group, if the configuration names one, does not matter.
    ///
    /// # Errors
    /// As [`KafkaTransport::connect`](crate::KafkaTransport::connect); `InvalidConfig` also when there are several topics.
    pub async fn connect(config: KafkaConfig) -> Result<Self, TransportError> {
        config.check()?;
        if config.topics.len() != 1 {
            return Err(TransportError::new(TransportErrorKind::InvalidConfig, "connect")
                .context("a publisher writes to one topic, and the URL names several"));
        }
        admin::verify(&config, "connect").await?;
        let client = make(&config)?;
        Ok(Self { config, client: Mutex::new(Some(client)) })
    }

    /// The client, a new one after a fatal error; `None` once it was closed.
    fn client(&self) -> Result<Option<Arc<Client>>, TransportError> {
        let mut slot = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(broken) = slot.take_if(|client| client.context().broken.load(Ordering::Relaxed)) {
            tracing::warn!("the producer met a fatal error and is made anew");
            drop_elsewhere(broken);
            *slot = Some(make(&self.config)?);
        }
        Ok(slot.clone())
    }

    fn take_client(&self) -> Option<Arc<Client>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[async_trait]
impl Publisher for KafkaPublisher {
    async fn publish(&self, messages: Vec<Message>) -> Vec<Result<(), TransportError>> {
        let client = match self.client() {
            Ok(Some(client)) => client,
            Ok(None) => return messages.iter().map(|_| Err(closed())).collect(),
            Err(error) => {
                let again = |_| Err(TransportError::new(error.kind(), "publish").context(error.to_string()));
                return messages.iter().map(again).collect();
            }
        };
        let batch = Arc::new(Batch::new(messages.len()));
        let Some(topic) = self.config.topics.first() else { return Vec::new() };
        for (index, message) in messages.iter().enumerate() {
            let headers = match headers(&self.config.envelope, message) {
                Ok(headers) => headers,
                Err(error) => {
                    batch.done(index, Err(error));
                    continue;
                }
            };
            let report = Box::new(Report { batch: Arc::clone(&batch), index, told: false });
            let mut next = record(topic, message, headers, report);
            loop {
                match client.send(next) {
                    Ok(()) => break,
                    Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => {
                        next = back;
                        tokio::time::sleep(QUEUE_FULL).await;
                    }
                    Err((error, back)) => {
                        back.delivery_opaque.tell(Err(client.context().failed(error)));
                        break;
                    }
                }
            }
        }
        batch.all().await
    }

    async fn close(&self, deadline: Duration) -> Result<(), TransportError> {
        let Some(client) = self.take_client() else { return Ok(()) };
        let flushed = tokio::task::spawn_blocking(move || client.flush(deadline)).await;
        match flushed {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(error::of("close", error).context("the deadline passed before all was confirmed")),
            Err(error) => Err(TransportError::new(TransportErrorKind::Unexpected, "close").source(error)),
        }
    }
}

impl Drop for KafkaPublisher {
    fn drop(&mut self) {
        if let Some(client) = self.take_client() {
            drop_elsewhere(client);
        }
    }
}

fn make(config: &KafkaConfig) -> Result<Arc<Client>, TransportError> {
    Client::from_config_and_context(&config.producer(), Context::default())
        .map(Arc::new)
        .map_err(|error| error::of("connect", error))
}

/// Dropping a client waits for its thread: not on a worker of the runtime.
fn drop_elsewhere(client: Arc<Client>) {
    let body = move || drop(client);
    if let Err(error) = thread::Builder::new().name("inbox-kafka-end".to_owned()).spawn(body) {
        tracing::debug!(%error, "a producer was dropped in place");
    }
}

impl fmt::Debug for KafkaPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaPublisher").field("config", &self.config).finish_non_exhaustive()
    }
}

fn record<'a>(
    topic: &'a str,
    message: &'a Message,
    headers: OwnedHeaders,
    report: Box<Report>,
) -> BaseRecord<'a, [u8], [u8], Box<Report>> {
    let mut record = BaseRecord::with_opaque_to(topic, report).payload(&message.body[..]).headers(headers);
    if let Some(key) = &message.key {
        record = record.key(&key[..]);
    }
    if let Some(millis) = message.produced_at.and_then(convert::millis) {
        record = record.timestamp(millis);
    }
    record
}

fn headers(envelope: &Envelope, message: &Message) -> Result<OwnedHeaders, TransportError> {
    let sealed = envelope.seal(message);
    let mut headers = OwnedHeaders::new_with_capacity(sealed.len());
    for (key, value) in sealed.iter() {
        if key.contains('\0') {
            return Err(TransportError::new(TransportErrorKind::Rejected, "publish")
                .context(format!("the header name `{}` contains NUL", key.escape_debug())));
        }
        headers = headers.insert(Header { key, value: Some(&value[..]) });
    }
    Ok(headers)
}

fn closed() -> TransportError {
    TransportError::new(TransportErrorKind::Closed, "publish").context("the publisher was closed")
}

/// The results of one call of `publish`, filled by delivery reports.
struct Batch {
    state: Mutex<Results>,
    complete: Notify,
}

struct Results {
    results: Vec<Option<Result<(), TransportError>>>,
    missing: usize,
}

impl Batch {
    fn new(len: usize) -> Self {
        let results = (0..len).map(|_| None).collect();
        Self { state: Mutex::new(Results { results, missing: len }), complete: Notify::new() }
    }

    fn done(&self, index: usize, result: Result<(), TransportError>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot @ None) = state.results.get_mut(index) {
            *slot = Some(result);
            state.missing -= 1;
            if state.missing == 0 {
                self.complete.notify_one();
            }
        }
    }

    async fn all(&self) -> Vec<Result<(), TransportError>> {
        loop {
            {
                let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                if state.missing == 0 {
                    return std::mem::take(&mut state.results).into_iter().flatten().collect();
                }
            }
            self.complete.notified().await;
        }
    }
}

/// Where the report of one message goes. Dropped untold, it tells that nothing is known.
#[derive(Debug)]
struct Report {
    batch: Arc<Batch>,
    index: usize,
    told: bool,
}

impl Report {
    fn tell(mut self, result: Result<(), TransportError>) {
        self.told = true;
        self.batch.done(self.index, result);
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        if !self.told {
            let unknown = TransportError::new(TransportErrorKind::Unavailable, "publish")
                .context("the publisher ended before the broker's answer");
            self.batch.done(self.index, Err(unknown));
        }
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Context {
    /// After a fatal error an idempotent producer sends nothing more.
    broken: AtomicBool,
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        rebalance::log(level, facility, line);
    }

    fn stats(&self, _statistics: Statistics) {}

    fn stats_raw(&self, _statistics: &[u8]) {}

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "kafka producer");
        if error::code_of(&error).is_some_and(error::ends_the_client) {
            self.broken.store(true, Ordering::Relaxed);
        }
    }
}

impl ProducerContext for Context {
    type DeliveryOpaque = Box<Report>;

    fn delivery(&self, result: &DeliveryResult<'_>, report: Box<Report>) {
        report.tell(match result {
            Ok(_) => Ok(()),
            Err((error, _)) => Err(self.failed(error.clone())),
        });
    }
}

impl Context {
    fn failed(&self, error: KafkaError) -> TransportError {
        if error::code_of(&error).is_some_and(error::ends_the_client) {
            self.broken.store(true, Ordering::Relaxed);
            let unavailable = TransportError::new(TransportErrorKind::Unavailable, "publish");
            return unavailable.context("the producer met a fatal error, the next call has a new one").source(error);
        }
        error::of("publish", error)
    }
}
