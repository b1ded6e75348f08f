//! The consumer runtime: the receive loop, the lanes, the settler, and how they start and stop. The only place that
//! spawns.

mod batch;
mod bound;
mod engine;
mod lane;
mod numbers;
mod process;
mod selection;
mod settle;

use std::{
    collections::HashSet,
    future::Future,
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{Arc, atomic::Ordering as Atomic},
    time::Duration,
};

use futures_util::FutureExt;
use tokio::{sync::mpsc, time::Instant};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

pub use numbers::Numbers;
pub use process::Outcome;
pub(crate) use process::process;
pub(crate) use {bound::Bound, engine::Engine};

use self::{
    engine::{Intake, Stops},
    lane::{Inlet, Lane},
    settle::{Settle, Settler, Verdict},
};
use crate::{
    dispatch::panic_text,
    error::{TransportErrorKind, report},
    failure_store::FailureStore,
    inbox::InboxError,
    retry::Backoff,
    transport::{Delivery, Transport},
};

/// Which messages run one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ordering {
    /// Those of one key.
    #[default]
    Key,
    /// Those of one partition.
    Partition,
}

/// How long the receive loop waits when the broker is away.
const AWAY: Backoff = Backoff { first: Duration::from_millis(100), most: Duration::from_secs(5) };
/// What closing the transport and the last acknowledgements may take beyond the shutdown deadline.
const CLOSING: Duration = Duration::from_secs(5);

/// Spawns a task of the runtime, which is never aborted.
#[allow(clippy::disallowed_methods, reason = "this is where the runtime spawns")]
pub(crate) fn spawn<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> tokio::task::JoinHandle<T> {
    tokio::spawn(task)
}

/// Receives, runs and settles until `shutdown` resolves or something fatal happens.
///
/// Dropping the future stops the intake; transactions in progress finish or roll back in tasks of their own, and what
/// waits is dropped, so that the transport hands it over again.
pub(crate) async fn run<S: FailureStore>(
    engine: Arc<Engine<S>>,
    bound: Bound,
    transport: Arc<dyn Transport>,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), InboxError> {
    let stops = Stops::default();
    let abandon_on_drop = stops.abandon.clone().drop_guard();
    let intake_on_drop = stops.intake.clone().drop_guard();
    let mut shutdown = pin!(shutdown);
    // Fails at once, with a clear error, when the schema or the credentials are wrong.
    let started = tokio::select! {
        started = wait_for_store(&engine, &stops) => started.map(|()| true),
        () = &mut shutdown => Ok(false),
    };
    if !matches!(started, Ok(true)) {
        close(&*transport).await;
        return started.map(drop);
    }
    let (settler, queue) = mpsc::unbounded_channel();
    let settling = settle::run(Arc::clone(&engine), Arc::clone(&transport), queue);
    let settling = spawn(watched(stops.clone(), "the settler", settling));
    let inlets: Vec<Arc<Inlet>> = (0..engine.settings.lanes).map(|_| Arc::default()).collect();
    let lanes = TaskTracker::new();
    for inlet in &inlets {
        let lane = Lane::new(Arc::clone(&engine), Arc::clone(inlet), settler.clone(), stops.clone());
        // The tracker waits for it.
        drop(spawn(lanes.track_future(watched(stops.clone(), "a lane", lane.run()))));
    }
    lanes.close();
    let intake = Feed {
        engine: Arc::clone(&engine),
        bound,
        transport: Arc::clone(&transport),
        settler,
        inlets,
        stops: stops.clone(),
        watched: HashSet::new(),
        over: CancellationToken::new(),
    };
    // A task of its own: what it has received reaches a lane or is dropped, also when `run` is.
    let intake = spawn(watched(stops.clone(), "the intake", intake.run()));
    tokio::select! {
        () = &mut shutdown => {}
        () = stops.intake.cancelled() => {}
    }
    stops.intake.cancel();
    tracing::debug!("shutdown: nothing more is received");
    drop(intake.await);
    if tokio::time::timeout(engine.settings.shutdown_timeout, lanes.wait()).await.is_err() {
        tracing::warn!("the shutdown deadline passed: running handlers are dropped and rolled back");
        stops.abort.cancel();
        drop(tokio::time::timeout(CLOSING, lanes.wait()).await);
    }
    drop(tokio::time::timeout(CLOSING, settling).await);
    close(&*transport).await;
    drop((abandon_on_drop, intake_on_drop));
    stops.failure().map_or(Ok(()), Err)
}

async fn close(transport: &dyn Transport) {
    if let Err(error) = transport.close(CLOSING).await {
        tracing::warn!(error = %report(&error), "the transport was not closed in time; nothing is lost by it");
    }
}

/// Ends the run loudly when a part of it panics: without it, messages would wait for ever.
async fn watched(stops: Stops, part: &'static str, work: impl Future<Output = ()> + Send) {
    if let Err(panic) = AssertUnwindSafe(work).catch_unwind().await {
        stops.fail(InboxError::Panicked(format!("{part} panicked: {}", panic_text(&*panic))));
    }
}

/// Registers the consumer; an outage is waited for, everything else is reported.
async fn wait_for_store<S: FailureStore>(engine: &Arc<Engine<S>>, stops: &Stops) -> Result<(), InboxError> {
    let patience = Instant::now() + engine.settings.start_timeout;
    let mut failures = 0;
    loop {
        let engine = Arc::clone(engine);
        let registered = spawn(async move { engine.consumer().await });
        let error = match registered.await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) => error,
            // Only when the runtime itself is shutting down.
            Err(_) => return Ok(()),
        };
        failures += 1;
        let pause = AWAY.wait(failures, fastrand::f64());
        if !error.kind().is_retryable() || Instant::now() + pause > patience || stops.intake.is_cancelled() {
            return Err(InboxError::Store(error));
        }
        tracing::warn!(error = %report(&error), ?pause, "the store is not there yet");
        tokio::time::sleep(pause).await;
    }
}

/// The receive loop: from the transport into the lanes.
struct Feed<S: FailureStore> {
    engine: Arc<Engine<S>>,
    bound: Bound,
    transport: Arc<dyn Transport>,
    settler: Settler,
    inlets: Vec<Arc<Inlet>>,
    stops: Stops,
    /// Sessions whose end wakes the lanes.
    watched: HashSet<u64>,
    /// Ends the tasks that watch them.
    over: CancellationToken,
}

impl<S: FailureStore> Feed<S> {
    async fn run(mut self) {
        let _watchers: DropGuard = self.over.clone().drop_guard();
        self.engine.receiving.store(true, Atomic::Release);
        let mut failures = 0;
        loop {
            let capacity = tokio::select! {
                biased;
                () = self.stops.intake.cancelled() => break,
                capacity = self.bound.room() => capacity,
            };
            if self.engine.paused.load(Atomic::Acquire) {
                tokio::select! {
                    () = self.engine.pause.notified() => {}
                    () = self.stops.intake.cancelled() => {}
                }
                continue;
            }
            let received = tokio::select! {
                biased;
                () = self.stops.intake.cancelled() => break,
                // `receive` loses nothing when it is dropped.
                () = self.engine.pause.notified() => continue,
                received = self.transport.receive(capacity) => received,
            };
            self.engine.connected.store(self.transport.connected(), Atomic::Release);
            match received {
                Ok(deliveries) => {
                    failures = 0;
                    failpoint!("inbox::a");
                    self.admit(deliveries);
                }
                Err(error) if error.kind() == TransportErrorKind::Unavailable => {
                    failures += 1;
                    let pause = AWAY.wait(failures, fastrand::f64());
                    tracing::warn!(error = %report(&error), ?pause, "the broker is away");
                    self.rest(pause).await;
                }
                Err(error) => {
                    self.stops.fail(InboxError::Transport(error));
                    break;
                }
            }
        }
        for inlet in &self.inlets {
            inlet.wake();
        }
    }

    async fn rest(&self, pause: Duration) {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = self.stops.intake.cancelled() => {}
        }
    }

    fn admit(&mut self, deliveries: Vec<Delivery>) {
        let lanes = self.inlets.len();
        self.engine.counters.received.add(deliveries.len());
        let mut sorted: Vec<Vec<Box<engine::Item>>> = (0..lanes).map(|_| Vec::new()).collect();
        for delivery in deliveries {
            self.watch(&delivery);
            let permit = self.bound.enter(delivery.message.size());
            match self.engine.admit(delivery) {
                (Intake::Item(mut item), _) => {
                    item.permit = Some(permit);
                    sorted[item.lane(lanes)].push(item);
                }
                (Intake::Ignored(reason), receipt) => {
                    self.engine.counters.ignored(reason);
                    if let Some(receipt) = receipt {
                        drop(self.settler.send(vec![Settle { receipt, permit: Some(permit), what: Verdict::Ack }]));
                    }
                }
            }
        }
        for (inlet, items) in self.inlets.iter().zip(sorted) {
            if !items.is_empty() {
                inlet.push(items);
            }
        }
        self.engine.counters.in_flight(self.bound.messages());
    }

    /// Wakes the lanes when the delivery's session ends or loses a receipt, so that what waits for it is dropped at once.
    fn watch(&mut self, delivery: &Delivery) {
        let session = delivery.receipt.session();
        if !self.watched.insert(session.id()) {
            return;
        }
        let (session, inlets) = (session.clone(), self.inlets.clone());
        let over = self.over.clone();
        drop(spawn(async move {
            loop {
                let ended = tokio::select! {
                    () = session.ending() => true,
                    () = session.lost_one() => false,
                    () = over.cancelled() => return,
                };
                inlets.iter().for_each(|inlet| inlet.wake());
                if ended {
                    return;
                }
            }
        }));
    }
}

/// Resolves when nothing has been received or been in flight for `idle`.
pub(crate) async fn until_idle<S: FailureStore>(engine: &Engine<S>, bound: &Bound, idle: Duration) {
    let mut seen = engine.counters.received.get();
    let mut since = Instant::now();
    loop {
        tokio::time::sleep(Duration::from_millis(5).min(idle)).await;
        let received = engine.counters.received.get();
        // What has not begun is not idle: the store may still be awaited.
        if !engine.receiving.load(Atomic::Acquire) || received != seen || bound.messages() > 0 {
            (seen, since) = (received, Instant::now());
        } else if since.elapsed() >= idle {
            return;
        }
    }
}
