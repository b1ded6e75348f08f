//! From what tokio-postgres says to what the contract says. SQLSTATE, never error text.

use std::{error::Error, io};

use deadpool_postgres::PoolError;
use inbox_core::{Blame, StoreError, StoreErrorKind};
use tokio_postgres::error::{DbError, Severity, SqlState};

use crate::tx::Refused;

pub(crate) fn code(error: &tokio_postgres::Error) -> Option<&str> {
    error.code().map(SqlState::code)
}

/// Whether the server answered, and did not end the connection by it: an ERROR has undone its statement.
pub(crate) fn is_answer(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_some_and(|answer| answer.parsed_severity() == Some(Severity::Error))
}

/// Whether the connection is gone, or never was: not what a statement's own values may cause, such as text with a NUL.
pub(crate) fn is_lost(error: &tokio_postgres::Error) -> bool {
    if error.as_db_error().is_some() {
        return !is_answer(error);
    }
    let io = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
    let of_values =
        |error: &io::Error| matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData);
    error.is_closed() || io.is_some_and(|error| !of_values(error))
}

/// Wraps an error of one of the store's own statements.
pub(crate) fn refused(operation: &'static str, refused: Refused) -> StoreError {
    let error = match refused {
        Refused::Said(error) => error,
        Refused::NoAnswer(within) => {
            return StoreError::new(StoreErrorKind::Unavailable, operation)
                .context(format!("no answer within {within:?}; the connection will be closed"));
        }
    };
    let kind = kind_of(&error);
    let context = match kind {
        StoreErrorKind::Schema => {
            "the inbox's tables are missing or of another version; `PgInboxStore::migrate` makes them"
        }
        StoreErrorKind::TransactionAborted => "a statement failed and its error was swallowed",
        _ => "",
    };
    StoreError::new(kind, operation).context(context).source(error)
}

/// The kind of an error of one of the store's own statements.
pub(crate) fn kind_of(error: &tokio_postgres::Error) -> StoreErrorKind {
    match code(error) {
        None if is_lost(error) => StoreErrorKind::Unavailable,
        None => StoreErrorKind::Unexpected,
        Some("40001" | "40P01") => StoreErrorKind::Contention,
        // 25006: our BEGIN says READ WRITE, so a handler has changed that.
        Some("25P02" | "25006") => StoreErrorKind::TransactionAborted,
        Some("57014" | "0A000") => StoreErrorKind::Unavailable,
        Some("42P01" | "42703" | "3F000") => StoreErrorKind::Schema,
        Some("3D000") => StoreErrorKind::InvalidConfig,
        Some("42501") => StoreErrorKind::Unauthorized,
        Some(code) if code.starts_with("28") => StoreErrorKind::Unauthorized,
        Some(code) if is_infrastructure(code) => StoreErrorKind::Unavailable,
        Some(_) => StoreErrorKind::Unexpected,
    }
}

/// Why there is no connection.
pub(crate) fn no_connection(operation: &'static str, error: PoolError) -> StoreError {
    let kind = match &error {
        PoolError::Backend(error) if code(error).is_some() => match kind_of(error) {
            // 25006 and the like in answer to a connection: something in between that knows of standbys.
            StoreErrorKind::TransactionAborted => StoreErrorKind::Unavailable,
            kind => kind,
        },
        _ => StoreErrorKind::Unavailable,
    };
    StoreError::new(kind, operation).context("no connection to the database").source(error)
}

/// Whose fault an error of a handler is.
pub(crate) fn blame(error: &(dyn Error + 'static)) -> Blame {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<tokio_postgres::Error>() {
            return match code(error) {
                Some(code) => blame_code(code),
                None if is_lost(error) => Blame::Infrastructure,
                None => Blame::Message,
            };
        }
        if let Some(answer) = error.downcast_ref::<DbError>() {
            return blame_code(answer.code().code());
        }
        if let Some(PoolError::Timeout(_) | PoolError::Closed) = error.downcast_ref::<PoolError>() {
            return Blame::Infrastructure;
        }
        cause = error.source();
    }
    Blame::Message
}

fn blame_code(code: &str) -> Blame {
    match code {
        "40001" | "40P01" => Blame::Contention,
        "25P02" => Blame::Unpinned,
        code if is_infrastructure(code) => Blame::Infrastructure,
        _ => Blame::Message,
    }
}

/// Connection; resources; shutdown and crash; a transaction ended for having been open too long; the disk; a lock not had.
fn is_infrastructure(code: &str) -> bool {
    ["08", "53", "57P"].iter().any(|class| code.starts_with(class))
        || matches!(code, "25P03" | "25P04" | "58030" | "55P03")
}
