//! Faults under load: consumers as processes of their own, real servers, and what database and broker say afterwards.

#![allow(
    clippy::disallowed_methods,
    reason = "the lint is about the library; this program spawns and waits as it likes"
)]

mod args;
mod cases;
mod child;
mod fleet;
mod load;
mod outcome;
mod proxy;
mod report;
mod servers;
mod soak;
mod stage;
mod watched;
mod world;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Instant,
};

use anyhow::{Context as _, bail};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    args::{Args, Command, RunArgs},
    cases::Case,
    outcome::{Outcome, Pair},
    report::Results,
    servers::Servers,
    stage::Context,
};

#[tokio::main]
async fn main() -> ExitCode {
    // lapin calls each connection that breaks an error, and here that is what is wanted.
    let log = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "error,lapin=off".into());
    tracing_subscriber::fmt().with_env_filter(log).with_writer(std::io::stderr).init();
    let args = Args::parse();
    let done = match &args.command {
        Some(Command::Child(args)) => child::live(args).await.map(|()| ExitCode::SUCCESS),
        Some(Command::Report { file }) => write_report(file).map(|()| ExitCode::SUCCESS),
        Some(Command::Soak(args)) => tokio::select! {
            done = soak::run(args, target()) => done,
            interrupted = interrupted() => Err(interrupted),
        },
        None if args.run.list => {
            for case in Case::ALL {
                println!("{:<22}{}", case.name(), case.about());
            }
            Ok(ExitCode::SUCCESS)
        }
        None => tokio::select! {
            done = campaign(&args.run) => done,
            // Dropped on the way: what was started ends with it.
            interrupted = interrupted() => Err(interrupted),
        },
    };
    done.unwrap_or_else(|error| {
        eprintln!("faults: {error:#}");
        ExitCode::from(3)
    })
}

/// Waits until somebody wants the run to end.
async fn interrupted() -> anyhow::Error {
    match signal(SignalKind::terminate()) {
        Ok(mut terminated) => tokio::select! {
            _ = tokio::signal::ctrl_c() => anyhow::anyhow!("interrupted"),
            _ = terminated.recv() => anyhow::anyhow!("terminated"),
        },
        Err(error) => anyhow::anyhow!("cannot listen for SIGTERM: {error}"),
    }
}

/// Cargo's folder.
fn target() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(".")).join("target")
}

fn write_report(file: &Path) -> anyhow::Result<()> {
    let results = Results::new(&target())?;
    std::fs::write(file, report::markdown(&results.read()?, results.read_soak()))
        .with_context(|| format!("write {}", file.display()))
}

/// The rounds of a run.
fn plan(args: &RunArgs) -> anyhow::Result<Vec<(Case, Pair)>> {
    for name in &args.cases {
        if !Case::ALL.iter().any(|case| case.name() == *name) {
            let known: Vec<String> = Case::ALL.iter().map(|case| case.name()).collect();
            bail!("no case is called `{name}`; there are: {}", known.join(", "));
        }
    }
    let chosen = |case: &Case| args.cases.is_empty() || args.cases.contains(&case.name());
    let pairs = args.pairs();
    let plan: Vec<(Case, Pair)> = pairs
        .iter()
        .flat_map(|pair| {
            let fits = Case::ALL.into_iter().filter(|case| chosen(case) && case.fits(*pair));
            fits.map(|case| (case, *pair))
        })
        .collect();
    if plan.is_empty() {
        bail!("none of these cases can be done to that broker and store");
    }
    Ok(plan)
}

async fn campaign(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let plan = plan(args)?;
    let results = Results::new(&target())?;
    if args.fresh {
        results.clear()?;
    }
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    println!("seed: {seed}");
    let mut context = Context {
        servers: Servers::new(&target()),
        args: args.clone(),
        rng: fastrand::Rng::with_seed(seed),
        pair: plan[0].1,
    };
    let all = plan.len() * args.rounds as usize;
    let mut outcomes = Vec::new();
    for round in 0..args.rounds {
        for (case, pair) in &plan {
            context.pair = *pair;
            eprint!("[{:>3}/{all}] {} ({pair}), round {} … ", outcomes.len() + 1, case.name(), round + 1);
            let began = Instant::now();
            let outcome = one(*case, &mut context).await;
            let verdict = if outcome.holds() { "held".to_owned() } else { outcome.broken.join("; ") };
            eprintln!("{verdict} ({:.1} s, {} faults)", began.elapsed().as_secs_f64(), outcome.counted);
            // A wrong consumer's results are no results.
            if args.saboteur.is_none() {
                results.add(&outcome)?;
            }
            outcomes.push(outcome);
        }
    }
    println!("{}", report::table(&outcomes));
    let broken = outcomes.iter().filter(|outcome| !outcome.holds()).count();
    let missed = outcomes.iter().filter(|outcome| outcome.holds() && outcome.counted == 0).count();
    println!("{} rounds: {} held, {broken} broken, {missed} without a fault", all, all - broken - missed);
    Ok(match (broken, missed) {
        (0, 0) => ExitCode::SUCCESS,
        (0, _) => ExitCode::from(2),
        _ => ExitCode::from(1),
    })
}

/// One round; an error of its own is something that does not hold.
async fn one(case: Case, context: &mut Context) -> Outcome {
    let pair = context.pair;
    let mut outcome = case
        .run(context)
        .await
        .unwrap_or_else(|error| Outcome { broken: vec![format!("{error:#}")], ..Outcome::default() });
    outcome.case = case.name();
    outcome.pair = pair.to_string();
    outcome
}
