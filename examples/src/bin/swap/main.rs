//! One handler on every broker: the same messages, some of them twice, go over each, and one table says what came of
//! them. What differs from broker to broker is the URL, and a Cargo feature.

mod args;
mod places;
mod saboteur;
mod table;

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::Parser;
use inbox::{
    HandlerError, Inbox, Message, Transport,
    sqlite::{SqliteInboxStore, SqliteTransaction, sqlx},
};

use crate::{args::Args, places::Place, saboteur::Loses, table::Row};

/// How many messages a call of the publisher takes.
const AT_ONCE: usize = 100;
/// How long a broker may hand over nothing new.
const PATIENCE: Duration = Duration::from_secs(30);
/// After this much quiet everything has been handed over that will be.
const QUIET: Duration = Duration::from_secs(3);

#[derive(serde::Deserialize, serde::Serialize)]
struct PaymentCaptured {
    payment: u32,
}

/// The one handler.
async fn send_receipt(event: PaymentCaptured, tx: &mut SqliteTransaction<'_>) -> Result<(), HandlerError> {
    sqlx::query("INSERT INTO receipts (payment) VALUES ($1)").bind(event.payment).execute(&mut **tx).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    let log = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "error".into());
    tracing_subscriber::fmt().with_env_filter(log).with_writer(std::io::stderr).init();
    let args = Args::parse();
    match swap(&args).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("swap: {error:#}");
            ExitCode::from(3)
        }
    }
}

/// Runs a row for each place; true when all are right.
async fn swap(args: &Args) -> anyhow::Result<bool> {
    let dir = tempfile::Builder::new().prefix("swap-").tempdir()?;
    let run = uuid::Uuid::now_v7().simple().to_string()[20..].to_owned();
    let mut rows = Vec::new();
    for place in places::chosen(args, dir.path(), &run) {
        let Some(url) = &place.url else {
            rows.push(Row::absent(&place));
            continue;
        };
        eprintln!("{}: {} messages …", place.name, args.published());
        let database = format!("sqlite:{}/{}.db", dir.path().display(), rows.len());
        rows.push(match over(&place, url, &database, args).await {
            Ok(row) => row,
            Err(error) => Row::failed(&place, format!("{error:#}")),
        });
    }
    let (shown, right) = table::shown(&rows);
    println!("{shown}");
    Ok(right)
}

/// The whole pipeline over one broker.
async fn over(place: &Place, url: &str, database: &str, args: &Args) -> anyhow::Result<Row> {
    inbox::provision(url).await.context("make the topic and the subscription")?;
    // It exists before the first message, on brokers that hand over only what is published after that.
    inbox::backlog(url).await.context("read the backlog")?;

    let pool = sqlx::SqlitePool::connect(&format!("{database}?mode=rwc")).await?;
    sqlx::query("CREATE TABLE receipts (payment INTEGER NOT NULL)").execute(&pool).await?;
    let store = SqliteInboxStore::builder(database)?.migrate_on_start(true).open().await?;
    publish(url, args).await?;

    let transport = inbox::connect(url).await.context("connect")?;
    let inbox = if args.breaks(&place.name) { build(Loses::new(transport), store)? } else { build(transport, store)? };
    let handle = inbox.handle();
    let began = Instant::now();
    let expected = args.published();
    inbox.run(until_quiet(|| handle.numbers(), expected)).await?;
    let took = began.elapsed();

    let (effects, payments): (i64, i64) =
        sqlx::query_as("SELECT count(*), count(DISTINCT payment) FROM receipts").fetch_one(&pool).await?;
    let numbers = handle.numbers();
    Ok(Row {
        broker: place.name.clone(),
        published: expected,
        delivered: numbers.received,
        duplicates: numbers.duplicates,
        effects: u64::try_from(effects)?,
        missing: u64::from(args.messages).saturating_sub(u64::try_from(payments)?),
        lag: Some(drained(url).await?),
        took,
        trouble: None,
    })
}

fn build(transport: impl Transport, store: SqliteInboxStore) -> Result<Inbox<SqliteInboxStore>, inbox::InboxError> {
    Inbox::new("receipts", transport, store).on("payment.captured", send_receipt).build()
}

/// Publishes every payment, and every tenth of them a second time with the same id, a while later.
async fn publish(url: &str, args: &Args) -> anyhow::Result<()> {
    let publisher = inbox::publisher(url).await.context("connect the publisher")?;
    let captured = |payment: u32| -> anyhow::Result<Message> {
        let body = serde_json::to_vec(&PaymentCaptured { payment })?;
        // In a shop the id is a UUIDv7, made once and kept in the outbox.
        let message = Message::new(body.into()).id(format!("payment-{payment}"));
        Ok(message.kind("payment.captured").key(format!("account-{}", payment % 100)))
    };
    let twice = (0..args.messages).filter(|payment| payment % 10 == 0);
    let messages: Vec<Message> = (0..args.messages).chain(twice).map(captured).collect::<Result<_, _>>()?;
    for some in messages.chunks(AT_ONCE) {
        for stored in publisher.publish(some.to_vec()).await {
            stored.context("publish")?;
        }
    }
    publisher.close(Duration::from_secs(10)).await?;
    Ok(())
}

/// Resolves when everything expected has come and nothing more comes, or nothing has come for long.
async fn until_quiet(numbers: impl Fn() -> inbox::Numbers, expected: u64) {
    let mut last = (0, Instant::now());
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = numbers();
        if now.received != last.0 || now.in_flight > 0 {
            last = (now.received, Instant::now());
        }
        if last.1.elapsed() > if now.received >= expected { QUIET } else { PATIENCE } {
            return;
        }
    }
}

/// What the subscription still has, after a while for brokers that count with delay.
async fn drained(url: &str) -> anyhow::Result<u64> {
    let mut left = 0;
    for _ in 0..20 {
        left = inbox::backlog(url).await.context("read the backlog")?;
        if left == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    Ok(left)
}
