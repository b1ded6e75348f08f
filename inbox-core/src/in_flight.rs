//! What an adapter knows about deliveries that are out, so that every adapter settles alike.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use tokio::sync::Notify;

use crate::transport::{Receipt, ReceiptOwner, Session};

/// The table of deliveries that are out: what the adapter needs to settle each, by the token of its receipt.
///
/// `T` is the adapter's own: a partition and offset, an acker, a receipt handle, and the message where the adapter
/// hands it over again by itself.
pub struct InFlight<T> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    table: Mutex<Table<T>>,
    given_back: Notify,
}

struct Table<T> {
    next: u64,
    out: HashMap<u64, (Session, T)>,
    dropped: Vec<(Session, T)>,
}

impl<T> Shared<T> {
    fn table(&self) -> MutexGuard<'_, Table<T>> {
        // No code of anybody else runs under this lock, so a poisoned table is still whole.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Send + 'static> ReceiptOwner for Shared<T> {
    fn dropped(&self, token: u64) {
        let mut table = self.table();
        if let Some(entry) = table.out.remove(&token) {
            table.dropped.push(entry);
            drop(table);
            self.given_back.notify_one();
        }
    }
}

impl<T: Send + 'static> InFlight<T> {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        Self {
            shared: Arc::new(Shared {
                table: Mutex::new(Table { next: 1, out: HashMap::new(), dropped: Vec::new() }),
                given_back: Notify::new(),
            }),
        }
    }

    /// Notes a delivery that goes out and makes its receipt.
    #[must_use]
    pub fn hold(&self, session: &Session, item: T) -> Receipt {
        let mut table = self.shared.table();
        let token = table.next;
        table.next += 1;
        table.out.insert(token, (session.clone(), item));
        drop(table);
        let owner: Weak<dyn ReceiptOwner> = Arc::downgrade(&(Arc::clone(&self.shared) as Arc<dyn ReceiptOwner>));
        Receipt::new(session.clone(), token, owner)
    }

    /// Takes the deliveries of `receipts` out of the table. What is missing in the answer was lost: its session is
    /// lost, or [`forget`](Self::forget) or [`lose`](Self::lose) took it.
    #[must_use]
    pub fn settle(&self, receipts: Vec<Receipt>) -> Vec<T> {
        let mut table = self.shared.table();
        receipts
            .into_iter()
            .filter_map(|receipt| {
                let lost = receipt.session().is_lost();
                let entry = table.out.remove(&receipt.into_token());
                entry.filter(|_| !lost).map(|(_, item)| item)
            })
            .collect()
    }

    /// Takes the deliveries whose receipts were dropped unsettled, in the order in which they were dropped. Those of lost
    /// sessions are not among them: the broker hands them over again by itself.
    #[must_use]
    pub fn take_dropped(&self) -> Vec<T> {
        let dropped = std::mem::take(&mut self.shared.table().dropped);
        dropped.into_iter().filter(|(session, _)| !session.is_lost()).map(|(_, item)| item).collect()
    }

    /// Waits until a receipt may have been dropped. Cancel safe; may wake without a reason.
    pub async fn dropped(&self) {
        self.shared.given_back.notified().await;
    }

    /// Takes all deliveries of `session` out of the table, in no order: their receipts settle nothing any more.
    #[must_use]
    pub fn forget(&self, session: &Session) -> Vec<T> {
        let mut table = self.shared.table();
        let tokens: Vec<u64> =
            table.out.iter().filter(|(_, (of, _))| of.id() == session.id()).map(|(token, _)| *token).collect();
        let mut items: Vec<T> =
            tokens.iter().filter_map(|token| table.out.remove(token)).map(|(_, item)| item).collect();
        let dropped = std::mem::take(&mut table.dropped);
        for (of, item) in dropped {
            if of.id() == session.id() { items.push(item) } else { table.dropped.push((of, item)) }
        }
        items
    }

    /// The lease of one delivery is lost though its session lives: takes it out of the table, so that its receipt settles
    /// nothing any more. The runtime does not start it, and gives back what it holds of the same key behind it: that must
    /// not overtake. `None` when it was settled or dropped before.
    #[must_use]
    pub fn lose(&self, token: u64) -> Option<T> {
        let mut table = self.shared.table();
        let (session, item) = table.out.remove(&token)?;
        session.mark_receipt_lost(token);
        Some(item)
    }

    /// How many deliveries of `session` are out, dropped ones that were not yet taken included.
    #[must_use]
    pub fn count(&self, session: &Session) -> usize {
        let table = self.shared.table();
        table.out.values().filter(|(of, _)| of.id() == session.id()).count()
            + table.dropped.iter().filter(|(of, _)| of.id() == session.id()).count()
    }

    /// Calls `see` with the token of each delivery that is out (a heartbeat's round). Must not call back into the table.
    pub fn for_each(&self, mut see: impl FnMut(u64, &Session, &T)) {
        for (token, (session, item)) in &self.shared.table().out {
            see(*token, session, item);
        }
    }

    /// How many deliveries are out.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.table().out.len()
    }

    /// Whether none is out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T: Send + 'static> Default for InFlight<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Clone for InFlight<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<T> fmt::Debug for InFlight<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlight").field("out", &self.shared.table().out.len()).finish()
    }
}
