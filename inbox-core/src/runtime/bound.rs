//! The bound of what is in flight, by count and by bytes: what stops the receive loop.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::sync::Notify;

use crate::transport::Capacity;

/// How much is in flight, and how much may be.
#[derive(Clone, Debug)]
pub(crate) struct Bound {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    most: Capacity,
    messages: AtomicUsize,
    bytes: AtomicUsize,
    freed: Notify,
}

/// The place of one message within the bound; dropping it makes room.
#[derive(Debug)]
pub(crate) struct Permit {
    bound: Bound,
    bytes: usize,
}

impl Bound {
    pub(crate) fn new(most: Capacity) -> Self {
        let (messages, bytes) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { shared: Arc::new(Shared { most, messages, bytes, freed: Notify::new() }) }
    }

    /// Notes a message that is in flight from now on. One message may exceed the bytes; then nothing more is received.
    pub(crate) fn enter(&self, bytes: usize) -> Permit {
        self.shared.messages.fetch_add(1, Ordering::AcqRel);
        self.shared.bytes.fetch_add(bytes, Ordering::AcqRel);
        Permit { bound: self.clone(), bytes }
    }

    /// What is left; waits until it is worth a call of `receive`. Cancel safe; for one task at a time.
    pub(crate) async fn room(&self) -> Capacity {
        loop {
            let freed = self.shared.freed.notified();
            let messages = self.shared.most.messages.saturating_sub(self.messages());
            let bytes = self.shared.most.bytes.saturating_sub(self.shared.bytes.load(Ordering::Acquire));
            if messages > 0 && bytes > 0 {
                return Capacity { messages, bytes };
            }
            freed.await;
        }
    }

    /// How many messages are in flight.
    pub(crate) fn messages(&self) -> usize {
        self.shared.messages.load(Ordering::Acquire)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let shared = &self.bound.shared;
        shared.messages.fetch_sub(1, Ordering::AcqRel);
        shared.bytes.fetch_sub(self.bytes, Ordering::AcqRel);
        shared.freed.notify_one();
    }
}
