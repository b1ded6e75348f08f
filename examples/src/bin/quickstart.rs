//! Three messages, one of them sent twice: two effects. No server needed.

use inbox::{HandlerError, Inbox, Message, sqlite::SqliteInboxStore, sqlite::SqliteTransaction, sqlite::sqlx};

#[derive(serde::Deserialize)]
struct PaymentCaptured {
    payment: String,
}

async fn send_receipt(event: PaymentCaptured, tx: &mut SqliteTransaction<'_>) -> Result<(), HandlerError> {
    sqlx::query("INSERT INTO receipts VALUES (?1)").bind(event.payment).execute(&mut **tx).await?; // `?` = try again
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let url = format!("sqlite:{}/queue.db/payments?group=receipts", dir.path().display());
    let database = format!("sqlite:{}/app.db", dir.path().display());
    let pool = sqlx::SqlitePool::connect(&format!("{database}?mode=rwc")).await?;
    sqlx::query("CREATE TABLE receipts (payment TEXT)").execute(&pool).await?;

    inbox::provision(&url).await?;
    let captured = |id: &'static str| Message::new(format!(r#"{{"payment": "{id}"}}"#).into()).id(id).kind("captured");
    for stored in inbox::publisher(&url).await?.publish(vec![captured("p-1"), captured("p-2"), captured("p-1")]).await {
        stored?; // an error: it may or may not be there; publish it again
    }

    let store = SqliteInboxStore::builder(&database)?.migrate_on_start(true).open().await?;
    let inbox = Inbox::new("receipts", inbox::connect(&url).await?, store).on("captured", send_receipt).build()?;
    inbox.run_until_idle(std::time::Duration::from_millis(200)).await?;

    let receipts: i64 = sqlx::query_scalar("SELECT count(*) FROM receipts").fetch_one(&pool).await?;
    println!("3 messages, {receipts} receipts");
    anyhow::ensure!(receipts == 2, "each payment has one receipt");
    Ok(())
}
