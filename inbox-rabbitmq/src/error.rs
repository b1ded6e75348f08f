//! From lapin's errors to ours.

use std::io;

use inbox_core::{TransportError, TransportErrorKind};
use lapin::{Error, ErrorKind};

/// An error of ours for one of lapin's. The broker's own words are part of it, what a client was configured with is not.
pub(crate) fn of(operation: &'static str, error: Error) -> TransportError {
    TransportError::new(kind_of(&error), operation).source(error)
}

/// What an error means for somebody who waits for a result.
pub(crate) fn kind_of(error: &Error) -> TransportErrorKind {
    match error.kind() {
        ErrorKind::ProtocolError(error) => kind_of_code(error.get_id()),
        // What rustls says of a certificate or of an answer that is no TLS.
        ErrorKind::IOError(error) if error.kind() == io::ErrorKind::InvalidData => TransportErrorKind::Unauthorized,
        ErrorKind::IOError(_)
        | ErrorKind::RuntimeShutdownError(_)
        | ErrorKind::MissingHeartbeatError
        | ErrorKind::InvalidChannel(_)
        | ErrorKind::InvalidChannelState(..)
        | ErrorKind::InvalidConnectionState(_)
        | ErrorKind::ChannelsLimitReached => TransportErrorKind::Unavailable,
        ErrorKind::AuthProviderError(_) => TransportErrorKind::Unauthorized,
        // Neither is said by a broker that knows this protocol.
        ErrorKind::InvalidProtocolVersion(_) | ErrorKind::ParsingError(_) => TransportErrorKind::InvalidConfig,
        _ => TransportErrorKind::Unexpected,
    }
}

/// The broker's code, if it is the broker that answered.
pub(crate) fn code_of(error: &Error) -> Option<u16> {
    match error.kind() {
        ErrorKind::ProtocolError(error) => Some(error.get_id()),
        _ => None,
    }
}

pub(crate) const NOT_FOUND: u16 = 404;
pub(crate) const PRECONDITION_FAILED: u16 = 406;
pub(crate) const NOT_ALLOWED: u16 = 530;

/// What a code of AMQP means.
fn kind_of_code(code: u16) -> TransportErrorKind {
    match code {
        // Content too large.
        311 => TransportErrorKind::TooLarge,
        // No route, no consumers.
        312 | 313 => TransportErrorKind::Rejected,
        // Connection forced, resource error, internal error: a broker that stops, is full, or fails.
        320 | 506 | 541 => TransportErrorKind::Unavailable,
        // Access refused.
        403 => TransportErrorKind::Unauthorized,
        NOT_FOUND => TransportErrorKind::NotFound,
        // Invalid path, resource locked, precondition failed, not allowed, not implemented.
        402 | 405 | PRECONDITION_FAILED | NOT_ALLOWED | 540 => TransportErrorKind::InvalidConfig,
        // Frame, syntax, command and channel errors: what we sent was wrong.
        _ => TransportErrorKind::Unexpected,
    }
}

#[cfg(test)]
mod tests {
    use lapin::protocol::{AMQPError, AMQPErrorKind, AMQPHardError, AMQPSoftError};

    use super::*;

    fn said(kind: impl Into<AMQPErrorKind>) -> Error {
        ErrorKind::ProtocolError(AMQPError::new(kind.into(), "the broker's words".into())).into()
    }

    #[test]
    fn kinds() {
        for (error, kind) in [
            (said(AMQPSoftError::ACCESSREFUSED), TransportErrorKind::Unauthorized),
            (said(AMQPSoftError::NOTFOUND), TransportErrorKind::NotFound),
            (said(AMQPSoftError::PRECONDITIONFAILED), TransportErrorKind::InvalidConfig),
            (said(AMQPHardError::NOTALLOWED), TransportErrorKind::InvalidConfig),
            (said(AMQPHardError::CONNECTIONFORCED), TransportErrorKind::Unavailable),
            (said(AMQPHardError::FRAMEERROR), TransportErrorKind::Unexpected),
            (io::Error::from(io::ErrorKind::ConnectionRefused).into(), TransportErrorKind::Unavailable),
            (io::Error::from(io::ErrorKind::InvalidData).into(), TransportErrorKind::Unauthorized),
            (ErrorKind::MissingHeartbeatError.into(), TransportErrorKind::Unavailable),
        ] {
            assert_eq!(of("connect", error.clone()).kind(), kind, "{error}");
        }
    }

    #[test]
    fn the_brokers_words_are_kept() {
        let text = inbox_core::report(&of("connect", said(AMQPSoftError::NOTFOUND)));
        assert!(text.contains("the broker's words"), "{text}");
    }
}
