//! What is SQLite's own: the guard on its connection, other writers, leases, files.

#![allow(
    clippy::expect_used,
    clippy::disallowed_methods,
    clippy::mem_forget,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking and spawns what it likes"
)]

mod bounds;
mod cancel;
mod facts;
mod guard;
mod kill;
mod leases;
mod settling;
mod speed;
mod writers;
