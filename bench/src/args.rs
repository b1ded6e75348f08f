//! The command line.

use std::path::PathBuf;

use clap::Parser;

use crate::contestant::Contestant;

/// The size of the run that goes into the report.
pub(crate) const MESSAGES: usize = 100_000;
/// How many rounds it has.
pub(crate) const ROUNDS: usize = 5;
/// Where chance begins.
const SEED: u64 = 1;

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

impl Args {
    /// Where the report goes, if anywhere.
    pub(crate) fn report(&self) -> Option<PathBuf> {
        let full = match self.backlog {
            Some(messages) => messages >= 1_000_000,
            None => self.messages >= MESSAGES && self.rounds >= ROUNDS && self.only.is_empty(),
        };
        self.report.clone().or_else(|| full.then(|| PathBuf::from("docs/BENCHMARKS.md")))
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
