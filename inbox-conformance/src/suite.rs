//! The suite as a list of trials.

use std::{fmt, future::Future, pin::Pin, process::ExitCode, sync::Arc, time::Duration};

use inbox_core::BoxError;
use libtest_mimic::{Arguments, Completion, Trial};

use crate::{
    harness::{CaseResult, FullStoreSubject, Need, StoreSubject, TransportSubject, run_case},
    memory::MemoryStoreSubject,
};

/// A case that has not finished by then fails.
const DEADLINE: Duration = Duration::from_secs(60);
/// How many cases run at once, whatever the processors: most wait for a broker, a lease or an outage most of the time.
const THREADS: usize = 8;

pub(crate) type CaseFuture = Pin<Box<dyn Future<Output = CaseResult> + Send>>;

/// What a case works with, made afresh from its subjects.
pub(crate) trait Stage: Sized + Send {
    /// The subjects.
    type Subjects;
    fn set(subjects: Self::Subjects) -> impl Future<Output = Result<Self, BoxError>> + Send;
}

/// The test of one guarantee, over subjects `G`.
pub struct Case<G> {
    /// The name, which begins with the number of its guarantee.
    pub name: &'static str,
    /// What the subjects must have.
    pub needs: &'static [Need],
    pub(crate) run: fn(G) -> CaseFuture,
}

impl<G> Case<G> {
    /// The number of the guarantee, as `docs/CONTRACT.md` writes it: `T-03`.
    #[must_use]
    pub fn number(&self) -> String {
        format!("{}-{}", self.name[..1].to_uppercase(), &self.name[1..3])
    }

    /// Runs the case.
    ///
    /// # Errors
    /// Why it failed.
    pub fn run(&self, subjects: G, deadline: Duration) -> Result<(), String> {
        run_case((self.run)(subjects), deadline)
    }
}

impl<G> fmt::Debug for Case<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("name", &self.name).field("needs", &self.needs).finish_non_exhaustive()
    }
}

/// Makes [`Case`]s of async functions that take one kind of stage, each with what it needs.
macro_rules! cases {
    ($stage:ty: $($name:ident $([$($need:ident),*])?),* $(,)?) => {
        vec![$($crate::suite::Case {
            name: stringify!($name),
            needs: &[$($($crate::harness::Need::$need),*)?],
            run: |subjects| {
                Box::pin(async move { $name(<$stage as $crate::suite::Stage>::set(subjects).await?).await })
            },
        }),*]
    };
}
pub(crate) use cases;

/// The subjects of an end-to-end case.
pub type Pair<S> = (Arc<dyn TransportSubject>, Arc<S>);

/// The cases of transports.
#[must_use]
pub fn transport_cases() -> Vec<Case<Arc<dyn TransportSubject>>> {
    crate::transport_cases::all()
}

/// The cases of stores.
#[must_use]
pub fn store_cases<S: FullStoreSubject>() -> Vec<Case<Arc<S>>> {
    crate::store_cases::all()
}

/// Those of [`store_cases`] that need no more than an [`InboxStore`](inbox_core::InboxStore).
#[must_use]
pub fn claim_path_cases<S: StoreSubject>() -> Vec<Case<Arc<S>>> {
    crate::store_cases::claim_path()
}

/// The cases of the whole.
#[must_use]
pub fn end_to_end_cases<S: FullStoreSubject>() -> Vec<Case<Pair<S>>> {
    crate::end_to_end::all()
}

/// Collects cases over subjects and runs them as a test program.
pub struct Suite {
    trials: Vec<Trial>,
    deadline: Duration,
}

impl Suite {
    /// An empty suite.
    #[must_use]
    pub fn new() -> Self {
        Self { trials: Vec::new(), deadline: DEADLINE }
    }

    /// Gives each case added from here on another deadline than 60 seconds.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Adds the cases of transports over `subject`.
    #[must_use]
    pub fn transport<T: TransportSubject>(mut self, subject: &Arc<T>) -> Self {
        let subject: Arc<dyn TransportSubject> = Arc::clone(subject) as _;
        let label = subject.name().to_owned();
        for case in transport_cases() {
            let met = |need: Need| need.met_by_transport(&*subject);
            self.add(&label, case, Arc::clone(&subject), met);
        }
        self
    }

    /// Adds the cases of stores over `subject`.
    #[must_use]
    pub fn store<S: FullStoreSubject>(mut self, subject: &Arc<S>) -> Self {
        let label = subject.name().to_owned();
        for case in store_cases() {
            let met = |need: Need| need.met_by_store(subject.features());
            self.add(&label, case, Arc::clone(subject), met);
        }
        self
    }

    /// Adds the cases of stores over `subject`, whose store has the claim path only: enough for a consumer loop of one's
    /// own, not for an inbox. The cases of what it lacks are listed as ignored.
    #[must_use]
    pub fn claim_path<S: StoreSubject>(mut self, subject: &Arc<S>) -> Self {
        let label = subject.name().to_owned();
        for case in claim_path_cases() {
            let met = |need: Need| need.met_by_store(subject.features());
            self.add(&label, case, Arc::clone(subject), met);
        }
        // Their names and needs are the same over every store, and this one's type does not let them run.
        for case in crate::store_cases::beyond_the_claim_path::<MemoryStoreSubject>() {
            self.ignore(&label, &case, &case.needs.iter().map(Need::to_string).collect::<Vec<_>>());
        }
        self
    }

    /// Adds the end-to-end cases over a transport and a store.
    #[must_use]
    pub fn end_to_end<T: TransportSubject, S: FullStoreSubject>(mut self, transport: &Arc<T>, store: &Arc<S>) -> Self {
        let transport: Arc<dyn TransportSubject> = Arc::clone(transport) as _;
        let label = format!("{}+{}", transport.name(), store.name());
        for case in end_to_end_cases() {
            let met = |need: Need| need.met_by_transport(&*transport) && need.met_by_store(store.features());
            self.add(&label, case, (Arc::clone(&transport), Arc::clone(store)), met);
        }
        self
    }

    fn add<G: Send + 'static>(&mut self, label: &str, case: Case<G>, subjects: G, met: impl Fn(Need) -> bool) {
        let name = format!("{label}/{}", case.name);
        let lacking: Vec<String> = case.needs.iter().filter(|need| !met(**need)).map(Need::to_string).collect();
        if lacking.is_empty() {
            let deadline = self.deadline;
            self.trials.push(Trial::test(name, move || case.run(subjects, deadline).map_err(Into::into)));
            return;
        }
        self.ignore(label, &case, &lacking);
    }

    fn ignore<G>(&mut self, label: &str, case: &Case<G>, lacking: &[String]) {
        let reason = format!("lacks {}", lacking.join(", "));
        let name = format!("{label}/{} [{reason}]", case.name);
        let trial = Trial::ignorable_test(name, || Ok(Completion::ignored_with(reason)));
        self.trials.push(trial.with_ignored_flag(true));
    }

    /// Runs what the command line asks for, as any test program does; without `--test-threads` eight cases at once, those
    /// of one number beside each other: over several brokers none has all the load.
    #[must_use]
    pub fn run(mut self) -> ExitCode {
        let mut arguments = Arguments::from_args();
        arguments.test_threads.get_or_insert(THREADS);
        self.trials.sort_by(|a, b| case_of(a).cmp(case_of(b)));
        libtest_mimic::run(&arguments, self.trials).exit_code()
    }
}

/// The case's name, without what it runs over.
fn case_of(trial: &Trial) -> &str {
    trial.name().rsplit('/').next().unwrap_or_default()
}

impl Default for Suite {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Suite").field("cases", &self.trials.len()).finish_non_exhaustive()
    }
}
