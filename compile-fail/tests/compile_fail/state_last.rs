use std::sync::Arc;

use inbox::{
    HandlerError, Inbox,
    memory::{MemoryStore, MemoryTx},
};

#[derive(serde::Deserialize)]
struct Paid {
    _amount: i64,
}

async fn on_paid(_event: Paid, _tx: &mut MemoryTx, _rates: Arc<Vec<i64>>) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {
    let _ = Inbox::local("receipts", MemoryStore::new()).on_with(Arc::new(vec![1]), "paid", on_paid);
}
