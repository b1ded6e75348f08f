//! `run()` dropped at random under load: every effect is there once, and nothing is left behind.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "clippy takes only functions that are a test for tests, not what they call"
)]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use inbox::{
    Bytes, HandlerError, Inbox, Message, Publisher, Transport,
    memory::MemoryBroker,
    sqlite::{QueueConfig, SqliteInboxStore, SqliteTransaction, sqlx},
};
use tempfile::TempDir;

const MESSAGES: u64 = 2_000;
const DROPS: u64 = 200;
/// How long the last run may take with what is left. Half of a lease: nothing may wait for one to end.
const PATIENCE: Duration = Duration::from_secs(15);

async fn on_noted(event: Message<u64>, tx: &mut SqliteTransaction<'_>) -> Result<(), HandlerError> {
    if event.body.is_multiple_of(7) {
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
    sqlx::query("INSERT INTO effects (number, key) VALUES (?1, ?2)")
        .bind(i64::try_from(event.body)?)
        .bind(event.key.as_deref())
        .execute(&mut **tx)
        .await?;
    Ok(())
}

fn noted(number: u64) -> Message {
    let id = uuid::Uuid::now_v7().to_string();
    Message::new(Bytes::from(number.to_string())).id(id).kind("noted").key(format!("key-{}", number % 10))
}

struct Database {
    pool: sqlx::SqlitePool,
    store: SqliteInboxStore,
}

impl Database {
    async fn new(dir: &TempDir) -> Self {
        let file = dir.path().join("app.db").display().to_string();
        let store =
            SqliteInboxStore::builder(&file).expect("a file").migrate_on_start(true).open().await.expect("opened");
        let pool = sqlx::SqlitePool::connect(&format!("sqlite:{file}")).await.expect("connected");
        sqlx::query("CREATE TABLE effects (place INTEGER PRIMARY KEY, number INTEGER, key BLOB)")
            .execute(&pool)
            .await
            .expect("made");
        Self { pool, store }
    }

    fn inbox(&self, transport: Arc<dyn Transport>) -> Inbox<SqliteInboxStore> {
        let inbox = Inbox::new("noter", transport, self.store.clone()).on("noted", on_noted);
        inbox.max_batch(10).in_flight(200).build().expect("an inbox")
    }

    /// All numbers, each once.
    async fn each_once(&self) {
        let numbers: Vec<i64> =
            sqlx::query_scalar("SELECT number FROM effects ORDER BY number").fetch_all(&self.pool).await.expect("rows");
        let expected: Vec<i64> = (0..MESSAGES).map(|number| i64::try_from(number).expect("small")).collect();
        assert_eq!(numbers.len(), expected.len(), "effects");
        assert_eq!(numbers, expected, "each effect once");
    }

    /// Numbers of one key that came before a smaller one of it.
    async fn overtaken(&self) -> i64 {
        let sql = "SELECT count(*) FROM effects a JOIN effects b ON a.key = b.key AND a.number > b.number AND a.place < b.place";
        sqlx::query_scalar(sql).fetch_one(&self.pool).await.expect("a count")
    }
}

/// Publishes while `run` is started and dropped, then lets one run to its end.
async fn drop_at_random(
    database: &Database,
    publisher: Arc<dyn Publisher>,
    connect: impl AsyncFn() -> Arc<dyn Transport>,
) {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    println!("seed {seed}");
    let (mut published, mut received, mut applied) = (0, 0, 0);
    for round in 1..=DROPS {
        let until = MESSAGES * round / DROPS;
        // Bursts: the load of the first runs waits for the later ones.
        if random.u8(..4) == 0 || round == DROPS {
            for stored in publisher.publish((published..until).map(noted).collect()).await {
                stored.expect("published");
            }
            published = until;
        }
        let inbox = database.inbox(connect().await);
        let handle = inbox.handle();
        let time = Duration::from_micros(random.u64(..60_000));
        match tokio::time::timeout(time, inbox.run(std::future::pending())).await {
            Ok(ended) => panic!("round {round}: run ended by itself: {ended:?}"),
            Err(_) => {
                received += handle.numbers().received;
                applied += handle.numbers().applied;
            }
        }
    }
    println!("when dropped: {received} received, {applied} applied; {published} published");
    let started = Instant::now();
    let last = database.inbox(connect().await).run_until_idle(Duration::from_millis(500));
    tokio::time::timeout(PATIENCE, last).await.expect("in time").expect("a clean stop");
    println!("the last run took {:?}", started.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn over_a_queue_in_a_file() {
    let dir = tempfile::tempdir().expect("a folder");
    let database = Database::new(&dir).await;
    let queue = QueueConfig::new(dir.path().join("queue.db"), "notes").group("noter").lease(PATIENCE * 2);
    queue.provision().await.expect("provisioned");
    let url = format!("sqlite:{}/notes?group=noter&lease={}s", queue.file().display(), PATIENCE.as_secs() * 2);
    let publisher = inbox::publisher(&url).await.expect("a publisher");
    drop_at_random(&database, publisher, async || inbox::connect(&url).await.expect("connected")).await;
    assert_eq!(queue.published().await.expect("counted"), MESSAGES);
    assert_eq!(queue.backlog().await.expect("counted"), 0);
    database.each_once().await;
    assert_eq!(database.overtaken().await, 0, "a key is with one run at a time, in its order");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn over_a_queue_in_memory() {
    let dir = tempfile::tempdir().expect("a folder");
    let database = Database::new(&dir).await;
    let broker = MemoryBroker::new();
    let publisher = Arc::new(broker.publisher("notes"));
    drop_at_random(&database, publisher, async || Arc::new(broker.transport("notes", "noter")) as Arc<dyn Transport>)
        .await;
    assert_eq!(broker.published("notes").len(), usize::try_from(MESSAGES).expect("small"));
    assert_eq!(broker.backlog("notes", "noter"), 0);
    database.each_once().await;
    assert_eq!(database.overtaken().await, 0, "a key is with one run at a time, in its order");
}
