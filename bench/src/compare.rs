//! The comparison: rounds in which every contestant runs once, each time in another order.

use anyhow::Result;
use indicatif::ProgressBar;

use crate::{
    args::Args,
    contestant::Contestant,
    report::{self, Section},
    stage::{Stage, style, unless_interrupted},
    summary::{Run, Summary},
    workload::Workload,
};

/// Runs it; whether everything was proved.
pub(crate) async fn run(args: &Args) -> Result<bool> {
    let workload = Workload { payments: args.messages, copies: args.messages / 10, seed: args.seed };
    let mut stage = Stage::set(workload).await?;
    let done = unless_interrupted(rounds(args, workload, &mut stage)).await;
    stage.strike().await;
    let Some((runs, machine)) = done? else { return Ok(false) };
    let text = report::compare(args, &machine, &Summary::of(&runs));
    println!("{text}");
    if let Some(file) = args.report() {
        report::write(&file, Section::Compare, &text)?;
        eprintln!("written to {}", file.display());
    }
    Ok(true)
}

/// The runs and the machine; `None` when a contestant left something that it must not.
async fn rounds(args: &Args, workload: Workload, stage: &mut Stage) -> Result<Option<(Vec<Run>, String)>> {
    let contestants = if args.only.is_empty() { Contestant::ALL.to_vec() } else { args.only.clone() };
    // Before anything runs: how busy the machine is with others.
    let machine = stage.machine().await?.to_string();
    let bar = ProgressBar::new((args.rounds * contestants.len()) as u64).with_style(style("running"));
    bar.enable_steady_tick(std::time::Duration::from_millis(500));
    let mut runs = Vec::new();
    for round in 0..args.rounds {
        let mut order = contestants.clone();
        order.rotate_left(round % contestants.len());
        for contestant in order {
            let name = contestant.name();
            bar.set_message(format!("round {} of {}: {name}", round + 1, args.rounds));
            let group = stage.topic.group(&format!("{name}-{round}"));
            let performance = stage.perform(contestant, group, false, drop).await?;
            if !performance.faults.is_empty() {
                bar.finish_and_clear();
                eprintln!("{name} is wrong in round {}: {}", round + 1, performance.faults.join("; "));
                return Ok(None);
            }
            let run = Run { contestant, round, records: workload.records(), measured: performance.measured };
            bar.suspend(|| {
                eprintln!("{:>2} {name:<8} {:>9.0} msg/s   proved: {}", round + 1, run.rate(), performance.found);
            });
            runs.push(run);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(Some((runs, machine)))
}
