//! Nothing commits on the store's connection unless the store says so.

use std::time::Duration;

use inbox_core::{
    HandlerError, Inbox, InboxError, Message, StoreErrorKind, maintenance::Maintenance, memory::MemoryBroker,
    operator::Operator,
};
use inbox_sqlite::{
    SqliteInboxStore, SqliteTransaction, run_sql,
    sqlx::{self, SqlitePool},
};

async fn database() -> (tempfile::TempDir, SqlitePool, SqliteInboxStore) {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("app.db").display().to_string();
    let store = SqliteInboxStore::builder(&file).expect("a file").migrate_on_start(true).open().await.expect("opens");
    let pool = SqlitePool::connect(&file).await.expect("connects");
    sqlx::query("CREATE TABLE effects (number INTEGER PRIMARY KEY, text TEXT)").execute(&pool).await.expect("a table");
    sqlx::query("CREATE TRIGGER refuse BEFORE INSERT ON effects WHEN new.text = 'raise' BEGIN SELECT RAISE(ROLLBACK, 'no'); END")
        .execute(&pool)
        .await
        .expect("a trigger");
    (dir, pool, store)
}

/// Message 2 of 5 does `sql`, swallows its error, and inserts again; so do messages 3 to 5.
async fn run_five(sql: &'static str) -> (Result<(), InboxError>, Vec<String>, u64) {
    async fn handle(sql: &'static str, text: String, tx: &mut SqliteTransaction<'_>) -> Result<(), HandlerError> {
        if text == "2" {
            drop(run_sql(tx, sql).await);
        }
        drop(sqlx::query("INSERT INTO effects (text) VALUES (?1)").bind(text).execute(&mut **tx).await);
        Ok(())
    }
    let (_dir, pool, store) = database().await;
    let broker = MemoryBroker::default();
    let publisher = broker.publisher("topic");
    let messages = (1..=5).map(|n| Message::new(format!("\"{n}\"").into()).id(format!("id-{n}")).kind("k").key("one"));
    for done in inbox_core::Publisher::publish(&publisher, messages.collect()).await {
        done.expect("published");
    }
    let ended = Inbox::new("consumer", broker.transport("topic", "group"), store.clone())
        .on_with(sql, "k", handle)
        .run_until_idle(Duration::from_millis(300))
        .await;
    let effects = sqlx::query_scalar("SELECT text FROM effects ORDER BY number").fetch_all(&pool).await.expect("reads");
    let claims = store.counts_of("consumer").await.expect("counts").claims;
    (ended, effects, claims)
}

#[tokio::test]
async fn what_ends_the_transaction_inside_a_handler_leaves_nothing_and_stops_the_consumer() {
    for sql in [
        "COMMIT",
        "ROLLBACK",
        "ROLLBACK; BEGIN IMMEDIATE",
        "INSERT OR ROLLBACK INTO effects (number) VALUES (7), (7)",
        "INSERT INTO effects (text) VALUES ('raise')",
    ] {
        let (ended, effects, claims) = run_five(sql).await;
        match ended {
            Err(InboxError::Store(error)) => assert_eq!(error.kind(), StoreErrorKind::TransactionEscaped, "{sql}"),
            other => panic!("{sql}: the consumer must stop loudly, but: {other:?}"),
        }
        // The first message may have been committed on its own before; with its claim, or not at all.
        assert_eq!(effects.len() as u64, claims, "{sql}: {effects:?}");
        assert!(effects.iter().all(|text| text == "1"), "{sql}: {effects:?}");
    }
}

#[tokio::test]
async fn a_swallowed_error_of_one_statement_is_the_handlers_own_choice() {
    let (ended, effects, claims) = run_five("INSERT INTO effects (number) VALUES (9), (9)").await;
    ended.expect("runs");
    assert_eq!((effects.len(), claims), (5, 5));
}

#[tokio::test]
async fn the_store_works_on_after_an_escape() {
    let (_dir, _pool, store) = database().await;
    use inbox_core::{Candidate, InboxStore, Limits, MessageId};
    let consumer = store.register("c").await.expect("registers");
    for round in 0..3_u128 {
        let id = MessageId::from_uuid(uuid::Uuid::from_u128(round + 1));
        let mut tx = store.begin(&Limits::default()).await.expect("begins");
        let mut claims =
            store.claim(&mut tx, consumer, &[Candidate { id, fingerprint: 0, time: None }]).await.expect("claims");
        drop(run_sql(&mut tx, "COMMIT").await);
        claims.done(id);
        let kind = store.commit(tx, claims).await.expect_err("must not commit").kind();
        assert_eq!(kind, StoreErrorKind::TransactionEscaped);
        assert_eq!(store.counts(consumer).await.expect("counts").claims, 0);
    }
}

#[tokio::test]
async fn a_forgotten_nested_transaction_commits_nothing_and_stops_the_consumer() {
    async fn forget(text: String, tx: &mut SqliteTransaction<'_>) -> Result<(), HandlerError> {
        sqlx::query("INSERT INTO effects (text) VALUES (?1)").bind(&text).execute(&mut **tx).await?;
        if text == "2" {
            std::mem::forget(sqlx::Acquire::begin(&mut *tx).await?);
        }
        Ok(())
    }
    let (_dir, pool, store) = database().await;
    let broker = MemoryBroker::default();
    let messages = (1..=3).map(|n| Message::new(format!("\"{n}\"").into()).id(format!("id-{n}")).kind("k"));
    for done in inbox_core::Publisher::publish(&broker.publisher("t"), messages.collect()).await {
        done.expect("published");
    }
    let ended = Inbox::new("c", broker.transport("t", "g"), store.clone())
        .on("k", forget)
        .lanes(1)
        .run_until_idle(Duration::from_millis(300))
        .await;
    assert!(ended.is_err(), "the consumer must stop loudly");
    let effects: i64 = sqlx::query_scalar("SELECT count(*) FROM effects").fetch_one(&pool).await.expect("reads");
    assert_eq!(u64::try_from(effects).expect("a count"), store.counts_of("c").await.expect("counts").claims);
    assert!(broker.backlog("t", "g") > 0, "nothing is acknowledged that is not there");
}

#[tokio::test]
async fn a_kept_copy_has_its_content_though_its_attempts_were_counted_before() {
    use inbox_core::{
        Candidate, InboxStore, Limits, Source,
        failure_store::{Failure, FailureStore, Reason},
    };
    let (_dir, _pool, store) = database().await;
    let consumer = store.register("c").await.expect("registers");
    let id = inbox_core::MessageId::from_uuid(uuid::Uuid::from_u128(7));
    let failure = |reason| Failure {
        id,
        fingerprint: 2,
        reason,
        error: "why".into(),
        message: Message::new("the second content".into()),
        source: Source::new("t"),
    };
    store.record_attempt(consumer, &failure(Reason::Retrying)).await.expect("counts");
    let mut tx = store.begin(&Limits::default()).await.expect("begins");
    let first = Candidate { id, fingerprint: 1, time: None };
    let mut claims = store.claim(&mut tx, consumer, &[first]).await.expect("claims");
    claims.done(id);
    store.commit(tx, claims).await.expect("commits");
    let mut tx = store.begin(&Limits::default()).await.expect("begins");
    let second = Candidate { fingerprint: 2, ..first };
    let claims = store.claim(&mut tx, consumer, &[second]).await.expect("claims");
    store.keep(&mut tx, consumer, &failure(Reason::IdConflict)).await.expect("keeps");
    store.commit(tx, claims).await.expect("commits");
    let rows = store.failures("c", 10).await.expect("reads");
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0].reason, rows[0].body.as_deref()), (Reason::IdConflict, Some(&b"the second content"[..])));
}
