//! The transport and the publisher against a real broker: `INBOX_TEST_RABBITMQ=rabbitmq://user:password@host:port`.
//!
//! Every case has a queue of its own, and those of `node` a broker of their own, of the installed RabbitMQ. The broker's `consumer_timeout` has to be 20 s, as `cargo xtask services up` sets it,
//! or `INBOX_TEST_RABBITMQ_TIMEOUT` says what it is (`30s`).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "clippy takes only functions that are a test for tests, not what they call"
)]

mod backpressure;
mod connect;
mod inbox;
mod node;
mod outage;
mod proxy;
mod publish;
mod settle;
mod speed;
mod support;
mod timeout;
mod tls;
