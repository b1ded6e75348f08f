//! The schema `inbox`, its version, and counts.

use inbox_core::{
    ConsumerId, StoreError, StoreErrorKind,
    maintenance::{Counts, Maintenance},
};
use sqlx::{SqlSafeStr, SqlStr};

use crate::{
    PgTransaction,
    error::{HOW_TO_MIGRATE, store_error},
    sql,
    store::PgInboxStore,
};

/// The version of the tables that this program works with.
fn latest() -> i32 {
    i32::try_from(sql::MIGRATIONS.len()).unwrap_or(i32::MAX)
}

impl Maintenance for PgInboxStore {
    async fn migrate(&self) -> Result<(), StoreError> {
        let mut tx = self.connections().begin_with("migrate", sql::BEGIN_MIGRATION.into_sql_str()).await?;
        let migrated = match self.connections().check_direct("migrate", &mut tx).await {
            Ok(()) => migrate_in(&mut tx).await,
            pooled => pooled.map(|()| false),
        };
        match migrated {
            Ok(true) => self.connections().commit(tx, "migrate").await,
            Ok(false) => self.connections().rollback(tx).await,
            Err(error) => {
                drop(self.connections().rollback(tx).await);
                Err(error)
            }
        }
    }

    async fn counts(&self, consumer: ConsumerId) -> Result<Counts, StoreError> {
        let mut tx = self.connections().begin_with("counts", sql::BEGIN_READ.into_sql_str()).await?;
        let counts = self.counts_in(&mut tx, consumer).await;
        drop(self.connections().rollback(tx).await);
        counts
    }
}

impl PgInboxStore {
    pub(crate) async fn counts_in(
        &self,
        tx: &mut PgTransaction<'static>,
        consumer: ConsumerId,
    ) -> Result<Counts, StoreError> {
        let query = sqlx::query_as::<_, (i64, i64, i64)>(sql::COUNTS).bind(consumer.0);
        let (claims, retrying, quarantined) = self.connections().ask("counts", query.fetch_one(&mut **tx)).await?;
        Ok(Counts {
            claims: claims.unsigned_abs(),
            retrying: retrying.unsigned_abs(),
            quarantined: quarantined.unsigned_abs(),
        })
    }

    /// Fails unless the tables are those that this program works with.
    pub(crate) async fn check_schema(&self, tx: &mut PgTransaction<'static>) -> Result<(), StoreError> {
        let query = sqlx::query_scalar::<_, i32>(sql::VERSION);
        let version = self.connections().ask("register", query.fetch_one(&mut **tx)).await?;
        if version < latest() {
            return Err(StoreError::new(StoreErrorKind::Schema, "register").context(format!(
                "the inbox's tables are of version {version}, this program needs {}; {HOW_TO_MIGRATE}",
                latest(),
            )));
        }
        not_newer("register", version)
    }
}

fn not_newer(operation: &'static str, version: i32) -> Result<(), StoreError> {
    if version <= latest() {
        return Ok(());
    }
    Err(StoreError::new(StoreErrorKind::Schema, operation).context(format!(
        "the inbox's tables are of version {version}, this program knows up to {}; update the program",
        latest(),
    )))
}

/// Brings the tables up to date; says whether there is anything to commit.
async fn migrate_in(tx: &mut PgTransaction<'static>) -> Result<bool, StoreError> {
    // Looked at without the lock first: a role that may not change tables can still start.
    if version(tx).await? == Some(latest()) {
        return Ok(false);
    }
    run(tx, sql::LOCK_MIGRATION.into_sql_str()).await?;
    let version = version(tx).await?;
    if version.is_none() && !scalar::<bool>(tx, sql::HAS_SCHEMA).await? {
        run(tx, sql::CREATE_SCHEMA.into_sql_str()).await?;
    }
    let version = version.unwrap_or(0);
    not_newer("migrate", version)?;
    for (to, migration) in (1..).zip(sql::MIGRATIONS).skip_while(|(to, _)| *to <= version) {
        tracing::info!(version = to, "migrating the inbox's tables");
        run(tx, migration.into_sql_str()).await?;
        let query = sqlx::query(sql::SET_VERSION).bind(to);
        query.execute(&mut **tx).await.map_err(|error| store_error("migrate", error))?;
    }
    Ok(version < latest())
}

async fn version(tx: &mut PgTransaction<'static>) -> Result<Option<i32>, StoreError> {
    if !scalar::<bool>(tx, sql::HAS_VERSION).await? {
        return Ok(None);
    }
    scalar::<i32>(tx, sql::VERSION).await.map(Some)
}

async fn scalar<T>(tx: &mut PgTransaction<'static>, statement: &'static str) -> Result<T, StoreError>
where
    T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres> + Send + Unpin,
{
    let query = sqlx::query_scalar::<_, T>(statement);
    query.fetch_one(&mut **tx).await.map_err(|error| store_error("migrate", error))
}

async fn run(tx: &mut PgTransaction<'static>, statements: SqlStr) -> Result<(), StoreError> {
    let answer = sqlx::raw_sql(statements).execute(&mut **tx).await;
    answer.map(drop).map_err(|error| store_error("migrate", error))
}
