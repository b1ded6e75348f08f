//! What users write. Knows the transaction only as a type parameter.

use std::{fmt, future::Future};

use bytes::Bytes;
use serde::de::DeserializeOwned;

use crate::{
    error::{BoxError, report},
    message::Message,
};

/// Handles messages of one kind, in the inbox's transaction.
///
/// Implemented for `async fn(E, &mut Tx) -> Result<(), HandlerError>` and for closures of that shape that capture
/// nothing; implement it for a struct of your own when the handler needs state, or use
/// [`on_with`](crate::InboxBuilder::on_with).
///
/// # What a handler must not do
/// - commit or roll back by SQL: the batch is undone and the consumer stops;
/// - swallow the error of a failed statement: on PostgreSQL the transaction cannot commit any more and the message counts
///   as failed; on SQLite only the statement is undone and the rest commits;
/// - leave session state behind (`SET` without `LOCAL`, session-level advisory locks): it reaches later messages;
/// - rely on an effect outside the database happening once: it is repeated when the transaction is.
///
/// # Cancel safety
/// The future is dropped at an await when the handler overruns its timeout; the transaction is rolled back then.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler of `{E}` for this store",
    label = "not a handler",
    note = "a handler is `async fn(event: E, tx: &mut Tx) -> Result<(), HandlerError>`, where `Tx` is the transaction \
            of the store and `E` is `Deserialize`, `Message<_>` or `Raw`",
    note = "closures must not capture: use `.on_with(state, kind, handler)` or implement `Handler` for a struct"
)]
pub trait Handler<E, Tx>: Send + Sync + 'static {
    /// Handles one message. `Ok` means that its effect is in the transaction.
    fn handle<'a>(&'a self, event: E, tx: &'a mut Tx) -> impl Future<Output = Result<(), HandlerError>> + Send + 'a;
}

/// An async function that can be a [`Handler`]; never named by users.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler of `{E}` for this store",
    label = "not a handler",
    note = "a handler is `async fn(event: E, tx: &mut Tx) -> Result<(), HandlerError>`, where `Tx` is the transaction \
            of the store and `E` is `Deserialize`, `Message<_>` or `Raw`",
    note = "closures must not capture: use `.on_with(state, kind, handler)` or implement `Handler` for a struct"
)]
pub trait HandlerFn<'a, E, Tx: 'a>: Send + Sync {
    /// The function's future. That it is `Send` is asked for where the function is used: so the compiler names the value
    /// that is not.
    type Future: Future<Output = Result<(), HandlerError>> + 'a;
    /// Calls the function.
    fn call(&self, event: E, tx: &'a mut Tx) -> Self::Future;
}

// Where a signature is wrong the compiler says so; where it only finds some bound unmet it names the trait instead.
#[diagnostic::do_not_recommend]
impl<'a, E, Tx: 'a, F, Fut> HandlerFn<'a, E, Tx> for F
where
    F: Fn(E, &'a mut Tx) -> Fut + Send + Sync,
    Fut: Future<Output = Result<(), HandlerError>> + 'a,
{
    type Future = Fut;
    fn call(&self, event: E, tx: &'a mut Tx) -> Fut {
        self(event, tx)
    }
}

impl<E: Send + 'static, Tx: 'static, F> Handler<E, Tx> for F
where
    F: for<'a> HandlerFn<'a, E, Tx, Future: Send> + 'static,
{
    fn handle<'a>(&'a self, event: E, tx: &'a mut Tx) -> impl Future<Output = Result<(), HandlerError>> + Send + 'a {
        self.call(event, tx)
    }
}

/// An async function with shared state before its event; never named by users.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler of `{E}` with the state `{S}` for this store",
    label = "not a handler with state",
    note = "a handler with state is `async fn(state: S, event: E, tx: &mut Tx) -> Result<(), HandlerError>`, where `Tx` is \
            the transaction of the store and `E` is `Deserialize`, `Message<_>` or `Raw`",
    note = "closures must not capture: put what they need into the state"
)]
pub trait StatefulFn<'a, S, E, Tx: 'a>: Send + Sync {
    /// The function's future.
    type Future: Future<Output = Result<(), HandlerError>> + 'a;
    /// Calls the function.
    fn call(&self, state: S, event: E, tx: &'a mut Tx) -> Self::Future;
}

#[diagnostic::do_not_recommend]
impl<'a, S, E, Tx: 'a, F, Fut> StatefulFn<'a, S, E, Tx> for F
where
    F: Fn(S, E, &'a mut Tx) -> Fut + Send + Sync,
    Fut: Future<Output = Result<(), HandlerError>> + 'a,
{
    type Future = Fut;
    fn call(&self, state: S, event: E, tx: &'a mut Tx) -> Fut {
        self(state, event, tx)
    }
}

/// What the dispatcher calls: a handler, or a function with its state. A trait of its own over newtypes, because a
/// second blanket impl of [`Handler`] would collide with the first (E0119).
pub(crate) trait Call<E, Tx>: Send + Sync + 'static {
    fn call<'a>(&'a self, event: E, tx: &'a mut Tx) -> impl Future<Output = Result<(), HandlerError>> + Send + 'a;
}

pub(crate) struct Plain<H>(pub(crate) H);

impl<E, Tx, H: Handler<E, Tx>> Call<E, Tx> for Plain<H> {
    fn call<'a>(&'a self, event: E, tx: &'a mut Tx) -> impl Future<Output = Result<(), HandlerError>> + Send + 'a {
        self.0.handle(event, tx)
    }
}

pub(crate) struct WithState<S, F>(pub(crate) S, pub(crate) F);

impl<S, E, Tx, F> Call<E, Tx> for WithState<S, F>
where
    S: Clone + Send + Sync + 'static,
    E: Send + 'static,
    Tx: 'static,
    F: for<'a> StatefulFn<'a, S, E, Tx, Future: Send> + 'static,
{
    fn call<'a>(&'a self, event: E, tx: &'a mut Tx) -> impl Future<Output = Result<(), HandlerError>> + Send + 'a {
        self.1.call(self.0.clone(), event, tx)
    }
}

/// Why a handler did not succeed. Any error becomes *retry* through `?`; only [`reject`](Self::reject) gives up.
///
/// It does not implement [`std::error::Error`], or the conversion by `?` could not exist.
pub struct HandlerError {
    error: BoxError,
    rejected: bool,
}

impl HandlerError {
    /// The message is to be tried again. `?` does the same for every `std::error::Error`; this takes strings and
    /// `anyhow::Error` too.
    #[must_use]
    pub fn retry(error: impl Into<BoxError>) -> Self {
        Self { error: error.into(), rejected: false }
    }

    /// No attempt can succeed: the message is quarantined, its effects in this transaction are undone.
    #[must_use]
    pub fn reject(reason: impl Into<BoxError>) -> Self {
        Self { error: reason.into(), rejected: true }
    }

    /// Whether the handler gave up on the message.
    #[must_use]
    pub fn is_rejected(&self) -> bool {
        self.rejected
    }

    /// The cause.
    #[must_use]
    pub fn cause(&self) -> &(dyn std::error::Error + 'static) {
        &*self.error
    }
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for HandlerError {
    fn from(error: E) -> Self {
        Self { error: Box::new(error), rejected: false }
    }
}

impl fmt::Debug for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.rejected { "reject" } else { "retry" };
        write!(f, "HandlerError({verdict}: {})", report(&*self.error))
    }
}

/// A handler's first argument: made from a message before the handler runs.
///
/// Implemented for every `DeserializeOwned` (the body as JSON), for [`Message<E>`] when id, headers or attempt are
/// wanted, and for [`Raw`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be made from a message",
    label = "its handler's first argument, the event, is `{Self}`",
    note = "a handler is `async fn(event: E, tx: &mut Tx) -> Result<(), HandlerError>`",
    note = "derive `serde::Deserialize` for the event (JSON bodies), or take `Message<E>` or `Raw` and decode it yourself"
)]
pub trait FromMessage: Sized + Send + 'static {
    /// Decodes the message.
    ///
    /// # Errors
    /// Anything that says what was expected: the message goes to the policy for undecodable ones, it is not retried.
    fn from_message(message: &Message) -> Result<Self, BoxError>;
}

impl<E: DeserializeOwned + Send + 'static> FromMessage for E {
    fn from_message(message: &Message) -> Result<Self, BoxError> {
        serde_json::from_slice(&message.body).map_err(|error| {
            let name = std::any::type_name::<E>();
            let hint = if name.ends_with("String") || name.contains("Vec<u8>") {
                "; for the bytes as they came take `Raw`"
            } else {
                ""
            };
            format!("the body is not JSON of {name}: {error}{hint}").into()
        })
    }
}

impl<E: FromMessage> FromMessage for Message<E> {
    fn from_message(message: &Message) -> Result<Self, BoxError> {
        Ok(message.with_body(E::from_message(message)?))
    }
}

/// The body as it came, not decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raw(pub Bytes);

impl FromMessage for Raw {
    fn from_message(message: &Message) -> Result<Self, BoxError> {
        Ok(Self(message.body.clone()))
    }
}
