//! Settings of the role, the database and the handlers that must not matter.

use std::time::Duration;

use inbox_core::{HandlerError, InboxError, InboxStore, Limits, StoreErrorKind, operator::Operator};
use inbox_postgres::{PgTransaction, sqlx};
use tokio::task::JoinSet;

use crate::support::{Bench, IDLE, insert, put, raw, unique, within};

/// Two that change what the same table grants would meet each other's catalogue row.
const ONE_AT_A_TIME: &str = "SELECT pg_advisory_xact_lock(4711)";

/// A bench whose store connects as a role of its own, with these settings.
async fn as_role(name: &str, settings: &[&str]) -> (Bench, String) {
    as_role_by(name, settings, |_| {}).await
}

/// As [`as_role`], by a URL that is changed further.
pub(crate) async fn as_role_by(name: &str, settings: &[&str], change: impl FnOnce(&mut url::Url)) -> (Bench, String) {
    let role = unique("role");
    let bench = Bench::with(name, |url| {
        url.set_username(&role).expect("a user");
        url.set_password(Some("secret")).expect("a password");
        change(url);
    })
    .await;
    // What the docs say that a running role needs; and the application's own table.
    bench
        .sql(&format!(
            "{ONE_AT_A_TIME}; CREATE ROLE {role} LOGIN PASSWORD 'secret';
             GRANT USAGE ON SCHEMA inbox TO {role};
             GRANT SELECT ON inbox.schema_version TO {role};
             GRANT SELECT, INSERT ON inbox.consumers TO {role};
             GRANT SELECT, INSERT, DELETE ON inbox.claims, inbox.guard TO {role};
             GRANT SELECT, INSERT, UPDATE, DELETE ON inbox.failures TO {role};
             GRANT SELECT, INSERT ON {} TO {role}",
            bench.name
        ))
        .await;
    for setting in settings {
        bench.sql(&format!("ALTER ROLE {role} SET {setting}")).await;
    }
    (bench, role)
}

pub(crate) async fn close(bench: Bench, role: &str) {
    let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1";
    sqlx::query(sql).bind(role).execute(&bench.pool).await.expect("ends them");
    bench.sql(&format!("{ONE_AT_A_TIME}; DROP OWNED BY {role}; DROP ROLE {role}")).await;
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_with_hostile_defaults_changes_nothing() {
    let hostile = [
        "default_transaction_isolation = serializable",
        "default_transaction_deferrable = on",
        "default_transaction_read_only = on",
        "lock_timeout = '1ms'",
        "statement_timeout = '500ms'",
        "idle_in_transaction_session_timeout = '20ms'",
        "synchronous_commit = off",
        "search_path = 'pg_temp'",
        "client_min_messages = debug1",
        "plan_cache_mode = force_generic_plan",
        "DateStyle = 'SQL, DMY'",
        "TimeZone = 'Pacific/Chatham'",
        "bytea_output = escape",
        "standard_conforming_strings = off",
    ];
    let (bench, role) = as_role("hostile", &hostile).await;
    bench.publish(1..=200).await;
    let table = format!("public.{}", bench.name);
    let inbox = bench.inbox().on_with(table, "k", slow_insert).max_batch(20).build().expect("builds");
    let handle = inbox.handle();
    within(60, inbox.run_until_idle(IDLE)).await.expect("runs");
    bench.assert_each_once(1..=200).await;
    let numbers = handle.numbers();
    assert_eq!((numbers.applied, numbers.attempts_failed, numbers.rollbacks), (200, 0, 0));
    assert_eq!(bench.counts().await.claims, 200);
    close(bench, &role).await;
}

/// Is idle in its transaction for longer than the role may be.
async fn slow_insert(table: String, n: i64, tx: &mut PgTransaction<'_>) -> Result<(), HandlerError> {
    insert(table, n, tx).await?;
    if n % 20 == 0 {
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_permissions_in_the_docs_are_enough_to_run_and_to_fail() {
    async fn pick(table: String, n: i64, tx: &mut PgTransaction<'_>) -> Result<(), HandlerError> {
        put(&table, n, tx).await?;
        match n {
            1 => Err(HandlerError::reject("no")),
            2 => Err(std::io::Error::other("not yet").into()),
            3 => raw("COMMIT", tx).await.map_err(Into::into),
            _ => Ok(()),
        }
    }
    let (bench, role) = as_role("permissions", &[]).await;
    bench.publish(1..=2).await;
    bench.publish(4..=9).await;
    let inbox = || bench.inbox().on_with(bench.name.clone(), "k", pick).max_attempts(2).max_batch_time(IDLE);
    within(30, inbox().run_until_idle(IDLE)).await.expect("runs");
    bench.assert_each_once(4..=9).await;
    let counts = bench.counts().await;
    assert_eq!((counts.claims, counts.quarantined, counts.retrying), (8, 2, 0));
    bench.publish(3..=3).await;
    let ended = within(30, inbox().run_until_idle(IDLE)).await;
    assert!(
        matches!(&ended, Err(InboxError::Store(error)) if error.kind() == StoreErrorKind::TransactionEscaped),
        "{ended:?}"
    );
    bench.assert_each_once(4..=9).await;
    close(bench, &role).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_begin_promises_is_in_force_and_the_roles_lock_timeout_is_the_handlers() {
    let (bench, role) =
        as_role("begin", &["default_transaction_isolation = serializable", "lock_timeout = '77ms'"]).await;
    let consumer = bench.store.register(&bench.name).await.expect("registers");
    let limits = Limits { claim_wait: Duration::from_millis(123), statement_timeout: Duration::from_millis(4_567) };
    let mut tx = bench.store.begin(&limits).await.expect("begins");
    let claims = bench.store.claim(&mut tx, consumer, &[]).await.expect("claims");
    let shown: Vec<String> = sqlx::query_scalar(
        "SELECT current_setting(name) FROM unnest('{transaction_isolation, transaction_read_only, lock_timeout,
            statement_timeout, idle_in_transaction_session_timeout, default_transaction_read_only}'::text[]) name",
    )
    .fetch_all(&mut *tx)
    .await
    .expect("reads");
    assert_eq!(shown, ["read committed", "off", "77ms", "4567ms", "0", "on"]);
    bench.store.commit(tx, claims).await.expect("commits");
    close(bench, &role).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_made_read_only_during_a_run_loses_nothing() {
    let (bench, role) = as_role("switch", &[]).await;
    bench.publish(1..=1_000).await;
    let mut tasks = JoinSet::new();
    let (pool, name) = (bench.pool.clone(), role.clone());
    tasks.spawn(async move {
        for round in 0..6 {
            let value = if round % 2 == 0 { "on" } else { "off" };
            let sql = format!(
                "ALTER ROLE {name} SET default_transaction_read_only = {value};
                 SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{name}'"
            );
            sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&pool).await.expect("a setting");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let inbox = bench.inbox().on_with(bench.name.clone(), "k", insert).max_batch(10).build().expect("builds");
    let handle = inbox.handle();
    within(60, inbox.run_until_idle(IDLE)).await.expect("runs");
    tasks.join_all().await;
    bench.assert_each_once(1..=1_000).await;
    assert_eq!(handle.numbers().attempts_failed, 0);
    close(bench, &role).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_the_server_closes_when_idle_are_not_noticed() {
    let (bench, role) = as_role("idle", &["idle_session_timeout = '100ms'"]).await;
    for _ in 0..3 {
        let mut open = Vec::new();
        for _ in 0..5 {
            open.push(bench.store.begin(&Limits::default()).await.expect("begins"));
        }
        for tx in open {
            bench.store.rollback(tx).await.expect("rolls back");
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
        bench.store.failures(&bench.name, 1).await.expect("reads");
    }
    close(bench, &role).await;
}
