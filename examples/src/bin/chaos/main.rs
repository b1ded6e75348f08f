//! The headline test of the inbox. A payments pipeline with a transactional outbox, two relays and two consumers runs
//! while its parts crash at the worst moments, and then the database is read.

#![allow(clippy::disallowed_methods, reason = "the lint is about the library; this program spawns what it likes")]

mod args;
mod broker;
mod crash;
mod pipeline;
mod roles;
mod shop;
mod verify;

use std::{process::ExitCode, sync::Arc};

use anyhow::{Context, bail};
use clap::Parser;

use crate::{
    args::Args,
    broker::Broker,
    pipeline::{Pipeline, be_child},
    roles::Run,
    shop::Shop,
    verify::{Verdict, verify},
};

#[tokio::main]
async fn main() -> ExitCode {
    let log = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "error".into());
    tracing_subscriber::fmt().with_env_filter(log).with_writer(std::io::stderr).init();
    let args = Args::parse();
    match chaos(&args).await {
        Ok(Verdict::Holds) => ExitCode::SUCCESS,
        Ok(Verdict::Broken) => ExitCode::from(1),
        Ok(Verdict::ProvesNothing) => ExitCode::from(2),
        Err(error) => {
            eprintln!("chaos: {error:#}");
            ExitCode::from(3)
        }
    }
}

async fn chaos(args: &Args) -> anyhow::Result<Verdict> {
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    let name = args.run.clone().unwrap_or_else(|| uuid::Uuid::now_v7().simple().to_string()[20..].to_owned());
    let dir = tempfile::Builder::new().prefix("chaos-").tempdir()?;
    let file = |file: &str| format!("sqlite:{}/{file}", dir.path().display());
    let transport = args.transport.clone().unwrap_or_else(|| file("queue.db"));
    let store = args.store.clone().unwrap_or_else(|| file("shop.db"));
    let shop = open_shop(&store, &name).await?;
    let run = Run { broker: Broker::new(&transport, &name), shop, no_inbox: args.no_inbox, name };
    if let Some(role) = args.role {
        be_child(run, role, seed).await?;
        return Ok(Verdict::Holds);
    }
    println!("seed: {seed}");
    inbox::provision(&run.broker.url(None)).await.context("make the topic")?;
    run.shop.tear_down().await?;
    run.shop.open().await.context("make the tables")?;
    // A group exists before the first message, so that its backlog is known.
    for role in args::Role::ALL.into_iter().filter(|role| role.is_consumer()) {
        run.broker.backlog(role.name()).await?;
    }
    let payments = i64::from(args.payments);
    let child = args.processes.then(|| {
        let mut child: Vec<String> =
            ["--run", &run.name, "--transport", &transport, "--store", &store].map(str::to_owned).into();
        child.extend(args.no_inbox.then(|| "--no-inbox".to_owned()));
        child
    });
    let crashes = Pipeline { run: run.clone(), payments, seed, child }.run().await?;
    let verdict = verify(&run, payments, &crashes).await?;
    run.shop.tear_down().await?;
    Ok(verdict)
}

async fn open_shop(store: &str, run: &str) -> anyhow::Result<Arc<dyn Shop>> {
    match store.split_once(':').map(|(scheme, _)| scheme) {
        Some("sqlite") => Ok(Arc::new(shop::sqlite::SqliteShop::connect(store).await.context("open the database")?)),
        #[cfg(feature = "postgres")]
        Some("postgres" | "postgresql") => {
            Ok(Arc::new(shop::postgres::PgShop::connect(store, run).await.context("open the database")?))
        }
        _ => {
            let _ = run;
            bail!("no such store in this build; accepted: sqlite:FILE, and postgres://… with `--features postgres`")
        }
    }
}
