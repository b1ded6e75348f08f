use std::rc::Rc;

use inbox::{
    HandlerError, Inbox,
    memory::{MemoryStore, MemoryTx},
};

#[derive(serde::Deserialize)]
struct Paid {
    amount: i64,
}

async fn on_paid(event: Paid, tx: &mut MemoryTx) -> Result<(), HandlerError> {
    let amount = Rc::new(event.amount);
    tokio::task::yield_now().await;
    tx.append("paid", amount.to_string())?;
    Ok(())
}

fn main() {
    let _ = Inbox::local("receipts", MemoryStore::new()).on("paid", on_paid);
}
