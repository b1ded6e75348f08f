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
