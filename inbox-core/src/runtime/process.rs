//! One message through claim, handler and commit, without a broker.

use std::sync::Arc;

use super::{
    batch::{BatchEnd, Fate},
    engine::{Engine, Intake, Item, Plan, Stops},
};
use crate::{
    decision::{Decision, Facts, decide},
    error::{StoreError, StoreErrorKind},
    failure_store::{FailureStore, Reason},
    inbox::InboxError,
    message::Message,
    store::Blame,
    transport::Source,
};

/// What became of a message given to [`Inbox::process`](crate::Inbox::process).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// Its effect is committed.
    Applied,
    /// It was processed before; nothing ran.
    Duplicate,
    /// Its id was used before for another content; by policy this one is quarantined or ignored.
    IdConflict,
    /// The handler failed, and the attempt was counted: try again later.
    Failed {
        /// How many attempts have failed.
        attempts: u32,
        /// The handler's error with its causes.
        error: String,
    },
    /// It waits for a person in the store's failures.
    Quarantined(Reason),
    /// A policy says that such messages are ignored.
    Ignored(Reason),
}

/// Runs one message. For a task that nobody aborts.
pub(crate) async fn process<S: FailureStore>(engine: Arc<Engine<S>>, message: Message) -> Result<Outcome, InboxError> {
    let stops = Stops::default();
    let mut item = match engine.plan(message, Source::new("process"), None) {
        Intake::Item(item) => item,
        Intake::Ignored(reason) => {
            engine.counters.ignored(reason);
            return Ok(Outcome::Ignored(reason));
        }
    };
    loop {
        let end = match engine.run_batch(&[&*item], &stops).await {
            BatchEnd::Committed(done) => return Ok(outcome(&engine, done.fates.first().copied())),
            BatchEnd::RolledBack(end) => end,
        };
        engine.counters.rollbacks(1, end.label);
        if let Some(error) = end.fatal {
            return Err(InboxError::Store(error));
        }
        let facts = Facts {
            blame: end.blame,
            pinned: end.pinned.is_some(),
            ran_first: true,
            alone: true,
            rejected: end.rejected,
            rollbacks: 0,
            unstable: 0,
        };
        match decide(&facts) {
            Decision::CountAttempt => match count(&engine, &mut item, end.error).await? {
                Some(outcome) => return Ok(outcome),
                None => continue,
            },
            Decision::Quarantine(reason) => item.plan = Plan::Quarantine(reason, end.error),
            Decision::Again | Decision::Alone => {
                let kind = match (end.store, end.blame) {
                    (Some(kind), _) => kind,
                    (None, Blame::Contention) => StoreErrorKind::Contention,
                    (None, Blame::Infrastructure | Blame::Message | Blame::Unpinned) => StoreErrorKind::Unavailable,
                };
                return Err(InboxError::Store(StoreError::new(kind, "process").context(end.error)));
            }
        }
    }
}

/// Counts a failed attempt. `None`: run the item once more, to quarantine it or to find that somebody has finished it.
async fn count<S: FailureStore>(
    engine: &Engine<S>,
    item: &mut Item,
    error: String,
) -> Result<Option<Outcome>, InboxError> {
    let consumer = engine.consumer().await.map_err(InboxError::Store)?;
    let failure = item.failure(Reason::Retrying, &error);
    let Some(attempts) = engine.store.record_attempt(consumer, &failure).await.map_err(InboxError::Store)? else {
        return Ok(None);
    };
    engine.counters.attempts_failed.add(1);
    item.failed(attempts);
    if attempts < engine.settings.max_attempts {
        return Ok(Some(Outcome::Failed { attempts, error }));
    }
    item.plan = Plan::Quarantine(Reason::MaxAttempts, error);
    Ok(None)
}

fn outcome<S: FailureStore>(engine: &Engine<S>, fate: Option<Fate>) -> Outcome {
    match fate {
        Some(Fate::Applied) => {
            engine.counters.applied.add(1);
            Outcome::Applied
        }
        Some(Fate::Conflict) => {
            engine.counters.id_conflicts.add(1);
            Outcome::IdConflict
        }
        Some(Fate::Quarantined(reason)) => {
            engine.counters.quarantined(reason);
            Outcome::Quarantined(reason)
        }
        Some(Fate::Ignored(reason)) => {
            engine.counters.ignored(reason);
            Outcome::Ignored(reason)
        }
        // A message alone is never cut: the first of a transaction always starts.
        Some(Fate::Duplicate | Fate::NotRun) | None => {
            engine.counters.duplicates(1, "claimed");
            Outcome::Duplicate
        }
    }
}
