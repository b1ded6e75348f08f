//! The transport and the publisher against a real broker: `INBOX_TEST_KAFKA=kafka://host:port`.
//!
//! Every case has a topic and a group of its own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "clippy takes only functions that are a test for tests, not what they call"
)]

mod backpressure;
mod connect;
mod contract;
mod groups;
mod outage;
mod publish;
mod speed;
mod support;
mod transactions;
