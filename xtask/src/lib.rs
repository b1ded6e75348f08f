//! What the developer commands share with tests and the fault harness: child processes, Python with packages, and real
//! servers that can be stopped and started again.
#![allow(clippy::print_stderr, reason = "this is for programs in a terminal")]

pub mod process;
pub mod python;
pub mod servers;
