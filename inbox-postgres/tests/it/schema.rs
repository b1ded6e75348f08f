//! The tables: made once, by whoever comes first, and never guessed.

use inbox_core::{Claim, InboxStore, Limits, StoreErrorKind, maintenance::Maintenance, report};
use inbox_postgres::{
    PgConfig, PgInboxStore,
    sqlx::{self, AssertSqlSafe, Connection, PgConnection, PgPool},
};
use tokio::task::JoinSet;

use crate::support::{candidate, unique, url, url_with, within};

/// A database of its own.
pub(crate) struct Scratch {
    pub(crate) name: String,
    pub(crate) url: String,
}

impl Scratch {
    pub(crate) async fn new() -> Self {
        let name = unique("db");
        server(format!("CREATE DATABASE {name} TEMPLATE template0")).await;
        Self { url: url_with(|url| url.set_path(&name)), name }
    }

    async fn store(&self) -> PgInboxStore {
        PgInboxStore::connect(&self.url).await.expect("connects")
    }

    pub(crate) async fn drop(self) {
        server(format!("DROP DATABASE {} WITH (FORCE)", self.name)).await;
    }
}

async fn server(sql: String) {
    let mut connection = PgConnection::connect(&url()).await.expect("connects");
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.expect("a database");
    connection.close().await.expect("closes");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_instances_migrate_an_empty_database_at_once() {
    let scratch = Scratch::new().await;
    let url = scratch.url.clone();
    migrate_at_once(scratch, &url).await;
}

/// Eight at once, by `url`, into a database that is empty.
pub(crate) async fn migrate_at_once(scratch: Scratch, url: &str) {
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let store = PgInboxStore::connect(url).await.expect("connects");
        tasks.spawn(async move {
            store.migrate().await.expect("migrates");
            store.register("all the same").await.expect("registers")
        });
    }
    let numbers = within(30, tasks.join_all()).await;
    assert!(numbers.iter().all(|number| *number == numbers[0]), "{numbers:?}");
    let pool = PgPool::connect(&scratch.url).await.expect("connects");
    let ours: bool = sqlx::query_scalar(
        "SELECT NOT EXISTS (SELECT FROM pg_tables WHERE schemaname NOT IN ('inbox', 'pg_catalog', 'information_schema'))",
    )
    .fetch_one(&pool)
    .await
    .expect("reads");
    assert!(ours, "nothing outside the schema `inbox`");
    pool.close().await;
    scratch.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_or_newer_schema_is_named_with_what_to_do() {
    let scratch = Scratch::new().await;
    let store = scratch.store().await;
    let error = store.register("c").await.expect_err("no tables");
    assert_eq!(error.kind(), StoreErrorKind::Schema);
    let text = report(&error);
    assert!(text.contains("store.migrate()") && text.contains("migrate_on_start"), "{text}");
    store.migrate().await.expect("migrates");
    store.register("c").await.expect("registers");
    let pool = PgPool::connect(&scratch.url).await.expect("connects");
    sqlx::query("INSERT INTO inbox.schema_version (version) VALUES (99)").execute(&pool).await.expect("inserts");
    for error in [store.register("c").await.expect_err("newer"), store.migrate().await.expect_err("newer")] {
        assert_eq!(error.kind(), StoreErrorKind::Schema);
        let text = report(&error);
        assert!(text.contains("version 99") && text.contains("update the program"), "{text}");
    }
    sqlx::query("DELETE FROM inbox.schema_version").execute(&pool).await.expect("deletes");
    let error = store.register("c").await.expect_err("older");
    assert_eq!(error.kind(), StoreErrorKind::Schema);
    assert!(report(&error).contains("store.migrate()"), "{}", report(&error));
    pool.close().await;
    scratch.drop().await;
}

/// The tables as the first version made them, with a message that it has processed.
#[tokio::test(flavor = "multi_thread")]
async fn older_tables_are_named_and_brought_up_to_date_with_what_they_hold() {
    let scratch = Scratch::new().await;
    let pool = PgPool::connect(&scratch.url).await.expect("connects");
    let v1 = include_str!("../../../inbox-postgres-sql/src/v1.sql");
    let seen = candidate();
    let sql = format!(
        "CREATE SCHEMA inbox; {v1}; INSERT INTO inbox.schema_version (version) VALUES (1);
         INSERT INTO inbox.consumers (name) VALUES ('c');
         INSERT INTO inbox.claims SELECT number, '{}', {}, now() FROM inbox.consumers",
        seen.id.as_uuid(),
        seen.fingerprint
    );
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&pool).await.expect("makes the older tables");
    let store = scratch.store().await;
    let error = store.register("c").await.expect_err("older");
    assert_eq!(error.kind(), StoreErrorKind::Schema);
    let text = report(&error);
    assert!(text.contains("version 1,") && text.contains("store.migrate()"), "{text}");
    store.migrate().await.expect("migrates");
    store.migrate().await.expect("there is nothing left to do");
    let consumer = store.register("c").await.expect("registers");
    let mut tx = store.begin(&Limits::default()).await.expect("begins");
    let claims = store.claim(&mut tx, consumer, &[seen]).await.expect("claims");
    assert_eq!(claims.get(seen.id), Some(Claim::Duplicate));
    store.rollback(tx).await.expect("rolls back");
    pool.close().await;
    scratch.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_owns_the_schema_migrates_and_one_that_only_runs_starts() {
    let scratch = Scratch::new().await;
    let (owner, runner) = (unique("owner"), unique("runner"));
    let pool = PgPool::connect(&scratch.url).await.expect("connects");
    let sql = |sql: String| sqlx::raw_sql(AssertSqlSafe(sql)).execute(&pool);
    sql(format!(
        "CREATE ROLE {owner} LOGIN PASSWORD 'secret'; CREATE ROLE {runner} LOGIN PASSWORD 'secret';
         CREATE SCHEMA inbox AUTHORIZATION {owner}"
    ))
    .await
    .expect("roles");
    let store = |role: &String| {
        let mut url = url::Url::parse(&scratch.url).expect("a URL");
        url.set_username(role).expect("a user");
        url.set_password(Some("secret")).expect("a password");
        PgConfig::url(url.as_str()).expect("a URL").migrate_on_start(true).open().expect("a store")
    };
    let error = store(&runner).register("c").await.expect_err("no permission");
    assert_eq!(error.kind(), StoreErrorKind::Unauthorized, "{}", report(&error));
    store(&owner).register("c").await.expect("migrates");
    sql(format!(
        "GRANT USAGE ON SCHEMA inbox TO {runner}; GRANT SELECT ON inbox.schema_version, inbox.consumers TO {runner};
         GRANT INSERT ON inbox.consumers TO {runner}"
    ))
    .await
    .expect("grants");
    store(&runner).register("d").await.expect("registers");
    pool.close().await;
    scratch.drop().await;
    server(format!("DROP ROLE {owner}; DROP ROLE {runner}")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumers_name_is_checked() {
    let scratch = Scratch::new().await;
    let store = scratch.store().await;
    store.migrate().await.expect("migrates");
    for name in ["", "  ", "nul\0", "line\nbreak", &"x".repeat(201)] {
        let error = store.register(name).await.expect_err("refused");
        assert_eq!(error.kind(), StoreErrorKind::InvalidConfig, "{name:?}");
    }
    store.register(&"x".repeat(200)).await.expect("registers");
    scratch.drop().await;
}
