//! What `connect` says when it cannot.

use std::time::{Duration, Instant};

use inbox_core::{TransportError, TransportErrorKind, report};
use inbox_pubsub::{PubsubConfig, PubsubPublisher, PubsubTransport};
use tokio::net::TcpListener;

use crate::support::{Topic, emulator};

/// All three ways to the service say the same.
async fn refused(url: &str) -> Vec<TransportError> {
    vec![
        inbox_pubsub::connect(url).await.expect_err("refused"),
        inbox_pubsub::publisher(url).await.expect_err("refused"),
        inbox_pubsub::provision(url).await.expect_err("refused"),
    ]
}

#[tokio::test]
async fn what_does_not_exist_is_named() {
    let (project, endpoint) = emulator();
    let url = format!("{project}/no-such-sub?topic=no-such-topic&endpoint=http://{endpoint}");
    let error = inbox_pubsub::connect(&url).await.expect_err("there is none");
    assert_eq!(error.kind(), TransportErrorKind::NotFound, "{}", report(&error));
    assert!(report(&error).contains("/subscriptions/no-such-sub` does not exist"), "{}", report(&error));
    let error = inbox_pubsub::publisher(&url).await.expect_err("there is none");
    assert_eq!(error.kind(), TransportErrorKind::NotFound, "{}", report(&error));
    assert!(report(&error).contains("/topics/no-such-topic` does not exist"), "{}", report(&error));
    let error = inbox_pubsub::backlog(&url).await.expect_err("there is none");
    assert_eq!(error.kind(), TransportErrorKind::NotFound, "{}", report(&error));
}

#[tokio::test]
async fn what_contradicts_the_subscription_is_refused() {
    let topic = Topic::new("").await;
    for (change, names) in [("&exactly_once=true", "`exactly_once=false`"), ("&ordering=false", "`ordering=true`")] {
        let error = inbox_pubsub::connect(&format!("{}{change}", topic.url())).await.expect_err("it contradicts");
        assert_eq!(error.kind(), TransportErrorKind::InvalidConfig);
        assert!(report(&error).contains(names), "{}", report(&error));
    }
    let url = topic.url().replace("?topic=it-", "?topic=at-");
    let error = inbox_pubsub::connect(&url).await.expect_err("another topic");
    assert!(report(&error).contains("not of the topic that `topic` names"), "{}", report(&error));
}

#[tokio::test]
async fn nobody_there_is_said_within_the_connect_timeout() {
    // A port that was free a moment ago, and one that takes connections and says nothing.
    let free = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("bound");
    let mute = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    for address in [free, mute.local_addr().expect("bound")] {
        let url = format!("pubsub://p/sub?topic=top&endpoint=http://{address}&connect_timeout=1s");
        let started = Instant::now();
        for error in refused(&url).await {
            assert_eq!(error.kind(), TransportErrorKind::Unavailable, "{}", report(&error));
            let text = report(&error);
            assert!(text.contains(&address.to_string()) && text.contains("`endpoint`"), "{text}");
        }
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    }
}

/// Credentials are asked for, and never sent in the clear: `https:` to a port that speaks no TLS.
#[tokio::test]
async fn a_failed_handshake_is_said_within_the_connect_timeout() {
    let (_, endpoint) = emulator();
    let started = Instant::now();
    let config = PubsubConfig::new("p")
        .subscription("sub")
        .topic("top")
        .endpoint(format!("https://{endpoint}"))
        .credentials(google_cloud_auth::credentials::anonymous::Builder::new().build())
        .connect_timeout(Duration::from_secs(1));
    let error = PubsubTransport::connect(config).await.expect_err("no TLS there");
    assert_eq!(error.kind(), TransportErrorKind::Unavailable, "{}", report(&error));
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
}

#[tokio::test]
async fn credentials_that_fail_are_said() {
    let (_, endpoint) = emulator();
    let config = |passing: bool| {
        PubsubConfig::new("p")
            .subscription("sub")
            .topic("top")
            .endpoint(format!("https://{endpoint}"))
            .credentials(google_cloud_auth::credentials::testing::error_credentials(passing))
            .connect_timeout(Duration::from_secs(1))
    };
    for error in [
        PubsubTransport::connect(config(false)).await.expect_err("refused"),
        PubsubPublisher::connect(config(false)).await.expect_err("refused"),
    ] {
        assert_eq!(error.kind(), TransportErrorKind::Unauthorized, "{}", report(&error));
        assert!(report(&error).contains("the credentials are refused"), "{}", report(&error));
    }
    let error = PubsubTransport::connect(config(true)).await.expect_err("refused");
    assert_eq!(error.kind(), TransportErrorKind::Unavailable, "may pass: {}", report(&error));
}
