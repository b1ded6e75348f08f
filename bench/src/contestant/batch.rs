//! An ideal hand-written loop: one transaction, and one claim, for what waits.

use std::collections::HashMap;

use anyhow::Result;
use tokio::sync::mpsc::Receiver;
use uuid::Uuid;

use super::{
    BATCH, Job,
    clock::Clock,
    consume::{Record, Shared, through_lanes},
    offsets::Place,
    receipts,
};
use crate::workload::Payment;

/// Runs with `lanes` transactions at a time.
pub(crate) async fn run(job: &Job, clock: &Clock, lanes: usize) -> Result<u64> {
    through_lanes(job, clock, lanes, lane).await
}

async fn lane(mut records: Receiver<Record>, shared: Shared) -> Result<u64> {
    let mut transactions = 0;
    let mut batch: Vec<Record> = Vec::with_capacity(BATCH);
    while records.recv_many(&mut batch, BATCH).await > 0 {
        // A copy in the same batch is one with its original.
        let ids: HashMap<Uuid, i32> = batch.iter().map(|record| (record.id, record.fingerprint)).collect();
        let (ids, fingerprints) = ids.into_iter().unzip();
        let mut tx = shared.pool.begin().await?;
        let new = receipts::claim_all(&mut tx, ids, fingerprints).await?;
        let mut new: std::collections::HashSet<Uuid> = new.into_iter().collect();
        for record in batch.iter().filter(|record| new.remove(&record.id)) {
            let payment: Payment = serde_json::from_slice(&record.body)?;
            receipts::insert(&mut tx, &payment).await?;
        }
        tx.commit().await?;
        let places: Vec<Place> = batch.drain(..).map(|record| record.place).collect();
        shared.done(&places)?;
        transactions += 1;
    }
    Ok(transactions)
}
