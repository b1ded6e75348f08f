//! The claim path.

use std::{
    collections::HashMap,
    error::Error,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use inbox_core::{
    Blame, Candidate, Claim, Claims, ConsumerId, InboxStore, Limits, MessageId, StoreError, StoreErrorKind,
    maintenance::Maintenance, store::sorted,
};
use sqlx::{AssertSqlSafe, PgPool, Row, SqlSafeStr};
use uuid::Uuid;

use crate::{
    PgTransaction,
    config::PgConfig,
    connections::{Connections, depth, scalar},
    error::{blame, code, kind_of, store_error},
    sql,
    time::PgTime,
};

/// The longest name of a consumer, in bytes.
const LONGEST_NAME: usize = 200;

/// A PostgreSQL database as a store. Clones are cheap and share their connections.
#[derive(Clone)]
pub struct PgInboxStore {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) connections: Connections,
    config: PgConfig,
    /// Whether what a role should have was looked at.
    advised: AtomicBool,
}

impl PgInboxStore {
    /// Connects to `postgres://user:password@host:port/database`, once, to fail early. Makes no tables: call
    /// [`migrate`](Maintenance::migrate), or use [`PgConfig::migrate_on_start`].
    ///
    /// # Errors
    /// `Unavailable` when the server cannot be reached within 10 s, `Unauthorized` when it refuses the credentials,
    /// `InvalidConfig` when the URL cannot be read or the database does not exist.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        PgConfig::url(url)?.connect().await
    }

    /// A store in the database of `pool`. It copies the pool's connect options and opens connections of its own, six at
    /// most; the pool itself is never used. Connects when first needed.
    #[must_use]
    pub fn new(pool: &PgPool) -> Self {
        Self::from_config(PgConfig::pool(pool))
    }

    pub(crate) fn from_config(config: PgConfig) -> Self {
        Self {
            inner: Arc::new(Inner { connections: Connections::new(&config), config, advised: AtomicBool::new(false) }),
        }
    }

    pub(crate) async fn connect_once(&self) -> Result<(), StoreError> {
        self.connections().try_once().await
    }

    pub(crate) fn connections(&self) -> &Connections {
        &self.inner.connections
    }

    /// Our last statement before COMMIT.
    async fn finish(&self, tx: &mut PgTransaction<'static>, claims: &Claims) -> Result<(), StoreError> {
        if depth(tx) != 1 {
            return Err(escaped("commit"));
        }
        let Some(answer) = self.connections().answer(self.send_finish(tx, transaction(claims))).await else {
            return Err(StoreError::new(StoreErrorKind::Unavailable, "commit")
                .context("no answer to the last statement before COMMIT; nothing was committed"));
        };
        match answer {
            Ok((Some(current), 1)) if current == transaction(claims) => Ok(()),
            Ok(_) => Err(escaped("commit")),
            Err(error) if code(&error) == Some("25006") => Err(self.read_only(tx, error).await),
            // An error here that is not this statement's own is the late answer to one that a handler has given up.
            Err(error) if matches!(kind_of(&error), StoreErrorKind::Unexpected) || code(&error) == Some("57014") => {
                Err(StoreError::new(StoreErrorKind::TransactionAborted, "commit").source(error))
            }
            Err(error) => Err(store_error("commit", error)),
        }
    }

    /// Which transaction this is, and how many guards were lifted.
    async fn send_finish(
        &self,
        tx: &mut PgTransaction<'static>,
        transaction: i64,
    ) -> Result<(Option<i64>, i64), sqlx::Error> {
        let weak = self.inner.config.weak_durability;
        if self.connections().is_pooled() {
            let row = sqlx::raw_sql(AssertSqlSafe(sql::finish(transaction, weak))).fetch_one(&mut **tx).await?;
            return Ok((row.try_get(0)?, row.try_get(1)?));
        }
        sqlx::query_as(sql::FINISH).bind(transaction).bind(weak).fetch_one(&mut **tx).await
    }

    /// What it means that [`sql::FINISH`] met a read-only transaction. Outside ours everything is read-only; inside it is
    /// when a handler has said so. After `ROLLBACK; BEGIN` by a handler this is taken for the latter: it could keep
    /// nothing either.
    async fn read_only(&self, tx: &mut PgTransaction<'static>, error: sqlx::Error) -> StoreError {
        match self.connections().answer(scalar::<Option<i64>>(sql::CHECK.into_sql_str(), tx)).await {
            Some(Ok(_)) => escaped("commit").source(error),
            Some(Err(now)) if code(&now) != Some("25P02") => store_error("commit", now),
            Some(Err(_)) => store_error("commit", error),
            None => StoreError::new(StoreErrorKind::Unavailable, "commit")
                .context("the transaction was read-only, and there is no answer as to whether it still is ours")
                .source(error),
        }
    }

    /// Rolls back after an error, which counts for more than what the rollback says.
    async fn abandon(&self, tx: PgTransaction<'static>, error: StoreError) -> StoreError {
        if error.kind() == StoreErrorKind::TransactionEscaped {
            self.connections().condemn();
        }
        if let Err(rollback) = self.connections().rollback(tx).await {
            tracing::debug!(error = %inbox_core::report(&rollback), "the rollback after an error failed");
        }
        error
    }
}

impl fmt::Debug for PgInboxStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgInboxStore").field("config", &self.inner.config).finish_non_exhaustive()
    }
}

impl InboxStore for PgInboxStore {
    type Tx = PgTransaction<'static>;

    async fn register(&self, consumer: &str) -> Result<ConsumerId, StoreError> {
        if consumer.trim().is_empty() || consumer.len() > LONGEST_NAME || consumer.chars().any(char::is_control) {
            return Err(StoreError::new(StoreErrorKind::InvalidConfig, "register")
                .context(format!("a consumer's name has 1 to {LONGEST_NAME} bytes and no control characters")));
        }
        if self.inner.config.migrate_on_start {
            self.migrate().await?;
        }
        let mut tx = self.connections().begin_with("register", sql::BEGIN_OWN.into_sql_str()).await?;
        match self.register_in(&mut tx, consumer).await {
            Ok(number) => {
                self.connections().commit(tx, "register").await?;
                Ok(number)
            }
            Err(error) => Err(self.abandon(tx, error).await),
        }
    }

    async fn begin(&self, limits: &Limits) -> Result<Self::Tx, StoreError> {
        self.connections().begin(limits).await
    }

    async fn claim(
        &self,
        tx: &mut Self::Tx,
        consumer: ConsumerId,
        candidates: &[Candidate],
    ) -> Result<Claims, StoreError> {
        let candidates = sorted(candidates);
        let ids = uuids(candidates.iter().map(|candidate| candidate.id));
        let fingerprints: Vec<i32> = candidates.iter().map(|candidate| candidate.fingerprint).collect();
        let times: Vec<Option<PgTime>> = candidates.iter().map(|candidate| candidate.time.map(PgTime::from)).collect();
        let query = sqlx::query_as::<_, (i64, Vec<Uuid>, Option<Vec<Option<i32>>>)>(sql::CLAIM)
            .bind(consumer.0)
            .bind(ids)
            .bind(fingerprints)
            .bind(times);
        let Some(answer) = self.connections().answer(query.fetch_one(&mut **tx)).await else {
            return Err(StoreError::new(StoreErrorKind::Unavailable, "claim").context("no answer to the claim"));
        };
        let (transaction, new, fingerprints) = answer.map_err(claim_error)?;
        let mut found: HashMap<MessageId, Claim> =
            new.into_iter().map(|id| (MessageId::from_uuid(id), Claim::New)).collect();
        let others: Vec<Candidate> =
            candidates.into_iter().filter(|candidate| !found.contains_key(&candidate.id)).collect();
        found.extend(compare(&others, &fingerprints.unwrap_or_default())?);
        Ok(Claims::new(consumer, transaction.unsigned_abs(), found))
    }

    async fn unclaim(&self, tx: &mut Self::Tx, claims: &mut Claims, ids: &[MessageId]) -> Result<(), StoreError> {
        // A claim that is not this transaction's own is nobody's to delete.
        let own: Vec<MessageId> = ids.iter().copied().filter(|id| claims.get(*id) == Some(Claim::New)).collect();
        if own.is_empty() {
            return Ok(());
        }
        let ids = uuids(own.iter().copied());
        let query = sqlx::query(sql::UNCLAIM).bind(claims.consumer().0).bind(ids).persistent(false);
        self.connections().ask("unclaim", query.execute(&mut **tx)).await?;
        own.into_iter().for_each(|id| claims.unclaimed(id));
        Ok(())
    }

    async fn check(&self, tx: &mut Self::Tx, claims: &Claims) -> Result<(), StoreError> {
        // One message, as `send_finish` sends behind a pooler, and for the same reason.
        let current = self.connections().ask("check", scalar::<Option<i64>>(sql::CHECK.into_sql_str(), tx)).await?;
        if current == Some(transaction(claims)) && depth(tx) == 1 {
            return Ok(());
        }
        Err(escaped("check"))
    }

    async fn commit(&self, mut tx: Self::Tx, claims: Claims) -> Result<(), StoreError> {
        let finished = match claims.resolved() {
            Ok(()) => self.finish(&mut tx, &claims).await,
            unresolved => unresolved,
        };
        match finished {
            Ok(()) => {
                #[cfg(feature = "failpoints")]
                fail::fail_point!("inbox::e");
                self.connections().commit(tx, "commit").await
            }
            Err(error) => Err(self.abandon(tx, error).await),
        }
    }

    async fn rollback(&self, tx: Self::Tx) -> Result<(), StoreError> {
        self.connections().rollback(tx).await
    }

    fn classify(&self, error: &(dyn Error + 'static)) -> Blame {
        blame(error)
    }
}

impl PgInboxStore {
    /// Says once what a role behind a pooler should have.
    async fn advise(&self, tx: &mut PgTransaction<'static>) -> Result<(), StoreError> {
        let connections = self.connections();
        if !connections.is_pooled() || self.inner.advised.load(Ordering::Relaxed) {
            return Ok(());
        }
        let statement = sql::IS_READ_ONLY_OUTSIDE.into_sql_str();
        let is_read_only = connections.ask("register", scalar::<bool>(statement, tx)).await?;
        if !self.inner.advised.swap(true, Ordering::Relaxed) && !is_read_only {
            tracing::warn!(
                role = connections.user(),
                "behind a pooler, what a handler sends after a ROLLBACK or a failed COMMIT of its own is kept; give the \
                 inbox a role of its own and `ALTER ROLE … SET default_transaction_read_only = on`"
            );
        }
        Ok(())
    }

    async fn register_in(&self, tx: &mut PgTransaction<'static>, consumer: &str) -> Result<ConsumerId, StoreError> {
        self.connections().check_direct("register", tx).await?;
        self.advise(tx).await?;
        self.check_schema(tx).await?;
        // A number is taken for a name that is new only, so that restarts do not use them up.
        for statement in [sql::CONSUMER, sql::NEW_CONSUMER, sql::CONSUMER] {
            let query = sqlx::query_scalar::<_, i32>(statement).bind(consumer);
            if let Some(number) = self.connections().ask("register", query.fetch_optional(&mut **tx)).await? {
                return Ok(ConsumerId(number));
            }
        }
        Err(StoreError::new(StoreErrorKind::Contention, "register").context("the consumer was deleted just now"))
    }
}

/// The fingerprints by which others were claimed before decide between duplicate and conflict.
fn compare(others: &[Candidate], fingerprints: &[Option<i32>]) -> Result<Vec<(MessageId, Claim)>, StoreError> {
    if others.len() != fingerprints.len() {
        return Err(StoreError::new(StoreErrorKind::Unexpected, "claim").context(format!(
            "{} ids are not new, and the database has answered with {} fingerprints",
            others.len(),
            fingerprints.len()
        )));
    }
    let verdicts = others.iter().zip(fingerprints).map(|(other, fingerprint)| match fingerprint {
        Some(fingerprint) if *fingerprint == other.fingerprint => Ok((other.id, Claim::Duplicate)),
        Some(_) => Ok((other.id, Claim::Conflict)),
        None => Err(StoreError::new(StoreErrorKind::Contention, "claim")
            .context(format!("the claim of {} was deleted while it was looked at", other.id))),
    });
    verdicts.collect()
}

fn uuids(ids: impl Iterator<Item = MessageId>) -> Vec<Uuid> {
    ids.map(MessageId::as_uuid).collect()
}

/// The transaction's id as PostgreSQL has it: far from 2^63.
fn transaction(claims: &Claims) -> i64 {
    claims.transaction().cast_signed()
}

fn claim_error(error: sqlx::Error) -> StoreError {
    let (kind, context) = match code(&error) {
        Some("55P03" | "57014") => {
            (StoreErrorKind::ClaimTimeout, "another transaction held an id for longer than `claim_wait`")
        }
        Some("25P02") => (StoreErrorKind::TransactionAborted, "a statement before the claim failed"),
        Some("23505") => (StoreErrorKind::Unexpected, "a transaction claims once"),
        _ => return store_error("claim", error),
    };
    StoreError::new(kind, "claim").context(context).source(error)
}

fn escaped(operation: &'static str) -> StoreError {
    StoreError::new(StoreErrorKind::TransactionEscaped, operation).context(
        "this is not the transaction that claimed: a handler sent COMMIT or ROLLBACK by SQL, dropped the beginning of a \
         nested transaction half-way, or forgot a nested transaction; nothing of this batch was kept",
    )
}
