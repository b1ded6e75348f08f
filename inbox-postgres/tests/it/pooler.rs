//! Behind PgBouncer in transaction mode: `INBOX_TEST_PGBOUNCER`, in front of the server of `INBOX_TEST_POSTGRES`.

use std::{
    io::Write,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use inbox_core::{
    Backoff, Claim, HandlerError, Inbox, InboxError, InboxStore, Limits, StoreErrorKind, failure_store::Reason,
    maintenance::Maintenance, operator::Operator,
};
use inbox_postgres::{
    PgConfig, PgInboxStore, PgTransaction,
    sqlx::{self, AssertSqlSafe, ConnectOptions, Connection, PgConnection, PgPool, postgres::PgConnectOptions},
};
use tokio::task::JoinSet;

use crate::{
    connect::refused_as_pooler,
    guard::{Deed, misbehave, stops_and_is_mended},
    schema::{Scratch, migrate_at_once},
    settings::{as_role_by, close},
    support::{self, Bench, IDLE, candidate, insert, put, unique, within},
};

/// What a role of the inbox's own has behind a pooler.
const READ_ONLY: &str = "default_transaction_read_only = on";

fn pooler_url() -> url::Url {
    let url = std::env::var("INBOX_TEST_PGBOUNCER").expect(
        "INBOX_TEST_PGBOUNCER is the URL of a PgBouncer in transaction mode in front of INBOX_TEST_POSTGRES; `cargo xtask \
         services up` starts one",
    );
    url::Url::parse(&url).expect("INBOX_TEST_PGBOUNCER is a URL")
}

/// Turns a URL of the server into one of the pooler in front of it.
fn through(url: &mut url::Url) {
    let pooler = pooler_url();
    url.set_host(pooler.host_str()).expect("a host");
    url.set_port(pooler.port()).expect("a port");
    url.query_pairs_mut().append_pair("pooler", "transaction");
}

fn through_url(direct: &str) -> String {
    let mut url = url::Url::parse(direct).expect("a URL");
    through(&mut url);
    url.into()
}

/// A bench whose store has the role that the docs recommend, behind the pooler.
async fn pooled(name: &str) -> (Bench, String) {
    as_role_by(name, &[READ_ONLY], through).await
}

/// A client of the pooler's that has nothing to do with the store.
async fn client(user: &str, password: &str) -> PgConnection {
    let mut url = pooler_url();
    url.set_username(user).expect("a user");
    url.set_password(Some(password)).expect("a password");
    options(&url).connect().await.expect("connects")
}

fn options(url: &url::Url) -> PgConnectOptions {
    let options: PgConnectOptions = url.as_str().parse().expect("a URL");
    options.extra_float_digits(None).statement_cache_capacity(0)
}

async fn raw(connection: &mut PgConnection, sql: &str) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(connection).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn many_instances_migrate_an_empty_database_at_once_through_it() {
    let scratch = Scratch::new().await;
    let url = through_url(&scratch.url);
    migrate_at_once(scratch, &url).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_setting_it_is_refused_with_the_setting_named() {
    let (bench, role) = pooled("unset").await;
    // Also where the role hides that the read-only default does not arrive.
    for (user, password) in [(pooler_url().username(), pooler_url().password()), (role.as_str(), Some("secret"))] {
        let mut url = pooler_url();
        url.set_username(user).expect("a user");
        url.set_password(password).expect("a password");
        refused_as_pooler(url.as_str()).await;
    }
    close(bench, &role).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_passwords_and_dead_poolers_are_not_taken_for_a_missing_setting() {
    for setting in ["", "pooler=transaction"] {
        let mut url = pooler_url();
        url.set_query(Some(setting));
        url.set_password(Some("hunter2-hunter2")).expect("a password");
        let error = within(20, PgInboxStore::connect(url.as_str())).await.expect_err("refused");
        let text = format!("{} {error:#?}", inbox_core::report(&error));
        // This pooler has one code for all that it says itself.
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{text}");
        assert!(text.contains("password authentication failed") && !text.contains("hunter2"), "{text}");
        let mut url = pooler_url();
        url.set_query(Some(&format!("{setting}&connect_timeout=1")));
        url.set_port(Some(1)).expect("a port");
        let error = within(20, PgInboxStore::connect(url.as_str())).await.expect_err("not there");
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{}", inbox_core::report(&error));
    }
}

/// Effects with parameters, by sqlx's own ways of sending a statement.
async fn by_every_way(table: String, n: i64, tx: &mut PgTransaction<'_>) -> Result<(), HandlerError> {
    put(&table, n, tx).await?;
    let sql = || AssertSqlSafe(format!("SELECT count(*) FROM {table} WHERE effect = $1"));
    for persistent in [true, false] {
        let found: i64 = sqlx::query_scalar(sql()).bind(n).persistent(persistent).fetch_one(&mut **tx).await?;
        if found != 1 {
            return Err(std::io::Error::other(format!("{found} rows of {n}")).into());
        }
    }
    let mut nested = tx.begin().await?;
    drop(sqlx::query("SELECT 1 / $1::int").bind(0).execute(&mut *nested).await);
    nested.rollback().await?;
    Ok(())
}

/// Leaves statements under sqlx's names on the server's connections of this role, until `over`.
async fn litter(role: String, over: Arc<AtomicBool>) -> usize {
    let mut connection = client(&role, "secret").await;
    let mut left = 0;
    while !over.load(Ordering::Relaxed) {
        for number in 1..40 {
            // One that is there already is as good.
            left += usize::from(raw(&mut connection, &format!("PREPARE sqlx_s_{number} AS SELECT 1")).await.is_ok());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    left
}

#[tokio::test(flavor = "multi_thread")]
async fn two_instances_apply_each_message_once_among_statements_that_others_left() {
    let (bench, role) = pooled("litter").await;
    bench.publish(1..=1_000).await;
    let over = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for _ in 0..3 {
        tasks.spawn(litter(role.clone(), Arc::clone(&over)));
    }
    let instance = |group| {
        let transport = bench.broker.transport(&bench.name, group);
        let inbox = Inbox::new(bench.name.clone(), transport, bench.store.clone())
            .on_with(bench.name.clone(), "k", by_every_way)
            .max_batch(20)
            .build()
            .expect("builds");
        (inbox.handle(), inbox)
    };
    let ((first, one), (second, two)) = (instance("one"), instance("two"));
    let (ended_one, ended_two) =
        within(90, async { tokio::join!(one.run_until_idle(IDLE), two.run_until_idle(IDLE)) }).await;
    over.store(true, Ordering::Relaxed);
    ended_one.expect("runs");
    ended_two.expect("runs");
    let left: usize = tasks.join_all().await.into_iter().sum();
    assert!(left > 40, "only {left} statements were left there: the store removed none");
    bench.assert_each_once(1..=1_000).await;
    let (first, second) = (first.numbers(), second.numbers());
    assert_eq!((first.applied + second.applied, first.duplicates + second.duplicates), (1_000, 1_000));
    assert_eq!((first.attempts_failed + second.attempts_failed, bench.counts().await.claims), (0, 1_000));
    close(bench, &role).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_setting_does_no_harm_where_there_is_no_pooler() {
    let bench = Bench::with("direct", |url| {
        url.query_pairs_mut().append_pair("pooler", "transaction");
    })
    .await;
    bench.publish(1..=500).await;
    let run = bench.inbox().on_with(bench.name.clone(), "k", by_every_way).run_until_idle(IDLE);
    within(60, run).await.expect("runs");
    bench.assert_each_once(1..=500).await;
    // sqlx without a cache leaves each statement behind.
    let mut tx = bench.store.begin(&Limits::default()).await.expect("begins");
    let left: i64 =
        sqlx::query_scalar("SELECT count(*) FROM pg_prepared_statements").fetch_one(&mut *tx).await.expect("reads");
    assert!(left <= 1, "{left} statements");
    bench.store.rollback(tx).await.expect("rolls back");
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_of_the_url_hold_in_each_transaction_and_nowhere_else() {
    let (bench, role) = as_role_by("settings", &[READ_ONLY], |url| {
        through(url);
        url.query_pairs_mut()
            .append_pair("options[search_path]", r#"pg_temp, "o'ne\""#)
            .append_pair("options[lock_timeout]", "77ms")
            .append_pair("options[statement_timeout]", "901ms");
    })
    .await;
    let consumer = bench.store.register(&bench.name).await.expect("registers");
    let limits = Limits { claim_wait: Duration::from_millis(123), statement_timeout: Duration::from_millis(4_567) };
    for _ in 0..3 {
        let mut tx = bench.store.begin(&limits).await.expect("begins");
        let claims = bench.store.claim(&mut tx, consumer, &[]).await.expect("claims");
        let names = "'{search_path, lock_timeout, statement_timeout}'";
        let sql = format!("SELECT current_setting(name) FROM unnest({names}::text[]) name");
        let shown: Vec<String> =
            sqlx::query_scalar(AssertSqlSafe(sql.clone())).fetch_all(&mut *tx).await.expect("reads");
        assert_eq!(shown, [r#"pg_temp, "o'ne\""#, "77ms", "4567ms"]);
        bench.store.commit(tx, claims).await.expect("commits");
        let mut other = client(&role, "secret").await;
        let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(&mut other).await.expect("reads");
        let shown: Vec<String> = rows.iter().map(|row| sqlx::Row::get(row, 0)).collect();
        assert_eq!(shown, [r#""$user", public"#, "0", "0"]);
        other.close().await.expect("closes");
    }
    close(bench, &role).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ends_the_transaction_inside_a_handler_leaves_nothing_with_a_read_only_role() {
    for sql in ["COMMIT", "ROLLBACK", "ROLLBACK AND CHAIN", "COMMIT; BEGIN READ WRITE"] {
        for swallow in [true, false] {
            let (bench, role) = pooled("guard").await;
            stops_and_is_mended(&bench, sql, swallow).await;
            close(bench, &role).await;
        }
    }
}

/// What the docs say may have been written.
#[tokio::test(flavor = "multi_thread")]
async fn without_that_role_what_follows_a_rollback_is_kept_and_the_consumer_stops() {
    for sql in ["COMMIT", "ROLLBACK"] {
        let (bench, role) = as_role_by("hole", &[], through).await;
        bench.publish_in_order(1..=5).await;
        let deed = Deed { table: bench.name.clone(), sql, swallow: true };
        let ended = within(30, bench.inbox().on_with(deed, "k", misbehave).run_until_idle(IDLE)).await;
        assert!(
            matches!(&ended, Err(InboxError::Store(error)) if error.kind() == StoreErrorKind::TransactionEscaped),
            "{ended:?}"
        );
        let (effects, claims) = (bench.effects().await, bench.counts().await.claims);
        assert!(claims <= 1, "{claims} claims: those of the batch are gone");
        assert!(effects.iter().any(|effect| *effect > 1), "the hole is closed: tell the docs; {effects:?}");
        assert_eq!(bench.broker.backlog(&bench.name, "group"), 5 - claims, "nothing of it is acknowledged");
        close(bench, &role).await;
    }
}

#[derive(Clone, Default)]
struct Captured(Arc<Mutex<Vec<u8>>>);

impl Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("not poisoned").extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

// In one thread, which is all that a subscriber of a test's own sees.
#[tokio::test(flavor = "current_thread")]
async fn a_role_that_may_write_outside_transactions_is_warned_about_once() {
    // What a transaction sets for itself does not count.
    for (settings, key, warnings) in [
        (&[][..], "options[jit]", 1),
        (&[][..], "options[default_transaction_read_only]", 1),
        (&[READ_ONLY][..], "options[jit]", 0),
    ] {
        let (bench, role) = as_role_by("advice", settings, |url| {
            through(url);
            url.query_pairs_mut().append_pair(key, "on");
        })
        .await;
        let captured = Captured::default();
        let writer = captured.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_writer(move || writer.clone())
            .finish();
        // With one subscriber alone, a thread of another test that has none decides for all what is traced.
        let second = tracing::Dispatch::new(tracing_subscriber::fmt().with_writer(std::io::sink).finish());
        let subscribed = tracing::subscriber::set_default(subscriber);
        for _ in 0..3 {
            bench.store.register(&bench.name).await.expect("registers");
        }
        drop((subscribed, second));
        let traced = String::from_utf8(captured.0.lock().expect("not poisoned").clone()).expect("text");
        let said =
            traced.lines().filter(|line| line.contains("WARN") && line.contains("default_transaction_read_only"));
        assert_eq!(said.filter(|line| line.contains(&role)).count(), warnings, "{traced}");
        assert!(!traced.contains("secret"), "{traced}");
        close(bench, &role).await;
    }
}

/// Holds all of the role's connections to the server but one: the pooler then has a pool of one for all others.
async fn hold_all_but_one(role: &str) -> Vec<PgConnection> {
    let mut held = Vec::new();
    for _ in 0..200 {
        let mut connection = client(role, "secret").await;
        match tokio::time::timeout(Duration::from_secs(1), raw(&mut connection, "BEGIN")).await {
            Ok(begun) => begun.expect("begins"),
            Err(_) => {
                held.pop().expect("the pool has more than one");
                return held;
            }
        }
        held.push(connection);
    }
    panic!("the pool of the pooler has no end: set `default_pool_size` to 20");
}

#[tokio::test(flavor = "multi_thread")]
async fn with_one_connection_of_the_servers_all_lanes_go_on() {
    async fn moody(table: String, n: i64, tx: &mut PgTransaction<'_>) -> Result<(), HandlerError> {
        insert(table, n, tx).await?;
        match n % 50 {
            1 => Err(HandlerError::reject("no")),
            2 => Err(std::io::Error::other("not yet").into()),
            _ => Ok(()),
        }
    }
    let (bench, role) = pooled("one").await;
    bench.publish(1..=400).await;
    let held = within(60, hold_all_but_one(&role)).await;
    let inbox = bench
        .inbox()
        .on_with(bench.name.clone(), "k", moody)
        .lanes(4)
        .max_batch(10)
        .max_attempts(2)
        .backoff(Backoff { first: Duration::from_millis(5), most: Duration::from_millis(5) })
        .build()
        .expect("builds");
    let handle = inbox.handle();
    // Longer than our own bound of a connection.
    within(60, inbox.run_until_idle(IDLE)).await.expect("runs");
    let numbers = handle.numbers();
    assert_eq!((numbers.applied, numbers.quarantined), (384, 16));
    let kept = bench.store.failures(&bench.name, 100).await.expect("reads");
    let given_up = kept.iter().filter(|row| row.reason == Reason::MaxAttempts && row.attempts == 2).count();
    assert_eq!(given_up, 8, "{kept:?}");
    assert_eq!(bench.effects().await.len(), 384);
    drop(held);
    close(bench, &role).await;
}

/// Tells the pooler itself.
async fn command(sql: &str) {
    let mut url = pooler_url();
    url.set_path("pgbouncer");
    let mut admin = options(&url).connect().await.expect("the user of INBOX_TEST_PGBOUNCER is one of `admin_users`");
    raw(&mut admin, sql).await.expect(sql);
    admin.close().await.expect("closes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_dies_or_pauses_costs_neither_effects_nor_attempts() {
    let scratch = Scratch::new().await;
    let pool = PgPool::connect(&scratch.url).await.expect("connects");
    PgInboxStore::new(&pool).migrate().await.expect("migrates");
    let bench = Bench::on(pool, &scratch.url, "dies", through).await;
    bench.publish(1..=1_500).await;
    let inbox = bench.inbox().on_with(bench.name.clone(), "k", insert).max_batch(10).build().expect("builds");
    let handle = inbox.handle();
    let mut tasks = JoinSet::new();
    let (database, watched) = (scratch.name.clone(), inbox.handle());
    tasks.spawn(async move {
        let mut rounds = 0;
        while watched.numbers().applied < 1_300 && rounds < 30 {
            let (down, up) = if rounds % 2 == 0 { ("KILL", "RESUME") } else { ("PAUSE", "RESUME") };
            let before = watched.numbers().applied;
            command(&format!("{down} {database}")).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
            command(&format!("{up} {database}")).await;
            while watched.numbers().applied < before + 100 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            rounds += 1;
        }
        rounds
    });
    within(120, inbox.run_until_idle(IDLE * 4)).await.expect("an outage is no reason to stop");
    let rounds: usize = tasks.join_all().await.into_iter().sum();
    assert!(rounds > 4, "only {rounds} rounds");
    bench.assert_each_once(1..=1_500).await;
    let (numbers, counts) = (handle.numbers(), bench.counts().await);
    // A COMMIT that was cut off may have been one: its messages are duplicates then.
    assert_eq!((numbers.applied + numbers.duplicates, numbers.attempts_failed, numbers.quarantined), (1_500, 0, 0));
    assert_eq!((counts.claims, counts.retrying), (1_500, 0));
    assert!(numbers.rollbacks > 0, "nothing that ran was cut off");
    bench.close().await;
    scratch.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_the_pooler_cuts_off_is_in_doubt_and_then_found() {
    let scratch = Scratch::new().await;
    let pool = PgPool::connect(&scratch.url).await.expect("connects");
    PgInboxStore::new(&pool).migrate().await.expect("migrates");
    let bench = Bench::on(pool, &scratch.url, "doubt", through).await;
    bench
        .sql(&format!(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(2); RETURN NULL; END';
             CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON {} DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
             EXECUTE FUNCTION slow()",
            bench.name
        ))
        .await;
    let consumer = bench.store.register(&bench.name).await.expect("registers");
    let candidate = candidate();
    let mut tx = bench.store.begin(&Limits::default()).await.expect("begins");
    let mut claims = bench.store.claim(&mut tx, consumer, &[candidate]).await.expect("claims");
    put(&bench.name, 1, &mut tx).await.expect("inserts");
    claims.done(candidate.id);
    let cut_off = async {
        let sql = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = $1 AND wait_event = 'PgSleep')";
        while !sqlx::query_scalar::<_, bool>(sql).bind(&scratch.name).fetch_one(&bench.pool).await.expect("reads") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        command(&format!("KILL {}", scratch.name)).await;
        command(&format!("RESUME {}", scratch.name)).await;
    };
    let committing = bench.store.commit(tx, claims);
    let (committed, ()) = within(20, Box::pin(async { tokio::join!(committing, cut_off) })).await;
    let error = committed.expect_err("no answer came");
    assert_eq!(error.kind(), StoreErrorKind::CommitUnknown, "{}", inbox_core::report(&error));
    // It waits for the server, which has not noticed.
    let limits = Limits { claim_wait: Duration::from_secs(10), ..Limits::default() };
    let mut tx = bench.store.begin(&limits).await.expect("begins");
    let claims = within(20, bench.store.claim(&mut tx, consumer, &[candidate])).await.expect("claims");
    assert_eq!(claims.get(candidate.id), Some(Claim::Duplicate));
    bench.store.rollback(tx).await.expect("rolls back");
    bench.assert_each_once(1..=1).await;
    bench.close().await;
    scratch.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_of_the_users_is_copied_with_the_setting() {
    let mut pooler = pooler_url();
    pooler.query_pairs_mut().append_pair("application_name", &unique("users"));
    let pool = PgPool::connect_lazy_with(options(&pooler));
    let error = within(20, PgInboxStore::new(&pool).register("c")).await.expect_err("refused");
    assert_eq!(error.kind(), StoreErrorKind::InvalidConfig);
    let store = PgConfig::pool(&pool).transaction_pooler(true).connect().await.expect("connects");
    store.migrate().await.expect("migrates");
    assert_eq!(store.counts_of("nobody").await.expect("reads").claims, 0);
    let direct = PgPool::connect(&support::url()).await.expect("connects");
    PgInboxStore::new(&direct).register("somebody").await.expect("registers");
}
