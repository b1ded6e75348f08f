//! The in-memory transport and store as subjects.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use inbox_core::{
    BoxError, HandlerError, Publisher, Transport,
    capability::Capabilities,
    memory::{MemoryBroker, MemoryStore, MemoryTransport, MemoryTx},
};

use crate::harness::{Link, StoreSubject, TransportSubject, unique};

/// The in-memory broker.
#[derive(Debug, Default)]
pub struct MemoryBrokerSubject {
    broker: MemoryBroker,
}

#[async_trait]
impl TransportSubject for MemoryBrokerSubject {
    fn name(&self) -> &str {
        "memory"
    }

    fn capabilities(&self) -> Capabilities {
        self.broker.transport("capabilities", "none").capabilities().clone()
    }

    fn can_break_sessions(&self) -> bool {
        true
    }

    fn can_lose_leases(&self) -> bool {
        true
    }

    async fn fresh(&self) -> Result<Arc<dyn Link>, BoxError> {
        let link = MemoryLink { broker: self.broker.clone(), topic: unique("topic"), connected: Mutex::default() };
        Ok(Arc::new(link))
    }
}

const GROUP: &str = "own";

struct MemoryLink {
    broker: MemoryBroker,
    topic: String,
    connected: Mutex<Vec<std::sync::Weak<MemoryTransport>>>,
}

#[async_trait]
impl Link for MemoryLink {
    async fn connect(&self) -> Result<Arc<dyn Transport>, BoxError> {
        let transport = Arc::new(self.broker.transport(&self.topic, GROUP));
        self.connected.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&transport));
        Ok(transport)
    }

    async fn connect_group(&self, group: &str) -> Result<Arc<dyn Transport>, BoxError> {
        Ok(Arc::new(self.broker.transport(&self.topic, group)))
    }

    async fn publisher(&self) -> Result<Arc<dyn Publisher>, BoxError> {
        Ok(Arc::new(self.broker.publisher(&self.topic)))
    }

    async fn break_sessions(&self) -> Result<(), BoxError> {
        let connected = self.connected.lock().unwrap_or_else(PoisonError::into_inner);
        for transport in connected.iter().filter_map(std::sync::Weak::upgrade) {
            transport.disconnect();
        }
        Ok(())
    }

    async fn lose_lease(&self, place: usize) -> Result<(), BoxError> {
        let connected = self.connected.lock().unwrap_or_else(PoisonError::into_inner);
        let lost = connected.iter().filter_map(std::sync::Weak::upgrade).any(|transport| transport.lose_lease(place));
        if lost { Ok(()) } else { Err(format!("message {place} is not out").into()) }
    }

    async fn backlog(&self) -> Result<u64, BoxError> {
        Ok(self.broker.backlog(&self.topic, GROUP))
    }
}

/// The in-memory database.
#[derive(Debug, Default)]
pub struct MemoryStoreSubject {
    store: MemoryStore,
}

impl StoreSubject for MemoryStoreSubject {
    type Store = MemoryStore;

    fn name(&self) -> &str {
        "memory"
    }

    async fn open(&self) -> Result<Arc<MemoryStore>, BoxError> {
        Ok(Arc::new(self.store.clone()))
    }

    async fn apply(&self, tx: &mut MemoryTx, scope: &str, effect: &str) -> Result<(), HandlerError> {
        Ok(tx.append(scope, effect)?)
    }

    async fn effects(&self, scope: &str) -> Result<Vec<String>, BoxError> {
        Ok(self.store.log(scope))
    }

    async fn failing_statement(&self, tx: &mut MemoryTx) -> Result<(), HandlerError> {
        Ok(tx.fail()?)
    }

    async fn raw_commit(&self, tx: &mut MemoryTx) -> Result<(), HandlerError> {
        Ok(tx.raw_commit()?)
    }

    async fn raw_rollback(&self, tx: &mut MemoryTx) -> Result<(), HandlerError> {
        tx.raw_rollback();
        Ok(())
    }
}
