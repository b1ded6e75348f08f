//! Questions to the service, and making what is missing.

use std::{
    collections::HashSet,
    future::Future,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use google_cloud_auth::credentials::anonymous;
use google_cloud_gax::{
    client_builder::Error as BuildError, error::Error, options::RequestOptionsBuilder as _, retry_policy::NeverRetry,
};
use google_cloud_pubsub::{
    client::{Subscriber, SubscriptionAdmin, TopicAdmin},
    model::{ExpirationPolicy, Subscription},
    subscriber::MessageStream,
};
use google_cloud_wkt as wkt;
use inbox_core::{TransportError, TransportErrorKind, capability::MaxAge};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::{config::PubsubConfig, error};

/// One try for an answer.
const TRY: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(200);
/// Whatever the retention of a subscription, a snapshot of it keeps messages until they are this old.
const SNAPSHOT: Duration = Duration::from_secs(7 * 86_400);
/// Nothing more comes from a subscription that is read to its end.
const QUIET: Duration = Duration::from_millis(400);
/// What the subscription's name ends in that [`backlog`] counts with.
const AUDIT: &str = "-audit";

/// A builder of any client of theirs, with the configuration's endpoint and credentials. Their builders share no trait.
macro_rules! client {
    ($config:expr, $builder:expr) => {{
        let mut builder = $builder;
        if let Some(endpoint) = &$config.endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        if let Some(credentials) = $crate::admin::credentials($config) {
            builder = builder.with_credentials(credentials);
        }
        builder
    }};
}
pub(crate) use client;

/// The credentials that are not the client's default.
pub(crate) fn credentials(config: &PubsubConfig) -> Option<google_cloud_auth::credentials::Credentials> {
    if config.is_plain() { Some(anonymous::Builder::new().build()) } else { config.credentials.clone() }
}

/// Why a client could not be made.
pub(crate) fn not_built(operation: &'static str, config: &PubsubConfig, error: BuildError) -> TransportError {
    if error.is_default_credentials() {
        return TransportError::new(TransportErrorKind::Unauthorized, operation)
            .context(
                "there are no application default credentials: `GOOGLE_APPLICATION_CREDENTIALS` names their file, or \
                 `gcloud auth application-default login` makes them; the emulator needs none, with the key \
                 `endpoint=http://HOST:PORT`",
            )
            .source(error);
    }
    TransportError::new(TransportErrorKind::Unavailable, operation)
        .context(format!("the endpoint {} cannot be used (key `endpoint`)", config.shown_endpoint()))
        .source(error)
}

pub(crate) async fn subscriptions(
    config: &PubsubConfig,
    operation: &'static str,
) -> Result<SubscriptionAdmin, TransportError> {
    let built = client!(config, SubscriptionAdmin::builder()).with_retry_policy(NeverRetry).build();
    bounded(config, operation, built).await
}

async fn topics(config: &PubsubConfig, operation: &'static str) -> Result<TopicAdmin, TransportError> {
    let built = client!(config, TopicAdmin::builder()).with_retry_policy(NeverRetry).build();
    bounded(config, operation, built).await
}

/// Makes a client within the connect timeout.
pub(crate) async fn bounded<T>(
    config: &PubsubConfig,
    operation: &'static str,
    built: impl Future<Output = Result<T, BuildError>>,
) -> Result<T, TransportError> {
    match timeout(config.connect_timeout, built).await {
        Ok(built) => built.map_err(|error| not_built(operation, config, error)),
        Err(_) => Err(silent(operation, config)),
    }
}

fn silent(operation: &'static str, config: &PubsubConfig) -> TransportError {
    TransportError::new(TransportErrorKind::Unavailable, operation).context(format!(
        "no answer from {} within {:?} (keys `endpoint`, `connect_timeout`)",
        config.shown_endpoint(),
        config.connect_timeout
    ))
}

/// Asks again and again until there is an answer, for the connect timeout at most. A refusal is an answer.
async fn answer<T, F>(config: &PubsubConfig, operation: &'static str, mut ask: impl FnMut() -> F) -> Result<T, Failed>
where
    F: Future<Output = Result<T, Error>>,
{
    let deadline = Instant::now() + config.connect_timeout;
    let mut last = None;
    loop {
        match timeout_at(deadline, ask()).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) if error::is_answer(&error) => return Err(Failed::Refused(error)),
            Ok(Err(error)) => last = Some(error),
            Err(_) => {}
        }
        if Instant::now() + PAUSE >= deadline {
            let silent = silent(operation, config);
            return Err(Failed::Silent(match last {
                Some(error) => silent.source(error),
                None => silent,
            }));
        }
        sleep(PAUSE).await;
    }
}

/// Why there is no answer to use.
enum Failed {
    Refused(Error),
    Silent(TransportError),
}

impl Failed {
    /// The error, for a person who gave the name `what` and needs `permission`.
    fn explained(self, operation: &'static str, what: &str, permission: &str) -> TransportError {
        let refused = match self {
            Self::Silent(error) => return error,
            Self::Refused(error) => error,
        };
        let kind = error::kind(&refused);
        let context = match kind {
            TransportErrorKind::NotFound => {
                format!("`{what}` does not exist; `inbox::provision(url)` makes it, unless the project is wrong")
            }
            TransportErrorKind::Unauthorized => format!(
                "the credentials are refused or lack the permission `{permission}` on `{what}`, or the project is wrong"
            ),
            _ => format!("`{what}`"),
        };
        error::of(operation, refused).context(context)
    }
}

/// Reads the subscription and makes sure that it is what the configuration says.
pub(crate) async fn verify(
    config: &PubsubConfig,
    admin: &SubscriptionAdmin,
    operation: &'static str,
) -> Result<Subscription, TransportError> {
    let path = config.subscription_path()?;
    let subscription = get_subscription(config, admin, operation, &path)
        .await
        .map_err(|failed| failed.explained(operation, &path, "pubsub.subscriptions.get"))?;
    let invalid =
        |context: String| Err(TransportError::new(TransportErrorKind::InvalidConfig, operation).context(context));
    if subscription.detached {
        return invalid(format!("`{path}` is detached from its topic: nothing comes from it any more"));
    }
    let pushes = subscription.push_config.as_ref().is_some_and(|push| !push.push_endpoint.is_empty());
    if pushes
        || subscription.bigquery_config.is_some()
        || subscription.cloud_storage_config.is_some()
        || subscription.bigtable_config.is_some()
    {
        return invalid(format!("`{path}` delivers somewhere by itself; a consumer needs one for pulling"));
    }
    if config.topic.is_some() && config.topic_path()? != subscription.topic {
        return invalid(format!("`{path}` is of `{}`, not of the topic that `topic` names", subscription.topic));
    }
    for (key, wanted, found) in [
        ("ordering", config.ordering, subscription.enable_message_ordering),
        ("exactly_once", config.exactly_once, subscription.enable_exactly_once_delivery),
    ] {
        if wanted.is_some_and(|wanted| wanted != found) {
            return invalid(format!("`{path}` has `{key}={found}`, and the configuration says otherwise"));
        }
    }
    Ok(subscription)
}

/// Says what about a subscription may lose messages.
pub(crate) fn warn_of(subscription: &Subscription) {
    let name = &subscription.name;
    if let Some(policy) = &subscription.dead_letter_policy {
        let most = policy.max_delivery_attempts;
        tracing::warn!(
            subscription = %name, most,
            "its dead-letter policy takes messages away after so many deliveries, whatever the reason; the inbox counts \
             attempts by itself and needs none"
        );
    }
    if let Some(ttl) = subscription.expiration_policy.as_ref().and_then(|policy| policy.ttl) {
        let days = ttl.seconds() / 86_400;
        tracing::warn!(subscription = %name, days, "it is deleted, with its backlog, after so many days without a consumer");
    }
    if !subscription.filter.is_empty() {
        tracing::info!(subscription = %name, filter = %subscription.filter, "its filter drops what it does not match");
    }
}

async fn get_subscription(
    config: &PubsubConfig,
    admin: &SubscriptionAdmin,
    operation: &'static str,
    path: &str,
) -> Result<Subscription, Failed> {
    answer(config, operation, || admin.get_subscription().set_subscription(path).with_attempt_timeout(TRY).send()).await
}

/// Makes sure that the topic exists. A publisher may lack the permission to look, which is no reason to refuse it.
pub(crate) async fn verify_topic(config: &PubsubConfig, operation: &'static str) -> Result<(), TransportError> {
    let path = config.topic_path()?;
    let admin = topics(config, operation).await?;
    let found = answer(config, operation, || admin.get_topic().set_topic(&path).with_attempt_timeout(TRY).send()).await;
    match found {
        Ok(_) => Ok(()),
        Err(Failed::Refused(refused)) if error::is_forbidden(&refused) => {
            tracing::debug!(topic = %path, "not allowed to look whether the topic exists");
            Ok(())
        }
        Err(failed) => Err(failed.explained(operation, &path, "pubsub.topics.get")),
    }
}

/// Whether the service answers.
pub(crate) async fn is_answering(admin: &SubscriptionAdmin, path: &str) -> bool {
    let asked = admin.get_subscription().set_subscription(path).with_attempt_timeout(TRY).send();
    match timeout(TRY, asked).await {
        Ok(Ok(_)) => true,
        Ok(Err(error)) => error::is_answer(&error),
        Err(_) => false,
    }
}

/// Makes the topic and, if one is named, the subscription.
pub(crate) async fn provision(config: &PubsubConfig) -> Result<(), TransportError> {
    const OPERATION: &str = "provision";
    config.check()?;
    let topic = config.topic_path()?;
    let admin = topics(config, OPERATION).await?;
    let made =
        answer(config, OPERATION, || admin.create_topic().set_name(&topic).with_attempt_timeout(TRY).send()).await;
    made_or_there(made.map(drop), OPERATION, &topic, "pubsub.topics.create")?;
    if config.subscription.is_none() {
        return Ok(());
    }
    let path = config.subscription_path()?;
    let admin = subscriptions(config, OPERATION).await?;
    let made = answer(config, OPERATION, || {
        admin
            .create_subscription()
            .set_name(&path)
            .set_topic(&topic)
            .set_enable_message_ordering(config.ordering.unwrap_or(true))
            .set_enable_exactly_once_delivery(config.exactly_once.unwrap_or(false))
            .set_ack_deadline_seconds(i32::try_from(config.lease.as_secs()).unwrap_or(600))
            // By default a subscription is deleted, with its backlog, after 31 days without a consumer.
            .set_expiration_policy(ExpirationPolicy::new())
            .with_attempt_timeout(TRY)
            .send()
    })
    .await;
    made_or_there(made.map(drop), OPERATION, &path, "pubsub.subscriptions.create and pubsub.topics.attachSubscription")
}

fn made_or_there(
    made: Result<(), Failed>,
    operation: &'static str,
    what: &str,
    permission: &str,
) -> Result<(), TransportError> {
    match made {
        Ok(()) => Ok(()),
        // Somebody else was faster.
        Err(Failed::Refused(refused)) if error::is_there(&refused) => Ok(()),
        Err(failed) => Err(failed.explained(operation, what, permission)),
    }
}

/// The oldest that a message of the subscription can be when it is handed over.
pub(crate) async fn max_age(config: &PubsubConfig, admin: &SubscriptionAdmin) -> Result<MaxAge, TransportError> {
    const OPERATION: &str = "max age";
    let path = config.subscription_path()?;
    match get_subscription(config, admin, OPERATION, &path).await {
        Ok(subscription) => Ok(age(&subscription)),
        Err(Failed::Refused(refused)) if error::is_forbidden(&refused) => Ok(MaxAge::Unknown),
        Err(failed) => Err(failed.explained(OPERATION, &path, "pubsub.subscriptions.get")),
    }
}

/// How old a message of this subscription can be. Pure.
///
/// The subscription keeps unacknowledged messages for its retention, and acknowledged ones too where it says so; a topic's
/// retention keeps them for all subscriptions, to be sought back to. A snapshot, which anybody may make and seek to at any
/// time, keeps what was unacknowledged then until it is seven days old.
fn age(subscription: &Subscription) -> MaxAge {
    let duration = |retention: &Option<wkt::Duration>| {
        let retention = (*retention)?;
        Some(Duration::from_secs(u64::try_from(retention.seconds()).ok()? + u64::from(retention.nanos() > 0)))
    };
    // The service always says it.
    let Some(own) = duration(&subscription.message_retention_duration) else {
        return MaxAge::Unknown;
    };
    let topic = duration(&subscription.topic_message_retention_duration).unwrap_or_default();
    MaxAge::AtMost(own.max(topic).max(SNAPSHOT))
}

/// How many messages the subscription has that are not acknowledged, leased ones included: see [`crate::backlog`].
///
/// A snapshot says how old the oldest of them is, by the time at which it expires. How many there are is counted in a
/// second subscription that is sought to it.
pub(crate) async fn backlog(config: &PubsubConfig) -> Result<u64, TransportError> {
    const OPERATION: &str = "backlog";
    let path = config.subscription_path()?;
    let audit = format!("{path}{AUDIT}");
    let admin = subscriptions(config, OPERATION).await?;
    let found = verify(config, &admin, OPERATION).await?;
    // It must be there before the messages that it is to count.
    let made = answer(config, OPERATION, || {
        admin
            .create_subscription()
            .set_name(&audit)
            .set_topic(&found.topic)
            .set_retain_acked_messages(true)
            .with_attempt_timeout(TRY)
            .send()
    })
    .await;
    made_or_there(made.map(drop), OPERATION, &audit, "pubsub.subscriptions.create")?;
    let snapshot = format!("projects/{}/snapshots/inbox-{}", config.project, crate::settle::unique());
    let asked = inbox_core::clock::now();
    // An answer of the same millisecond would not tell.
    sleep(Duration::from_millis(2)).await;
    let taken = answer(config, OPERATION, || {
        admin.create_snapshot().set_name(&snapshot).set_subscription(&path).with_attempt_timeout(TRY).send()
    })
    .await
    .map_err(|failed| failed.explained(OPERATION, &path, "pubsub.snapshots.create"))?;
    let counted =
        if is_empty(taken.expire_time, asked) { Ok(0) } else { count_at(config, &admin, &snapshot, &audit).await };
    // One that stays behind expires by itself.
    let deleted =
        answer(config, OPERATION, || admin.delete_snapshot().set_snapshot(&snapshot).with_attempt_timeout(TRY).send());
    drop(deleted.await);
    counted
}

/// Whether a snapshot that was asked for at `asked` holds nothing: it then lives for seven days, else as long as its
/// oldest message has until it is seven days old.
fn is_empty(expires: Option<wkt::Timestamp>, asked: SystemTime) -> bool {
    let oldest = expires.and_then(|time| SystemTime::try_from(time).ok()).and_then(|time| time.checked_sub(SNAPSHOT));
    // The service cuts to milliseconds. A message of this very millisecond makes it look empty for a moment only if it
    // was published after the question.
    let millis = |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    oldest.is_some_and(|oldest| millis(oldest) > millis(asked))
}

async fn count_at(
    config: &PubsubConfig,
    admin: &SubscriptionAdmin,
    snapshot: &str,
    audit: &str,
) -> Result<u64, TransportError> {
    const OPERATION: &str = "backlog";
    answer(config, OPERATION, || {
        admin.seek().set_subscription(audit).set_snapshot(snapshot).with_attempt_timeout(TRY).send()
    })
    .await
    .map_err(|failed| failed.explained(OPERATION, audit, "pubsub.snapshots.seek"))?;
    // It is not empty, as the snapshot said.
    count(config, audit, OPERATION).await.map(|counted| counted.max(1))
}

/// Reads a subscription that nobody else reads to its end, acknowledges nothing, and says how many messages it has.
pub(crate) async fn count(config: &PubsubConfig, path: &str, operation: &'static str) -> Result<u64, TransportError> {
    let subscriber = bounded(config, operation, client!(config, Subscriber::builder()).build()).await?;
    let mut stream = subscriber
        .subscribe(path)
        .set_max_lease_extension(Duration::from_secs(10))
        // No limit: what is held is what is counted.
        .set_max_outstanding_messages(0_i64)
        .set_max_outstanding_bytes(0_i64)
        .build();
    let counted = count_stream(&mut stream, operation).await;
    let token = stream.shutdown_token();
    drop(stream);
    drop(timeout(TRY, token.shutdown()).await);
    counted
}

async fn count_stream(stream: &mut MessageStream, operation: &'static str) -> Result<u64, TransportError> {
    let mut seen = HashSet::new();
    let mut held = Vec::new();
    while let Ok(next) = timeout(QUIET, stream.next()).await {
        match next {
            Some(Ok((message, handler))) => {
                seen.insert(message.message_id);
                held.push(handler);
            }
            Some(Err(error)) => return Err(error::of(operation, error)),
            None => break,
        }
    }
    Ok(u64::try_from(seen.len()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_is_the_longest_of_all_ways_back() {
        let days = |days: i64| wkt::Duration::clamp(days * 86_400, 0);
        let at_most = |days: u64| MaxAge::AtMost(Duration::from_secs(days * 86_400));
        let short = Subscription::new().set_message_retention_duration(days(1));
        assert_eq!(age(&short), at_most(7), "by a snapshot");
        let long = Subscription::new().set_message_retention_duration(days(31));
        assert_eq!(age(&long), at_most(31));
        let topic = short.set_topic_message_retention_duration(days(20));
        assert_eq!(age(&topic), at_most(20));
        assert_eq!(age(&Subscription::new()), MaxAge::Unknown);
    }

    #[test]
    fn a_snapshot_without_messages_lives_for_seven_days() {
        let asked = UNIX_EPOCH + Duration::from_millis(1_700_000_000_500);
        let expires = |at: SystemTime| wkt::Timestamp::try_from(at + SNAPSHOT).ok();
        assert!(is_empty(expires(asked + Duration::from_millis(3)), asked));
        assert!(!is_empty(expires(asked - Duration::from_millis(3)), asked));
        assert!(!is_empty(expires(asked), asked), "a message of this millisecond, perhaps");
        assert!(!is_empty(None, asked));
    }
}
