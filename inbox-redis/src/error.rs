//! From the client's errors to ours. Pure.

use std::{error::Error, io, sync::Arc};

use inbox_core::{TransportError, TransportErrorKind};
use redis::{ErrorKind, RedisError};

/// The group, or with it the stream, is not there.
const NO_GROUP: [&str; 2] = ["NOGROUP", "UNBLOCKED"];

/// An error of ours for one of the client's. The server's own words are part of it, what a client was configured with is
/// not.
pub(crate) fn of(operation: &'static str, error: RedisError) -> TransportError {
    TransportError::new(kind_of(&error), operation).source(error)
}

/// What an error means for somebody who waits for a result.
pub(crate) fn kind_of(error: &RedisError) -> TransportErrorKind {
    match error.kind() {
        // What rustls says of a certificate or of an answer that is no TLS.
        ErrorKind::Io if is_of_tls(error) => TransportErrorKind::Unauthorized,
        ErrorKind::Io => TransportErrorKind::Unavailable,
        ErrorKind::AuthenticationFailed => TransportErrorKind::Unauthorized,
        ErrorKind::InvalidClientConfig => TransportErrorKind::InvalidConfig,
        // A transaction that was not run, because of what was said to one of its commands.
        ErrorKind::Server(redis::ServerErrorKind::ExecAbort) => aborted(error),
        _ => error.code().map_or(TransportErrorKind::Unexpected, |code| of_answer(code, error.detail())),
    }
}

fn is_of_tls(error: &RedisError) -> bool {
    // The client shares its causes.
    let shared = error.source().and_then(|source| source.downcast_ref::<Arc<dyn Error + Send + Sync>>());
    let io = shared.and_then(|source| source.downcast_ref::<io::Error>());
    io.is_some_and(|error| error.kind() == io::ErrorKind::InvalidData)
}

fn aborted(error: &RedisError) -> TransportErrorKind {
    let errors = error.clone().into_server_errors();
    let first = errors.as_deref().and_then(|errors| errors.first());
    first.map_or(TransportErrorKind::Unavailable, |(_, error)| of_answer(error.code(), error.details()))
}

/// What a server's answer means: its first word, and the others where that is `ERR`.
pub(crate) fn of_answer(code: &str, words: Option<&str>) -> TransportErrorKind {
    let says = |part: &str| words.is_some_and(|words| words.contains(part));
    match code {
        // Starting, failing over, full, or unable to write to its disk.
        "LOADING" | "MASTERDOWN" | "READONLY" | "CLUSTERDOWN" | "TRYAGAIN" | "BUSY" | "OOM" | "MISCONF"
        | "NOREPLICAS" => TransportErrorKind::Unavailable,
        _ if says("LOADING") || says("max number of clients") => TransportErrorKind::Unavailable,
        "NOAUTH" | "WRONGPASS" | "NOPERM" => TransportErrorKind::Unauthorized,
        // What a script may not do is no `NOPERM`.
        "ERR" if says("ACL failure") || says("can't run this command") || says("no password") => {
            TransportErrorKind::Unauthorized
        }
        code if NO_GROUP.contains(&code) => TransportErrorKind::NotFound,
        "ERR" if says("requires the key to exist") => TransportErrorKind::NotFound,
        "ERR" if says("too large") || says("invalid bulk length") => TransportErrorKind::TooLarge,
        // The key is no stream; the server is a node of a cluster, which has other keys; it is too old.
        "WRONGTYPE" | "MOVED" | "ASK" | "CROSSSLOT" => TransportErrorKind::InvalidConfig,
        "ERR" if says("unknown command") || says("DB index") => TransportErrorKind::InvalidConfig,
        _ => TransportErrorKind::Unexpected,
    }
}

/// Whether the group is gone, and with it everything that was held.
pub(crate) fn is_no_group(error: &RedisError) -> bool {
    error.code().is_some_and(|code| NO_GROUP.contains(&code))
}

/// Whether the connection is of no use any more. That of a server which has become a replica leads to the wrong one.
pub(crate) fn ends_connection(error: &RedisError) -> bool {
    error.is_io_error() || error.is_unrecoverable_error() || error.code() == Some("READONLY")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers() {
        for (code, words, kind) in [
            ("LOADING", "Redis is loading the dataset in memory", TransportErrorKind::Unavailable),
            ("OOM", "command not allowed when used memory > 'maxmemory'.", TransportErrorKind::Unavailable),
            ("ERR", "max number of clients reached", TransportErrorKind::Unavailable),
            ("WRONGPASS", "invalid username-password pair or user is disabled.", TransportErrorKind::Unauthorized),
            ("NOPERM", "User app has no permissions to run the 'xadd' command", TransportErrorKind::Unauthorized),
            ("NOGROUP", "No such key 's' or consumer group 'g'", TransportErrorKind::NotFound),
            ("UNBLOCKED", "the stream key no longer exists", TransportErrorKind::NotFound),
            ("ERR", "The XGROUP subcommand requires the key to exist.", TransportErrorKind::NotFound),
            ("ERR", "Elements are too large to be stored", TransportErrorKind::TooLarge),
            ("WRONGTYPE", "Operation against a key", TransportErrorKind::InvalidConfig),
            ("MOVED", "1 127.0.0.1:7001", TransportErrorKind::InvalidConfig),
            ("ERR", "something else", TransportErrorKind::Unexpected),
        ] {
            assert_eq!(of_answer(code, Some(words)), kind, "{code} {words}");
        }
    }

    #[test]
    fn what_the_client_says() {
        let io = |kind: io::ErrorKind| RedisError::from(io::Error::from(kind));
        assert_eq!(kind_of(&io(io::ErrorKind::ConnectionRefused)), TransportErrorKind::Unavailable);
        assert_eq!(kind_of(&io(io::ErrorKind::InvalidData)), TransportErrorKind::Unauthorized);
        let config = RedisError::from((ErrorKind::InvalidClientConfig, "wrong"));
        assert_eq!(kind_of(&config), TransportErrorKind::InvalidConfig);
        assert!(ends_connection(&io(io::ErrorKind::TimedOut)) && !ends_connection(&config));
    }
}
