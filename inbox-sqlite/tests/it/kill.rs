//! Processes that are killed: this test program runs itself again as a consumer.

use std::{
    process::{Child, Command, Stdio},
    time::Duration,
};

use inbox_core::{Capacity, HandlerError, Inbox, InboxStore, Message, Publisher, Transport, operator::Operator};
use inbox_sqlite::{
    QueueConfig, SqliteInboxStore, SqlitePublisher, SqliteTransaction, SqliteTransport,
    sqlx::{self, SqlitePool},
};

const MESSAGES: usize = 3_000;

async fn insert(text: String, tx: &mut SqliteTransaction<'_>) -> Result<(), HandlerError> {
    sqlx::query("INSERT INTO effects VALUES (?1)").bind(text).execute(&mut **tx).await?;
    Ok(())
}

fn config(folder: &std::path::Path) -> QueueConfig {
    QueueConfig::new(folder.join("q.db"), "t").group("g").lease(Duration::from_millis(500))
}

/// Not a test of its own: what the child process does until it is killed.
#[tokio::test(flavor = "multi_thread")]
async fn child() {
    let Some(folder) = std::env::var_os("INBOX_TEST_CHILD") else { return };
    let folder = std::path::PathBuf::from(folder);
    let store = SqliteInboxStore::open(&folder.join("app.db").display().to_string()).await.expect("opens");
    let transport = SqliteTransport::connect(&config(&folder)).await.expect("connects");
    Inbox::new("c", transport, store)
        .on("k", insert)
        .max_batch(20)
        .run_until_idle(Duration::from_secs(3_600))
        .await
        .expect("runs");
}

fn start(folder: &std::path::Path) -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "kill::child", "--nocapture"])
        .env("INBOX_TEST_CHILD", folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("starts")
}

#[tokio::test(flavor = "multi_thread")]
async fn consumers_that_are_killed_all_the_time_lose_and_repeat_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("app.db").display().to_string();
    let store = SqliteInboxStore::builder(&file).expect("a file").migrate_on_start(true).open().await.expect("opens");
    store.register("c").await.expect("registers");
    let pool = SqlitePool::connect(&file).await.expect("connects");
    sqlx::query("CREATE TABLE effects (text TEXT)").execute(&pool).await.expect("a table");
    let config = config(dir.path());
    config.provision().await.expect("makes the topic");
    let publisher = SqlitePublisher::connect(&config).await.expect("connects");
    let messages = (0..MESSAGES).map(|n| {
        Message::new(format!("\"{n}\"").into()).id(format!("id-{n}")).kind("k").key(format!("key-{}", n % 50))
    });
    for done in publisher.publish(messages.collect()).await {
        done.expect("published");
    }
    let mut kills = 0;
    let deadline = tokio::time::Instant::now() + Duration::from_secs(150);
    let mut children = [start(dir.path()), start(dir.path())];
    while config.backlog().await.expect("counts") > 0 {
        assert!(
            tokio::time::Instant::now() < deadline,
            "the backlog is {:?} after {kills} kills",
            config.backlog().await
        );
        tokio::time::sleep(Duration::from_millis(350)).await;
        if kills < 24 {
            let child = &mut children[kills % 2];
            child.kill().expect("kills");
            child.wait().expect("ends");
            *child = start(dir.path());
            kills += 1;
        }
    }
    for child in &mut children {
        child.kill().expect("kills");
        child.wait().expect("ends");
    }
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM effects").fetch_one(&pool).await.expect("reads");
    let different: i64 =
        sqlx::query_scalar("SELECT count(DISTINCT text) FROM effects").fetch_one(&pool).await.expect("reads");
    println!("killed {kills} times");
    assert_eq!((rows, different), (MESSAGES as i64, MESSAGES as i64));
    assert_eq!(store.counts_of("c").await.expect("counts").claims, MESSAGES as u64);
    assert_eq!(store.counts_of("c").await.expect("counts").quarantined, 0);
    let integrity: String = sqlx::query_scalar("PRAGMA integrity_check").fetch_one(&pool).await.expect("checks");
    assert_eq!(integrity, "ok");
}

/// Dropped without `close`, with the whole runtime: only the lease tells others.
#[test]
fn a_transport_whose_runtime_is_gone_is_found_out_by_its_lease() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = config(dir.path());
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let held = runtime.block_on(async {
        config.provision().await.expect("makes the topic");
        let publisher = SqlitePublisher::connect(&config).await.expect("connects");
        for done in publisher.publish(vec![Message::new("1".into()).id("a")]).await {
            done.expect("published");
        }
        let transport = SqliteTransport::connect(&config).await.expect("connects");
        let held = transport.receive(Capacity { messages: 1, bytes: 1 }).await.expect("receives");
        std::mem::forget(transport);
        held
    });
    runtime.shutdown_background();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let transport = SqliteTransport::connect(&config).await.expect("connects");
        let again = tokio::time::timeout(Duration::from_secs(5), transport.receive(Capacity { messages: 1, bytes: 1 }))
            .await
            .expect("comes again")
            .expect("receives");
        assert_eq!((again[0].delivery_count, again[0].suspect), (Some(2), true));
    });
    drop(held);
}
