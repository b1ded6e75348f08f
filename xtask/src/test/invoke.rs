//! Runs one command of a step, within its time.

use std::{
    io::{BufRead as _, BufReader, Read, Write},
    process::{Command, ExitStatus, Stdio},
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context, Result, bail};

use super::counts::Counts;
use xtask::process::{kill_tree, shown, wait_until};

/// How long the last output of a command that has ended may take to come.
const DRAIN: Duration = Duration::from_secs(20);

/// Where output is copied to.
pub(crate) type Output = Box<dyn Write + Send>;

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Its status; none when its time was over and it was ended.
    pub(crate) status: Option<ExitStatus>,
    /// The tests that its output reported; none are counted unless that was asked for.
    pub(crate) counts: Counts,
}

/// Runs `command`; with `counting` its standard output is copied there and the test results in it are added up.
pub(crate) fn invoke(command: &mut Command, limit: Duration, counting: Option<Output>) -> Result<Ended> {
    command.stdin(Stdio::null());
    if counting.is_some() {
        command.stdout(Stdio::piped());
    }
    let mut child = command.spawn().with_context(|| format!("cannot run {}", shown(command)))?;
    let pair = child.stdout.take().zip(counting);
    let reader = pair.map(|(from, to)| thread::spawn(move || pass_through(from, to)));
    let mut status = None;
    wait_until(limit, || {
        status = child.try_wait().transpose();
        status.is_some()
    });
    let status = status.transpose().context("cannot wait for the command")?;
    if status.is_none() {
        // With what it started: a test's child would hold the pipe open.
        kill_tree(child.id());
        child.wait().context("cannot wait for the command")?;
    }
    let counts = reader.map_or(Ok(Counts::default()), counts_of)?;
    Ok(Ended { status, counts })
}

/// What the reader added up, once it came to the end of the output.
fn counts_of(reader: JoinHandle<Result<Counts>>) -> Result<Counts> {
    if !wait_until(DRAIN, || reader.is_finished()) {
        bail!("the command has ended, but something that it started still holds its output");
    }
    match reader.join() {
        Ok(counts) => counts,
        Err(_) => bail!("reading the output panicked"),
    }
}

/// Copies lines as they come, and adds up the test results in them.
fn pass_through(from: impl Read, mut to: impl Write) -> Result<Counts> {
    let mut counts = Counts::default();
    let mut reader = BufReader::new(from);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 {
        to.write_all(&line)?;
        to.flush()?;
        if let Some(more) = Counts::of_line(String::from_utf8_lossy(&line).trim_end()) {
            counts += more;
        }
        line.clear();
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: &str, limit: Duration) -> Ended {
        invoke(Command::new("sh").args(["-c", script]), limit, Some(Box::new(std::io::sink()))).unwrap()
    }

    #[test]
    fn results_are_added_up() {
        let line = |n| format!("echo 'test result: ok. {n} passed; 1 failed; 2 ignored; 0 measured'");
        let ended = run(&format!("{}; {}; exit 101", line(3), line(4)), Duration::from_secs(60));
        assert_eq!(ended.counts, Counts { passed: 7, failed: 2, skipped: 4 });
        assert_eq!(ended.status.and_then(|status| status.code()), Some(101));
    }

    #[test]
    fn what_takes_too_long_is_ended_with_its_children() {
        let ended = run("sleep 100 & sleep 100", Duration::from_millis(200));
        assert!(ended.status.is_none());
    }
}
