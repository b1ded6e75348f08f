//! The shop: payments and their outbox, receipts, and a projection. The same SQL on every database.

use std::time::Duration;

use async_trait::async_trait;
use inbox::{HandlerError, Inbox, Transport};
use serde::{Deserialize, Serialize};

/// What is published about a payment.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct PaymentEvent {
    pub(crate) payment: i64,
}

/// An event in the outbox.
#[derive(Debug)]
pub(crate) struct OutboxRow {
    pub(crate) number: i64,
    pub(crate) id: String,
    pub(crate) kind: String,
    pub(crate) payment: i64,
}

/// What the database says at the end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Books {
    pub(crate) captured: i64,
    pub(crate) events: i64,
    pub(crate) unpublished: i64,
    pub(crate) receipts: i64,
    pub(crate) receipted: i64,
    pub(crate) projected: i64,
    pub(crate) late: i64,
}

/// A database that the pipeline works on.
#[async_trait]
pub(crate) trait Shop: Send + Sync + 'static {
    /// Makes the tables, and the inbox's.
    async fn open(&self) -> anyhow::Result<()>;
    /// Makes payments: business rows and outbox rows in one transaction.
    async fn pay(&self, payments: std::ops::Range<i64>) -> anyhow::Result<()>;
    /// The next events of a relay's half that are not marked published.
    async fn unpublished(&self, half: i64, most: i64) -> anyhow::Result<Vec<OutboxRow>>;
    /// Marks events published.
    async fn mark(&self, numbers: &[i64]) -> anyhow::Result<()>;
    /// Consumes with the inbox until `stop`.
    async fn consume(&self, consumer: Consumer, stop: Stop) -> anyhow::Result<()>;
    /// Consumes without the inbox until `stop`: the same handler, its own transaction, acknowledged after COMMIT.
    async fn consume_bare(&self, consumer: Consumer, stop: Stop) -> anyhow::Result<()>;
    /// How many distinct ids a consumer has claimed.
    async fn claims(&self, consumer: &str) -> anyhow::Result<u64>;
    /// How many messages of a consumer wait for a person.
    async fn quarantined(&self, consumer: &str) -> anyhow::Result<u64>;
    /// Reads everything that is verified.
    async fn books(&self) -> anyhow::Result<Books>;
    /// Removes what the run has made.
    async fn tear_down(&self) -> anyhow::Result<()>;
}

/// A consumer of a run.
pub(crate) struct Consumer {
    /// Unique among runs, so that claims are counted per run.
    pub(crate) name: String,
    pub(crate) notifies: bool,
    pub(crate) transport: Box<dyn Transport>,
}

/// Resolves when a consumer is to stop; the receiver of a channel whose sender is dropped.
pub(crate) type Stop = tokio::sync::oneshot::Receiver<()>;

macro_rules! shop {
    ($shop:ident, $db:ty, $store:ty, $number:literal) => {
        type Tx = sqlx::Transaction<'static, $db>;

        /// See [`Shop`].
        pub(crate) struct $shop {
            pub(crate) pool: sqlx::Pool<$db>,
            pub(crate) store: $store,
            /// Begins a transaction of the shop's own.
            begin: sqlx::SqlStr,
        }

        const TABLES: [&str; 5] = [
            concat!("CREATE TABLE chaos_payments (id ", $number, " PRIMARY KEY, status TEXT NOT NULL)"),
            concat!(
                "CREATE TABLE chaos_outbox (number ", $number, " PRIMARY KEY, id TEXT NOT NULL, kind TEXT NOT NULL, payment ",
                $number, " NOT NULL, published ", $number, " NOT NULL)"
            ),
            // No unique key: a receipt sent twice must show.
            concat!("CREATE TABLE chaos_receipts (payment ", $number, " NOT NULL)"),
            concat!("CREATE TABLE chaos_projection (payment ", $number, " PRIMARY KEY, status TEXT NOT NULL)"),
            concat!("CREATE TABLE chaos_late (payment ", $number, " NOT NULL)"),
        ];

        /// One receipt for each captured payment.
        async fn send_receipt(event: PaymentEvent, tx: &mut sqlx::Transaction<'_, $db>) -> Result<(), HandlerError> {
            sqlx::query("INSERT INTO chaos_receipts (payment) VALUES ($1)")
                .bind(event.payment)
                .execute(&mut **tx)
                .await?;
            Ok(())
        }

        /// Nothing to do for the notifier: the event is claimed all the same.
        async fn skip(_event: PaymentEvent, _tx: &mut sqlx::Transaction<'_, $db>) -> Result<(), HandlerError> {
            Ok(())
        }

        async fn project(
            status: &'static str,
            event: PaymentEvent,
            tx: &mut sqlx::Transaction<'_, $db>,
        ) -> Result<(), HandlerError> {
            // The guard in the WHERE keeps a late `authorized` from overwriting `captured`.
            let done = sqlx::query(
                "INSERT INTO chaos_projection (payment, status) VALUES ($1, $2) ON CONFLICT (payment) DO UPDATE SET \
                 status = excluded.status WHERE chaos_projection.status <> 'captured'",
            )
            .bind(event.payment)
            .bind(status)
            .execute(&mut **tx)
            .await?;
            if done.rows_affected() == 0 && status == "authorized" {
                sqlx::query("INSERT INTO chaos_late (payment) VALUES ($1)").bind(event.payment).execute(&mut **tx).await?;
            }
            Ok(())
        }

        async fn authorized(event: PaymentEvent, tx: &mut sqlx::Transaction<'_, $db>) -> Result<(), HandlerError> {
            project("authorized", event, tx).await
        }

        async fn captured(event: PaymentEvent, tx: &mut sqlx::Transaction<'_, $db>) -> Result<(), HandlerError> {
            project("captured", event, tx).await
        }

        impl $shop {
            async fn begin(&self) -> sqlx::Result<Tx> {
                self.pool.begin_with(self.begin.clone()).await
            }

            async fn number(&self, statement: &'static str) -> anyhow::Result<i64> {
                Ok(sqlx::query_scalar(statement).fetch_one(&mut *self.begin().await?).await?)
            }

            async fn run_bare(&self, message: &inbox::Message, notifies: bool) -> Result<(), HandlerError> {
                let event: PaymentEvent = serde_json::from_slice(&message.body)?;
                let mut tx = self.begin().await?;
                match (message.kind.as_deref(), notifies) {
                    (Some("payment.captured"), true) => send_receipt(event, &mut tx).await?,
                    (Some("payment.captured"), false) => captured(event, &mut tx).await?,
                    (_, true) => skip(event, &mut tx).await?,
                    (_, false) => authorized(event, &mut tx).await?,
                }
                tx.commit().await?;
                Ok(())
            }
        }

        #[async_trait]
        impl Shop for $shop {
            async fn open(&self) -> anyhow::Result<()> {
                inbox::maintenance::Maintenance::migrate(&self.store).await?;
                let mut tx = self.begin().await?;
                for table in TABLES {
                    sqlx::query(table).execute(&mut *tx).await?;
                }
                Ok(tx.commit().await?)
            }

            async fn pay(&self, payments: std::ops::Range<i64>) -> anyhow::Result<()> {
                let mut tx = self.begin().await?;
                for payment in payments {
                    sqlx::query("INSERT INTO chaos_payments (id, status) VALUES ($1, 'captured')")
                        .bind(payment)
                        .execute(&mut *tx)
                        .await?;
                    for (place, kind) in ["payment.authorized", "payment.captured"].into_iter().enumerate() {
                        sqlx::query(
                            "INSERT INTO chaos_outbox (number, id, kind, payment, published) VALUES ($1, $2, $3, $4, 0)",
                        )
                        .bind(payment * 2 + place as i64)
                        .bind(uuid::Uuid::now_v7().to_string())
                        .bind(kind)
                        .bind(payment)
                        .execute(&mut *tx)
                        .await?;
                    }
                }
                Ok(tx.commit().await?)
            }

            async fn unpublished(&self, half: i64, most: i64) -> anyhow::Result<Vec<OutboxRow>> {
                let rows: Vec<(i64, String, String, i64)> = sqlx::query_as(
                    "SELECT number, id, kind, payment FROM chaos_outbox WHERE published = 0 AND number % 2 = $1 \
                     ORDER BY number LIMIT $2",
                )
                .bind(half)
                .bind(most)
                .fetch_all(&mut *self.begin().await?)
                .await?;
                Ok(rows
                    .into_iter()
                    .map(|(number, id, kind, payment)| OutboxRow { number, id, kind, payment })
                    .collect())
            }

            async fn mark(&self, numbers: &[i64]) -> anyhow::Result<()> {
                let mut tx = self.begin().await?;
                for number in numbers {
                    sqlx::query("UPDATE chaos_outbox SET published = 1 WHERE number = $1")
                        .bind(number)
                        .execute(&mut *tx)
                        .await?;
                }
                Ok(tx.commit().await?)
            }

            async fn consume(&self, consumer: Consumer, stop: Stop) -> anyhow::Result<()> {
                let transport = std::sync::Arc::<dyn Transport>::from(consumer.transport);
                let inbox = Inbox::new(consumer.name, transport, self.store.clone());
                let inbox = if consumer.notifies {
                    inbox.on("payment.authorized", skip).on("payment.captured", send_receipt)
                } else {
                    inbox.on("payment.authorized", authorized).on("payment.captured", captured)
                };
                // Small batches, so that a crash hits often.
                let inbox = inbox.max_batch(25).shutdown_timeout(Duration::from_secs(5));
                Ok(inbox.run(async { drop(stop.await) }).await?)
            }

            async fn consume_bare(&self, consumer: Consumer, mut stop: Stop) -> anyhow::Result<()> {
                let capacity = inbox::Capacity { messages: 25, bytes: 1 << 20 };
                loop {
                    let received = tokio::select! {
                        _ = &mut stop => break,
                        received = consumer.transport.receive(capacity) => received?,
                    };
                    let mut receipts = Vec::new();
                    for delivery in received {
                        let done = self.run_bare(&delivery.message, consumer.notifies).await;
                        done.map_err(|error| anyhow::anyhow!("{error:?}"))?;
                        receipts.push(delivery.receipt);
                    }
                    // A lost acknowledgement: the messages come again.
                    drop(consumer.transport.ack(receipts).await);
                }
                Ok(consumer.transport.close(Duration::from_secs(5)).await?)
            }

            async fn claims(&self, consumer: &str) -> anyhow::Result<u64> {
                Ok(inbox::operator::Operator::counts_of(&self.store, consumer).await?.claims)
            }

            async fn quarantined(&self, consumer: &str) -> anyhow::Result<u64> {
                Ok(inbox::operator::Operator::counts_of(&self.store, consumer).await?.quarantined)
            }

            async fn books(&self) -> anyhow::Result<Books> {
                Ok(Books {
                    captured: self.number("SELECT count(*) FROM chaos_payments WHERE status = 'captured'").await?,
                    events: self.number("SELECT count(*) FROM chaos_outbox").await?,
                    unpublished: self.number("SELECT count(*) FROM chaos_outbox WHERE published = 0").await?,
                    receipts: self.number("SELECT count(*) FROM chaos_receipts").await?,
                    receipted: self.number("SELECT count(DISTINCT payment) FROM chaos_receipts").await?,
                    projected: self.number("SELECT count(*) FROM chaos_projection WHERE status = 'captured'").await?,
                    late: self.number("SELECT count(DISTINCT payment) FROM chaos_late").await?,
                })
            }

            async fn tear_down(&self) -> anyhow::Result<()> {
                let mut tx = self.begin().await?;
                for table in [
                    "DROP TABLE IF EXISTS chaos_payments",
                    "DROP TABLE IF EXISTS chaos_outbox",
                    "DROP TABLE IF EXISTS chaos_receipts",
                    "DROP TABLE IF EXISTS chaos_projection",
                    "DROP TABLE IF EXISTS chaos_late",
                ] {
                    sqlx::query(table).execute(&mut *tx).await?;
                }
                Ok(tx.commit().await?)
            }
        }
    };
}

pub(crate) mod sqlite {
    //! The shop on SQLite.
    use super::{Books, Consumer, Duration, HandlerError, Inbox, OutboxRow, PaymentEvent, Shop, Stop, Transport};
    use async_trait::async_trait;
    use inbox::sqlite::{
        SqliteInboxStore,
        sqlx::{self, SqlSafeStr as _},
    };

    shop!(SqliteShop, sqlx::Sqlite, SqliteInboxStore, "INTEGER");

    impl SqliteShop {
        pub(crate) async fn connect(file: &str) -> anyhow::Result<Self> {
            let options: sqlx::sqlite::SqliteConnectOptions = file.parse()?;
            let options = options
                .create_if_missing(true)
                .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal)
                .busy_timeout(Duration::from_secs(60));
            let pool = sqlx::sqlite::SqlitePoolOptions::new()
                .max_connections(4)
                .acquire_timeout(Duration::from_secs(120))
                .connect_with(options)
                .await?;
            let store = SqliteInboxStore::builder(file)?.busy_timeout(Duration::from_secs(60)).open().await?;
            Ok(Self { pool, store, begin: "BEGIN".into_sql_str() })
        }
    }
}

#[cfg(feature = "postgres")]
pub(crate) mod postgres {
    //! The shop on PostgreSQL, in a schema of its own.
    use super::{Books, Consumer, Duration, HandlerError, Inbox, OutboxRow, PaymentEvent, Shop, Stop, Transport};
    use async_trait::async_trait;
    use inbox::postgres::{
        PgConfig, PgInboxStore,
        sqlx::{self, AssertSqlSafe, SqlSafeStr as _},
    };

    shop!(PgShop, sqlx::Postgres, PgInboxStore, "BIGINT");

    impl PgShop {
        pub(crate) async fn connect(url: &str, run: &str) -> anyhow::Result<Self> {
            let schema = format!("chaos_{run}");
            // The store takes it from the URL, this pool in each transaction: behind a pooler a session keeps nothing.
            let key = if url.contains('?') { '&' } else { '?' };
            let store = PgConfig::url(&format!("{url}{key}options[search_path]={schema}"))?.open()?;
            let mut begin = format!("BEGIN; SET LOCAL search_path = {schema}");
            // sqlx passes over the store's own key.
            let mut options: sqlx::postgres::PgConnectOptions = url.parse()?;
            if url.contains("pooler=transaction") {
                options = options.extra_float_digits(None).statement_cache_capacity(0);
                // What others have prepared there under the names that come next.
                begin.push_str("; DEALLOCATE ALL");
            }
            let pool = sqlx::postgres::PgPoolOptions::new()
                .max_connections(6)
                .acquire_timeout(Duration::from_secs(30))
                .connect_with(options)
                .await?;
            sqlx::raw_sql(AssertSqlSafe(format!("CREATE SCHEMA IF NOT EXISTS {schema}"))).execute(&pool).await?;
            Ok(Self { pool, store, begin: AssertSqlSafe(begin).into_sql_str() })
        }
    }
}
