//! The in-memory broker and database: reference semantics, for tests, examples and the conformance suite itself.
//!
//! Full citizens: they keep the same contract as every adapter and run the same suite. What they cannot do is outlive
//! the process, and [`Capabilities::durable`](crate::capability::Capabilities::durable) says so.
//!
//! ```
//! # async fn example() {
//! use inbox_core::memory::{MemoryBroker, MemoryStore};
//!
//! let broker = MemoryBroker::new();
//! let publisher = broker.publisher("payments");
//! let transport = broker.transport("payments", "receipts");
//! let store = MemoryStore::new();
//! # drop((publisher, transport, store));
//! # }
//! ```

mod store;
mod transport;
mod tx;

pub use self::{
    store::{CommitFault, Faults, MemoryStore},
    transport::{MemoryBroker, MemoryPublisher, MemoryTransport},
    tx::{MemoryError, MemoryTx},
};
