//! The suite as a list of trials.

use std::{fmt, future::Future, pin::Pin, process::ExitCode, sync::Arc, time::Duration};

use libtest_mimic::{Arguments, Completion, Trial};

use crate::{
    harness::{CaseResult, Need, StoreSubject, TransportSubject, run_case},
    store_cases::{self, StoreStage},
    transport_cases::{self, TransportStage},
};

/// A case that has not finished by then fails.
const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) type CaseFuture = Pin<Box<dyn Future<Output = CaseResult> + Send>>;

/// One guarantee's test, over whatever is put on its stage `G`.
pub struct Case<G> {
    /// The name, which begins with the number of its guarantee.
    pub name: &'static str,
    /// What the subjects must have.
    pub needs: &'static [Need],
    pub(crate) run: fn(G) -> CaseFuture,
}

impl<G> fmt::Debug for Case<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("name", &self.name).field("needs", &self.needs).finish_non_exhaustive()
    }
}

macro_rules! case {
    ($name:ident) => {
        case!($name,)
    };
    ($name:ident, $($need:ident),*) => {
        $crate::suite::Case {
            name: stringify!($name),
            needs: &[$($crate::harness::Need::$need),*],
            run: |stage| Box::pin($name(stage)),
        }
    };
}
pub(crate) use case;

/// The cases of transports.
#[must_use]
pub fn transport_cases() -> Vec<Case<Arc<dyn TransportSubject>>> {
    transport_cases::all()
        .into_iter()
        .map(|case| Case { name: case.name, needs: case.needs, run: case.run })
        .collect()
}

/// The cases of stores.
#[must_use]
pub fn store_cases<S: StoreSubject>() -> Vec<Case<Arc<S>>> {
    store_cases::all()
}

/// Collects cases over subjects and runs them as a test program.
pub struct Suite {
    trials: Vec<Trial>,
    deadline: Duration,
}

impl fmt::Debug for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Suite").field("cases", &self.trials.len()).finish_non_exhaustive()
    }
}
