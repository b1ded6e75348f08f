use inbox::{
    HandlerError, Inbox,
    sqlite::{SqliteInboxStore, SqliteTransaction},
};

#[derive(serde::Deserialize)]
struct Paid {
    amount: i64,
}

fn build(store: SqliteInboxStore, rate: std::sync::Arc<i64>) {
    let _ = Inbox::local("receipts", store).on("paid", async move |event: Paid, _tx: &mut SqliteTransaction<'_>| {
        if event.amount > *rate { Err(HandlerError::reject("too much")) } else { Ok(()) }
    });
}

fn main() {}
