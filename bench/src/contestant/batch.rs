//! An ideal hand-written loop: one transaction, and one claim, for what waits.

use std::collections::{HashMap, HashSet};

use anyhow::Result;
use uuid::Uuid;

use super::{
    BATCH, Job,
    clock::Clock,
    consume::{Acks as _, Lane, Mark, Record, Source, through_lanes},
    kafka::Kafka,
    pubsub::Pubsub,
    rabbitmq::RabbitMq,
    receipts,
    sqs::Sqs,
};
use crate::{address::Address, workload::Payment};

/// Runs with `lanes` transactions at a time.
pub(crate) async fn run(job: &Job, clock: &Clock, lanes: usize) -> Result<u64> {
    match &job.address {
        Address::Kafka { .. } => through_lanes(Kafka::join(job)?, job, clock, lanes, lane).await,
        Address::RabbitMq { server, queue } => {
            through_lanes(RabbitMq::connect(server, queue).await?, job, clock, lanes, lane).await
        }
        Address::Sqs { host, queue } => through_lanes(Sqs::connect(host, queue).await?, job, clock, lanes, lane).await,
        Address::Pubsub { endpoint, project, name } => {
            through_lanes(Pubsub::connect(endpoint, project, name).await?, job, clock, lanes, lane).await
        }
    }
}

async fn lane<S: Source>(lane: Lane<S>) -> Result<u64> {
    let Lane { mut records, pool, acks } = lane;
    let mut transactions = 0;
    let mut batch: Vec<Record<Mark<S>>> = Vec::with_capacity(BATCH);
    while records.recv_many(&mut batch, BATCH).await > 0 {
        // A copy in the same batch is one with its original.
        let ids: HashMap<Uuid, i32> = batch.iter().map(|record| (record.id, record.fingerprint)).collect();
        let (ids, fingerprints) = ids.into_iter().unzip();
        let mut tx = pool.begin().await?;
        let new = receipts::claim_all(&mut tx, ids, fingerprints).await?;
        let mut new: HashSet<Uuid> = new.into_iter().collect();
        for record in batch.iter().filter(|record| new.remove(&record.id)) {
            let payment: Payment = serde_json::from_slice(&record.body)?;
            receipts::insert(&mut tx, &payment).await?;
        }
        tx.commit().await?;
        acks.done(batch.drain(..).map(|record| record.mark).collect()).await?;
        transactions += 1;
    }
    Ok(transactions)
}
