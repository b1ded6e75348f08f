//! The database of a run: made for it, the same before each contestant, and asked afterwards what is in it.

use std::fmt;

use anyhow::{Context as _, Result, bail};
use inbox::{
    maintenance::Maintenance as _,
    postgres::{
        PgInboxStore,
        sqlx::{self, AssertSqlSafe, Connection as _, Executor as _, PgConnection, PgPool},
    },
};
use url::Url;

use crate::{processes, workload::Workload};

/// The table of the effects. No constraint stops a second receipt: the proof must be able to see it.
const RECEIPTS: &str = "CREATE TABLE receipts (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    payment uuid NOT NULL,
    account text NOT NULL,
    amount bigint NOT NULL,
    sequence bigint NOT NULL)";

/// What is empty before each contestant.
const EMPTY: &str = "TRUNCATE receipts, inbox.claims, inbox.failures, inbox.guard RESTART IDENTITY";

/// What is there after a contestant.
const COUNT: &str = "SELECT count(*), count(DISTINCT payment), coalesce(sum(amount), 0)::bigint, \
     (SELECT count(*) FROM inbox.claims), (SELECT count(*) FROM inbox.failures), \
     (SELECT count(*) FROM (SELECT sequence < lag(sequence) OVER (PARTITION BY account ORDER BY id) AS back \
         FROM receipts) AS pairs WHERE back) \
     FROM receipts";

/// What a server says of itself that the figures depend on.
const SETTINGS: [&str; 6] =
    ["fsync", "synchronous_commit", "full_page_writes", "wal_sync_method", "shared_buffers", "max_wal_size"];

/// A database of this run.
#[derive(Debug)]
pub(crate) struct Database {
    server: Url,
    name: String,
    pool: PgPool,
}

/// What a contestant left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    receipts: i64,
    payments: i64,
    sum: i64,
    claims: i64,
    failures: i64,
    /// Receipts of an account that come behind one of a later payment.
    overtaken: i64,
    /// What is not acknowledged: of Kafka, what its group has not committed.
    lag: i64,
}

impl Found {
    /// What there has to be.
    pub(crate) fn expected(workload: &Workload) -> Self {
        let payments = workload.payments.try_into().unwrap_or(i64::MAX);
        let sum = workload.sum();
        Self { receipts: payments, payments, sum, claims: payments, failures: 0, overtaken: 0, lag: 0 }
    }

    /// What there has to be when nobody writes.
    pub(crate) fn nothing() -> Self {
        Self { receipts: 0, payments: 0, sum: 0, claims: 0, failures: 0, overtaken: 0, lag: 0 }
    }

    /// The same, with what is not acknowledged.
    pub(crate) fn with_lag(self, lag: i64) -> Self {
        Self { lag, ..self }
    }

    /// The same where nothing promises an order of receipts.
    pub(crate) fn without_order(self) -> Self {
        Self { overtaken: 0, ..self }
    }

    /// What is not as it has to be.
    pub(crate) fn faults(&self, expected: &Self) -> Vec<String> {
        [
            ("receipts", self.receipts, expected.receipts),
            ("payments with a receipt", self.payments, expected.payments),
            ("sum of the amounts", self.sum, expected.sum),
            ("claims", self.claims, expected.claims),
            ("failures", self.failures, expected.failures),
            ("receipts out of their account's order", self.overtaken, expected.overtaken),
            ("messages that are not acknowledged", self.lag, expected.lag),
        ]
        .into_iter()
        .filter(|(_, found, expected)| found != expected)
        .map(|(what, found, expected)| format!("{what}: {found}, expected {expected}"))
        .collect()
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} receipts, sum {}, {} claims, lag {}", self.receipts, self.sum, self.claims, self.lag)
    }
}

impl Database {
    /// Makes a database with the inbox's tables and one for the effects.
    pub(crate) async fn new(server: &Url, name: &str) -> Result<Self> {
        let mut connection = PgConnection::connect(server.as_str()).await.context("PostgreSQL cannot be reached")?;
        connection.execute(AssertSqlSafe(format!("CREATE DATABASE {name}"))).await?;
        connection.close().await?;
        let mut url = server.clone();
        url.set_path(name);
        let database =
            Self { server: server.clone(), name: name.to_owned(), pool: PgPool::connect(url.as_str()).await? };
        match database.make_tables().await {
            Ok(()) => Ok(database),
            Err(error) => {
                database.remove().await;
                Err(error)
            }
        }
    }

    async fn make_tables(&self) -> Result<()> {
        PgInboxStore::new(&self.pool).migrate().await?;
        self.pool.execute(RECEIPTS).await?;
        Ok(())
    }

    /// Its URL.
    pub(crate) fn url(&self) -> String {
        let mut url = self.server.clone();
        url.set_path(&self.name);
        url.into()
    }

    /// Makes every contestant begin alike: empty tables, nothing left to be written to disk.
    pub(crate) async fn reset(&self) -> Result<()> {
        for statement in [EMPTY, "VACUUM", "CHECKPOINT"] {
            self.pool.execute(statement).await.with_context(|| format!("{statement} failed"))?;
        }
        Ok(())
    }

    /// What a contestant left; what is not acknowledged is somebody else's to say.
    pub(crate) async fn found(&self) -> Result<Found> {
        let counts: (i64, i64, i64, i64, i64, i64) = sqlx::query_as(COUNT).fetch_one(&self.pool).await?;
        let (receipts, payments, sum, claims, failures, overtaken) = counts;
        Ok(Found { receipts, payments, sum, claims, failures, overtaken, lag: 0 })
    }

    /// The parent of the server's processes, if they run on this machine.
    pub(crate) async fn postmaster(&self) -> Result<Option<i32>> {
        let backend: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&self.pool).await?;
        Ok(processes::parent_of(backend, "postgres"))
    }

    /// The server's version and the settings that matter. Refuses to measure a server that does not keep what it
    /// commits.
    pub(crate) async fn describe(&self) -> Result<String> {
        let version: String = sqlx::query_scalar("SHOW server_version").fetch_one(&self.pool).await?;
        let mut described = format!("PostgreSQL {version}");
        for setting in SETTINGS {
            let value: String =
                sqlx::query_scalar(AssertSqlSafe(format!("SHOW {setting}"))).fetch_one(&self.pool).await?;
            if matches!((setting, value.as_str()), ("fsync" | "synchronous_commit", "off")) {
                bail!("the server has `{setting} = off`: what it commits may be lost, and figures would mean nothing");
            }
            described.push_str(&format!(", {setting} = {value}"));
        }
        Ok(described)
    }

    /// The folder in which the server keeps its data, if this role may know.
    pub(crate) async fn folder(&self) -> Option<String> {
        sqlx::query_scalar("SHOW data_directory").fetch_one(&self.pool).await.ok()
    }

    /// The day, by the server's clock.
    pub(crate) async fn today(&self) -> Result<String> {
        Ok(sqlx::query_scalar("SELECT current_date::text").fetch_one(&self.pool).await?)
    }

    /// Removes it.
    pub(crate) async fn remove(self) {
        self.pool.close().await;
        if let Err(error) = drop_database(&self.server, &self.name).await {
            eprintln!("the database {} was not removed: {error:#}", self.name);
        }
    }
}

async fn drop_database(server: &Url, name: &str) -> Result<()> {
    let mut connection = PgConnection::connect(server.as_str()).await?;
    connection.execute(AssertSqlSafe(format!("DROP DATABASE {name} WITH (FORCE)"))).await?;
    connection.close().await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_count_that_differs_is_named() {
        let expected = Found::expected(&Workload { payments: 10, copies: 1, seed: 1 });
        assert!(expected.faults(&expected).is_empty());
        let found = Found { receipts: 11, sum: expected.sum + 5, lag: 3, ..expected };
        assert_eq!(found.faults(&expected).len(), 3);
        assert!(found.faults(&expected)[0].contains("receipts: 11, expected 10"));
        assert_eq!(Found::nothing().faults(&expected).len(), 4);
    }
}
