use inbox::{
    Inbox,
    sqlite::{SqliteInboxStore, SqliteTransaction},
};

#[derive(serde::Deserialize)]
struct Paid {
    _amount: i64,
}

async fn on_paid(_event: Paid, _tx: &mut SqliteTransaction<'_>) -> Result<(), std::io::Error> {
    Ok(())
}

fn build(store: SqliteInboxStore) {
    let _ = Inbox::local("receipts", store).on("paid", on_paid);
}

fn main() {}
