//! What one message may not do to the others of its lane, and what shutdown does at the start.

#![allow(clippy::disallowed_methods, reason = "a test spawns what it likes")]

use std::time::Duration;

use inbox_core::{
    Handler, HandlerError, Inbox, Message, Ordering, Outcome, Publisher,
    memory::{MemoryBroker, MemoryError, MemoryStore, MemoryTx},
};

struct Picky(fn() -> MemoryError);

impl Handler<String, MemoryTx> for Picky {
    async fn handle<'a>(&'a self, event: String, tx: &'a mut MemoryTx) -> Result<(), HandlerError> {
        if event == "bad" {
            return Err(self.0().into());
        }
        Ok(tx.append("effects", &event)?)
    }
}

/// An error that looks like the database's, returned by one handler while the database is well: its message waits and
/// the others of its only lane go on; and since others commit, it is given up in the end.
#[tokio::test(start_paused = true)]
async fn a_message_whose_error_looks_like_an_outage_does_not_stop_its_lane() {
    for error in [|| MemoryError::Unavailable, || MemoryError::Contention] as [fn() -> MemoryError; 2] {
        let (broker, store) = (MemoryBroker::default(), MemoryStore::default());
        let message = |n: u32| {
            let body = if n == 3 { "bad".to_owned() } else { n.to_string() };
            Message::new(format!("\"{body}\"").into()).id(format!("id-{n}")).kind("k").key(n.to_string())
        };
        for done in broker.publisher("t").publish((0..20).map(message).collect()).await {
            done.expect("published");
        }
        let inbox = Inbox::new("c", broker.transport("t", "g"), store.clone())
            .on("k", Picky(error))
            .lanes(1)
            .build()
            .expect("builds");
        let handle = inbox.handle();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let running = tokio::task::spawn(inbox.run(async { drop(stopped.await) }));
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        while handle.numbers().applied < 19 {
            assert!(tokio::time::Instant::now() < deadline, "the others wait: {:?}", handle.numbers());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(handle.health().store, "the database answers");
        assert_eq!(handle.numbers().attempts_failed, 0);
        drop(stop);
        running.await.expect("no panic").expect("runs");
        assert_eq!(store.log("effects").len(), 19);
    }
}

#[tokio::test]
async fn an_order_that_the_transport_does_not_have_is_refused() {
    let broker = MemoryBroker::default();
    let refused = Inbox::new("c", broker.transport("t", "g"), MemoryStore::default())
        .on("k", Picky(|| MemoryError::Unavailable))
        .ordering(Ordering::Partition)
        .build()
        .expect_err("there are no partitions");
    assert!(refused.to_string().contains("ordering(Key)"), "{refused}");
}

#[tokio::test]
async fn an_ignored_kind_needs_no_id() {
    let inbox = Inbox::local("c", MemoryStore::default())
        .on("k", Picky(|| MemoryError::Unavailable))
        .ignore("noise")
        .build()
        .expect("builds");
    let outcome = inbox.process(Message::new("1".into()).kind("noise")).await.expect("processes");
    assert!(matches!(outcome, Outcome::Ignored(_)), "{outcome:?}");
}

/// A store that is late is not an idle queue.
#[tokio::test(start_paused = true)]
async fn run_until_idle_waits_for_the_store() {
    let (broker, store) = (MemoryBroker::default(), MemoryStore::default());
    let message = Message::new("\"1\"".into()).id("id-1").kind("k");
    for done in broker.publisher("t").publish(vec![message]).await {
        done.expect("published");
    }
    store.faults().fail_begins(5);
    Inbox::new("c", broker.transport("t", "g"), store.clone())
        .on("k", Picky(|| MemoryError::Unavailable))
        .run_until_idle(Duration::from_millis(10))
        .await
        .expect("runs");
    assert_eq!(store.log("effects"), ["1"]);
}

/// Runs until it is let go; then notes what it ran.
struct Gate(std::sync::Arc<tokio::sync::Semaphore>);

impl Handler<String, MemoryTx> for Gate {
    async fn handle<'a>(&'a self, event: String, tx: &'a mut MemoryTx) -> Result<(), HandlerError> {
        if event == "first" {
            drop(self.0.acquire().await?);
        }
        Ok(tx.append("effects", &event)?)
    }
}

/// Of two messages of one key that wait here, the first one loses its lease: the second must not overtake it.
#[tokio::test(start_paused = true)]
async fn a_lost_lease_takes_the_later_messages_of_its_key_along() {
    let (broker, store) = (MemoryBroker::default(), MemoryStore::default());
    let message = |n: u32, body: &str, key: &str| {
        Message::new(format!("\"{body}\"").into()).id(format!("id-{n}")).kind("k").key(key.to_owned())
    };
    let messages = vec![message(0, "first", "b"), message(1, "a1", "a"), message(2, "a2", "a"), message(3, "c", "c")];
    for done in broker.publisher("t").publish(messages).await {
        done.expect("published");
    }
    let gate = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    let transport = std::sync::Arc::new(broker.transport("t", "g"));
    let inbox = Inbox::new("c", std::sync::Arc::clone(&transport), store.clone())
        .on("k", Gate(std::sync::Arc::clone(&gate)))
        .lanes(1)
        .max_batch(1)
        .build()
        .expect("builds");
    let handle = inbox.handle();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::task::spawn(inbox.run(async { drop(stopped.await) }));
    while handle.numbers().received < 4 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(transport.lose_lease(1), "a1 waits behind the first message");
    gate.add_permits(1);
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while handle.numbers().applied < 4 {
        assert!(tokio::time::Instant::now() < deadline, "{:?}", handle.numbers());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop(stop);
    running.await.expect("no panic").expect("runs");
    let effects = store.log("effects");
    let of_a: Vec<&String> = effects.iter().filter(|effect| effect.starts_with('a')).collect();
    assert_eq!(of_a, ["a1", "a2"], "{effects:?}");
    assert_eq!(handle.numbers().lost_acks, 0, "what was lost before it ran is not acked: {:?}", handle.numbers());
}
