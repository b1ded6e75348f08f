//! The transport and the publisher: against moto, `INBOX_TEST_SQS=sqs://host:port`, and, for what moto does not do or does
//! too slowly, against a service of these tests.
//!
//! Every case has a queue of its own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "clippy takes only functions that are a test for tests, not what they call"
)]

mod bounds;
mod connect;
mod content;
mod leases;
mod order;
mod outage;
mod publish;
mod request;
mod service;
mod settle;
mod support;
