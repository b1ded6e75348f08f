//! A contestant's process, from this side.

use std::{env, process::Stdio, time::Duration};

use anyhow::{Context as _, Result, bail};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::Command,
    time::timeout,
};

use crate::contestant::{Job, Line, Measured};

/// When a contestant is ended and has failed.
const LIMIT: Duration = Duration::from_secs(30 * 60);

/// Runs a contestant; `each` sees what it says on its way.
pub(crate) async fn run(job: &Job, each: impl FnMut(Line)) -> Result<Measured> {
    let name = job.contestant.name();
    match timeout(LIMIT, talk(job, each)).await {
        Ok(measured) => measured.with_context(|| format!("{name} failed")),
        Err(_) => bail!("{name} did not end within {LIMIT:?}"),
    }
}

async fn talk(job: &Job, mut each: impl FnMut(Line)) -> Result<Measured> {
    let program = env::current_exe().context("this program does not know where it is")?;
    let mut child = Command::new(program)
        .arg("--contestant")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("the process cannot be started")?;
    let mut stdin = child.stdin.take().context("the process has no input")?;
    stdin.write_all(&serde_json::to_vec(job)?).await?;
    drop(stdin);
    let mut lines = BufReader::new(child.stdout.take().context("the process has no output")?).lines();
    let mut measured = None;
    while let Some(line) = lines.next_line().await? {
        match serde_json::from_str(&line).with_context(|| format!("the process says {line:?}"))? {
            Line::Measured(line) => measured = Some(line),
            line @ (Line::Idle(_) | Line::Sample(_)) => each(line),
        }
    }
    let status = child.wait().await?;
    if !status.success() {
        bail!("it ended with {status}; what it says is above");
    }
    measured.context("it has measured nothing")
}
