//! Deleting, and changing how long a message stays invisible: the one file where brokers differ.
//!
//! Ten messages share a request, and the answer speaks of each: what the service refuses is lost, what it could not do
//! right now is tried again a few times.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use aws_sdk_sqs::{
    error::BuildError,
    types::{BatchResultErrorEntry, ChangeMessageVisibilityBatchRequestEntry, DeleteMessageBatchRequestEntry},
};
use futures_util::{StreamExt, stream};
use inbox_core::{Message, TransportError, TransportErrorKind, report};
use tokio::time::{Instant, sleep};

use crate::{client::Remote, config::MOST_LEASE, error};

/// How many messages a request takes.
pub(crate) const BATCH: usize = 10;
/// How many requests are under way at once.
const CALLS: usize = 8;
/// How often a message is asked for that could not be settled right now, and the first pause between two requests. A
/// request that fails as a whole was tried again by the SDK.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(50);

/// For how long a message that was received stays with this process.
#[derive(Debug)]
pub(crate) struct Lease {
    /// When it began, or a little earlier: when the receive was sent.
    since: Instant,
    until: Mutex<Instant>,
}

impl Lease {
    pub(crate) fn new(since: Instant, lease: Duration) -> Self {
        Self { since, until: Mutex::new(since + lease) }
    }

    pub(crate) fn until(&self) -> Instant {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, until: Instant) {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }

    pub(crate) fn has_ended(&self, now: Instant) -> bool {
        self.until() <= now
    }

    /// What to ask for when half of a lease is over: `lease` anew, and less towards the end of the 12 hours. `None`: it is
    /// not the time yet, or nothing more is to be had.
    pub(crate) fn due(&self, lease: Duration, now: Instant) -> Option<Duration> {
        let until = self.until();
        if until <= now || until - now > lease / 2 {
            return None;
        }
        let left = (self.since + MOST_LEASE).saturating_duration_since(now);
        // The service counts in seconds.
        let ask = Duration::from_secs(lease.min(left).as_secs());
        (now + ask > until).then_some(ask)
    }
}

/// A message that was received: what settles it, and what it takes to hand it over again.
#[derive(Debug)]
pub(crate) struct Held {
    /// Its place in the order in which messages came.
    pub(crate) seq: u64,
    pub(crate) handle: Arc<str>,
    pub(crate) lease: Arc<Lease>,
    /// Since when it waits to be received, if it does.
    pub(crate) waits_since: Instant,
    /// Of a FIFO queue.
    pub(crate) group: Option<Arc<str>>,
    /// The service's id of the message.
    pub(crate) coordinates: Box<str>,
    pub(crate) count: Option<u32>,
    pub(crate) message: Message,
}

impl Held {
    pub(crate) fn size(&self) -> usize {
        self.message.size()
    }
}

/// What is asked of the service for one message.
#[derive(Clone, Debug)]
enum Ask {
    Delete(Arc<str>),
    VisibleIn(Arc<str>, Duration),
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Done,
    /// The service will never do it: the receipt handle has expired, the message is gone.
    Refused,
    /// It did not say, or could not right now.
    Unknown,
}

/// Deletes; how many the service has confirmed.
pub(crate) async fn delete(remote: &Remote, handles: Vec<Arc<str>>) -> usize {
    let asks = handles.into_iter().map(Ask::Delete).collect();
    let answers = all(remote, "ack", asks, TRIES).await;
    answers.into_iter().filter(|answer| *answer == Answer::Done).count()
}

/// Makes messages visible at once, for whoever asks.
pub(crate) async fn give_back(remote: &Remote, handles: Vec<Arc<str>>) {
    let asks = handles.into_iter().map(|handle| Ask::VisibleIn(handle, Duration::ZERO)).collect();
    let answers = all(remote, "release", asks, TRIES).await;
    let left = answers.into_iter().filter(|answer| *answer != Answer::Done).count();
    if left > 0 {
        tracing::debug!(messages = left, "not given back; their leases end by themselves");
    }
}

/// Asks for more time. A lease that the service refuses to extend has ended.
pub(crate) async fn extend(remote: &Remote, due: Vec<(Arc<str>, Arc<Lease>, Duration)>) {
    let asks = due.iter().map(|(handle, _, more)| Ask::VisibleIn(Arc::clone(handle), *more)).collect();
    let began = Instant::now();
    // Once: what failed is due again at the next look.
    let answers = all(remote, "extend leases", asks, 1).await;
    for ((_, lease, more), answer) in due.iter().zip(answers) {
        match answer {
            Answer::Done => lease.set(began + *more),
            Answer::Refused => lease.set(began),
            Answer::Unknown => {}
        }
    }
}

/// Sends all in requests of ten, some at once. The answers are at their places.
async fn all(remote: &Remote, operation: &'static str, mut asks: Vec<Ask>, tries: u32) -> Vec<Answer> {
    let mut requests = Vec::with_capacity(asks.len().div_ceil(BATCH));
    while !asks.is_empty() {
        let rest = asks.split_off(BATCH.min(asks.len()));
        requests.push(settled(remote, operation, std::mem::replace(&mut asks, rest), tries));
    }
    stream::iter(requests).buffered(CALLS).collect::<Vec<_>>().await.concat()
}

/// Sends one request, and again those of its messages that could not be settled right now.
async fn settled(remote: &Remote, operation: &'static str, asks: Vec<Ask>, tries: u32) -> Vec<Answer> {
    let mut answers = vec![Answer::Unknown; asks.len()];
    for nth in 0..tries {
        let left: Vec<usize> = (0..asks.len()).filter(|at| answers[*at] == Answer::Unknown).collect();
        if left.is_empty() {
            break;
        }
        if nth > 0 {
            sleep(PAUSE * 2_u32.pow(nth - 1)).await;
        }
        let rest: Vec<Ask> = left.iter().map(|at| asks[*at].clone()).collect();
        match once(remote, operation, &rest).await {
            Ok(said) => left.into_iter().zip(said).for_each(|(at, answer)| answers[at] = answer),
            Err(error) => {
                tracing::warn!(error = %report(&error), messages = rest.len(), "a request failed");
                break;
            }
        }
    }
    answers
}

async fn once(remote: &Remote, operation: &'static str, asks: &[Ask]) -> Result<Vec<Answer>, TransportError> {
    let not_built = |error: BuildError| TransportError::new(TransportErrorKind::Unexpected, operation).source(error);
    let (mut deletes, mut changes) = (Vec::new(), Vec::new());
    for (at, ask) in asks.iter().enumerate() {
        match ask {
            Ask::Delete(handle) => {
                let entry = DeleteMessageBatchRequestEntry::builder().id(at.to_string()).receipt_handle(&**handle);
                deletes.push(entry.build().map_err(not_built)?);
            }
            Ask::VisibleIn(handle, time) => {
                let entry = ChangeMessageVisibilityBatchRequestEntry::builder()
                    .id(at.to_string())
                    .receipt_handle(&**handle)
                    .visibility_timeout(i32::try_from(time.as_secs()).unwrap_or(i32::MAX));
                changes.push(entry.build().map_err(not_built)?);
            }
        }
    }
    let mut answers = Answers { remote, operation, all: vec![Answer::Unknown; asks.len()] };
    if !deletes.is_empty() {
        let request = remote.client.delete_message_batch().queue_url(&remote.url).set_entries(Some(deletes));
        let done = request.send().await.map_err(|error| error::of(operation, &remote.config, &error))?;
        done.successful.iter().for_each(|entry| answers.set(&entry.id, Answer::Done));
        answers.refused(&done.failed);
    }
    if !changes.is_empty() {
        let request = remote.client.change_message_visibility_batch().queue_url(&remote.url).set_entries(Some(changes));
        let done = request.send().await.map_err(|error| error::of(operation, &remote.config, &error))?;
        done.successful.iter().for_each(|entry| answers.set(&entry.id, Answer::Done));
        answers.refused(&done.failed);
    }
    Ok(answers.all)
}

/// What a response says of each message, by the places that their ids are. What it does not name stays unknown.
struct Answers<'a> {
    remote: &'a Remote,
    operation: &'static str,
    all: Vec<Answer>,
}

impl Answers<'_> {
    fn set(&mut self, id: &str, answer: Answer) {
        if let Some(place) = id.parse().ok().and_then(|at: usize| self.all.get_mut(at)) {
            *place = answer;
        }
    }

    fn refused(&mut self, failed: &[BatchResultErrorEntry]) {
        for entry in failed {
            let error = error::of_entry(self.operation, &self.remote.config, entry);
            tracing::debug!(error = %report(&error), "not settled");
            self.set(&entry.id, if error.is_retryable() { Answer::Unknown } else { Answer::Refused });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_lease_is_due_at_its_half() {
        let since = Instant::now();
        let lease = Lease::new(since, SECOND * 30);
        assert_eq!(lease.due(SECOND * 30, since + SECOND * 14), None);
        assert_eq!(lease.due(SECOND * 30, since + SECOND * 15), Some(SECOND * 30));
        assert_eq!(lease.due(SECOND * 30, since + SECOND * 29), Some(SECOND * 30));
        assert_eq!(lease.due(SECOND * 30, since + SECOND * 30), None, "it has ended");
        assert!(!lease.has_ended(since + SECOND * 29) && lease.has_ended(since + SECOND * 30));
    }

    #[test]
    fn a_lease_ends_after_twelve_hours_whatever_is_asked() {
        let since = Instant::now();
        let lease = Lease::new(since, SECOND * 30);
        let mut now = since;
        while !lease.has_ended(now) {
            if let Some(more) = lease.due(SECOND * 30, now) {
                assert!(more >= SECOND && now + more <= since + MOST_LEASE, "{more:?} at {:?}", now - since);
                lease.set(now + more);
            }
            now += SECOND;
        }
        assert_eq!(now, since + MOST_LEASE);
    }
}
