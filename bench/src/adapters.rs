//! The adapters beside an ideal loop on the same SDK: each run has a queue of its own, filled before its clock starts.

use std::time::Duration;

use anyhow::Result;
use indicatif::ProgressBar;

use crate::{
    args::AdapterArgs,
    contestant::Contestant,
    database::Found,
    queue::{Broker, Queue, Server},
    report::{self, Section},
    servers,
    stage::{style, unique, unless_interrupted},
    summary::{Run, Summary},
    trial::{Performance, Trials},
    workload::Workload,
};

/// Who is compared.
const CONTESTANTS: [Contestant; 2] = [Contestant::Batch4, Contestant::Ours];

/// The figures of a broker.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    pub(crate) broker: Broker,
    pub(crate) payments: usize,
    pub(crate) summary: Summary,
}

/// Runs it; whether everything was proved.
pub(crate) async fn run(args: &AdapterArgs) -> Result<bool> {
    // All of them first: what is missing is said before anything has run.
    let servers = args.brokers().into_iter().map(Broker::server).collect::<Result<Vec<_>>>()?;
    let trials = Trials::new(&servers::postgres()?, &unique()).await?;
    let done = all(args, &servers, &trials).await;
    trials.remove().await;
    let Some((figures, machine)) = done? else { return Ok(false) };
    let text = report::adapters(args, &machine, &figures);
    println!("{text}");
    if let Some(file) = args.report() {
        report::write(&file, Section::Adapters, &text)?;
        eprintln!("written to {}", file.display());
    }
    Ok(true)
}

/// The figures and the machine; `None` when a contestant left something that it must not.
async fn all(args: &AdapterArgs, servers: &[Server], trials: &Trials) -> Result<Option<(Vec<Figures>, String)>> {
    let described: Vec<String> = servers.iter().map(Server::describe).collect();
    // Before anything runs: how busy the machine is with others.
    let machine = trials.machine(described.join(", ")).await?.to_string();
    let mut figures = Vec::new();
    for server in servers {
        let payments = args.messages.unwrap_or_else(|| server.broker.messages());
        let workload = Workload { payments, copies: payments / 10, seed: args.seed };
        let Some(runs) = rounds(args, server, workload, trials).await? else { return Ok(None) };
        figures.push(Figures { broker: server.broker, payments, summary: Summary::of(&runs) });
    }
    Ok(Some((figures, machine)))
}

async fn rounds(args: &AdapterArgs, server: &Server, workload: Workload, trials: &Trials) -> Result<Option<Vec<Run>>> {
    let mut runs = Vec::new();
    for round in 0..args.rounds {
        let mut order = CONTESTANTS;
        order.rotate_left(round % CONTESTANTS.len());
        for contestant in order {
            let name = contestant.name();
            let title = server.broker.title();
            let bar = ProgressBar::no_length().with_style(style(&format!("{title}: filling a queue for {name}")));
            let queue = unless_interrupted(Box::pin(server.filled(&unique(), workload, &bar))).await?;
            bar.set_style(style(&format!("{title}: round {} of {}: {name}", round + 1, args.rounds)));
            bar.enable_steady_tick(Duration::from_millis(500));
            let done = unless_interrupted(Box::pin(perform(server, &queue, contestant, workload, trials))).await;
            queue.remove().await;
            bar.finish_and_clear();
            let performance = done?;
            if !performance.faults.is_empty() {
                eprintln!("{title}: {name} is wrong in round {}: {}", round + 1, performance.faults.join("; "));
                return Ok(None);
            }
            let run = Run { contestant, round, records: workload.records(), measured: performance.measured };
            let (rate, found) = (run.rate(), performance.found);
            eprintln!("{title:<8} {:>2} {name:<8} {rate:>9.0} msg/s   proved: {found}", round + 1);
            runs.push(run);
        }
    }
    Ok(Some(runs))
}

async fn perform(
    server: &Server,
    queue: &Queue,
    contestant: Contestant,
    workload: Workload,
    trials: &Trials,
) -> Result<Performance> {
    let job = (queue.address.clone(), workload.records());
    let (measured, found) = trials.run(contestant, job, server.process(), false, drop).await?;
    // None of these brokers promises an order.
    let found = found.with_lag(queue.left().await?).without_order();
    Ok(Performance::judged(measured, found, &Found::expected(&workload)))
}
