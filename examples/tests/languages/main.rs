//! What programs in other languages publish is consumed as `docs/PUBLISHING.md` says, and what we publish they find where
//! the page says. The programs are Python's; the snippets that they run are those of the page.
//!
//! Needs `python3`, a package index that `pip` reaches when the environment is made for the first time, and brokers:
//! `INBOX_TEST_KAFKA`, `INBOX_TEST_RABBITMQ`, `INBOX_TEST_SQS`, `INBOX_TEST_PUBSUB`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy takes only functions that are a test for tests, not what they call"
)]

mod consume;
mod kafka;
mod page;
mod pubsub;
mod python;
mod rabbitmq;
mod sqs;

use inbox::{Bytes, Message};
use std::time::Duration;

/// How long a case waits for what must happen.
const PATIENCE: Duration = Duration::from_secs(120);

/// What the page's snippets send, beside an id.
const KIND: &str = "payment.captured";
const KEY: &str = "account-17";
const BODY: &str = r#"{"payment":"p-17"}"#;
/// An id as producers should make them.
const UUID: &str = "019ac0de-7a11-7000-8000-00000000c0de";
/// A CloudEvent in structured mode, and the data in it.
const EVENT: &str =
    r#"{"specversion":"1.0","id":"structured-1","source":"/shop","type":"payment.captured","data":{"payment":"p-3"}}"#;
const EVENT_DATA: &str = r#"{"payment":"p-3"}"#;
const EVENT_TYPE: &str = "application/cloudevents+json; charset=utf-8";

/// The address of a broker, without a slash behind it.
fn broker(variable: &str, example: &str) -> String {
    let url = std::env::var(variable).unwrap_or_else(|_| {
        panic!(
            "{variable} is not set, and this test needs a real server: `export {variable}={example}`, or let \
             `cargo xtask services up` start one"
        )
    });
    url.trim_end_matches('/').to_owned()
}

/// A name that nothing else has.
fn unique() -> String {
    format!("languages-{}", uuid::Uuid::now_v7().simple())
}

async fn provision(url: &str) {
    inbox::provision(url).await.unwrap_or_else(|error| panic!("{}", inbox::report(&error)));
}

/// Publishes one message for the others to read.
async fn publish(url: &str) {
    let publisher = inbox::publisher(url).await.unwrap_or_else(|error| panic!("{}", inbox::report(&error)));
    let message = Message::new(Bytes::from_static(BODY.as_bytes())).id(UUID).kind(KIND).key(KEY);
    let message = message.header("content-type", "application/json").header("trace", "t-9");
    for stored in publisher.publish(vec![message]).await {
        stored.unwrap_or_else(|error| panic!("{}", inbox::report(&error)));
    }
    publisher.close(PATIENCE).await.expect("closed");
}
