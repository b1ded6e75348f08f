//! Runs one command of a step, within its time.

use std::{
    io::{BufRead as _, BufReader, Read, Write as _},
    process::{Command, ExitStatus, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};

use super::counts::Counts;
use crate::process::{kill_tree, shown, wait_until};

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Its status; none when its time was over and it was ended.
    pub(crate) status: Option<ExitStatus>,
    /// The tests that its output reported; none are counted unless that was asked for.
    pub(crate) counts: Counts,
}

/// Runs `command`, its output passed through; with `counting` the test results in it are added up.
pub(crate) fn invoke(command: &mut Command, limit: Duration, counting: bool) -> Result<Ended> {
    command.stdin(Stdio::null());
    if counting {
        command.stdout(Stdio::piped());
    }
    let mut child = command.spawn().with_context(|| format!("cannot run {}", shown(command)))?;
    let reader = child.stdout.take().map(|stdout| thread::spawn(move || pass_through(stdout)));
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
    let counts = match reader.map(thread::JoinHandle::join) {
        None => Counts::default(),
        Some(Ok(counts)) => counts?,
        Some(Err(_)) => bail!("reading the output panicked"),
    };
    Ok(Ended { status, counts })
}

/// Copies lines to this program's output as they come, and adds up the test results in them.
fn pass_through(from: impl Read) -> Result<Counts> {
    let mut counts = Counts::default();
    let mut reader = BufReader::new(from);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 {
        let mut out = std::io::stdout().lock();
        out.write_all(&line)?;
        out.flush()?;
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
        invoke(Command::new("sh").args(["-c", script]), limit, true).unwrap()
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
