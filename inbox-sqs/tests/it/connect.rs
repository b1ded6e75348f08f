//! What `connect` says when something is wrong: within the connect timeout, naming the setting, without a secret.

use std::time::{Duration, Instant};

use inbox_core::{Transport, report};
use inbox_core::{
    TransportError, TransportErrorKind,
    capability::{MaxAge, Ordering},
};
use inbox_sqs::{SqsConfig, SqsTransport};
use serde_json::json;
use tokio::net::TcpListener;

use crate::{
    service::{Answer, Service},
    support::{Queue, moto},
};

const SECRET: &str = "hunter2hunter2";

/// Connects with credentials in the URL, and says how that failed.
async fn refused(authority: &str, rest: &str) -> TransportError {
    let began = Instant::now();
    let url = format!("sqs://AKIAEXAMPLE:{SECRET}@{authority}/{rest}");
    let error = inbox_sqs::connect(&url).await.expect_err(rest);
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    let shown = format!("{} {error:?}", report(&error));
    assert!(!shown.contains("hunter2"), "{shown}");
    let published = inbox_sqs::publisher(&url).await.expect_err(rest);
    assert_eq!(published.kind(), error.kind(), "{}", report(&published));
    error
}

#[tokio::test]
async fn a_queue_that_is_not_there() {
    let authority = moto().trim_start_matches("sqs://").to_owned();
    let error = refused(&authority, "no-such-queue?connect_timeout=3s").await;
    assert_eq!(error.kind(), TransportErrorKind::NotFound);
    let text = report(&error);
    assert!(text.contains("`no-such-queue`") && text.contains("inbox::provision"), "{text}");
}

/// A queue is in one region: in another one it does not exist, and the message says where it was looked for.
#[tokio::test]
async fn the_wrong_region() {
    let queue = Queue::standard("region=eu-west-1").await;
    let wrong = queue.url().replace("eu-west-1", "us-west-2");
    let error = inbox_sqs::connect(&wrong).await.expect_err("another region");
    assert_eq!(error.kind(), TransportErrorKind::NotFound);
    let config = SqsConfig::new("us-west-2", "payments").endpoint(moto().replace("sqs:", "http:"));
    let error = SqsTransport::connect(config).await.expect_err("another region");
    assert!(report(&error).contains("`payments`"), "{}", report(&error));
}

#[tokio::test]
async fn nobody_listens() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let authority = listener.local_addr().expect("bound").to_string();
    drop(listener);
    let error = refused(&authority, "q?connect_timeout=1s").await;
    assert_eq!(error.kind(), TransportErrorKind::Unavailable);
    assert!(report(&error).contains(&format!("the endpoint `http://{authority}`")), "{}", report(&error));
}

#[tokio::test]
async fn somebody_listens_and_says_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let authority = listener.local_addr().expect("bound").to_string();
    let error = refused(&authority, "q?connect_timeout=1s&request_timeout=300ms").await;
    assert_eq!(error.kind(), TransportErrorKind::Unavailable);
    let text = report(&error);
    assert!(text.contains(&authority), "{text}");
}

#[tokio::test]
async fn somebody_else_listens() {
    let service = Service::start();
    service.meddle(|_| Some((404, json!({ "hello": "I am a web server" }))));
    let error = refused(&service.address().to_string(), "q?connect_timeout=2s").await;
    assert_eq!(error.kind(), TransportErrorKind::InvalidConfig);
    assert!(report(&error).contains("is it SQS?") && report(&error).contains("`endpoint`"), "{}", report(&error));
}

#[tokio::test]
async fn credentials_that_are_refused() {
    let service = Service::start();
    for (code, status) in [
        ("com.amazon.coral.service#UnrecognizedClientException", 403),
        ("com.amazon.coral.service#InvalidSignatureException", 403),
        ("com.amazon.coral.service#AccessDeniedException", 400),
        ("com.amazon.coral.service#ExpiredTokenException", 403),
    ] {
        let said = format!("the string to sign was '{SECRET}'");
        service.meddle(move |_| -> Option<Answer> { Some((status, json!({ "__type": code, "message": said }))) });
        let error = refused(&service.address().to_string(), "q?connect_timeout=2s").await;
        assert_eq!(error.kind(), TransportErrorKind::Unauthorized, "{code}");
        let text = report(&error);
        assert!(text.contains("check key, secret") && text.contains("`q`"), "{text}");
    }
}

/// A service that is starting is waited for.
#[tokio::test]
async fn a_service_that_comes_up_a_little_later() {
    let service = Service::start();
    let queue = Queue::of(&service, "", "connect_timeout=5s&request_timeout=1s").await;
    service.set_down(true);
    let url = queue.url();
    let (connected, ()) = tokio::join!(inbox_sqs::connect(&url), async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        service.set_down(false);
    });
    connected.expect("connected");
}

#[tokio::test]
async fn what_a_queue_is_told_by_its_name() {
    let service = Service::start();
    for (suffix, ordering) in [("", Ordering::None), (".fifo", Ordering::Key)] {
        let transport = Queue::of(&service, suffix, "").await.connect().await;
        let said = transport.capabilities();
        assert_eq!((said.ordering, said.exclusive_keys, said.max_body), (ordering, suffix == ".fifo", Some(1 << 20)));
        assert!(transport.connected());
    }
}

/// How old a message can be: as the queue keeps it, and its dead-letter queue, and the queue again.
#[tokio::test]
async fn the_oldest_message_is_as_old_as_queue_and_dead_letter_queue_keep_it() {
    const DAY: Duration = Duration::from_secs(86_400);
    let service = Service::start();
    let dead = Queue::of(&service, "", "").await;
    service.set_attribute(&dead.name, "MessageRetentionPeriod", "1209600");
    let queue = Queue::of(&service, "", "").await;
    let transport = queue.connect().await;
    assert_eq!(transport.max_age().await.expect("known"), MaxAge::AtMost(DAY * 4));
    let policy = |name: &str| json!({ "deadLetterTargetArn": format!("arn:aws:sqs:us-east-1:123456789012:{name}"), "maxReceiveCount": 5 });
    service.set_attribute(&queue.name, "RedrivePolicy", &policy(&dead.name).to_string());
    assert_eq!(transport.max_age().await.expect("known"), MaxAge::AtMost(DAY * 22));
    // One that cannot be asked keeps messages for as long as any queue can.
    service.set_attribute(&queue.name, "RedrivePolicy", &policy("elsewhere").to_string());
    assert_eq!(transport.max_age().await.expect("known"), MaxAge::AtMost(DAY * 22));
}
