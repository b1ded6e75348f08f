//! The fault harness: what it needs installed, and `faults` with what was asked for. It starts servers of its own.

use anyhow::{Context, Result};
use clap::Args;

use crate::{services, workspace};

/// What is handed on to `faults`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// `--help` shows what it takes; none for every case once.
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Runs it; its exit status.
pub(crate) fn run(options: &Options) -> Result<u8> {
    let mut needed = vec!["postgres", "kafka"];
    // Its own node needs what the service needs.
    if options.arguments.iter().any(|argument| argument.ends_with("rabbitmq")) {
        needed.push("rabbitmq");
    }
    services::install_for(&needed)?;
    let mut command = workspace::cargo();
    command.args(["run", "--quiet", "-p", "inbox-faults", "--"]).args(&options.arguments);
    let status = command.status().context("cannot run cargo")?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(3))
}
