//! The thread that owns the consumer: it polls, pauses, stores offsets and leaves.
//!
//! It never stops polling for longer than [`PATIENCE`], whatever the tasks do, so the group keeps this member. When the
//! buffer is full it first waits that long, then pauses all partitions and polls for events only. A pause throws away
//! what librdkafka has fetched ahead, and a resume fetches it again; hence the patience, and a resume only when half of
//! the buffer is free.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use inbox_core::{TransportError, TransportErrorKind, envelope::Envelope};
use rdkafka::{
    Message as _, Offset,
    config::FromClientConfigAndContext as _,
    consumer::{BaseConsumer, Consumer},
    error::{KafkaError, RDKafkaErrorCode},
    message::BorrowedMessage,
};
use tokio::sync::{oneshot, watch};

use crate::{
    config::KafkaConfig,
    convert, error,
    handover::{Polled, Shared},
    rebalance::{Context, store},
    settle::Place,
};

/// How long a full buffer is waited for before a pause.
const PATIENCE: Duration = Duration::from_millis(200);
/// How long one poll waits for a record; how late the thread may see that it should end.
const POLL: Duration = Duration::from_millis(100);
/// How often offsets are handed to librdkafka, which commits them at its own interval.
const STORE_EVERY: Duration = Duration::from_millis(50);
/// How often the thread asks for a broker that is gone, and how long for.
const ASK_EVERY: Duration = Duration::from_secs(1);
const ASK_FOR: Duration = Duration::from_millis(500);
/// The most records taken in at once: acks and receives get the lock in between.
const BATCH: usize = 256;

struct Poller {
    consumer: BaseConsumer<Context>,
    shared: Arc<Shared>,
    envelope: Envelope,
    polled: Vec<Polled>,
    /// Records of one topic follow one another.
    last_topic: Option<(String, u32)>,
    full_since: Option<Instant>,
    paused: bool,
    at_an_end: bool,
    stored_at: Instant,
    asked_at: Instant,
    missing_since: Option<Instant>,
    /// A static member does not leave: that is its point.
    is_static: bool,
}

/// Starts the thread and subscribes. The answer of `subscribed` says whether that worked; `ended` turns true when the
/// thread has left the group.
pub(crate) fn start(
    config: &KafkaConfig,
    shared: Arc<Shared>,
    subscribed: oneshot::Sender<Result<(), TransportError>>,
    ended: watch::Sender<bool>,
) -> Result<(), TransportError> {
    let client = config.consumer()?;
    let context = Context::new(Arc::clone(&shared), config.revoke_timeout);
    let (envelope, is_static) = (config.envelope.clone(), config.instance.is_some());
    let body = move || {
        let _end = EndGuard { shared: Arc::clone(&shared), ended };
        match BaseConsumer::from_config_and_context(&client, context) {
            Ok(consumer) => Poller::new(consumer, shared, envelope, is_static).run(subscribed),
            // Nobody waits for the answer any more: then nobody needs the thread either.
            Err(error) => drop(subscribed.send(Err(error::of("connect", error)))),
        }
    };
    thread::Builder::new()
        .name("inbox-kafka".to_owned())
        .spawn(body)
        .map(drop)
        .map_err(|error| TransportError::new(TransportErrorKind::Unexpected, "connect").source(error))
}

/// Tells everybody that the thread is gone, also when it panics.
struct EndGuard {
    shared: Arc<Shared>,
    ended: watch::Sender<bool>,
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.shared.thread_ended();
        self.ended.send_replace(true);
    }
}

impl Poller {
    fn new(consumer: BaseConsumer<Context>, shared: Arc<Shared>, envelope: Envelope, is_static: bool) -> Self {
        let now = Instant::now();
        Self {
            consumer,
            shared,
            envelope,
            polled: Vec::with_capacity(BATCH),
            last_topic: None,
            full_since: None,
            paused: false,
            at_an_end: false,
            stored_at: now,
            asked_at: now,
            missing_since: None,
            is_static,
        }
    }

    fn run(mut self, subscribed: oneshot::Sender<Result<(), TransportError>>) {
        let topics: Vec<&str> = self.shared.topics.iter().map(|topic| &**topic).collect();
        let result = self.consumer.subscribe(&topics).map_err(|error| error::of("connect", error));
        let failed = result.is_err();
        if subscribed.send(result).is_err() || failed {
            return;
        }
        while self.shared.stopped().is_none() {
            if self.has_room() {
                self.take_in();
            }
            self.store();
            self.look_for_trouble();
        }
        self.leave();
    }

    /// Whether records may be polled. If not, events were served, or will be soon.
    fn has_room(&mut self) -> bool {
        if !self.paused {
            let since = *self.full_since.get_or_insert_with(Instant::now);
            if self.shared.wait_for_room(PATIENCE.saturating_sub(since.elapsed())) {
                self.full_since = None;
                return true;
            }
            if since.elapsed() < PATIENCE {
                return false;
            }
            self.pause();
        } else if self.consumer.context().seen(|seen| std::mem::take(&mut seen.assignment_changed)) {
            self.pause();
        }
        if self.shared.wait_for_half(POLL) {
            self.resume();
            return true;
        }
        self.poll_one(Duration::ZERO);
        self.shared.push(&mut self.polled);
        false
    }

    fn pause(&mut self) {
        self.paused = true;
        self.full_since = None;
        let result = self.consumer.assignment().and_then(|all| self.consumer.pause(&all));
        if let Err(error) = result {
            tracing::debug!(%error, "the consumer was not paused");
        }
    }

    fn resume(&mut self) {
        self.paused = false;
        let result = self.consumer.assignment().and_then(|all| self.consumer.resume(&all));
        if let Err(error) = result {
            tracing::debug!(%error, "the consumer was not resumed");
        }
    }

    /// Polls what there is, up to the room in the buffer.
    fn take_in(&mut self) {
        let room = self.shared.room();
        let most = room.messages.min(BATCH);
        let mut bytes = 0;
        let mut wait = POLL;
        while self.polled.len() < most && bytes < room.bytes && self.poll_one(wait) {
            bytes += self.polled.last().map_or(0, |polled| polled.message.size());
            wait = Duration::ZERO;
        }
        let idle = self.polled.is_empty();
        self.shared.push(&mut self.polled);
        if idle && std::mem::take(&mut self.at_an_end) {
            self.pass_holes();
        }
    }

    /// Polls once. `false`: there was no record.
    fn poll_one(&mut self, wait: Duration) -> bool {
        match self.consumer.poll(wait) {
            Some(Ok(record)) => {
                let polled = polled(&record, &self.shared, &self.envelope, &mut self.last_topic);
                drop(record);
                self.consumer.context().answered();
                self.polled.extend(polled);
                true
            }
            Some(Err(KafkaError::PartitionEOF(_))) => {
                self.at_an_end = true;
                self.consumer.context().answered();
                false
            }
            // The context has seen every other error, with its reason.
            Some(Err(_)) | None => false,
        }
    }

    /// Moves the watermarks past what is no message. The consumer's position is behind every record and every
    /// transaction marker that a poll has met, by topic and partition, which the event of an end does not tell.
    fn pass_holes(&self) {
        let Ok(list) = self.consumer.position() else { return };
        let positions: Vec<(Place, i64)> = list
            .elements()
            .iter()
            .filter_map(|element| match element.offset() {
                Offset::Offset(position) => Some((self.shared.place(element.topic(), element.partition())?, position)),
                Offset::Beginning | Offset::End | Offset::Stored | Offset::Invalid | Offset::OffsetTail(_) => None,
            })
            .collect();
        drop(list);
        self.shared.pass(&positions);
    }

    fn store(&mut self) {
        if self.stored_at.elapsed() < STORE_EVERY {
            return;
        }
        self.stored_at = Instant::now();
        let offsets = self.shared.moved();
        if store(&self.consumer, &self.shared, &offsets) {
            self.shared.stored(&offsets);
        }
    }

    /// Asks for a broker that is gone, and for a topic that is said to be.
    fn look_for_trouble(&mut self) {
        let missing = self.consumer.context().seen(|seen| std::mem::take(&mut seen.topic_missing));
        if missing && self.missing_since.is_none() {
            self.missing_since = Some(Instant::now());
        }
        if self.asked_at.elapsed() < ASK_EVERY {
            return;
        }
        if !self.shared.connected() {
            self.asked_at = Instant::now();
            if self.topic_exists(0).is_some() {
                self.consumer.context().answered();
            }
        }
        // A second look, a while later: brokers that have just started may not know their topics yet.
        if self.missing_since.is_some_and(|since| since.elapsed() >= ASK_EVERY) {
            self.asked_at = Instant::now();
            self.missing_since = None;
            for index in 0..self.shared.topics.len() {
                if self.topic_exists(index) == Some(false) {
                    let topic = &self.shared.topics[index];
                    self.shared
                        .fail(TransportErrorKind::NotFound, format!("the topic `{topic}` does not exist any more"));
                }
            }
        }
    }

    /// Whether a broker knows the topic; `None` when none answers.
    fn topic_exists(&self, index: usize) -> Option<bool> {
        let topic = self.shared.topics.get(index)?;
        let metadata = self.consumer.fetch_metadata(Some(topic), ASK_FOR).ok()?;
        let known = metadata.topics().iter().find(|known| known.name() == &**topic)?;
        Some(known.error().map(RDKafkaErrorCode::from) != Some(RDKafkaErrorCode::UnknownTopicOrPartition))
    }

    /// Stores what was acked, gives back what is held, and leaves the group. While the consumer is dropped it commits
    /// what is stored, waits for the answer, and leaves. (A synchronous commit would wait for a broker that is gone as
    /// long as it is.)
    fn leave(self) {
        let places = self.shared.places();
        let ended = self.shared.end(&places, Instant::now(), || self.consumer.assignment_lost());
        store(&self.consumer, &self.shared, &ended.offsets);
        self.shared.lose_all(ended);
        if places.is_empty() && !self.is_static {
            self.leave_empty_handed();
        }
        drop(self.consumer);
    }

    /// Leaves the group with no partition. librdkafka 2.12 closes such a member without telling the broker, and the
    /// next rebalance then waits for it until its session times out. Unsubscribing does tell, once a rebalance that is
    /// under way has ended; nothing but the statistics says when that was.
    fn leave_empty_handed(&self) {
        self.consumer.context().seen(|seen| seen.leaving = true);
        self.consumer.unsubscribe();
        let deadline = self.shared.stopped().unwrap_or_else(Instant::now);
        while !self.consumer.context().seen(|seen| seen.left) && Instant::now() < deadline {
            // A record of a partition that came in the meantime is not ours to hand over any more.
            drop(self.consumer.poll(POLL));
        }
    }
}

/// A record as a message, if its topic is one of ours.
fn polled(
    record: &BorrowedMessage<'_>,
    shared: &Shared,
    envelope: &Envelope,
    last_topic: &mut Option<(String, u32)>,
) -> Option<Polled> {
    let topic = record.topic();
    let place = match last_topic {
        Some((name, index)) if name == topic => Place { topic: *index, partition: record.partition() },
        _ => {
            let place = shared.place(topic, record.partition())?;
            *last_topic = Some((topic.to_owned(), place.topic));
            place
        }
    };
    Some(Polled { place, offset: record.offset(), message: convert::message(record, envelope) })
}
