//! Settling that fails, races with `close`, or meets odd settings.

use std::{sync::Arc, time::Duration};

use inbox_core::{Capacity, Message, Publisher, Receipt, Transport, TransportErrorKind};
use inbox_sqlite::{
    QueueConfig, SqlitePublisher, SqliteTransport, provision,
    sqlx::{self, SqlitePool},
};
use tokio::time::timeout;

const LEASE: Duration = Duration::from_millis(400);

fn room(messages: usize) -> Capacity {
    Capacity { messages, bytes: usize::MAX }
}

async fn queue(messages: usize, lease: Duration) -> (tempfile::TempDir, QueueConfig, SqlitePool) {
    let dir = tempfile::tempdir().expect("a folder");
    let config = QueueConfig::new(dir.path().join("q.db"), "t").group("g").lease(lease);
    config.provision().await.expect("makes the topic");
    let publisher = SqlitePublisher::connect(&config).await.expect("connects");
    let all = (0..messages).map(|n| Message::new(n.to_string().into()).id(format!("id-{n}"))).collect();
    for done in publisher.publish(all).await {
        done.expect("published");
    }
    let pool = SqlitePool::connect(&format!("sqlite:{}", config.file().display())).await.expect("connects");
    (dir, config, pool)
}

/// Makes statements fail that end a lease, as a full disk or an I/O error would, until dropped again.
async fn break_settling(pool: &SqlitePool) {
    for sql in [
        "CREATE TRIGGER no_release BEFORE UPDATE ON inbox_queue_deliveries WHEN new.lease = 0 AND old.lease <> 0 BEGIN SELECT RAISE(ABORT, 'broken'); END",
        "CREATE TRIGGER no_ack BEFORE DELETE ON inbox_queue_deliveries BEGIN SELECT RAISE(ABORT, 'broken'); END",
    ] {
        sqlx::query(sql).execute(pool).await.expect("a trigger");
    }
}

async fn mend_settling(pool: &SqlitePool) {
    for sql in ["DROP TRIGGER no_release", "DROP TRIGGER no_ack"] {
        sqlx::query(sql).execute(pool).await.expect("drops");
    }
}

/// The others are held all the while, so the heart beats.
async fn comes_again(how: &str) {
    let (_dir, config, pool) = queue(3, LEASE).await;
    let transport = SqliteTransport::connect(&config).await.expect("connects");
    let mut held: Vec<Receipt> =
        transport.receive(room(3)).await.expect("receives").into_iter().map(|d| d.receipt).collect();
    assert_eq!(held.len(), 3);
    let one = held.remove(0);
    break_settling(&pool).await;
    match how {
        "release" => assert!(transport.release(vec![one]).await.is_err()),
        "ack" => assert!(transport.ack(vec![one]).await.is_err()),
        _ => drop(one),
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    mend_settling(&pool).await;
    // T-03: not acked, and the lease has ended ten times over.
    let again = timeout(LEASE * 10, transport.receive(room(3))).await;
    let again =
        again.unwrap_or_else(|_| panic!("{how} failed once, and the message never comes again")).expect("receives");
    assert_eq!(again.len(), 1, "{how}");
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn t03_a_delivery_whose_release_failed_comes_again() {
    comes_again("release").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t03_a_delivery_whose_ack_failed_comes_again() {
    comes_again("ack").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t03_a_dropped_delivery_whose_giving_back_failed_comes_again() {
    comes_again("drop").await;
}

/// T-10: others take over at once, whatever `close` falls into.
#[tokio::test(flavor = "multi_thread")]
async fn t10_close_in_the_middle_of_a_receive_holds_nothing_back() {
    let (_dir, config, _pool) = queue(200, Duration::from_secs(60)).await;
    for round in 0..60_u64 {
        let transport = Arc::new(SqliteTransport::connect(&config).await.expect("connects"));
        let receiver = Arc::clone(&transport);
        let receiving = tokio::spawn(async move {
            let mut held = Vec::new();
            while let Ok(more) = receiver.receive(room(7)).await {
                held.extend(more);
            }
        });
        tokio::time::sleep(Duration::from_micros(round * 211)).await;
        transport.close(Duration::from_secs(5)).await.expect("closes");
        drop(transport);
        receiving.await.expect("no panic");
        let other = SqliteTransport::connect(&config).await.expect("connects");
        let mut found = Vec::new();
        while found.len() < 200 {
            let more = timeout(Duration::from_secs(3), other.receive(room(200))).await;
            let more =
                more.unwrap_or_else(|_| panic!("round {round}: {} of 200 are held by nobody", 200 - found.len()));
            found.extend(more.expect("receives"));
        }
        other.release(found.into_iter().map(|d| d.receipt).collect()).await.expect("releases");
        other.close(Duration::from_secs(5)).await.expect("closes");
    }
}

/// The same for a transport that is only dropped.
#[tokio::test(flavor = "multi_thread")]
async fn t03_a_receive_that_is_dropped_with_its_transport_holds_nothing_back() {
    let (_dir, config, _pool) = queue(50, Duration::from_secs(60)).await;
    for round in 0..40_u64 {
        let transport = SqliteTransport::connect(&config).await.expect("connects");
        drop(timeout(Duration::from_micros(round * 97), transport.receive(room(50))).await);
        drop(transport);
        let other = SqliteTransport::connect(&config).await.expect("connects");
        let mut found = Vec::new();
        while found.len() < 50 {
            let more = timeout(Duration::from_secs(3), other.receive(room(50))).await;
            let more = more.unwrap_or_else(|_| panic!("round {round}: {} of 50 are held by nobody", 50 - found.len()));
            found.extend(more.expect("receives"));
        }
        other.close(Duration::from_secs(5)).await.expect("closes");
    }
}

/// Whatever lease the builder takes, it works or is refused with a sentence.
#[tokio::test(flavor = "multi_thread")]
async fn odd_leases_work_or_are_refused() {
    let mut wrong = Vec::new();
    for lease in [Duration::ZERO, Duration::from_nanos(3), Duration::from_secs(u64::MAX / 4), Duration::MAX] {
        let (_dir, config, _pool) = queue(1, lease).await;
        match SqliteTransport::connect(&config).await {
            Err(error) => assert_eq!(error.kind(), TransportErrorKind::InvalidConfig, "{lease:?}"),
            Ok(transport) => {
                let received = timeout(Duration::from_secs(3), transport.receive(room(1))).await;
                if !matches!(received, Ok(Ok(_))) {
                    wrong.push(format!("{lease:?}: {received:?}"));
                    continue;
                }
                drop(received);
                // Given back by the keeper, if it lives.
                let again = timeout(Duration::from_secs(3), transport.receive(room(1))).await;
                if !matches!(again, Ok(Ok(_))) {
                    wrong.push(format!("{lease:?}: a dropped receipt is not given back"));
                }
                if let Err(error) = transport.close(Duration::from_secs(3)).await {
                    wrong.push(format!("{lease:?}: {error}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test]
async fn a_body_that_sqlite_cannot_take_is_the_messages_own_fault() {
    let dir = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite:{}/t?group=g", dir.path().join("q.db").display());
    provision(&url).await.expect("provisions");
    let publisher = inbox_sqlite::publisher(&url).await.expect("connects");
    let large = Message::new(vec![0_u8; 1_000_000_001].into()).id("large");
    let answers = publisher.publish(vec![Message::new("1".into()).id("small"), large]).await;
    let kinds: Vec<_> = answers.into_iter().map(|answer| answer.map_err(|error| error.kind())).collect();
    assert_eq!(kinds[1], Err(TransportErrorKind::TooLarge), "`Unavailable` would be retried for ever");
}

/// No trigger here: another process writes for longer than the busy timeout (30 s), as a long migration does.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes 45 s"]
async fn t03_a_release_that_met_a_long_writer_comes_again() {
    let (_dir, config, pool) = queue(2, LEASE).await;
    let transport = SqliteTransport::connect(&config).await.expect("connects");
    let mut held: Vec<Receipt> =
        transport.receive(room(2)).await.expect("receives").into_iter().map(|d| d.receipt).collect();
    let one = held.remove(0);
    let writer = pool.begin_with("BEGIN IMMEDIATE").await.expect("begins");
    let released = transport.release(vec![one]).await;
    assert!(released.is_err(), "the writer was there for longer than the busy timeout");
    writer.rollback().await.expect("rolls back");
    // The heart beats again before anybody asks.
    tokio::time::sleep(LEASE).await;
    let again = timeout(LEASE * 10, transport.receive(room(2))).await;
    assert!(again.is_ok(), "released, refused as busy once, and it never comes again");
    drop(held);
}
