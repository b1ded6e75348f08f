//! Messages that fail, and what an operator sees of them.

use std::time::Duration;

use inbox_core::{Backoff, HandlerError, Message, Raw, failure_store::Reason, operator::Operator};
use inbox_postgres::PgTransaction;

use crate::support::{Bench, IDLE, put, raw, within};

const SOON: Backoff = Backoff { first: Duration::from_millis(5), most: Duration::from_millis(5) };

#[tokio::test(flavor = "multi_thread")]
async fn a_swallowed_error_is_a_failed_attempt_of_that_message_alone() {
    async fn swallow(table: String, n: i64, tx: &mut PgTransaction<'_>) -> Result<(), HandlerError> {
        put(&table, n, tx).await?;
        if n == 2 {
            drop(raw("SELECT 1 / 0", tx).await);
        }
        Ok(())
    }
    let bench = Bench::new("swallow").await;
    bench.publish_in_order(1..=5).await;
    let inbox =
        bench.inbox().on_with(bench.name.clone(), "k", swallow).max_attempts(3).backoff(SOON).build().expect("builds");
    let handle = inbox.handle();
    within(30, inbox.run_until_idle(IDLE)).await.expect("runs");
    let numbers = handle.numbers();
    assert_eq!((numbers.applied, numbers.quarantined, numbers.attempts_failed), (4, 1, 3));
    assert_eq!(bench.effects().await, [1, 3, 4, 5]);
    let failures = bench.store.failures(&bench.name, 10).await.expect("reads");
    assert_eq!((failures.len(), failures[0].reason, failures[0].attempts), (1, Reason::MaxAttempts, 3));
    assert_eq!(bench.counts().await.claims, 5, "what is quarantined is claimed");
    assert_eq!(bench.broker.backlog(&bench.name, "group"), 0);
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nul_and_emoji_come_back_from_quarantine_as_they_were() {
    async fn reject(_body: Raw, _tx: &mut PgTransaction<'_>) -> Result<(), HandlerError> {
        Err(HandlerError::reject("no \0 and no 🦀"))
    }
    let bench = Bench::new("nul").await;
    let (id, kind, body): (&[u8], _, &[u8]) = ("i\0d 🦀 \u{202e}".as_bytes(), "k\0 🦀", b"\0\xff\xf0\x9f\xa6\x80\0");
    let message =
        Message::new(body.to_vec().into()).id(id.to_vec()).kind(kind).key(&b"\0key"[..]).header("h\0", &b"\0"[..]);
    bench.publish_all(vec![message]).await;
    within(30, bench.inbox().on_any(reject).run_until_idle(IDLE)).await.expect("runs");
    let operator: &dyn Operator = &bench.store;
    let failures = operator.failures(&bench.name, 10).await.expect("reads");
    let [row] = &failures[..] else { panic!("one row, not {failures:?}") };
    assert_eq!(row.reason, Reason::Rejected);
    assert_eq!(row.id_text.as_deref(), Some(id));
    assert_eq!(row.kind.as_deref(), Some(kind));
    assert_eq!(row.body.as_deref(), Some(body));
    assert_eq!(row.source.name.as_ref(), bench.name);
    assert!(row.error.contains("🦀") && !row.error.contains('\0'), "{:?}", row.error);
    bench.close().await;
}
