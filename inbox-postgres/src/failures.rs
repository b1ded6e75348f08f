//! Attempts, messages that are kept, and what an operator sees of them.

use async_trait::async_trait;
use inbox_core::{
    Bytes, Claim, Claims, ConsumerId, MessageId, Source, StoreError, StoreErrorKind,
    envelope::encode_headers,
    failure_store::{Failure, FailureRow, FailureStore, Reason},
    maintenance::Counts,
    operator::Operator,
};
use sqlx::{
    Postgres, Row, SqlSafeStr,
    postgres::{PgArguments, PgRow},
    query::Query,
};

use crate::{PgTransaction, error::store_error, sql, store::PgInboxStore, time::PgTime};

/// Binds what both statements that insert a row take. A `retrying` row has no content: the broker still has it.
fn bind(statement: &'static str, consumer: ConsumerId, failure: &Failure) -> Query<'static, Postgres, PgArguments> {
    let message = &failure.message;
    let kept = failure.reason != Reason::Retrying;
    sqlx::query(statement)
        .bind(consumer.0)
        .bind(failure.id.as_uuid())
        .bind(failure.fingerprint)
        .bind(failure.reason.as_str())
        .bind(text(&failure.error))
        .bind(message.id.as_ref().map(|id| id.as_bytes().to_vec()))
        .bind(message.kind.as_ref().map(|kind| kind.as_bytes().to_vec()))
        .bind(message.key.as_ref().filter(|_| kept).map(|key| key.to_vec()))
        .bind(kept.then(|| encode_headers(&message.headers)))
        .bind(kept.then(|| message.body.to_vec()))
        .bind(message.origin.as_deref().map(text))
        .bind(text(&failure.source.name))
        .bind(failure.source.coordinates.as_deref().map(text))
        .bind(message.produced_at.map(PgTime::from))
        .bind(message.stored_at.map(PgTime::from))
}

/// PostgreSQL's text refuses NUL.
fn text(text: &str) -> String {
    text.replace('\0', "")
}

impl PgInboxStore {
    async fn quarantine(
        &self,
        operation: &'static str,
        tx: &mut PgTransaction<'static>,
        consumer: ConsumerId,
        failure: &Failure,
    ) -> Result<(), StoreError> {
        if failure.reason == Reason::Retrying {
            return Err(StoreError::new(StoreErrorKind::Unexpected, operation)
                .context("a message that is still tried is counted by `record_attempt`"));
        }
        let query = bind(sql::QUARANTINE, consumer, failure);
        self.connections().ask(operation, query.execute(&mut **tx)).await.map(drop)
    }
}

impl FailureStore for PgInboxStore {
    async fn record_attempt(&self, consumer: ConsumerId, failure: &Failure) -> Result<Option<u32>, StoreError> {
        let failure = Failure { reason: Reason::Retrying, ..failure.clone() };
        let mut tx = self.connections().begin_with("record_attempt", sql::BEGIN_OWN.into_sql_str()).await?;
        let query = bind(sql::RECORD_ATTEMPT, consumer, &failure);
        match self.connections().ask("record_attempt", query.fetch_optional(&mut *tx)).await {
            Ok(Some(row)) => {
                self.connections().commit(tx, "record_attempt").await?;
                let attempts = row.try_get::<i32, _>(0).map_err(|error| store_error("record_attempt", error))?;
                Ok(Some(attempts.unsigned_abs()))
            }
            Ok(None) => {
                drop(self.connections().rollback(tx).await);
                Ok(None)
            }
            Err(error) => {
                drop(self.connections().rollback(tx).await);
                Err(error)
            }
        }
    }

    async fn give_up(&self, tx: &mut Self::Tx, claims: &mut Claims, failure: &Failure) -> Result<(), StoreError> {
        if claims.get(failure.id) != Some(Claim::New) {
            return Err(StoreError::new(StoreErrorKind::Unexpected, "give_up")
                .context(format!("{} is no `New` id of this transaction", failure.id)));
        }
        self.quarantine("give_up", tx, claims.consumer(), failure).await?;
        claims.given_up(failure.id);
        Ok(())
    }

    async fn keep(&self, tx: &mut Self::Tx, consumer: ConsumerId, failure: &Failure) -> Result<(), StoreError> {
        self.quarantine("keep", tx, consumer, failure).await
    }

    async fn forget_attempts(&self, tx: &mut Self::Tx, consumer: ConsumerId, id: MessageId) -> Result<(), StoreError> {
        let query = sqlx::query(sql::FORGET_ATTEMPTS).bind(consumer.0).bind(id.as_uuid());
        self.connections().ask("forget_attempts", query.execute(&mut **tx)).await.map(drop)
    }
}

fn show(row: &PgRow) -> Result<FailureRow, StoreError> {
    let unreadable = |error| store_error("failures", error);
    let reason: String = row.try_get("reason").map_err(unreadable)?;
    let reason = Reason::parse(&reason).ok_or_else(|| {
        StoreError::new(StoreErrorKind::Schema, "failures")
            .context(format!("a row has the reason `{reason}`, which a newer program wrote"))
    })?;
    let bytes = |column| row.try_get::<Option<Vec<u8>>, _>(column).map_err(unreadable);
    let number = |column| row.try_get::<i32, _>(column).map(i32::unsigned_abs).map_err(unreadable);
    let text = |column| row.try_get::<Option<String>, _>(column).map_err(unreadable);
    Ok(FailureRow {
        id: MessageId::from_uuid(row.try_get("message_id").map_err(unreadable)?),
        reason,
        attempts: number("attempts")?,
        seen: number("seen")?,
        error: text("error")?.unwrap_or_default(),
        id_text: bytes("id_text")?.map(Bytes::from),
        kind: bytes("kind")?.map(|kind| String::from_utf8_lossy(&kind).into_owned()),
        body: bytes("body")?.map(Bytes::from),
        source: Source {
            name: text("source_name")?.unwrap_or_default().into(),
            coordinates: text("coordinates")?.map(Into::into),
        },
        last_failed_at: row.try_get::<PgTime, _>("last_failed_at").map_err(unreadable)?.into(),
    })
}

#[async_trait]
impl Operator for PgInboxStore {
    async fn counts_of(&self, consumer: &str) -> Result<Counts, StoreError> {
        let mut tx = self.connections().begin_with("counts", sql::BEGIN_READ.into_sql_str()).await?;
        let query = sqlx::query_scalar::<_, i32>(sql::CONSUMER).bind(consumer);
        let number = self.connections().ask("counts", query.fetch_optional(&mut *tx)).await;
        let counts = match number {
            Ok(Some(number)) => self.counts_in(&mut tx, ConsumerId(number)).await,
            Ok(None) => Ok(Counts::default()),
            Err(error) => Err(error),
        };
        drop(self.connections().rollback(tx).await);
        counts
    }

    async fn failures(&self, consumer: &str, most: u32) -> Result<Vec<FailureRow>, StoreError> {
        let mut tx = self.connections().begin_with("failures", sql::BEGIN_READ.into_sql_str()).await?;
        let query = sqlx::query(sql::FAILURES).bind(consumer).bind(i64::from(most));
        let rows = self.connections().ask("failures", query.fetch_all(&mut *tx)).await;
        drop(self.connections().rollback(tx).await);
        rows?.iter().map(show).collect()
    }
}
