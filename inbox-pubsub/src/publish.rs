//! The publisher.

use std::{
    collections::HashSet,
    fmt,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::future::join_all;
use google_cloud_gax::retry_policy::RetryPolicyExt as _;
use google_cloud_pubsub::{
    client::{BasePublisher, Publisher as Client},
    retry_policy::RetryableErrors,
};
use inbox_core::{Message, Publisher, TransportError, TransportErrorKind};
use tokio::time::timeout;

use crate::{admin, config::PubsubConfig, convert, error};

/// How long a message waits for others to share its request.
const LINGER: Duration = Duration::from_millis(2);
/// The client keeps a task for each ordering key that it has seen: after so many it is made anew.
const KEYS: usize = 10_000;
/// Behind the client's own time limit, should it not keep it.
const GRACE: Duration = Duration::from_secs(5);

/// Publishes to one topic.
///
/// A message's key is its ordering key: messages of one key are stored in the order of publishing, each key at up to
/// 1 MB/s, all from one region. What is not confirmed within `publish_timeout` is an error, and so are then the later
/// messages of its key in the same call: none of them overtakes.
pub struct PubsubPublisher {
    config: PubsubConfig,
    topic: String,
    base: BasePublisher,
    current: Mutex<Option<Current>>,
}

struct Current {
    client: Client,
    keys: HashSet<String>,
}

impl PubsubPublisher {
    /// Connects, and makes sure that the topic exists, unless the credentials may publish but not look. The subscription,
    /// if the configuration names one, does not matter.
    ///
    /// # Errors
    /// As [`PubsubTransport::connect`](crate::PubsubTransport::connect).
    pub async fn connect(config: PubsubConfig) -> Result<Self, TransportError> {
        const OPERATION: &str = "connect";
        config.check()?;
        let topic = config.topic_path()?;
        admin::verify_topic(&config, OPERATION).await?;
        let built = admin::client!(&config, BasePublisher::builder())
            .with_retry_policy(RetryableErrors.with_time_limit(config.publish_timeout))
            .build();
        let base = admin::bounded(&config, OPERATION, built).await?;
        let current = Mutex::new(Some(Current::new(&base, &topic)));
        Ok(Self { config, topic, base, current })
    }

    /// The client, for messages of these keys; `None` once it was closed.
    fn client<'a>(&self, keys: impl Iterator<Item = &'a str>) -> Option<Client> {
        let mut slot = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let current = slot.as_mut()?;
        if current.keys.len() >= KEYS {
            // The old one ends once what was given to it is confirmed.
            *current = Current::new(&self.base, &self.topic);
        }
        current.keys.extend(keys.filter(|key| !key.is_empty()).map(str::to_owned));
        Some(current.client.clone())
    }
}

impl Current {
    fn new(base: &BasePublisher, topic: &str) -> Self {
        Self { client: base.publisher(topic).set_delay_threshold(LINGER).build(), keys: HashSet::new() }
    }
}

#[async_trait]
impl Publisher for PubsubPublisher {
    async fn publish(&self, messages: Vec<Message>) -> Vec<Result<(), TransportError>> {
        let theirs: Vec<_> = messages.iter().map(|message| convert::theirs(message, &self.config.envelope)).collect();
        let keys = theirs.iter().flatten().map(|message| message.ordering_key.as_str());
        let Some(client) = self.client(keys) else {
            return messages.iter().map(|_| Err(closed())).collect();
        };
        let limit = self.config.publish_timeout + GRACE;
        let mut answers = Vec::with_capacity(theirs.len());
        let mut keys = Vec::with_capacity(theirs.len());
        let mut refused: HashSet<String> = HashSet::new();
        for message in theirs {
            let key = message.as_ref().map(|message| message.ordering_key.clone()).unwrap_or_default();
            let answer = message.map(|message| client.publish(message));
            keys.push(key);
            answers.push(async move {
                match timeout(limit, answer?).await {
                    Ok(confirmed) => confirmed.map(drop).map_err(error::publish),
                    Err(_) => Err(TransportError::new(TransportErrorKind::Unavailable, "publish")
                        .context(format!("not confirmed within {limit:?}; it may be stored or not"))),
                }
            });
        }
        let answers = join_all(answers).await;
        refused.extend(answers.iter().zip(keys).filter(|(answer, _)| answer.is_err()).map(|(_, key)| key));
        // Nothing of this call is under way any more: the next one may use these keys again.
        refused.into_iter().filter(|key| !key.is_empty()).for_each(|key| client.resume_publish(key));
        answers
    }

    async fn close(&self, deadline: Duration) -> Result<(), TransportError> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(current) = current else { return Ok(()) };
        timeout(deadline, current.client.flush()).await.map_err(|_| {
            TransportError::new(TransportErrorKind::Unavailable, "close")
                .context("the deadline passed before all was confirmed")
        })
    }
}

fn closed() -> TransportError {
    TransportError::new(TransportErrorKind::Closed, "publish").context("the publisher was closed")
}

impl fmt::Debug for PubsubPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PubsubPublisher").field("config", &self.config).finish_non_exhaustive()
    }
}
