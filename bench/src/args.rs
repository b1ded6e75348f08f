//! The command line.

use std::path::PathBuf;

use clap::Parser;

use crate::contestant::Contestant;

/// The size of the run that goes into the report.
pub(crate) const MESSAGES: usize = 100_000;
/// How many rounds it has.
pub(crate) const ROUNDS: usize = 5;

/// What the inbox costs, beside hand-written consumer loops.
///
/// Needs INBOX_TEST_KAFKA (kafka://host:port) and INBOX_TEST_POSTGRES (postgres://…, a role that may create databases
/// and CHECKPOINT). Exit status 0: everything was proved. 1: a contestant lost or repeated something, and which.
#[derive(Clone, Debug, Parser)]
#[command(name = "bench")]
pub(crate) struct Args {
    /// How many distinct payments there are; a tenth of them is sent twice.
    #[arg(long, default_value_t = MESSAGES)]
    pub(crate) messages: usize,
    /// How many times each contestant runs.
    #[arg(long, default_value_t = ROUNDS)]
    pub(crate) rounds: usize,
    /// These contestants only; may be given several times.
    #[arg(long, value_name = "CONTESTANT", value_enum)]
    pub(crate) only: Vec<Contestant>,
    /// Seed of the messages.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Instead of the comparison: this many messages wait, and the inbox works them off while its memory is watched.
    #[arg(long, value_name = "MESSAGES", conflicts_with_all = ["messages", "rounds", "only"])]
    pub(crate) backlog: Option<usize>,
    /// Where the report goes. A run that is smaller than the default writes none unless this is given.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Be a contestant: read a job from the standard input.
    #[arg(long, hide = true)]
    pub(crate) contestant: bool,
}

impl Args {
    /// Where the report goes, if anywhere.
    pub(crate) fn report(&self) -> Option<PathBuf> {
        let full = match self.backlog {
            Some(messages) => messages >= 1_000_000,
            None => self.messages >= MESSAGES && self.rounds >= ROUNDS && self.only.is_empty(),
        };
        self.report.clone().or_else(|| full.then(|| PathBuf::from("docs/BENCHMARKS.md")))
    }

    /// The command as a person would type it.
    pub(crate) fn shown() -> String {
        let words: Vec<String> = std::env::args().skip(1).collect();
        ["cargo xtask bench".to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" ")
    }
}
