//! Copies, races and crashes.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use inbox_core::{Bytes, Inbox, InboxError, Message, Outcome, failure_store::Reason};
use tokio::time::sleep;

use super::scene::{Act, Running, Scene, Victim, good, labels, message, messages, nameless, script};
use crate::{
    ensure, ensure_eq,
    faults::{Gathered, LostAcks},
    harness::{CaseResult, FullStoreSubject, Need, unique, until},
};

impl<S: FullStoreSubject> Scene<S> {
    /// Where the transport promises an order, effects of one key are in it.
    async fn in_promised_order(&self) -> CaseResult {
        if Need::Ordering.met_by_transport(&*self.transport) { self.keys_in_order().await } else { Ok(()) }
    }
}

/// One label for each of `number` keys: what is alone in its key is held by every broker at once, whatever it makes of keys.
fn own_keys(number: usize) -> Vec<String> {
    let letters: String = ('a'..='z').chain('A'..='Z').take(number).collect();
    labels(&letters, 1)
}

fn texts(labels: &[String]) -> Vec<Message> {
    messages(labels.iter().map(String::as_str))
}

pub(super) async fn e01_each_effect_once_and_keys_in_order<S: FullStoreSubject>(scene: Scene<S>) -> CaseResult {
    let labels = labels("abcdefghij", 20);
    let running = Running::start(scene.connected(good()).await?)?;
    for part in labels.chunks(70) {
        scene.publish(texts(part)).await?;
    }
    scene.no_backlog().await?;
    let numbers = running.handle.numbers();
    running.stop().await?;
    scene.each_once(&labels).await?;
    ensure_eq!(numbers.applied, 200, "the number of messages applied");
    ensure_eq!((numbers.attempts_failed, numbers.quarantined), (0, 0), "attempts failed, and messages quarantined");
    scene.in_promised_order().await
}

pub(super) async fn e02_copies_in_one_batch_run_once<S: FullStoreSubject>(scene: Scene<S>) -> CaseResult {
    let (a, b) = (message("a"), message("b"));
    scene.publish(vec![a.clone(), a.clone(), b.clone(), b, a]).await?;
    let transport = Arc::new(Gathered::new(scene.link.connect().await?, 5));
    let running = Running::start(scene.inbox(transport, Arc::clone(&scene.store), good()).lanes(1))?;
    scene.no_backlog().await?;
    running.stop().await?;
    scene.each_once(&["a", "b"]).await?;
    ensure_eq!((scene.journal.of("a"), scene.journal.of("b")), (1, 1), "handler calls");
    Ok(())
}

pub(super) async fn e03_copies_far_apart_run_once<S: FullStoreSubject>(scene: Scene<S>) -> CaseResult {
    let labels = labels("abcde", 10);
    let messages = texts(&labels);
    scene.publish(messages.clone()).await?;
    scene.finish().await?;
    scene.publish(messages).await?;
    let running = Running::start(scene.connected(good()).await?)?;
    scene.no_backlog().await?;
    let numbers = running.handle.numbers();
    running.stop().await?;
    scene.each_once(&labels).await?;
    ensure_eq!((numbers.applied, numbers.duplicates), (0, 50), "applied, and duplicates, of the second round");
    Ok(())
}

pub(super) async fn e04_instances_that_race_run_each_id_once<S: FullStoreSubject>(scene: Scene<S>) -> CaseResult {
    let labels = labels("abcdefgh", 12);
    let mut messages = texts(&labels);
    // Without a key, so that copies come to different instances at once.
    messages.iter_mut().for_each(|message| message.key = None);
    messages.extend(messages.clone());
    messages.extend(messages.clone());
    fastrand::shuffle(&mut messages);
    scene.publish(messages).await?;
    let mut instances = Vec::new();
    for _ in 0..3 {
        let store = scene.subject.open().await?;
        let transport = scene.link.connect().await?;
        // Small bites, so that no instance gets all at once.
        let inbox = scene.inbox(transport, store, good()).max_batch(7).in_flight(10);
        instances.push(Running::start(inbox)?);
    }
    scene.no_backlog().await?;
    for instance in instances {
        instance.stop().await?;
    }
    scene.each_once(&labels).await
}

pub(super) async fn e05_a_batch_of_duplicates_is_acked<S: FullStoreSubject>(scene: Scene<S>) -> CaseResult {
    let labels = own_keys(20);
    let messages = texts(&labels);
    scene.publish(messages.clone()).await?;
    scene.finish().await?;
    scene.publish(messages).await?;
    let transport = Arc::new(Gathered::new(scene.link.connect().await?, 20));
    let running = Running::start(scene.inbox(transport, Arc::clone(&scene.store), good()).lanes(1))?;
    scene.no_backlog().await?;
    running.stop().await?;
    scene.each_once(&labels).await?;
    ensure_eq!(scene.journal.calls().len(), 20, "handler calls");
    Ok(())
}

pub(super) async fn e06_a_crash_between_commit_and_ack_runs_nothing_again<S: FullStoreSubject>(
    scene: Scene<S>,
) -> CaseResult {
    let labels = own_keys(40);
    scene.publish(texts(&labels)).await?;
    let transport = LostAcks::new(scene.link.connect().await?);
    let lost = Arc::clone(&transport.lost);
    let running = Running::start(scene.inbox(Arc::new(transport), Arc::clone(&scene.store), good()))?;
    until("40 commits without an ack", || async { Ok(lost.load(Ordering::SeqCst) >= 40) }).await?;
    scene.each_once(&labels).await?;
    drop(running);
    let running = Running::start(scene.connected(good()).await?)?;
    scene.no_backlog().await?;
    let numbers = running.handle.numbers();
    running.stop().await?;
    scene.each_once(&labels).await?;
    ensure_eq!(scene.journal.calls().len(), 40, "handler calls");
    ensure_eq!(numbers.duplicates, 40, "duplicates after the crash");
    Ok(())
}

pub(super) async fn e07_a_crash_before_commit_loses_nothing<S: FullStoreSubject>(scene: Scene<S>) -> CaseResult {
    let labels = labels("abc", 6);
    scene.publish(texts(&labels)).await?;
    let victim = Victim::of(&scene, script(|call| if call.label == "b002" { Act::Hang } else { Act::Succeed }))?;
    until("the handler that hangs", || async { Ok(scene.journal.of("b002") > 0) }).await?;
    let backlog = scene.link.backlog().await?;
    ensure!(backlog > 0, "everything is acked though a handler still runs");
    victim.kill().await?;
    ensure!(!scene.effects().await?.contains(&"b002".to_owned()), "an effect was committed before its handler ended");
    scene.finish().await?;
    scene.each_once(&labels).await?;
    scene.in_promised_order().await
}

pub(super) async fn e08_killed_at_random_each_effect_once<S: FullStoreSubject>(scene: Scene<S>) -> CaseResult {
    let labels = labels("abcdefgh", 30);
    for part in labels.chunks(20) {
        let victim = Victim::of(&scene, good())?;
        scene.publish(texts(part)).await?;
        sleep(Duration::from_micros(fastrand::u64(0..15_000))).await;
        victim.kill().await?;
    }
    scene.finish().await?;
    scene.each_once(&labels).await?;
    if scene.transport.keeps_order_after_a_crash() { scene.in_promised_order().await } else { Ok(()) }
}

pub(super) async fn e09_run_dropped_at_random_each_effect_once<S: FullStoreSubject>(scene: Scene<S>) -> CaseResult {
    let labels = labels("abcdefgh", 30);
    for part in labels.chunks(20) {
        let running = Running::start(scene.connected(script(|_| Act::Sleep(Duration::from_micros(300)))).await?)?;
        scene.publish(texts(part)).await?;
        sleep(Duration::from_micros(fastrand::u64(0..15_000))).await;
        drop(running);
    }
    scene.finish().await?;
    scene.each_once(&labels).await?;
    // The dropped ones still finished what they had begun while the next one ran.
    if Need::ExclusiveKeys.met_by_transport(&*scene.transport) { scene.keys_in_order().await } else { Ok(()) }
}

pub(super) async fn e10_consumers_of_different_names_each_run_all<S: FullStoreSubject>(scene: Scene<S>) -> CaseResult {
    let labels = labels("abcd", 10);
    let other = Scene { name: unique("another-consumer"), ..scene.clone() };
    scene.publish(texts(&labels)).await?;
    let transport = scene.link.connect_group("another").await?;
    let second = Running::start(other.inbox(transport, Arc::clone(&scene.store), good()))?;
    scene.finish().await?;
    other.until_effects(40).await?;
    second.stop().await?;
    scene.each_once(&labels).await?;
    other.each_once(&labels).await
}

pub(super) async fn e11_a_batch_that_takes_too_long_is_cut<S: FullStoreSubject>(scene: Scene<S>) -> CaseResult {
    let labels = if Need::ManyOfAKey.met_by_transport(&*scene.transport) { labels("a", 20) } else { own_keys(20) };
    scene.publish(texts(&labels)).await?;
    let transport = Arc::new(Gathered::new(scene.link.connect().await?, 20));
    let slow = script(|_| Act::Sleep(Duration::from_millis(10)));
    let inbox = scene.inbox(transport, Arc::clone(&scene.store), slow).lanes(1);
    let running = Running::start(inbox.max_batch_time(Duration::from_millis(45)))?;
    scene.no_backlog().await?;
    let numbers = running.handle.numbers();
    running.stop().await?;
    scene.each_once(&labels).await?;
    ensure_eq!(scene.journal.calls().len(), 20, "handler calls: what was cut off did not start");
    ensure!(numbers.commits >= 4, "200 ms of handlers in {} transactions of 45 ms", numbers.commits);
    scene.in_promised_order().await
}

pub(super) async fn e12_what_is_in_flight_is_bounded<S: FullStoreSubject>(scene: Scene<S>) -> CaseResult {
    let labels = labels("abcdef", 10);
    for (part, messages, bytes, most) in [
        (&labels[..30], 7, usize::MAX, 7),
        // Five messages of 41 bytes or more fill the bytes; one more is taken while there is a byte left.
        (&labels[30..], 1_000, 200, 6),
    ] {
        scene.publish(texts(part)).await?;
        let slow = script(|_| Act::Sleep(Duration::from_millis(2)));
        let inbox = scene.connected(slow).await?.in_flight(messages).in_flight_bytes(bytes);
        let running = Running::start(inbox)?;
        let handle = running.handle.clone();
        until("the backlog to reach 0", || async {
            let held = handle.numbers().in_flight;
            ensure!(held <= most, "{held} deliveries are held, {most} may be");
            Ok(scene.link.backlog().await? == 0)
        })
        .await?;
        running.stop().await?;
    }
    scene.each_once(&labels).await
}

pub(super) async fn e16_process_runs_one_message_without_a_broker<S: FullStoreSubject>(scene: Scene<S>) -> CaseResult {
    let by_label = script(|call| match call.label {
        "fails" => Act::Fail,
        "rejected" => Act::Reject,
        _ => Act::Succeed,
    });
    let inbox = Inbox::local(scene.name.clone(), Arc::clone(&scene.store)).on_any(scene.handler(by_label));
    let inbox = inbox.max_attempts(2).build()?;
    let good = message("good");
    let conflict = good.with_body(Bytes::from("other"));
    let fails = message("fails");
    for (message, expected) in [
        (&good, "Applied"),
        (&good, "Duplicate"),
        (&conflict, "IdConflict"),
        (&fails, "Failed 1"),
        (&fails, "Quarantined max_attempts"),
        (&fails, "Duplicate"),
        (&message("rejected"), "Quarantined rejected"),
        (&nameless("nameless"), "Quarantined missing_id"),
    ] {
        let outcome = match inbox.process(message.clone()).await? {
            Outcome::Failed { attempts, .. } => format!("Failed {attempts}"),
            Outcome::Quarantined(reason) => format!("Quarantined {reason}"),
            outcome => format!("{outcome:?}"),
        };
        ensure_eq!(outcome, expected, "the outcome of {message:?}");
    }
    let unstarted = inbox.run(std::future::ready(())).await;
    ensure!(matches!(unstarted, Err(InboxError::Config(_))), "an inbox without a transport ran: {unstarted:?}");
    scene.each_once(&["good"]).await?;
    let kept = [
        ("other", Reason::IdConflict),
        ("fails", Reason::MaxAttempts),
        ("rejected", Reason::Rejected),
        ("nameless", Reason::MissingId),
    ];
    scene.failures_are(&kept).await
}
