//! Leases: extended while the process lives, ended when it is gone.

use std::time::Duration;

use inbox_core::{Capacity, Message, Publisher, Transport, TransportErrorKind};
use inbox_sqlite::{
    QueueConfig, SqlitePublisher, SqliteTransport,
    sqlx::{self, SqlitePool},
};

const SOME: Capacity = Capacity { messages: 10, bytes: 1 << 20 };

async fn queue(lease: Duration) -> (tempfile::TempDir, QueueConfig) {
    let dir = tempfile::tempdir().expect("a folder");
    let config = QueueConfig::new(dir.path().join("q.db"), "t").group("g").lease(lease);
    config.provision().await.expect("makes the topic");
    let publisher = SqlitePublisher::connect(&config).await.expect("connects");
    for done in publisher.publish(vec![Message::new("1".into()).id("a")]).await {
        done.expect("published");
    }
    (dir, config)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_extended_while_its_holder_lives() {
    let (_dir, config) = queue(Duration::from_millis(400)).await;
    let holder = SqliteTransport::connect(&config).await.expect("connects");
    let held = holder.receive(SOME).await.expect("receives");
    let other = SqliteTransport::connect(&config).await.expect("connects");
    let stolen = tokio::time::timeout(Duration::from_millis(1_500), other.receive(SOME)).await;
    assert!(stolen.is_err(), "nobody else gets a message whose holder lives");
    let acked = holder.ack(held.into_iter().map(|d| d.receipt).collect()).await.expect("acks");
    assert_eq!((acked.acked, acked.lost), (1, 0));
    assert_eq!(config.backlog().await.expect("counts"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_lease_goes_to_another_and_the_late_ack_is_lost() {
    let (_dir, config) = queue(Duration::from_secs(600)).await;
    let holder = SqliteTransport::connect(&config).await.expect("connects");
    let held = holder.receive(SOME).await.expect("receives");
    // As if the holder had been stopped for longer than its lease.
    let file = SqlitePool::connect(&config_file(&config)).await.expect("connects");
    sqlx::query("UPDATE inbox_queue_deliveries SET lease_until = 0").execute(&file).await.expect("expires");
    let other = SqliteTransport::connect(&config).await.expect("connects");
    let again = other.receive(SOME).await.expect("receives");
    assert_eq!((again[0].delivery_count, again[0].suspect), (Some(2), true));
    let late = holder.ack(held.into_iter().map(|d| d.receipt).collect()).await.expect("answers");
    assert_eq!((late.acked, late.lost), (0, 1));
    assert_eq!(config.backlog().await.expect("counts"), 1, "the late ack settled nothing");
    let acked = other.ack(again.into_iter().map(|d| d.receipt).collect()).await.expect("acks");
    assert_eq!(acked.acked, 1);
}

#[tokio::test]
async fn what_is_missing_is_named() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = QueueConfig::new(dir.path().join("q.db"), "t").group("g");
    let error = SqliteTransport::connect(&config).await.expect_err("no file");
    assert_eq!(error.kind(), TransportErrorKind::NotFound);
    config.provision().await.expect("makes it");
    let other = QueueConfig::new(dir.path().join("q.db"), "other").group("g");
    let error = SqliteTransport::connect(&other).await.expect_err("no topic").to_string();
    assert!(error.contains("`other`") && error.contains("but `t`") && error.contains("provision"), "{error}");
    let nobody = QueueConfig::new(dir.path().join("q.db"), "t");
    let error = SqliteTransport::connect(&nobody).await.expect_err("no group").to_string();
    assert!(error.contains("`group` is missing"), "{error}");
}

fn config_file(config: &QueueConfig) -> String {
    format!("sqlite:{}", config.file().display())
}
