//! The command line.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum as _};

use crate::{contestant::Contestant, queue::Broker};

/// The size of the run that goes into the report.
pub(crate) const MESSAGES: usize = 100_000;
/// How many rounds it has.
pub(crate) const ROUNDS: usize = 5;
/// The file of the report.
const REPORT: &str = "docs/BENCHMARKS.md";
/// Where chance begins.
const SEED: u64 = 1;

/// What the inbox costs, beside hand-written consumer loops.
///
/// Needs INBOX_TEST_KAFKA (kafka://host:port) and INBOX_TEST_POSTGRES (postgres://…, a role that may create databases
/// and CHECKPOINT). Exit status 0: everything was proved. 1: a contestant lost or repeated something, and which.
#[derive(Clone, Debug, Parser)]
#[command(name = "bench", args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    /// Something else than Kafka.
    #[command(subcommand)]
    pub(crate) mode: Option<Mode>,
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
    #[arg(long, default_value_t = SEED)]
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

/// What else is measured.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Mode {
    /// The adapters for RabbitMQ, SQS and Pub/Sub, each beside an ideal hand-written loop on the same SDK.
    ///
    /// Needs INBOX_TEST_RABBITMQ, INBOX_TEST_SQS, INBOX_TEST_PUBSUB, as far as they are measured, and INBOX_TEST_POSTGRES.
    Adapters(AdapterArgs),
}

#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct AdapterArgs {
    /// How many distinct payments each run has; a tenth of them is sent twice. By default what the broker's server is good
    /// for.
    #[arg(long)]
    pub(crate) messages: Option<usize>,
    /// How many times each contestant runs on each broker.
    #[arg(long, default_value_t = ROUNDS)]
    pub(crate) rounds: usize,
    /// This broker only; may be given several times.
    #[arg(long = "broker", value_name = "BROKER", value_enum)]
    brokers: Vec<Broker>,
    /// Seed of the messages.
    #[arg(long, default_value_t = SEED)]
    pub(crate) seed: u64,
    /// Where the report goes. A run that is smaller than the default writes none unless this is given.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

impl AdapterArgs {
    /// Which brokers are measured.
    pub(crate) fn brokers(&self) -> Vec<Broker> {
        if self.brokers.is_empty() { Broker::value_variants().to_vec() } else { self.brokers.clone() }
    }

    /// Where the report goes, if anywhere.
    pub(crate) fn report(&self) -> Option<PathBuf> {
        let full = self.messages.is_none() && self.rounds >= ROUNDS && self.brokers.is_empty();
        self.report.clone().or_else(|| full.then(|| PathBuf::from(REPORT)))
    }

    /// As [`Args::shown`].
    pub(crate) fn shown(&self) -> String {
        let mut words = vec!["cargo xtask bench adapters".to_owned()];
        words.extend(self.messages.map(|messages| format!("--messages {messages}")));
        words.extend((self.rounds != ROUNDS).then(|| format!("--rounds {}", self.rounds)));
        words.extend(self.brokers.iter().map(|broker| format!("--broker {}", broker.name())));
        words.extend((self.seed != SEED).then(|| format!("--seed {}", self.seed)));
        words.join(" ")
    }
}

impl Args {
    /// Where the report goes, if anywhere.
    pub(crate) fn report(&self) -> Option<PathBuf> {
        let full = match self.backlog {
            Some(messages) => messages >= 1_000_000,
            None => self.messages >= MESSAGES && self.rounds >= ROUNDS && self.only.is_empty(),
        };
        self.report.clone().or_else(|| full.then(|| PathBuf::from(REPORT)))
    }

    /// The command that measures this again, as a person would type it: without the place of the report, which is a
    /// matter of one machine.
    pub(crate) fn shown(&self) -> String {
        let mut words = vec!["cargo xtask bench".to_owned()];
        if let Some(messages) = self.backlog {
            words.push(format!("--backlog {messages}"));
        }
        if self.messages != MESSAGES {
            words.push(format!("--messages {}", self.messages));
        }
        if self.rounds != ROUNDS {
            words.push(format!("--rounds {}", self.rounds));
        }
        words.extend(self.only.iter().map(|contestant| format!("--only {}", contestant.name())));
        if self.seed != SEED {
            words.push(format!("--seed {}", self.seed));
        }
        words.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(words: &[&str]) -> String {
        Args::try_parse_from(["bench"].iter().chain(words)).unwrap().shown()
    }

    #[test]
    fn the_command_for_adapters_is_shown_without_paths() {
        let shown = |words: &[&str]| match Args::try_parse_from(["bench", "adapters"].iter().chain(words)).unwrap().mode
        {
            Some(Mode::Adapters(args)) => (args.shown(), args.report().is_some()),
            None => panic!("the mode is adapters"),
        };
        assert_eq!(shown(&[]), ("cargo xtask bench adapters".to_owned(), true));
        let (shown, reports) = shown(&["--broker", "sqs", "--rounds=1", "--messages", "9"]);
        assert_eq!(shown, "cargo xtask bench adapters --messages 9 --rounds 1 --broker sqs");
        assert!(!reports);
    }

    #[test]
    fn the_command_is_shown_without_paths() {
        assert_eq!(shown(&[]), "cargo xtask bench");
        assert_eq!(shown(&["--report", "/home/me/x.md", "--rounds=2"]), "cargo xtask bench --rounds 2");
        assert_eq!(
            shown(&["--messages", "10", "--only", "raw", "--only", "ours-1", "--seed", "7"]),
            "cargo xtask bench --messages 10 --only raw --only ours-1 --seed 7"
        );
        assert_eq!(shown(&["--backlog", "1000000"]), "cargo xtask bench --backlog 1000000");
    }
}
