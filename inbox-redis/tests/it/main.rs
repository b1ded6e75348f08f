//! The transport and the publisher against a real server: `INBOX_TEST_REDIS=redis://host:port`, with `appendonly yes` and
//! `appendfsync always`.
//!
//! Every case has a stream of its own, and those of `server` a server of their own, of the installed Redis.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy takes only functions that are a test for tests, not what they call"
)]

mod bounds;
mod connect;
mod fence;
mod server;
mod stream;
mod support;
mod tls;
