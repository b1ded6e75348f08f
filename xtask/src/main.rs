//! Developer commands: `cargo xtask services up`, `cargo xtask test`, `cargo xtask tidy`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is a program for a terminal")]

mod bench;
mod faults;
mod services;
mod test;
mod tidy;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand, builder::PossibleValuesParser};

/// Developer commands of this workspace.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// The servers that tests use.
    #[command(subcommand)]
    Services(Services),
    /// Run every check of the project, or some; the last line says how many passed.
    Test(test::Options),
    /// Check the house rules that no compiler knows.
    Tidy,
    /// Measure the inbox beside hand-written loops, on real servers; the arguments are those of `bench`.
    #[command(disable_help_flag = true)]
    Bench(bench::Options),
    /// Do harm to consumers and servers at work, and see what holds; the arguments are those of `faults`.
    #[command(disable_help_flag = true)]
    Faults(faults::Options),
}

#[derive(Debug, Subcommand)]
enum Services {
    /// Start what is not given in INBOX_TEST_* and does not run yet; print the variables for tests.
    ///
    /// Use it as `eval "$(cargo xtask services up)"`, or read target/services/env.sh later.
    Up {
        /// These only; all when none is named.
        #[arg(value_name = "NAME", value_parser = PossibleValuesParser::new(services::names()))]
        names: Vec<String>,
    },
    /// End what `up` started.
    Down,
    /// Say which can be used; fails when one cannot.
    Status,
}

fn main() -> Result<ExitCode> {
    Ok(match Cli::parse().command {
        Task::Services(Services::Up { names }) => {
            print!("{}", services::exports(&services::up(&names, &mut Vec::new())?));
            ExitCode::SUCCESS
        }
        Task::Services(Services::Down) => {
            services::down(None)?;
            ExitCode::SUCCESS
        }
        Task::Services(Services::Status) => success(services::status()?),
        Task::Test(options) => success(test::run(&options)),
        Task::Tidy => success(tidy::report(&tidy::run()?)),
        Task::Bench(options) => success(bench::run(&options)?),
        Task::Faults(options) => ExitCode::from(faults::run(&options)?),
    })
}

fn success(whether: bool) -> ExitCode {
    if whether { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
