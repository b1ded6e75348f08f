//! What is SQLite's own: the guard on its connection, other writers, leases, files.

#![allow(
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test fails by panicking and spawns what it likes"
)]

mod guard;
mod leases;
mod writers;
