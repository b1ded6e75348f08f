//! What lies between the task that reads the stream and the tasks that receive and ack.
//!
//! One lock guards it. Waiting messages are kept in the order in which the service delivered them; what is given back
//! goes to its old place among them and is handed over again by this process, so that a key keeps its order and the
//! service need not deliver again all that follows it. What nobody here takes up again within [`GIVEN_BACK`] is given
//! back to the service.
//!
//! **Order.** What is given back *to the service* may go to another consumer. The service then delivers it and everything
//! behind it of its key anew; the copies that are here already, or on their way here, would overtake it. They are
//! [left over](Away): waiting ones are given back with it, those that are out when they come back in their turn, and those
//! on their way when they arrive. So that none slips through, whatever moves between *out*, *waiting* and *given back*
//! does so under the lock, which is taken before that of the table of what is out.
//!
//! **Sessions.** A lease belongs to a delivery, not to a stream: an `ack id` stays good when the stream that brought it
//! ends, and the client goes on extending it. So there is one session for the life of the transport, lost when it is
//! closed, and single receipts are lost when `max_lease` ends. Losing all receipts with a stream would make the service's
//! routine reconnects run everything in flight through the claim again.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::select;
use google_cloud_pubsub::{model::Message as Theirs, subscriber::handler::Handler};
use inbox_core::{
    Acked, Capacity, Delivery, IdText, InFlight, Receipt, Session, Source, TransportError, TransportErrorKind,
    envelope::Envelope,
};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::settle::{self, Held};

/// How long what was given back waits for this process before the service gets it.
const GIVEN_BACK: Duration = Duration::from_secs(1);
/// How long after something was given back the service may still be sending what follows it: the client collects for a
/// tenth of a second, and the way there and back takes time.
const UNDER_WAY: Duration = Duration::from_secs(1);

/// Shared by the transport and its tasks.
#[derive(Debug)]
pub(crate) struct Shared {
    name: Arc<str>,
    envelope: Envelope,
    /// Whether the service keeps keys in order.
    ordered: bool,
    max_lease: Duration,
    session: Session,
    in_flight: InFlight<Held>,
    state: Mutex<State>,
    /// Something waits to be received, or nothing ever will.
    arrived: Notify,
    /// There may be room, or somebody who waits.
    stirred: Notify,
    connected: AtomicBool,
    pub(crate) closed: CancellationToken,
    /// Whether everything was given back after `closed`.
    pub(crate) left: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    waiting: BTreeMap<u64, Held>,
    waiting_bytes: usize,
    out_bytes: usize,
    /// Keys of which the service was given something back.
    away: HashMap<Bytes, Away>,
    /// Since when the stream may hold what was not read yet; `None` while its reader waits for the network.
    unread_since: Option<Instant>,
    asked: Option<Capacity>,
    /// Whether a `receive` waits.
    hungry: bool,
    failure: Option<(TransportErrorKind, String)>,
}

/// A key of which the service was given something back, which it delivers anew with all that follows.
#[derive(Debug)]
struct Away {
    /// What was delivered before this number is left over: no longer ours to hand over.
    before: u64,
    /// What was sent before then is left over too, until one of `ids` comes again: all that comes behind it is new.
    until: Instant,
    ids: HashSet<Box<str>>,
    came_again: bool,
}

/// What the reader of the stream is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// Read on.
    Read,
    /// Somebody waits, and the service may have delivered all that the stream's limit allows: read, but not for long.
    Probe,
    /// Hold still.
    Full,
}

/// What the service may leave unacknowledged on one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) messages: usize,
    /// How much is held here.
    pub(crate) bytes: usize,
}

impl Limit {
    /// What the service is told: never less than its largest message, which might not come at all.
    pub(crate) fn service_bytes(self) -> usize {
        self.bytes.max(crate::convert::MAX_BODY)
    }
}

impl Shared {
    pub(crate) fn new(name: &str, envelope: Envelope, ordered: bool, max_lease: Duration) -> Self {
        Self {
            name: name.into(),
            envelope,
            ordered,
            max_lease,
            session: Session::new(),
            in_flight: InFlight::new(),
            state: Mutex::default(),
            arrived: Notify::new(),
            stirred: Notify::new(),
            connected: AtomicBool::new(true),
            closed: CancellationToken::new(),
            left: watch::Sender::new(false),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code of anybody else runs under this lock, so a poisoned state is still whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed) && !self.closed.is_cancelled()
    }

    pub(crate) fn set_connected(&self, connected: bool) {
        if self.connected.swap(connected, Ordering::Relaxed) != connected {
            tracing::info!(connected, subscription = %self.name, "pub/sub");
        }
    }

    /// Messages that wait to be received, and messages that are out.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.state().waiting.len(), self.in_flight.len())
    }
}

/// The side of the tasks that receive and settle.
impl Shared {
    /// Hands over what there is; waits until there is something. Cancel safe: nothing is taken before the last await.
    pub(crate) async fn receive(&self, capacity: Capacity) -> Result<Vec<Delivery>, TransportError> {
        let _fed = Fed(self);
        loop {
            let deliveries = self.take(capacity)?;
            if !deliveries.is_empty() {
                return Ok(deliveries);
            }
            let (arrived, dropped) = (pin!(self.arrived.notified()), pin!(self.in_flight.dropped()));
            select(arrived, dropped).await;
        }
    }

    fn take(&self, capacity: Capacity) -> Result<Vec<Delivery>, TransportError> {
        let mut state = self.state();
        let left_over = self.take_back(&mut state);
        let taken = self.take_from(&mut state, capacity);
        drop(state);
        settle::give_back_now(left_over);
        self.stirred.notify_one();
        taken
    }

    fn take_from(&self, state: &mut State, capacity: Capacity) -> Result<Vec<Delivery>, TransportError> {
        if self.closed.is_cancelled() {
            return Err(TransportError::new(TransportErrorKind::Closed, "receive").context("the transport was closed"));
        }
        if let Some((kind, context)) = &state.failure {
            return Err(TransportError::new(*kind, "receive").context(context.clone()));
        }
        let mut deliveries = Vec::new();
        let mut bytes = 0_usize;
        while deliveries.len() < capacity.messages.max(1)
            && let Some(first) = state.waiting.first_entry()
        {
            let size = first.get().size();
            if !deliveries.is_empty() && bytes.saturating_add(size) > capacity.bytes {
                break;
            }
            let mut held = first.remove();
            held.given_back = None;
            bytes += size;
            state.waiting_bytes -= size;
            state.out_bytes += size;
            deliveries.push(self.delivery(held));
        }
        state.hungry = deliveries.is_empty();
        state.asked = Some(capacity);
        Ok(deliveries)
    }

    fn delivery(&self, held: Held) -> Delivery {
        Delivery {
            message: held.message.clone(),
            source: Source::new(Arc::clone(&self.name)).coordinates(held.coordinates.clone()),
            partition: None,
            delivery_count: held.attempt(),
            suspect: false,
            receipt: self.in_flight.hold(&self.session, held),
        }
    }

    /// Acknowledges.
    pub(crate) async fn ack(&self, receipts: Vec<Receipt>) -> Acked {
        let all = receipts.len();
        let settled = self.in_flight.settle(receipts);
        self.state().no_longer_out(&settled);
        self.stirred.notify_one();
        let acked = settle::ack(settled).await;
        Acked { acked, lost: all - acked }
    }

    /// Hands `receipts` over again, or gives them back where that might break an order.
    pub(crate) fn release(&self, receipts: Vec<Receipt>) {
        let mut state = self.state();
        let settled = self.in_flight.settle(receipts);
        let left_over = self.put_back(&mut state, settled);
        drop(state);
        settle::give_back_now(left_over);
        self.arrived.notify_one();
        self.stirred.notify_one();
    }

    /// Puts what was dropped back to its places; what is the service's is the answer.
    fn take_back(&self, state: &mut State) -> Vec<Held> {
        let dropped = self.in_flight.take_dropped();
        self.put_back(state, dropped)
    }

    fn put_back(&self, state: &mut State, held: Vec<Held>) -> Vec<Held> {
        state.no_longer_out(&held);
        let (now, mut left_over) = (Instant::now(), Vec::new());
        for mut held in held {
            if self.closed.is_cancelled() || state.is_left_over(&held) {
                left_over.push(held);
            } else {
                held.given_back = Some(now);
                state.waiting_bytes += held.size();
                state.waiting.insert(held.seq, held);
            }
        }
        left_over
    }
}

/// Whoever waited to receive does not any more.
struct Fed<'a>(&'a Shared);

impl Drop for Fed<'_> {
    fn drop(&mut self) {
        self.0.state().hungry = false;
    }
}

/// The side of the task that reads the stream.
impl Shared {
    /// Takes in a message that came at `since` or later.
    pub(crate) fn push(&self, theirs: Theirs, handler: Handler, since: Instant) {
        let coordinates = theirs.message_id.clone().into_boxed_str();
        let message = crate::convert::ours(theirs, &self.envelope);
        let mut state = self.state();
        let seq = state.next;
        state.next += 1;
        let held = Held { seq, since, given_back: None, coordinates, message, handler };
        let left_over = if state.comes_too_early(&held) {
            Some(held)
        } else {
            state.waiting_bytes += held.size();
            state.waiting.insert(seq, held);
            None
        };
        drop(state);
        settle::give_back_now(left_over.into_iter().collect());
        self.set_connected(true);
        self.arrived.notify_one();
    }

    /// Since when the stream may hold what was not read yet; `None`: its reader waits for the network.
    pub(crate) fn set_unread_since(&self, since: Option<Instant>) {
        self.state().unread_since = since;
    }

    /// Waits until somebody has asked for messages; the limit for a stream, which is what is held and what is asked for.
    pub(crate) async fn limit(&self, before: Option<Limit>) -> Limit {
        loop {
            if let Some(limit) = self.wanted(before) {
                return limit;
            }
            self.stirred.notified().await;
        }
    }

    fn wanted(&self, before: Option<Limit>) -> Option<Limit> {
        let state = self.state();
        let asked = state.asked?;
        let messages = (self.in_flight.len() + state.waiting.len()).saturating_add(asked.messages.max(1));
        let bytes = (state.out_bytes + state.waiting_bytes).saturating_add(asked.bytes);
        Some(match before {
            None => Limit { messages, bytes },
            // Whoever asks for more each time must not cost a stream each time.
            Some(before) => Limit {
                messages: messages.max(before.messages.saturating_mul(2)),
                bytes: bytes.max(before.bytes.saturating_mul(2)),
            },
        })
    }

    /// What the reader of a stream with this limit is to do now.
    pub(crate) fn room(&self, limit: Limit) -> Room {
        let state = self.state();
        let out = self.in_flight.len();
        let (messages, bytes) = (out + state.waiting.len(), state.out_bytes + state.waiting_bytes);
        if state.hungry && state.waiting.is_empty() {
            return if out >= limit.messages || state.out_bytes >= limit.service_bytes() {
                Room::Probe
            } else {
                Room::Read
            };
        }
        if messages < limit.messages && bytes < limit.bytes { Room::Read } else { Room::Full }
    }

    /// Waits until [`room`](Self::room) may say something else.
    pub(crate) async fn stirred(&self) {
        self.stirred.notified().await;
    }

    /// Makes `receive` fail from now on: nothing but a person helps.
    pub(crate) fn fail(&self, kind: TransportErrorKind, context: String) {
        tracing::error!(?kind, %context, "the pub/sub consumer cannot go on");
        self.state().failure.get_or_insert((kind, context));
        self.set_connected(false);
        self.arrived.notify_one();
    }

    /// Whether [`fail`](Self::fail) was called.
    pub(crate) fn has_failed(&self) -> bool {
        self.state().failure.is_some()
    }

    /// Looks after what nobody asks about: leases that end, and what was given back and not taken up again.
    pub(crate) fn look_after(&self) {
        let now = Instant::now();
        let lost = self.end_leases(|held| now >= held.since + self.max_lease);
        if lost > 0 {
            tracing::warn!(messages = lost, "held for longer than `max_lease`: the service delivers them again");
        }
    }

    /// Ends the lease of the message with this id; false when it is not out.
    pub(crate) fn end_lease(&self, id: &IdText) -> bool {
        self.end_leases(|held| held.message.id.as_ref() == Some(id)) > 0
    }

    /// Gives back to the service what `has_ended`, and what has waited here for too long; how many of them were out.
    fn end_leases(&self, has_ended: impl Fn(&Held) -> bool) -> usize {
        let now = Instant::now();
        let mut state = self.state();
        let mut gone = Vec::new();
        let mut left_over = self.take_back(&mut state);
        let mut ended = Vec::new();
        self.in_flight.for_each(|token, _, held| ended.extend(has_ended(held).then_some(token)));
        gone.extend(ended.into_iter().filter_map(|token| self.in_flight.lose(token)));
        let lost = gone.len();
        state.no_longer_out(&gone);
        let unwanted = |held: &Held| has_ended(held) || held.given_back.is_some_and(|at| now >= at + GIVEN_BACK);
        let unwanted: Vec<u64> = state.waiting.values().filter(|held| unwanted(held)).map(|held| held.seq).collect();
        gone.extend(unwanted.into_iter().filter_map(|seq| state.remove(seq)));
        if self.ordered {
            let followers = state.follow(&gone, now);
            gone.extend(followers);
            left_over.extend(self.forget_keys(&mut state, now));
        }
        drop(state);
        gone.extend(left_over);
        settle::give_back_now(gone);
        self.stirred.notify_one();
        lost
    }

    /// Forgets the keys of which nothing is left over; what was dropped meanwhile and is the service's is the answer.
    fn forget_keys(&self, state: &mut State, now: Instant) -> Vec<Held> {
        if state.away.is_empty() {
            return Vec::new();
        }
        let mut oldest: HashMap<Bytes, u64> = HashMap::new();
        self.in_flight.for_each(|_, _, held| {
            if let Some(key) = held.key() {
                let seq = oldest.entry(key.clone()).or_insert(held.seq);
                *seq = held.seq.min(*seq);
            }
        });
        // What was dropped by now is out no longer, and must meet the keys before they are forgotten.
        let left_over = self.take_back(state);
        let unread_since = state.unread_since;
        state.away.retain(|key, away| {
            let is_out = oldest.get(key).is_some_and(|oldest| *oldest < away.before);
            let may_come = now <= away.until || unread_since.is_some_and(|since| since <= away.until);
            is_out || !away.came_again && may_come
        });
        left_over
    }

    /// Takes everything, for good: no receipt settles anything any more.
    pub(crate) fn take_all(&self) -> Vec<Held> {
        self.session.mark_lost();
        let mut all = self.in_flight.forget(&self.session);
        let mut state = self.state();
        all.extend(std::mem::take(&mut state.waiting).into_values());
        (state.waiting_bytes, state.out_bytes) = (0, 0);
        all
    }

    /// Wakes whoever waits: the end has come.
    pub(crate) fn wake(&self) {
        self.arrived.notify_one();
        self.stirred.notify_one();
    }
}

impl State {
    fn is_left_over(&self, held: &Held) -> bool {
        let key = held.key().filter(|_| !self.away.is_empty());
        key.and_then(|key| self.away.get(key)).is_some_and(|away| held.seq < away.before)
    }

    /// Whether what arrives was sent before the service had the earlier ones of its key back.
    fn comes_too_early(&mut self, held: &Held) -> bool {
        let key = held.key().filter(|_| !self.away.is_empty());
        let Some(away) = key.and_then(|key| self.away.get_mut(key)) else { return false };
        away.came_again |= away.ids.contains(&held.coordinates);
        if away.came_again || held.since > away.until {
            return false;
        }
        away.ids.insert(held.coordinates.clone());
        true
    }

    fn no_longer_out(&mut self, held: &[Held]) {
        let bytes: usize = held.iter().map(Held::size).sum();
        self.out_bytes = self.out_bytes.saturating_sub(bytes);
    }

    fn remove(&mut self, seq: u64) -> Option<Held> {
        let held = self.waiting.remove(&seq)?;
        self.waiting_bytes -= held.size();
        Some(held)
    }

    /// What waits of the keys of `gone`, which go to the service; whatever is out or on its way of them is left over from
    /// now on.
    fn follow(&mut self, gone: &[Held], now: Instant) -> Vec<Held> {
        let (before, until) = (self.next, now + UNDER_WAY);
        for held in gone {
            let Some(key) = held.key() else { continue };
            let away = self.away.entry(key.clone()).or_insert_with(|| Away {
                before,
                until,
                ids: HashSet::new(),
                came_again: false,
            });
            (away.before, away.until, away.came_again) = (before, until, false);
            away.ids.insert(held.coordinates.clone());
        }
        if gone.is_empty() || self.away.is_empty() {
            return Vec::new();
        }
        let followers: Vec<u64> =
            self.waiting.values().filter(|held| self.is_left_over(held)).map(|held| held.seq).collect();
        let followers: Vec<Held> = followers.into_iter().filter_map(|seq| self.remove(seq)).collect();
        for held in &followers {
            if let Some(away) = held.key().and_then(|key| self.away.get_mut(key)) {
                away.ids.insert(held.coordinates.clone());
            }
        }
        followers
    }
}
