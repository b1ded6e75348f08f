//! The errors of transports and stores: a kind, what was being done, where, and the cause.
//!
//! The runtime matches kinds and never downcasts. `Display` is one line and never repeats its source: print the chain
//! with [`report`].

use std::{error::Error, fmt};

/// A boxed error of any origin.
pub type BoxError = Box<dyn Error + Send + Sync + 'static>;

/// What went wrong at a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TransportErrorKind {
    /// The broker is not there, or the connection broke. Retry with backoff.
    Unavailable,
    /// The configuration cannot work: a wrong key, a missing topic, a value that contradicts another. Fatal.
    InvalidConfig,
    /// The topic, queue or subscription does not exist. Fatal.
    NotFound,
    /// The broker refused the credentials or the permission. Fatal.
    Unauthorized,
    /// The message is larger than the broker takes. Only the message is at fault.
    TooLarge,
    /// The broker did not take the message: unroutable, not confirmed, rejected.
    Rejected,
    /// The transport was closed by [`Transport::close`](crate::Transport::close).
    Closed,
    /// Anything else. Not retried blindly.
    Unexpected,
}

impl TransportErrorKind {
    /// Whether the same call may succeed later with nobody changing anything.
    #[must_use]
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::Unavailable)
    }
}

/// What went wrong at a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The database is not there, is shutting down, is read-only for now, is out of space or connections. Retry with
    /// backoff; no message is at fault.
    Unavailable,
    /// Serialization failure or deadlock. Retry with jitter; no message is at fault.
    Contention,
    /// A claim waited for another transaction longer than the bound. The transaction is gone and no id is named.
    ClaimTimeout,
    /// COMMIT was sent and its outcome is not known. The messages go through claim again.
    CommitUnknown,
    /// A statement failed inside the transaction and the handler swallowed the error: nothing can commit any more.
    TransactionAborted,
    /// The transaction is not the one that claimed: a handler sent COMMIT or ROLLBACK by itself. Fatal and loud.
    TransactionEscaped,
    /// The caller's own loop left a claimed id unresolved. Nothing was committed.
    Unresolved,
    /// The schema is missing, older or newer than this program. Fatal.
    Schema,
    /// The configuration cannot work: a wrong URL, a wrong option. Fatal.
    InvalidConfig,
    /// The database refused the credentials or a permission. Fatal.
    Unauthorized,
    /// Anything else. Not retried blindly.
    Unexpected,
}

impl StoreErrorKind {
    /// Whether the same work may succeed later with nobody changing anything.
    #[must_use]
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::Unavailable | Self::Contention | Self::ClaimTimeout | Self::CommitUnknown)
    }

    /// Whether no amount of retrying helps and the consumer must stop and say so.
    #[must_use]
    pub fn is_fatal(self) -> bool {
        matches!(self, Self::TransactionEscaped | Self::Schema | Self::InvalidConfig | Self::Unauthorized)
    }
}

macro_rules! error_type {
    ($(#[$doc:meta])* $name:ident, $kind:ident) => {
        $(#[$doc])*
        pub struct $name {
            kind: $kind,
            operation: &'static str,
            context: String,
            source: Option<BoxError>,
        }

        impl $name {
            /// An error of `kind` in `operation` (a method's name, `claim` or `receive`).
            #[must_use]
            pub fn new(kind: $kind, operation: &'static str) -> Self {
                Self { kind, operation, context: String::new(), source: None }
            }

            /// Adds what a reader needs to act: which object, which setting, what is accepted. Never a secret.
            #[must_use]
            pub fn context(mut self, context: impl Into<String>) -> Self {
                self.context = context.into();
                self
            }

            /// Adds the cause.
            #[must_use]
            pub fn source(mut self, source: impl Into<BoxError>) -> Self {
                self.source = Some(source.into());
                self
            }

            /// What went wrong.
            #[must_use]
            pub fn kind(&self) -> $kind {
                self.kind
            }

            /// What was being done.
            #[must_use]
            pub fn operation(&self) -> &'static str {
                self.operation
            }

            /// Whether the same call may succeed later with nobody changing anything.
            #[must_use]
            pub fn is_retryable(&self) -> bool {
                self.kind.is_retryable()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{} failed ({:?})", self.operation, self.kind)?;
                if self.context.is_empty() { Ok(()) } else { write!(f, ": {}", self.context) }
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name))
                    .field("kind", &self.kind)
                    .field("operation", &self.operation)
                    .field("context", &self.context)
                    .field("source", &self.source)
                    .finish()
            }
        }

        impl Error for $name {
            fn source(&self) -> Option<&(dyn Error + 'static)> {
                self.source.as_ref().map(|source| &**source as &(dyn Error + 'static))
            }
        }
    };
}

error_type!(
    /// An error of a [`Transport`](crate::Transport) or [`Publisher`](crate::Publisher).
    TransportError, TransportErrorKind
);
error_type!(
    /// An error of an [`InboxStore`](crate::InboxStore).
    StoreError, StoreErrorKind
);

/// Prints an error with all its causes on one line, `a: b: c`.
#[must_use]
pub fn report(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
