//! Others that write to the same file.

use std::time::Duration;

use inbox_core::{HandlerError, Inbox, Message, Publisher, memory::MemoryBroker, operator::Operator};
use inbox_sqlite::{
    SqliteInboxStore, SqliteTransaction,
    sqlx::{self, SqlitePool},
};

async fn insert(text: String, tx: &mut SqliteTransaction<'_>) -> Result<(), HandlerError> {
    sqlx::query("INSERT INTO effects VALUES (?1)").bind(text).execute(&mut **tx).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn completes_while_another_writes_to_the_file_all_the_time() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("app.db").display().to_string();
    let store = SqliteInboxStore::builder(&file).expect("a file").migrate_on_start(true).open().await.expect("opens");
    // Connections of its own, as another process has.
    let other = SqlitePool::connect(&file).await.expect("connects");
    for table in ["CREATE TABLE effects (text TEXT)", "CREATE TABLE noise (n INTEGER)"] {
        sqlx::query(table).execute(&other).await.expect("a table");
    }
    let broker = MemoryBroker::default();
    let messages = (0..500).map(|n| Message::new(format!("\"{n}\"").into()).id(format!("id-{n}")).kind("k"));
    for done in broker.publisher("t").publish(messages.collect()).await {
        done.expect("published");
    }
    let noise = other.clone();
    let writer = tokio::spawn(async move {
        loop {
            drop(sqlx::query("INSERT INTO noise SELECT value FROM json_each('[1,2,3]')").execute(&noise).await);
        }
    });
    let inbox = Inbox::new("c", broker.transport("t", "g"), store.clone())
        .on("k", insert)
        .max_batch(20)
        .build()
        .expect("builds");
    let handle = inbox.handle();
    inbox.run_until_idle(Duration::from_millis(500)).await.expect("runs");
    writer.abort();
    let effects: i64 =
        sqlx::query_scalar("SELECT count(DISTINCT text) FROM effects").fetch_one(&other).await.expect("reads");
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM effects").fetch_one(&other).await.expect("reads");
    assert_eq!((effects, rows), (500, 500));
    assert_eq!(handle.numbers().attempts_failed, 0, "waiting for another writer is no attempt");
    assert_eq!(store.counts_of("c").await.expect("counts").claims, 500);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_migrate_at_once_and_a_missing_schema_is_named() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("app.db").display().to_string();
    let store = SqliteInboxStore::open(&file).await.expect("opens");
    let missing = inbox_core::InboxStore::register(&store, "c").await.expect_err("no tables").to_string();
    assert!(missing.contains("migrate_on_start(true)"), "{missing}");
    let migrating = (0..8).map(|_| {
        let file = file.clone();
        tokio::spawn(async move {
            SqliteInboxStore::builder(&file).expect("a file").migrate_on_start(true).open().await.map(drop)
        })
    });
    for migrated in futures(migrating).await {
        migrated.expect("migrates");
    }
    inbox_core::InboxStore::register(&store, "c").await.expect("registers");
    sqlx::query("INSERT INTO inbox_schema VALUES (99)")
        .execute(&SqlitePool::connect(&file).await.expect("connects"))
        .await
        .expect("writes");
    let newer = inbox_core::InboxStore::register(&store, "c").await.expect_err("newer").to_string();
    assert!(newer.contains("use a newer program"), "{newer}");
}

async fn futures<T>(tasks: impl Iterator<Item = tokio::task::JoinHandle<T>>) -> Vec<T> {
    let mut done = Vec::new();
    for task in tasks.collect::<Vec<_>>() {
        done.push(task.await.expect("no panic"));
    }
    done
}
