//! A queue and a database in a folder of their own, and how errors are looked at.

use std::time::{Duration, Instant};

use inbox::{
    InboxError, TransportError, TransportErrorKind,
    memory::{MemoryStore, MemoryTx},
    report,
};
use tempfile::TempDir;

/// How long a case waits for what must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The URL of a server that a test needs.
#[cfg(any(feature = "kafka", feature = "postgres"))]
pub(crate) fn server(variable: &str, example: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!(
            "{variable} is not set, and this test needs a real server: `export {variable}={example}`, or let \
             `cargo xtask services up` start one"
        )
    })
}

#[cfg(feature = "kafka")]
pub(crate) fn kafka() -> String {
    server("INBOX_TEST_KAFKA", "kafka://host:port").trim_end_matches('/').to_owned()
}

#[cfg(feature = "postgres")]
pub(crate) fn postgres() -> String {
    server("INBOX_TEST_POSTGRES", "postgres://user:password@host:port/database")
}

/// A name that nothing else has.
#[cfg(any(feature = "kafka", feature = "postgres"))]
pub(crate) fn unique(what: &str) -> String {
    format!("{what}-{}", uuid::Uuid::now_v7().simple())
}

/// A port of this machine at which nobody listens.
#[cfg(any(feature = "kafka", feature = "postgres"))]
pub(crate) fn closed_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("bound").port()
}

/// A queue in a folder that goes with it.
pub(crate) struct Queue {
    pub(crate) dir: TempDir,
}

impl Queue {
    /// A file with the topic `payments`.
    pub(crate) async fn new() -> Self {
        let queue = Self { dir: tempfile::tempdir().expect("a folder") };
        inbox::provision(&queue.url("payments", "")).await.expect("provisioned");
        queue
    }

    pub(crate) fn url(&self, topic: &str, query: &str) -> String {
        format!("sqlite:{}/queue.db/{topic}?{query}", self.dir.path().display())
    }
}

/// What connecting with `url` says, with all causes.
pub(crate) async fn refused(url: &str) -> (TransportErrorKind, String) {
    seen(inbox::connect(url).await.expect_err(url))
}

#[allow(clippy::needless_pass_by_value, reason = "takes what `expect_err` gives")]
pub(crate) fn seen(error: TransportError) -> (TransportErrorKind, String) {
    assert!(!error.is_retryable() || error.kind() == TransportErrorKind::Unavailable);
    (error.kind(), report(&error))
}

#[track_caller]
pub(crate) fn mentions(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
}

/// The text of an error of the settings.
#[track_caller]
pub(crate) fn config<T: std::fmt::Debug>(built: Result<T, InboxError>) -> String {
    let error = built.expect_err("it contradicts itself");
    assert!(matches!(error, InboxError::Config(_)), "{error:?}");
    report(&error)
}

/// Waits for a condition that nothing signals.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// An event.
#[derive(Clone, Debug, PartialEq, serde::Deserialize)]
pub(crate) struct Paid {
    pub(crate) amount: i64,
}

/// A handler whose effect is a line in the log `paid`.
pub(crate) async fn on_paid(event: Paid, tx: &mut MemoryTx) -> Result<(), inbox::HandlerError> {
    tx.append("paid", event.amount.to_string())?;
    Ok(())
}

pub(crate) fn paid(id: &str, amount: i64) -> inbox::Message {
    inbox::Message::new(inbox::Bytes::from(format!(r#"{{"amount":{amount}}}"#))).id(id.to_owned()).kind("paid")
}

/// The rows of consumer `receipts`.
pub(crate) async fn failures(store: &MemoryStore) -> Vec<inbox::failure_store::FailureRow> {
    inbox::operator::Operator::failures(store, "receipts", 100).await.expect("rows")
}
