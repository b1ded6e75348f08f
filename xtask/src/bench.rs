//! The benchmark: servers up, a release build, and `bench` with what was asked for.

use anyhow::{Context, Result};
use clap::Args;

use crate::{services, workspace};

/// What is handed on to `bench`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// `--help` shows what it takes; none for the full comparison on Kafka, `adapters` for the one on the other brokers.
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Runs it; true when it has proved what it measured.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let mut started = Vec::new();
    let done = measure(options, &mut started);
    if !started.is_empty() {
        services::down(Some(&started))?;
    }
    done
}

fn measure(options: &Options, started: &mut Vec<&'static str>) -> Result<bool> {
    let adapters = options.arguments.first().is_some_and(|first| first == "adapters");
    let brokers: &[&str] = if adapters { &["rabbitmq", "sqs", "pubsub"] } else { &["kafka"] };
    let names: Vec<String> = ["postgres"].iter().chain(brokers).map(|name| (*name).to_owned()).collect();
    let variables = services::up(&names, started)?;
    let mut command = workspace::cargo();
    command.args(["run", "--quiet", "--release", "-p", "inbox-bench", "--"]).args(&options.arguments).envs(variables);
    Ok(command.status().context("cannot run cargo")?.success())
}
