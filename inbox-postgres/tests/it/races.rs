//! Several instances, several consumers, several connections at once.

use std::{collections::HashMap, sync::Arc};

use inbox_core::{Candidate, Claim, Inbox, InboxStore, Limits};
use inbox_postgres::{PgConfig, sqlx};
use std::time::Duration;
use tokio::{sync::Barrier, task::JoinSet};

use crate::support::{Bench, IDLE, candidate, insert, url, within};

#[tokio::test(flavor = "multi_thread")]
async fn two_instances_that_get_the_same_messages_apply_each_once() {
    let bench = Bench::new("instances").await;
    bench.publish(1..=10_000).await;
    let instance = |group| {
        let inbox = Inbox::new(bench.name.clone(), bench.broker.transport(&bench.name, group), bench.store.clone())
            .on_with(bench.name.clone(), "k", insert)
            .build()
            .expect("builds");
        (inbox.handle(), inbox)
    };
    let ((first, one), (second, two)) = (instance("one"), instance("two"));
    let (ended_one, ended_two) =
        within(80, async { tokio::join!(one.run_until_idle(IDLE), two.run_until_idle(IDLE)) }).await;
    ended_one.expect("runs");
    ended_two.expect("runs");
    bench.assert_each_once(1..=10_000).await;
    let (first, second) = (first.numbers(), second.numbers());
    assert_eq!((first.applied + second.applied, first.duplicates + second.duplicates), (10_000, 10_000));
    assert_eq!((first.attempts_failed + second.attempts_failed, bench.counts().await.claims), (0, 10_000));
    for group in ["one", "two"] {
        assert_eq!(bench.broker.backlog(&bench.name, group), 0, "duplicates are acknowledged too");
    }
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn consumers_of_different_names_each_run_all() {
    let (bench, other) = (Bench::new("names").await, Bench::new("others").await);
    bench.publish(1..=500).await;
    let run = |name: &String, group| {
        Inbox::new(name.clone(), bench.broker.transport(&bench.name, group), bench.store.clone())
            .on_with(name.clone(), "k", insert)
            .run_until_idle(IDLE)
    };
    let (one, two) = within(30, async { tokio::join!(run(&bench.name, "one"), run(&other.name, "two")) }).await;
    one.expect("runs");
    two.expect("runs");
    for bench in [bench, other] {
        bench.assert_each_once(1..=500).await;
        assert_eq!(bench.counts().await.claims, 500);
        bench.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn overlapping_claims_wait_for_each_other_and_never_deadlock() {
    const CONNECTIONS: usize = 8;
    let bench = Bench::new("overlap").await;
    let store = PgConfig::url(&url()).expect("a URL").connections(8).open().expect("a store");
    let consumer = store.register(&bench.name).await.expect("registers");
    let limits = Limits { claim_wait: Duration::from_secs(30), ..Limits::default() };
    for _ in 0..10 {
        let ids: Vec<Candidate> = (0..300).map(|_| candidate()).collect();
        let barrier = Arc::new(Barrier::new(CONNECTIONS));
        let mut tasks = JoinSet::new();
        for _ in 0..CONNECTIONS {
            let (store, barrier, mut ids) = (store.clone(), Arc::clone(&barrier), ids.clone());
            fastrand::shuffle(&mut ids);
            ids.truncate(200);
            tasks.spawn(async move {
                let mut tx = store.begin(&limits).await.expect("begins");
                barrier.wait().await;
                let mut claims = store.claim(&mut tx, consumer, &ids).await.expect("no deadlock");
                let new: Vec<_> =
                    ids.iter().map(|candidate| candidate.id).filter(|id| claims.get(*id) == Some(Claim::New)).collect();
                new.iter().for_each(|id| claims.done(*id));
                store.commit(tx, claims).await.expect("commits");
                new
            });
        }
        let mut times = HashMap::new();
        for id in within(60, tasks.join_all()).await.into_iter().flatten() {
            *times.entry(id).or_insert(0) += 1;
        }
        assert!(times.values().all(|times| *times == 1), "an id was new twice");
    }
    bench.close().await;
}

/// Without being made again: what it reads of the other claim has to be newer than itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_waited_sees_what_it_waited_for() {
    let bench = Bench::new("waited").await;
    let consumer = bench.store.register(&bench.name).await.expect("registers");
    let patient = Limits { claim_wait: Duration::from_secs(20), ..Limits::default() };
    let (same, content, new) = (candidate(), candidate(), candidate());
    let mut tx = bench.store.begin(&patient).await.expect("begins");
    let mut claims = bench.store.claim(&mut tx, consumer, &[same, content]).await.expect("claims");
    let mut waiter = JoinSet::new();
    let store = bench.store.clone();
    waiter.spawn(async move {
        let mut tx = store.begin(&patient).await.expect("begins");
        let content = Candidate { fingerprint: content.fingerprint + 1, ..content };
        let claims = store.claim(&mut tx, consumer, &[same, content, new]).await.expect("claims, at the first try");
        store.rollback(tx).await.expect("rolls back");
        [same, content, new].map(|candidate| claims.get(candidate.id))
    });
    // Until it waits.
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock'";
    within(20, async {
        while sqlx::query_scalar::<_, i64>(waits).bind(&bench.name).fetch_one(&bench.pool).await.expect("reads") == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    for id in [same.id, content.id] {
        claims.done(id);
    }
    bench.store.commit(tx, claims).await.expect("commits");
    let found = within(20, waiter.join_next()).await.expect("a waiter").expect("no panic");
    assert_eq!(found, [Some(Claim::Duplicate), Some(Claim::Conflict), Some(Claim::New)]);
    bench.close().await;
}
