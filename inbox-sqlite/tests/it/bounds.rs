//! What is bounded, and what stays cheap.

use std::time::{Duration, Instant};

use inbox_core::{Capacity, Message, Publisher, Transport};
use inbox_sqlite::{
    QueueConfig, SqlitePublisher, SqliteTransport,
    sqlx::{self, SqlitePool},
};
use tokio::time::timeout;

async fn publish(config: &QueueConfig, messages: Vec<Message>) {
    let publisher = SqlitePublisher::connect(config).await.expect("connects");
    for done in publisher.publish(messages).await {
        done.expect("published");
    }
}

/// `capacity.bytes` is there to bound memory: what is not handed over must not be read and leased either.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_read_is_bounded_by_bytes_too() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = QueueConfig::new(dir.path().join("q.db"), "t").group("g");
    config.provision().await.expect("makes the topic");
    publish(&config, (0..200).map(|n| Message::new(vec![b'x'; 1 << 20].into()).id(format!("id-{n}"))).collect()).await;
    let transport = SqliteTransport::connect(&config).await.expect("connects");
    let received = transport.receive(Capacity { messages: 1_000, bytes: 4 << 20 }).await.expect("receives");
    assert!(received.len() <= 4, "T-04");
    let pool = SqlitePool::connect(&format!("sqlite:{}", config.file().display())).await.expect("connects");
    let leased: i64 = sqlx::query_scalar("SELECT count(*) FROM inbox_queue_deliveries WHERE lease_until > 0")
        .fetch_one(&pool)
        .await
        .expect("reads");
    assert!(leased <= 16, "{} handed over, {leased} MB read and leased from all others", received.len());
}

/// Members of a group, one hot key: one works, the others wait.
async fn hot_key(members: usize, messages: usize, keys: usize) -> (f64, Duration) {
    let dir = tempfile::tempdir().expect("a folder");
    let config = QueueConfig::new(dir.path().join("q.db"), "t").group("g");
    config.provision().await.expect("makes the topic");
    publish(
        &config,
        (0..messages)
            .map(|n| Message::new(n.to_string().into()).id(format!("id-{n}")).key(format!("k{}", n % keys)))
            .collect(),
    )
    .await;
    let started = Instant::now();
    let mut tasks = Vec::new();
    for _ in 0..members {
        let config = config.clone();
        tasks.push(tokio::spawn(async move {
            let transport = SqliteTransport::connect(&config).await.expect("connects");
            let (mut done, mut worst) = (0_usize, Duration::ZERO);
            loop {
                let at = Instant::now();
                let Ok(received) =
                    timeout(Duration::from_secs(2), transport.receive(Capacity { messages: 200, bytes: 1 << 30 }))
                        .await
                else {
                    return (done, worst);
                };
                let received = received.expect("receives");
                worst = worst.max(at.elapsed());
                done += received.len();
                // A handler's time.
                tokio::time::sleep(Duration::from_millis(5)).await;
                transport.ack(received.into_iter().map(|d| d.receipt).collect()).await.expect("acks");
            }
        }));
    }
    let (mut done, mut worst) = (0, Duration::ZERO);
    for task in tasks {
        let (more, slowest) = task.await.expect("no panic");
        done += more;
        worst = worst.max(slowest);
    }
    assert!(done >= messages);
    ((messages as f64) / (started.elapsed().as_secs_f64() - 2.0), worst)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn speed_of_keys() {
    for (members, keys) in [(1, 20_000), (2, 20_000), (1, 1), (2, 1), (1, 10), (2, 10), (3, 10)] {
        let (rate, worst) = hot_key(members, 20_000, keys).await;
        println!("keys: {members} member(s), {keys:>6} key(s): {rate:>8.0} msg/s, slowest receive {worst:?}");
    }
}
