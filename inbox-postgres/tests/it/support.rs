//! A consumer, a table and a topic of a test's own on the server of `INBOX_TEST_POSTGRES`.

use std::{collections::BTreeSet, future::Future, ops::RangeInclusive, time::Duration};

use inbox_core::{
    Candidate, HandlerError, Inbox, InboxBuilder, Message, MessageId, Publisher,
    maintenance::{Counts, Maintenance},
    memory::{MemoryBroker, MemoryTransport},
    operator::Operator,
};
use inbox_postgres::{
    PgConfig, PgInboxStore, PgTransaction,
    sqlx::{self, AssertSqlSafe, PgPool, postgres::PgPoolOptions},
};
use tokio::sync::OnceCell;
use uuid::Uuid;

/// How long nothing may happen before a run counts as over.
pub(crate) const IDLE: Duration = Duration::from_millis(300);

static MIGRATED: OnceCell<()> = OnceCell::const_new();

pub(crate) fn url() -> String {
    std::env::var("INBOX_TEST_POSTGRES")
        .expect("INBOX_TEST_POSTGRES is the URL of a PostgreSQL server; `cargo xtask services up` starts one")
}

/// The URL with another user, password, database or further keys.
pub(crate) fn url_with(change: impl FnOnce(&mut url::Url)) -> String {
    let mut url = url::Url::parse(&url()).expect("a URL");
    change(&mut url);
    url.into()
}

pub(crate) fn unique(name: &str) -> String {
    format!("it_{name}_{}", &Uuid::new_v4().simple().to_string()[..12])
}

/// Fails a test that hangs.
pub(crate) async fn within<T>(seconds: u64, what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(seconds), what).await.expect("done in time")
}

pub(crate) struct Bench {
    /// The name of the consumer, its table, its topic and the `application_name` of its connections.
    pub(crate) name: String,
    /// Of the test, not of the store.
    pub(crate) pool: PgPool,
    pub(crate) store: PgInboxStore,
    pub(crate) broker: MemoryBroker,
}

impl Bench {
    pub(crate) async fn new(name: &str) -> Self {
        Self::with(name, |_| {}).await
    }

    /// With a store that connects by a changed URL.
    pub(crate) async fn with(name: &str, change: impl FnOnce(&mut url::Url)) -> Self {
        let pool = PgPoolOptions::new().max_connections(2).connect(&url()).await.expect("connects");
        // Once: in a debug build it is the making of connections, with their passwords, that takes the time.
        MIGRATED.get_or_init(|| async { PgInboxStore::new(&pool).migrate().await.expect("migrates") }).await;
        Self::on(pool, &url(), name, change).await
    }

    /// On the migrated database of `pool` and `url`.
    pub(crate) async fn on(pool: PgPool, url: &str, name: &str, change: impl FnOnce(&mut url::Url)) -> Self {
        let name = unique(name);
        let mut url = url::Url::parse(url).expect("a URL");
        url.query_pairs_mut().append_pair("application_name", &name);
        change(&mut url);
        let bench = Self {
            store: PgConfig::url(url.as_str()).expect("a URL").open().expect("a store"),
            name,
            pool,
            broker: MemoryBroker::new(),
        };
        bench
            .sql(&format!("CREATE TABLE {} (number bigint GENERATED ALWAYS AS IDENTITY, effect bigint)", bench.name))
            .await;
        bench
    }

    pub(crate) async fn sql(&self, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&self.pool).await.expect(sql);
    }

    /// Messages of the kind `k` with the numbers as bodies and without keys.
    pub(crate) async fn publish(&self, numbers: RangeInclusive<i64>) {
        self.publish_all(numbers.map(message).collect()).await;
    }

    /// As [`publish`](Self::publish), all of one key: one lane has them in order.
    pub(crate) async fn publish_in_order(&self, numbers: RangeInclusive<i64>) {
        self.publish_all(numbers.map(|n| message(n).key("one")).collect()).await;
    }

    pub(crate) async fn publish_all(&self, messages: Vec<Message>) {
        for done in self.broker.publisher(&self.name).publish(messages).await {
            done.expect("published");
        }
    }

    pub(crate) fn transport(&self) -> MemoryTransport {
        self.broker.transport(&self.name, "group")
    }

    pub(crate) fn inbox(&self) -> InboxBuilder<PgInboxStore> {
        Inbox::new(self.name.clone(), self.transport(), self.store.clone())
    }

    /// Runs what is there with a handler that only inserts.
    pub(crate) async fn run_well(&self) {
        let run = self.inbox().on_with(self.name.clone(), "k", insert).run_until_idle(IDLE);
        within(60, run).await.expect("runs");
    }

    pub(crate) async fn effects(&self) -> Vec<i64> {
        let sql = AssertSqlSafe(format!("SELECT effect FROM {} ORDER BY number", self.name));
        sqlx::query_scalar(sql).fetch_all(&self.pool).await.expect("reads")
    }

    /// Each number's effect is there once, and no other.
    pub(crate) async fn assert_each_once(&self, numbers: RangeInclusive<i64>) {
        let effects = self.effects().await;
        let different: BTreeSet<i64> = effects.iter().copied().collect();
        assert_eq!(effects.len(), different.len(), "an effect was applied twice");
        assert_eq!(different, numbers.collect(), "effects are missing, or there are others");
    }

    pub(crate) async fn counts(&self) -> Counts {
        self.store.counts_of(&self.name).await.expect("counts")
    }

    /// Takes away what is in the shared database; a test that fails leaves it there to be looked at.
    pub(crate) async fn close(self) {
        self.sql(&format!("DROP TABLE {}", self.name)).await;
        forget(&self.pool, &self.name).await;
        self.pool.close().await;
    }
}

/// Deletes what the tables of the inbox have of a consumer.
pub(crate) async fn forget(pool: &PgPool, consumer: &str) {
    for table in ["claims", "failures"] {
        let sql =
            format!("DELETE FROM inbox.{table} WHERE consumer = (SELECT number FROM inbox.consumers WHERE name = $1)");
        sqlx::query(AssertSqlSafe(sql)).bind(consumer).execute(pool).await.expect("deletes");
    }
    sqlx::query("DELETE FROM inbox.consumers WHERE name = $1").bind(consumer).execute(pool).await.expect("deletes");
}

fn message(n: i64) -> Message {
    Message::new(n.to_string().into()).id(Uuid::now_v7().to_string()).kind("k")
}

/// The handler's effect.
pub(crate) async fn insert(table: String, n: i64, tx: &mut PgTransaction<'_>) -> Result<(), HandlerError> {
    put(&table, n, tx).await?;
    Ok(())
}

pub(crate) async fn put(table: &str, n: i64, tx: &mut PgTransaction<'_>) -> Result<(), sqlx::Error> {
    let sql = AssertSqlSafe(format!("INSERT INTO {table} (effect) VALUES ($1)"));
    sqlx::query(sql).bind(n).execute(&mut **tx).await.map(drop)
}

pub(crate) async fn raw(sql: &str, tx: &mut PgTransaction<'_>) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut **tx).await.map(drop)
}

/// An id of now.
pub(crate) fn candidate() -> Candidate {
    let id = MessageId::from_uuid(Uuid::now_v7());
    Candidate { id, fingerprint: 1, time: id.time() }
}
