//! From messages to handlers: which handler takes a kind, and one erased call a run of messages of one kind.

use std::{
    any::Any,
    collections::{HashMap, HashSet},
    fmt,
    marker::PhantomData,
    panic::AssertUnwindSafe,
    sync::Arc,
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::{
    error::BoxError,
    handler::{Call, FromMessage, HandlerError},
    message::Message,
    observe,
    transport::Receipt,
};

/// One message of a run.
pub(crate) struct Work<'a> {
    pub(crate) message: &'a Message,
    /// The receipt of its delivery; `None` for a message that came without a broker.
    pub(crate) receipt: Option<&'a Receipt>,
}

/// Bounds of a run.
pub(crate) struct RunLimits<'a> {
    pub(crate) handler_timeout: Duration,
    /// No handler starts after this, except the first one of a transaction.
    pub(crate) deadline: Instant,
    /// Whether a handler has already run in this transaction.
    pub(crate) started: bool,
    /// No handler starts any more.
    pub(crate) cut: &'a CancellationToken,
    /// Running handlers are dropped.
    pub(crate) abort: &'a CancellationToken,
}

/// How far a run came: `outcomes` of the first messages, and why it stopped at the next one.
pub(crate) struct RunEnd {
    pub(crate) outcomes: Vec<Ran>,
    pub(crate) stop: Option<Stop>,
}

/// What became of a message that did not stop its run.
pub(crate) enum Ran {
    Done,
    Undecodable(BoxError),
}

/// Why a run stopped.
pub(crate) enum Stop {
    /// Time is up, the session is ending, or shutdown: the message did not start.
    Cut,
    /// The message's handler failed.
    Failed(HandlerFailure),
    /// The handler was dropped because the shutdown deadline passed.
    Aborted,
}

/// How a handler failed.
pub(crate) enum HandlerFailure {
    Error(HandlerError),
    Panic(String),
    Timeout(Duration),
}

impl HandlerFailure {
    pub(crate) fn is_rejected(&self) -> bool {
        match self {
            Self::Error(error) => error.is_rejected(),
            Self::Panic(_) | Self::Timeout(_) => false,
        }
    }

    pub(crate) fn cause(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Error(error) => Some(error.cause()),
            Self::Panic(_) | Self::Timeout(_) => None,
        }
    }
}

impl fmt::Display for HandlerFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(error) => f.write_str(&crate::error::report(error.cause())),
            Self::Panic(text) => write!(f, "the handler panicked: {text}"),
            Self::Timeout(limit) => write!(f, "the handler ran longer than its timeout of {limit:?}"),
        }
    }
}

/// Serves one-message and batch handlers alike: a run of messages in one boxed future.
pub(crate) trait Dispatch<Tx>: Send + Sync {
    fn run<'a>(&'a self, run: &'a [Work<'a>], tx: &'a mut Tx, limits: RunLimits<'a>) -> BoxFuture<'a, RunEnd>;
}

/// A handler of one message at a time.
struct OneByOne<H, E>(H, PhantomData<fn(E)>);

impl<H, E, Tx> Dispatch<Tx> for OneByOne<H, E>
where
    H: Call<E, Tx>,
    E: FromMessage,
    Tx: Send + 'static,
{
    fn run<'a>(&'a self, run: &'a [Work<'a>], tx: &'a mut Tx, limits: RunLimits<'a>) -> BoxFuture<'a, RunEnd> {
        Box::pin(async move {
            let mut outcomes = Vec::with_capacity(run.len());
            let mut started = limits.started;
            for work in run {
                let ending = work.receipt.is_some_and(Receipt::is_ending);
                if ending || limits.cut.is_cancelled() || (started && Instant::now() >= limits.deadline) {
                    return RunEnd { outcomes, stop: Some(Stop::Cut) };
                }
                let event = match decode::<E>(work.message) {
                    Ok(event) => event,
                    Err(error) => {
                        outcomes.push(Ran::Undecodable(error));
                        continue;
                    }
                };
                started = true;
                match self.one(event, work.message, tx, &limits).await {
                    Ok(()) => outcomes.push(Ran::Done),
                    Err(stop) => return RunEnd { outcomes, stop: Some(stop) },
                }
            }
            RunEnd { outcomes, stop: None }
        })
    }
}

impl<H, E> OneByOne<H, E> {
    async fn one<Tx>(&self, event: E, message: &Message, tx: &mut Tx, limits: &RunLimits<'_>) -> Result<(), Stop>
    where
        H: Call<E, Tx>,
        E: FromMessage,
        Tx: Send + 'static,
    {
        let span = tracing::debug_span!(
            observe::HANDLE_SPAN,
            message_id = %message.message_id(),
            kind = message.kind.as_deref().unwrap_or_default(),
            attempt = message.attempt(),
            traceparent = message.headers.get_str("traceparent").unwrap_or_default(),
        );
        // A handler may panic before its first await, too: so the call itself is inside the guarded future.
        let guarded = AssertUnwindSafe(async { self.0.call(event, tx).await }).catch_unwind().instrument(span);
        tokio::select! {
            biased;
            ended = tokio::time::timeout(limits.handler_timeout, guarded) => match ended {
                Ok(Ok(Ok(()))) => Ok(()),
                Ok(Ok(Err(error))) => Err(Stop::Failed(HandlerFailure::Error(error))),
                Ok(Err(panic)) => Err(Stop::Failed(HandlerFailure::Panic(panic_text(&*panic)))),
                Err(_) => Err(Stop::Failed(HandlerFailure::Timeout(limits.handler_timeout))),
            },
            () = limits.abort.cancelled() => Err(Stop::Aborted),
        }
    }
}

/// Decodes; a decoder that panics has not decoded.
fn decode<E: FromMessage>(message: &Message) -> Result<E, BoxError> {
    std::panic::catch_unwind(AssertUnwindSafe(|| E::from_message(message)))
        .unwrap_or_else(|panic| Err(format!("the decoder panicked: {}", panic_text(&*panic)).into()))
}

pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}

/// Which handler takes which kind.
pub(crate) struct Routes<Tx> {
    handlers: Vec<Arc<dyn Dispatch<Tx>>>,
    by_kind: HashMap<String, usize>,
    any: Option<usize>,
    pub(crate) ignored: HashSet<String>,
    pub(crate) repeated: Vec<String>,
}

/// Where a message goes.
pub(crate) enum Route {
    Handler(usize),
    Ignored,
    Unrouted,
}

impl<Tx: Send + 'static> Routes<Tx> {
    pub(crate) fn new() -> Self {
        Self { handlers: Vec::new(), by_kind: HashMap::new(), any: None, ignored: HashSet::new(), repeated: Vec::new() }
    }

    /// Adds a handler of `kind`; of every kind that has none of its own when `None`.
    pub(crate) fn add<E: FromMessage>(&mut self, kind: Option<String>, handler: impl Call<E, Tx>) {
        let at = self.handlers.len();
        self.handlers.push(Arc::new(OneByOne(handler, PhantomData::<fn(E)>)));
        match kind {
            Some(kind) => {
                if self.by_kind.insert(kind.clone(), at).is_some() {
                    self.repeated.push(kind);
                }
            }
            None => {
                if self.any.replace(at).is_some() {
                    self.repeated.push("any kind".to_owned());
                }
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.handlers.is_empty()
    }

    pub(crate) fn route(&self, kind: Option<&str>) -> Route {
        if let Some(kind) = kind {
            if let Some(at) = self.by_kind.get(kind) {
                return Route::Handler(*at);
            }
            if self.ignored.contains(kind) {
                return Route::Ignored;
            }
        }
        self.any.map_or(Route::Unrouted, Route::Handler)
    }

    pub(crate) fn kinds(&self) -> Vec<&str> {
        let mut kinds: Vec<&str> = self.by_kind.keys().map(String::as_str).collect();
        kinds.sort_unstable();
        kinds
    }

    pub(crate) fn handler(&self, at: usize) -> &dyn Dispatch<Tx> {
        &*self.handlers[at]
    }
}
