//! Kafka transport and publisher of the transactional inbox, on librdkafka.
//!
//! # URL
//! `kafka://[user:password@]host:port[,host:port…]/topic[,topic…]?group=name`, or `kafka+tls:`. Every key is known or it
//! is an error; [`KafkaConfig`] sets the same by hand.
//!
//! | key | meaning | default |
//! | --- | --- | --- |
//! | `group` | consumer group; its members share the topic. Not needed to publish | |
//! | `start` | where a group without a commit starts: `earliest` or `latest` | `earliest` |
//! | `isolation` | `read_committed` or `read_uncommitted` | `read_committed` |
//! | `sasl` | `plain`, `scram-sha-256` or `scram-sha-512`, with `user:password@` | none |
//! | `tls`, `ca` | encrypt and check the broker; PEM file of authorities to trust | `false`, the system's |
//! | `id_header`, `kind_header` | headers with the message's id and kind | `message-id`, `message-kind` |
//! | `connect_timeout` | how long `connect` waits for a broker | `10s` |
//! | `session_timeout` | after which silence the broker gives a dead member's partitions away | `45s` |
//! | `revoke_timeout` | how long a partition that moves waits for what is in flight of it | `5s` |
//! | `instance` | static membership: a name that only this process has, kept over restarts | none |
//! | `prefetch`, `prefetch_bytes` | what is kept ready before it is asked for | `1000`, `16777216` |
//! | `partitions`, `replication` | what [`provision`] creates | `8`, the cluster's |
//! | `kafka.PROPERTY` | any property of librdkafka that the adapter does not set itself | |
//!
//! # What Kafka promises
//!
//! | | |
//! | --- | --- |
//! | order | within a partition, so also of a key |
//! | lease | as long as the member is in the group and the partition assigned to it |
//! | redelivery count, crash flag | none: attempts are counted in the store |
//! | one key at two consumers at once | no |
//! | largest body | the topic's `max.message.bytes` |
//!
//! # Where the id comes from
//! The header `message-id`, else CloudEvents (`ce_id` with `ce_source`, or a structured event), else the message has none
//! and the inbox's policy for missing ids applies. The key is never taken for an id: it orders, and repeats. Topic,
//! partition and offset tell redelivery from delivery, but not a producer's second send.
//!
//! # Settings that lose messages
//! - `start=latest`: what is published before the group's first commit in a partition is never seen: by a new group, in
//!   a partition that was added, and after the broker has forgotten the group's offsets (`offsets.retention.minutes`, 7
//!   days without a member).
//! - The topic's `retention.ms` and `retention.bytes`: a consumer that is further behind finds the messages gone. The
//!   inbox's retention has to be longer than a message can be old: [`max_age`](inbox_core::Transport::max_age) reads
//!   both from the topic.
//! - `cleanup.policy=compact`: of each key only the newest message stays. Events are not that.
//! - `acks` below `all`, `min.insync.replicas=1`, `unclean.leader.election.enable=true`, at whoever publishes: the
//!   broker may lose what it confirmed. [`KafkaPublisher`] sets `acks=all`; the other two are the topic's.
//! - Resetting the group's offsets forward skips; backward is harmless within the inbox's retention.
//!
//! # What surprises
//! - One stuck handler holds the watermark of its partition: after a crash everything behind it comes again and is found
//!   to be done. The consumer stays in the group, since it is polled by a thread of its own: Kafka's
//!   `max.poll.interval.ms` does **not** notice stuck handlers, the inbox's handler timeout does.
//! - A message that was given back (released, or its receipt dropped) is handed over again by this process, sorted by
//!   offset, before anything new. Later messages of its partition that are out already stay out.
//! - A partition that moves to another member waits up to `revoke_timeout` for handlers that run. One that takes longer
//!   finishes under a lost session: its ack counts as lost and the other member finds a duplicate.
//! - A full buffer pauses the consumer after 0.2 s; a pause discards what librdkafka fetched ahead (at most
//!   `queued.max.messages.kbytes`, 16 MB here), which is fetched again. A consumer of very slow handlers on a long
//!   backlog lowers that property, or `fetch.max.bytes`.
//! - With `instance`, a member that stops for good keeps its partitions for `session_timeout`. Two processes under one
//!   name fence each other: the older one fails.
//! - Members share by `cooperative-sticky`. A group that has members with another assignor (the default of Java and
//!   librdkafka is `range`) is refused: stop those first.
//! - Closing while no broker is reachable answers `Unavailable` at the deadline; the client ends by itself in the
//!   background, at the latest after `session_timeout`.
//! - A record without a value (a tombstone) is a message with an empty body.
//! - Several topics of one URL number their partitions apart: [`Delivery::partition`](inbox_core::Delivery::partition) is
//!   the topic's place in the URL × 2³² plus the partition.
//! - Lag is counted by librdkafka and tools up to the last stable offset; behind an open transaction nothing is handed
//!   over. At the end of a partition the consumer commits behind transaction markers, so that the lag reaches 0.

mod admin;
mod config;
mod convert;
mod error;
mod handover;
mod poll;
mod publish;
mod rebalance;
mod settle;
mod transport;
mod watermark;

use inbox_core::TransportError;

pub use crate::{
    config::{Isolation, KafkaConfig, Sasl, Start},
    publish::KafkaPublisher,
    transport::KafkaTransport,
};

/// Joins the group of a [URL](crate#url).
///
/// # Errors
/// As [`KafkaTransport::connect`].
pub async fn connect(url: &str) -> Result<KafkaTransport, TransportError> {
    KafkaTransport::connect(KafkaConfig::from_url(url)?).await
}

/// A publisher for the topic of a [URL](crate#url).
///
/// # Errors
/// As [`KafkaPublisher::connect`].
pub async fn publisher(url: &str) -> Result<KafkaPublisher, TransportError> {
    KafkaPublisher::connect(KafkaConfig::from_url(url)?).await
}

/// Creates the topics of a [URL](crate#url), for tests and first steps. Topics that exist are left as they are.
///
/// # Errors
/// `Unavailable`; `Unauthorized`; `InvalidConfig` when the cluster refuses the number of partitions or replicas.
pub async fn provision(url: &str) -> Result<(), TransportError> {
    admin::provision(&KafkaConfig::from_url(url)?).await
}

/// Reads the topics of a [URL](crate#url) from the oldest record to the ends as they are now, without the group, and
/// counts the records that a consumer would be given. Offsets do not tell: transaction markers and compaction leave
/// holes.
///
/// # Errors
/// `Unavailable`; `NotFound`; `Unauthorized`.
pub async fn count_records(url: &str) -> Result<u64, TransportError> {
    admin::count_records(&KafkaConfig::from_url(url)?).await
}

/// How far the committed offsets of the group are behind the last stable offsets. A partition without a commit counts
/// from its oldest record.
///
/// # Errors
/// `Unavailable`; `NotFound`; `Unauthorized`.
pub async fn group_lag(url: &str) -> Result<i64, TransportError> {
    admin::group_lag(&KafkaConfig::from_url(url)?).await
}
