//! The transport and the publisher: against the emulator, `INBOX_TEST_PUBSUB=pubsub://project?endpoint=http://host:port`,
//! and, for what that does not do, against a stand-in.
//!
//! Every case has a topic and a subscription of its own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "clippy takes only functions that are a test for tests, not what they call"
)]

#[path = "../cleaning/mod.rs"]
mod cleaning;
mod connect;
mod contract;
mod leases;
mod order;
mod outage;
mod publish;
mod service;
#[path = "../standin/mod.rs"]
mod standin;
mod stub;
mod support;
