//! What lies between the thread that polls and the tasks that receive and ack.
//!
//! One lock guards it all. The thread waits for its turn on one condition variable (room in the buffer, an ack during a
//! revoke, the end); `receive` waits on one `Notify` and on the in-flight table's for dropped receipts. Both look at the
//! state first and keep a permit when nobody waits, so no wake-up is lost.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt::Write as _,
    pin::pin,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::select;
use inbox_core::{
    Acked, Capacity, Delivery, InFlight, Message, Receipt, Session, Source, TransportError, TransportErrorKind,
};
use tokio::sync::Notify;

use crate::settle::{HandOver, Partitions, Place};

/// How often a waiting thread looks at what sends no signal: dropped receipts, a lost assignment.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// A record that was polled, as a message.
#[derive(Debug)]
pub(crate) struct Polled {
    pub(crate) place: Place,
    pub(crate) offset: i64,
    pub(crate) message: Message,
}

/// A message that is ours to hand over, waiting or out. The broker hands over nothing twice within an assignment, so it
/// is kept until it is acked.
#[derive(Debug)]
pub(crate) struct Held {
    session: Session,
    place: Place,
    offset: i64,
    message: Message,
}

/// The assignments that a revoke or the end took away: what to store for them, if anything.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    sessions: Vec<Session>,
    pub(crate) offsets: Vec<(Place, i64)>,
}

/// Shared by the transport, the thread and librdkafka's callbacks.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) topics: Vec<Arc<str>>,
    prefetch: Capacity,
    state: Mutex<State>,
    turn: Condvar,
    arrived: Notify,
    in_flight: InFlight<Held>,
    connected: AtomicBool,
    /// Whether a commit has failed since the transport was stopped.
    uncommitted: AtomicBool,
}

#[derive(Debug)]
struct State {
    partitions: Partitions,
    /// In the order of polling.
    fresh: VecDeque<Held>,
    fresh_bytes: usize,
    /// What was given back, to be handed over first, in the order of offsets.
    again: BTreeMap<(Place, i64), Held>,
    /// What `receive` last asked for.
    asked: Capacity,
    failure: Option<(TransportErrorKind, String)>,
    /// Until when the group is to be left.
    stop: Option<Instant>,
    thread_waits: bool,
}

impl Shared {
    pub(crate) fn new(topics: &[String], prefetch: Capacity) -> Self {
        Self {
            topics: topics.iter().map(|topic| Arc::from(topic.as_str())).collect(),
            prefetch,
            state: Mutex::new(State {
                partitions: Partitions::default(),
                fresh: VecDeque::new(),
                fresh_bytes: 0,
                again: BTreeMap::new(),
                asked: Capacity { messages: 0, bytes: 0 },
                failure: None,
                stop: None,
                thread_waits: false,
            }),
            turn: Condvar::new(),
            arrived: Notify::new(),
            in_flight: InFlight::new(),
            connected: AtomicBool::new(true),
            uncommitted: AtomicBool::new(false),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code of anybody else runs under this lock, so a poisoned state is still whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a signal, for `most` at the longest.
    fn wait<'a>(&self, mut state: MutexGuard<'a, State>, most: Duration) -> MutexGuard<'a, State> {
        state.thread_waits = true;
        let (mut state, _) = self.turn.wait_timeout(state, most).unwrap_or_else(PoisonError::into_inner);
        state.thread_waits = false;
        state
    }

    /// Wakes the thread if it waits.
    fn signal(&self, state: MutexGuard<'_, State>) {
        let waits = state.thread_waits;
        drop(state);
        if waits {
            self.turn.notify_one();
        }
    }
}

/// The side of the tasks.
impl Shared {
    /// Hands over what there is; waits until there is something. Cancel safe: nothing is taken before the last await.
    pub(crate) async fn receive(&self, capacity: Capacity) -> Result<Vec<Delivery>, TransportError> {
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
        if state.stop.is_some() {
            return Err(TransportError::new(TransportErrorKind::Closed, "receive").context("the transport was closed"));
        }
        if let Some((kind, context)) = &state.failure {
            return Err(TransportError::new(*kind, "receive").context(context.clone()));
        }
        state.asked = capacity;
        self.take_back(&mut state);
        let mut deliveries = Vec::new();
        let mut bytes = 0_usize;
        while deliveries.len() < capacity.messages.max(1) {
            let Some(held) = state.next(|size| bytes == 0 && deliveries.is_empty() || bytes + size <= capacity.bytes)
            else {
                break;
            };
            if held.session.is_ending() {
                continue;
            }
            bytes += held.message.size();
            deliveries.push(self.delivery(held));
        }
        self.signal(state);
        Ok(deliveries)
    }

    fn delivery(&self, held: Held) -> Delivery {
        let message = held.message.clone();
        let name = self.topics.get(held.place.topic as usize).cloned().unwrap_or_default();
        // Grown once: there is one for every message.
        let mut coordinates = String::with_capacity(24);
        // Writing to a string cannot fail.
        write!(coordinates, "{}/{}", held.place.partition, held.offset).unwrap_or(());
        let partition = Some(held.place.number());
        let session = held.session.clone();
        Delivery {
            message,
            receipt: self.in_flight.hold(&session, held),
            source: Source::new(name).coordinates(coordinates),
            partition,
            delivery_count: None,
            suspect: false,
        }
    }

    /// Puts what was dropped in front again.
    fn take_back(&self, state: &mut State) {
        for held in self.in_flight.take_dropped() {
            state.give_back(held);
        }
    }

    /// Moves the watermarks past `receipts`. Their offsets are stored by the thread, and committed soon after.
    pub(crate) fn ack(&self, receipts: Vec<Receipt>) -> Acked {
        let all = receipts.len();
        // Under the lock, so that a revoke sees a receipt either in flight or finished.
        let mut state = self.state();
        let settled = self.in_flight.settle(receipts);
        let acked =
            settled.iter().filter(|held| state.partitions.finish(held.place, &held.session, held.offset)).count();
        self.signal(state);
        Acked { acked, lost: all - acked }
    }

    /// Hands `receipts` over again, before anything new.
    pub(crate) fn release(&self, receipts: Vec<Receipt>) {
        let mut state = self.state();
        for held in self.in_flight.settle(receipts) {
            state.give_back(held);
        }
        self.signal(state);
        self.arrived.notify_one();
    }

    /// Ends the thread, which has until `deadline`; `receive` fails with `Closed` from now on.
    pub(crate) fn stop(&self, deadline: Instant) {
        let mut state = self.state();
        state.stop.get_or_insert(deadline);
        self.signal(state);
        self.arrived.notify_one();
    }

    pub(crate) fn connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// Whether a commit has failed since the transport was stopped.
    pub(crate) fn is_uncommitted(&self) -> bool {
        self.uncommitted.load(Ordering::Relaxed)
    }

    /// Messages that wait to be received, and messages that are out.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let state = self.state();
        (state.fresh.len() + state.again.len(), self.in_flight.len())
    }
}

/// The side of the thread and the callbacks.
impl Shared {
    pub(crate) fn place(&self, topic: &str, partition: i32) -> Option<Place> {
        let topic = self.topics.iter().position(|known| &**known == topic)?;
        u32::try_from(topic).ok().map(|topic| Place { topic, partition })
    }

    /// Until when the group is to be left, if it is.
    pub(crate) fn stopped(&self) -> Option<Instant> {
        self.state().stop
    }

    pub(crate) fn set_connected(&self, connected: bool) {
        self.connected.store(connected, Ordering::Relaxed);
    }

    /// A commit has failed. Matters if it is the last.
    pub(crate) fn commit_failed(&self) {
        if self.stopped().is_some() {
            self.uncommitted.store(true, Ordering::Relaxed);
        }
    }

    /// Makes `receive` fail from now on: nothing but a person helps.
    pub(crate) fn fail(&self, kind: TransportErrorKind, context: String) {
        let mut state = self.state();
        if state.failure.is_some() {
            return;
        }
        tracing::error!(?kind, %context, "the kafka consumer cannot go on");
        state.failure = Some((kind, context));
        drop(state);
        self.arrived.notify_one();
    }

    /// New assignments.
    pub(crate) fn start(&self, places: &[Place]) {
        let mut state = self.state();
        for place in places {
            state.partitions.start(*place);
        }
    }

    /// Takes in what was polled, in order.
    pub(crate) fn push(&self, polled: &mut Vec<Polled>) {
        if polled.is_empty() {
            return;
        }
        let mut renewed = Vec::new();
        let mut state = self.state();
        for Polled { place, offset, message } in polled.drain(..) {
            let session = match state.partitions.hand_over(place, offset) {
                HandOver::Of(session) => session,
                HandOver::NotOurs => continue,
                HandOver::Renewed { old, new } => {
                    renewed.push(old);
                    new
                }
            };
            state.fresh_bytes += message.size();
            state.fresh.push_back(Held { session, place, offset, message });
        }
        state.purge(&renewed);
        drop(state);
        for session in renewed {
            tracing::warn!("the log of a partition went back: it was truncated, or the topic was made anew");
            self.lose(&session);
        }
        self.arrived.notify_one();
    }

    /// What may be taken in before the buffer is full; no room is no messages.
    pub(crate) fn room(&self) -> Capacity {
        self.room_in(&self.state())
    }

    fn room_in(&self, state: &State) -> Capacity {
        let messages = self.prefetch.messages.max(state.asked.messages).saturating_sub(state.fresh.len());
        let bytes = self.prefetch.bytes.max(state.asked.bytes).saturating_sub(state.fresh_bytes);
        Capacity { messages: if bytes == 0 { 0 } else { messages }, bytes }
    }

    fn is_half_empty(&self, state: &State) -> bool {
        state.fresh.len() <= self.prefetch.messages.max(state.asked.messages) / 2
            && state.fresh_bytes <= self.prefetch.bytes.max(state.asked.bytes) / 2
    }

    /// Waits until there is room, the end, or `most` has passed. Says whether there is room.
    pub(crate) fn wait_for_room(&self, most: Duration) -> bool {
        self.wait_until(most, |state| self.room_in(state).messages > 0)
    }

    /// Waits until half of the buffer is free, the end, or `most` has passed. Says whether half is free.
    pub(crate) fn wait_for_half(&self, most: Duration) -> bool {
        self.wait_until(most, |state| self.is_half_empty(state))
    }

    fn wait_until(&self, most: Duration, holds: impl Fn(&State) -> bool) -> bool {
        let until = Instant::now() + most;
        let mut state = self.state();
        while !holds(&state) && state.stop.is_none() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.wait(state, left);
        }
        holds(&state)
    }

    /// The consumer has passed everything below `position`: a hole in the log.
    pub(crate) fn pass(&self, positions: &[(Place, i64)]) {
        let mut state = self.state();
        for (place, position) in positions {
            state.partitions.pass(*place, *position);
        }
    }

    /// The watermarks that have moved.
    pub(crate) fn moved(&self) -> Vec<(Place, i64)> {
        self.state().partitions.moved()
    }

    /// They are stored.
    pub(crate) fn stored(&self, offsets: &[(Place, i64)]) {
        self.state().partitions.stored(offsets);
    }

    /// All partitions that are ours.
    pub(crate) fn places(&self) -> Vec<Place> {
        self.state().partitions.places()
    }

    /// Takes partitions away: nothing of them is started any more, and what is in flight has until `deadline` to be
    /// acked. The offsets to store are in the answer; [`lose`](Self::lose_all) ends the sessions once they are.
    ///
    /// `is_lost`: the assignment is gone already, so nothing is waited for and nothing may be stored.
    pub(crate) fn end(&self, places: &[Place], deadline: Instant, is_lost: impl Fn() -> bool) -> Ended {
        let mut ended = Ended::default();
        let sessions: Vec<Session> = {
            let state = self.state();
            places.iter().filter_map(|place| state.partitions.session(*place).cloned()).collect()
        };
        sessions.iter().for_each(Session::mark_ending);
        let mut state = self.state();
        state.purge(&sessions);
        while state.stop.is_none() && !is_lost() && Instant::now() < deadline {
            // What waits in the table of dropped receipts counts as in flight until it is taken.
            self.take_back(&mut state);
            if sessions.iter().all(|session| self.in_flight.count(session) == 0) {
                break;
            }
            state = self.wait(state, LOOK_AGAIN);
        }
        let lost = is_lost();
        for place in places {
            if let Some((session, low)) = state.partitions.end(*place) {
                ended.sessions.push(session);
                ended.offsets.extend(low.filter(|_| !lost).map(|low| (*place, low)));
            }
        }
        ended
    }

    /// Ends the sessions: their receipts settle nothing any more.
    pub(crate) fn lose_all(&self, ended: Ended) {
        for session in ended.sessions {
            self.lose(&session);
        }
    }

    fn lose(&self, session: &Session) {
        session.mark_lost();
        drop(self.in_flight.forget(session));
    }

    /// The thread is gone: whatever waits for it must not wait for ever.
    pub(crate) fn thread_ended(&self) {
        let places = self.places();
        let ended = self.end(&places, Instant::now(), || true);
        self.lose_all(ended);
        self.set_connected(false);
        let mut state = self.state();
        if state.stop.is_none() {
            let context = "the polling thread has ended by itself".to_owned();
            state.failure.get_or_insert((TransportErrorKind::Unexpected, context));
        }
        drop(state);
        self.arrived.notify_one();
    }

    /// How many messages are handed over and not finished, waiting ones included.
    pub(crate) fn unfinished(&self) -> usize {
        self.state().partitions.unfinished()
    }
}

impl State {
    /// Takes the next message if `fits` says so of its size. What was given back comes first.
    fn next(&mut self, fits: impl Fn(usize) -> bool) -> Option<Held> {
        if let Some(entry) = self.again.first_entry() {
            return fits(entry.get().message.size()).then(|| entry.remove());
        }
        let size = self.fresh.front()?.message.size();
        if !fits(size) {
            return None;
        }
        self.fresh_bytes -= size;
        self.fresh.pop_front()
    }

    fn give_back(&mut self, held: Held) {
        if !held.session.is_ending() {
            self.again.insert((held.place, held.offset), held);
        }
    }

    /// Forgets what waits for `sessions`.
    fn purge(&mut self, sessions: &[Session]) {
        if sessions.is_empty() {
            return;
        }
        let gone = |held: &Held| sessions.iter().any(|session| session.id() == held.session.id());
        self.again.retain(|_, held| !gone(held));
        self.fresh.retain(|held| !gone(held));
        self.fresh_bytes = self.fresh.iter().map(|held| held.message.size()).sum();
    }
}
