//! From sqlx's errors to ours. SQLite's codes, never its texts.

use std::error::Error;

use inbox_core::{Blame, StoreError, StoreErrorKind, TransportError, TransportErrorKind};

// Primary result codes, <https://www.sqlite.org/rescode.html>.
const BUSY: i32 = 5;
const LOCKED: i32 = 6;
const NOMEM: i32 = 7;
const READONLY: i32 = 8;
const IOERR: i32 = 10;
const CORRUPT: i32 = 11;
const FULL: i32 = 13;
const CANTOPEN: i32 = 14;
const PROTOCOL: i32 = 15;
const TOOBIG: i32 = 18;
const NOTADB: i32 = 26;

/// Whose fault an error of sqlx is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Unavailable,
    Contention,
    Config,
    CannotOpen,
    TooLarge,
    Other,
}

fn class(error: &sqlx::Error) -> Class {
    match error {
        sqlx::Error::Database(database) => {
            match primary_code(database.as_ref()) {
                BUSY | LOCKED => Class::Contention,
                NOMEM | READONLY | IOERR | FULL | PROTOCOL => Class::Unavailable,
                TOOBIG => Class::TooLarge,
                // A temporary file or the log, when a process is out of file descriptors.
                CANTOPEN => Class::CannotOpen,
                NOTADB | CORRUPT => Class::Config,
                _ => Class::Other,
            }
        }
        sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed => {
            Class::Unavailable
        }
        sqlx::Error::Configuration(_) => Class::Config,
        _ => Class::Other,
    }
}

/// Whether somebody else is writing, or cleaning up: SQLite says so at once, whatever the busy timeout, while the last
/// connection to a file is being closed (<https://www.sqlite.org/wal.html>, "Sometimes Queries Return SQLITE_BUSY").
pub(crate) fn is_busy(error: &sqlx::Error) -> bool {
    class(error) == Class::Contention
}

/// Whether the database itself ended a transaction: a full disk, an I/O error, no memory.
pub(crate) fn is_outage(error: &dyn sqlx::error::DatabaseError) -> bool {
    matches!(primary_code(error), NOMEM | IOERR | FULL)
}

/// Extended codes carry the primary one in their lowest byte.
fn primary_code(error: &dyn sqlx::error::DatabaseError) -> i32 {
    error.code().and_then(|code| code.parse::<i32>().ok()).unwrap_or_default() & 0xff
}

/// How calls that nobody else repeats wait for that.
pub(crate) fn patience() -> backon::ExponentialBuilder {
    backon::ExponentialBuilder::new()
        .with_min_delay(std::time::Duration::from_millis(5))
        .with_max_delay(std::time::Duration::from_millis(200))
        .with_max_times(20)
        .with_jitter()
}

pub(crate) fn store(error: sqlx::Error, operation: &'static str) -> StoreError {
    let kind = match class(&error) {
        Class::Unavailable => StoreErrorKind::Unavailable,
        Class::Contention => StoreErrorKind::Contention,
        Class::CannotOpen if operation != "open" => StoreErrorKind::Unavailable,
        Class::Config | Class::CannotOpen => StoreErrorKind::InvalidConfig,
        Class::TooLarge | Class::Other => StoreErrorKind::Unexpected,
    };
    StoreError::new(kind, operation).source(error)
}

pub(crate) fn transport(error: sqlx::Error, operation: &'static str) -> TransportError {
    let kind = match class(&error) {
        Class::TooLarge => TransportErrorKind::TooLarge,
        Class::Unavailable | Class::Contention => TransportErrorKind::Unavailable,
        Class::CannotOpen if operation != "connect" => TransportErrorKind::Unavailable,
        Class::Config | Class::CannotOpen => TransportErrorKind::InvalidConfig,
        Class::Other => TransportErrorKind::Unexpected,
    };
    TransportError::new(kind, operation).source(error)
}

/// Whose fault an error of a handler is.
pub(crate) fn blame(error: &(dyn Error + 'static)) -> Blame {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<sqlx::Error>() {
            return match class(error) {
                Class::Unavailable | Class::CannotOpen => Blame::Infrastructure,
                Class::Contention => Blame::Contention,
                Class::Config | Class::TooLarge | Class::Other => Blame::Message,
            };
        }
        cause = error.source();
    }
    Blame::Message
}
