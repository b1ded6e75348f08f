//! The store without the runtime and without the transport: a consumer loop of your own (`consume.rs`) over rdkafka.
//!
//! This file is the proof: it publishes messages, some of them twice, runs the loop, lets it die without committing its
//! offsets, runs it again, and reads from the database what came of it.

#![allow(clippy::disallowed_methods, reason = "the lint is about the library; this program spawns what it likes")]

mod consume;
mod records;

use std::{
    convert::Infallible,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, ensure};
use clap::Parser;
use inbox::{
    InboxStore,
    maintenance::Maintenance,
    operator::Operator,
    postgres::{PgInboxStore, sqlx},
};
use rdkafka::{
    ClientConfig,
    consumer::{BaseConsumer, Consumer},
    message::{Header, OwnedHeaders},
    producer::{BaseProducer, BaseRecord, Producer},
};

use crate::{consume::Loop, records::Captured};

/// A consumer loop of one's own over the store of the inbox. Exit status 0: each effect is there once.
#[derive(Debug, Parser)]
#[command(name = "own_loop")]
struct Args {
    /// The brokers: `host:port[,host:port…]`, with `kafka://` in front or not. The topic is made.
    #[arg(long, value_parser = addresses)]
    brokers: String,
    /// The database: `postgres://…`. The inbox's tables and one for the effects are made.
    #[arg(long)]
    database: String,
}

/// The addresses of a URL, or what stands there without one.
fn addresses(given: &str) -> Result<String, Infallible> {
    Ok(given.strip_prefix("kafka://").unwrap_or(given).to_owned())
}

const PAYMENTS: i64 = 1_000;

#[tokio::main]
async fn main() -> ExitCode {
    match prove(&Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("own_loop: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn prove(args: &Args) -> anyhow::Result<()> {
    let run = format!("own_loop_{}", uuid::Uuid::now_v7().simple());
    let topic = format!("kafka://{}/{run}", args.brokers);
    inbox::provision(&format!("{topic}?partitions=4")).await.context("make the topic")?;
    let published = publish(&args.brokers, &run).context("publish")?;
    println!("published: {published}");

    let store = PgInboxStore::connect(&args.database).await?;
    store.migrate().await?;
    let pool = sqlx::PgPool::connect(&args.database).await?;
    let statement = |text: String| sqlx::raw_sql(sqlx::AssertSqlSafe(text));
    statement(format!("CREATE TABLE {run} (payment text, cents bigint CHECK (cents >= 0))")).execute(&pool).await?;

    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    tokio::spawn(async move {
        let asked = tokio::signal::ctrl_c().await;
        stopped.store(true, Ordering::Relaxed);
        asked
    });
    let consumer = store.register(&run).await?;
    let own = Loop { store: &store, consumer, topic: &run, effects: &run, stop: &stop };
    let count = async || -> anyhow::Result<(i64, i64)> {
        let query = format!("SELECT count(*), count(DISTINCT payment) FROM {run}");
        Ok(sqlx::query_as(sqlx::AssertSqlSafe(query)).fetch_one(&pool).await?)
    };
    own.run(&subscribe(&args.brokers, &run)?, published / 2, true).await?;
    println!("effects when it dies: {}", count().await?.0);
    let duplicates = own.run(&subscribe(&args.brokers, &run)?, published, false).await?;
    println!("duplicates after that: {duplicates}");

    let (effects, distinct) = count().await?;
    println!("effects: {effects}\ndistinct ids: {distinct}");
    let mut kept: Vec<&str> = store.failures(&run, 100).await?.iter().map(|row| row.reason.as_str()).collect();
    kept.sort_unstable();
    println!("kept for a person: {}", kept.join(", "));
    let lag = inbox::kafka::group_lag(&format!("{topic}?group={run}")).await?;
    println!("lag: {lag}");
    statement(format!("DROP TABLE {run}")).execute(&pool).await?;
    ensure!(!stop.load(Ordering::Relaxed), "stopped before the end");
    ensure!((effects, distinct) == (PAYMENTS, PAYMENTS), "not each payment has one effect");
    ensure!(kept == ["id_conflict", "max_attempts", "missing_id", "undecodable"], "something else was kept");
    ensure!(lag == 0 && duplicates > published / 2, "the second run did not have all of the topic again");
    Ok(())
}

fn subscribe(brokers: &str, group: &str) -> anyhow::Result<BaseConsumer> {
    let kafka: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("group.id", group)
        .set("auto.offset.reset", "earliest")
        // Offsets are stored by the loop, after COMMIT, and committed in the background.
        .set("enable.auto.offset.store", "false")
        .set("enable.auto.commit", "true")
        .set("partition.assignment.strategy", "cooperative-sticky")
        .create()?;
    kafka.subscribe(&[group])?;
    Ok(kafka)
}

/// Payments, every fourth of them twice, and four messages that cannot become effects. Returns how many there are.
fn publish(brokers: &str, topic: &str) -> anyhow::Result<usize> {
    let producer: BaseProducer =
        ClientConfig::new().set("bootstrap.servers", brokers).set("enable.idempotence", "true").create()?;
    let mut published = 0;
    let mut send = |id: Option<&str>, body: &str| -> anyhow::Result<()> {
        let headers = OwnedHeaders::new().insert(Header { key: "id", value: id });
        let record = BaseRecord::to(topic).key(id.unwrap_or_default()).payload(body).headers(headers);
        producer.send(record).map_err(|(error, _)| error)?;
        published += 1;
        Ok(())
    };
    let body = |id: &str, cents| serde_json::to_string(&Captured { payment: id.to_owned(), cents });
    let new_id = || uuid::Uuid::now_v7().to_string();
    for number in 0..PAYMENTS {
        let id = new_id();
        send(Some(&id), &body(&id, number)?)?;
        if number % 4 == 0 {
            send(Some(&id), &body(&id, number)?)?;
        }
        match number {
            100 => send(Some(&new_id()), "no JSON")?,
            200 => send(None, &body("nameless", number)?)?,
            // The effect's table refuses it.
            300 => send(Some(&new_id()), &body("negative", -1)?)?,
            // Another content under the same id.
            400 => send(Some(&id), &body(&id, number + 1)?)?,
            _ => {}
        }
    }
    producer.flush(Duration::from_secs(30))?;
    Ok(published)
}
