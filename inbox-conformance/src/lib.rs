//! The suite that every transport and every store of the transactional inbox runs: ours and third parties'.
//!
//! A guarantee of `docs/CONTRACT.md` is one case here, of the same number: T-03 is `t03_…`. An adapter's crate runs it
//! from a test target without a harness:
//!
//! ```no_run
//! use std::{process::ExitCode, sync::Arc};
//!
//! use inbox_conformance::{Suite, memory::{MemoryBrokerSubject, MemoryStoreSubject}};
//!
//! fn main() -> ExitCode {
//!     let broker = Arc::new(MemoryBrokerSubject::default()); // implement `TransportSubject` for your own
//!     let store = Arc::new(MemoryStoreSubject::default()); // implement `StoreSubject` for your own
//!     Suite::new().transport(&broker).store(&store).end_to_end(&broker, &store).run()
//! }
//! ```
//!
//! Every case makes a topic and a consumer of its own and wipes nothing, runs on a Tokio runtime of its own, and fails
//! after a deadline with what it waited for. A case that a subject cannot support is listed as ignored, with what is
//! missing in its label. A server that is expected and not there is a failure: say so by returning an error.
//!
//! A store that has the claim path alone (`InboxStore`) runs its cases by [`Suite::claim_path`].
//!
//! [`saboteur`] holds wrong transports and stores, each of which a named case must catch.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a test library: a broken assumption of the suite itself fails the case that made it"
)]

mod end_to_end;
mod faults;
pub mod harness;
pub mod memory;
pub mod saboteur;
mod store_cases;
mod suite;
mod transport_cases;

pub use crate::{
    harness::{CaseResult, FullStoreSubject, Link, Need, StoreFeatures, StoreSubject, TransportSubject, Tx},
    suite::{Case, Pair, Suite, claim_path_cases, end_to_end_cases, store_cases, transport_cases},
};
