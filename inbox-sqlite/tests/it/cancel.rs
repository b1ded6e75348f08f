//! Futures that are dropped half-way.

use std::time::Duration;

use inbox_core::{Candidate, InboxStore, Limits, MessageId, maintenance::Maintenance};
use inbox_sqlite::{
    SqliteInboxStore, run_sql,
    sqlx::{self, SqlitePool},
};
use tokio::time::timeout;

async fn database() -> (tempfile::TempDir, String, SqlitePool, SqliteInboxStore) {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("app.db").display().to_string();
    let store = SqliteInboxStore::builder(&file).expect("a file").migrate_on_start(true).open().await.expect("opens");
    let pool = SqlitePool::connect(&file).await.expect("connects");
    sqlx::query("CREATE TABLE effects (number INTEGER PRIMARY KEY, text TEXT)").execute(&pool).await.expect("a table");
    (dir, file, pool, store)
}

async fn claims_one(store: &SqliteInboxStore, pool: &SqlitePool, n: u128) {
    let consumer = store.register("c").await.expect("registers");
    let id = MessageId::from_uuid(uuid::Uuid::from_u128(n));
    let mut tx = store.begin(&Limits::default()).await.expect("begins");
    let mut claims =
        store.claim(&mut tx, consumer, &[Candidate { id, fingerprint: 0, time: None }]).await.expect("claims");
    sqlx::query("INSERT INTO effects (text) VALUES ('x')").execute(&mut *tx).await.expect("inserts");
    claims.done(id);
    let before: i64 = sqlx::query_scalar("SELECT count(*) FROM effects").fetch_one(pool).await.expect("reads");
    store.commit(tx, claims).await.expect("commits");
    let after: i64 = sqlx::query_scalar("SELECT count(*) FROM effects").fetch_one(pool).await.expect("reads");
    assert_eq!(after, before + 1, "what commit said Ok to is there (round {n})");
}

/// `register`, `migrate` and the like are no `begin`: their docs say nothing of cancellation, so a timeout around them
/// must leave a store that works.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_register_leaves_a_store_that_works() {
    let (_dir, _file, pool, store) = database().await;
    for round in 0..300_u64 {
        let name = format!("consumer-{round}");
        drop(timeout(Duration::from_micros((round * 13) % 900), store.register(&name)).await);
        claims_one(&store, &pool, u128::from(round) + 1).await;
    }
}

/// The same while somebody else holds the file, so that the drop falls into BEGIN itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_register_dropped_in_begin_leaves_a_store_that_works() {
    let (_dir, _file, pool, store) = database().await;
    for round in 0..30_u64 {
        let other = pool.begin_with("BEGIN IMMEDIATE").await.expect("begins");
        let name = format!("consumer-{round}");
        drop(timeout(Duration::from_millis(10 + round), store.register(&name)).await);
        other.rollback().await.expect("rolls back");
        claims_one(&store, &pool, u128::from(round) + 1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_dropped_in_the_middle_of_a_statement_is_rolled_back() {
    let long = "INSERT INTO effects (text) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300000) SELECT i FROM n";
    let escapes = "INSERT OR ROLLBACK INTO effects (number, text) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300000) SELECT min(i, 299990), i FROM n";
    for (round, sql) in [long, escapes, "ROLLBACK", "COMMIT"].into_iter().enumerate() {
        let (_dir, _file, pool, store) = database().await;
        let consumer = store.register("c").await.expect("registers");
        let id = MessageId::from_uuid(uuid::Uuid::from_u128(77));
        let mut tx = store.begin(&Limits::default()).await.expect("begins");
        let claims =
            store.claim(&mut tx, consumer, &[Candidate { id, fingerprint: 0, time: None }]).await.expect("claims");
        let wait = if round < 2 { Duration::from_millis(5) } else { Duration::ZERO };
        drop(timeout(wait, run_sql(&mut tx, sql)).await);
        let rolled_back = store.rollback(tx).await;
        assert!(rolled_back.is_ok(), "{sql}: {rolled_back:?}");
        drop(claims);
        let effects: i64 = sqlx::query_scalar("SELECT count(*) FROM effects").fetch_one(&pool).await.expect("reads");
        assert_eq!((effects, store.counts(consumer).await.expect("counts").claims), (0, 0), "{sql}");
        claims_one(&store, &pool, 1).await;
    }
}
