use inbox::{
    HandlerError, Inbox,
    sqlite::{SqliteInboxStore, SqliteTransaction},
};

#[derive(serde::Deserialize)]
struct Paid {
    _amount: i64,
}

async fn on_paid(_event: Paid, _tx: SqliteTransaction<'static>) -> Result<(), HandlerError> {
    Ok(())
}

fn build(store: SqliteInboxStore) {
    let _ = Inbox::local("receipts", store).on("paid", on_paid);
}

fn main() {}
