//! Connections that break or are in doubt.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use inbox_core::{Inbox, InboxStore, Limits};
use inbox_postgres::{
    PgInboxStore,
    sqlx::{self, PgPool, postgres::PgPoolOptions},
};
use tokio::task::JoinSet;

use crate::support::{Bench, IDLE, candidate, insert, url, within};

/// Polls `what` a few times, then drops it: shorter than any timer.
async fn cancelled<T>(what: impl Future<Output = T>, polls: u32) -> Option<T> {
    let mut what = std::pin::pin!(what);
    for _ in 0..polls {
        tokio::select! {
            biased;
            done = &mut what => return Some(done),
            () = tokio::task::yield_now() => {}
        }
    }
    None
}

#[tokio::test(flavor = "multi_thread")]
async fn begins_cancelled_on_the_users_pool_are_no_business_of_ours() {
    let bench = Bench::new("cancelled").await;
    let users = PgPoolOptions::new().max_connections(5).connect(&url()).await.expect("connects");
    let store = PgInboxStore::new(&users);
    bench.publish(1..=2_000).await;
    let over = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for _ in 0..5 {
        let (users, over) = (users.clone(), Arc::clone(&over));
        tasks.spawn(async move {
            let mut cut = 0;
            for _ in 0..2_000 {
                cut += u32::from(cancelled(users.begin(), fastrand::u32(1..40)).await.is_none());
            }
            over.store(true, Ordering::Relaxed);
            cut
        });
    }
    let inbox = Inbox::new(bench.name.clone(), bench.transport(), store)
        .on_with(bench.name.clone(), "k", insert)
        .max_batch(20)
        .build()
        .expect("builds");
    let handle = inbox.handle();
    within(60, inbox.run_until_idle(IDLE)).await.expect("runs");
    let cut: u32 = within(60, tasks.join_all()).await.into_iter().sum();
    assert!(cut > 100, "only {cut} of 10,000 begins were cut off");
    bench.assert_each_once(1..=2_000).await;
    let numbers = handle.numbers();
    assert_eq!((numbers.applied, numbers.attempts_failed, bench.counts().await.claims), (2_000, 0, 2_000));
    assert_settings_untouched(&users).await;
    users.close().await;
    bench.close().await;
}

/// On every connection of the user's pool.
async fn assert_settings_untouched(users: &PgPool) {
    let mut held = Vec::new();
    for _ in 0..5 {
        let mut connection = users.acquire().await.expect("connects");
        let changed: Vec<String> = sqlx::query_scalar(
            "SELECT name || '=' || setting FROM pg_settings WHERE source = 'session' OR name LIKE 'inbox.%' OR
                (source = 'client' AND name IN ('default_transaction_read_only', 'client_connection_check_interval'))",
        )
        .fetch_all(&mut *connection)
        .await
        .expect("reads");
        assert_eq!(changed, [""; 0]);
        held.push(connection);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn begins_cancelled_on_the_store_lose_no_later_commit() {
    let bench = Bench::new("begins").await;
    let consumer = bench.store.register(&bench.name).await.expect("registers");
    for round in 1..=300 {
        // What it has begun is dropped, or in doubt.
        drop(cancelled(bench.store.begin(&Limits::default()), fastrand::u32(1..60)).await);
        let candidate = candidate();
        let mut tx = bench.store.begin(&Limits::default()).await.expect("begins");
        let mut claims = bench.store.claim(&mut tx, consumer, &[candidate]).await.expect("claims");
        crate::support::put(&bench.name, round, &mut tx).await.expect("inserts");
        claims.done(candidate.id);
        bench.store.commit(tx, claims).await.expect("commits");
    }
    bench.assert_each_once(1..=300).await;
    assert_eq!(bench.counts().await.claims, 300);
    bench.close().await;
}

/// Ends the server's processes of the bench's connections, now and again, until `over`.
async fn terminate(pool: PgPool, name: String, over: Arc<AtomicBool>) -> usize {
    let mut ended = 0;
    while !over.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(60)).await;
        let query = sqlx::query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1");
        ended += query.bind(&name).fetch_all(&pool).await.expect("ends them").len();
        if ended > 40 {
            break;
        }
    }
    ended
}

#[tokio::test(flavor = "multi_thread")]
async fn terminated_backends_cost_neither_effects_nor_attempts() {
    let bench = Bench::new("terminated").await;
    bench.publish(1..=2_000).await;
    let over = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    tasks.spawn(terminate(bench.pool.clone(), bench.name.clone(), Arc::clone(&over)));
    let inbox = bench.inbox().on_with(bench.name.clone(), "k", insert).max_batch(10).build().expect("builds");
    let handle = inbox.handle();
    within(90, inbox.run_until_idle(IDLE)).await.expect("an outage is no reason to stop");
    over.store(true, Ordering::Relaxed);
    let ended: usize = tasks.join_all().await.into_iter().sum();
    assert!(ended > 8, "only {ended} connections were ended");
    bench.assert_each_once(1..=2_000).await;
    let (numbers, counts) = (handle.numbers(), bench.counts().await);
    assert_eq!((numbers.attempts_failed, numbers.quarantined, counts.retrying), (0, 0, 0));
    assert!(numbers.rollbacks > 0, "the test ended nothing that ran");
    assert_eq!(bench.broker.backlog(&bench.name, "group"), 0);
    bench.close().await;
}
