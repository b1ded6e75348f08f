//! One consumer that lives through faults for a long time: what it holds must not grow.

use std::{
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use comfy_table::{Table, presets};
use inbox::postgres::sqlx::{self, Connection as _, PgConnection};
use nix::sys::signal::Signal;
use xtask::servers::postgres::Stop;

use crate::{
    args::{Broker, RunArgs, SoakArgs, Store},
    outcome::Pair,
    proxy::Mode,
    report::Results,
    servers::{Servers, pause},
    stage::{Context, Setup, Stage},
};

/// What the process held at a time.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Duration,
    resident_kb: u64,
    files: usize,
    threads: u64,
    connections: i64,
    acked: u64,
}

/// How much more memory may be held at the end than after the first minutes: what an allocator keeps varies.
const SLACK_KB: u64 = 8 * 1024;
/// How many more files, threads and connections.
const SLACK: u64 = 3;

/// Messages of one helping.
const HELPING: u32 = 20_000;
/// More than a consumer works off in a minute.
const EACH_MINUTE: u32 = 60_000;

pub(crate) async fn run(args: &SoakArgs, target: PathBuf) -> anyhow::Result<ExitCode> {
    let minutes = args.minutes.max(4);
    let pair = Pair { broker: Broker::Kafka, store: Store::Postgres };
    let run = RunArgs {
        broker: None,
        store: None,
        cases: Vec::new(),
        rounds: 1,
        messages: None,
        kills: None,
        short: true,
        seed: None,
        list: false,
        fresh: false,
        saboteur: None,
    };
    let mut context = Context { servers: Servers::new(&target), args: run, rng: fastrand::Rng::new(), pair };
    // More than it can work off in that time, published as it goes.
    let setup = Setup {
        broker_by_proxy: true,
        store_by_proxy: true,
        published_before: 0.0,
        ..Setup::new(EACH_MINUTE * minutes)
    };
    let mut stage = Stage::set(&mut context, setup).await?;
    stage.publish(HELPING as usize).await?;
    stage.spawn(0, &[]).await?;
    let (began, mut samples, mut faults) = (Instant::now(), Vec::new(), 0_u32);
    let mut published = HELPING as usize;
    let whole = Duration::from_secs(u64::from(minutes) * 60);
    while began.elapsed() < whole {
        fault(&mut context, &mut stage, faults).await?;
        faults += 1;
        stage.resumed(Instant::now()).await?;
        // It must not run dry.
        if stage.acked() + u64::from(HELPING / 2) > published as u64 {
            published = (published + HELPING as usize).min(stage.load.published());
            stage.publish(published).await?;
        }
        pause(Duration::from_secs(2)).await;
        let sample = sample(&mut stage, began.elapsed()).await?;
        eprintln!("{sample:?}");
        samples.push(sample);
    }
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["minute", "resident, MB", "files", "threads", "connections", "acknowledged"]);
    for minute in 0..=minutes {
        let at = Duration::from_secs(u64::from(minute) * 60);
        if let Some(sample) = samples.iter().find(|sample| sample.at >= at) {
            table.add_row([
                format!("{:.1}", sample.at.as_secs_f64() / 60.0),
                (sample.resident_kb / 1024).to_string(),
                sample.files.to_string(),
                sample.threads.to_string(),
                sample.connections.to_string(),
                sample.acked.to_string(),
            ]);
        }
    }
    let (verdict, holds) = judge(&samples)?;
    let text = format!("{faults} faults in {minutes} minutes.\n\n{table}\n\n{verdict}");
    println!("{text}");
    Results::new(&target)?.keep_soak(&text)?;
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// The highest of the minutes 2 to 4 against the lowest of the last two: a leak grows, noise does not.
fn judge(samples: &[Sample]) -> anyhow::Result<(String, bool)> {
    let last = samples.last().context("no sample")?.at;
    let early = samples.iter().filter(|sample| (120..=240).contains(&sample.at.as_secs()));
    let late = samples.iter().filter(|sample| sample.at + Duration::from_secs(120) >= last);
    let grown = |value: fn(&Sample) -> u64| -> anyhow::Result<(u64, u64)> {
        let early = early.clone().map(value).max().context("no early sample: run for longer")?;
        let late = late.clone().map(value).min().context("no late sample")?;
        Ok((early, late))
    };
    let figures = [
        ("resident memory, kB", grown(|sample| sample.resident_kb)?, SLACK_KB),
        ("files", grown(|sample| sample.files as u64)?, SLACK),
        ("threads", grown(|sample| sample.threads)?, SLACK),
        ("connections", grown(|sample| sample.connections.unsigned_abs())?, SLACK),
    ];
    let (mut lines, mut holds) = (Vec::new(), true);
    for (what, (early, late), slack) in figures {
        let grows = late > early + slack;
        holds &= !grows;
        let verdict = if grows { "**grows**" } else { "does not grow" };
        lines.push(format!("- {what}: {early} at most in minutes 2 to 4, {late} at least in the last two: {verdict}"));
    }
    Ok((lines.join("\n"), holds))
}

/// One fault; which, goes round.
async fn fault(context: &mut Context, stage: &mut Stage, number: u32) -> anyhow::Result<()> {
    let short = Duration::from_secs(2);
    match number % 7 {
        0 => {
            let postgres = context.servers.postgres().await?;
            postgres.stop(Stop::Fast)?;
            pause(short).await;
            context.servers.postgres().await?.start()?;
        }
        1 => {
            context.servers.postgres().await?.proxy.set(Mode::Hold);
            pause(short * 2).await;
            context.servers.postgres().await?.proxy.set(Mode::Pass);
        }
        2 => {
            let mut own = PgConnection::connect(stage.scene.store(false)).await?;
            for _ in 0..10 {
                sqlx::query(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() \
                     AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1",
                )
                .execute(&mut own)
                .await?;
                pause(Duration::from_millis(100)).await;
            }
            own.close().await?;
        }
        3 => {
            context.servers.postgres().await?.proxy.set(Mode::CutCommits { forward: true, every: 4 });
            pause(short).await;
            context.servers.postgres().await?.proxy.set(Mode::Pass);
        }
        4 => {
            let kafka = context.servers.kafka().await?;
            kafka.stop(Signal::SIGTERM)?;
            context.servers.kafka().await?.start()?;
        }
        5 => {
            // Another member takes half of the partitions and gives them back.
            stage.spawn(1, &[]).await?;
            pause(short * 2).await;
            stage.stop(1).await?;
        }
        _ => {
            context.servers.kafka().await?.proxy.set(Mode::Hold);
            pause(short * 2).await;
            context.servers.kafka().await?.proxy.set(Mode::Pass);
        }
    }
    Ok(())
}

async fn sample(stage: &mut Stage, at: Duration) -> anyhow::Result<Sample> {
    let pid = stage.consumer(0)?.pid();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).context("the consumer is gone")?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.trim_start_matches(':').split_whitespace().next()?.parse::<u64>().ok())
    };
    let (Some(resident_kb), Some(threads)) = (field("VmRSS"), field("Threads")) else {
        bail!("/proc/{pid}/status says nothing of memory")
    };
    let mut own = PgConnection::connect(stage.scene.store(false)).await?;
    let connections = sqlx::query_scalar(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    .fetch_one(&mut own)
    .await?;
    own.close().await?;
    let files = std::fs::read_dir(format!("/proc/{pid}/fd"))?.count();
    Ok(Sample { at, resident_kb, files, threads, connections, acked: stage.acked() })
}
