//! What the developer commands share with the fault harness: child processes, and real servers that can be stopped and
//! started again.
#![allow(clippy::print_stderr, reason = "this is for programs in a terminal")]

pub mod process;
pub mod servers;
