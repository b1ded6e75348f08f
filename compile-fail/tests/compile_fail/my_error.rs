use inbox::{
    HandlerError, Inbox,
    memory::{MemoryStore, MemoryTx},
};

#[derive(serde::Deserialize)]
struct Paid {
    _amount: i64,
}

#[derive(Debug)]
struct TooMuch;

fn check(_event: &Paid) -> Result<(), TooMuch> {
    Err(TooMuch)
}

async fn on_paid(event: Paid, _tx: &mut MemoryTx) -> Result<(), HandlerError> {
    check(&event)?;
    Ok(())
}

fn main() {
    let _ = Inbox::local("receipts", MemoryStore::new()).on("paid", on_paid);
}
