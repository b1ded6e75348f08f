//! Several instances, several consumers, several connections at once.

use std::{collections::HashMap, sync::Arc};

use inbox_core::{Candidate, Claim, Inbox, InboxStore, Limits};
use inbox_postgres::PgConfig;
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
