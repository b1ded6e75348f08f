//! The publisher.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use async_trait::async_trait;
use aws_sdk_sqs::{error::BuildError, types::SendMessageBatchRequestEntry};
use futures_util::{StreamExt, stream};
use inbox_core::{Message, Publisher, TransportError, TransportErrorKind};
use tokio::{sync::RwLock, time::timeout};

use crate::{
    client::Remote,
    config::SqsConfig,
    convert::{Entry, Outgoing},
    error,
    settle::BATCH,
};

/// How many requests are under way at once.
const CALLS: usize = 8;
/// What a request may hold at least: 1 MiB by now, and this is what stand-ins and older partitions take.
const REQUEST: usize = 256 << 10;

/// Publishes to one queue.
///
/// To a FIFO queue a message's key is its group, and messages of one group are sent one request after the other. What was
/// not stored is an error, and so are then the later messages of its group in the same call, unless they were in the same
/// request: the service stores these or not, each by itself.
pub struct SqsPublisher {
    remote: Remote,
    /// Whether it is open. Held while something is under way.
    open: RwLock<bool>,
}

/// The answers, by the places of the messages that they are about.
type Answers = Vec<(usize, Result<(), TransportError>)>;

impl SqsPublisher {
    /// Connects, and makes sure that the queue exists, unless the credentials may send but not look.
    ///
    /// # Errors
    /// As [`SqsTransport::connect`](crate::SqsTransport::connect).
    pub async fn connect(config: SqsConfig) -> Result<Self, TransportError> {
        let remote = Remote::connect_to_send(config, "connect").await?;
        Ok(Self { remote, open: RwLock::new(true) })
    }

    /// Sends entries in requests as large as they may be, one request after the other.
    async fn send_in_order(&self, entries: Vec<(usize, Entry)>) -> Answers {
        let mut answers = Vec::with_capacity(entries.len());
        // Groups of which something was not stored: what follows must not overtake it.
        let mut behind: HashSet<String> = HashSet::new();
        for request in requests(entries, self.remote.max_body) {
            let (held, request): (Vec<_>, Vec<_>) = request
                .into_iter()
                .partition(|(_, entry)| entry.fifo.as_ref().is_some_and(|fifo| behind.contains(&fifo.group)));
            answers.extend(held.into_iter().map(|(at, _)| (at, Err(overtaking()))));
            let groups: HashMap<usize, String> =
                request.iter().filter_map(|(at, entry)| Some((*at, entry.fifo.as_ref()?.group.clone()))).collect();
            let mut sent = self.send(&request).await;
            if sent.whole && request.len() > 1 {
                // One of them is at fault, and its neighbours must not suffer for it.
                sent.answers.clear();
                for alone in request.chunks(1) {
                    sent.answers.extend(self.send(alone).await.answers);
                }
            }
            for (at, answer) in &sent.answers {
                // One that will never be stored holds nobody back.
                if answer.as_ref().is_err_and(|error| !is_its_own_fault(error)) {
                    behind.extend(groups.get(at).cloned());
                }
            }
            answers.extend(sent.answers);
        }
        answers
    }

    async fn send(&self, entries: &[(usize, Entry)]) -> Sent {
        const OPERATION: &str = "publish";
        if entries.is_empty() {
            return Sent { answers: Vec::new(), whole: false };
        }
        let config = &self.remote.config;
        let refused = |error: &dyn Fn() -> TransportError| {
            let whole = !error().is_retryable();
            Sent { answers: entries.iter().map(|(at, _)| (*at, Err(error::of_message(error())))).collect(), whole }
        };
        let built: Result<Vec<_>, BuildError> =
            entries.iter().enumerate().map(|(at, (_, entry))| request_entry(at, entry)).collect();
        let built = match built {
            Ok(built) => built,
            Err(error) => {
                return refused(&|| {
                    TransportError::new(TransportErrorKind::Unexpected, OPERATION).context(error.to_string())
                });
            }
        };
        let request = self.remote.client.send_message_batch().queue_url(&self.remote.url).set_entries(Some(built));
        let done = match request.send().await {
            Ok(done) => done,
            Err(error) => return refused(&|| error::of(OPERATION, config, &error)),
        };
        // What the answer does not name may be stored or not.
        let unnamed = || TransportError::new(TransportErrorKind::Unavailable, OPERATION).context("not confirmed");
        let mut answers: Answers = entries.iter().map(|(at, _)| (*at, Err(unnamed()))).collect();
        let mut set = |id: &str, answer| {
            if let Some(place) = id.parse().ok().and_then(|at: usize| answers.get_mut(at)) {
                place.1 = answer;
            }
        };
        done.successful.iter().for_each(|entry| set(&entry.id, Ok(())));
        for entry in &done.failed {
            set(&entry.id, Err(error::of_message(error::of_entry(OPERATION, config, entry))));
        }
        Sent { answers, whole: false }
    }
}

/// What became of a request.
struct Sent {
    answers: Answers,
    /// It was refused as a whole, for good.
    whole: bool,
}

fn request_entry(at: usize, entry: &Entry) -> Result<SendMessageBatchRequestEntry, BuildError> {
    let (group, deduplication) = entry.fifo.clone().map(|fifo| (fifo.group, fifo.deduplication)).unzip();
    SendMessageBatchRequestEntry::builder()
        .id(at.to_string())
        .message_body(&entry.body)
        .set_message_attributes((!entry.attributes.is_empty()).then(|| entry.attributes.clone()))
        .set_message_group_id(group)
        .set_message_deduplication_id(deduplication)
        .build()
}

/// In their order, as many to a request as it takes.
fn requests(entries: Vec<(usize, Entry)>, largest: usize) -> Vec<Vec<(usize, Entry)>> {
    let most = largest.max(REQUEST);
    let mut requests: Vec<Vec<(usize, Entry)>> = Vec::new();
    let mut bytes = 0;
    for (at, entry) in entries {
        match requests.last_mut() {
            Some(last) if last.len() < BATCH && bytes + entry.size <= most => {
                bytes += entry.size;
                last.push((at, entry));
            }
            _ => {
                bytes = entry.size;
                requests.push(vec![(at, entry)]);
            }
        }
    }
    requests
}

/// What may be sent at once: of a FIFO queue what has no group in common, else each request by itself.
fn streams(entries: Vec<(usize, Entry)>, largest: usize) -> Vec<Vec<(usize, Entry)>> {
    if !entries.iter().any(|(_, entry)| entry.fifo.is_some()) {
        return requests(entries, largest);
    }
    // No more than are filled: a few messages are one request.
    let many = entries.len().div_ceil(BATCH).min(CALLS);
    let mut streams: Vec<Vec<(usize, Entry)>> = (0..many).map(|_| Vec::new()).collect();
    for (at, entry) in entries {
        let mut hasher = DefaultHasher::new();
        entry.fifo.as_ref().map(|fifo| &fifo.group).hash(&mut hasher);
        let stream = usize::try_from(hasher.finish() % many as u64).unwrap_or(0);
        streams[stream].push((at, entry));
    }
    streams
}

fn is_its_own_fault(error: &TransportError) -> bool {
    matches!(error.kind(), TransportErrorKind::TooLarge | TransportErrorKind::Rejected)
}

fn overtaking() -> TransportError {
    TransportError::new(TransportErrorKind::Unavailable, "publish")
        .context("an earlier message of its group was not stored, so it was not sent")
}

fn closed() -> TransportError {
    TransportError::new(TransportErrorKind::Closed, "publish").context("the publisher was closed")
}

#[async_trait]
impl Publisher for SqsPublisher {
    async fn publish(&self, messages: Vec<Message>) -> Vec<Result<(), TransportError>> {
        let open = self.open.read().await;
        if !*open {
            return messages.iter().map(|_| Err(closed())).collect();
        }
        let config = &self.remote.config;
        let outgoing = Outgoing {
            names: &config.names,
            fifo: config.is_fifo(),
            deduplicate: config.deduplicate,
            limit: self.remote.max_body,
        };
        let mut answers = Vec::with_capacity(messages.len());
        let mut entries = Vec::with_capacity(messages.len());
        for (at, message) in messages.iter().enumerate() {
            let entry = outgoing.entry(message);
            // Each place is answered below.
            answers.push(entry.map(|entry| entries.push((at, entry))));
        }
        drop(messages);
        let streams = streams(entries, self.remote.max_body).into_iter().map(|stream| self.send_in_order(stream));
        let sent: Vec<Answers> = stream::iter(streams).buffer_unordered(CALLS).collect().await;
        for (at, answer) in sent.into_iter().flatten() {
            answers[at] = answer;
        }
        answers
    }

    async fn close(&self, deadline: Duration) -> Result<(), TransportError> {
        // Waits for what is under way; what comes after it finds the publisher closed.
        let closed = timeout(deadline, self.open.write()).await.map(|mut open| *open = false);
        closed.map_err(|_| {
            TransportError::new(TransportErrorKind::Unavailable, "close")
                .context("the deadline passed before all was confirmed")
        })
    }
}

impl fmt::Debug for SqsPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqsPublisher").field("config", &self.remote.config).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::Fifo;

    fn entry(at: usize, size: usize, group: Option<&str>) -> (usize, Entry) {
        let fifo = group.map(|group| Fifo { group: group.to_owned(), deduplication: String::new() });
        (at, Entry { body: String::new(), attributes: HashMap::new(), fifo, size })
    }

    fn places(requests: &[Vec<(usize, Entry)>]) -> Vec<Vec<usize>> {
        requests.iter().map(|request| request.iter().map(|(at, _)| *at).collect()).collect()
    }

    #[test]
    fn requests_hold_ten_messages_and_what_the_service_takes() {
        let many: Vec<_> = (0..25).map(|at| entry(at, 10, None)).collect();
        assert_eq!(requests(many, 1_000).iter().map(Vec::len).collect::<Vec<_>>(), [10, 10, 5]);
        let large = [100_000, 100_000, 100_000, 262_144, 1].iter().enumerate().map(|(at, size)| entry(at, *size, None));
        assert_eq!(places(&requests(large.collect(), 1_000)), [vec![0, 1], vec![2], vec![3], vec![4]]);
        let larger = (0..3).map(|at| entry(at, 400_000, None)).collect();
        assert_eq!(places(&requests(larger, 1 << 20)), [vec![0, 1], vec![2]]);
        assert!(requests(Vec::new(), 1).is_empty());
    }

    #[test]
    fn a_group_is_in_one_stream_in_its_order() {
        let entries = (0..200).map(|at| entry(at, 1, Some(&format!("g{}", at % 20)))).collect();
        let streams = streams(entries, 1_000);
        assert!(streams.iter().filter(|stream| !stream.is_empty()).count() > 1, "in parallel");
        for group in 0..20 {
            let holding: Vec<Vec<usize>> = streams
                .iter()
                .map(|stream| stream.iter().map(|(at, _)| *at).filter(|at| at % 20 == group).collect())
                .filter(|places: &Vec<usize>| !places.is_empty())
                .collect();
            assert_eq!(holding, [(0..10).map(|n| n * 20 + group).collect::<Vec<_>>()]);
        }
        let few = (0..10).map(|at| entry(at, 1, Some(&format!("g{at}")))).collect();
        assert_eq!(places(&super::streams(few, 1_000)), [(0..10).collect::<Vec<_>>()]);
    }
}
