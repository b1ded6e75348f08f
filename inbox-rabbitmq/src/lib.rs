//! RabbitMQ transport and publisher of the transactional inbox, on lapin (AMQP 0-9-1).
//!
//! # URL
//! `rabbitmq://[user:password@]host[:port][,host[:port]…][/vhost]?queue=name`; `amqp:` means the same, `amqps:` is with
//! TLS. Several hosts are nodes of one cluster. Without a path the virtual host is `/`; a `/` in its name is written
//! `%2f`. Every key is known or it is an error; [`RabbitMqConfig`] sets the same by hand.
//!
//! | key | meaning | default |
//! | --- | --- | --- |
//! | `queue` | the queue to read; to publish to it by its name, where no `exchange` is given | |
//! | `exchange`, `routing_key` | where to publish to, and how [`provision`] binds the queue | none, empty |
//! | `prefetch` | how many messages the broker hands out at most before one is settled | what an inbox has `in_flight` |
//! | `consumer_timeout` | the broker's own setting, which nobody can ask it for; `none` where it is off | `30m` |
//! | `heartbeat` | after twice this silence a connection is broken | `10s` |
//! | `connect_timeout` | how long `connect` takes at most, all nodes together, and each later question | `10s` |
//! | `publish_timeout` | how long a publisher waits for a confirmation | `30s` |
//! | `ca` | with `amqps`: PEM file of authorities to trust besides the system's | none |
//! | `id_header`, `kind_header` | headers with id and kind, where the properties do not have them | `message-id`, `message-kind` |
//! | `key_header` | header with the ordering key | `message-key` |
//! | `queue_type` | what [`provision`] makes: `classic` or `quorum` | `classic` |
//! | `exchange_type` | what [`provision`] makes: `topic`, `fanout`, `direct` or `headers` | `topic` |
//!
//! Consumers of different names need a queue each, bound to one exchange. Those that share a queue share its messages.
//!
//! # What RabbitMQ promises
//!
//! | | |
//! | --- | --- |
//! | order | of the queue, to one consumer, of what comes for the first time; none once something comes again or a second consumer reads |
//! | lease | as long as the channel lives, and `consumer_timeout` at most: nothing extends it |
//! | redelivery count | of quorum queues only; not relied on |
//! | crash flag | `redelivered`: also what another consumer gave back without an attempt; a hint |
//! | one key at two consumers at once | yes |
//! | largest body | the broker's `max_message_size` (128 MiB, 16 MiB since 4.0) |
//!
//! An order of keys that must hold needs one consumer a queue: a queue each for the parts of a consistent-hash exchange,
//! or `x-single-active-consumer`, and even then what comes again comes behind what is out. Handlers that compare a
//! version do without.
//!
//! # Where the id comes from
//! The property `message_id`, else the header `message-id`, else CloudEvents (`cloudEvents:id` with its `source`, or a
//! structured event), else the message has none and the inbox's policy for missing ids applies. The kind is the property
//! `type`, the time `timestamp`. The delivery tag is never an id: it numbers a channel's deliveries, and a redelivery has
//! another. The broker gives a message no name of its own, so equal messages without an id are kept as one row that counts
//! them.
//!
//! # Settings to use
//! - Quorum queues on three nodes for what must not be lost, classic ones for what may wait for a node. `provision` is for
//!   tests and first steps: make production's queues where your other infrastructure is described.
//! - `consumer_timeout` of the URL as the broker has it (`rabbitmqctl environment`), or of the queue (`x-consumer-timeout`,
//!   since 3.12; not tried here). An inbox whose `handler_timeout` does not fit is refused at its start. A URL that says nothing means the
//!   broker's default of 30 minutes; with a shorter one at the broker, nothing is refused and channels are lost.
//! - No dead-letter exchange is needed: what fails is quarantined in the database. One behind `message-ttl`, `max-length` or
//!   `delivery-limit` keeps what these would drop.
//! - A user of its own for each service, with these permissions and no others:
//!
//!   | | configure | write | read |
//!   | --- | --- | --- | --- |
//!   | consumer | `^$` | `^$` | `^QUEUE$` |
//!   | publisher to an exchange | `^$` | `^EXCHANGE$` | `^$` |
//!   | publisher to a queue by its name | `^$` | `^amq\.default$` | `^$` |
//!   | `provision` | both | the queue | the exchange |
//!
//!   That a user may not read is said by the first `receive`, which ends the inbox; once it has consumed, it waits until
//!   it may again.
//!
//! # What the metrics mean
//! - `inbox_in_flight`: what the broker shows as *unacked* is this number and what waits in the adapter; both together
//!   never exceed `in_flight`. At that bound for long, handlers are slower than the queue grows.
//! - `inbox_lost_acks_total` rises with each channel that is lost: restarts, cut connections, and, while brokers are well,
//!   `consumer_timeout`. Those messages come again and are counted in `inbox_duplicates_total`.
//! - `inbox_released_total` with the reason `session`: what waited for a session that was lost.
//! - The broker's own rate of *redelivered* counts all of these, and what is given back at a shutdown.
//! - Health says `connected` false from a lost channel until the queue is consumed again; the log has the reason.
//!
//! # Settings that lose messages
//! - A queue or exchange that is not durable, and messages that are not persistent: gone with a restart.
//!   [`RabbitMqPublisher`] publishes persistent ones only; [`provision`] makes durable things only.
//! - A classic queue is on one node. `quorum` is on several, which is what payments want.
//! - `message-ttl`, `expires`, `max-length` with `drop-head` (its default), `delivery-limit`, without a dead-letter
//!   exchange: messages vanish without a word, by queue argument or policy. `max-length` with `reject-publish` is an error
//!   to the publisher instead.
//! - Who publishes to an exchange without `mandatory` or without confirms does not hear that no queue was bound.
//!   [`RabbitMqPublisher`] does both: a message that is unroutable, refused or not confirmed is an error.
//! - `delivery-limit` on quorum queues (20 by default since 4.0): before 4.0 everything that is given back counts towards
//!   it, also what was never attempted. Since 4.0 only what was held when a channel or process died.
//! - A queue that is made after its exchange gets nothing of what was published before.
//!
//! # What surprises
//! - `consumer_timeout` counts from when the broker sends a message, so also while it waits here. What nobody has asked
//!   for in half of it is given back and comes again. A message that is held for longer than all of it, waiting for a lane
//!   included, costs the channel: everything that is held comes again, and what is done by then is found to be done. Keep
//!   `in_flight` × the time of a message ÷ lanes well below it, with `in_flight` or `prefetch`.
//! - Nothing is handed out before the first `receive`, which says how much there is room for. All of that may be in memory:
//!   there is no bound in bytes before a message is received. Lower `prefetch` for large bodies.
//! - An ack is not confirmed: one that is written into a connection that is breaking counts as acked here, and the message
//!   comes again. So does one that waits, for 200 ms at most, for what came before it, to share an answer with it: a broker
//!   looks for each single one among all that are unacknowledged. `close` waits for them: a channel keeps acks to a quorum queue back, and they would end with it.
//! - A queue that is deleted, a virtual host that is gone, a permission that is taken away do not end the transport: it
//!   tries again for ever, [`connected`](inbox_core::Transport::connected) is false, and the log says why.
//! - A broker that is out of memory or disk stops reading from connections that publish: `publish` fails after
//!   `publish_timeout`. Consumers have a connection of their own and go on.
//! - Headers are a table, which has no order and each name once. The publisher notes the order in `inbox-header-order`
//!   and puts the values of a repeated name into an array. All headers of a message fit one frame (128 KiB) or are refused
//!   as too large.
//! - When a broker refuses one message of a batch as too large it ends the channel; the rest of the batch is published
//!   again, so that some of it is stored twice, under the same ids.
//! - A property or a header's name that is no UTF-8 is nothing that lapin can read: it ends the connection, each time.
//! - lapin logs each connection that breaks as an error; the transport's own line about it is a warning.

mod admin;
mod config;
mod connection;
mod consume;
mod convert;
mod error;
mod publish;
mod settle;
mod tags;
mod transport;

use inbox_core::TransportError;

pub use crate::{
    admin::RabbitMqAdmin,
    config::{ExchangeType, QueueType, RabbitMqConfig},
    publish::RabbitMqPublisher,
    transport::RabbitMqTransport,
};

/// Consumes the queue of a [URL](crate#url).
///
/// # Errors
/// As [`RabbitMqTransport::connect`].
pub async fn connect(url: &str) -> Result<RabbitMqTransport, TransportError> {
    RabbitMqTransport::connect(RabbitMqConfig::from_url(url)?).await
}

/// A publisher to the queue or the exchange of a [URL](crate#url).
///
/// # Errors
/// As [`RabbitMqPublisher::connect`].
pub async fn publisher(url: &str) -> Result<RabbitMqPublisher, TransportError> {
    RabbitMqPublisher::connect(RabbitMqConfig::from_url(url)?).await
}

/// Makes the queue and the exchange of a [URL](crate#url), for tests and first steps. What is there stays as it is.
///
/// # Errors
/// As [`RabbitMqAdmin::connect`] and [`RabbitMqAdmin::provision`].
pub async fn provision(url: &str) -> Result<(), TransportError> {
    let admin = RabbitMqAdmin::connect(RabbitMqConfig::from_url(url)?).await?;
    let provisioned = admin.provision().await;
    admin.close().await;
    provisioned
}

/// How many messages of the queue of a [URL](crate#url) wait for a consumer: those that consumers hold are not counted.
///
/// # Errors
/// As [`RabbitMqAdmin::connect`] and [`RabbitMqAdmin::ready`].
pub async fn count_ready(url: &str) -> Result<u64, TransportError> {
    let admin = RabbitMqAdmin::connect(RabbitMqConfig::from_url(url)?).await?;
    let ready = admin.ready().await;
    admin.close().await;
    ready
}
