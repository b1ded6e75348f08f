//! Measurements; run them alone: `cargo test -p inbox-sqlite --test it -- --ignored --nocapture --test-threads 1 speed`.

use std::time::{Duration, Instant};

use inbox_core::{
    Candidate, Capacity, HandlerError, Inbox, InboxStore, Limits, Message, MessageId, Publisher, Transport,
    operator::Operator,
};
use inbox_sqlite::{
    QueueConfig, SqliteInboxStore, SqlitePublisher, SqliteTransaction, SqliteTransport,
    sqlx::{self, SqlitePool},
};

const ALL: usize = 20_000;

async fn insert(text: String, tx: &mut SqliteTransaction<'_>) -> Result<(), HandlerError> {
    sqlx::query("INSERT INTO effects VALUES (?1)").bind(text).execute(&mut **tx).await?;
    Ok(())
}

fn rate(name: &str, count: usize, since: Instant) {
    println!("{name:<58} {:>9.0} msg/s", count as f64 / since.elapsed().as_secs_f64());
}

async fn database(dir: &std::path::Path) -> SqliteInboxStore {
    let file = dir.join("app.db").display().to_string();
    let store = SqliteInboxStore::builder(&file).expect("a file").migrate_on_start(true).open().await.expect("opens");
    let pool = SqlitePool::connect(&file).await.expect("connects");
    sqlx::query("CREATE TABLE effects (text TEXT)").execute(&pool).await.expect("a table");
    store
}

fn messages(count: usize) -> Vec<Message> {
    (0..count)
        .map(|n| {
            Message::new(format!("\"{n}\"").into())
                .id(uuid::Uuid::now_v7().to_string())
                .kind("k")
                .key(format!("key-{}", n % 1_000))
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn speed_of_the_store() {
    for batch in [1, 20, 200] {
        for effects in [false, true] {
            let dir = tempfile::tempdir().expect("a folder");
            let store = database(dir.path()).await;
            let consumer = store.register("c").await.expect("registers");
            let count = if batch == 1 { 1_000 } else { ALL };
            let since = Instant::now();
            for _ in 0..count / batch {
                let ids: Vec<MessageId> = (0..batch).map(|_| MessageId::from_uuid(uuid::Uuid::now_v7())).collect();
                let candidates: Vec<Candidate> =
                    ids.iter().map(|id| Candidate { id: *id, fingerprint: 1, time: id.time() }).collect();
                let mut tx = store.begin(&Limits::default()).await.expect("begins");
                let mut claims = store.claim(&mut tx, consumer, &candidates).await.expect("claims");
                for id in ids {
                    if effects {
                        insert("x".into(), &mut tx).await.expect("inserts");
                    }
                    claims.done(id);
                }
                store.commit(tx, claims).await.expect("commits");
            }
            rate(
                &format!("store: batch {batch}, {}", if effects { "one insert each" } else { "claims only" }),
                count,
                since,
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn speed_of_the_queue() {
    for batch in [1, 100, 1_000] {
        let dir = tempfile::tempdir().expect("a folder");
        let config = QueueConfig::new(dir.path().join("q.db"), "t").group("g");
        config.provision().await.expect("makes the topic");
        let publisher = SqlitePublisher::connect(&config).await.expect("connects");
        let count = if batch == 1 { 1_000 } else { ALL };
        let all = messages(count);
        let since = Instant::now();
        for some in all.chunks(batch) {
            for done in publisher.publish(some.to_vec()).await {
                done.expect("published");
            }
        }
        rate(&format!("queue: publish, {batch} a call"), count, since);
        let transport = SqliteTransport::connect(&config).await.expect("connects");
        let since = Instant::now();
        let mut got = 0;
        while got < count {
            let some = transport.receive(Capacity { messages: batch, bytes: 1 << 30 }).await.expect("receives");
            got += some.len();
            transport.ack(some.into_iter().map(|d| d.receipt).collect()).await.expect("acks");
        }
        rate(&format!("queue: receive and ack, {batch} a call"), count, since);
    }
}

/// How long a message takes from `publish` to `receive` when the queue was idle.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn speed_of_one_message_through_an_idle_queue() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = QueueConfig::new(dir.path().join("q.db"), "t").group("g");
    config.provision().await.expect("makes the topic");
    let publisher = SqlitePublisher::connect(&config).await.expect("connects");
    let transport = SqliteTransport::connect(&config).await.expect("connects");
    let mut waits = Vec::new();
    for n in 0..60 {
        let receiving = transport.receive(Capacity { messages: 1, bytes: 1 << 20 });
        let publishing = async {
            tokio::time::sleep(Duration::from_millis(200 + n)).await;
            for done in publisher.publish(messages(1)).await {
                done.expect("published");
            }
            Instant::now()
        };
        let (received, stored) = tokio::join!(
            async {
                let received = receiving.await.expect("receives");
                (received, Instant::now())
            },
            publishing
        );
        waits.push(received.1.saturating_duration_since(stored));
        transport.ack(received.0.into_iter().map(|d| d.receipt).collect()).await.expect("acks");
    }
    waits.sort();
    println!(
        "queue: idle, from stored to received: median {:?}, worst {:?}",
        waits[waits.len() / 2],
        waits[waits.len() - 1]
    );
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn speed_of_the_pipeline() {
    for same_file in [false, true] {
        let dir = tempfile::tempdir().expect("a folder");
        let store = database(dir.path()).await;
        let config = QueueConfig::new(dir.path().join(if same_file { "app.db" } else { "q.db" }), "t").group("g");
        config.provision().await.expect("makes the topic");
        let publisher = SqlitePublisher::connect(&config).await.expect("connects");
        for done in publisher.publish(messages(ALL)).await {
            done.expect("published");
        }
        let transport = SqliteTransport::connect(&config).await.expect("connects");
        let since = Instant::now();
        let idle = Duration::from_secs(5);
        Inbox::new("c", transport, store.clone()).on("k", insert).run_until_idle(idle).await.expect("runs");
        let took = since.elapsed() - idle;
        assert_eq!(store.counts_of("c").await.expect("counts").claims, ALL as u64);
        let file = if same_file { "one file" } else { "two files" };
        println!(
            "{:<58} {:>9.0} msg/s",
            format!("pipeline: receive, claim, insert, commit, ack, {file}"),
            ALL as f64 / took.as_secs_f64()
        );
    }
}

/// Receive and ack by size of the call, in turns, so that a noisy machine hits all sizes alike.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn speed_by_size() {
    for round in 0..3 {
        for (batch, keys) in [(100, 0), (300, 0), (1_000, 0), (100, 1_000), (300, 1_000), (1_000, 1_000), (1_000, 10)] {
            let dir = tempfile::tempdir().expect("a folder");
            let config = QueueConfig::new(dir.path().join("q.db"), "t").group("g");
            config.provision().await.expect("makes the topic");
            let publisher = SqlitePublisher::connect(&config).await.expect("connects");
            let count = 10_000;
            let all: Vec<Message> = (0..count)
                .map(|n| {
                    let message = Message::new(n.to_string().into()).id(format!("id-{n}")).kind("k");
                    if keys == 0 { message } else { message.key(format!("key-{}", n % keys)) }
                })
                .collect();
            for done in publisher.publish(all).await {
                done.expect("published");
            }
            let transport = SqliteTransport::connect(&config).await.expect("connects");
            let (mut got, mut receiving, mut acking) = (0, Duration::ZERO, Duration::ZERO);
            while got < count {
                let at = Instant::now();
                let some = transport.receive(Capacity { messages: batch, bytes: 1 << 30 }).await.expect("receives");
                receiving += at.elapsed();
                got += some.len();
                let at = Instant::now();
                transport.ack(some.into_iter().map(|d| d.receipt).collect()).await.expect("acks");
                acking += at.elapsed();
            }
            println!(
                "by size, round {round}: {batch:>5} a call, {keys:>5} keys: receive {:>8.0}/s, ack {:>8.0}/s",
                count as f64 / receiving.as_secs_f64(),
                count as f64 / acking.as_secs_f64()
            );
        }
    }
}
