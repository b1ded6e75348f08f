//! The tables: made, counted, and looked for.

use inbox_core::{
    ConsumerId, StoreError, StoreErrorKind,
    maintenance::{Counts, Maintenance},
};
use sqlx::{Row, SqliteConnection};

use crate::{error, sql, store::SqliteInboxStore};

/// The version of the tables in the file; `None` if there are none.
async fn version(connection: &mut SqliteConnection) -> Result<Option<i64>, sqlx::Error> {
    let there: bool = sqlx::query_scalar(sql::HAS_SCHEMA).fetch_one(&mut *connection).await?;
    if there { sqlx::query_scalar(sql::READ_VERSION).fetch_one(connection).await } else { Ok(None) }
}

/// An error unless the tables are of this program's version.
pub(crate) async fn require(store: &SqliteInboxStore) -> Result<(), StoreError> {
    let fail = |error| error::store(error, "read schema version");
    let mut connection = store.reader.acquire().await.map_err(fail)?;
    match version(&mut connection).await.map_err(fail)? {
        Some(sql::VERSION) => Ok(()),
        found => Err(mismatch(found)),
    }
}

fn mismatch(found: Option<i64>) -> StoreError {
    let advice = match found {
        None => "the inbox's tables are missing: call `store.migrate().await?`, or open with `.migrate_on_start(true)`"
            .into(),
        Some(found) if found < sql::VERSION => format!(
            "the inbox's tables are of version {found}, this program works with {}: call `store.migrate().await?`, or open \
             with `.migrate_on_start(true)`",
            sql::VERSION
        ),
        Some(found) => format!(
            "the inbox's tables are of version {found}, this program knows versions up to {}: use a newer program",
            sql::VERSION
        ),
    };
    StoreError::new(StoreErrorKind::Schema, "read schema version").context(advice)
}

impl Maintenance for SqliteInboxStore {
    async fn migrate(&self) -> Result<(), StoreError> {
        let fail = |error| error::store(error, "migrate");
        // Nothing to do is the rule, and must not wait for a writer.
        let mut connection = self.reader.acquire().await.map_err(fail)?;
        if version(&mut connection).await.map_err(fail)? == Some(sql::VERSION) {
            return Ok(());
        }
        drop(connection);
        // One writer at a time: of several processes that migrate, the second finds the work done.
        let mut tx = self.begin_own("migrate").await?;
        let found = version(&mut tx).await.map_err(fail)?;
        if found.is_some_and(|found| found > sql::VERSION) {
            return Err(mismatch(found));
        }
        if found != Some(sql::VERSION) {
            sqlx::raw_sql(sql::MIGRATE).execute(&mut *tx).await.map_err(fail)?;
            sqlx::query(sql::WRITE_VERSION).bind(sql::VERSION).execute(&mut *tx).await.map_err(fail)?;
        }
        self.commit_own(tx, "migrate").await
    }

    async fn counts(&self, consumer: ConsumerId) -> Result<Counts, StoreError> {
        let fail = |error| error::store(error, "counts");
        let row = sqlx::query(sql::COUNTS).bind(consumer.0).fetch_one(&self.reader).await.map_err(fail)?;
        let number = |at: usize| row.try_get::<i64, _>(at).map(|n| u64::try_from(n).unwrap_or(0)).map_err(fail);
        Ok(Counts { claims: number(0)?, retrying: number(1)?, quarantined: number(2)? })
    }
}
