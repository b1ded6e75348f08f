//! Attempts and quarantine.

use async_trait::async_trait;
use inbox_core::{
    Claims, ConsumerId, MessageId, Source, StoreError, clock, envelope,
    failure_store::{Failure, FailureRow, FailureStore, Reason},
    maintenance::{Counts, Maintenance},
    operator::Operator,
};
use sqlx::{Row, Sqlite, Transaction, query::Query, sqlite::SqliteArguments, sqlite::SqliteRow};

use crate::{
    error, sql,
    store::{SqliteInboxStore, time_of},
    time::millis,
};

/// Binds a failure to one of the statements that write a row; they take the same arguments.
fn bound<'q>(
    statement: &'static str,
    consumer: ConsumerId,
    failure: &Failure,
    with_body: bool,
) -> Query<'q, Sqlite, SqliteArguments> {
    let message = &failure.message;
    sqlx::query(statement)
        .bind(consumer.0)
        .bind(failure.id.as_uuid())
        .bind(failure.fingerprint)
        .bind(failure.reason.as_str())
        .bind(failure.error.clone())
        .bind(message.id.as_ref().map(|id| id.as_bytes().to_vec()))
        .bind(message.kind.as_ref().map(|kind| kind.as_bytes().to_vec()))
        .bind(message.key.as_ref().map(|key| key.to_vec()))
        .bind(envelope::encode_headers(&message.headers))
        .bind(message.origin.as_ref().map(|origin| origin.as_bytes().to_vec()))
        .bind(with_body.then(|| message.body.to_vec()))
        .bind(failure.source.name.to_string())
        .bind(failure.source.coordinates.as_deref().map(str::to_owned))
        .bind(message.produced_at.map(millis))
        .bind(message.stored_at.map(millis))
        .bind(millis(clock::now()))
}

impl FailureStore for SqliteInboxStore {
    async fn record_attempt(&self, consumer: ConsumerId, failure: &Failure) -> Result<Option<u32>, StoreError> {
        let fail = |error| error::store(error, "record attempt");
        let mut tx = self.begin_own("record attempt").await?;
        let claimed: bool = sqlx::query_scalar(sql::IS_CLAIMED)
            .bind(consumer.0)
            .bind(failure.id.as_uuid())
            .fetch_one(&mut *tx)
            .await
            .map_err(fail)?;
        if claimed {
            self.commit_own(tx, "record attempt").await?;
            return Ok(None);
        }
        let row = bound(sql::RECORD_ATTEMPT, consumer, failure, false).fetch_one(&mut *tx).await.map_err(fail)?;
        let attempts: u32 = row.try_get(0).map_err(fail)?;
        self.commit_own(tx, "record attempt").await?;
        Ok(Some(attempts))
    }

    async fn give_up(&self, tx: &mut Self::Tx, claims: &mut Claims, failure: &Failure) -> Result<(), StoreError> {
        write(sql::GIVE_UP, claims.consumer(), failure, tx, "give up").await?;
        claims.given_up(failure.id);
        Ok(())
    }

    async fn keep(&self, tx: &mut Self::Tx, consumer: ConsumerId, failure: &Failure) -> Result<(), StoreError> {
        write(sql::KEEP, consumer, failure, tx, "keep").await
    }

    async fn forget_attempts(&self, tx: &mut Self::Tx, consumer: ConsumerId, id: MessageId) -> Result<(), StoreError> {
        sqlx::query(sql::FORGET_ATTEMPTS)
            .bind(consumer.0)
            .bind(id.as_uuid())
            .execute(&mut **tx)
            .await
            .map(drop)
            .map_err(|error| error::store(error, "forget attempts"))
    }
}

async fn write(
    statement: &'static str,
    consumer: ConsumerId,
    failure: &Failure,
    tx: &mut Transaction<'static, Sqlite>,
    operation: &'static str,
) -> Result<(), StoreError> {
    let written = bound(statement, consumer, failure, true).execute(&mut **tx).await;
    written.map(drop).map_err(|error| error::store(error, operation))
}

fn row(row: &SqliteRow) -> Result<FailureRow, sqlx::Error> {
    let reason: String = row.try_get(1)?;
    let source: String = row.try_get(8)?;
    let coordinates: Option<String> = row.try_get(9)?;
    Ok(FailureRow {
        id: MessageId::from_uuid(row.try_get(0)?),
        // A word of a newer program is shown as what needs a person's eye.
        reason: Reason::parse(&reason).unwrap_or(Reason::Rejected),
        attempts: row.try_get(2)?,
        seen: row.try_get(3)?,
        error: row.try_get(4)?,
        id_text: row.try_get::<Option<Vec<u8>>, _>(5)?.map(Into::into),
        kind: row.try_get::<Option<Vec<u8>>, _>(6)?.map(|kind| String::from_utf8_lossy(&kind).into_owned()),
        body: row.try_get::<Option<Vec<u8>>, _>(7)?.map(Into::into),
        source: Source { name: source.into(), coordinates: coordinates.map(Into::into) },
        last_failed_at: time_of(row, 10)?,
    })
}

#[async_trait]
impl Operator for SqliteInboxStore {
    async fn counts_of(&self, consumer: &str) -> Result<Counts, StoreError> {
        match self.consumer_of(consumer).await? {
            Some(consumer) => self.counts(consumer).await,
            None => Ok(Counts::default()),
        }
    }

    async fn failures(&self, consumer: &str, most: u32) -> Result<Vec<FailureRow>, StoreError> {
        let fail = |error| error::store(error, "failures");
        let Some(consumer) = self.consumer_of(consumer).await? else {
            return Ok(Vec::new());
        };
        let rows =
            sqlx::query(sql::FAILURES).bind(consumer.0).bind(most).fetch_all(&self.reader).await.map_err(fail)?;
        rows.iter().map(row).collect::<Result<_, _>>().map_err(fail)
    }
}

impl SqliteInboxStore {
    pub(crate) async fn consumer_of(&self, name: &str) -> Result<Option<ConsumerId>, StoreError> {
        let id: Option<i32> = sqlx::query_scalar(sql::CONSUMER)
            .bind(name)
            .fetch_optional(&self.reader)
            .await
            .map_err(|error| error::store(error, "find consumer"))?;
        Ok(id.map(ConsumerId))
    }
}
