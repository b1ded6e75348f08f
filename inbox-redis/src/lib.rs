//! Redis Streams transport and publisher of the transactional inbox, on the client `redis`; one server of Redis 7.0 or newer.
//!
//! # URL
//! `redis://[[user]:password@]host[:port][/database]?stream=name&group=name`; `rediss:` is with TLS. Every key is known or
//! it is an error; [`RedisConfig`] sets the same by hand.
//!
//! | key | meaning | default |
//! | --- | --- | --- |
//! | `stream` | the key of the stream | |
//! | `group` | the consumer group; a publisher needs none | |
//! | `lease` | how long the messages of a dead process wait; at least `1s` | `30s` |
//! | `wait` | how long a read waits at the server while there is nothing; half the lease at most | `1s` |
//! | `delete` | what is acked is deleted: for a stream of one group only | `false` |
//! | `ca` | with `rediss`: PEM file of the authorities to trust instead of the system's | none |
//! | `id_header`, `kind_header`, `key_header` | fields with id, kind and key | `message-id`, `message-kind`, `message-key` |
//! | `body_field` | field with the body | `body` |
//! | `connect_timeout` | how long `connect` waits for the server | `10s` |
//! | `request_timeout` | how long a request may take, beside `wait` | `10s` |
//!
//! The stream must exist ([`provision`], or somebody's `XADD`); the group is made on first use and reads the stream from
//! its start. Consumers of different names need a group each. Those that share a group share its messages.
//!
//! # What Redis promises
//!
//! | | |
//! | --- | --- |
//! | order | of the stream, to one consumer, of what comes for the first time; none once something comes again or a second consumer reads |
//! | lease | the time since it was handed over or extended (*idle*); extended for all that is held, as long as the process lives |
//! | redelivery count | yes, the server's; also of what was never attempted |
//! | crash flag | what was taken when its lease had ended is flagged, a hint: a group that was made again knows nothing |
//! | one key at two consumers at once | yes |
//! | largest body | the server's `proto-max-bulk-len`, 512 MiB |
//!
//! An order of keys that must hold needs one consumer a stream, and a stream each for the parts of the keys; even then what
//! comes again comes behind what is out. Handlers that compare a version do without.
//!
//! A message is acknowledged only while it is with the consumer that had it, and was not with another one meanwhile: Redis
//! takes an `XACK` from anybody, so the script looks first. What was claimed by somebody else is counted in
//! [`Acked::lost`](inbox_core::Acked::lost).
//!
//! # Where the id comes from
//! The field `message-id`, else CloudEvents (`ce_id` with its `source`, or a structured event), else the message has none
//! and the inbox's policy for missing ids applies. The id of the stream's entry tells redelivery from delivery, but not a
//! producer's second send; it is in the [coordinates](inbox_core::Source).
//!
//! # How messages are written
//! The fields `message-id`, `message-kind`, `message-key` and `message-time` (milliseconds since 1970) are what they say,
//! `body` is the body, and every other field is a header: any bytes, in order, names repeated. A header that has one of these
//! names is written with `header.` in front of it. To send from elsewhere:
//! `XADD payments NOMKSTREAM * message-id 0190… message-kind captured body {…}`.
//!
//! # Settings to use
//! - `appendonly yes` and `appendfsync always`: then, and only then, what the publisher was told to be stored outlives the
//!   server's crash, and [`durable`](inbox_core::capability::Capabilities::durable) is true. It is read when a consumer
//!   connects (`CONFIG GET`); where that is refused it is false. `lua-time-limit`, `timeout` and `maxclients` may stay.
//! - `maxmemory-policy noeviction`. A server that is full refuses to publish (`Unavailable`), consumers go on.
//! - A stream keeps what was acked for ever. Give it `delete=true` where one group reads it; else call [`trim`] now and then,
//!   which deletes what every group has acked.
//! - `lease` of 10 s or more. It is not for handlers, which may take longer, since leases are extended; it is how long a
//!   process may be stuck before others get what it holds.
//!
//! # Settings that lose messages
//! - `appendfsync everysec` (the default of `appendonly yes`): what came in the last second or two, at a crash of the machine;
//!   `appendfsync no`: more. No AOF, `save` alone: all since the last snapshot, at each crash. Neither: everything.
//! - Replication is asynchronous: a failover loses what had not arrived, whatever the primary's disk has. `WAIT` is not
//!   used, since it is no promise either.
//! - `MAXLEN` or `MINID` in anybody's `XADD` or `XTRIM`: entries vanish, handed over or not, without a word. Of one that is
//!   held the lease cannot be extended then: it is lost, unless it is acked within a third of a lease.
//! - `XDEL`, `DEL`, `FLUSHALL`, an expiry on the key, and a `maxmemory-policy` that evicts: it evicts the whole stream.
//! - `XGROUP DELCONSUMER` of a consumer with pending messages forgets them. [`close`](inbox_core::Transport::close) and
//!   the sweep at the start remove consumers without any only.
//! - `XGROUP CREATE … $`, `XGROUP SETID`: what was published before is skipped.
//! - `delete=true` with a second group: what one acks, the other never sees.
//!
//! What is lost *in the other direction* does no harm: acknowledgements that a crash takes back come again, and are known.
//! So does all that is there when a group is made again, as far as claims are kept.
//!
//! # Permissions
//! Of an ACL, with `~STREAM` and `resetchannels`:
//! - Consumer: `+xreadgroup +xack +xpending +xclaim +xautoclaim +xgroup|create +xgroup|delconsumer +xinfo|consumers
//!   +evalsha +script|load`, and `+xdel` with `delete=true`. `+config|get` to know whether the server is durable;
//!   `+client|id +client|unblock` to hand over again and to close without waiting for `wait`.
//! - Publisher: `+type +multi +exec +xadd`.
//! - [`provision`]: `+xgroup|create +xgroup|destroy`. [`backlog`]: `+xpending +xinfo|groups +xrange +evalsha +script|load`.
//!   [`trim`]: `+type +xpending +xinfo|groups +xtrim +evalsha +script|load`.
//!
//! # What to watch
//! The inbox's metrics: `inbox_lost_acks_total` rises when leases end before acks, so when processes are starved or the
//! server is slow; `inbox_in_flight` stays at its bound when handlers are what is slow. The server's: `XINFO GROUPS`
//! (`lag`, `pending`), `used_memory`, `aof_last_write_status`, `aof_delayed_fsync`. An idle consumer makes two requests each
//! `wait`.
//!
//! # What surprises
//! - What is given back waits with a consumer called `inbox:given-back`, and what crashed consumers held with them, until
//!   somebody asks for more. Consumers without anything that were not seen for an hour are removed when another connects.
//! - Another consumer finds what was given back within `wait`. This one at once, where it may say `CLIENT UNBLOCK`.
//! - A lease ends by this process's clock too, when it was not extended in time: an ack is lost then though the server might
//!   still take it. It was handed over before the read was answered, so that a lease begins up to `wait` early.
//! - A server that is restarted comes back with all leases as old as the crash made them: what is held may go to somebody
//!   else at once. A connection that breaks alone loses nothing.
//! - A stream or group that is deleted ends the session: what was held is lost, and comes again if it is there. The group is
//!   made again once the stream is. Until then, as while the server is away, it is tried again for ever,
//!   [`connected`](inbox_core::Transport::connected) is false, and the log says why. That the user may not read is said by
//!   the first `receive`, which ends the inbox.
//! - How many messages are asked for is bounded so that they fit into the inbox's bound of bytes if each is as large as the
//!   larger ones of late: the first large ones may exceed it here.
//! - One server, or the primary of a pair behind one name: no Sentinel, and a node of a cluster only if the stream is on it.
//!   Stream and group are one key, so a cluster of which the client knew would do.
//! - Scripts and transactions are short (500 messages, 8 MiB), and nobody else is served meanwhile.

mod admin;
mod client;
mod config;
mod convert;
mod error;
mod handover;
mod keep;
mod poll;
mod publish;
mod script;
mod settle;
mod transport;

use inbox_core::TransportError;

pub use crate::{config::RedisConfig, publish::RedisPublisher, transport::RedisTransport};

/// Consumes the stream of a [URL](crate#url).
///
/// # Errors
/// As [`RedisTransport::connect`].
pub async fn connect(url: &str) -> Result<RedisTransport, TransportError> {
    RedisTransport::connect(RedisConfig::from_url(url)?).await
}

/// A publisher to the stream of a [URL](crate#url).
///
/// # Errors
/// As [`RedisPublisher::connect`].
pub async fn publisher(url: &str) -> Result<RedisPublisher, TransportError> {
    RedisPublisher::connect(RedisConfig::from_url(url)?).await
}

/// Makes the stream of a [URL](crate#url), and the group if it names one. What is there stays as it is.
///
/// # Errors
/// `Unavailable`; `Unauthorized`; `InvalidConfig`, also when the key is no stream.
pub async fn provision(url: &str) -> Result<(), TransportError> {
    admin::provision(RedisConfig::from_url(url)?).await
}

/// How many messages the group of a [URL](crate#url) has not acked, those included that consumers hold.
///
/// # Errors
/// `NotFound`; `Unavailable`; `Unauthorized`; `InvalidConfig` without a group.
pub async fn backlog(url: &str) -> Result<u64, TransportError> {
    admin::backlog(RedisConfig::from_url(url)?).await
}

/// How many messages the stream of a [URL](crate#url) holds, acked or not.
///
/// # Errors
/// `NotFound`; `Unavailable`; `Unauthorized`; `InvalidConfig` when the key is no stream.
pub async fn count_entries(url: &str) -> Result<u64, TransportError> {
    admin::length(RedisConfig::from_url(url)?).await
}

/// Deletes from the stream of a [URL](crate#url) what every group has acked; how many messages. The last one that was
/// handed over stays.
///
/// # Errors
/// `NotFound`; `Unavailable`; `Unauthorized`; `InvalidConfig` when the key is no stream.
pub async fn trim(url: &str) -> Result<u64, TransportError> {
    admin::trim(RedisConfig::from_url(url)?).await
}
