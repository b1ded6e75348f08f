//! Acknowledging and giving back: the one file where brokers differ.
//!
//! A subscription is of one of two kinds, and each delivery knows which. *At least once*: an acknowledgement is handed to
//! the client, which sends it within a tenth of a second and hears of no failure; one that fails lets the message come
//! again, and its claim says `Duplicate`. *Exactly once*: the service confirms, and what it did not confirm is lost.
//!
//! A handler that is dropped gives its message back (a deadline of 0): that is how everything here is given back, in the
//! order in which it came, because that is the order in which it comes again.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::join_all;
use google_cloud_pubsub::subscriber::handler::Handler;
use inbox_core::Message;
use tokio::time::{Instant, timeout};

/// How long a confirmation is waited for, while others wait behind it. The client goes on trying for ten minutes; a message
/// whose confirmation is late counts as lost, and comes again or does not.
const CONFIRMED: Duration = Duration::from_secs(5);

/// A delivery: what settles it, and what it takes to hand it over again.
#[derive(Debug)]
pub(crate) struct Held {
    /// Its place in the order in which the service delivered.
    pub(crate) seq: u64,
    /// When its lease began, or earlier.
    pub(crate) since: Instant,
    /// When it was given back, if it was.
    pub(crate) given_back: Option<Instant>,
    /// The service's id of the message.
    pub(crate) coordinates: Box<str>,
    pub(crate) message: Message,
    pub(crate) handler: Handler,
}

impl Held {
    pub(crate) fn size(&self) -> usize {
        self.message.size()
    }

    pub(crate) fn key(&self) -> Option<&Bytes> {
        self.message.key.as_ref()
    }

    /// How often the service has delivered it, where it counts.
    pub(crate) fn attempt(&self) -> Option<u32> {
        self.handler.delivery_attempt().and_then(|attempt| u32::try_from(attempt).ok())
    }
}

/// Acknowledges; how many are known, or as well as known, to be settled.
///
/// In the order of delivery: where the service both confirms and keeps keys in order, it does not take a message's
/// acknowledgement before those of the earlier ones of its key, and the client would try again for minutes.
pub(crate) async fn ack(mut held: Vec<Held>) -> usize {
    held.sort_unstable_by_key(|held| held.seq);
    let mut acked = 0;
    let mut confirmed = Vec::new();
    for held in held {
        match held.handler {
            Handler::AtLeastOnce(handler) => {
                handler.ack();
                acked += 1;
            }
            Handler::ExactlyOnce(handler) => confirmed.push(async move {
                let answer = timeout(CONFIRMED, handler.confirmed_ack()).await;
                if let Ok(Err(error)) = &answer {
                    tracing::debug!(%error, "an acknowledgement was not confirmed");
                }
                matches!(answer, Ok(Ok(())))
            }),
            // The enum may grow.
            other => drop(other),
        }
    }
    acked + join_all(confirmed).await.into_iter().filter(|confirmed| *confirmed).count()
}

/// Gives back, in the order in which they came, and waits until the service has confirmed where it does.
///
/// Without that wait a client that ends gives back what it still has in no order.
pub(crate) async fn give_back(mut held: Vec<Held>) {
    held.sort_unstable_by_key(|held| held.seq);
    let mut confirmed = Vec::new();
    for held in held {
        match held.handler {
            Handler::ExactlyOnce(handler) => confirmed.push(handler.confirmed_nack()),
            other => other.nack(),
        }
    }
    for answer in join_all(confirmed).await {
        if let Err(error) = answer {
            tracing::debug!(%error, "giving back was not confirmed; the lease ends by itself");
        }
    }
}

/// Gives back without waiting, in the order in which they came.
pub(crate) fn give_back_now(mut held: Vec<Held>) {
    held.sort_unstable_by_key(|held| held.seq);
    held.into_iter().for_each(|held| held.handler.nack());
}

/// A name that nothing else has.
pub(crate) fn unique() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let since = inbox_core::clock::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    format!("{:x}-{:x}-{:x}", since.as_nanos(), std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}
