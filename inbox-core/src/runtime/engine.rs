//! What all tasks of one inbox share: the consumer, its store and handlers, its settings and its numbers.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use tokio::{
    sync::{Notify, OnceCell},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{bound::Permit, numbers::Counters};
use crate::{
    dispatch::{Route, Routes},
    error::StoreError,
    failure_store::{Failure, FailureStore, Reason, clean},
    id::{self, IdScope, MessageId},
    inbox::{InboxError, Policies, Policy, Settings},
    message::Message,
    store::{Candidate, ConsumerId},
    transport::{Delivery, Receipt, Source},
};

/// See the module.
pub(crate) struct Engine<S: FailureStore> {
    pub(crate) name: Arc<str>,
    pub(crate) store: Arc<S>,
    pub(crate) routes: Routes<S::Tx>,
    pub(crate) settings: Settings,
    pub(crate) policies: Policies,
    pub(crate) counters: Counters,
    /// The receive loop has begun.
    pub(crate) receiving: AtomicBool,
    pub(crate) paused: AtomicBool,
    /// Wakes the receive loop when `paused` changes.
    pub(crate) pause: Notify,
    pub(crate) connected: AtomicBool,
    pub(crate) store_ok: AtomicBool,
    consumer: OnceCell<ConsumerId>,
}

/// The stop signals of one run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stops {
    /// Nothing more is received.
    pub(crate) intake: CancellationToken,
    /// Lanes finish the message that runs, then drop what waits.
    pub(crate) abandon: CancellationToken,
    /// Running handlers are dropped and rolled back.
    pub(crate) abort: CancellationToken,
    fatal: Arc<Mutex<Option<InboxError>>>,
}

impl Stops {
    /// Ends the run with an error; the first one is reported.
    pub(crate) fn fail(&self, error: InboxError) {
        tracing::error!(error = %crate::error::report(&error), "the inbox stops");
        self.fatal.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.intake.cancel();
        self.abandon.cancel();
    }

    pub(crate) fn failure(&self) -> Option<InboxError> {
        self.fatal.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// What is to be done with a message.
#[derive(Clone, Debug)]
pub(crate) enum Plan {
    /// Run the handler at this place of the routes.
    Handle(usize),
    /// Claim it and give it up, for this reason and with this error.
    Quarantine(Reason, String),
}

/// A message on its way through a lane.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) message: Message,
    /// `None` for a message that came without a broker.
    pub(crate) receipt: Option<Receipt>,
    pub(crate) permit: Option<Permit>,
    pub(crate) id: MessageId,
    pub(crate) fingerprint: i32,
    pub(crate) key: Option<u64>,
    pub(crate) plan: Plan,
    /// Failed attempts that are known of.
    pub(crate) attempts: u32,
    /// Runs in a transaction of its own.
    pub(crate) alone: bool,
    /// Rollbacks that were not counted.
    pub(crate) rollbacks: u32,
    /// Errors of the database, alone, while others committed.
    pub(crate) unstable: u32,
    /// The engine's commits when the last such error came.
    pub(crate) commits_seen: u64,
    pub(crate) not_before: Option<Instant>,
    /// How long it has been made to wait in all.
    pub(crate) held: Duration,
}

impl Item {
    /// Whether it may not start any more.
    pub(crate) fn is_ending(&self) -> bool {
        self.receipt.as_ref().is_some_and(Receipt::is_ending)
    }

    /// Notes how many attempts have failed; the handler sees the next one's number.
    pub(crate) fn failed(&mut self, attempts: u32) {
        self.attempts = attempts;
        self.message.context.attempt = attempts.saturating_add(1);
    }

    pub(crate) fn candidate(&self) -> Candidate {
        let time: Option<SystemTime> = self.id.time().or(self.message.produced_at).or(self.message.stored_at);
        Candidate { id: self.id, fingerprint: self.fingerprint, time }
    }

    pub(crate) fn failure(&self, reason: Reason, error: &str) -> Failure {
        Failure {
            id: self.id,
            fingerprint: self.fingerprint,
            reason,
            error: clean(error),
            message: self.message.clone(),
            source: self.message.context.source.clone(),
        }
    }

    pub(crate) fn lane(&self, lanes: usize) -> usize {
        let place = self.key.unwrap_or_else(|| hash(&self.id));
        usize::try_from(place % lanes.max(1) as u64).unwrap_or(0)
    }
}

/// What intake does with a delivery.
pub(crate) enum Intake {
    Item(Box<Item>),
    /// Acknowledged without a claim, by policy.
    Ignored(Reason),
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl<S: FailureStore> Engine<S> {
    pub(crate) fn new(
        name: Arc<str>,
        store: Arc<S>,
        routes: Routes<S::Tx>,
        settings: Settings,
        policies: Policies,
    ) -> Self {
        Self {
            counters: Counters::new(Arc::clone(&name)),
            name,
            store,
            routes,
            settings,
            policies,
            receiving: AtomicBool::new(false),
            paused: AtomicBool::new(false),
            pause: Notify::new(),
            connected: AtomicBool::new(true),
            store_ok: AtomicBool::new(true),
            consumer: OnceCell::new(),
        }
    }

    /// The consumer's number, registered on first use.
    pub(crate) async fn consumer(&self) -> Result<ConsumerId, StoreError> {
        self.consumer.get_or_try_init(|| self.store.register(&self.name)).await.copied()
    }

    /// Identifies and routes a delivery.
    pub(crate) fn admit(&self, delivery: Delivery) -> (Intake, Option<Receipt>) {
        let Delivery { message, receipt, source, partition, delivery_count: _, suspect: _ } = delivery;
        match self.plan(message, source, partition) {
            Intake::Item(mut item) => {
                item.receipt = Some(receipt);
                (Intake::Item(item), None)
            }
            ignored @ Intake::Ignored(_) => (ignored, Some(receipt)),
        }
    }

    /// Identifies and routes a message.
    pub(crate) fn plan(&self, mut message: Message, source: Source, partition: Option<u64>) -> Intake {
        let (id, missing) = match id::identify(&message, &source, self.settings.id_scope) {
            Ok(id) => (id, None),
            Err(missing) => (id::stand_in(&message, &source), Some(missing)),
        };
        let plan = match (missing, self.routes.route(message.kind.as_deref())) {
            (_, Route::Ignored) => return Intake::Ignored(Reason::Unrouted),
            (Some(missing), _) => match self.policies.missing_id {
                Policy::Quarantine => Plan::Quarantine(Reason::MissingId, self.advise(missing)),
                Policy::Ignore => return Intake::Ignored(Reason::MissingId),
            },
            (None, Route::Handler(at)) => Plan::Handle(at),
            (None, Route::Unrouted) => match self.policies.unrouted {
                Policy::Quarantine => Plan::Quarantine(Reason::Unrouted, self.unrouted(&message)),
                Policy::Ignore => return Intake::Ignored(Reason::Unrouted),
            },
        };
        message.context.message_id = id;
        message.context.source = source;
        message.context.attempt = 1;
        let key = match self.settings.ordering {
            super::Ordering::Key => message.key.as_ref().map(hash),
            super::Ordering::Partition => partition.map(|partition| hash(&partition)),
        };
        Intake::Item(Box::new(Item {
            fingerprint: id::fingerprint(&message),
            message,
            receipt: None,
            permit: None,
            id,
            key,
            plan,
            attempts: 0,
            alone: false,
            rollbacks: 0,
            unstable: 0,
            commits_seen: 0,
            not_before: None,
            held: Duration::ZERO,
        }))
    }

    fn advise(&self, missing: id::MissingId) -> String {
        let scope = match self.settings.id_scope {
            IdScope::Source | IdScope::Global => "an id that the producer gives each message once, UUIDv7 at best",
        };
        format!("{missing}: without {scope}, a repeated delivery cannot be told from a new message")
    }

    fn unrouted(&self, message: &Message) -> String {
        let known = self.routes.kinds().join("`, `");
        match &message.kind {
            Some(kind) => format!(
                "no handler takes the kind `{}`; handlers are there for `{known}`; add one, or `.ignore(kind)`",
                crate::message::printable(kind.as_bytes(), 100)
            ),
            None => format!("the message has no kind; handlers are there for `{known}`; `.on_any` takes what has none"),
        }
    }

    pub(crate) fn committed(&self) {
        self.counters.commits.add(1);
        self.store_ok.store(true, Ordering::Relaxed);
    }
}
