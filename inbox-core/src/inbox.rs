//! The inbox and its builder: assembles and validates; starts nothing before `run`.

use std::{error::Error, fmt, future::Future, sync::Arc, sync::atomic::Ordering as Atomic, time::Duration};

use crate::{
    capability::Lease,
    dispatch::Routes,
    error::{StoreError, TransportError},
    failure_store::FailureStore,
    handler::{FromMessage, Handler, Plain, StatefulFn, WithState},
    id::IdScope,
    message::Message,
    retry::Backoff,
    runtime::{self, Bound, Engine, Numbers, Ordering, Outcome},
    store::Limits,
    transport::{Capacity, Transport},
};

/// What is done with a message that no handler can run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Keep it in the store's failures, for a person. Nothing is lost.
    #[default]
    Quarantine,
    /// Acknowledge and count it. **Its content is gone.**
    Ignore,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Policies {
    pub(crate) missing_id: Policy,
    pub(crate) undecodable: Policy,
    pub(crate) unrouted: Policy,
    pub(crate) id_conflict: Policy,
}

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) lanes: usize,
    pub(crate) max_batch: usize,
    pub(crate) max_batch_time: Duration,
    pub(crate) in_flight: Capacity,
    pub(crate) max_attempts: u32,
    pub(crate) backoff: Backoff,
    pub(crate) max_hold: Duration,
    pub(crate) handler_timeout: Duration,
    pub(crate) claim_wait: Duration,
    pub(crate) shutdown_timeout: Duration,
    pub(crate) start_timeout: Duration,
    pub(crate) id_scope: IdScope,
    pub(crate) ordering: Ordering,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            lanes: 4,
            max_batch: 200,
            max_batch_time: Duration::from_millis(100),
            in_flight: Capacity { messages: 2_000, bytes: 64 << 20 },
            max_attempts: 5,
            backoff: Backoff::default(),
            max_hold: Duration::from_secs(60),
            handler_timeout: Duration::from_secs(30),
            claim_wait: Limits::default().claim_wait,
            shutdown_timeout: Duration::from_secs(10),
            start_timeout: Duration::from_secs(30),
            id_scope: IdScope::Source,
            ordering: Ordering::Key,
        }
    }
}

impl Settings {
    pub(crate) fn limits(&self) -> Limits {
        Limits { claim_wait: self.claim_wait, statement_timeout: self.handler_timeout }
    }
}

/// Why an inbox could not be built, or stopped.
#[derive(Debug)]
#[non_exhaustive]
pub enum InboxError {
    /// The settings contradict each other or something is missing; the text says what and what is accepted.
    Config(String),
    /// The transport failed for good.
    Transport(TransportError),
    /// The store failed for good. [`TransactionEscaped`](crate::StoreErrorKind::TransactionEscaped) means that a handler
    /// sent COMMIT or ROLLBACK by itself: nothing of its batch was acknowledged, and the handler must be mended.
    Store(StoreError),
    /// A part of the runtime, of the transport or of the store panicked. Nothing was acknowledged that is not committed.
    Panicked(String),
}

impl fmt::Display for InboxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(text) => write!(f, "the inbox cannot be built: {text}"),
            Self::Transport(_) => f.write_str("the transport failed for good"),
            Self::Store(_) => f.write_str("the store failed for good"),
            Self::Panicked(what) => write!(f, "{what}"),
        }
    }
}

impl Error for InboxError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Config(_) | Self::Panicked(_) => None,
            Self::Transport(error) => Some(error),
            Self::Store(error) => Some(error),
        }
    }
}

impl From<StoreError> for InboxError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<TransportError> for InboxError {
    fn from(error: TransportError) -> Self {
        Self::Transport(error)
    }
}

/// No setting is a longer time: clocks overflow far behind it, and a message that is held for a year is lost on people.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

/// Collects handlers and settings; made by [`Inbox::new`].
#[must_use = "an inbox does nothing before `run`"]
pub struct InboxBuilder<S: FailureStore> {
    name: Arc<str>,
    transport: Option<Arc<dyn Transport>>,
    store: Arc<S>,
    routes: Routes<S::Tx>,
    settings: Settings,
    policies: Policies,
}

impl<S: FailureStore> fmt::Debug for InboxBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InboxBuilder")
            .field("name", &self.name)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $($field:ident).+;)*) => {
        $($(#[$doc])*
        pub fn $name(mut self, $name: $type) -> Self {
            self.$($field).+ = $name;
            self
        })*
    };
}

impl<S: FailureStore> InboxBuilder<S> {
    /// Runs `handler` for messages of `kind`.
    ///
    /// Messages that wait together share a transaction. So `SET LOCAL`, advisory locks and `now()` are shared by them,
    /// identical NOTIFYs fold, and what a handler does outside the database may be repeated. `max_batch(1)` gives each
    /// message a transaction of its own.
    pub fn on<E: FromMessage>(mut self, kind: impl Into<String>, handler: impl Handler<E, S::Tx>) -> Self {
        self.routes.add(Some(kind.into()), Plain(handler));
        self
    }

    /// Runs `handler` with a clone of `state` for messages of `kind`: for what a capturing closure would be used for.
    pub fn on_with<T, E, F>(mut self, state: T, kind: impl Into<String>, handler: F) -> Self
    where
        T: Clone + Send + Sync + 'static,
        E: FromMessage,
        F: for<'a> StatefulFn<'a, T, E, S::Tx, Future: Send> + 'static,
    {
        self.routes.add::<E>(Some(kind.into()), WithState(state, handler));
        self
    }

    /// Runs `handler` for messages of every kind, or none, that has no handler of its own.
    pub fn on_any<E: FromMessage>(mut self, handler: impl Handler<E, S::Tx>) -> Self {
        self.routes.add(None, Plain(handler));
        self
    }

    /// Acknowledges messages of `kind` without running or claiming them. **Their content is gone.**
    pub fn ignore(mut self, kind: impl Into<String>) -> Self {
        self.routes.ignored.insert(kind.into());
        self
    }

    setters! {
        /// What is done with a message without a usable id. Default: quarantine.
        on_missing_id: Policy = policies.missing_id;
        /// What is done with a message whose body cannot be decoded. Default: quarantine.
        on_undecodable: Policy = policies.undecodable;
        /// What is done with a message that no handler takes. Default: quarantine.
        on_unrouted: Policy = policies.unrouted;
        /// What is done with a second content under a used id. Default: quarantine.
        on_id_conflict: Policy = policies.id_conflict;
        /// Within what ids that are not UUIDs are unique. Default: the topic, or the CloudEvents source.
        id_scope: IdScope = settings.id_scope;
        /// Which messages run one after the other. Default: those of one key.
        ordering: Ordering = settings.ordering;
        /// How many transactions run at once. Default: 4.
        lanes: usize = settings.lanes;
        /// How many messages share a transaction at most. Default: 200.
        max_batch: usize = settings.max_batch;
        /// How long the handlers of one transaction run together before it commits. Default: 100 ms.
        max_batch_time: Duration = settings.max_batch_time;
        /// How many messages are held at most, waiting, running and unacknowledged. Default: 2,000.
        in_flight: usize = settings.in_flight.messages;
        /// How many bytes of messages are held at most; one larger message is still taken. Default: 64 MiB.
        in_flight_bytes: usize = settings.in_flight.bytes;
        /// How many attempts a message has before it is quarantined. Default: 5.
        max_attempts: u32 = settings.max_attempts;
        /// How long a failed message waits. Default: 200 ms, doubled up to 10 s.
        backoff: Backoff = settings.backoff;
        /// How long a failing message is made to wait in all before it is given back to the broker. Default: 60 s.
        max_hold: Duration = settings.max_hold;
        /// How long a handler may run; then it is dropped and rolled back, and the attempt has failed. Default: 30 s.
        handler_timeout: Duration = settings.handler_timeout;
        /// How long a claim waits for another transaction with the same id. Default: 250 ms.
        claim_wait: Duration = settings.claim_wait;
        /// How long shutdown lets handlers go on. Default: 10 s.
        shutdown_timeout: Duration = settings.shutdown_timeout;
        /// How long `run` waits at its start for a database that is not there. Default: 30 s.
        start_timeout: Duration = settings.start_timeout;
    }

    /// Validates everything and starts nothing.
    ///
    /// # Errors
    /// `Config`, naming the setting, its value and what is accepted.
    pub fn build(self) -> Result<Inbox<S>, InboxError> {
        let settings = &self.settings;
        let config = |text: String| Err(InboxError::Config(text));
        let name = &self.name;
        if name.trim().is_empty() || name.len() > 200 || name.chars().any(char::is_control) {
            return config(format!("the consumer's name {name:?} must have 1 to 200 printable characters"));
        }
        if self.routes.is_empty() {
            return config("there is no handler: add one with `.on(kind, handler)` or `.on_any(handler)`".into());
        }
        if let Some(kind) = self.routes.repeated.first() {
            return config(format!("two handlers for {kind}: a kind has one handler"));
        }
        if let Some(kind) = self.routes.kinds().iter().find(|kind| self.routes.ignored.contains(**kind)) {
            return config(format!("the kind {kind} has a handler and is ignored: choose one"));
        }
        let by_partition = |transport: &Arc<dyn Transport>| {
            transport.capabilities().ordering == crate::capability::Ordering::Partition
        };
        if settings.ordering == Ordering::Partition && !self.transport.as_ref().is_some_and(by_partition) {
            return config(
                "`ordering(Partition)` needs a transport with partitions; accepted here: `ordering(Key)`".into(),
            );
        }
        for (setting, value, least, most) in [
            ("lanes", settings.lanes, 1, 1_000),
            ("max_batch", settings.max_batch, 1, 10_000),
            ("in_flight", settings.in_flight.messages, 1, 1_000_000),
            ("in_flight_bytes", settings.in_flight.bytes, 1, usize::MAX),
            ("max_attempts", settings.max_attempts as usize, 1, 1_000),
        ] {
            if value < least || value > most {
                return config(format!("`{setting}` is {value}; accepted: {least} to {most}"));
            }
        }
        for (setting, value) in [
            ("handler_timeout", settings.handler_timeout),
            ("max_batch_time", settings.max_batch_time),
            ("max_hold", settings.max_hold),
            ("claim_wait", settings.claim_wait),
            ("shutdown_timeout", settings.shutdown_timeout),
            ("start_timeout", settings.start_timeout),
            ("backoff.most", settings.backoff.most),
        ] {
            if value > LONGEST {
                return config(format!("`{setting}` is {value:?}; accepted: up to {LONGEST:?}"));
            }
        }
        for (setting, value) in [
            ("handler_timeout", settings.handler_timeout),
            ("claim_wait", settings.claim_wait),
            ("max_batch_time", settings.max_batch_time),
            ("backoff.first", settings.backoff.first),
        ] {
            if value.is_zero() {
                return config(format!("`{setting}` is zero; accepted: any longer time"));
            }
        }
        if settings.backoff.most < settings.backoff.first {
            return config("`backoff.most` is shorter than `backoff.first`".into());
        }
        self.fits_lease()?;
        let bound = Bound::new(settings.in_flight);
        let engine = Engine::new(self.name, self.store, self.routes, self.settings, self.policies);
        Ok(Inbox { engine: Arc::new(engine), bound, transport: self.transport })
    }

    /// A transaction must be over before the broker takes its messages away.
    fn fits_lease(&self) -> Result<(), InboxError> {
        let lease = self.transport.as_ref().map(|transport| transport.capabilities().lease);
        let (handler, batch) = (self.settings.handler_timeout, self.settings.max_batch_time);
        match lease {
            Some(Lease::Ceiling(ceiling)) if handler.saturating_add(batch) >= ceiling => {
                Err(InboxError::Config(format!(
                    "`handler_timeout` is {handler:?} and `max_batch_time` {batch:?}, but this transport's broker takes a message \
                 away after {ceiling:?}; accepted: less than that together, or a broker (and its URL) with a longer time",
                )))
            }
            _ => Ok(()),
        }
    }

    /// [`build`](Self::build) and [`Inbox::run`].
    ///
    /// # Errors
    /// As both.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) -> Result<(), InboxError> {
        self.build()?.run(shutdown).await
    }

    /// [`build`](Self::build) and [`Inbox::run_until_idle`].
    ///
    /// # Errors
    /// As both.
    pub async fn run_until_idle(self, idle: Duration) -> Result<(), InboxError> {
        self.build()?.run_until_idle(idle).await
    }
}

/// A consumer: one transport, one store, its handlers.
///
/// Each message's database effect is applied once, and none is lost: the id is claimed and the handler runs in one
/// transaction, and the broker is told after COMMIT.
pub struct Inbox<S: FailureStore> {
    engine: Arc<Engine<S>>,
    bound: Bound,
    transport: Option<Arc<dyn Transport>>,
}

impl<S: FailureStore> fmt::Debug for Inbox<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox").field("name", &self.engine.name).finish_non_exhaustive()
    }
}

impl<S: FailureStore> Inbox<S> {
    /// Starts a builder. `consumer` names whose effects these are: two consumers of different names each run every
    /// message, two instances of one name share them.
    #[allow(clippy::new_ret_no_self, reason = "the builder is the only way to an inbox")]
    pub fn new(consumer: impl Into<Arc<str>>, transport: impl Transport, store: S) -> InboxBuilder<S> {
        Self::builder(consumer.into(), Some(Arc::new(transport)), Arc::new(store))
    }

    /// Starts a builder for an inbox without a broker: only [`process`](Self::process) works.
    pub fn local(consumer: impl Into<Arc<str>>, store: S) -> InboxBuilder<S> {
        Self::builder(consumer.into(), None, Arc::new(store))
    }

    fn builder(name: Arc<str>, transport: Option<Arc<dyn Transport>>, store: Arc<S>) -> InboxBuilder<S> {
        InboxBuilder {
            name,
            transport,
            store,
            routes: Routes::new(),
            settings: Settings::default(),
            policies: Policies::default(),
        }
    }

    /// Looks at a running inbox from elsewhere.
    #[must_use]
    pub fn handle(&self) -> InboxHandle {
        let (engine, bound) = (Arc::clone(&self.engine), self.bound.clone());
        InboxHandle { see: Arc::new(View { engine, bound }) }
    }

    /// Runs until `shutdown` resolves: then the intake stops, what is here is worked off until `shutdown_timeout`, and
    /// what is left is given back to the broker.
    ///
    /// # Cancel safety
    /// Dropping the future is a hasty stop: transactions in progress finish or roll back by themselves, everything else
    /// is handed over again by the broker.
    /// # Errors
    /// What no retry cures: a missing schema, refused credentials, a handler that commits by itself. Outages of broker
    /// and database are waited for.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) -> Result<(), InboxError> {
        let transport = self.transport()?;
        runtime::run(self.engine, self.bound, transport, shutdown).await
    }

    /// Runs until nothing has come and nothing has been in flight for `idle`: for tests, examples and jobs that work off
    /// a queue. A broker that takes a while to hand over the first message (a Kafka group that is being joined) looks idle
    /// meanwhile: choose `idle` longer than that.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub async fn run_until_idle(self, idle: Duration) -> Result<(), InboxError> {
        let transport = self.transport()?;
        let (engine, bound) = (Arc::clone(&self.engine), self.bound.clone());
        runtime::run(self.engine, self.bound, transport, async move {
            runtime::until_idle(&engine, &bound, idle).await;
        })
        .await
    }

    /// Runs one message through claim, handler and commit, without a broker: for webhooks, jobs and tests.
    ///
    /// Ids that are no UUIDs are scoped by [`Message::origin`], else by `process`: the same text from a broker is another
    /// id unless both have one origin or [`id_scope(Global)`](InboxBuilder::id_scope) is set.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the work to finish by itself.
    /// # Errors
    /// `Store` when the database is in trouble or another transaction holds the id: nothing was committed or counted,
    /// unless the kind is `CommitUnknown`. Call again with the same message.
    pub async fn process(&self, message: Message) -> Result<Outcome, InboxError> {
        let engine = Arc::clone(&self.engine);
        let panicked = |error: tokio::task::JoinError| InboxError::Panicked(format!("processing a message: {error}"));
        runtime::spawn(runtime::process(engine, message)).await.map_err(panicked)?
    }

    fn transport(&self) -> Result<Arc<dyn Transport>, InboxError> {
        self.transport.clone().ok_or_else(|| {
            InboxError::Config("an inbox made with `Inbox::local` has no transport to run; call `process`".into())
        })
    }
}

/// Whether an inbox can work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    /// The broker is there.
    pub broker: bool,
    /// The last transaction did not meet a database in trouble.
    pub store: bool,
    /// The intake is paused by [`InboxHandle::pause`].
    pub paused: bool,
}

/// Looks at an inbox from elsewhere: numbers, health, pause and resume. Cheap to clone.
#[derive(Clone)]
pub struct InboxHandle {
    see: Arc<dyn See>,
}

impl InboxHandle {
    /// What it has done so far.
    #[must_use]
    pub fn numbers(&self) -> Numbers {
        self.see.numbers()
    }

    /// Whether it can work.
    #[must_use]
    pub fn health(&self) -> Health {
        self.see.health()
    }

    /// Stops receiving; what is here is worked off.
    pub fn pause(&self) {
        self.see.pause(true);
    }

    /// Goes on receiving.
    pub fn resume(&self) {
        self.see.pause(false);
    }
}

impl fmt::Debug for InboxHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InboxHandle").field("numbers", &self.numbers()).field("health", &self.health()).finish()
    }
}

trait See: Send + Sync {
    fn numbers(&self) -> Numbers;
    fn health(&self) -> Health;
    fn pause(&self, paused: bool);
}

struct View<S: FailureStore> {
    engine: Arc<Engine<S>>,
    bound: Bound,
}

impl<S: FailureStore> See for View<S> {
    fn numbers(&self) -> Numbers {
        self.engine.counters.snapshot(self.bound.messages())
    }
    fn health(&self) -> Health {
        Health {
            broker: self.engine.connected.load(Atomic::Acquire),
            store: self.engine.store_ok.load(Atomic::Relaxed),
            paused: self.engine.paused.load(Atomic::Acquire),
        }
    }
    fn pause(&self, paused: bool) {
        self.engine.paused.store(paused, Atomic::Release);
        self.engine.pause.notify_one();
    }
}
