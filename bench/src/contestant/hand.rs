//! A careful hand-written loop: one transaction a message.

use anyhow::Result;

use super::{
    Job,
    clock::Clock,
    consume::{Acks as _, Lane, through_lanes},
    kafka::Kafka,
    receipts,
};
use crate::workload::Payment;

/// Runs with `lanes` transactions at a time. Without `claims` every copy has its effect too.
pub(crate) async fn run(job: &Job, clock: &Clock, lanes: usize, claims: bool) -> Result<u64> {
    through_lanes(Kafka::join(job)?, job, clock, lanes, |one| lane(one, claims)).await
}

async fn lane(lane: Lane<Kafka>, claims: bool) -> Result<u64> {
    let Lane { mut records, pool, acks } = lane;
    let mut transactions = 0;
    while let Some(record) = records.recv().await {
        let payment: Payment = serde_json::from_slice(&record.body)?;
        let mut tx = pool.begin().await?;
        if !claims || receipts::claim(&mut tx, record.id, record.fingerprint).await? {
            receipts::insert(&mut tx, &payment).await?;
        }
        tx.commit().await?;
        acks.done(vec![record.mark]).await?;
        transactions += 1;
    }
    Ok(transactions)
}
