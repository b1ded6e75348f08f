//! A long backlog: many messages wait, the inbox works them off, and its memory stays bounded.

use anyhow::{Context as _, Result};
use indicatif::ProgressBar;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::{
    args::Args,
    broker::Observer,
    contestant::{Contestant, IN_FLIGHT_BYTES, Line, Measured, Sample},
    report::{self, Section},
    stage::{Stage, style, unless_interrupted},
    workload::Workload,
};

/// What the process may need besides its idle memory and what it holds in flight.
const MARGIN: u64 = 60_000_000;
/// How many seconds the lag may stand still: offsets are committed once a second.
const STILL: usize = 4;

/// The inbox at a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) sample: Sample,
    /// What its group has not committed.
    pub(crate) lag: i64,
}

/// What was seen.
#[derive(Clone, Debug)]
pub(crate) struct Backlog {
    pub(crate) records: usize,
    /// Resident memory before the first message, in bytes.
    pub(crate) idle: u64,
    pub(crate) measured: Measured,
    pub(crate) moments: Vec<Moment>,
}

impl Backlog {
    /// The most memory that is right.
    pub(crate) fn bound(&self) -> u64 {
        self.idle + IN_FLIGHT_BYTES + MARGIN
    }

    /// Whether memory stayed within it.
    pub(crate) fn is_bounded(&self) -> bool {
        self.measured.peak <= self.bound()
    }

    /// Whether the lag never rose and never stood still for long.
    pub(crate) fn falls(&self) -> bool {
        let lags: Vec<i64> = self.moments.iter().filter(|now| now.sample.seconds > 0.0).map(|now| now.lag).collect();
        let rises = lags.windows(2).any(|pair| pair[1] > pair[0]);
        let stands = lags.windows(STILL).any(|some| some[0] > 0 && some.iter().all(|lag| *lag == some[0]));
        !lags.is_empty() && !rises && !stands
    }
}

/// Runs it; whether everything was proved.
pub(crate) async fn run(args: &Args, messages: usize) -> Result<bool> {
    let workload = Workload { payments: messages, copies: 0, seed: args.seed };
    let mut stage = Stage::set(workload).await?;
    let done = unless_interrupted(work_off(workload, &mut stage)).await;
    stage.strike().await;
    let Some((backlog, machine)) = done? else { return Ok(false) };
    let text = report::backlog(args, &machine, &backlog);
    println!("{text}");
    if let Some(file) = args.report() {
        report::write(&file, Section::Backlog, &text)?;
        eprintln!("written to {}", file.display());
    }
    Ok(true)
}

async fn work_off(workload: Workload, stage: &mut Stage) -> Result<Option<(Backlog, String)>> {
    let machine = stage.machine().await?.to_string();
    let records = workload.records();
    let group = stage.topic.group("backlog");
    let observer = stage.topic.observer();
    let (said, lines) = unbounded_channel();
    let performance = stage.perform(Contestant::Ours, group.clone(), true, move |line| drop(said.send(line)));
    let (performance, watched) = tokio::join!(performance, watch(lines, &observer, &group, records));
    let (performance, (idle, moments)) = (performance?, watched?);
    if !performance.faults.is_empty() {
        eprintln!("the inbox is wrong: {}", performance.faults.join("; "));
        return Ok(None);
    }
    eprintln!("proved: {}", performance.found);
    let idle = idle.context("the inbox did not say how large it is when idle")?;
    Ok(Some((Backlog { records, idle, measured: performance.measured, moments }, machine)))
}

/// Puts the broker's word beside each sample, until the inbox is done.
async fn watch(
    mut lines: UnboundedReceiver<Line>,
    topic: &Observer,
    group: &str,
    records: usize,
) -> Result<(Option<u64>, Vec<Moment>)> {
    let bar = ProgressBar::new(records as u64).with_style(style("working off"));
    let (mut idle, mut moments) = (None, Vec::new());
    while let Some(line) = lines.recv().await {
        match line {
            Line::Idle(resident) => idle = idle.or(Some(resident)),
            Line::Sample(sample) => {
                let lag = topic.lag(group).await?;
                bar.set_position(records as u64 - lag.try_into().unwrap_or(0).min(records as u64));
                moments.push(Moment { sample, lag });
            }
            Line::Measured(_) => {}
        }
    }
    bar.finish_and_clear();
    Ok((idle, moments))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::Usage;

    fn backlog(lags: &[i64], peak: u64) -> Backlog {
        let moment = |(at, lag): (usize, &i64)| Moment {
            #[allow(clippy::cast_precision_loss, reason = "a handful")]
            sample: Sample { seconds: at as f64 + 1.0, resident: 0, in_flight: 0 },
            lag: *lag,
        };
        let moments = lags.iter().enumerate().map(moment).collect();
        let measured = Measured { seconds: 1.0, transactions: 1, usage: Usage::default(), peak };
        Backlog { records: 100, idle: 10_000_000, measured, moments }
    }

    #[test]
    fn a_lag_that_rises_or_stands_is_seen() {
        assert!(backlog(&[100, 80, 80, 80, 40, 0, 0, 0, 0, 0], 0).falls());
        assert!(!backlog(&[100, 80, 81, 0], 0).falls());
        assert!(!backlog(&[100, 80, 80, 80, 80, 0], 0).falls());
        assert!(!backlog(&[], 0).falls());
    }

    #[test]
    fn memory_above_the_bound_is_seen() {
        let bound = backlog(&[], 0).bound();
        assert_eq!(bound, 10_000_000 + 67_108_864 + 60_000_000);
        assert!(backlog(&[], bound).is_bounded());
        assert!(!backlog(&[], bound + 1).is_bounded());
    }
}
