//! Programs: built together by cargo, which says where each is; tests are run one after the other.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    path::PathBuf,
    process::Command,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use cargo_metadata::{Artifact, Message};

use super::{
    counts::Counts,
    invoke::{Output, invoke},
};

/// How cargo is to say what it has built.
pub(crate) const MESSAGES: &str = "--message-format=json-render-diagnostics";
/// Targets that run the suite of `inbox-conformance`.
const SUITES: [&str; 2] = ["conformance", "suite"];
/// Tests of an adapter or a store, and how many of them run at once: most wait for a server most of the time, and all look
/// at the clock, so not as many as of a suite.
const BESIDE: (&str, &str) = ("it", "--test-threads=4");

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

impl Program {
    /// As cargo would run it: what it reads of its package is not the package of `xtask`, whose variables we have.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command
    }
}

/// Builds test programs: `command` is a `cargo test --no-run` with [`MESSAGES`].
pub(crate) fn build(command: &mut Command, limit: Duration) -> Result<Vec<Program>> {
    let programs = tests(executables(command, limit)?)?;
    if programs.is_empty() {
        bail!("no test program was built");
    }
    Ok(programs)
}

/// Builds programs, and says where each is: `command` is a `cargo build` with [`MESSAGES`].
pub(crate) fn build_bins(command: &mut Command, limit: Duration) -> Result<BTreeMap<String, PathBuf>> {
    Ok(bins(executables(command, limit)?))
}

/// The programs among them, by name; a program's own unit tests are another executable of that name.
fn bins(executables: Vec<(Artifact, PathBuf)>) -> BTreeMap<String, PathBuf> {
    let bins = executables.into_iter().filter(|(artifact, _)| artifact.target.is_bin() && !artifact.profile.test);
    bins.map(|(artifact, path)| (artifact.target.name, path)).collect()
}

/// What cargo has built that can be run.
fn executables(command: &mut Command, limit: Duration) -> Result<Vec<(Artifact, PathBuf)>> {
    let said = Collected::default();
    let ended = invoke(command, limit, Some(said.output()))?;
    match ended.status {
        Some(status) if status.success() => named(&said.bytes()),
        Some(status) => bail!("it does not build: {status}"),
        None => bail!("it is not built after {} s", limit.as_secs()),
    }
}

fn named(messages: &[u8]) -> Result<Vec<(Artifact, PathBuf)>> {
    let mut executables = Vec::new();
    for message in Message::parse_stream(messages) {
        let Message::CompilerArtifact(artifact) = message.context("cargo said something else than its messages")?
        else {
            continue;
        };
        if let Some(path) = artifact.executable.clone() {
            executables.push((artifact, path.into_std_path_buf()));
        }
    }
    Ok(executables)
}

/// What those list that run the suite of `inbox-conformance`.
pub(crate) fn suites(programs: &[Program]) -> Result<Vec<String>> {
    let suites = programs.iter().filter(|program| SUITES.iter().any(|target| program.target == **target));
    let list = |program: &Program| {
        let output = program.command().arg("--list").output();
        let output = output.with_context(|| format!("cannot run {}", program.name))?;
        if !output.status.success() {
            bail!("{} --list ended with {}", program.name, output.status);
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    suites.map(list).collect()
}

/// The test programs among them, those first that take longest: a suite on a broker, then tests of an adapter.
fn tests(executables: Vec<(Artifact, PathBuf)>) -> Result<Vec<Program>> {
    let mut programs = Vec::new();
    for (artifact, path) in executables.into_iter().filter(|(artifact, _)| artifact.profile.test) {
        let folder = artifact.manifest_path.parent().map(|folder| PathBuf::from(folder.as_std_path()));
        let folder = folder.context("a manifest is in no folder")?;
        let package = folder.file_name().context("a package is in no folder")?.to_string_lossy();
        let name = format!("{package} {}", artifact.target.name);
        programs.push(Program { name, target: artifact.target.name, path, folder });
    }
    programs.sort_by_key(|program| match program.target.as_str() {
        "conformance" => 0,
        "it" | "suite" => 1,
        _ => 2,
    });
    Ok(programs)
}

/// Runs them all one after the other, each after `before`, whatever fails, and gives `show` what each said when it has
/// ended; the numbers of all, and what failed. A suite runs many cases at once by itself, and other tests look at the clock.
pub(crate) fn run(
    programs: &[Program],
    variables: &[(&'static str, String)],
    limit: Duration,
    before: impl Fn() -> Result<()>,
    show: impl Fn(&str, &[u8]),
) -> (Counts, Vec<String>) {
    let (mut counts, mut failed) = (Counts::default(), Vec::new());
    for program in programs {
        let begun = Instant::now();
        let said = Collected::default();
        let (more, note) = match before() {
            Ok(()) => run_one(program, variables, limit, &said),
            Err(error) => (Counts::one(false), Some(format!("{error:#}"))),
        };
        show(&format!("{} ({:.1} s)", program.name, begun.elapsed().as_secs_f64()), &said.bytes());
        counts += more;
        failed.extend(note.map(|note| format!("{}: {note}", program.name)));
    }
    (counts, failed)
}

/// Runs one; why it failed, if it did.
fn run_one(
    program: &Program,
    variables: &[(&'static str, String)],
    limit: Duration,
    said: &Collected,
) -> (Counts, Option<String>) {
    eprintln!("     Running {}", program.name);
    let mut command = program.command();
    command.args((program.target == BESIDE.0).then_some(BESIDE.1));
    command.envs(variables.iter().map(|(name, url)| (name, url)));
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
    use std::{cell::RefCell, path::Path};

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
    fn a_program_and_its_tests_are_told_apart() {
        let message = |test: bool, path: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"path+file:///here/faults#0.1.0","features":[],"fresh":true,
                "manifest_path":"/here/faults/Cargo.toml","filenames":["{path}"],"executable":"{path}","target":{{
                "name":"faults","kind":["bin"],"crate_types":["bin"],"src_path":"/here/main.rs"}},"profile":{{
                "opt_level":"0","debug_assertions":true,"overflow_checks":true,"test":{test}}}}}"#
            )
            .replace('\n', "")
        };
        let said = format!("{}\n{}\n", message(false, "/here/faults"), message(true, "/here/faults-1234"));
        let all = named(said.as_bytes()).unwrap();
        assert_eq!(bins(all.clone()), BTreeMap::from([("faults".to_owned(), PathBuf::from("/here/faults"))]));
        let tests = tests(all).unwrap();
        assert_eq!(tests.iter().map(|test| test.path.as_path()).collect::<Vec<_>>(), [Path::new("/here/faults-1234")]);
        assert_eq!(tests[0].name, "faults faults");
    }

    #[test]
    fn all_run_and_those_that_fail_are_named() {
        let result = |n| format!("echo 'test result: ok. {n} passed; 0 failed; 0 ignored; 0 measured'");
        let programs = vec![
            script("good", &result(3)),
            script("dies", &format!("{}; exit 3", result(2))),
            script("hangs", "sleep 100"),
            script("asks", &format!("test \"$INBOX_TEST_X\" = url || exit 1; {}", result(4))),
            script("looks", &format!("test \"$CARGO_MANIFEST_DIR\" = \"$PWD\" || exit 1; {}", result(5))),
        ];
        let shown = RefCell::new(Vec::new());
        let variables = [("INBOX_TEST_X", "url".to_owned())];
        let (counts, failed) = run(
            &programs,
            &variables,
            Duration::from_secs(3),
            || Ok(()),
            |name, said| {
                shown.borrow_mut().push(format!("{name}{}", String::from_utf8_lossy(said)));
            },
        );
        assert_eq!(shown.borrow().len(), 5, "{shown:?}");
        assert_eq!(counts, Counts { passed: 14, failed: 2, skipped: 0 });
        assert_eq!(failed.len(), 2, "{failed:?}");
        assert!(failed.iter().any(|note| note.starts_with("dies: exit status: 3")), "{failed:?}");
        assert!(failed.iter().any(|note| note.starts_with("hangs: ended after its limit")), "{failed:?}");
    }
}
