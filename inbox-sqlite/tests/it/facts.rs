//! What SQLite's hooks really do, as the guard relies on it.

use inbox_core::{
    Candidate, Claims, ConsumerId, InboxStore, Limits, MessageId, StoreErrorKind, maintenance::Maintenance,
};
use inbox_sqlite::{
    SqliteInboxStore, SqliteTransaction, run_sql,
    sqlx::{self, Connection, SqlitePool},
};

struct Place {
    _dir: tempfile::TempDir,
    file: String,
    pool: SqlitePool,
    store: SqliteInboxStore,
    consumer: ConsumerId,
}

async fn place() -> Place {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("app.db").display().to_string();
    let store = SqliteInboxStore::builder(&file).expect("a file").migrate_on_start(true).open().await.expect("opens");
    let pool = SqlitePool::connect(&file).await.expect("connects");
    sqlx::query("CREATE TABLE effects (number INTEGER PRIMARY KEY, text TEXT)").execute(&pool).await.expect("a table");
    let consumer = store.register("c").await.expect("registers");
    Place { _dir: dir, file, pool, store, consumer }
}

impl Place {
    async fn claim(&self, n: u128) -> (SqliteTransaction<'static>, Claims) {
        let id = MessageId::from_uuid(uuid::Uuid::from_u128(n));
        let mut tx = self.store.begin(&Limits::default()).await.expect("begins");
        let mut claims = self
            .store
            .claim(&mut tx, self.consumer, &[Candidate { id, fingerprint: 0, time: None }])
            .await
            .expect("claims");
        claims.done(id);
        (tx, claims)
    }

    async fn kept(&self) -> (i64, u64) {
        let effects = sqlx::query_scalar("SELECT count(*) FROM effects").fetch_one(&self.pool).await.expect("reads");
        (effects, self.store.counts(self.consumer).await.expect("counts").claims)
    }
}

const INSERT: &str = "INSERT INTO effects (text) VALUES ('x')";

#[tokio::test]
async fn savepoints_of_every_kind_are_no_escape() {
    let place = place().await;
    for (n, sql) in [
        "SAVEPOINT a; INSERT INTO effects (text) VALUES ('x'); RELEASE a",
        "SAVEPOINT a; INSERT INTO effects (text) VALUES ('y'); ROLLBACK TO a; INSERT INTO effects (text) VALUES ('x'); RELEASE a",
        "SAVEPOINT a; SAVEPOINT b; INSERT INTO effects (text) VALUES ('x'); RELEASE a",
    ]
    .into_iter()
    .enumerate()
    {
        let (mut tx, claims) = place.claim(n as u128 + 1).await;
        run_sql(&mut tx, sql).await.expect(sql);
        place.store.check(&mut tx, &claims).await.expect(sql);
        place.store.commit(tx, claims).await.expect(sql);
    }
    assert_eq!(place.kept().await, (3, 3));
}

#[tokio::test]
async fn sqlx_nested_transactions_are_no_escape() {
    let place = place().await;
    for (n, how) in ["commit", "rollback", "drop"].into_iter().enumerate() {
        let (mut tx, claims) = place.claim(n as u128 + 1).await;
        let mut nested = tx.begin().await.expect("a savepoint");
        sqlx::query(INSERT).execute(&mut *nested).await.expect("inserts");
        match how {
            "commit" => nested.commit().await.expect("releases"),
            "rollback" => nested.rollback().await.expect("rolls back to"),
            _ => drop(nested),
        }
        place.store.commit(tx, claims).await.expect(how);
    }
    assert_eq!(place.kept().await, (1, 3));
}

#[tokio::test]
async fn after_an_escape_nothing_commits_in_any_way() {
    for after in [
        INSERT,
        "SAVEPOINT a; INSERT INTO effects (text) VALUES ('x'); RELEASE a",
        "BEGIN; INSERT INTO effects (text) VALUES ('x'); COMMIT",
        "BEGIN IMMEDIATE; INSERT INTO effects (text) VALUES ('x'); END TRANSACTION",
        "CREATE TABLE more (n)",
    ] {
        for first in ["COMMIT", "ROLLBACK", "INSERT OR ROLLBACK INTO effects (number) VALUES (1), (1)"] {
            let place = place().await;
            let (mut tx, claims) = place.claim(1).await;
            drop(run_sql(&mut tx, first).await);
            drop(run_sql(&mut tx, after).await);
            let kind = place.store.commit(tx, claims).await.map_err(|error| error.kind());
            assert_eq!(kind, Err(StoreErrorKind::TransactionEscaped), "{first}; {after}");
            assert_eq!(place.kept().await, (0, 0), "{first}; {after}");
            let more: i64 = sqlx::query_scalar("SELECT count(*) FROM sqlite_master WHERE name = 'more'")
                .fetch_one(&place.pool)
                .await
                .expect("reads");
            assert_eq!(more, 0, "{first}; {after}");
            // And the store goes on.
            let (mut tx, claims) = place.claim(1).await;
            sqlx::query(INSERT).execute(&mut *tx).await.expect("inserts");
            place.store.commit(tx, claims).await.expect("commits");
            assert_eq!(place.kept().await, (1, 1), "{first}; {after}");
        }
    }
}

#[tokio::test]
async fn another_file_attached_after_an_escape_keeps_nothing_either() {
    let place = place().await;
    let other = format!("{}-other", place.file);
    SqlitePool::connect_with(sqlx::sqlite::SqliteConnectOptions::new().filename(&other).create_if_missing(true))
        .await
        .expect("makes the file");
    let (mut tx, claims) = place.claim(1).await;
    drop(run_sql(&mut tx, "ROLLBACK").await);
    drop(run_sql(&mut tx, &format!("ATTACH '{other}' AS o")).await);
    drop(run_sql(&mut tx, "CREATE TABLE o.t (n)").await);
    assert!(place.store.commit(tx, claims).await.is_err());
    let pool = SqlitePool::connect(&other).await.expect("connects");
    let tables: i64 = sqlx::query_scalar("SELECT count(*) FROM sqlite_master").fetch_one(&pool).await.expect("reads");
    assert_eq!(tables, 0);
}

/// A full disk, by SQLite's own bound on a file's size.
#[tokio::test]
async fn a_full_database_keeps_nothing_and_is_an_outage() {
    let place = place().await;
    let (mut tx, claims) = place.claim(1).await;
    run_sql(&mut tx, "PRAGMA max_page_count = 20").await.expect("a bound");
    sqlx::query(INSERT).execute(&mut *tx).await.expect("inserts");
    let full = run_sql(&mut tx, "INSERT INTO effects (text) VALUES (zeroblob(1000000))").await.expect_err("is full");
    assert_eq!(place.store.classify(&full), inbox_core::Blame::Infrastructure, "{full}");
    // SQLite ends the transaction by itself. That is an outage, to be waited out (DESIGN §7), and no handler's own
    // ROLLBACK, which would end the consumer.
    let kind = place.store.commit(tx, claims).await.map_err(|error| error.kind());
    assert_eq!(place.kept().await, (0, 0));
    assert_eq!(kind, Err(StoreErrorKind::Unavailable));
}

#[tokio::test]
async fn an_in_memory_pool_is_refused_as_a_file_is_asked_for() {
    let pool = SqlitePool::connect("sqlite::memory:").await.expect("connects");
    let opened = SqliteInboxStore::new(&pool).await;
    assert!(opened.is_err(), "its own connections see another, empty database: claims and effects are apart");
}

#[tokio::test]
async fn whose_fault_errors_of_the_file_system_are() {
    let dir = tempfile::tempdir().expect("a folder");
    let place = place().await;
    // 14, CANTOPEN: what a process without file descriptors meets, too.
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(dir.path().join("no/such/folder.db"));
    let error = SqlitePool::connect_with(options).await.expect_err("cannot open");
    assert_eq!(place.store.classify(&error), inbox_core::Blame::Infrastructure, "{error}");
}
