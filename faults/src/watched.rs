//! A transport that says what passes through it.

use std::{
    collections::{HashMap, HashSet},
    io::Write as _,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use inbox::{
    Acked, Capacity, Delivery, Receipt, Session, Transport, TransportError,
    capability::{Capabilities, MaxAge},
    transport::ReceiptOwner,
};

/// Writes a line for the harness. A process that cannot be heard is of no use any more.
pub(crate) fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        std::process::exit(9);
    }
}

/// Passes everything on to `T`.
#[derive(Debug)]
pub(crate) struct Watched<T> {
    inner: T,
    /// How often handlers were called: said with each acknowledgement.
    calls: Arc<AtomicU64>,
    /// What is not settled, by session and token.
    held: Mutex<HashMap<(u64, u64), Session>>,
    /// The saboteur: acknowledges at once what it receives.
    ack_first: bool,
}

struct Nobody;

impl ReceiptOwner for Nobody {
    fn dropped(&self, _token: u64) {}
}

impl<T: Transport> Watched<T> {
    pub(crate) fn new(inner: T, calls: Arc<AtomicU64>, ack_first: bool) -> Self {
        Self { inner, calls, held: Mutex::default(), ack_first }
    }

    /// How much is in flight after a change; what was lost with a session is not.
    fn held(&self, change: impl FnOnce(&mut HashMap<(u64, u64), Session>)) -> usize {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut held);
        held.retain(|_, session| !session.is_lost());
        held.len()
    }

    fn settled(&self, acked: usize, lost: usize, receipts: &[(u64, u64)]) {
        let held = self.held(|held| receipts.iter().for_each(|receipt| drop(held.remove(receipt))));
        say(&format!("a {acked} {lost} {} {held}", self.calls.load(Ordering::SeqCst)));
    }
}

/// What tells a receipt from all others.
fn name(receipt: &Receipt) -> (u64, u64) {
    (receipt.session().id(), receipt.token())
}

/// How many deliveries have the id of another one beside them.
fn copies(deliveries: &[Delivery]) -> usize {
    let ids: HashSet<_> = deliveries.iter().filter_map(|delivery| delivery.message.id.as_ref()).collect();
    deliveries.len() - ids.len()
}

#[async_trait]
impl<T: Transport> Transport for Watched<T> {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn receive(&self, capacity: Capacity) -> Result<Vec<Delivery>, TransportError> {
        let mut deliveries = self.inner.receive(capacity).await?;
        let held = self.held(|held| {
            let received = deliveries.iter().map(|delivery| &delivery.receipt);
            held.extend(received.map(|receipt| (name(receipt), receipt.session().clone())));
        });
        say(&format!("r {} {} {held}", deliveries.len(), copies(&deliveries)));
        if self.ack_first {
            let mut receipts = Vec::new();
            for delivery in &mut deliveries {
                let empty = Receipt::new(Session::new(), 0, Weak::<Nobody>::new());
                receipts.push(std::mem::replace(&mut delivery.receipt, empty));
            }
            drop(self.inner.ack(receipts).await);
        }
        Ok(deliveries)
    }

    async fn ack(&self, receipts: Vec<Receipt>) -> Result<Acked, TransportError> {
        let all = receipts.len();
        let names: Vec<_> = receipts.iter().map(name).collect();
        if self.ack_first {
            drop(receipts);
            self.settled(all, 0, &names);
            return Ok(Acked { acked: all, lost: 0 });
        }
        let acked = self.inner.ack(receipts).await;
        match &acked {
            Ok(Acked { acked, lost }) => self.settled(*acked, *lost, &names),
            Err(_) => self.settled(0, all, &names),
        }
        acked
    }

    async fn release(&self, receipts: Vec<Receipt>) -> Result<(), TransportError> {
        let held = self.held(|held| receipts.iter().for_each(|receipt| drop(held.remove(&name(receipt)))));
        say(&format!("x {} {held}", receipts.len()));
        self.inner.release(receipts).await
    }

    async fn max_age(&self) -> Result<MaxAge, TransportError> {
        self.inner.max_age().await
    }

    fn connected(&self) -> bool {
        self.inner.connected()
    }

    async fn close(&self, deadline: Duration) -> Result<(), TransportError> {
        self.inner.close(deadline).await
    }
}
