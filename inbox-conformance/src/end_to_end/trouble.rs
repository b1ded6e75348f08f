//! A database in trouble.

use std::sync::{Arc, atomic::Ordering};

use super::scene::{Running, Scene, good, labels, messages};
use crate::{
    ensure, ensure_eq,
    faults::{CommitEnd, Faulty, Troubles},
    harness::{CaseResult, FullStoreSubject, Need, until},
};

pub(super) async fn e39_an_outage_counts_nothing_and_loses_nothing<S: FullStoreSubject>(scene: Scene<S>) -> CaseResult {
    let troubles = Arc::new(Troubles::default());
    let store = Faulty { inner: Arc::clone(&scene.store), troubles: Arc::clone(&troubles) };
    let running = Running::start(scene.inbox(scene.link.connect().await?, store, good()))?;
    let labels = labels("abcd", 10);
    let (before, during) = labels.split_at(10);
    scene.publish(messages(before.iter().map(String::as_str))).await?;
    scene.no_backlog().await?;
    troubles.away.store(true, Ordering::SeqCst);
    scene.publish(messages(during.iter().map(String::as_str))).await?;
    until("refused transactions", || async { Ok(troubles.refused.load(Ordering::SeqCst) >= 6) }).await?;
    ensure_eq!(scene.link.backlog().await?, 30, "what is not acked while the database is away");
    ensure!(!running.handle.health().store, "health says that the database is there");
    troubles.away.store(false, Ordering::SeqCst);
    scene.no_backlog().await?;
    let numbers = running.handle.numbers();
    ensure!(running.handle.health().store, "health says that the database is away");
    running.stop().await?;
    scene.each_once(&labels).await?;
    ensure_eq!((numbers.attempts_failed, numbers.quarantined), (0, 0), "attempts counted, and messages quarantined");
    ensure_eq!(scene.journal.calls().len(), 40, "handler calls");
    Ok(())
}

pub(super) async fn e40_an_outage_at_the_start_is_waited_out<S: FullStoreSubject>(scene: Scene<S>) -> CaseResult {
    let troubles = Arc::new(Troubles::default());
    troubles.away.store(true, Ordering::SeqCst);
    let store = Faulty { inner: Arc::clone(&scene.store), troubles: Arc::clone(&troubles) };
    scene.publish(messages(["a", "b"])).await?;
    let running = Running::start(scene.inbox(scene.link.connect().await?, store, good()))?;
    until("a refused start", || async { Ok(troubles.refused.load(Ordering::SeqCst) >= 2) }).await?;
    troubles.away.store(false, Ordering::SeqCst);
    scene.no_backlog().await?;
    running.stop().await?;
    scene.each_once(&["a", "b"]).await
}

pub(super) async fn e41_an_unknown_commit_is_claimed_again<S: FullStoreSubject>(scene: Scene<S>) -> CaseResult {
    let troubles = Troubles::at_commits([
        CommitEnd::UnknownRolledBack,
        CommitEnd::UnknownRolledBack,
        CommitEnd::UnknownRolledBack,
        CommitEnd::UnknownCommitted,
        CommitEnd::Honest,
        CommitEnd::Contention,
        CommitEnd::Contention,
        CommitEnd::Contention,
        CommitEnd::UnknownRolledBack,
        CommitEnd::UnknownCommitted,
    ]);
    let store = Faulty { inner: Arc::clone(&scene.store), troubles };
    let labels = labels("abc", 10);
    scene.publish(messages(labels.iter().map(String::as_str))).await?;
    let running = Running::start(scene.inbox(scene.link.connect().await?, store, good()).lanes(1).max_batch(5))?;
    scene.no_backlog().await?;
    let numbers = running.handle.numbers();
    running.stop().await?;
    scene.each_once(&labels).await?;
    ensure_eq!((numbers.attempts_failed, numbers.quarantined), (0, 0), "attempts counted, and messages quarantined");
    ensure!(numbers.duplicates > 0, "what had committed was not claimed again");
    if Need::Ordering.met_by_transport(&*scene.transport) { scene.keys_in_order().await } else { Ok(()) }
}
