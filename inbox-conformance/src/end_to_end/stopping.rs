//! Shutdown, lost sessions and lost leases.

use std::time::Duration;

use tokio::time::timeout;

use super::scene::{Act, Running, Scene, labels, messages, script};
use crate::{
    ensure, ensure_eq,
    harness::{CaseResult, FullStoreSubject, Need, until},
};

pub(super) async fn e13_a_graceful_shutdown_runs_nothing_again<S: FullStoreSubject>(scene: Scene<S>) -> CaseResult {
    let labels = labels("abcdefgh", 40);
    scene.publish(messages(labels.iter().map(String::as_str))).await?;
    let slow = script(|_| Act::Sleep(Duration::from_millis(1)));
    let first = Running::start(scene.connected(slow.clone()).await?.in_flight(50))?;
    scene.until_effects(30).await?;
    let handle = first.handle.clone();
    first.stop().await?;
    ensure_eq!(handle.numbers().released, 0, "messages that were there and were not finished");
    let committed = scene.effects().await?.len();
    ensure_eq!(scene.journal.calls().len(), committed, "handler calls, against effects, after the shutdown");
    let second = Running::start(scene.connected(slow).await?)?;
    scene.no_backlog().await?;
    let numbers = second.handle.numbers();
    second.stop().await?;
    ensure_eq!(scene.journal.calls().len(), labels.len(), "handler calls of both");
    if !scene.transport.delivers_acked_anew() {
        ensure_eq!(numbers.duplicates, 0, "duplicates that the second instance met");
    }
    scene.each_once(&labels).await
}

pub(super) async fn e14_a_handler_beyond_the_shutdown_deadline_is_rolled_back<S: FullStoreSubject>(
    scene: Scene<S>,
) -> CaseResult {
    let labels = labels("abc", 4);
    scene.publish(messages(labels.iter().map(String::as_str))).await?;
    let stuck = script(|call| if call.label == "b001" { Act::Hang } else { Act::Succeed });
    let running = Running::start(scene.connected(stuck).await?.shutdown_timeout(Duration::from_millis(200)))?;
    until("the handler that hangs", || async { Ok(scene.journal.of("b001") > 0) }).await?;
    // The deadline and what closing may take; far from the 30 s that the handler's own timeout would take.
    timeout(Duration::from_secs(15), running.stop()).await.map_err(|_| "run() outlived its shutdown deadline")??;
    ensure_eq!(scene.journal.dropped(), ["b001"], "handlers that were dropped when run() had ended");
    ensure!(!scene.effects().await?.contains(&"b001".to_owned()), "the effect of a dropped handler is committed");
    scene.finish().await?;
    scene.each_once(&labels).await
}

pub(super) async fn e15_a_lost_session_loses_nothing<S: FullStoreSubject>(scene: Scene<S>) -> CaseResult {
    let labels = labels("abcd", 20);
    scene.publish(messages(labels.iter().map(String::as_str))).await?;
    let slow = script(|_| Act::Sleep(Duration::from_millis(1)));
    let running = Running::start(scene.connected(slow).await?.max_batch(3))?;
    for effects in [5, 25, 45] {
        scene.until_effects(effects).await?;
        scene.link.break_sessions().await?;
    }
    scene.no_backlog().await?;
    running.stop().await?;
    scene.each_once(&labels).await?;
    if Need::Ordering.met_by_transport(&*scene.transport) { scene.keys_in_order().await } else { Ok(()) }
}

/// Of two messages of one key that wait behind another one, the first loses its lease: the second must not overtake it.
pub(super) async fn e42_a_lost_lease_takes_its_followers_along<S: FullStoreSubject>(scene: Scene<S>) -> CaseResult {
    let labels = ["x000", "a000", "a001", "b000"];
    let slow = script(|call| match (call.label, call.nth) {
        ("x000", 1) => Act::Sleep(Duration::from_secs(2)),
        _ => Act::Succeed,
    });
    let running = Running::start(scene.connected(slow).await?.lanes(1).max_batch(1))?;
    // No broker promises an order between keys: what is to wait is published when there is something to wait for.
    scene.publish(messages(["x000"])).await?;
    until("the handler that takes its time", || async { Ok(scene.journal.of("x000") > 0) }).await?;
    scene.publish(messages(["a000", "a001", "b000"])).await?;
    let received = || async { Ok(running.handle.numbers().received >= 4) };
    until("the messages behind the one that runs", received).await?;
    scene.link.lose_lease(1).await?;
    scene.no_backlog().await?;
    running.stop().await?;
    scene.each_once(&labels).await?;
    scene.keys_in_order().await
}
