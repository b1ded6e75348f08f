//! What is PostgreSQL's own: the guard on our transactions, hostile settings, broken connections, races.

#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests are no test functions to clippy")]

mod blame;
mod connect;
mod doubt;
mod failures;
mod guard;
mod plans;
mod pooler;
mod races;
mod schema;
mod settings;
mod support;
