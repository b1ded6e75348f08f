//! Nothing commits on the store's connections unless the store says so, and what it says is true.

use std::{mem::ManuallyDrop, time::Duration};

use inbox_core::{
    Backoff, Blame, Claim, HandlerError, InboxError, InboxStore, Limits, StoreError, StoreErrorKind, operator::Operator,
};
use inbox_postgres::{
    PgTransaction,
    sqlx::{Acquire, PgPool},
};

use tokio::task::JoinSet;

use crate::support::{Bench, IDLE, candidate, put, raw, within};

/// What message 2 does, and whether the handlers pass on the errors of their inserts.
#[derive(Clone)]
pub(crate) struct Deed {
    pub(crate) table: String,
    pub(crate) sql: &'static str,
    pub(crate) swallow: bool,
}

pub(crate) async fn misbehave(deed: Deed, n: i64, tx: &mut PgTransaction<'_>) -> Result<(), HandlerError> {
    if n == 2 {
        drop(raw(deed.sql, tx).await);
    }
    match put(&deed.table, n, tx).await {
        Err(error) if !deed.swallow => Err(error.into()),
        _ => Ok(()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ends_the_transaction_inside_a_handler_leaves_nothing_and_stops_the_consumer() {
    let mut tasks = JoinSet::new();
    for sql in [
        "COMMIT",
        "ROLLBACK",
        "COMMIT AND CHAIN",
        "ROLLBACK AND CHAIN",
        "ROLLBACK; BEGIN READ WRITE",
        "COMMIT; BEGIN READ WRITE",
    ] {
        tasks.spawn(ends_and_is_mended(sql, true));
        tasks.spawn(ends_and_is_mended(sql, false));
    }
    tasks.join_all().await;
}

async fn ends_and_is_mended(sql: &'static str, swallow: bool) {
    let bench = Bench::new("guard").await;
    stops_and_is_mended(&bench, sql, swallow).await;
    bench.close().await;
}

pub(crate) async fn stops_and_is_mended(bench: &Bench, sql: &'static str, swallow: bool) {
    bench.publish_in_order(1..=5).await;
    let deed = Deed { table: bench.name.clone(), sql, swallow };
    let ended = within(30, bench.inbox().on_with(deed, "k", misbehave).run_until_idle(IDLE)).await;
    match ended {
        Err(InboxError::Store(error)) => assert_eq!(error.kind(), StoreErrorKind::TransactionEscaped, "{sql}"),
        other => panic!("{sql}, swallowing {swallow}: the consumer must stop loudly, but: {other:?}"),
    }
    let (effects, claims) = (bench.effects().await, bench.counts().await.claims);
    // The first message may have been committed on its own before; with its claim, or not at all.
    assert_eq!(effects.len() as u64, claims, "{sql}: {effects:?}");
    assert!(effects.iter().all(|effect| *effect == 1), "{sql}: {effects:?}");
    bench.run_well().await;
    bench.assert_each_once(1..=5).await;
}

/// A transaction that has claimed a new id and put an effect, for `deed` to spoil; what `check` and `commit` say then.
async fn spoiled<F>(bench: &Bench, deed: F) -> (Result<(), StoreErrorKind>, Result<(), StoreErrorKind>)
where
    F: AsyncFnOnce(&mut PgTransaction<'static>),
{
    let kind = |error: StoreError| error.kind();
    let consumer = bench.store.register(&bench.name).await.expect("registers");
    let candidate = candidate();
    let mut tx = bench.store.begin(&Limits::default()).await.expect("begins");
    let mut claims = bench.store.claim(&mut tx, consumer, &[candidate]).await.expect("claims");
    put(&bench.name, 7, &mut tx).await.expect("inserts");
    deed(&mut tx).await;
    let checked = bench.store.check(&mut tx, &claims).await.map_err(kind);
    claims.done(candidate.id);
    let committed = bench.store.commit(tx, claims).await.map_err(kind);
    let mut again = bench.store.begin(&Limits::default()).await.expect("begins");
    let claims = bench.store.claim(&mut again, consumer, &[candidate]).await.expect("claims");
    let (expected, effects) = if committed.is_ok() { (Claim::Duplicate, 1) } else { (Claim::New, 0) };
    assert_eq!(claims.get(candidate.id), Some(expected), "what `commit` said of the claim is true");
    assert_eq!(bench.effects().await.len(), effects, "what `commit` said of the effect is true");
    bench.store.rollback(again).await.expect("rolls back");
    (checked, committed)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forgotten_nested_transaction_is_no_silent_loss() {
    let bench = Bench::new("nested").await;
    let said = spoiled(&bench, async |tx| {
        let _forgotten = ManuallyDrop::new(tx.begin().await.expect("begins"));
    })
    .await;
    let escaped = Err(StoreErrorKind::TransactionEscaped);
    assert_eq!(said, (escaped, escaped));
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forgotten_nested_transaction_stops_the_consumer() {
    async fn forgetful(table: String, n: i64, tx: &mut PgTransaction<'_>) -> Result<(), HandlerError> {
        put(&table, n, tx).await?;
        if n == 2 {
            let _forgotten = ManuallyDrop::new(tx.begin().await?);
        }
        Ok(())
    }
    let bench = Bench::new("forget").await;
    bench.publish_in_order(1..=5).await;
    let run = bench.inbox().on_with(bench.name.clone(), "k", forgetful).run_until_idle(IDLE);
    match within(30, run).await {
        Err(InboxError::Store(error)) => assert_eq!(error.kind(), StoreErrorKind::TransactionEscaped),
        other => panic!("the consumer must stop loudly, but: {other:?}"),
    }
    assert_eq!(bench.effects().await.len() as u64, bench.counts().await.claims);
    bench.run_well().await;
    bench.assert_each_once(1..=5).await;
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nested_transactions_that_end_are_the_handlers_own_business() {
    for keep in [true, false] {
        let bench = Bench::new("savepoint").await;
        let said = spoiled(&bench, async |tx| {
            let mut nested = tx.begin().await.expect("begins");
            drop(raw("SELECT 1 / 0", &mut nested).await);
            if keep {
                nested.rollback().await.expect("rolls back");
            }
        })
        .await;
        assert_eq!(said, (Ok(()), Ok(())));
        bench.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_made_read_only_is_no_escape() {
    let aborted = Err(StoreErrorKind::TransactionAborted);
    let escaped = Err(StoreErrorKind::TransactionEscaped);
    for (sql, said) in [
        ("SET TRANSACTION READ ONLY", (Ok(()), aborted)),
        ("SET LOCAL transaction_read_only = on", (Ok(()), aborted)),
        // Outside ours: the session is read-only.
        ("ROLLBACK", (escaped, escaped)),
        ("COMMIT", (escaped, escaped)),
    ] {
        let bench = Bench::new("read_only").await;
        assert_eq!(spoiled(&bench, async |tx| drop(raw(sql, tx).await)).await, said, "{sql}");
        bench.close().await;
    }
    let bench = Bench::new("read_only").await;
    let said = spoiled(&bench, async |tx| {
        raw("SET TRANSACTION READ ONLY", tx).await.expect("a setting");
        drop(put(&bench.name, 8, tx).await.expect_err("read-only"));
    })
    .await;
    assert_eq!(said, (aborted, aborted), "after a statement that failed because of it");
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_makes_its_transaction_read_only_is_quarantined_and_harms_no_other() {
    for swallow in [true, false] {
        let bench = Bench::new("read_only").await;
        bench.publish_in_order(1..=5).await;
        let deed = Deed { table: bench.name.clone(), sql: "SET TRANSACTION READ ONLY", swallow };
        let inbox = bench
            .inbox()
            .on_with(deed, "k", misbehave)
            .max_attempts(3)
            .backoff(Backoff { first: Duration::from_millis(5), most: Duration::from_millis(5) })
            .build()
            .expect("builds");
        let handle = inbox.handle();
        within(30, inbox.run_until_idle(IDLE)).await.expect("no reason to stop");
        let numbers = handle.numbers();
        assert_eq!((numbers.applied, numbers.quarantined, numbers.attempts_failed), (4, 1, 3), "swallowing {swallow}");
        let failures = bench.store.failures(&bench.name, 10).await.expect("reads");
        assert_eq!(failures.iter().map(|row| row.body.as_deref()).collect::<Vec<_>>(), [Some(&b"2"[..])]);
        assert_eq!(bench.effects().await, [1, 3, 4, 5]);
        bench.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn constraints_made_immediate_meet_the_guard() {
    let bench = Bench::new("immediate").await;
    let consumer = bench.store.register(&bench.name).await.expect("registers");
    let mut tx = bench.store.begin(&Limits::default()).await.expect("begins");
    let claims = bench.store.claim(&mut tx, consumer, &[candidate()]).await.expect("claims");
    let error = raw("SET CONSTRAINTS ALL IMMEDIATE", &mut tx).await.expect_err("refused");
    assert_eq!(bench.store.classify(&error), Blame::Message);
    drop(claims);
    bench.store.rollback(tx).await.expect("rolls back");
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn synchronous_commit_is_put_back_before_commit() {
    for (set, found) in [("off", "on"), ("local", "on"), ("on", "on"), ("remote_apply", "remote_apply")] {
        let bench = Bench::new("sync").await;
        notes_at_commit(&bench, "synchronous_commit").await;
        let (checked, committed) = spoiled(&bench, async |tx| {
            raw(&format!("SET LOCAL synchronous_commit = {set}"), tx).await.expect("a setting");
        })
        .await;
        assert_eq!((checked, committed), (Ok(()), Ok(())));
        assert_eq!(noted_at_commit(&bench).await, [found.to_owned()], "{set}");
        bench.sql(&format!("DROP FUNCTION {0}_note CASCADE; DROP TABLE {0}_noted", bench.name)).await;
        bench.close().await;
    }
}

/// Makes a deferred trigger on the table of effects, which runs after our last statement.
async fn notes_at_commit(bench: &Bench, setting: &str) {
    let table = &bench.name;
    bench
        .sql(&format!(
            "CREATE TABLE {table}_noted (value text);
             CREATE FUNCTION {table}_note() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN INSERT INTO {table}_noted VALUES (current_setting('{setting}')); RETURN NULL; END $$;
             CREATE CONSTRAINT TRIGGER note AFTER INSERT ON {table} DEFERRABLE INITIALLY DEFERRED
                 FOR EACH ROW EXECUTE FUNCTION {table}_note()"
        ))
        .await;
}

async fn noted_at_commit(bench: &Bench) -> Vec<String> {
    let pool: &PgPool = &bench.pool;
    let sql = inbox_postgres::sqlx::AssertSqlSafe(format!("SELECT value FROM {}_noted", bench.name));
    inbox_postgres::sqlx::query_scalar(sql).fetch_all(pool).await.expect("reads")
}

/// Why there is a last statement of ours: the fact that everything here is built on.
#[tokio::test(flavor = "multi_thread")]
async fn without_it_sqlx_says_ok_to_a_commit_that_keeps_nothing() {
    let bench = Bench::new("red").await;
    let mut tx = bench.pool.begin().await.expect("begins");
    put(&bench.name, 1, &mut tx).await.expect("inserts");
    drop(raw("SELECT 1 / 0", &mut tx).await);
    tx.commit().await.expect("says that it has committed");
    assert_eq!(bench.effects().await, [0_i64; 0], "sqlx tells the truth by now: see DESIGN, rule 2 of section 4");
    bench.close().await;
}
