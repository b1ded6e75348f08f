//! One sequential worker: its queue, what it runs next, and what it does with how that ended.

use std::{
    collections::{HashSet, VecDeque},
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};
use tracing::Instrument;

use super::{
    batch::{BatchEnd, Fate, RolledBack},
    engine::{Engine, Item, Plan, Stops},
    selection::{Selection, Slot, select},
    settle::{Settle, Settler, Verdict},
};
use crate::{
    decision::{Decision, Facts, decide},
    error::report,
    failure_store::{FailureStore, Reason},
    inbox::InboxError,
    observe,
    retry::Backoff,
    store::Blame,
};

/// How long a lane waits while the database is away.
const OUTAGE: Backoff = Backoff { first: Duration::from_millis(100), most: Duration::from_secs(5) };
/// How long a message waits whose claim is held by another transaction.
const BUSY: Backoff = Backoff { first: Duration::from_millis(100), most: Duration::from_secs(2) };
/// For how long a lane runs single messages after a deadlock, at first and at most.
const SERIAL: Backoff = Backoff { first: Duration::from_secs(1), most: Duration::from_secs(30) };

/// Where intake puts the messages of a lane.
#[derive(Debug, Default)]
pub(crate) struct Inlet {
    queue: Mutex<VecDeque<Box<Item>>>,
    wake: Notify,
}

impl Inlet {
    pub(crate) fn push(&self, items: impl IntoIterator<Item = Box<Item>>) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).extend(items);
        self.wake();
    }

    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }
}

/// See the module.
pub(crate) struct Lane<S: FailureStore> {
    engine: Arc<Engine<S>>,
    inlet: Arc<Inlet>,
    settler: Settler,
    stops: Stops,
    queue: VecDeque<Box<Item>>,
    /// Transactions in a row that met a database in trouble.
    outages: u32,
    /// The batch cap while an id that somebody else holds is looked for by halves.
    halved: Option<usize>,
    /// Deadlocks in a row, and until when single messages run after the last one.
    deadlocks: u32,
    serial_until: Option<Instant>,
    /// Seconds a message takes, averaged over the last batches.
    message_seconds: f64,
}

impl<S: FailureStore> Lane<S> {
    pub(crate) fn new(engine: Arc<Engine<S>>, inlet: Arc<Inlet>, settler: Settler, stops: Stops) -> Self {
        Self {
            engine,
            inlet,
            settler,
            stops,
            queue: VecDeque::new(),
            outages: 0,
            halved: None,
            deadlocks: 0,
            serial_until: None,
            message_seconds: 0.0,
        }
    }

    /// Works until the stops say otherwise. What is left in the queue then is dropped, so that the transport hands it
    /// to others.
    pub(crate) async fn run(mut self) {
        loop {
            self.refill();
            if self.stops.abandon.is_cancelled() || self.stops.abort.is_cancelled() {
                self.engine.counters.released(self.queue.len(), "shutdown");
                return;
            }
            self.drop_ended();
            let now = Instant::now();
            let selection = select(self.queue.iter().map(|item| slot(item)), now, self.cap(now));
            if selection.batch.is_empty() {
                if self.stops.intake.is_cancelled() {
                    // Shutdown: what waits for a later attempt is for the next process.
                    self.engine.counters.released(self.queue.len(), "shutdown");
                    return;
                }
                self.wait(selection.next_due).await;
                continue;
            }
            let batch: Vec<&Item> = selection.batch.iter().map(|place| &*self.queue[*place]).collect();
            let span = tracing::debug_span!(observe::BATCH_SPAN, consumer = %self.engine.name, messages = batch.len());
            let end = self.engine.run_batch(&batch, &self.stops).instrument(span).await;
            match end {
                BatchEnd::Committed(done) => self.committed(&selection, &done.fates, done.handlers),
                BatchEnd::RolledBack(end) => self.rolled_back(&selection, end).await,
            }
        }
    }

    fn refill(&mut self) {
        self.queue.extend(self.inlet.queue.lock().unwrap_or_else(PoisonError::into_inner).drain(..));
    }

    /// Drops what belongs to a session that is ending, or whose own lease is lost, and gives back what follows it by key: it
    /// must not overtake.
    fn drop_ended(&mut self) {
        if !self.queue.iter().any(|item| item.is_ending()) {
            return;
        }
        let mut keys = HashSet::new();
        let mut followers = Vec::new();
        for item in std::mem::take(&mut self.queue) {
            if item.is_ending() {
                keys.extend(item.key);
                self.engine.counters.released(1, "session");
            } else if item.key.is_some_and(|key| keys.contains(&key)) {
                followers.extend(settle(item, Verdict::Release("session")));
            } else {
                self.queue.push_back(item);
            }
        }
        self.give_back(followers);
    }

    /// How many messages the next transaction may hold.
    fn cap(&self, now: Instant) -> usize {
        let settings = &self.engine.settings;
        if self.serial_until.is_some_and(|until| now < until) {
            return 1;
        }
        let mut cap = settings.max_batch;
        if self.message_seconds > 0.0 {
            let fitting = settings.max_batch_time.as_secs_f64() / self.message_seconds;
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive; saturates")]
            let fitting = fitting as usize;
            cap = cap.min(fitting.max(1));
        }
        self.halved.map_or(cap, |halved| cap.min(halved)).max(1)
    }

    async fn wait(&self, until: Option<Instant>) {
        let due = async {
            match until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.inlet.wake.notified() => {}
            () = due => {}
            () = self.stops.abandon.cancelled() => {}
            () = self.stops.intake.cancelled() => {}
        }
    }

    /// Waits though there is work: the database is in trouble.
    async fn rest(&self, pause: Duration) {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = self.stops.abandon.cancelled() => {}
            () = self.stops.abort.cancelled() => {}
        }
    }

    fn committed(&mut self, selection: &Selection, fates: &[Fate], handlers: Duration) {
        self.outages = 0;
        self.halved = self.halved.map(|cap| cap * 2).filter(|cap| *cap < self.engine.settings.max_batch);
        if self.serial_until.is_some_and(|until| Instant::now() >= until) {
            (self.serial_until, self.deadlocks) = (None, 0);
        }
        let mut settled: Vec<(usize, Fate)> = Vec::with_capacity(fates.len() + selection.copies.len());
        settled.extend(selection.batch.iter().copied().zip(fates.iter().copied()));
        for (place, first) in &selection.copies {
            match fates[*first] {
                // The copy was not claimed either: both stay, in their order.
                Fate::NotRun => {}
                Fate::Applied | Fate::Duplicate | Fate::Conflict | Fate::Quarantined(_) | Fate::Ignored(_) => {
                    self.engine.counters.duplicates(1, "in_batch");
                    settled.push((*place, Fate::Duplicate));
                }
            }
        }
        settled.retain(|(_, fate)| *fate != Fate::NotRun);
        let ran = fates.iter().filter(|fate| **fate == Fate::Applied).count();
        self.learn(ran, handlers);
        self.count(&selection.batch, fates);
        settled.sort_unstable_by_key(|(place, _)| *place);
        let mut places = settled.iter().map(|(place, _)| *place).peekable();
        let mut acks = Vec::with_capacity(settled.len());
        for (place, item) in std::mem::take(&mut self.queue).into_iter().enumerate() {
            if places.next_if_eq(&place).is_some() {
                acks.extend(settle(item, Verdict::Ack));
            } else {
                self.queue.push_back(item);
            }
        }
        self.give_back(acks);
    }

    fn learn(&mut self, ran: usize, handlers: Duration) {
        if let Ok(ran) = u32::try_from(ran)
            && ran > 0
        {
            let seconds = handlers.as_secs_f64() / f64::from(ran);
            self.message_seconds =
                if self.message_seconds == 0.0 { seconds } else { self.message_seconds * 0.8 + seconds * 0.2 };
        }
    }

    fn count(&self, batch: &[usize], fates: &[Fate]) {
        let counters = &self.engine.counters;
        let many = |fate: Fate| fates.iter().filter(|other| **other == fate).count();
        counters.applied.add(many(Fate::Applied));
        counters.duplicates(many(Fate::Duplicate), "claimed");
        for (place, fate) in batch.iter().zip(fates) {
            let item = &self.queue[*place];
            match fate {
                Fate::Conflict => {
                    counters.id_conflicts.add(1);
                    tracing::warn!(message_id = %item.id, "an id was used for two messages with different contents");
                }
                Fate::Quarantined(reason) => {
                    counters.quarantined(*reason);
                    tracing::warn!(message_id = %item.id, %reason, "a message is quarantined");
                }
                Fate::Ignored(reason) => counters.ignored(*reason),
                Fate::Applied | Fate::Duplicate | Fate::NotRun => {}
            }
        }
    }

    fn give_back(&self, receipts: Vec<Settle>) {
        if !receipts.is_empty() {
            // The settler outlives every lane; if it is gone, dropping the receipts says all there is to say.
            drop(self.settler.send(receipts));
        }
    }

    async fn rolled_back(&mut self, selection: &Selection, end: RolledBack) {
        self.engine.counters.rollbacks(1, end.label);
        if let Some(error) = end.fatal {
            self.stops.fail(InboxError::Store(error));
            return;
        }
        tracing::debug!(reason = end.label, error = %end.error, messages = selection.batch.len(), "rolled back");
        if end.busy {
            self.busy(selection);
            return;
        }
        let failed = self.judge(selection, &end);
        if let Some(place) = failed {
            self.failed_attempt(place, &end.error).await;
        }
        match end.blame {
            Blame::Message | Blame::Unpinned => self.outages = 0,
            // A handler's own error about a database, while ours answers: its message waits, the lane goes on.
            Blame::Infrastructure if end.store.is_none() => {}
            Blame::Infrastructure => {
                self.engine.store_ok.store(false, Ordering::Relaxed);
                self.outages = self.outages.saturating_add(1);
                let pause = OUTAGE.wait(self.outages, fastrand::f64());
                tracing::warn!(error = %end.error, ?pause, "the database is in trouble; nothing is lost or counted");
                self.rest(pause).await;
            }
            Blame::Contention => {
                self.deadlocks = self.deadlocks.saturating_add(1);
                self.serial_until = Some(Instant::now() + SERIAL.wait(self.deadlocks, 1.0));
                self.rest(Duration::from_millis(5).mul_f64(1.0 + 9.0 * fastrand::f64())).await;
            }
        }
    }

    /// Another transaction holds one of the ids, and the database does not say which: halve until it is alone.
    fn busy(&mut self, selection: &Selection) {
        if let [place] = selection.batch[..] {
            let item = &mut self.queue[place];
            item.rollbacks = item.rollbacks.saturating_add(1);
            item.alone = true;
            item.not_before = Some(Instant::now() + BUSY.wait(item.rollbacks, fastrand::f64()));
        } else {
            self.halved = Some(selection.batch.len() / 2);
        }
    }

    /// Notes for each message of a transaction what its end means for it; the place of the one whose failure counts.
    fn judge(&mut self, selection: &Selection, end: &RolledBack) -> Option<usize> {
        let alone = selection.batch.len() == 1;
        // By these it is told whether a failing database fails for everybody.
        let commits = self.engine.counters.commits.get();
        let mut failed = None;
        for (at, place) in selection.batch.iter().enumerate().take(end.reached) {
            let item = &mut self.queue[*place];
            let others_commit = commits > item.commits_seen;
            if alone && matches!(end.blame, Blame::Infrastructure | Blame::Contention) && others_commit {
                item.unstable += 1;
                item.commits_seen = commits;
            }
            let decision = decide(&Facts {
                blame: end.blame,
                pinned: end.pinned == Some(at),
                ran_first: end.first_run == Some(at),
                alone,
                rejected: end.rejected,
                rollbacks: item.rollbacks,
                unstable: item.unstable,
            });
            match decision {
                Decision::Again => item.rollbacks = item.rollbacks.saturating_add(1),
                Decision::Alone => {
                    item.rollbacks = item.rollbacks.saturating_add(1);
                    item.alone = true;
                    if end.pinned == Some(at) && matches!(end.blame, Blame::Infrastructure | Blame::Contention) {
                        item.not_before = Some(Instant::now() + BUSY.wait(item.rollbacks, fastrand::f64()));
                    }
                }
                Decision::CountAttempt => {
                    item.alone = true;
                    failed = Some(*place);
                }
                Decision::Quarantine(reason) => {
                    item.alone = true;
                    item.plan = Plan::Quarantine(reason, end.error.clone());
                }
            }
        }
        failed
    }

    /// Counts an attempt in the store and makes the message wait, or give up.
    async fn failed_attempt(&mut self, place: usize, error: &str) {
        let engine = Arc::clone(&self.engine);
        let item = &mut self.queue[place];
        let counted = match engine.consumer().await {
            Ok(consumer) => engine.store.record_attempt(consumer, &item.failure(Reason::Retrying, error)).await,
            Err(error) => Err(error),
        };
        match counted {
            Ok(Some(attempts)) => {
                engine.counters.attempts_failed.add(1);
                item.failed(attempts);
                tracing::warn!(message_id = %item.id, attempt = attempts, error, "an attempt failed");
                if attempts >= engine.settings.max_attempts && matches!(item.plan, Plan::Handle(_)) {
                    item.plan = Plan::Quarantine(Reason::MaxAttempts, error.to_owned());
                    item.not_before = None;
                    return;
                }
                let wait = engine.settings.backoff.wait(attempts, fastrand::f64());
                item.held += wait;
                item.not_before = Some(Instant::now() + wait);
                if item.held > engine.settings.max_hold {
                    self.release_with_followers(place);
                }
            }
            // Somebody else has finished it: the next claim will say so.
            Ok(None) => item.not_before = None,
            Err(error) if error.kind().is_fatal() => self.stops.fail(InboxError::Store(error)),
            Err(error) => {
                tracing::warn!(error = %report(&error), "an attempt could not be counted; it is made again");
                item.not_before = Some(Instant::now() + OUTAGE.wait(1, fastrand::f64()));
            }
        }
    }

    /// Gives a message back to the transport that was held too long, and the later ones of its key with it. What the
    /// intake receives before they come again may still overtake: the bound is a last resort, until there is parking.
    fn release_with_followers(&mut self, place: usize) {
        let key = self.queue[place].key;
        self.refill();
        let mut held = Vec::new();
        for (at, item) in std::mem::take(&mut self.queue).into_iter().enumerate() {
            if at == place || (at > place && key.is_some() && item.key == key) {
                held.extend(settle(item, Verdict::Release("held_too_long")));
            } else {
                self.queue.push_back(item);
            }
        }
        self.give_back(held);
    }
}

/// What a message leaves for the settler, if it came by a broker.
fn settle(item: Box<Item>, what: Verdict) -> Option<Settle> {
    let Item { receipt, permit, .. } = *item;
    receipt.map(|receipt| Settle { receipt, permit, what })
}

fn slot(item: &Item) -> Slot {
    Slot { id: item.id, fingerprint: item.fingerprint, key: item.key, alone: item.alone, not_before: item.not_before }
}
