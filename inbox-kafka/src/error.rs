//! From librdkafka's errors to ours.

use inbox_core::{TransportError, TransportErrorKind};
use rdkafka::{
    error::{KafkaError, RDKafkaErrorCode},
    types::RDKafkaConfRes,
};

/// An error of ours for one of librdkafka's. What a client was configured with is never part of it.
pub(crate) fn of(operation: &'static str, error: KafkaError) -> TransportError {
    if let KafkaError::ClientConfig(result, _, property, _) = &error {
        let context = match result {
            RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN => format!("librdkafka knows no property `{property}`"),
            RDKafkaConfRes::RD_KAFKA_CONF_INVALID | RDKafkaConfRes::RD_KAFKA_CONF_OK => {
                format!("librdkafka refuses the value of its property `{property}`")
            }
        };
        return TransportError::new(TransportErrorKind::InvalidConfig, operation).context(context);
    }
    let kind = match &error {
        KafkaError::ClientCreation(_) | KafkaError::AdminOpCreation(_) | KafkaError::Nul(_) => {
            TransportErrorKind::InvalidConfig
        }
        KafkaError::Canceled => TransportErrorKind::Unavailable,
        error => code_of(error).map_or(TransportErrorKind::Unexpected, kind_of),
    };
    TransportError::new(kind, operation).source(error)
}

/// The code inside, for the variants that rdkafka leaves out too.
pub(crate) fn code_of(error: &KafkaError) -> Option<RDKafkaErrorCode> {
    match error {
        KafkaError::AdminOp(code) => Some(*code),
        error => error.rdkafka_error_code(),
    }
}

/// What a code means for somebody who waits for a result.
pub(crate) fn kind_of(code: RDKafkaErrorCode) -> TransportErrorKind {
    use RDKafkaErrorCode as Code;
    match code {
        Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::UnknownPartition => TransportErrorKind::NotFound,
        Code::Authentication
        | Code::SSL
        | Code::SaslAuthenticationFailed
        | Code::TopicAuthorizationFailed
        | Code::GroupAuthorizationFailed
        | Code::ClusterAuthorizationFailed
        | Code::TransactionalIdAuthorizationFailed => TransportErrorKind::Unauthorized,
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge | Code::InvalidMessageSize => {
            TransportErrorKind::TooLarge
        }
        Code::InvalidArgument
        | Code::InvalidConfig
        | Code::InvalidTopic
        | Code::InvalidPartitions
        | Code::InvalidReplicationFactor
        | Code::InvalidGroupId
        | Code::InvalidSessionTimeout
        | Code::InconsistentGroupProtocol
        | Code::PolicyViolation
        | Code::UnsupportedSASLMechanism
        | Code::UnsupportedFeature
        | Code::UnsupportedVersion
        | Code::FencedInstanceId => TransportErrorKind::InvalidConfig,
        Code::InvalidMessage | Code::InvalidTimestamp | Code::InvalidRecord => TransportErrorKind::Rejected,
        Code::BrokerTransportFailure
        | Code::AllBrokersDown
        | Code::Resolve
        | Code::MessageTimedOut
        | Code::OperationTimedOut
        | Code::TimedOutQueue
        | Code::RequestTimedOut
        | Code::WaitingForCoordinator
        | Code::CoordinatorLoadInProgress
        | Code::CoordinatorNotAvailable
        | Code::NotCoordinator
        | Code::NetworkException
        | Code::LeaderNotAvailable
        | Code::NotLeaderForPartition
        | Code::BrokerNotAvailable
        | Code::ReplicaNotAvailable
        | Code::NotController
        | Code::NotEnoughReplicas
        | Code::NotEnoughReplicasAfterAppend
        | Code::KafkaStorageError
        | Code::RebalanceInProgress
        | Code::PurgeQueue
        | Code::PurgeInflight
        | Code::BrokerDestroy
        | Code::DestroyBroker => TransportErrorKind::Unavailable,
        _ => TransportErrorKind::Unexpected,
    }
}

/// Whether a code says, to somebody who is about to connect, that trying again will not help.
pub(crate) fn refuses(code: RDKafkaErrorCode) -> bool {
    matches!(kind_of(code), TransportErrorKind::Unauthorized | TransportErrorKind::InvalidConfig)
}

/// Whether a code, reported while the consumer runs, says that waiting will not help. Only what a broker has answered
/// on purpose is among these: a cluster that restarts or is upgraded reports much else in passing.
pub(crate) fn is_fatal(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode as Code;
    ends_the_client(code)
        || matches!(
            code,
            Code::TopicAuthorizationFailed
                | Code::GroupAuthorizationFailed
                | Code::ClusterAuthorizationFailed
                | Code::InconsistentGroupProtocol
                | Code::InvalidGroupId
                | Code::InvalidSessionTimeout
        )
}

/// Whether a client that met this code does nothing more.
pub(crate) fn ends_the_client(code: RDKafkaErrorCode) -> bool {
    matches!(code, RDKafkaErrorCode::Fatal | RDKafkaErrorCode::Fenced | RDKafkaErrorCode::FencedInstanceId)
}

#[cfg(test)]
mod tests {
    use inbox_core::report;

    use super::*;

    #[test]
    fn a_refused_property_is_named_and_its_value_is_not() {
        let error = of(
            "connect",
            KafkaError::ClientConfig(
                RDKafkaConfRes::RD_KAFKA_CONF_INVALID,
                "Invalid value \"hunter2\"".into(),
                "sasl.password".into(),
                "hunter2".into(),
            ),
        );
        let text = format!("{} {error:?}", report(&error));
        assert!(text.contains("`sasl.password`") && !text.contains("hunter2"), "{text}");
        assert_eq!(error.kind(), TransportErrorKind::InvalidConfig);
    }

    #[test]
    fn kinds() {
        for (code, kind) in [
            (RDKafkaErrorCode::MessageSizeTooLarge, TransportErrorKind::TooLarge),
            (RDKafkaErrorCode::UnknownTopicOrPartition, TransportErrorKind::NotFound),
            (RDKafkaErrorCode::AllBrokersDown, TransportErrorKind::Unavailable),
            (RDKafkaErrorCode::SaslAuthenticationFailed, TransportErrorKind::Unauthorized),
            (RDKafkaErrorCode::OutOfOrderSequenceNumber, TransportErrorKind::Unexpected),
        ] {
            assert_eq!(of("publish", KafkaError::MessageProduction(code)).kind(), kind);
            assert_eq!(of("provision", KafkaError::AdminOp(code)).kind(), kind);
        }
    }
}
