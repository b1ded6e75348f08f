//! House rules that no compiler knows.

mod checks;
mod links;

use std::{fs, process::Command};

use anyhow::{Context, Result, bail};

use self::checks::SourceFile;
use xtask::process::shown;

use crate::workspace;

/// What came of one check.
#[derive(Debug)]
pub(crate) struct Verdict {
    /// The rule, as a sentence.
    pub(crate) rule: &'static str,
    /// Where it is broken.
    pub(crate) faults: Vec<String>,
}

/// A package whose dependencies stay free of some, with the arguments that choose its features.
const TREES: &[(&str, &[&str], &[&str])] = &[
    ("inbox-core", &["--all-features"], &["sqlx", "rdkafka", "tokio-postgres", "aws", "google", "lapin", "redis"]),
    // With the features of a bare machine.
    ("inbox-examples", &[], &["rdkafka", "aws", "google"]),
    ("inbox-kafka", &["--all-features"], &["sqlx"]),
    ("inbox-postgres", &["--all-features"], &["rdkafka"]),
    ("inbox-sqlite", &["--all-features"], &["rdkafka"]),
];

/// Runs every check.
pub(crate) fn run() -> Result<Vec<Verdict>> {
    let paths = paths()?;
    let files: Vec<SourceFile> = paths.iter().filter_map(|path| read(path)).collect();
    let suite: Vec<SourceFile> =
        files.iter().filter(|file| file.path.starts_with("inbox-conformance/src/")).cloned().collect();
    for warning in checks::files_are_getting_long(&files) {
        eprintln!("warning: {warning}");
    }
    // A missing file is an empty one: each check says what it lacks.
    let text = |path: &str| files.iter().find(|file| file.path == path).map_or("", |file| file.text.as_str());
    let rule = |rule, faults| Verdict { rule, faults };
    Ok(vec![
        rule(
            "the README shows the quickstart",
            checks::readme_shows_quickstart(text("README.md"), text("examples/src/bin/quickstart.rs")),
        ),
        rule("every guarantee has its case", checks::guarantees_have_cases(text("docs/CONTRACT.md"), &suite)),
        rule("source files are short", checks::files_are_short(&files)),
        rule("rust-version stands once", checks::rust_version_stands_once(&files)),
        rule("crates depend on nothing heavy that is not theirs", trees()),
        rule("crates take the workspace's lints and describe themselves", checks::crates_inherit(&files)),
        rule("the changelog has a place for news", checks::changelog_has_unreleased(text("CHANGELOG.md"))),
        rule("links in Markdown resolve", links::links_resolve(&files, &paths)),
        rule("no path of one machine", checks::no_machine_paths(&files)),
    ])
}

/// Prints what came of the checks; true when all hold.
pub(crate) fn report(verdicts: &[Verdict]) -> bool {
    for verdict in verdicts {
        println!("{}  {}", if verdict.faults.is_empty() { "ok    " } else { "FAILED" }, verdict.rule);
        for fault in &verdict.faults {
            println!("        {fault}");
        }
    }
    verdicts.iter().all(|verdict| verdict.faults.is_empty())
}

fn trees() -> Vec<String> {
    let faults = TREES.iter().flat_map(|(package, features, forbidden)| {
        let mut command = workspace::cargo();
        command.args(["tree", "--quiet", "-p", package, "-e", "normal", "--prefix", "none"]).args(*features);
        match output(&mut command) {
            Ok(tree) => checks::tree_is_without(package, &tree, forbidden),
            Err(error) => vec![format!("{error:#}")],
        }
    });
    faults.collect()
}

/// The files that are tracked or would be by `git add`, without those deleted and not yet committed so.
fn paths() -> Result<Vec<String>> {
    let mut git = Command::new("git");
    git.current_dir(workspace::root()).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let list = output(&mut git)?;
    let root = workspace::root();
    let mut paths: Vec<String> =
        list.split('\0').filter(|path| !path.is_empty() && root.join(path).exists()).map(str::to_owned).collect();
    paths.sort();
    paths.dedup();
    Ok(paths)
}

/// A file of text; none when it is not.
fn read(path: &str) -> Option<SourceFile> {
    let text = fs::read_to_string(workspace::root().join(path)).ok()?;
    Some(SourceFile { path: path.to_owned(), text })
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {}", shown(command)))?;
    if !output.status.success() {
        bail!("{} ended with {}\n{}", shown(command), output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
