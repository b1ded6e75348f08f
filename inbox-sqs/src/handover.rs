//! What lies between the tasks that ask the service and the tasks that receive and ack.
//!
//! One lock guards it; the table of what is out has its own, taken inside. Waiting messages are kept in the order in which
//! they came. The service is asked for what a `receive` that waits has room for, and for no more.
//!
//! **Order.** The service gives out nothing of a group of a FIFO queue while anything of it is held, so what came later of
//! a group stands behind what came before. What is given back to *this* transport goes to its old place and is handed over
//! again, in front of what follows it. What goes back to the *service* takes everything along that this process holds
//! behind it of its group: whoever gets the first must get these after it.
//!
//! **Sessions.** A lease belongs to a message, not to a connection. So there is one session for the life of the transport,
//! lost when it is closed, and single receipts are lost with their leases.

use std::{
    collections::{BTreeMap, HashMap},
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::future::select;
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
    settle::{self, BATCH, Held, Lease},
};

/// How long a message waits here for somebody who receives before the service gets it back.
const UNASKED: Duration = Duration::from_secs(2);

/// Shared by the transport and its tasks.
#[derive(Debug)]
pub(crate) struct Shared {
    name: Arc<str>,
    fifo: bool,
    /// The largest message of the queue.
    max_body: usize,
    session: Session,
    in_flight: InFlight<Held>,
    state: Mutex<State>,
    /// Something waits to be received, or nothing ever will.
    arrived: Notify,
    /// Somebody waits to receive.
    pub(crate) asked: Notify,
    /// Something is to be given back to the service.
    pub(crate) returned: Notify,
    connected: AtomicBool,
    pub(crate) closed: CancellationToken,
    /// Whether no receive is under way any more after `closed`.
    pub(crate) drained: watch::Sender<bool>,
    /// Whether everything was given back after that.
    pub(crate) left: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    waiting: BTreeMap<u64, Held>,
    waiting_bytes: usize,
    /// How many messages the receives that are under way may bring.
    under_way: usize,
    /// What the `receive` that waits has room for.
    asked: Option<Capacity>,
    /// On its way to the service.
    returned: Vec<Held>,
}

/// What the service gave.
pub(crate) struct Came {
    pub(crate) handle: String,
    pub(crate) group: Option<String>,
    pub(crate) coordinates: String,
    pub(crate) count: Option<u32>,
    pub(crate) message: Message,
}

impl Shared {
    pub(crate) fn new(remote: &Remote) -> Self {
        Self {
            name: remote.config.name().into(),
            fifo: remote.config.is_fifo(),
            max_body: remote.max_body,
            session: Session::new(),
            in_flight: InFlight::new(),
            state: Mutex::default(),
            arrived: Notify::new(),
            asked: Notify::new(),
            returned: Notify::new(),
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
            tracing::info!(connected, queue = %self.name, "sqs");
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
            let (arrived, dropped) = (pin!(self.arrived.notified()), pin!(self.in_flight.dropped()));
            select(arrived, dropped).await;
        }
    }

    fn take(&self, capacity: Capacity) -> Result<Vec<Delivery>, TransportError> {
        let mut state = self.state();
        if self.closed.is_cancelled() {
            return Err(TransportError::new(TransportErrorKind::Closed, "receive").context("the transport was closed"));
        }
        self.take_back(&mut state);
        let now = Instant::now();
        if state.waiting.values().any(|held| held.lease.has_ended(now)) {
            self.end_leases(&mut state, now);
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
            let held = first.remove();
            bytes += size;
            state.waiting_bytes -= size;
            deliveries.push(self.delivery(held));
        }
        state.asked = deliveries.is_empty().then_some(capacity);
        drop(state);
        if deliveries.is_empty() {
            self.asked.notify_one();
        }
        Ok(deliveries)
    }

    fn delivery(&self, held: Held) -> Delivery {
        Delivery {
            message: held.message.clone(),
            source: Source::new(Arc::clone(&self.name)).coordinates(held.coordinates.clone()),
            partition: None,
            delivery_count: held.count,
            suspect: false,
            receipt: self.in_flight.hold(&self.session, held),
        }
    }

    /// Deletes. A message whose lease has ended is lost, whatever the service would say of its old receipt handle.
    pub(crate) async fn ack(&self, remote: &Remote, receipts: Vec<Receipt>) -> Acked {
        let all = receipts.len();
        let mut settled = self.in_flight.settle(receipts);
        let now = Instant::now();
        settled.retain(|held| !held.lease.has_ended(now));
        let handles = settled.iter().map(|held| Arc::clone(&held.handle)).collect();
        drop(settled);
        let acked = settle::delete(remote, handles).await;
        Acked { acked, lost: all - acked }
    }

    /// Gives back: of a FIFO queue to its place here, else to the service.
    pub(crate) fn release(&self, receipts: Vec<Receipt>) {
        let mut state = self.state();
        let settled = self.in_flight.settle(receipts);
        self.put_back(&mut state, settled);
    }

    /// Gives back what was dropped.
    pub(crate) fn take_dropped(&self) {
        self.take_back(&mut self.state());
    }

    fn take_back(&self, state: &mut State) {
        let dropped = self.in_flight.take_dropped();
        self.put_back(state, dropped);
    }

    fn put_back(&self, state: &mut State, held: Vec<Held>) {
        if held.is_empty() {
            return;
        }
        if self.closed.is_cancelled() || !self.fifo {
            state.returned.extend(held);
            self.returned.notify_one();
            return;
        }
        let now = Instant::now();
        for mut held in held {
            held.waits_since = now;
            state.wait(held);
        }
        self.arrived.notify_one();
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

/// The side of the task that asks the service.
impl Shared {
    /// How many messages another receive may bring, if there is room for any. They count as held from now on, until
    /// [`came`](Self::came).
    pub(crate) fn reserve(&self) -> Option<usize> {
        let mut state = self.state();
        let asked = state.asked?;
        let held = state.waiting.len() + state.under_way;
        let bytes = state.waiting_bytes.saturating_add(state.under_way.saturating_mul(self.max_body));
        let fit = asked.bytes.saturating_sub(bytes) / self.max_body.max(1);
        // The first comes whatever its size.
        let fit = if held == 0 { fit.max(1) } else { fit };
        let room = asked.messages.max(1).saturating_sub(held).min(fit).min(BATCH);
        state.under_way += room;
        (room > 0).then_some(room)
    }

    /// Takes in what a receive that was sent at `since` has brought.
    pub(crate) fn came(&self, reserved: usize, messages: Vec<Came>, since: Instant, lease: Duration) {
        let now = Instant::now();
        let mut state = self.state();
        state.under_way -= reserved;
        for Came { handle, group, coordinates, count, message } in messages {
            let held = Held {
                seq: state.next,
                handle: handle.into(),
                lease: Arc::new(Lease::new(since, lease)),
                waits_since: now,
                group: group.filter(|_| self.fifo).map(Arc::from),
                coordinates: coordinates.into(),
                count,
                message,
            };
            state.next += 1;
            if self.closed.is_cancelled() { state.returned.push(held) } else { state.wait(held) }
        }
        drop(state);
        self.arrived.notify_one();
        self.returned.notify_one();
    }
}

/// The side of the tasks that look after leases.
impl Shared {
    /// The leases that are to be extended, and to how long.
    pub(crate) fn due(&self, lease: Duration) -> Vec<(Arc<str>, Arc<Lease>, Duration)> {
        let now = Instant::now();
        let mut due = Vec::new();
        let mut see = |held: &Held| {
            if let Some(more) = held.lease.due(lease, now) {
                due.push((Arc::clone(&held.handle), Arc::clone(&held.lease), more));
            }
        };
        let state = self.state();
        state.waiting.values().for_each(&mut see);
        self.in_flight.for_each(|_, _, held| see(held));
        due
    }

    /// Loses what has lost its lease, and gives back what nobody has asked for.
    pub(crate) fn look_after(&self) {
        let mut state = self.state();
        let now = Instant::now();
        self.take_back(&mut state);
        self.end_leases(&mut state, now);
        let unasked = |held: &Held| now >= held.waits_since + UNASKED;
        let gone = state.remove_where(unasked);
        if !gone.is_empty() {
            self.take_followers(&mut state, &gone);
            state.returned.extend(gone);
            self.returned.notify_one();
        }
    }

    /// Takes what has lost its lease out of everything, and what follows it with it: that goes back to the service.
    fn end_leases(&self, state: &mut State, now: Instant) {
        let mut tokens = Vec::new();
        self.in_flight.for_each(|token, _, held| tokens.extend(held.lease.has_ended(now).then_some(token)));
        let mut gone: Vec<Held> = tokens.into_iter().filter_map(|token| self.in_flight.lose(token)).collect();
        gone.extend(state.remove_where(|held| held.lease.has_ended(now)));
        if !gone.is_empty() {
            tracing::warn!(queue = %self.name, messages = gone.len(), "leases have ended: the messages come again");
            self.take_followers(state, &gone);
        }
    }

    /// Gives back to the service what is held behind `gone` of the same groups. Receipts that are out are lost.
    fn take_followers(&self, state: &mut State, gone: &[Held]) {
        let mut first: HashMap<Arc<str>, u64> = HashMap::new();
        for held in gone {
            if let Some(group) = &held.group {
                let seq = first.entry(Arc::clone(group)).or_insert(held.seq);
                *seq = held.seq.min(*seq);
            }
        }
        if first.is_empty() {
            return;
        }
        let follows =
            |held: &Held| held.group.as_ref().and_then(|group| first.get(group)).is_some_and(|first| held.seq > *first);
        let mut tokens = Vec::new();
        self.in_flight.for_each(|token, _, held| tokens.extend(follows(held).then_some(token)));
        let lost: Vec<Held> = tokens.into_iter().filter_map(|token| self.in_flight.lose(token)).collect();
        // What was dropped since the look is in no table any more, and what was dropped before it waits by now.
        self.take_back(state);
        state.returned.extend(lost);
        let waiting = state.remove_where(follows);
        state.returned.extend(waiting);
        self.returned.notify_one();
    }

    /// What is to be made visible at the service: not what is visible already.
    pub(crate) fn take_returned(&self) -> Vec<Arc<str>> {
        let returned = std::mem::take(&mut self.state().returned);
        let now = Instant::now();
        returned.into_iter().filter(|held| !held.lease.has_ended(now)).map(|held| held.handle).collect()
    }

    /// Takes everything, for good: no receipt settles anything any more.
    pub(crate) fn end(&self) {
        self.session.mark_lost();
        let mut all = self.in_flight.forget(&self.session);
        let mut state = self.state();
        all.extend(std::mem::take(&mut state.waiting).into_values());
        state.waiting_bytes = 0;
        state.returned.extend(all);
    }
}

impl State {
    fn wait(&mut self, held: Held) {
        self.waiting_bytes += held.size();
        self.waiting.insert(held.seq, held);
    }

    fn remove_where(&mut self, which: impl Fn(&Held) -> bool) -> Vec<Held> {
        let seqs: Vec<u64> = self.waiting.values().filter(|held| which(held)).map(|held| held.seq).collect();
        let removed: Vec<Held> = seqs.into_iter().filter_map(|seq| self.waiting.remove(&seq)).collect();
        self.waiting_bytes -= removed.iter().map(Held::size).sum::<usize>();
        removed
    }
}
