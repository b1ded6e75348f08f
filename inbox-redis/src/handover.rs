//! What lies between the task that reads and the tasks that receive and ack.
//!
//! One lock guards it; the table of what is out has its own, taken inside. The server is asked for what a `receive` that
//! waits has room for, and for no more.
//!
//! **Sessions.** A lease belongs to an entry, not to a connection: one that breaks loses nothing. What ends a session is the
//! end of the group, by itself or with its stream: nothing that was held is known to the server then. Single receipts are
//! lost with their leases.

use std::{
    collections::{HashSet, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use inbox_core::{
    Acked, Capacity, Delivery, InFlight, Message, Receipt, Session, Source, TransportError, TransportErrorKind,
};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    client::Remote,
    convert::{self, Entry, Left},
    settle::{self, Held, Lease},
};

/// How long a message waits here for somebody who receives before it is given back.
const UNASKED: Duration = Duration::from_secs(2);
/// For how many bytes an entry is taken before one was seen.
const GUESS: usize = 16 << 10;
/// How many entries a read brings at most.
const MOST_READ: usize = 1_000;

/// A consumer of a group.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) group: Arc<str>,
    pub(crate) consumer: Box<str>,
}

/// How the names of consumers begin.
pub(crate) const CONSUMER: &str = "inbox-";

impl Member {
    pub(crate) fn new(group: &str) -> Self {
        Self { group: group.into(), consumer: format!("{CONSUMER}{}", uuid::Uuid::now_v7().simple()).into() }
    }

    /// The consumer with whom what was given back waits.
    #[allow(clippy::unused_self, reason = "it belongs to the group")]
    pub(crate) fn nobody(&self) -> &'static str {
        "inbox:given-back"
    }
}

/// Shared by the transport and its tasks.
#[derive(Debug)]
pub(crate) struct Shared {
    stream: Arc<str>,
    pub(crate) member: Member,
    in_flight: InFlight<Held>,
    state: Mutex<State>,
    /// Something waits to be received, or nothing ever will.
    arrived: Notify,
    /// Somebody waits to receive.
    pub(crate) asked: Notify,
    /// Something is to be given back to the server.
    pub(crate) returned: Notify,
    /// Something was given back: it is worth a look.
    pub(crate) look: AtomicBool,
    connected: AtomicBool,
    pub(crate) closed: CancellationToken,
    /// Whether no read is under way any more after `closed`.
    pub(crate) drained: watch::Sender<bool>,
    /// Whether everything was given back after that.
    pub(crate) left: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    session: Session,
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    /// How many entries the read that is under way may bring.
    under_way: usize,
    /// What the `receive` that waits has room for.
    asked: Option<Capacity>,
    /// The size of a large message of late.
    large: usize,
    /// On its way to the server.
    returned: Vec<Held>,
    /// Why the server has refused the first read, for the next `receive`.
    refused: Option<TransportError>,
}

/// A message that waits to be received.
#[derive(Debug)]
struct Waiting {
    held: Held,
    message: Message,
    suspect: bool,
    since: Instant,
}

impl Shared {
    pub(crate) fn new(remote: &Remote, member: Member) -> Self {
        Self {
            stream: Arc::clone(&remote.stream),
            member,
            in_flight: InFlight::new(),
            state: Mutex::new(State { large: GUESS, ..State::default() }),
            arrived: Notify::new(),
            asked: Notify::new(),
            returned: Notify::new(),
            look: AtomicBool::new(true),
            connected: AtomicBool::new(true),
            closed: CancellationToken::new(),
            drained: watch::Sender::new(false),
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
            tracing::info!(connected, stream = %self.stream, "redis");
        }
    }

    /// How many messages wait to be received, and how many are out.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.state().waiting.len(), self.in_flight.len())
    }

    /// Wakes whoever waits: the end has come.
    pub(crate) fn wake(&self) {
        self.arrived.notify_one();
        self.returned.notify_one();
    }

    /// The first read was refused, which no retry mends.
    pub(crate) fn refuse(&self, error: TransportError) {
        self.state().refused = Some(error);
        self.arrived.notify_one();
    }
}

/// The side of the tasks that receive and settle.
impl Shared {
    /// Hands over what there is; waits until there is something. Cancel safe: nothing is taken before the last await.
    pub(crate) async fn receive(&self, capacity: Capacity) -> Result<Vec<Delivery>, TransportError> {
        let _asking = Asking(self);
        loop {
            let deliveries = self.take(capacity)?;
            if !deliveries.is_empty() {
                return Ok(deliveries);
            }
            self.arrived.notified().await;
        }
    }

    fn take(&self, capacity: Capacity) -> Result<Vec<Delivery>, TransportError> {
        let mut state = self.state();
        if self.closed.is_cancelled() {
            return Err(TransportError::new(TransportErrorKind::Closed, "receive").context("the transport was closed"));
        }
        if let Some(error) = state.refused.take() {
            return Err(error);
        }
        let now = Instant::now();
        state.remove_where(|waiting| waiting.held.lease.has_ended(now));
        let mut deliveries = Vec::new();
        let mut bytes = 0_usize;
        while deliveries.len() < capacity.messages.max(1)
            && let Some(first) = state.waiting.front()
        {
            let size = first.message.size();
            if !deliveries.is_empty() && bytes.saturating_add(size) > capacity.bytes {
                break;
            }
            let Some(first) = state.waiting.pop_front() else { break };
            bytes += size;
            state.waiting_bytes -= size;
            deliveries.push(self.delivery(&state.session, first));
        }
        state.asked = deliveries.is_empty().then_some(capacity);
        drop(state);
        if deliveries.is_empty() {
            self.asked.notify_one();
        }
        Ok(deliveries)
    }

    fn delivery(&self, session: &Session, waiting: Waiting) -> Delivery {
        let Waiting { held, message, suspect, .. } = waiting;
        Delivery {
            message,
            source: Source::new(Arc::clone(&self.stream)).coordinates(&*held.id),
            partition: None,
            delivery_count: Some(held.count),
            suspect,
            receipt: self.in_flight.hold(session, held),
        }
    }

    /// Acks. The server says which were still ours.
    pub(crate) async fn ack(&self, remote: &Remote, receipts: Vec<Receipt>) -> Acked {
        let all = receipts.len();
        let held = self.in_flight.settle(receipts);
        let acked = settle::ack(remote, &self.member, &held).await.min(all);
        Acked { acked, lost: all - acked }
    }

    /// Gives back, in the background.
    pub(crate) fn release(&self, receipts: Vec<Receipt>) {
        let held = self.in_flight.settle(receipts);
        self.put_back(&mut self.state(), held);
    }

    /// Gives back what was dropped.
    pub(crate) fn take_dropped(&self) {
        let dropped = self.in_flight.take_dropped();
        self.put_back(&mut self.state(), dropped);
    }

    fn put_back(&self, state: &mut State, held: Vec<Held>) {
        if !held.is_empty() {
            state.returned.extend(held);
            self.returned.notify_one();
        }
    }

    /// Waits until a receipt may have been dropped.
    pub(crate) async fn dropped(&self) {
        self.in_flight.dropped().await;
    }
}

/// Whoever waited to receive does not any more.
struct Asking<'a>(&'a Shared);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.state().asked = None;
    }
}

/// The side of the task that reads.
impl Shared {
    /// How many entries another read may bring, if there is room for any. They count as held from now on, until
    /// [`came`](Self::came) or [`took`](Self::took).
    pub(crate) fn reserve(&self) -> Option<usize> {
        let mut state = self.state();
        let asked = state.asked?;
        let held = state.waiting.len() + state.under_way;
        let bytes = state.waiting_bytes.saturating_add(state.under_way.saturating_mul(state.large));
        let fit = asked.bytes.saturating_sub(bytes) / state.large.max(1);
        // The first comes whatever its size.
        let fit = if held == 0 { fit.max(1) } else { fit };
        let room = asked.messages.max(1).saturating_sub(held).min(fit).min(MOST_READ);
        state.under_way += room;
        (room > 0).then_some(room)
    }

    /// Takes in the new entries that a read has brought which was sent at `since`.
    pub(crate) fn came(&self, remote: &Remote, reserved: usize, entries: Vec<Entry>, since: Instant) {
        let left = entries.into_iter().map(|entry| Left { entry, count: 1, suspect: false }).collect();
        self.took(remote, reserved, left, since);
    }

    /// Takes in entries that others have left.
    pub(crate) fn took(&self, remote: &Remote, reserved: usize, entries: Vec<Left>, since: Instant) {
        self.lose_older(&entries);
        let now = Instant::now();
        let mut state = self.state();
        state.under_way -= reserved;
        // Forgets a large one slowly.
        state.large -= state.large / 64;
        for Left { entry, count, suspect } in entries {
            let lease = Arc::new(Lease::until(since + remote.config.lease));
            let held = Held { id: entry.id.as_ref().into(), count, lease };
            if self.closed.is_cancelled() {
                state.returned.push(held);
                continue;
            }
            let message = convert::message(entry, &remote.config.names);
            state.large = state.large.max(message.size());
            state.waiting_bytes += message.size();
            state.waiting.push_back(Waiting { held, message, suspect, since: now });
        }
        drop(state);
        self.arrived.notify_one();
        self.returned.notify_one();
    }

    /// What came again is not to be settled by the receipts of its earlier deliveries: those have lost their leases, whoever
    /// has not noticed it.
    fn lose_older(&self, entries: &[Left]) {
        let again: HashSet<&str> = entries.iter().filter(|left| left.count > 1).map(|left| &*left.entry.id).collect();
        if again.is_empty() {
            return;
        }
        let mut tokens = Vec::new();
        self.in_flight.for_each(|token, _, held| tokens.extend(again.contains(&*held.id).then_some(token)));
        tokens.into_iter().for_each(|token| drop(self.in_flight.lose(token)));
        self.state().remove_where(|waiting| again.contains(&*waiting.held.id));
    }

    /// The group is gone: nothing that was held is known to the server.
    pub(crate) fn lose_session(&self) {
        let mut state = self.state();
        let session = std::mem::take(&mut state.session);
        // Under the lock: whoever has heard that it is lost finds nothing of it any more.
        session.mark_lost();
        drop(self.in_flight.forget(&session));
        state.waiting.clear();
        state.waiting_bytes = 0;
        state.returned.clear();
    }
}

/// The side of the tasks that look after leases.
impl Shared {
    /// Everything that is held, waiting or out.
    pub(crate) fn all(&self) -> Vec<Held> {
        let state = self.state();
        let mut all: Vec<Held> = state.waiting.iter().map(|waiting| waiting.held.clone()).collect();
        self.in_flight.for_each(|_, _, held| all.push(held.clone()));
        all
    }

    /// Loses what has lost its lease, and gives back what nobody has asked for.
    pub(crate) fn look_after(&self) {
        let now = Instant::now();
        let mut tokens = Vec::new();
        self.in_flight.for_each(|token, _, held| tokens.extend(held.lease.has_ended(now).then_some(token)));
        let mut lost = tokens.into_iter().filter_map(|token| self.in_flight.lose(token)).count();
        let mut state = self.state();
        lost += state.remove_where(|waiting| waiting.held.lease.has_ended(now)).len();
        if lost > 0 {
            tracing::warn!(stream = %self.stream, messages = lost, "leases have ended: the messages come again");
        }
        let unasked = state.remove_where(|waiting| now >= waiting.since + UNASKED);
        self.put_back(&mut state, unasked);
    }

    /// What is to be given back at the server.
    pub(crate) fn take_returned(&self) -> Vec<Held> {
        std::mem::take(&mut self.state().returned)
    }

    /// Whether somebody waits to receive.
    pub(crate) fn is_asked(&self) -> bool {
        self.state().asked.is_some()
    }

    /// Takes everything, for good: no receipt settles anything any more.
    pub(crate) fn end(&self) {
        let mut state = self.state();
        state.session.mark_lost();
        let mut all = self.in_flight.forget(&state.session);
        all.extend(std::mem::take(&mut state.waiting).into_iter().map(|waiting| waiting.held));
        state.waiting_bytes = 0;
        state.returned.extend(all);
    }
}

impl State {
    fn remove_where(&mut self, which: impl Fn(&Waiting) -> bool) -> Vec<Held> {
        if !self.waiting.iter().any(&which) {
            return Vec::new();
        }
        let (removed, kept) = std::mem::take(&mut self.waiting).into_iter().partition::<Vec<_>, _>(|w| which(w));
        self.waiting = kept.into();
        self.waiting_bytes -= removed.iter().map(|waiting| waiting.message.size()).sum::<usize>();
        removed.into_iter().map(|waiting| waiting.held).collect()
    }
}
