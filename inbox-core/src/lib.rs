//! The core of the transactional inbox: message types, the broker and store contracts, and the consumer runtime.
//!
//! Users depend on the facade `inbox-rs`; adapters and stores depend on this crate. It knows no broker and no database.

/// A lettered point in the life of a delivery (see ARCHITECTURE.md), where the fault harness can kill the process. Without
/// the feature `failpoints`, which is for that harness only, there is nothing.
macro_rules! failpoint {
    ($name:literal) => {
        #[cfg(feature = "failpoints")]
        fail::fail_point!($name);
    };
}

pub mod capability;
pub mod clock;
pub mod config;
mod decision;
mod dispatch;
pub mod envelope;
pub mod error;
pub mod failure_store;
pub mod handler;
pub mod id;
mod in_flight;
mod inbox;
pub mod maintenance;
pub mod memory;
pub mod message;
pub mod observe;
pub mod operator;
mod publisher;
mod retry;
mod runtime;
pub mod store;
pub mod transport;

pub use crate::{
    error::{BoxError, StoreError, StoreErrorKind, TransportError, TransportErrorKind, report},
    handler::{FromMessage, Handler, HandlerError, Raw},
    id::{IdScope, MessageId},
    in_flight::InFlight,
    inbox::{Health, Inbox, InboxBuilder, InboxError, InboxHandle, Policy},
    message::{Headers, IdText, Message},
    publisher::Publisher,
    retry::Backoff,
    runtime::{Numbers, Ordering, Outcome},
    store::{Blame, Candidate, Claim, Claims, ConsumerId, InboxStore, Limits},
    transport::{Acked, Capacity, Delivery, Receipt, Session, Source, Transport},
};
pub use bytes::Bytes;
