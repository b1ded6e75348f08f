use inbox::{HandlerError, Inbox, memory::MemoryStore, sqlite::SqliteTransaction};

#[derive(serde::Deserialize)]
struct Paid {
    _amount: i64,
}

async fn on_paid(_event: Paid, _tx: &mut SqliteTransaction<'_>) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {
    let _ = Inbox::local("receipts", MemoryStore::new()).on("paid", on_paid);
}
