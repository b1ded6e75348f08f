//! Google Cloud Pub/Sub transport and publisher of the transactional inbox, on Google's own client.
//!
//! # URL
//! `pubsub://project/subscription?topic=name`. Every key is known or it is an error; [`PubsubConfig`] sets the same by hand.
//!
//! | key | meaning | default |
//! | --- | --- | --- |
//! | `topic` | topic to publish to, or `projects/PROJECT/topics/NAME`; a consumer's is compared with its subscription's | |
//! | `endpoint` | `https://REGION-pubsub.googleapis.com`, or `http://HOST:PORT` for the emulator, which gets no credentials | the service's |
//! | `lease` | for how long a delivery is leased at a time, `10s` to `600s`: what a dead process held comes again after it | `60s` |
//! | `max_lease` | for how long leases are extended, for everything that is held | `3600s` |
//! | `ordering`, `exactly_once` | what `connect` insists on if it is said, and what [`provision`] makes | `true`, `false` in [`provision`] |
//! | `id_attribute`, `kind_attribute` | attributes with the message's id and kind | `message-id`, `message-kind` |
//! | `connect_timeout` | how long `connect` waits for the service | `10s` |
//! | `publish_timeout` | how long a publisher tries to have a message stored | `30s` |
//!
//! Credentials are the application default ones (`GOOGLE_APPLICATION_CREDENTIALS`, a login by `gcloud`, the machine's service
//! account), or those of [`PubsubConfig::credentials`]; they never stand in a URL. This crate reads no variable of an
//! emulator; the facade reads `PUBSUB_EMULATOR_HOST` where a URL has no `endpoint`.
//!
//! # What Pub/Sub promises
//!
//! | | |
//! | --- | --- |
//! | order | by ordering key (the message's key), if the subscription has `enableMessageOrdering` |
//! | lease | extended by this process for everything it holds, `max_lease` at most |
//! | redelivery count, crash flag | none to rely on: the service counts only under a dead-letter policy, and roughly |
//! | one key at two consumers at once | possible: after a lease ended, and without ordering |
//! | largest body | 10,000,000 bytes, attributes and key included; a larger one is refused before it is sent |
//!
//! # Where the id comes from
//! The attribute `message-id`, else CloudEvents (`ce-id` with `ce-specversion`, or a structured event under `content-type:
//! application/cloudevents+json`), else the message has none and the inbox's policy for missing ids applies. Pub/Sub's own
//! message id is in [`Source::coordinates`](inbox_core::Source) and never taken for an id: it tells redelivery from delivery,
//! but not a producer's second send. Ids that are no UUIDs are scoped by the topic, so a subscription that is made anew finds
//! its claims.
//!
//! Attributes are text, distinct and in no order. What they cannot carry (bytes, repeated names, more than 1,024 bytes) goes
//! beside them into attributes `inbox-0`, `inbox-1`, …, which only this crate reads.
//!
//! # Settings to use
//! - `enableMessageOrdering` where keys matter. It cannot be changed later.
//! - At-least-once delivery is enough: the claim catches what comes twice. `enableExactlyOnceDelivery` makes duplicates rarer
//!   and each acknowledgement dearer; this crate then asks for the confirmation of each and counts what is not confirmed
//!   within 5 s as lost.
//! - No expiration policy (`gcloud … --expiration-period=never`), which [`provision`] sees to.
//! - `messageRetentionDuration` longer than your longest outage, and the inbox's retention longer than that:
//!   [`max_age`](inbox_core::Transport::max_age) reads subscription and topic, and never says less than the seven days for
//!   which anybody may seek back by a snapshot.
//! - `lease` as short as a dead process may be noticed, `max_lease` at least twice what a message may be held: retries and the
//!   handler's time together.
//!
//! # Settings that lose messages
//! - A subscription knows only what is published after it was made. One that is made anew has lost what the old one had.
//! - The default expiration policy deletes a subscription, with its backlog, after 31 days without a consumer.
//! - `messageRetentionDuration` (7 days by default, 10 minutes at least): a consumer that is further behind finds the messages
//!   gone.
//! - A dead-letter policy takes a message away after `maxDeliveryAttempts`, and every lease that ended and every message given
//!   back counts as one: an hour's outage of the database may move healthy messages. The inbox counts attempts by itself and
//!   keeps what fails; without a dead-letter policy nothing is taken away from it. `connect` warns of one.
//! - A filter drops what it does not match, for good. `seek` forward, and purging, skip; backward is harmless within the
//!   inbox's retention.
//! - A detached subscription, or one that pushes or exports by itself, is refused by `connect`.
//!
//! # Permissions
//! To consume: `pubsub.subscriptions.consume` and `pubsub.subscriptions.get` on the subscription (`roles/pubsub.subscriber` and
//! `roles/pubsub.viewer`). To publish: `pubsub.topics.publish` (`roles/pubsub.publisher`); with `pubsub.topics.get` a missing
//! topic is noticed at `connect`. [`provision`] needs `roles/pubsub.editor`.
//!
//! # What to watch
//! `subscription/num_undelivered_messages`, `subscription/oldest_unacked_message_age`, `subscription/expired_ack_deadlines_count`
//! (leases that ended: `max_lease` is too short, or processes die) and `subscription/dead_letter_message_count` of the service's
//! own metrics; the inbox's `lost_acks`.
//!
//! # What surprises
//! - What is given back (released, or its receipt dropped) is handed over again by this process, in its old place; only what
//!   nobody here takes up within a second goes to the service, and with it everything behind it of its key: what waits here
//!   and what is on its way.
//! - A lease belongs to a delivery, not to a connection. When the stream breaks, nothing that is held is lost: leases are
//!   extended again once the service is back, or have ended there, unnoticed, and the message comes again to be found done.
//! - The consumer opens its first stream with the inbox's in-flight bound as the service's limit, so that the service holds
//!   back the rest for other consumers; whoever asks for more gets a larger one.
//! - A subscription that is deleted ends the consumer with `NotFound` after `connect_timeout`; if it is made again before, the
//!   consumer goes on.
//! - A key is published at up to 1 MB/s, and all of it should go through one region.
//! - An empty message gets an attribute `inbox-empty`, since Pub/Sub takes none without body and attributes.
//!
//! # The emulator
//! Google's emulator keeps everything in memory and does less than the service. It does not keep to a stream's limit of
//! messages (one response of its, a hundred messages, waits in the client beside what is held): all that there is goes on
//! its way. What is there for longer than its lease is sent again, and then an acknowledgement of the first copy does
//! nothing: consumers that need longer than a lease for all that waits come to acknowledge nothing any more. After a message
//! was given back it does not deliver the later ones of its key again, and those of a consumer that died it hands to the
//! next one at once: this crate gives back all of them, in order, so that a key keeps its order unless a process is killed.
//! An acknowledgement counts only once those of the earlier messages of its key have come. With ordering and exactly-once
//! together it takes all messages without a key for those of one key. It knows no credentials, no TLS, no permissions, no
//! quotas and no regions, never counts deliveries without a dead-letter policy, and has threads for each subscription and
//! ordering key. What it does not do is tested against a stand-in, `examples/pubsub-standin.rs`, which serves too where the
//! emulator is not to be had.

mod admin;
mod config;
mod convert;
mod error;
mod handover;
mod publish;
mod pull;
mod settle;
mod transport;

use inbox_core::TransportError;

pub use crate::{config::PubsubConfig, publish::PubsubPublisher, transport::PubsubTransport};

/// Consumes the subscription of a [URL](crate#url).
///
/// # Errors
/// As [`PubsubTransport::connect`].
pub async fn connect(url: &str) -> Result<PubsubTransport, TransportError> {
    PubsubTransport::connect(PubsubConfig::from_url(url)?).await
}

/// A publisher for the topic of a [URL](crate#url).
///
/// # Errors
/// As [`PubsubPublisher::connect`].
pub async fn publisher(url: &str) -> Result<PubsubPublisher, TransportError> {
    PubsubPublisher::connect(PubsubConfig::from_url(url)?).await
}

/// Makes the topic of a [URL](crate#url) and, if it names one, the subscription, for tests and first steps. What exists is
/// left as it is.
///
/// # Errors
/// `Unavailable`; `Unauthorized`; `InvalidConfig`.
pub async fn provision(url: &str) -> Result<(), TransportError> {
    provision_with(&PubsubConfig::from_url(url)?).await
}

/// As [`provision`], for a configuration.
///
/// # Errors
/// As [`provision`].
pub async fn provision_with(config: &PubsubConfig) -> Result<(), TransportError> {
    admin::provision(config).await
}

/// How many messages the subscription of a [URL](crate#url) has that are not acknowledged, leased ones included. For tests:
/// the service has a metric for it, `num_undelivered_messages`, and the emulator has none.
///
/// The first call makes a second subscription of the topic, `NAME-audit`, and counts from then on: it must come before the
/// messages. Each call takes a snapshot and seeks the second subscription to it.
///
/// # Errors
/// `Unavailable`; `NotFound`; `Unauthorized`.
pub async fn backlog(url: &str) -> Result<u64, TransportError> {
    admin::backlog(&PubsubConfig::from_url(url)?).await
}

/// Reads the subscription of a [URL](crate#url), which nobody else consumes, to its end, acknowledges nothing, and says how
/// many messages it has: an audit of what was published since it was made.
///
/// # Errors
/// `Unavailable`; `NotFound`; `Unauthorized`.
pub async fn count_messages(url: &str) -> Result<u64, TransportError> {
    let config = PubsubConfig::from_url(url)?;
    admin::count(&config, &config.subscription_path()?, "count messages").await
}
