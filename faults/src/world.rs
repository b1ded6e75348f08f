//! The place of a round: a fresh topic and a fresh database, and what stands in them.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
    sync::Arc,
};

use anyhow::{Context, bail};
use inbox::{
    Publisher,
    maintenance::Maintenance,
    postgres::{PgInboxStore, sqlx},
    sqlite::SqliteInboxStore,
};
use uuid::Uuid;

use crate::{
    args::{Broker, Store},
    outcome::{Outcome, Pair},
    servers::{LOCAL, Servers},
};

/// Which store a URL is of.
pub(crate) fn store_of(url: &str) -> anyhow::Result<Store> {
    match url.split_once(':').map(|(scheme, _)| scheme) {
        Some("postgres") => Ok(Store::Postgres),
        Some("sqlite") => Ok(Store::Sqlite),
        _ => bail!("no such store: accepted: postgres://…, sqlite:FILE"),
    }
}

/// The URL of a queue at a broker that is given; leases are short, so that what a dead process held comes again soon.
fn queue(broker: Broker, name: &str) -> anyhow::Result<String> {
    let variable = broker.variable().context("the harness starts this broker itself")?;
    let base = std::env::var(variable).with_context(|| {
        format!(
            "{variable} is not set: `cargo xtask services up`, then `. target/services/env.sh`, or give a server's URL"
        )
    })?;
    let (base, given) = base.split_once('?').unwrap_or((&base, ""));
    let base = base.trim_end_matches('/');
    let lease = broker.lease().as_secs();
    let url = match broker {
        Broker::Redis => format!("{base}?stream=faults-{name}&group=faults&lease={lease}s"),
        Broker::Sqs => format!("{base}/faults-{name}?lease={lease}s&wait=1s"),
        // Not in order: the emulator has a thread for each key of an ordered subscription.
        _ => format!("{base}/faults-{name}-group?topic=faults-{name}&lease={lease}s&ordering=false"),
    };
    Ok(if given.is_empty() { url } else { format!("{url}&{given}") })
}

/// A URL by a proxy; itself, where the server is not on this machine.
async fn by_proxy(servers: &mut Servers, url: &str) -> anyhow::Result<String> {
    let Some((before, behind)) = url.split_once(LOCAL) else { return Ok(url.to_owned()) };
    let end = behind.find(|c: char| !c.is_ascii_digit()).unwrap_or(behind.len());
    let port = servers.proxy_before(behind[..end].parse()?).await?;
    Ok(format!("{before}{LOCAL}{port}{}", &behind[end..]))
}

/// URLs of one round.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    pub(crate) pair: Pair,
    /// The topic, with group.
    topic: String,
    /// The same by the proxy; no proxy stands before a file.
    topic_by_proxy: String,
    store: String,
    store_by_proxy: String,
}

impl Scene {
    /// A fresh topic of `partitions`, a group that has read nothing, a fresh database with the inbox's tables.
    pub(crate) async fn set(
        servers: &mut Servers,
        pair: Pair,
        partitions: u32,
        folder: Option<&Path>,
    ) -> anyhow::Result<Self> {
        servers.revive()?;
        let name = Uuid::now_v7().simple().to_string()[18..].to_owned();
        let folder =
            folder.map_or_else(|| servers.folder().map(Path::to_path_buf), |folder| Ok(folder.to_path_buf()))?;
        let (topic, topic_by_proxy) = match pair.broker {
            Broker::Kafka => {
                let kafka = servers.kafka().await?;
                let url = |port: u16| {
                    format!(
                        "kafka://127.0.0.1:{port}/faults-{name}?group=faults-{name}&session_timeout=6s\
                         &partitions={partitions}&kafka.topic.metadata.refresh.interval.ms=2000"
                    )
                };
                (url(kafka.port()), url(kafka.proxy.port()))
            }
            Broker::Sqlite => {
                let url = format!("sqlite:{}/{name}-queue.db/faults?group=faults", folder.display());
                (url.clone(), url)
            }
            Broker::Rabbitmq => {
                let base = servers.rabbitmq()?.node.url();
                let url = format!("{base}?queue=faults-{name}&heartbeat=5s");
                let by_proxy = by_proxy(servers, &url).await?;
                (url, by_proxy)
            }
            Broker::Redis | Broker::Sqs | Broker::Pubsub => {
                let url = queue(pair.broker, &name)?;
                let by_proxy = by_proxy(servers, &url).await?;
                (url, by_proxy)
            }
        };
        let (store, store_by_proxy) = match pair.store {
            Store::Postgres => {
                let postgres = servers.postgres().await?;
                let database = format!("faults_{name}");
                tokio::task::block_in_place(|| postgres.cluster.create_database(&database))?;
                let cluster = &postgres.cluster;
                (cluster.url(&database), cluster.url_by(postgres.proxy.port(), &database))
            }
            Store::Sqlite => {
                let url = format!("sqlite:{}/{name}-store.db", folder.display());
                (url.clone(), url)
            }
        };
        let scene = Self { pair, topic, topic_by_proxy, store, store_by_proxy };
        scene.open().await?;
        Ok(scene)
    }

    /// A scene in a database of the case's own.
    pub(crate) async fn in_database(mut self, url: String) -> anyhow::Result<Self> {
        self.store_by_proxy.clone_from(&url);
        self.store = url;
        self.open().await?;
        Ok(self)
    }

    async fn open(&self) -> anyhow::Result<()> {
        self.provision().await?;
        // A group exists before the first message, so that its backlog is known.
        self.lag().await.context("look at the group")?;
        match self.pair.store {
            Store::Postgres => {
                PgInboxStore::connect(&self.store).await?.migrate().await?;
                let pool = sqlx::PgPool::connect(&self.store).await?;
                sqlx::query(
                    "CREATE TABLE IF NOT EXISTS effects (seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payment bigint NOT \
                     NULL, account text NOT NULL, place bigint NOT NULL, id uuid NOT NULL, instance text NOT NULL, \
                     attempt bigint NOT NULL)",
                )
                .execute(&pool)
                .await?;
                pool.close().await;
            }
            Store::Sqlite => {
                SqliteInboxStore::builder(&self.store)?.open().await?.migrate().await?;
                let pool = self.sqlite().await?;
                sqlx::query(
                    "CREATE TABLE IF NOT EXISTS effects (seq INTEGER PRIMARY KEY AUTOINCREMENT, payment INTEGER NOT NULL, \
                     account TEXT NOT NULL, place INTEGER NOT NULL, id BLOB NOT NULL, instance TEXT NOT NULL, \
                     attempt INTEGER NOT NULL)",
                )
                .execute(&pool)
                .await?;
                pool.close().await;
            }
        }
        Ok(())
    }

    pub(crate) fn topic(&self, by_proxy: bool) -> &str {
        if by_proxy { &self.topic_by_proxy } else { &self.topic }
    }

    pub(crate) fn store(&self, by_proxy: bool) -> &str {
        if by_proxy { &self.store_by_proxy } else { &self.store }
    }

    pub(crate) async fn publisher(&self) -> anyhow::Result<Arc<dyn Publisher>> {
        inbox::publisher(&self.topic).await.context("connect the publisher")
    }

    /// Makes topic and group unless they are there.
    pub(crate) async fn provision(&self) -> anyhow::Result<()> {
        inbox::provision(&self.topic).await.context("make the topic")
    }

    /// What the group has not acknowledged; of RabbitMQ, what no consumer holds.
    pub(crate) async fn lag(&self) -> anyhow::Result<i64> {
        Ok(match self.pair.broker {
            Broker::Kafka => inbox::kafka::group_lag(&self.topic).await?,
            _ => i64::try_from(inbox::backlog(&self.topic).await?)?,
        })
    }

    async fn sqlite(&self) -> anyhow::Result<sqlx::SqlitePool> {
        let options: sqlx::sqlite::SqliteConnectOptions = self.store.parse()?;
        let options = options
            .create_if_missing(true)
            .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal)
            .busy_timeout(std::time::Duration::from_secs(60));
        Ok(sqlx::SqlitePool::connect_with(options).await?)
    }

    /// How many effects there are.
    pub(crate) async fn effects(&self) -> anyhow::Result<i64> {
        const COUNT: &str = "SELECT count(*) FROM effects";
        Ok(match self.pair.store {
            Store::Postgres => {
                let mut connection = <sqlx::PgConnection as sqlx::Connection>::connect(&self.store).await?;
                let count = sqlx::query_scalar(COUNT).fetch_one(&mut connection).await?;
                sqlx::Connection::close(connection).await?;
                count
            }
            Store::Sqlite => {
                let pool = self.sqlite().await?;
                let count = sqlx::query_scalar(COUNT).fetch_one(&pool).await?;
                pool.close().await;
                count
            }
        })
    }

    /// The payments among the first `count` that have no effect.
    pub(crate) async fn missing(&self, count: usize) -> anyhow::Result<Vec<usize>> {
        let books = self.books().await?;
        let there: HashSet<i64> = books.effects.iter().map(|(payment, ..)| *payment).collect();
        let has_none = |payment: &usize| !i64::try_from(*payment).is_ok_and(|payment| there.contains(&payment));
        Ok((0..count).filter(has_none).collect())
    }

    /// Compares what is there with what was published: `ids` are those of the payments, by number.
    pub(crate) async fn audit(&self, ids: &[Uuid], outcome: &mut Outcome) -> anyhow::Result<()> {
        let books = self.books().await?;
        let mut times: HashMap<i64, u64> = HashMap::new();
        let mut reached: HashMap<&str, i64> = HashMap::new();
        let mut effects = HashSet::new();
        for (payment, account, place, id, attempt) in &books.effects {
            *times.entry(*payment).or_default() += 1;
            let reached = reached.entry(account).or_insert(-1);
            outcome.reordered += u64::from(place <= reached);
            *reached = *place.max(reached);
            outcome.attempts += u64::try_from(attempt - 1).unwrap_or(0);
            effects.insert(*id);
            let known = usize::try_from(*payment).ok().and_then(|payment| ids.get(payment));
            outcome.expect(known == Some(id), || format!("payment {payment} was never made"));
        }
        outcome.messages = ids.len() as u64;
        outcome.lost = (0_i64..).zip(ids).filter(|(payment, _)| !times.contains_key(payment)).count() as u64;
        outcome.doubled = times.values().map(|times| times - 1).sum();
        outcome.unclaimed = effects.symmetric_difference(&books.claims).count() as u64;
        outcome.attempts += books.attempts;
        outcome.quarantined = books.quarantined;
        Ok(())
    }

    async fn books(&self) -> anyhow::Result<Books> {
        const EFFECTS: &str = "SELECT payment, account, place, id, attempt FROM effects ORDER BY seq";
        match self.pair.store {
            Store::Postgres => {
                let pool = sqlx::PgPool::connect(&self.store).await?;
                let effects = sqlx::query_as(EFFECTS).fetch_all(&pool).await?;
                let claims = sqlx::query_scalar("SELECT message_id FROM inbox.claims").fetch_all(&pool).await?;
                let failures =
                    sqlx::query_as("SELECT reason, attempts::bigint FROM inbox.failures").fetch_all(&pool).await?;
                pool.close().await;
                Ok(Books::new(effects, claims, failures))
            }
            Store::Sqlite => {
                let pool = self.sqlite().await?;
                let effects = sqlx::query_as(EFFECTS).fetch_all(&pool).await?;
                let claims = sqlx::query_scalar("SELECT message_id FROM inbox_claims").fetch_all(&pool).await?;
                let failures = sqlx::query_as("SELECT reason, attempts FROM inbox_failures").fetch_all(&pool).await?;
                pool.close().await;
                Ok(Books::new(effects, claims, failures))
            }
        }
    }
}

/// Payment, account, place, id, attempt.
type EffectRow = (i64, String, i64, Uuid, i64);

struct Books {
    effects: Vec<EffectRow>,
    claims: HashSet<Uuid>,
    attempts: u64,
    quarantined: u64,
}

impl Books {
    fn new(effects: Vec<EffectRow>, claims: Vec<Uuid>, failures: Vec<(String, i64)>) -> Self {
        let quarantined = failures.iter().filter(|(reason, _)| reason != "retrying").count() as u64;
        let attempts = failures.iter().map(|(_, attempts)| attempts.unsigned_abs()).sum();
        Self { effects, claims: claims.into_iter().collect(), attempts, quarantined }
    }
}
