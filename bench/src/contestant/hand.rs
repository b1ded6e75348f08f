//! A careful hand-written loop: one transaction a message.

use anyhow::Result;
use tokio::sync::mpsc::Receiver;

use super::{
    Job,
    clock::Clock,
    consume::{Record, Shared, through_lanes},
    receipts,
};
use crate::workload::Payment;

/// Runs with `lanes` transactions at a time. Without `claims` every copy has its effect too.
pub(crate) async fn run(job: &Job, clock: &Clock, lanes: usize, claims: bool) -> Result<u64> {
    through_lanes(job, clock, lanes, |records, shared| lane(records, shared, claims)).await
}

async fn lane(mut records: Receiver<Record>, shared: Shared, claims: bool) -> Result<u64> {
    let mut transactions = 0;
    while let Some(record) = records.recv().await {
        let payment: Payment = serde_json::from_slice(&record.body)?;
        let mut tx = shared.pool.begin().await?;
        if !claims || receipts::claim(&mut tx, record.id, record.fingerprint).await? {
            receipts::insert(&mut tx, &payment).await?;
        }
        tx.commit().await?;
        shared.done(&[record.place])?;
        transactions += 1;
    }
    Ok(transactions)
}
