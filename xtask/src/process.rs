//! Child processes: running, watching and ending them.

use std::{
    env,
    ffi::OsStr,
    fs::{self, File},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

/// How many lines of a log go into an error.
const TAIL_LINES: usize = 30;

/// Runs `command` to its end with its output in `log`; a failure carries the end of that log.
///
/// # Errors
/// When it cannot be run, or ends with another status than 0.
pub fn run_logged(command: &mut Command, log: &Path) -> Result<()> {
    let file = File::options()
        .create(true)
        .append(true)
        .open(log)
        .with_context(|| format!("cannot write {}", log.display()))?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    let status = command.status().with_context(|| format!("cannot run {}", shown(command)))?;
    if !status.success() {
        bail!("{} ended with {status}\n{}", shown(command), tail(log));
    }
    Ok(())
}

/// The command as a person would type it.
pub fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

/// The last lines of a log, under a heading that names it.
pub fn tail(log: &Path) -> String {
    match fs::read(log) {
        Err(error) => format!("(no log at {}: {error})", log.display()),
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            let lines: Vec<&str> = text.lines().collect();
            let from = lines.len().saturating_sub(TAIL_LINES);
            format!("--- the end of {}\n{}\n---", log.display(), lines[from..].join("\n"))
        }
    }
}

/// Where a program of this name is on the `PATH`.
pub fn on_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(program)).find(|candidate| candidate.is_file())
}

/// Whether this process runs as root.
pub fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}

/// Whether process `pid` runs and its command line contains `mark`: a pid alone may have been given to another since.
pub fn runs(pid: u32, mark: &str) -> bool {
    let Ok(line) = fs::read(format!("/proc/{pid}/cmdline")) else { return false };
    String::from_utf8_lossy(&line).replace('\0', " ").contains(mark)
}

/// Whether a process that was there has ended and let go of its files and ports.
///
/// Not the same as not running: a process that is ending has no command line any more, but may still hold its port.
pub fn gone(pid: u32, mark: &str) -> bool {
    match fs::read(format!("/proc/{pid}/cmdline")) {
        Err(_) => true,
        Ok(line) if line.is_empty() => {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
            stat.map_or(true, |stat| matches!(field_of_stat(&stat, 0), None | Some("Z" | "X")))
        }
        Ok(_) => !runs(pid, mark),
    }
}

/// Sends a signal, named as `kill` names it.
///
/// # Errors
/// When there is no such process, or it is somebody else's.
pub fn signal(pid: u32, name: &str) -> Result<()> {
    // Through the shell, whose `kill` is built in: there may be no such program, and a system call would be unsafe.
    let status = Command::new("sh")
        .args(["-c", "kill -s \"$1\" \"$2\"", "sh", name, &pid.to_string()])
        .stderr(Stdio::null())
        .status()
        .context("cannot run sh")?;
    if !status.success() {
        bail!("cannot send {name} to process {pid}");
    }
    Ok(())
}

/// Ends a process and all that it started, now.
pub fn kill_tree(pid: u32) {
    for process in descendants(pid, &parents()) {
        // One that has ended meanwhile needs no signal.
        drop(signal(process, "KILL"));
    }
}

/// Every process with its parent.
fn parents() -> Vec<(u32, u32)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| Some((pid, parent_of_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?)))
        .collect()
}

/// The parent in a line of `/proc/PID/stat`.
fn parent_of_stat(stat: &str) -> Option<u32> {
    field_of_stat(stat, 1)?.parse().ok()
}

/// A field after the name in a line of `/proc/PID/stat`; the name is in brackets and may hold spaces and brackets.
fn field_of_stat(stat: &str, field: usize) -> Option<&str> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(field)
}

/// `root` and all below it, parents first.
fn descendants(root: u32, parents: &[(u32, u32)]) -> Vec<u32> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found
}

/// Asks again and again until `condition` holds; false when it does not within `limit`.
pub fn wait_until(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    while !condition() {
        if started.elapsed() > limit {
            return false;
        }
        pause();
    }
    true
}

/// The wait between two looks at a process.
#[allow(clippy::disallowed_methods, reason = "there is no runtime here whose worker it could block")]
pub fn pause() {
    std::thread::sleep(Duration::from_millis(50));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_pid_and_command_line() {
        let mut child = Command::new("sleep").arg("60.25").spawn().unwrap();
        assert!(wait_until(Duration::from_secs(5), || runs(child.id(), "sleep 60.25")));
        assert!(!runs(child.id(), "sleep 60.26"));
        assert!(!gone(child.id(), "sleep 60.25"));
        assert!(gone(child.id(), "sleep 60.26"));
        kill_tree(child.id());
        // Nobody has waited for it yet.
        assert!(wait_until(Duration::from_secs(5), || gone(child.id(), "sleep 60.25")));
        assert!(!child.wait().unwrap().success());
        assert!(!runs(child.id(), "sleep"));
    }

    #[test]
    fn the_parent_is_found_after_an_odd_name() {
        assert_eq!(parent_of_stat("12 (a) b (c)) S 7 12 12 0"), Some(7));
        assert_eq!(parent_of_stat("nonsense"), None);
    }

    #[test]
    fn descendants_are_found_through_others() {
        assert_eq!(descendants(1, &[(4, 2), (2, 1), (9, 8), (3, 1)]), [1, 2, 3, 4]);
    }

    #[test]
    fn a_failed_command_shows_the_end_of_its_log() {
        let log = env::temp_dir().join(format!("xtask-log-{}", std::process::id()));
        let failure = run_logged(Command::new("sh").args(["-c", "echo the reason; exit 3"]), &log).unwrap_err();
        fs::remove_file(&log).unwrap();
        assert!(failure.to_string().contains("the reason"), "{failure}");
    }
}
