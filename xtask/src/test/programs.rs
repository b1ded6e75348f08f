//! Test programs: built together, run beside each other. Most of them wait for a broker most of the time.

use std::{
    collections::VecDeque,
    io::{self, Write},
    path::PathBuf,
    process::Command,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use cargo_metadata::Message;

use super::{
    counts::Counts,
    invoke::{Output, invoke},
};

/// Targets that run the suite of `inbox-conformance`.
const SUITES: [&str; 2] = ["conformance", "suite"];
/// How many of them run at once: those that run a suite over a broker and wait most of the time. Other tests look at the
/// clock, and run alone.
const BESIDE: (&str, usize) = ("conformance", 2);

/// A test program that was built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Program {
    /// The package's folder and the target (`inbox-sqs conformance`).
    name: String,
    target: String,
    path: PathBuf,
    /// The package's folder, in which cargo would run it.
    folder: PathBuf,
}

/// Builds: `command` is a `cargo test --no-run --message-format=json-render-diagnostics`.
pub(crate) fn build(command: &mut Command, limit: Duration) -> Result<Vec<Program>> {
    let said = Collected::default();
    let ended = invoke(command, limit, Some(said.output()))?;
    match ended.status {
        Some(status) if status.success() => {}
        Some(status) => bail!("the tests do not build: {status}"),
        None => bail!("the tests are not built after {} s", limit.as_secs()),
    }
    let programs = built(&said.bytes())?;
    if programs.is_empty() {
        bail!("no test program was built");
    }
    Ok(programs)
}

/// What those list that run the suite of `inbox-conformance`.
pub(crate) fn suites(programs: &[Program]) -> Result<Vec<String>> {
    let suites = programs.iter().filter(|program| SUITES.iter().any(|target| program.target == **target));
    let list = |program: &Program| {
        let output = Command::new(&program.path).arg("--list").current_dir(&program.folder).output();
        let output = output.with_context(|| format!("cannot run {}", program.name))?;
        if !output.status.success() {
            bail!("{} --list ended with {}", program.name, output.status);
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    suites.map(list).collect()
}

/// The programs that cargo's messages name, those first that take longest: a suite on a broker, then tests of an adapter.
fn built(messages: &[u8]) -> Result<Vec<Program>> {
    let mut programs = Vec::new();
    for message in Message::parse_stream(messages) {
        let Message::CompilerArtifact(artifact) = message.context("cargo said something else than its messages")?
        else {
            continue;
        };
        let (true, Some(path)) = (artifact.profile.test, artifact.executable) else { continue };
        let folder = artifact.manifest_path.parent().map(|folder| PathBuf::from(folder.as_std_path()));
        let folder = folder.context("a manifest is in no folder")?;
        let package = folder.file_name().context("a package is in no folder")?.to_string_lossy();
        let name = format!("{package} {}", artifact.target.name);
        programs.push(Program { name, target: artifact.target.name, path: path.into_std_path_buf(), folder });
    }
    programs.sort_by_key(|program| match program.target.as_str() {
        "conformance" => 0,
        "it" | "suite" => 1,
        _ => 2,
    });
    Ok(programs)
}

/// Runs them all, whatever fails, and gives `show` what each said when it has ended; the numbers of all, and what failed.
pub(crate) fn run(
    programs: Vec<Program>,
    variables: &[(&'static str, String)],
    limit: Duration,
    show: impl Fn(&str, &[u8]) + Sync,
) -> (Counts, Vec<String>) {
    let (beside, alone): (Vec<_>, Vec<_>) = programs.into_iter().partition(|program| program.target == BESIDE.0);
    let (mut counts, mut failed) = run_beside(beside, BESIDE.1, variables, limit, &show);
    let (more, others) = run_beside(alone, 1, variables, limit, &show);
    counts += more;
    failed.extend(others);
    (counts, failed)
}

fn run_beside(
    programs: Vec<Program>,
    at_once: usize,
    variables: &[(&'static str, String)],
    limit: Duration,
    show: &(impl Fn(&str, &[u8]) + Sync),
) -> (Counts, Vec<String>) {
    let queue = Mutex::new(VecDeque::from(programs));
    let done = Mutex::new((Counts::default(), Vec::new()));
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while let Some(program) = next(&queue) {
                    let begun = Instant::now();
                    let said = Collected::default();
                    let (counts, note) = run_one(&program, variables, limit, &said);
                    show(&format!("{} ({:.1} s)", program.name, begun.elapsed().as_secs_f64()), &said.bytes());
                    let mut done = lock(&done);
                    done.0 += counts;
                    done.1.extend(note.map(|note| format!("{}: {note}", program.name)));
                }
            });
        }
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn next(queue: &Mutex<VecDeque<Program>>) -> Option<Program> {
    lock(queue).pop_front()
}

/// Runs one; why it failed, if it did.
fn run_one(
    program: &Program,
    variables: &[(&'static str, String)],
    limit: Duration,
    said: &Collected,
) -> (Counts, Option<String>) {
    eprintln!("     Running {}", program.name);
    let mut command = Command::new(&program.path);
    command.current_dir(&program.folder).envs(variables.iter().map(|(name, url)| (name, url)));
    let (mut counts, note) = match invoke(&mut command, limit, Some(said.output())) {
        Err(error) => (Counts::default(), Some(format!("{error:#}"))),
        Ok(ended) => match ended.status {
            Some(status) if status.success() => (ended.counts, None),
            Some(status) => (ended.counts, Some(status.to_string())),
            None => (ended.counts, Some(format!("ended after its limit of {} s", limit.as_secs()))),
        },
    };
    if note.is_some() && counts.failed == 0 {
        // It died before it could count.
        counts += Counts::one(false);
    }
    (counts, note)
}

/// What a program said.
#[derive(Debug, Clone, Default)]
struct Collected(Arc<Mutex<Vec<u8>>>);

impl Collected {
    fn output(&self) -> Output {
        Box::new(self.clone())
    }

    fn bytes(&self) -> Vec<u8> {
        lock(&self.0).clone()
    }
}

impl Write for Collected {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        lock(&self.0).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(name: &str, script: &str) -> Program {
        use std::os::unix::fs::PermissionsExt;
        let folder = std::env::temp_dir().join(format!("xtask-programs-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        Program { name: name.to_owned(), target: name.to_owned(), path, folder }
    }

    #[test]
    fn all_run_and_those_that_fail_are_named() {
        let result = |n| format!("echo 'test result: ok. {n} passed; 0 failed; 0 ignored; 0 measured'");
        let programs = vec![
            script("good", &result(3)),
            script("dies", &format!("{}; exit 3", result(2))),
            script("hangs", "sleep 100"),
            script("asks", &format!("test \"$INBOX_TEST_X\" = url || exit 1; {}", result(4))),
        ];
        let shown = Mutex::new(Vec::new());
        let variables = [("INBOX_TEST_X", "url".to_owned())];
        let (counts, failed) = run(programs, &variables, Duration::from_secs(3), |name, said| {
            lock(&shown).push(format!("{name}{}", String::from_utf8_lossy(said)));
        });
        assert_eq!(lock(&shown).len(), 4, "{shown:?}");
        assert_eq!(counts, Counts { passed: 9, failed: 2, skipped: 0 });
        assert_eq!(failed.len(), 2, "{failed:?}");
        assert!(failed.iter().any(|note| note.starts_with("dies: exit status: 3")), "{failed:?}");
        assert!(failed.iter().any(|note| note.starts_with("hangs: ended after its limit")), "{failed:?}");
    }
}
