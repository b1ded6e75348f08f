//! The framework as its users meet it: what they are told when something is set wrongly, what is never shown, and the
//! ways to write a handler.
//!
//! With the features `kafka` and `postgres` real servers are needed: `INBOX_TEST_KAFKA=kafka://host:port` and
//! `INBOX_TEST_POSTGRES=postgres://user:password@host:port/database`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy takes only functions that are a test for tests, not what they call"
)]

mod config_errors;
mod secrets;
mod support;
mod usage;
