//! What a transport or a store brings to be tested, and what cases are written with.

use std::{
    fmt,
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use inbox_core::{
    BoxError, HandlerError, InboxStore, Publisher, Transport,
    capability::{Capabilities, Ordering},
    failure_store::FailureStore,
    maintenance::Maintenance,
    operator::Operator,
};
use tokio::time::Instant;
use uuid::Uuid;

/// How a case ends.
pub type CaseResult = Result<(), BoxError>;

/// A transport to be tested. It holds addresses, not connections: each case runs on a runtime of its own.
#[async_trait]
pub trait TransportSubject: Send + Sync + 'static {
    /// The name in the labels of cases, e.g. `kafka`.
    fn name(&self) -> &str;

    /// What its transports will say of themselves, without connecting.
    fn capabilities(&self) -> Capabilities;

    /// Whether [`Link::break_sessions`] works.
    fn can_break_sessions(&self) -> bool {
        false
    }

    /// Whether the server that is tested against keeps the order of a key when a consumer dies. One that stands in for a
    /// real one may hand later messages on before those of the dead consumer come again.
    fn keeps_order_after_a_crash(&self) -> bool {
        true
    }

    /// Whether [`Link::lose_lease`] works.
    fn can_lose_leases(&self) -> bool {
        false
    }

    /// Whether any number of messages of one key can be held at once. A FIFO queue of SQS gives out nothing more of a key
    /// while something of it is held.
    fn holds_many_of_a_key(&self) -> bool {
        true
    }

    /// Whether the broker, when a message is given back, delivers anew all that follows it of its key, acknowledged or not, as
    /// Pub/Sub says of its ordered subscriptions.
    fn delivers_acked_anew(&self) -> bool {
        false
    }

    /// A topic that nobody else uses, empty, and a group that has read nothing of it.
    ///
    /// # Errors
    /// When the broker is not there: the case fails.
    async fn fresh(&self) -> Result<Arc<dyn Link>, BoxError>;
}

/// One fresh topic at a broker.
#[async_trait]
pub trait Link: Send + Sync + 'static {
    /// One more consumer of the topic's own group.
    ///
    /// # Errors
    /// Fails the case.
    async fn connect(&self) -> Result<Arc<dyn Transport>, BoxError>;

    /// A consumer of another group, which reads the topic from its start.
    ///
    /// # Errors
    /// Fails the case.
    async fn connect_group(&self, group: &str) -> Result<Arc<dyn Transport>, BoxError>;

    /// A publisher to the topic.
    ///
    /// # Errors
    /// Fails the case.
    async fn publisher(&self) -> Result<Arc<dyn Publisher>, BoxError>;

    /// Breaks the session of every transport made by [`connect`](Self::connect), as a broken connection or a revoke
    /// would; the transports make new ones by themselves.
    ///
    /// # Errors
    /// Fails the case. Called only where [`TransportSubject::can_break_sessions`].
    async fn break_sessions(&self) -> Result<(), BoxError>;

    /// Ends the lease of one delivery, that of the message which was published as number `place` of the topic (from 0),
    /// while the session of the consumer that holds it lives on.
    ///
    /// # Errors
    /// Fails the case. Called only where [`TransportSubject::can_lose_leases`].
    async fn lose_lease(&self, place: usize) -> Result<(), BoxError> {
        Err(format!("this subject cannot end the lease of message {place}").into())
    }

    /// How many messages of the topic its own group has not acked, as the broker sees it.
    ///
    /// # Errors
    /// Fails the case.
    async fn backlog(&self) -> Result<u64, BoxError>;
}

/// The transaction type of a subject's store.
pub type Tx<S> = <<S as StoreSubject>::Store as InboxStore>::Tx;

/// A store to be tested. It holds addresses, not connections: each case runs on a runtime of its own.
///
/// Effects are rows of a table of the subject's own: a scope, a text, and a number in the order of insertion.
pub trait StoreSubject: Send + Sync + 'static {
    /// The store. With the claim path alone it is tested by [`Suite::claim_path`](crate::Suite::claim_path); the other
    /// cases need a [`FullStoreSubject`].
    type Store: InboxStore;

    /// The name in the labels of cases, e.g. `postgres`.
    fn name(&self) -> &str;

    /// What this store does not have.
    fn features(&self) -> StoreFeatures {
        StoreFeatures::default()
    }

    /// A store object on the database that all of them share, migrated; another call is another process's.
    fn open(&self) -> impl Future<Output = Result<Arc<Self::Store>, BoxError>> + Send;

    /// Inserts one effect row.
    fn apply(
        &self,
        tx: &mut Tx<Self>,
        scope: &str,
        effect: &str,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// The effects of a scope that are committed, in the order in which they were inserted.
    fn effects(&self, scope: &str) -> impl Future<Output = Result<Vec<String>, BoxError>> + Send;

    /// A statement that fails, after which the transaction cannot commit. Returns its error.
    fn failing_statement(&self, tx: &mut Tx<Self>) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// `COMMIT`, sent as SQL.
    fn raw_commit(&self, tx: &mut Tx<Self>) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// `ROLLBACK`, sent as SQL.
    fn raw_rollback(&self, tx: &mut Tx<Self>) -> impl Future<Output = Result<(), HandlerError>> + Send;
}

/// A subject whose store has all of the contract, so that an inbox can run on it. Implemented for every such subject.
pub trait FullStoreSubject: StoreSubject<Store: FailureStore + Maintenance + Operator> {}

impl<S: StoreSubject<Store: FailureStore + Maintenance + Operator>> FullStoreSubject for S {}

/// What a store may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreFeatures {
    /// Whether two transactions can be open at once. Where there is one writer, `begin` is what waits.
    pub concurrent: bool,
    /// Whether a statement that fails aborts its transaction, as in PostgreSQL. Where only the statement is undone, a
    /// handler that swallows the error has made its choice.
    pub statements_abort: bool,
    /// Whether a handler can send COMMIT and ROLLBACK by SQL at all.
    pub raw_transaction_control: bool,
}

impl Default for StoreFeatures {
    fn default() -> Self {
        Self { concurrent: true, statements_abort: true, raw_transaction_control: true }
    }
}

/// What a case needs of its subject beyond the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Messages of one key come in order.
    Ordering,
    /// Messages of one key come in order and never to two consumers at once.
    ExclusiveKeys,
    /// The suite can break sessions.
    BreakSessions,
    /// The suite can end the lease of a single delivery.
    LoseLeases,
    /// Any number of messages of one key can be held at once.
    ManyOfAKey,
    /// Handlers can send COMMIT and ROLLBACK by SQL.
    RawTransactionControl,
    /// A statement that fails aborts its transaction.
    StatementsAbort,
    /// Two transactions can be open at once.
    ConcurrentTransactions,
    /// The store remembers failures.
    FailureStore,
    /// The store makes and counts its tables.
    Maintenance,
    /// The store shows itself to people.
    Operator,
}

impl Need {
    /// Whether `transport` has it; `true` for needs that are not a transport's.
    #[must_use]
    pub fn met_by_transport(self, transport: &dyn TransportSubject) -> bool {
        let capabilities = transport.capabilities();
        match self {
            Self::Ordering => capabilities.ordering != Ordering::None,
            Self::ExclusiveKeys => capabilities.ordering != Ordering::None && capabilities.exclusive_keys,
            Self::BreakSessions => transport.can_break_sessions(),
            Self::LoseLeases => transport.can_lose_leases(),
            Self::ManyOfAKey => transport.holds_many_of_a_key(),
            Self::RawTransactionControl | Self::StatementsAbort | Self::ConcurrentTransactions => true,
            Self::FailureStore | Self::Maintenance | Self::Operator => true,
        }
    }

    /// Whether a store of these features has it; `true` for needs that are not a store's, or that its type says.
    #[must_use]
    pub fn met_by_store(self, features: StoreFeatures) -> bool {
        match self {
            Self::RawTransactionControl => features.raw_transaction_control,
            Self::StatementsAbort => features.statements_abort,
            Self::ConcurrentTransactions => features.concurrent,
            Self::Ordering | Self::ExclusiveKeys | Self::BreakSessions | Self::LoseLeases | Self::ManyOfAKey => true,
            Self::FailureStore | Self::Maintenance | Self::Operator => true,
        }
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ordering => "ordering",
            Self::ExclusiveKeys => "exclusive_keys",
            Self::BreakSessions => "break_sessions",
            Self::LoseLeases => "lose_leases",
            Self::ManyOfAKey => "many_of_a_key",
            Self::RawTransactionControl => "raw_transaction_control",
            Self::StatementsAbort => "statements_abort",
            Self::ConcurrentTransactions => "concurrent_transactions",
            Self::FailureStore => "failure_store",
            Self::Maintenance => "maintenance",
            Self::Operator => "operator",
        })
    }
}

/// Fails the case with a sentence unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($holds:expr, $($text:tt)+) => {
        if !$holds {
            return Err(format!($($text)+).into());
        }
    };
}

/// Fails the case unless both sides are equal.
#[macro_export]
macro_rules! ensure_eq {
    ($left:expr, $right:expr, $($text:tt)+) => {
        match (&$left, &$right) {
            (left, right) => {
                if left != right {
                    return Err(format!("{}: {left:?} is not {right:?}", format_args!($($text)+)).into());
                }
            }
        }
    };
}

tokio::task_local! {
    static WAITING: Notes;
}

#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    fn with<T>(&self, with: impl FnOnce(&mut Vec<String>) -> T) -> T {
        with(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Notes what a future waits for, so that a case that meets its deadline can say it.
pub async fn waiting<T>(what: impl Into<String>, future: impl Future<Output = T>) -> T {
    let notes = WAITING.try_with(Clone::clone).unwrap_or_default();
    notes.with(|notes| notes.push(what.into()));
    let done = future.await;
    notes.with(Vec::pop);
    done
}

/// Waits until `holds` says so, asking it again and again.
///
/// # Errors
/// That of `holds`.
pub async fn until<F>(what: impl Into<String>, mut holds: impl FnMut() -> F) -> CaseResult
where
    F: Future<Output = Result<bool, BoxError>>,
{
    waiting(what, async {
        while !holds().await? {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    })
    .await
}

/// Runs one case on a runtime of its own.
///
/// # Errors
/// What the case says; that it panicked; or, after `deadline`, what it waited for.
pub fn run_case(case: impl Future<Output = CaseResult> + Send + 'static, deadline: Duration) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| format!("no Tokio runtime: {error}"))?;
    let notes = Notes::default();
    let outcome = runtime.block_on(async {
        let began = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(WAITING.scope(notes.clone(), case));
        match tokio::time::timeout(deadline, tasks.join_next()).await {
            Ok(Some(Ok(outcome))) => outcome.map_err(|error| inbox_core::report(&*error)),
            Ok(Some(Err(error))) => Err(panic_text(error)),
            Ok(None) => Err("the case's task vanished".to_owned()),
            Err(_) => {
                let waited = notes.with(|notes| notes.join(", in it "));
                Err(format!("nothing after {} s, waiting for {waited}", began.elapsed().as_secs()))
            }
        }
    });
    // A client's thread that hangs must not hang the suite.
    runtime.shutdown_timeout(Duration::from_secs(5));
    outcome
}

fn panic_text(error: tokio::task::JoinError) -> String {
    match error.try_into_panic() {
        Ok(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            format!("panicked: {}", text.unwrap_or("no text"))
        }
        Err(error) => error.to_string(),
    }
}

/// A name that no other case and no other run uses.
#[must_use]
pub fn unique(prefix: &str) -> String {
    format!("{prefix}-{}", Uuid::now_v7().simple())
}
