//! Amazon SQS transport and publisher of the transactional inbox, on Amazon's own client; standard and FIFO queues.
//!
//! # URL
//! `sqs://[key:secret@]region/queue`; a name that ends in `.fifo` is a FIFO queue. A queue's own URL does as well,
//! `sqs+https://sqs.region.amazonaws.com/account/queue`, and needs no permission to look the queue up. A stand-in is
//! `sqs://host:port/queue`. Every key is known or it is an error; [`SqsConfig`] sets the same by hand.
//!
//! | key | meaning | default |
//! | --- | --- | --- |
//! | `lease` | visibility timeout, whatever the queue's own is: how long the messages of a dead process wait; `2s` to `12h` | `30s` |
//! | `wait` | how long a receive waits at the service while there is nothing; at most `20s` and half the lease | `4s` |
//! | `polls` | how many receives are under way at once at most, while there is much to do | `8` |
//! | `account` | the 12 digits of the account that owns the queue, if it is another one | that of the credentials |
//! | `region` | where the host does not say it | `us-east-1` for a stand-in |
//! | `endpoint` | `https://…` of a VPC endpoint, `http://…` of a stand-in | the region's |
//! | `sns` | bodies are notifications of SNS, without raw delivery: their message is taken out | `false` |
//! | `deduplicate` | to a FIFO queue: what is sent again within 5 minutes is dropped by the service | `true` |
//! | `id_header`, `kind_header`, `key_header` | attributes with id, kind and key | `message-id`, `message-kind`, `message-key` |
//! | `connect_timeout` | how long `connect` waits for the service | `10s` |
//! | `request_timeout` | how long a request may take, beside `wait` | `10s` |
//!
//! Without a key and a secret in it the credentials are those that every AWS program finds: the environment's, a profile's,
//! a web identity's, a container's, an instance's. To an `http:` endpoint made-up ones are sent, never real ones.
//!
//! Consumers of different names need a queue each, which SNS or EventBridge gives copies to. Those that share a queue share
//! its messages.
//!
//! # What SQS promises
//!
//! | | standard | FIFO |
//! | --- | --- | --- |
//! | order | none | of a group, also when messages come again |
//! | lease | extended for all that is held, to 12 hours from the receive | the same |
//! | redelivery count | yes, the service's | not of what this process handed over again |
//! | crash flag | none | none |
//! | one key at two consumers at once | yes | no |
//! | largest message | the queue's `MaximumMessageSize`, 1 MiB at most, attributes included | the same |
//!
//! # Where the id comes from
//! The attribute `message-id`, else CloudEvents (`ce-id` with `ce-source`, or a structured event), else the message has none
//! and the inbox's policy for missing ids applies. SQS's own `MessageId` tells redelivery from delivery, but not a
//! producer's second send; it is in the [coordinates](inbox_core::Source).
//!
//! # How messages are written
//! The body is the body. The attributes `message-id`, `message-kind` and `message-time` (milliseconds since 1970) are what
//! they say, and each header is an attribute of its name. The key is the group of a FIFO queue, else the attribute
//! `message-key`. SQS takes text only, ten attributes in no order, and nothing that is empty; what does not fit says so:
//! - A body that is no text is base64, an empty one the word `empty`, and `message-encoding` says `base64` or `empty`.
//! - An attribute that is no text is of the type `Binary`, an empty one of the type `String.empty`.
//! - Headers that are not in the order of the alphabet have their names in `message-header-order`; those that are too many,
//!   repeat, or have no legal name are packed into `message-headers`, which only this crate reads.
//! - A key that is no group (128 of letters, digits and punctuation) is hashed for it and written to `message-key`. A message
//!   without a key has a group of its own, which begins with `no-key:`.
//!
//! # Settings to use
//! - `MessageRetentionPeriod` of 14 days, for queue and dead-letter queue: the default of 4 days is a long weekend. The
//!   inbox's retention has to be longer than a message can be old: [`max_age`](inbox_core::Transport::max_age) reads both
//!   queues, and counts one redrive.
//! - A dead-letter queue with `maxReceiveCount` of 10 or more. The inbox makes its attempts while it holds the message, so
//!   they are one receive; what counts are crashes, and messages that were given back without an attempt.
//! - `lease` of 10 s or more. It is not for handlers, which may take longer, since leases are extended; it is how long a
//!   process may be stuck before others get what it holds.
//! - For FIFO queues with many groups `FifoThroughputLimit=perMessageGroupId` with `DeduplicationScope=messageGroup`.
//!
//! # Settings that lose messages
//! - `MessageRetentionPeriod`: a consumer that is further behind finds the messages gone, without a word. Alarm on
//!   `ApproximateAgeOfOldestMessage`.
//! - `maxReceiveCount` of 1 or 2: a deployment moves good messages to the dead-letter queue. Of a FIFO queue they leave
//!   their group behind, which goes on without them.
//! - A dead-letter queue whose retention is not longer than the queue's: of a standard queue, age counts from the first
//!   send.
//! - `PurgeQueue`, and a queue that is deleted and made again: what was in it is gone.
//! - A second send to a FIFO queue within 5 minutes is dropped when id, kind and body are equal: it is the same message.
//!   Content-based deduplication, which other publishers may use, drops equal bodies under different ids.
//! - SNS without raw delivery, and no `sns=true`: each message is without an id.
//!
//! # Permissions
//! - Consumer: `sqs:ReceiveMessage`, `sqs:DeleteMessage`, `sqs:ChangeMessageVisibility`, `sqs:GetQueueAttributes`, and
//!   `sqs:GetQueueUrl` unless the queue is given by its own URL. `sqs:GetQueueUrl` and `sqs:GetQueueAttributes` of the
//!   dead-letter queue, or it is taken to keep messages for 14 days.
//! - Publisher: `sqs:SendMessage`; `sqs:GetQueueUrl` as above; `sqs:GetQueueAttributes`, or the service says what is too
//!   large.
//! - [`provision`]: `sqs:GetQueueUrl`, `sqs:CreateQueue`.
//! - With a KMS key of one's own: `kms:Decrypt` to consume, and `kms:GenerateDataKey` besides to publish.
//!
//! # What to watch
//! The inbox's metrics: `inbox_lost_acks_total` rises when leases end before acks, so when processes are starved or requests
//! fail; `inbox_in_flight` stays at its bound when handlers are what is slow. CloudWatch's:
//! `ApproximateAgeOfOldestMessage`; `ApproximateNumberOfMessagesNotVisible`, which is what all consumers hold and 120,000 at
//! most; the dead-letter queue's `ApproximateNumberOfMessagesVisible`, which should be 0.
//! An idle consumer makes one request each `wait`; a busy one a fifth of a request a message.
//!
//! # What surprises
//! - A FIFO queue gives out nothing more of a group while something of it is held: ten messages of it at once at most. One
//!   group is as fast as receive, handlers and delete one after the other.
//! - What a consumer of a FIFO queue gives back stays with it for up to 2 s, to be handed over again in its place; then it
//!   goes back to the service, and what is held behind it of its group with it.
//! - Closing waits for the receive that is under way, up to `wait`, because the service gives messages to a receive that
//!   nobody reads any more. Whoever ends the process earlier delays these by a lease.
//! - A lease is counted by this process's clock from before the receive was sent. When it has ended, an ack is lost though
//!   the service might still take it: of a standard queue it takes every old receipt handle, and does nothing.
//! - After 12 hours a lease cannot be extended. The message comes again while its handler may still run, and waits for it
//!   in the database.
//! - How many messages are asked for is bounded so that they fit into the inbox's bound of bytes if each is as large as the
//!   queue takes. For small messages and a small bound lower the queue's `MaximumMessageSize`.
//! - A queue that is deleted, credentials that are taken away do not end the transport: it tries again for ever,
//!   [`connected`](inbox_core::Transport::connected) is false, and the log says why.
//! - The pointers that Amazon's Extended Client writes for large bodies in S3 are not followed.
//! - Counts ([`backlog`]) are the service's, a minute late.
//!
//! # Stand-ins
//! moto 5.2.5 differs from SQS, so that tests against it may fail, or pass, for its own reasons. `cargo xtask services up`
//! starts it with the first five of these mended:
//! - It changes its lists without a lock: of two deletes at once one is undone, a send beside a delete is lost, one message
//!   goes to two receives.
//! - A receive that waits does not know of groups that are held since it began, and gives out their next messages; while
//!   only such messages are there it takes a processor for itself.
//! - When the leases of several messages of a group have ended, it gives out the last one first.
//! - Receipt handles never expire: an old one deletes, and extends a lease that has ended or that another consumer has.
//! - Its time for a request grows with the square of the queue.
//! - It takes any credentials. Its 12 hours count from the send. No size includes attributes. Entries of a batch do not fail
//!   one by one, and a receipt handle that is wrong in one way or another is always `ReceiptHandleIsInvalid`.

mod admin;
mod client;
mod config;
mod convert;
mod error;
mod handover;
mod keep;
mod poll;
mod publish;
mod settle;
mod transport;

use inbox_core::TransportError;

pub use crate::{config::SqsConfig, publish::SqsPublisher, transport::SqsTransport};

/// Consumes the queue of a [URL](crate#url).
///
/// # Errors
/// As [`SqsTransport::connect`].
pub async fn connect(url: &str) -> Result<SqsTransport, TransportError> {
    SqsTransport::connect(SqsConfig::from_url(url)?).await
}

/// A publisher to the queue of a [URL](crate#url).
///
/// # Errors
/// As [`SqsPublisher::connect`].
pub async fn publisher(url: &str) -> Result<SqsPublisher, TransportError> {
    SqsPublisher::connect(SqsConfig::from_url(url)?).await
}

/// Makes the queue of a [URL](crate#url), for tests and first steps. What is there stays as it is.
///
/// # Errors
/// `Unavailable`, also within a minute after a queue of this name was deleted; `Unauthorized`; `InvalidConfig`.
pub async fn provision(url: &str) -> Result<(), TransportError> {
    admin::provision(&SqsConfig::from_url(url)?).await
}

/// How many messages the queue of a [URL](crate#url) holds, those included that consumers hold or that are delayed. The
/// service's figure is right about a minute after the last change.
///
/// # Errors
/// `Unavailable`; `NotFound`; `Unauthorized`.
pub async fn backlog(url: &str) -> Result<u64, TransportError> {
    admin::backlog(SqsConfig::from_url(url)?).await
}
