//! A transport that says what passes through it.

use std::{
    io::Write as _,
    sync::{
        Arc, Weak,
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
    /// The saboteur: acknowledges at once what it receives.
    ack_first: bool,
}

struct Nobody;

impl ReceiptOwner for Nobody {
    fn dropped(&self, _token: u64) {}
}

impl<T: Transport> Watched<T> {
    pub(crate) fn new(inner: T, calls: Arc<AtomicU64>, ack_first: bool) -> Self {
        Self { inner, calls, ack_first }
    }

    fn settled(&self, acked: usize, lost: usize) {
        say(&format!("a {acked} {lost} {}", self.calls.load(Ordering::SeqCst)));
    }
}

#[async_trait]
impl<T: Transport> Transport for Watched<T> {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn receive(&self, capacity: Capacity) -> Result<Vec<Delivery>, TransportError> {
        let mut deliveries = self.inner.receive(capacity).await?;
        say(&format!("r {}", deliveries.len()));
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
        if self.ack_first {
            drop(receipts);
            self.settled(all, 0);
            return Ok(Acked { acked: all, lost: 0 });
        }
        let acked = self.inner.ack(receipts).await;
        match &acked {
            Ok(Acked { acked, lost }) => self.settled(*acked, *lost),
            Err(_) => self.settled(0, all),
        }
        acked
    }

    async fn release(&self, receipts: Vec<Receipt>) -> Result<(), TransportError> {
        say(&format!("x {}", receipts.len()));
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
