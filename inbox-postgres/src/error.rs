//! From what sqlx says to what the contract says. SQLSTATE, never error text.

use std::{error::Error, sync::Arc};

use inbox_core::{Blame, StoreError, StoreErrorKind};
use sqlx::postgres::{PgDatabaseError, PgSeverity};

/// What a person does about missing tables.
pub(crate) const HOW_TO_MIGRATE: &str =
    "call `store.migrate().await` once, or configure the store with `.migrate_on_start(true)`";

/// The SQLSTATE of what the server answered.
pub(crate) fn code(error: &sqlx::Error) -> Option<&str> {
    answer(error).map(PgDatabaseError::code)
}

/// What the server answered, if it was the server.
pub(crate) fn answer(error: &sqlx::Error) -> Option<&PgDatabaseError> {
    error.as_database_error().and_then(|error| error.try_downcast_ref())
}

/// Whether the server answered, and did not end the connection by it: an ERROR has undone its statement.
pub(crate) fn is_answer(error: &sqlx::Error) -> bool {
    answer(error).is_some_and(|error| error.severity() == PgSeverity::Error)
}

/// Whether the connection is gone for certain: sqlx finds that out as well, and does not use it again.
pub(crate) fn is_lost(error: &sqlx::Error) -> bool {
    match answer(error) {
        Some(answer) => answer.severity() != PgSeverity::Error,
        None => matches!(error, sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::PoolClosed),
    }
}

/// Wraps an error of one of the store's own statements.
pub(crate) fn store_error(operation: &'static str, error: sqlx::Error) -> StoreError {
    let kind = kind_of(&error);
    let context = match kind {
        StoreErrorKind::Schema => format!("the inbox's tables are missing or of another version; {HOW_TO_MIGRATE}"),
        StoreErrorKind::TransactionAborted if code(&error) == Some("25006") => {
            "a handler has made the transaction read-only".to_owned()
        }
        StoreErrorKind::TransactionAborted => {
            "a statement failed and its error was swallowed; return it with `?`, or use a savepoint".to_owned()
        }
        _ => String::new(),
    };
    StoreError::new(kind, operation).context(context).source(error)
}

/// The kind of an error of one of the store's own statements.
pub(crate) fn kind_of(error: &sqlx::Error) -> StoreErrorKind {
    let Some(code) = code(error) else {
        return match error {
            sqlx::Error::Configuration(_) => StoreErrorKind::InvalidConfig,
            other if is_infrastructure(other) => StoreErrorKind::Unavailable,
            _ => StoreErrorKind::Unexpected,
        };
    };
    match code {
        "40001" | "40P01" => StoreErrorKind::Contention,
        "25P02" => StoreErrorKind::TransactionAborted,
        // Every BEGIN of ours that writes says READ WRITE, so a handler has changed that.
        "25006" => StoreErrorKind::TransactionAborted,
        // A cancelled statement, and BEGIN READ WRITE at a standby.
        "57014" | "0A000" => StoreErrorKind::Unavailable,
        "42P01" | "42703" | "3F000" => StoreErrorKind::Schema,
        "3D000" => StoreErrorKind::InvalidConfig,
        "42501" => StoreErrorKind::Unauthorized,
        code if code.starts_with("28") => StoreErrorKind::Unauthorized,
        code if is_infrastructure_code(code) => StoreErrorKind::Unavailable,
        _ => StoreErrorKind::Unexpected,
    }
}

/// Whose fault an error of a handler is.
pub(crate) fn blame(error: &(dyn Error + 'static)) -> Blame {
    let mut cause = Some(error);
    while let Some(error) = cause {
        // The `source` of an `Arc` is that of what it holds, which would be passed over.
        let shared = error.downcast_ref::<Arc<sqlx::Error>>().map(|error| &**error);
        if let Some(error) = shared.or_else(|| error.downcast_ref::<sqlx::Error>()) {
            return match code(error) {
                Some(code) => blame_code(code),
                None if is_infrastructure(error) => Blame::Infrastructure,
                None => Blame::Message,
            };
        }
        if let Some(error) = error.downcast_ref::<PgDatabaseError>() {
            return blame_code(error.code());
        }
        cause = error.source();
    }
    Blame::Message
}

fn blame_code(code: &str) -> Blame {
    match code {
        "40001" | "40P01" => Blame::Contention,
        "25P02" => Blame::Unpinned,
        // No outage: our BEGIN says READ WRITE, and a standby refuses that one.
        "25006" => Blame::Message,
        code if is_infrastructure_code(code) => Blame::Infrastructure,
        _ => Blame::Message,
    }
}

fn is_infrastructure_code(code: &str) -> bool {
    // Connection; insufficient resources; shutdown, crash, starting up, idle session ended; a transaction ended for
    // having been idle or open too long; the disk; lock not had.
    code.starts_with("08")
        || code.starts_with("53")
        || code.starts_with("57P")
        || matches!(code, "25P03" | "25P04" | "58030" | "55P03")
}

fn is_infrastructure(error: &sqlx::Error) -> bool {
    matches!(
        error,
        sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed
            | sqlx::Error::BeginFailed
    )
}
