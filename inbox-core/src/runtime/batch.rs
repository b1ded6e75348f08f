//! One transaction: claim, handlers, finish, commit. Knows no queue and no broker.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::engine::{Engine, Item, Plan, Stops};
use crate::{
    dispatch::{HandlerFailure, Ran, RunLimits, Stop, Work},
    error::{StoreError, StoreErrorKind, report},
    failure_store::{FailureStore, Reason},
    inbox::Policy,
    store::{Blame, Claim, Claims},
};

/// What became of a message in a transaction that committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Its effect is there.
    Applied,
    /// It was processed before.
    Duplicate,
    /// Its id was used before for another content; this one is kept or ignored, by policy.
    Conflict,
    /// It waits for a person.
    Quarantined(Reason),
    /// Its body cannot be decoded and the policy is to ignore that.
    Ignored(Reason),
    /// It did not start; its claim was taken back.
    NotRun,
}

/// How a transaction ended.
pub(crate) enum BatchEnd {
    /// COMMIT returned Ok.
    Committed(Committed),
    /// Nothing was committed, or it is not known.
    RolledBack(RolledBack),
}

/// A transaction that committed.
pub(crate) struct Committed {
    /// What became of each message, in the order given.
    pub(crate) fates: Vec<Fate>,
    /// How long the handlers took together.
    pub(crate) handlers: Duration,
}

/// Why a transaction did not commit.
pub(crate) struct RolledBack {
    pub(crate) blame: Blame,
    /// The message on which the failure is pinned.
    pub(crate) pinned: Option<usize>,
    /// The first of the messages whose handlers ran.
    pub(crate) first_run: Option<usize>,
    /// How many messages, from the front, were reached.
    pub(crate) reached: usize,
    pub(crate) rejected: bool,
    /// The label of the rollback metric.
    pub(crate) label: &'static str,
    pub(crate) error: String,
    /// The store's error when it is fatal: the run ends with it.
    pub(crate) fatal: Option<StoreError>,
    /// A claim waited too long for another transaction.
    pub(crate) busy: bool,
    /// The kind of the store's own error: the database is in trouble, not just a statement of a handler.
    pub(crate) store: Option<StoreErrorKind>,
}

impl RolledBack {
    fn by_store(error: StoreError, progress: &Progress, at_claim: bool) -> Self {
        let kind = error.kind();
        let (blame, label) = match kind {
            StoreErrorKind::Unavailable => (Blame::Infrastructure, "infrastructure"),
            StoreErrorKind::CommitUnknown => (Blame::Infrastructure, "commit_unknown"),
            StoreErrorKind::Contention => (Blame::Contention, "contention"),
            StoreErrorKind::ClaimTimeout => (Blame::Contention, "busy"),
            StoreErrorKind::TransactionAborted
            | StoreErrorKind::TransactionEscaped
            | StoreErrorKind::Unresolved
            | StoreErrorKind::Schema
            | StoreErrorKind::InvalidConfig
            | StoreErrorKind::Unauthorized
            | StoreErrorKind::Unexpected => (Blame::Message, "unpinned"),
        };
        // Before any handler ran, an error that no retry cures cannot be a message's: the consumer must not spin on it.
        let fatal = kind.is_fatal() || kind == StoreErrorKind::Unresolved || (at_claim && !kind.is_retryable());
        Self {
            blame,
            pinned: None,
            first_run: progress.first_run,
            reached: progress.reached,
            rejected: false,
            label,
            error: report(&error),
            busy: kind == StoreErrorKind::ClaimTimeout,
            store: Some(kind),
            fatal: fatal.then_some(error),
        }
    }
}

/// How far a transaction came.
#[derive(Default)]
struct Progress {
    reached: usize,
    first_run: Option<usize>,
    fates: Vec<Fate>,
    cut: bool,
}

/// Why the messages of a transaction were left.
enum Halt {
    Store(StoreError),
    Handler { at: usize, failure: HandlerFailure },
    Aborted,
}

impl From<StoreError> for Halt {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl<S: FailureStore> Engine<S> {
    /// Runs `items`, whose ids differ, in one transaction. Not cancel safe: for tasks that nobody aborts.
    pub(crate) async fn run_batch(&self, items: &[&Item], stops: &Stops) -> BatchEnd {
        let began = Instant::now();
        let mut progress = Progress::default();
        let consumer = match self.consumer().await {
            Ok(consumer) => consumer,
            Err(error) => return BatchEnd::RolledBack(RolledBack::by_store(error, &progress, true)),
        };
        failpoint!("inbox::b");
        let mut tx = match self.store.begin(&self.settings.limits()).await {
            Ok(tx) => tx,
            Err(error) => return BatchEnd::RolledBack(RolledBack::by_store(error, &progress, true)),
        };
        let candidates: Vec<_> = items.iter().map(|item| item.candidate()).collect();
        let mut claims = match self.store.claim(&mut tx, consumer, &candidates).await {
            Ok(claims) => claims,
            Err(error) => {
                self.roll_back(tx).await;
                return BatchEnd::RolledBack(RolledBack::by_store(error, &progress, true));
            }
        };
        failpoint!("inbox::c");
        // Time is measured from here: a claim that waited for another transaction must not cut this one.
        let claimed = Instant::now();
        let deadline = claimed + self.settings.max_batch_time;
        match self.run_items(items, &mut tx, &mut claims, stops, deadline, &mut progress).await {
            Ok(()) => {}
            Err(halt) => return BatchEnd::RolledBack(self.undo(halt, tx, &claims, &progress).await),
        }
        let handlers = claimed.elapsed();
        failpoint!("inbox::d");
        match self.store.commit(tx, claims).await {
            Ok(()) => {
                failpoint!("inbox::f");
                self.committed();
                self.counters.batch(items.len(), began.elapsed().as_secs_f64());
                BatchEnd::Committed(Committed { fates: progress.fates, handlers })
            }
            Err(error) => BatchEnd::RolledBack(RolledBack::by_store(error, &progress, false)),
        }
    }

    /// Goes through the messages in order until one fails or time is up.
    async fn run_items(
        &self,
        items: &[&Item],
        tx: &mut S::Tx,
        claims: &mut Claims,
        stops: &Stops,
        deadline: Instant,
        progress: &mut Progress,
    ) -> Result<(), Halt> {
        let mut at = 0;
        while at < items.len() && !progress.cut {
            let item = items[at];
            match (claims.get(item.id), &item.plan) {
                (Some(Claim::New), Plan::Handle(handler)) => {
                    let mut end = at + 1;
                    while end < items.len()
                        && claims.get(items[end].id) == Some(Claim::New)
                        && matches!(&items[end].plan, Plan::Handle(other) if other == handler)
                    {
                        end += 1;
                    }
                    self.run_run(*handler, at, &items[at..end], tx, claims, stops, deadline, progress).await?;
                    at = progress.reached;
                }
                (claim, _) => {
                    at += 1;
                    progress.reached = at;
                    progress.fates.push(self.settle_unrun(item, claim, tx, claims).await?);
                }
            }
        }
        // What did not start is claimed by nobody when this transaction commits.
        let rest: Vec<_> = items[progress.reached..]
            .iter()
            .map(|item| item.id)
            .filter(|id| claims.get(*id) == Some(Claim::New))
            .collect();
        if !rest.is_empty() {
            self.store.unclaim(tx, claims, &rest).await?;
        }
        progress.fates.resize(items.len(), Fate::NotRun);
        Ok(())
    }

    /// A message that no handler sees: a duplicate, a conflict, or one that is given up on arrival.
    async fn settle_unrun(
        &self,
        item: &Item,
        claim: Option<Claim>,
        tx: &mut S::Tx,
        claims: &mut Claims,
    ) -> Result<Fate, StoreError> {
        match (claim, &item.plan) {
            (Some(Claim::Conflict), _) => {
                if self.policies.id_conflict == Policy::Quarantine {
                    let error = format!("the id {} was used before for a message with another type or body", item.id);
                    self.store.keep(tx, claims.consumer(), &item.failure(Reason::IdConflict, &error)).await?;
                }
                Ok(Fate::Conflict)
            }
            (Some(Claim::New), Plan::Quarantine(reason, error)) => {
                self.store.give_up(tx, claims, &item.failure(*reason, error)).await?;
                Ok(Fate::Quarantined(*reason))
            }
            (Some(_), Plan::Quarantine(Reason::MissingId, error)) => {
                self.store.keep(tx, claims.consumer(), &item.failure(Reason::MissingId, error)).await?;
                Ok(Fate::Duplicate)
            }
            (Some(Claim::New | Claim::Duplicate), Plan::Handle(_) | Plan::Quarantine(..)) => Ok(Fate::Duplicate),
            // To take silence for a duplicate would lose the message.
            (None, Plan::Handle(_) | Plan::Quarantine(..)) => Err(StoreError::new(StoreErrorKind::Unresolved, "claim")
                .context(format!("the store does not say what became of the claim of {}", item.id))),
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the state of one transaction, passed on by its only caller")]
    async fn run_run(
        &self,
        handler: usize,
        start: usize,
        run: &[&Item],
        tx: &mut S::Tx,
        claims: &mut Claims,
        stops: &Stops,
        deadline: Instant,
        progress: &mut Progress,
    ) -> Result<(), Halt> {
        let work: Vec<Work<'_>> =
            run.iter().map(|item| Work { message: &item.message, receipt: item.receipt.as_ref() }).collect();
        let cut: &CancellationToken = &stops.abandon;
        let limits = RunLimits {
            handler_timeout: self.settings.handler_timeout,
            deadline,
            started: progress.first_run.is_some(),
            cut,
            abort: &stops.abort,
        };
        let end = self.routes.handler(handler).run(&work, tx, limits).await;
        let ran = end.outcomes.len();
        for (item, outcome) in run.iter().zip(end.outcomes) {
            // First, so that what fails below is this message's business.
            progress.reached += 1;
            let fate = match outcome {
                Ran::Done => {
                    progress.first_run.get_or_insert(progress.reached - 1);
                    if item.attempts > 0 {
                        self.store.forget_attempts(tx, claims.consumer(), item.id).await?;
                    }
                    claims.done(item.id);
                    Fate::Applied
                }
                Ran::Undecodable(error) => match self.policies.undecodable {
                    Policy::Quarantine => {
                        let failure = item.failure(Reason::Undecodable, &report(&*error));
                        self.store.give_up(tx, claims, &failure).await?;
                        Fate::Quarantined(Reason::Undecodable)
                    }
                    Policy::Ignore => {
                        claims.done(item.id);
                        Fate::Ignored(Reason::Undecodable)
                    }
                },
            };
            progress.fates.push(fate);
        }
        match end.stop {
            None => Ok(()),
            Some(Stop::Cut) => {
                progress.cut = true;
                Ok(())
            }
            Some(Stop::Failed(failure)) => {
                progress.first_run.get_or_insert(start + ran);
                progress.reached += 1;
                Err(Halt::Handler { at: start + ran, failure })
            }
            Some(Stop::Aborted) => Err(Halt::Aborted),
        }
    }

    /// Rolls back, and says what is known about why.
    async fn undo(&self, halt: Halt, mut tx: S::Tx, claims: &Claims, progress: &Progress) -> RolledBack {
        let state = match &halt {
            Halt::Handler { failure: HandlerFailure::Timeout(_), .. } | Halt::Aborted => Ok(()),
            Halt::Handler { .. } | Halt::Store(_) => self.store.check(&mut tx, claims).await,
        };
        self.roll_back(tx).await;
        let state = state.err().filter(|error| error.kind() != StoreErrorKind::TransactionAborted);
        match (halt, state) {
            // The transaction is not ours any more, or the connection is gone: that outweighs what the handler said.
            (Halt::Handler { at, failure }, Some(error)) => {
                tracing::debug!(%failure, "a handler failed, and the transaction is not there");
                let mut end = RolledBack::by_store(error, progress, false);
                end.pinned = Some(at);
                end
            }
            (Halt::Store(error), state) => match state.filter(|state| state.kind().is_fatal()) {
                Some(state) => RolledBack::by_store(state, progress, false),
                None => RolledBack::by_store(error, progress, false),
            },
            (Halt::Handler { at, failure }, None) => {
                let blame = failure.cause().map_or(Blame::Message, |cause| self.store.classify(cause));
                let label = match blame {
                    Blame::Message => "failed",
                    Blame::Unpinned => "unpinned",
                    Blame::Infrastructure => "infrastructure",
                    Blame::Contention => "contention",
                };
                RolledBack {
                    blame,
                    pinned: (blame != Blame::Unpinned).then_some(at),
                    first_run: progress.first_run,
                    reached: progress.reached,
                    rejected: failure.is_rejected(),
                    label,
                    error: failure.to_string(),
                    fatal: None,
                    busy: false,
                    store: None,
                }
            }
            (Halt::Aborted, _) => RolledBack {
                blame: Blame::Infrastructure,
                pinned: None,
                first_run: None,
                reached: 0,
                rejected: false,
                label: "aborted",
                error: "the shutdown deadline passed".to_owned(),
                fatal: None,
                busy: false,
                store: None,
            },
        }
    }

    async fn roll_back(&self, tx: S::Tx) {
        if let Err(error) = self.store.rollback(tx).await {
            // The database rolls back what has lost its connection; nothing hangs on this answer.
            tracing::debug!(error = %report(&error), "a rollback was not answered");
        }
    }
}
