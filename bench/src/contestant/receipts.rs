//! What is done for a payment, and how hand-written loops claim its id.

use anyhow::Result;
use inbox::postgres::sqlx::{
    self, PgConnection, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use uuid::Uuid;

use crate::workload::Payment;

/// The number under which hand-written loops claim. The inbox gives its consumers numbers from 1 on.
const CONSUMER: i32 = 0;

const INSERT: &str = "INSERT INTO receipts (payment, account, amount, sequence) VALUES ($1, $2, $3, $4)";

const CLAIM: &str = "INSERT INTO inbox.claims (consumer, message_id, fingerprint, claimed_at) \
     VALUES ($1, $2, $3, now()) ON CONFLICT (consumer, message_id) DO NOTHING";

const CLAIM_ALL: &str = "INSERT INTO inbox.claims (consumer, message_id, fingerprint, claimed_at) \
     SELECT $1, c.id, c.fingerprint, now() FROM unnest($2::uuid[], $3::int[]) AS c (id, fingerprint) ORDER BY c.id \
     ON CONFLICT (consumer, message_id) DO NOTHING RETURNING message_id";

/// The effect of a payment: the same statement for everybody.
pub(crate) async fn insert(connection: &mut PgConnection, payment: &Payment) -> Result<(), sqlx::Error> {
    sqlx::query(INSERT)
        .bind(payment.payment)
        .bind(&payment.account)
        .bind(payment.amount)
        .bind(payment.sequence)
        .execute(connection)
        .await?;
    Ok(())
}

/// Claims one id; whether it is new.
pub(crate) async fn claim(connection: &mut PgConnection, id: Uuid, fingerprint: i32) -> Result<bool, sqlx::Error> {
    let claimed = sqlx::query(CLAIM).bind(CONSUMER).bind(id).bind(fingerprint).execute(connection).await?;
    Ok(claimed.rows_affected() == 1)
}

/// Claims many ids, each once in `ids`; those that are new.
pub(crate) async fn claim_all(
    connection: &mut PgConnection,
    ids: Vec<Uuid>,
    fingerprints: Vec<i32>,
) -> Result<Vec<Uuid>, sqlx::Error> {
    sqlx::query_scalar(CLAIM_ALL).bind(CONSUMER).bind(ids).bind(fingerprints).fetch_all(connection).await
}

/// A pool of `connections`, all open, for a hand-written loop.
pub(crate) async fn pool(url: &str, connections: usize) -> Result<PgPool> {
    let connections = u32::try_from(connections)?;
    let pool = PgPoolOptions::new()
        .max_connections(connections)
        .min_connections(connections)
        // Asking before each transaction whether the connection is alive would cost the loop a round trip.
        .test_before_acquire(false)
        .connect_with(url.parse::<PgConnectOptions>()?)
        .await?;
    Ok(pool)
}
