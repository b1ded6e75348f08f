//! From the SDK's errors to ours.
//!
//! The SDK's error is not kept as the source: its `Debug` shows the whole response, and the service's words about a wrong
//! signature quote the request with the session token in it.

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_sqs::{
    config::http::HttpResponse,
    error::{ConnectorError, DisplayErrorContext, ProvideErrorMetadata, SdkError},
    types::BatchResultErrorEntry,
};
use inbox_core::{TransportError, TransportErrorKind};

use crate::config::SqsConfig;

/// An error of ours for one of a request.
pub(crate) fn of<E>(operation: &'static str, config: &SqsConfig, error: &SdkError<E, HttpResponse>) -> TransportError
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    let place = config.place();
    match error {
        SdkError::ServiceError(service) => {
            let status = service.raw().status().as_u16();
            said(operation, config, service.err().code(), service.err().message(), status)
        }
        SdkError::ConstructionFailure(_) => TransportError::new(TransportErrorKind::InvalidConfig, operation)
            .context("the request could not be made")
            .source(chain(error)),
        SdkError::TimeoutError(_) => TransportError::new(TransportErrorKind::Unavailable, operation)
            .context(format!("no answer from {place} in time")),
        SdkError::DispatchFailure(failure) => dispatch(operation, config, failure.as_connector_error(), chain(error)),
        // Half an answer, or one that is not the service's.
        _ => TransportError::new(TransportErrorKind::Unavailable, operation)
            .context(format!("{place} gave no answer that can be read"))
            .source(chain(error)),
    }
}

/// The causes on one line. None of the SDK's own errors carries a secret.
fn chain(error: &(impl std::error::Error + 'static)) -> String {
    DisplayErrorContext(error).to_string()
}

fn dispatch(
    operation: &'static str,
    config: &SqsConfig,
    connector: Option<&ConnectorError>,
    causes: String,
) -> TransportError {
    let mut cause = connector.and_then(std::error::Error::source);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<CredentialsError>() {
            return credentials(operation, error);
        }
        cause = error.source();
    }
    let kind = if connector.is_some_and(ConnectorError::is_user) {
        TransportErrorKind::InvalidConfig
    } else {
        TransportErrorKind::Unavailable
    };
    TransportError::new(kind, operation).context(format!("{} cannot be reached", config.place())).source(causes)
}

/// Why there are no credentials.
pub(crate) fn credentials(operation: &'static str, error: &CredentialsError) -> TransportError {
    let kind = match error {
        CredentialsError::CredentialsNotLoaded(_) | CredentialsError::InvalidConfiguration(_) => {
            TransportErrorKind::Unauthorized
        }
        // Whoever gives them is away for a moment.
        _ => TransportErrorKind::Unavailable,
    };
    TransportError::new(kind, operation)
        .context(
            "no AWS credentials: looked for the environment's, a profile's, a web identity's, a container's and an \
             instance's, in this order; a URL gives some as `sqs://KEY:SECRET@region/queue`",
        )
        .source(chain(error))
}

/// An error of ours for one message of a request that the service took.
pub(crate) fn of_entry(operation: &'static str, config: &SqsConfig, entry: &BatchResultErrorEntry) -> TransportError {
    let status = if entry.sender_fault { 400 } else { 500 };
    said(operation, config, Some(&entry.code), entry.message.as_deref(), status)
}

/// The same of a message that was to be published: what the service refuses is the message's own fault.
pub(crate) fn of_message(error: TransportError) -> TransportError {
    match error.kind() {
        TransportErrorKind::InvalidConfig | TransportErrorKind::Unexpected => {
            TransportError::new(TransportErrorKind::Rejected, error.operation())
                .context("the service does not take the message")
                .source(error)
        }
        _ => error,
    }
}

/// Whether the service knows these credentials, and their policy does not allow the request.
pub(crate) fn is_denied<E: ProvideErrorMetadata>(error: &SdkError<E, HttpResponse>) -> bool {
    let code = error.as_service_error().and_then(ProvideErrorMetadata::code);
    code.is_some_and(|code| matches!(short(code), "AccessDenied" | "AccessDeniedException"))
}

/// An error of ours for what the service said.
pub(crate) fn said(
    operation: &'static str,
    config: &SqsConfig,
    code: Option<&str>,
    message: Option<&str>,
    status: u16,
) -> TransportError {
    let name = code.map_or("", short);
    let kind = if name.is_empty() { kind_of_status(status) } else { kind_of(name, status) };
    let error = TransportError::new(kind, operation);
    let place = config.place();
    let queue = config.name();
    match kind {
        TransportErrorKind::NotFound => error.context(format!(
            "the queue `{queue}` does not exist at {place} ({name}); `inbox::provision(url)` creates it, and a queue of \
             another account needs `account=…`"
        )),
        // Without the service's own words, which may quote the request.
        TransportErrorKind::Unauthorized => error.context(format!(
            "{place} refuses these credentials for the queue `{queue}` ({name}): check key, secret, region, clock, \
             and the permissions of the policy"
        )),
        TransportErrorKind::InvalidConfig if name.is_empty() => error.context(format!(
            "{place} answers {status}, which SQS does not: is it SQS? The endpoint is set by `endpoint` or the URL's host"
        )),
        _ => {
            let error = error.context(format!("{place} answers {status} {name}"));
            message.map(str::to_owned).into_iter().fold(error, TransportError::source)
        }
    }
}

/// `AWS.SimpleQueueService.NonExistentQueue` and `com.amazonaws.sqs#QueueDoesNotExist` without what stands before.
fn short(code: &str) -> &str {
    code.rsplit(['.', '#']).next().unwrap_or(code)
}

/// What a code means to somebody who waits for an answer.
fn kind_of(code: &str, status: u16) -> TransportErrorKind {
    match code {
        "NonExistentQueue" | "QueueDoesNotExist" | "ResourceNotFoundException" => TransportErrorKind::NotFound,
        "AccessDenied"
        | "AccessDeniedException"
        | "AuthFailure"
        | "ExpiredToken"
        | "ExpiredTokenException"
        | "IncompleteSignature"
        | "InvalidAccessKeyId"
        | "InvalidClientTokenId"
        | "InvalidSecurity"
        | "InvalidSignatureException"
        | "KmsAccessDenied"
        | "MissingAuthenticationToken"
        | "NotAuthorized"
        | "OptInRequired"
        | "RequestExpired"
        | "RequestTimeTooSkewed"
        | "SignatureDoesNotMatch"
        | "UnrecognizedClientException" => TransportErrorKind::Unauthorized,
        "BatchRequestTooLong" | "MessageTooLong" => TransportErrorKind::TooLarge,
        "InvalidMessageContents" => TransportErrorKind::Rejected,
        "InternalError"
        | "InternalFailure"
        | "InternalServerError"
        | "KmsInvalidState"
        | "KmsThrottled"
        | "OverLimit"
        | "QueueDeletedRecently"
        | "RequestThrottled"
        | "RequestTimeout"
        | "ServiceUnavailable"
        | "SlowDown"
        | "Throttling"
        | "ThrottlingException"
        | "TooManyRequestsException" => TransportErrorKind::Unavailable,
        "InvalidAddress"
        | "InvalidAttributeName"
        | "InvalidAttributeValue"
        | "InvalidParameterValue"
        | "KmsDisabled"
        | "KmsInvalidKeyUsage"
        | "KmsNotFound"
        | "KmsOptInRequired"
        | "MissingParameter"
        | "QueueNameExists"
        | "QueueAlreadyExists"
        | "UnsupportedOperation" => TransportErrorKind::InvalidConfig,
        _ if status >= 500 || status == 429 => TransportErrorKind::Unavailable,
        _ => TransportErrorKind::Unexpected,
    }
}

/// What a status without a code means: something between us and the service, or no SQS at all.
fn kind_of_status(status: u16) -> TransportErrorKind {
    match status {
        429 | 500.. => TransportErrorKind::Unavailable,
        401 | 403 => TransportErrorKind::Unauthorized,
        _ => TransportErrorKind::InvalidConfig,
    }
}

#[cfg(test)]
mod tests {
    use inbox_core::report;

    use super::*;

    fn config() -> SqsConfig {
        SqsConfig::new("eu-west-1", "payments")
    }

    #[test]
    fn kinds() {
        for (code, status, kind) in [
            ("AWS.SimpleQueueService.NonExistentQueue", 400, TransportErrorKind::NotFound),
            ("com.amazonaws.sqs#QueueDoesNotExist", 400, TransportErrorKind::NotFound),
            ("InvalidClientTokenId", 403, TransportErrorKind::Unauthorized),
            ("AWS.SimpleQueueService.BatchRequestTooLong", 400, TransportErrorKind::TooLarge),
            ("ThrottlingException", 400, TransportErrorKind::Unavailable),
            ("InvalidParameterValue", 400, TransportErrorKind::InvalidConfig),
            ("Something.New", 503, TransportErrorKind::Unavailable),
            ("Something.New", 400, TransportErrorKind::Unexpected),
        ] {
            assert_eq!(said("ack", &config(), Some(code), None, status).kind(), kind, "{code}");
        }
        for (status, kind) in [
            (404, TransportErrorKind::InvalidConfig),
            (403, TransportErrorKind::Unauthorized),
            (502, TransportErrorKind::Unavailable),
        ] {
            assert_eq!(said("ack", &config(), None, None, status).kind(), kind, "{status}");
        }
    }

    #[test]
    fn what_the_service_says_about_a_signature_is_not_shown() {
        let quoted = Some("The Canonical String should have been 'x-amz-security-token:hunter2'");
        let error = said("connect", &config(), Some("SignatureDoesNotMatch"), quoted, 403);
        let text = format!("{} {error:?}", report(&error));
        assert!(!text.contains("hunter2") && text.contains("check key") && text.contains("`payments`"), "{text}");
    }

    #[test]
    fn no_credentials() {
        let error = credentials("connect", &CredentialsError::not_loaded("nobody gave any"));
        assert_eq!(error.kind(), TransportErrorKind::Unauthorized);
        assert!(report(&error).contains("nobody gave any") && report(&error).contains("sqs://KEY:SECRET@"));
    }
}
