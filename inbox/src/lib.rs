//! One handler, every effect once: the transactional inbox.
//!
//! Brokers deliver at least once, so a consumer sees some messages twice. This crate makes the second delivery harmless:
//! it claims the message's id and runs the handler in one transaction of your database, commits, and only then
//! acknowledges at the broker. *Each message's database effect is applied once, and none is lost.*
//!
//! ```no_run
//! # #[cfg(feature = "sqlite")]
//! # mod example {
//! use inbox::{HandlerError, Inbox, sqlite::{SqliteInboxStore, SqliteTransaction}};
//!
//! #[derive(serde::Deserialize)]
//! struct PaymentCaptured {
//!     payment_id: String,
//! }
//!
//! async fn on_captured(event: PaymentCaptured, tx: &mut SqliteTransaction<'_>) -> Result<(), HandlerError> {
//!     inbox::sqlite::sqlx::query("UPDATE payments SET status = 'captured' WHERE id = ?1")
//!         .bind(event.payment_id)
//!         .execute(&mut **tx)
//!         .await?; // `?` means: try again
//!     Ok(())
//! }
//!
//! async fn consume() -> Result<(), Box<dyn std::error::Error>> {
//!     let transport = inbox::connect("sqlite:queue.db/payments?group=receipts").await?;
//!     let store = SqliteInboxStore::builder("app.db")?.migrate_on_start(true).open().await?;
//!     Inbox::new("receipts", transport, store).on("payment.captured", on_captured).run(std::future::pending()).await?;
//!     Ok(())
//! }
//! # }
//! ```
//!
//! # Features
//! A feature for each transport and store: `sqlite` (default), `kafka`, `pubsub`, `rabbitmq`, `redis`, `sqs`, `postgres`.

use std::sync::Arc;

pub use inbox_core::*;

#[cfg(feature = "kafka")]
pub use inbox_kafka as kafka;
#[cfg(feature = "postgres")]
pub use inbox_postgres as postgres;
#[cfg(feature = "pubsub")]
pub use inbox_pubsub as pubsub;
#[cfg(feature = "rabbitmq")]
pub use inbox_rabbitmq as rabbitmq;
#[cfg(feature = "redis")]
pub use inbox_redis as redis;
#[cfg(feature = "sqlite")]
pub use inbox_sqlite as sqlite;
#[cfg(feature = "sqs")]
pub use inbox_sqs as sqs;

/// The transports that are known, the feature that brings each, and whether it is on.
const SCHEMES: [(&str, &str, bool); 12] = [
    ("sqlite", "sqlite", cfg!(feature = "sqlite")),
    ("kafka", "kafka", cfg!(feature = "kafka")),
    ("kafka+tls", "kafka", cfg!(feature = "kafka")),
    ("pubsub", "pubsub", cfg!(feature = "pubsub")),
    ("rabbitmq", "rabbitmq", cfg!(feature = "rabbitmq")),
    ("amqp", "rabbitmq", cfg!(feature = "rabbitmq")),
    ("amqps", "rabbitmq", cfg!(feature = "rabbitmq")),
    ("redis", "redis", cfg!(feature = "redis")),
    ("rediss", "redis", cfg!(feature = "redis")),
    ("sqs", "sqs", cfg!(feature = "sqs")),
    ("sqs+https", "sqs", cfg!(feature = "sqs")),
    ("sqs+http", "sqs", cfg!(feature = "sqs")),
];

/// The scheme of a URL in lower case, if it begins with one.
fn scheme(url: &str) -> Option<String> {
    let (scheme, _) = url.split_once(':')?;
    let legal = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    legal.then(|| scheme.to_ascii_lowercase())
}

/// Why no transport takes a URL of this scheme.
fn unknown(scheme: Option<&str>) -> TransportError {
    let error = TransportError::new(TransportErrorKind::InvalidConfig, "connect");
    let accepted: Vec<String> = SCHEMES.iter().filter(|(.., on)| *on).map(|(name, ..)| format!("`{name}:`")).collect();
    let accepted =
        if accepted.is_empty() { "none, every transport's feature is off".into() } else { accepted.join(", ") };
    let Some(scheme) = scheme else {
        // Nothing of the text is shown: what stands in the scheme's place may be a password.
        return error.context(format!("a transport's URL starts with its scheme; accepted: {accepted}"));
    };
    if let Some((_, feature, _)) = SCHEMES.iter().find(|(name, _, on)| *name == scheme && !on) {
        return error.context(format!(
            "`{scheme}:` needs the feature `{feature}` of inbox-rs, which is off; accepted now: {accepted}"
        ));
    }
    error.context(format!("no transport takes `{scheme:.20}:`; accepted: {accepted}"))
}

/// The configuration of a URL. Without an endpoint, the variable that all of Google's clients know says where an emulator is.
#[cfg(feature = "pubsub")]
fn pubsub_config(url: &str) -> Result<inbox_pubsub::PubsubConfig, TransportError> {
    let config = inbox_pubsub::PubsubConfig::from_url(url)?;
    match std::env::var("PUBSUB_EMULATOR_HOST") {
        Ok(host) if !config.has_endpoint() && !host.is_empty() => Ok(config.endpoint(format!("http://{host}"))),
        _ => Ok(config),
    }
}

/// Connects a consumer: the URL picks the broker, its keys the subscription.
///
/// | URL | feature |
/// | --- | --- |
/// | `sqlite:FILE/topic?group=NAME` | `sqlite` |
/// | `kafka://host:port[,host…]/topic[,topic…]?group=NAME` | `kafka` |
/// | `pubsub://project/subscription?topic=NAME` | `pubsub` |
/// | `rabbitmq://user:password@host[:port]/vhost?queue=NAME`, `amqp:`, `amqps:` | `rabbitmq` |
/// | `redis://user:password@host[:port]/database?stream=NAME&group=NAME`, `rediss:` | `redis` |
/// | `sqs://region/queue`, `sqs+https://sqs.region.amazonaws.com/account/queue` | `sqs` |
///
/// # Errors
/// `InvalidConfig` for an unknown scheme, a feature that is off, a wrong key; `Unavailable`, `NotFound` and
/// `Unauthorized` as the broker says, within the transport's connect timeout.
pub async fn connect(url: &str) -> Result<Arc<dyn Transport>, TransportError> {
    match scheme(url).as_deref() {
        #[cfg(feature = "sqlite")]
        Some("sqlite") => Ok(Arc::new(inbox_sqlite::connect(url).await?)),
        #[cfg(feature = "kafka")]
        Some("kafka" | "kafka+tls") => Ok(Arc::new(inbox_kafka::connect(url).await?)),
        #[cfg(feature = "pubsub")]
        Some("pubsub") => Ok(Arc::new(inbox_pubsub::PubsubTransport::connect(pubsub_config(url)?).await?)),
        #[cfg(feature = "rabbitmq")]
        Some("rabbitmq" | "amqp" | "amqps") => Ok(Arc::new(inbox_rabbitmq::connect(url).await?)),
        #[cfg(feature = "redis")]
        Some("redis" | "rediss") => Ok(Arc::new(inbox_redis::connect(url).await?)),
        #[cfg(feature = "sqs")]
        Some("sqs" | "sqs+https" | "sqs+http") => Ok(Arc::new(inbox_sqs::connect(url).await?)),
        other => Err(unknown(other)),
    }
}

/// Connects a publisher: the same URL as for [`connect`], the group is not needed.
///
/// # Errors
/// As [`connect`].
pub async fn publisher(url: &str) -> Result<Arc<dyn Publisher>, TransportError> {
    match scheme(url).as_deref() {
        #[cfg(feature = "sqlite")]
        Some("sqlite") => Ok(Arc::new(inbox_sqlite::publisher(url).await?)),
        #[cfg(feature = "kafka")]
        Some("kafka" | "kafka+tls") => Ok(Arc::new(inbox_kafka::publisher(url).await?)),
        #[cfg(feature = "pubsub")]
        Some("pubsub") => Ok(Arc::new(inbox_pubsub::PubsubPublisher::connect(pubsub_config(url)?).await?)),
        #[cfg(feature = "rabbitmq")]
        Some("rabbitmq" | "amqp" | "amqps") => Ok(Arc::new(inbox_rabbitmq::publisher(url).await?)),
        #[cfg(feature = "redis")]
        Some("redis" | "rediss") => Ok(Arc::new(inbox_redis::publisher(url).await?)),
        #[cfg(feature = "sqs")]
        Some("sqs" | "sqs+https" | "sqs+http") => Ok(Arc::new(inbox_sqs::publisher(url).await?)),
        other => Err(unknown(other)),
    }
}

/// Makes the topic or queue that a URL names, for tests and first steps; what is there stays as it is.
///
/// # Errors
/// As [`connect`].
pub async fn provision(url: &str) -> Result<(), TransportError> {
    match scheme(url).as_deref() {
        #[cfg(feature = "sqlite")]
        Some("sqlite") => inbox_sqlite::provision(url).await,
        #[cfg(feature = "kafka")]
        Some("kafka" | "kafka+tls") => inbox_kafka::provision(url).await,
        #[cfg(feature = "pubsub")]
        Some("pubsub") => inbox_pubsub::provision_with(&pubsub_config(url)?).await,
        #[cfg(feature = "rabbitmq")]
        Some("rabbitmq" | "amqp" | "amqps") => inbox_rabbitmq::provision(url).await,
        #[cfg(feature = "redis")]
        Some("redis" | "rediss") => inbox_redis::provision(url).await,
        #[cfg(feature = "sqs")]
        Some("sqs" | "sqs+https" | "sqs+http") => inbox_sqs::provision(url).await,
        other => Err(unknown(other)),
    }
}

/// How many messages the subscription of a URL has that are not acknowledged: waiting, or with a consumer. For tests,
/// examples and jobs that work off a queue; a lag to alert on is in the broker's own metrics.
///
/// What the broker can tell differs: Kafka counts records of aborted transactions and markers too, RabbitMQ does not count
/// what consumers hold, SQS guesses. Ask again until it stays at zero.
///
/// # Errors
/// As [`connect`].
pub async fn backlog(url: &str) -> Result<u64, TransportError> {
    match scheme(url).as_deref() {
        #[cfg(feature = "sqlite")]
        Some("sqlite") => inbox_sqlite::QueueConfig::parse(url)?.backlog().await,
        #[cfg(feature = "kafka")]
        Some("kafka" | "kafka+tls") => Ok(u64::try_from(inbox_kafka::group_lag(url).await?).unwrap_or(0)),
        #[cfg(feature = "pubsub")]
        Some("pubsub") => inbox_pubsub::backlog(url).await,
        #[cfg(feature = "rabbitmq")]
        Some("rabbitmq" | "amqp" | "amqps") => inbox_rabbitmq::count_ready(url).await,
        #[cfg(feature = "redis")]
        Some("redis" | "rediss") => inbox_redis::backlog(url).await,
        #[cfg(feature = "sqs")]
        Some("sqs" | "sqs+https" | "sqs+http") => inbox_sqs::backlog(url).await,
        other => Err(unknown(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_scheme_names_what_is_accepted_and_nothing_else_of_the_url() {
        let text = |url| unknown(scheme(url).as_deref()).to_string();
        let unknown = text("kafak://user:hunter2@host/t");
        assert!(unknown.contains("no transport takes `kafak:`") && !unknown.contains("hunter2"), "{unknown}");
        let none = text("hunter2@host:9092/t");
        assert!(none.contains("starts with its scheme") && !none.contains("hunter2"), "{none}");
        if cfg!(not(feature = "kafka")) {
            let text = text("kafka://h/t");
            assert!(text.contains("needs the feature `kafka`"), "{text}");
        }
    }
}
