//! From the client's errors to ours.

use std::sync::Arc;

use google_cloud_gax::error::{Error, rpc::Code};
use google_cloud_pubsub::error::PublishError;
use inbox_core::{TransportError, TransportErrorKind};

/// An error of ours for one of the client's.
pub(crate) fn of(operation: &'static str, error: Error) -> TransportError {
    TransportError::new(kind(&error), operation).source(error)
}

/// What an error means for somebody who waits for a result.
pub(crate) fn kind(error: &Error) -> TransportErrorKind {
    if let Some(status) = error.status() {
        return kind_of(status.code);
    }
    if error.is_authentication() && !error.is_transient_and_before_rpc() {
        return TransportErrorKind::Unauthorized;
    }
    if error.is_binding() || error.is_serialization() {
        return TransportErrorKind::InvalidConfig;
    }
    if error.is_deserialization() {
        return TransportErrorKind::Unexpected;
    }
    // Connections, time-outs, retries that are used up.
    TransportErrorKind::Unavailable
}

fn kind_of(code: Code) -> TransportErrorKind {
    match code {
        Code::NotFound => TransportErrorKind::NotFound,
        Code::PermissionDenied | Code::Unauthenticated => TransportErrorKind::Unauthorized,
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange | Code::Unimplemented => {
            TransportErrorKind::InvalidConfig
        }
        Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::ResourceExhausted
        | Code::Aborted
        | Code::Internal
        | Code::Unavailable => TransportErrorKind::Unavailable,
        _ => TransportErrorKind::Unexpected,
    }
}

/// Whether the service has answered at all, be it with a refusal.
pub(crate) fn is_answer(error: &Error) -> bool {
    kind(error) != TransportErrorKind::Unavailable
}

/// Whether the service refuses to say.
pub(crate) fn is_forbidden(error: &Error) -> bool {
    error.status().is_some_and(|status| status.code == Code::PermissionDenied)
}

/// Whether what was to be made is there already.
pub(crate) fn is_there(error: &Error) -> bool {
    error.status().is_some_and(|status| status.code == Code::AlreadyExists)
}

/// Why a message was not confirmed. Of the message itself, the service refuses what it calls an invalid argument.
pub(crate) fn publish(error: PublishError) -> TransportError {
    const OPERATION: &str = "publish";
    match error {
        PublishError::Rpc(error) => {
            let kind = match kind(&error) {
                TransportErrorKind::InvalidConfig => TransportErrorKind::Rejected,
                other => other,
            };
            TransportError::new(kind, OPERATION).source(Shared(error))
        }
        PublishError::OrderingKeyPaused => TransportError::new(TransportErrorKind::Unavailable, OPERATION)
            .context("an earlier message of its key was not stored, so it was not sent"),
        PublishError::Shutdown => {
            TransportError::new(TransportErrorKind::Closed, OPERATION).context("the publisher was closed")
        }
        other => TransportError::new(TransportErrorKind::Unexpected, OPERATION).source(other),
    }
}

/// One error of all messages of a request.
#[derive(Debug)]
struct Shared(Arc<Error>);

impl std::fmt::Display for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Shared {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}

#[cfg(test)]
mod tests {
    use google_cloud_gax::error::{CredentialsError, rpc::Status};

    use super::*;

    fn status(code: Code) -> Error {
        Error::service(Status::default().set_code(code).set_message("no"))
    }

    #[test]
    fn kinds() {
        for (code, kind) in [
            (Code::NotFound, TransportErrorKind::NotFound),
            (Code::PermissionDenied, TransportErrorKind::Unauthorized),
            (Code::Unauthenticated, TransportErrorKind::Unauthorized),
            (Code::FailedPrecondition, TransportErrorKind::InvalidConfig),
            (Code::Unavailable, TransportErrorKind::Unavailable),
            (Code::ResourceExhausted, TransportErrorKind::Unavailable),
            (Code::DataLoss, TransportErrorKind::Unexpected),
        ] {
            assert_eq!(of("connect", status(code)).kind(), kind, "{code:?}");
        }
        assert_eq!(kind(&Error::io("broken pipe")), TransportErrorKind::Unavailable);
        assert_eq!(kind(&Error::timeout("late")), TransportErrorKind::Unavailable);
        let permanent = Error::authentication(CredentialsError::from_msg(false, "no such account"));
        assert_eq!(kind(&permanent), TransportErrorKind::Unauthorized);
        let passing = Error::authentication(CredentialsError::from_msg(true, "try again"));
        assert_eq!(kind(&passing), TransportErrorKind::Unavailable);
    }

    #[test]
    fn what_is_wrong_with_one_message_is_not_fatal() {
        let refused = publish(PublishError::Rpc(Arc::new(status(Code::InvalidArgument))));
        assert_eq!(refused.kind(), TransportErrorKind::Rejected);
        assert!(inbox_core::report(&refused).contains("no"), "{}", inbox_core::report(&refused));
        assert_eq!(publish(PublishError::OrderingKeyPaused).kind(), TransportErrorKind::Unavailable);
        assert_eq!(publish(PublishError::Shutdown).kind(), TransportErrorKind::Closed);
    }
}
