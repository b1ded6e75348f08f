//! The claim path.

use std::{
    collections::HashMap,
    error::Error,
    str::FromStr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use deadpool_postgres::{Hook, Manager, ManagerConfig, Pool, RecyclingMethod, Runtime, Timeouts};
use inbox_core::{
    Blame, Candidate, Claim, Claims, ConsumerId, InboxStore, Limits, MessageId, StoreError, StoreErrorKind,
    store::sorted,
};
use inbox_postgres_sql as sql;
use tokio_postgres::{Config, NoTls, Row, types::FromSql};
use uuid::Uuid;

use crate::{
    error::{blame, code, is_answer, is_lost, kind_of, no_connection, refused},
    tx::{Refused, Tx},
};

/// How many connections are opened at most.
const CONNECTIONS: usize = 6;
/// How long one may take to be had.
const CONNECT_BOUND: Duration = Duration::from_secs(10);
/// How long a ROLLBACK may take before its connection is closed instead.
const ROLLBACK_BOUND: Duration = Duration::from_secs(5);
/// How much longer than the server's own bound an answer may take.
const GRACE: Duration = Duration::from_secs(10);
/// How long the store's own transactions take at most, as [`sql::BEGIN_OWN`] says.
const OWN: Duration = Duration::from_secs(20);
/// The longest that PostgreSQL takes for a time-out, in milliseconds.
const MOST_MS: i64 = 2_147_483_647;
/// In about 200,000 years, in seconds: PostgreSQL's time ends later.
const LAST: Duration = Duration::from_secs(6_249_000_000_000);

/// A PostgreSQL database as a store, by tokio-postgres. Clones are cheap and share their connections.
#[derive(Clone, Debug)]
pub struct OwnStore {
    pool: Pool,
}

impl OwnStore {
    /// A store in the database of `postgres://user:password@host:port/database`. Connects when first needed; the tables
    /// have to be there.
    ///
    /// # Errors
    /// `InvalidConfig` when the URL cannot be read.
    pub fn new(url: &str) -> Result<Self, StoreError> {
        let invalid = |error: BoxedError| StoreError::new(StoreErrorKind::InvalidConfig, "new").source(error);
        let mut config = Config::from_str(url).map_err(|error| invalid(error.into()))?;
        // Behind the user's own, since the last one counts: what a handler sends after it has ended our transaction is
        // refused instead of kept.
        let options = format!("{} -c default_transaction_read_only=on", config.get_options().unwrap_or_default());
        config.options(options);
        let manager = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        // Each transaction ends before its connection comes back, so there is nothing to clean.
        let pool = Pool::builder(Manager::from_config(config, NoTls, manager))
            .max_size(CONNECTIONS)
            .runtime(Runtime::Tokio1)
            .timeouts(Timeouts { wait: Some(CONNECT_BOUND), create: Some(CONNECT_BOUND), recycle: Some(CONNECT_BOUND) })
            .post_create(Hook::async_fn(|connection, _| {
                Box::pin(async move {
                    // So that a dropped transaction ends in the middle of a statement too. Servers before 14 cannot.
                    if let Err(error) = connection.batch_execute(sql::NOTICE_CLOSED_CONNECTIONS).await {
                        tracing::debug!(%error, "closed connections are noticed late");
                    }
                    Ok(())
                })
            }))
            .build()
            .map_err(|error| invalid(error.into()))?;
        Ok(Self { pool })
    }

    /// Begins a transaction by `statements`. Idle connections may have died, as many as there can be.
    async fn begin_with(
        &self,
        operation: &'static str,
        patience: Duration,
        statements: &str,
    ) -> Result<Tx, StoreError> {
        let mut left = CONNECTIONS;
        loop {
            let connection = self.pool.get().await.map_err(|error| no_connection(operation, error))?;
            // From here on the connection is closed unless the transaction ends as it should.
            let tx = Tx::new(connection, patience);
            match tx.send(statements).await {
                Ok(()) => return Ok(tx),
                Err(Refused::Said(error)) if is_lost(&error) && left > 0 => left -= 1,
                Err(error) => return Err(refused(operation, error)),
            }
        }
    }

    async fn register_in(tx: &Tx, consumer: &str) -> Result<ConsumerId, StoreError> {
        let failed = |error| refused("register", error);
        let is_read_only: bool = only(&tx.ask(sql::IS_READ_ONLY_OUTSIDE, &[]).await.map_err(failed)?)?;
        if !is_read_only {
            return Err(StoreError::new(StoreErrorKind::InvalidConfig, "register")
                .context("`default_transaction_read_only` is not taken from a connection's options; use no pooler"));
        }
        let version: i32 = only(&tx.ask(sql::VERSION, &[]).await.map_err(failed)?)?;
        if usize::try_from(version) != Ok(sql::MIGRATIONS.len()) {
            return Err(StoreError::new(StoreErrorKind::Schema, "register").context(format!(
                "the inbox's tables are of version {version}, this program works with {}",
                sql::MIGRATIONS.len(),
            )));
        }
        // A number is taken for a name that is new only, so that restarts do not use them up.
        for statement in [sql::CONSUMER, sql::NEW_CONSUMER, sql::CONSUMER] {
            if let Some(row) = tx.ask(statement, &[&consumer]).await.map_err(failed)?.first() {
                return Ok(ConsumerId(column(row, 0)?));
            }
        }
        Err(StoreError::new(StoreErrorKind::Contention, "register").context("the consumer was deleted just now"))
    }

    /// Our last statement before COMMIT.
    async fn finish(tx: &Tx, claims: &Claims) -> Result<(), StoreError> {
        match tx.ask(sql::FINISH, &[&transaction(claims), &false]).await {
            Ok(rows) => match rows.first() {
                Some(row)
                    if column::<Option<i64>>(row, 0)? == Some(transaction(claims)) && column::<i64>(row, 1)? == 1 =>
                {
                    Ok(())
                }
                _ => Err(escaped("commit")),
            },
            // Read-only: outside of our transaction everything is, inside it a handler has said so.
            Err(Refused::Said(error)) if code(&error) == Some("25006") => match tx.ask(sql::CHECK, &[]).await {
                Ok(_) => Err(escaped("commit").source(error)),
                Err(_) => Err(refused("commit", Refused::Said(error))),
            },
            Err(error) => Err(refused("commit", error)),
        }
    }

    /// Sends COMMIT. Only an answer of the server's proves that it did not commit.
    async fn commit_tx(tx: Tx, operation: &'static str) -> Result<(), StoreError> {
        match tx.send("COMMIT").await {
            Ok(()) => {
                tx.ended();
                Ok(())
            }
            Err(Refused::Said(error)) if is_answer(&error) && !matches!(code(&error), Some("40003" | "08007")) => {
                let kind = match kind_of(&error) {
                    // A deferred trigger of a handler's that runs too long, or one that meets a missing table.
                    StoreErrorKind::Unavailable if code(&error) == Some("57014") => StoreErrorKind::Unexpected,
                    StoreErrorKind::Schema | StoreErrorKind::Unauthorized => StoreErrorKind::Unexpected,
                    kind => kind,
                };
                let context = "the database refused to commit; nothing was committed";
                Err(StoreError::new(kind, operation).context(context).source(error))
            }
            Err(error) => Err(StoreError::new(StoreErrorKind::CommitUnknown, operation)
                .context("COMMIT was sent and its answer was lost; it may have committed")
                .source(refused(operation, error))),
        }
    }

    /// Rolls back after an error, which counts for more than what the rollback says.
    async fn abandon(tx: Tx, error: StoreError) -> StoreError {
        // What a handler has left on a connection that escaped is not known: dropped, it is closed.
        if error.kind() != StoreErrorKind::TransactionEscaped
            && let Err(rollback) = roll_back(tx).await
        {
            tracing::debug!(error = %inbox_core::report(&rollback), "the rollback after an error failed");
        }
        error
    }
}

type BoxedError = inbox_core::BoxError;

impl InboxStore for OwnStore {
    type Tx = Tx;

    async fn register(&self, consumer: &str) -> Result<ConsumerId, StoreError> {
        let tx = self.begin_with("register", OWN + GRACE, sql::BEGIN_OWN).await?;
        match Self::register_in(&tx, consumer).await {
            Ok(number) => Self::commit_tx(tx, "register").await.map(|()| number),
            Err(error) => Err(Self::abandon(tx, error).await),
        }
    }

    async fn begin(&self, limits: &Limits) -> Result<Tx, StoreError> {
        let (lock, statement) = (milliseconds(limits.claim_wait), milliseconds(limits.statement_timeout));
        let claim = lock.saturating_add(1_000).min(MOST_MS).max(statement);
        let patience = Duration::from_millis(claim.unsigned_abs()) + GRACE;
        self.begin_with("begin", patience, &sql::begin(lock, claim, statement)).await
    }

    async fn claim(&self, tx: &mut Tx, consumer: ConsumerId, candidates: &[Candidate]) -> Result<Claims, StoreError> {
        let candidates = sorted(candidates);
        let ids: Vec<Uuid> = candidates.iter().map(|candidate| candidate.id.as_uuid()).collect();
        let fingerprints: Vec<i32> = candidates.iter().map(|candidate| candidate.fingerprint).collect();
        let times: Vec<Option<SystemTime>> = candidates.iter().map(|candidate| candidate.time.map(bounded)).collect();
        let rows = tx.ask(sql::CLAIM, &[&consumer.0, &ids, &fingerprints, &times]).await.map_err(claim_error)?;
        let row = rows.first().ok_or_else(|| StoreError::new(StoreErrorKind::Unexpected, "claim"))?;
        let (transaction, new): (i64, Vec<Uuid>) = (column(row, 0)?, column(row, 1)?);
        let fingerprints: Option<Vec<Option<i32>>> = column(row, 2)?;
        let mut found: HashMap<MessageId, Claim> =
            new.into_iter().map(|id| (MessageId::from_uuid(id), Claim::New)).collect();
        let others: Vec<Candidate> = candidates.into_iter().filter(|other| !found.contains_key(&other.id)).collect();
        found.extend(compare(&others, &fingerprints.unwrap_or_default())?);
        Ok(Claims::new(consumer, transaction.unsigned_abs(), found))
    }

    async fn unclaim(&self, tx: &mut Tx, claims: &mut Claims, ids: &[MessageId]) -> Result<(), StoreError> {
        // A claim that is not this transaction's own is nobody's to delete.
        let own: Vec<MessageId> = ids.iter().copied().filter(|id| claims.get(*id) == Some(Claim::New)).collect();
        let uuids: Vec<Uuid> = own.iter().map(|id| id.as_uuid()).collect();
        tx.ask_anew(sql::UNCLAIM, &[&claims.consumer().0, &uuids]).await.map_err(|error| refused("unclaim", error))?;
        own.into_iter().for_each(|id| claims.unclaimed(id));
        Ok(())
    }

    async fn check(&self, tx: &mut Tx, claims: &Claims) -> Result<(), StoreError> {
        let rows = tx.ask(sql::CHECK, &[]).await.map_err(|error| refused("check", error))?;
        let current: Option<i64> = only(&rows)?;
        if current == Some(transaction(claims)) { Ok(()) } else { Err(escaped("check")) }
    }

    async fn commit(&self, tx: Tx, claims: Claims) -> Result<(), StoreError> {
        let finished = match claims.resolved() {
            Ok(()) => Self::finish(&tx, &claims).await,
            unresolved => unresolved,
        };
        match finished {
            Ok(()) => Self::commit_tx(tx, "commit").await,
            Err(error) => Err(Self::abandon(tx, error).await),
        }
    }

    async fn rollback(&self, tx: Tx) -> Result<(), StoreError> {
        roll_back(tx).await
    }

    fn classify(&self, error: &(dyn Error + 'static)) -> Blame {
        blame(error)
    }
}

/// The fingerprints by which others were claimed before decide between duplicate and conflict.
fn compare(others: &[Candidate], fingerprints: &[Option<i32>]) -> Result<Vec<(MessageId, Claim)>, StoreError> {
    if others.len() != fingerprints.len() {
        return Err(StoreError::new(StoreErrorKind::Unexpected, "claim").context(format!(
            "{} ids are not new, and there are {} fingerprints",
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

async fn roll_back(tx: Tx) -> Result<(), StoreError> {
    match tx.send_within(ROLLBACK_BOUND, "ROLLBACK").await {
        Ok(()) => {
            tx.ended();
            Ok(())
        }
        Err(error) => Err(StoreError::new(StoreErrorKind::Unavailable, "rollback")
            .context("the rollback was not confirmed; the connection is closed, and the database rolls back by itself")
            .source(refused("rollback", error))),
    }
}

fn claim_error(error: Refused) -> StoreError {
    let Refused::Said(said) = &error else { return refused("claim", error) };
    let (kind, context) = match code(said) {
        Some("55P03" | "57014") => {
            (StoreErrorKind::ClaimTimeout, "another transaction held an id for longer than `claim_wait`")
        }
        Some("25P02") => (StoreErrorKind::TransactionAborted, "a statement before the claim failed"),
        Some("23505") => (StoreErrorKind::Unexpected, "a transaction claims once"),
        _ => return refused("claim", error),
    };
    StoreError::new(kind, "claim").context(context).source(refused("claim", error))
}

fn escaped(operation: &'static str) -> StoreError {
    StoreError::new(StoreErrorKind::TransactionEscaped, operation).context(
        "this is not the transaction that claimed: a handler sent COMMIT or ROLLBACK; nothing of this batch was kept",
    )
}

/// The transaction's id as PostgreSQL has it: far from 2^63.
fn transaction(claims: &Claims) -> i64 {
    claims.transaction().cast_signed()
}

fn milliseconds(duration: Duration) -> i64 {
    // Zero would mean no bound at all.
    i64::try_from(duration.as_millis()).unwrap_or(MOST_MS).clamp(1, MOST_MS)
}

/// A producer's clock may say anything.
fn bounded(time: SystemTime) -> SystemTime {
    time.clamp(UNIX_EPOCH, UNIX_EPOCH + LAST)
}

fn column<'a, T: FromSql<'a>>(row: &'a Row, index: usize) -> Result<T, StoreError> {
    let unreadable = |error| StoreError::new(StoreErrorKind::Schema, "read").source(error);
    row.try_get(index).map_err(unreadable)
}

/// The one value of a statement that always has one.
fn only<T: for<'a> FromSql<'a>>(rows: &[Row]) -> Result<T, StoreError> {
    let row = rows.first().ok_or_else(|| StoreError::new(StoreErrorKind::Unexpected, "read").context("no row"))?;
    column(row, 0)
}
