//! The checks: each a pure function from text to the faults in it.

use std::collections::{BTreeMap, BTreeSet};

/// The longest that a source file may be.
const MOST_LINES: usize = 700;
/// From here on it is told that it may soon have two subjects.
const MANY_LINES: usize = 500;

/// A file of the repository: its path from the root, with `/`, and its text.
#[derive(Debug, Clone)]
pub(crate) struct SourceFile {
    /// Its path.
    pub(crate) path: String,
    /// Its text.
    pub(crate) text: String,
}

/// The first Rust block of the README is the quickstart program, which CI runs, byte for byte.
pub(crate) fn readme_shows_quickstart(readme: &str, quickstart: &str) -> Vec<String> {
    let Some(block) = first_rust_block(readme) else { return vec!["README.md has no ```rust block".to_owned()] };
    let (shown, program): (Vec<&str>, Vec<&str>) = (block.split('\n').collect(), quickstart.split('\n').collect());
    let differs = (0..shown.len().max(program.len())).find(|&at| shown.get(at) != program.get(at));
    let missing = || "(missing)".to_owned();
    let fault = |at: usize| {
        format!(
            "the first ```rust block of README.md is not examples/src/bin/quickstart.rs; line {} is\n    {}\n    {}",
            at + 1,
            shown.get(at).map_or_else(missing, |line| format!("{line:?}")),
            program.get(at).map_or_else(missing, |line| format!("{line:?}")),
        )
    };
    differs.map(fault).into_iter().collect()
}

fn first_rust_block(markdown: &str) -> Option<String> {
    let mut lines = markdown.split_inclusive('\n');
    let opens = |line: &str| {
        line.trim_end().strip_prefix("```rust").is_some_and(|rest| rest.is_empty() || rest.starts_with(','))
    };
    lines.find(|line| opens(line))?;
    Some(lines.take_while(|line| line.trim_end() != "```").collect())
}

/// Every guarantee of the contract has exactly one case in the suite, and every case is of a guarantee.
pub(crate) fn guarantees_have_cases(contract: &str, suite: &[SourceFile]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut ids = BTreeSet::new();
    for id in contract.lines().filter_map(guarantee) {
        if !ids.insert(id.clone()) {
            faults.push(format!("docs/CONTRACT.md has {id} more than once"));
        }
    }
    if ids.is_empty() {
        faults.push(
            "docs/CONTRACT.md has no guarantee: a line that begins `- **T-01**`, `### T-01` or `| T-01 |`".to_owned(),
        );
    }
    let mut cases: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut functions = BTreeSet::new();
    for file in suite {
        for (id, name) in file.text.lines().filter_map(case) {
            cases.entry(id).or_default().push(format!("{name} in {}", file.path));
            functions.insert(name);
        }
    }
    // A label is a case of its own, or speaks of a function: then that one must be there.
    let mut labels = BTreeSet::new();
    for file in suite {
        for (id, name) in file.text.lines().flat_map(labelled) {
            if !functions.contains(&name) && labels.insert(name.clone()) {
                cases.entry(id).or_default().push(format!("{name} in {}", file.path));
            }
        }
    }
    for id in &ids {
        match cases.get(id).map_or(0, Vec::len) {
            1 => {}
            0 => faults.push(format!("{id} of docs/CONTRACT.md has no case in inbox-conformance/src")),
            _ => faults.push(format!("{id} has more than one case: {}", cases[id].join(", "))),
        }
    }
    let stray = cases.iter().filter(|(id, _)| !ids.contains(*id));
    faults.extend(
        stray.map(|(id, names)| format!("{} is the case of {id}, which is not in docs/CONTRACT.md", names.join(", "))),
    );
    faults
}

/// The id that a line defines: `- **T-03** A delivery …`, `### T-03 …` of any depth, or the table row `| T-03 | …`.
fn guarantee(line: &str) -> Option<String> {
    let line = line.trim_start();
    let start = line.strip_prefix("- **").or_else(|| line.strip_prefix("| "));
    let rest = start.or_else(|| line.starts_with('#').then(|| line.trim_start_matches('#').trim_start()))?;
    let rest = rest.trim_start_matches(['*', '`']);
    let bytes = rest.as_bytes();
    let [b'T' | b'S' | b'E', b'-', ten, one, after @ ..] = bytes else { return None };
    let ends = after.first().is_none_or(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_');
    (ten.is_ascii_digit() && one.is_ascii_digit() && ends).then(|| rest[..4].to_owned())
}

/// The id and the name of a case that a line defines: `async fn t03_an_unacked_delivery_comes_again(…`.
fn case(line: &str) -> Option<(String, String)> {
    let (before, rest) = line.split_once("fn ")?;
    if before.contains("//")
        || !before.split_whitespace().all(|word| ["pub", "pub(crate)", "pub(super)", "async"].contains(&word))
    {
        return None;
    }
    case_name(rest)
}

/// The ids and names in the string literals of a line: `"t03_an_unacked_delivery_comes_again"`.
fn labelled(line: &str) -> Vec<(String, String)> {
    let code = line.split("//").next().unwrap_or_default();
    code.split('"').skip(1).step_by(2).filter_map(case_name).collect()
}

/// The id of the case whose name `text` begins with, and that name.
fn case_name(text: &str) -> Option<(String, String)> {
    let name = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next()?;
    let bytes = name.as_bytes();
    let [letter, ten, one, b'_', ..] = bytes else { return None };
    (b"tse".contains(letter) && ten.is_ascii_digit() && one.is_ascii_digit())
        .then(|| (format!("{}-{}", name[..1].to_uppercase(), &name[1..3]), name.to_owned()))
}

/// No source file is so long that it must have two subjects.
pub(crate) fn files_are_short(files: &[SourceFile]) -> Vec<String> {
    let sources = files.iter().filter(|file| [".rs", ".sql", ".sh"].iter().any(|end| file.path.ends_with(end)));
    sources
        .filter_map(|file| {
            let lines = file.text.lines().count();
            (lines > MOST_LINES)
                .then(|| format!("{} has {lines} lines, more than {MOST_LINES}: split it by subject", file.path))
        })
        .collect()
}

/// Source files that may soon be too long; no fault yet.
pub(crate) fn files_are_getting_long(files: &[SourceFile]) -> Vec<String> {
    let long = |file: &SourceFile| {
        let lines = file.text.lines().count();
        let many = file.path.ends_with(".rs") && (MANY_LINES + 1..=MOST_LINES).contains(&lines);
        many.then(|| format!("{} has {lines} lines: does it have two subjects?", file.path))
    };
    files.iter().filter_map(long).collect()
}

/// The oldest supported Rust stands in one place, and everything else refers to it.
pub(crate) fn rust_version_stands_once(files: &[SourceFile]) -> Vec<String> {
    let mut places = Vec::new();
    for file in files {
        let name = file.path.rsplit('/').next().unwrap_or_default();
        let key = match name {
            "Cargo.toml" => "rust-version",
            "clippy.toml" | ".clippy.toml" => "msrv",
            "rust-toolchain.toml" => "channel",
            _ => continue,
        };
        let values = file
            .text
            .lines()
            .filter(|line| line.trim_start().strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with('=')));
        places.extend(values.map(|line| format!("{}: {}", file.path, line.trim())));
    }
    match &places[..] {
        [place] if place.starts_with("Cargo.toml: ") => Vec::new(),
        [] => vec!["no Cargo.toml has a rust-version".to_owned()],
        _ => vec![format!("rust-version must stand once, in the root's Cargo.toml: {}", places.join("; "))],
    }
}

/// `tree`, as `cargo tree --prefix none` prints it, has no package whose name begins with one of `forbidden`.
pub(crate) fn tree_is_without(package: &str, tree: &str, forbidden: &[&str]) -> Vec<String> {
    let mut faults = BTreeSet::new();
    if tree.split([' ', '\n']).next() != Some(package) {
        faults.insert(format!("the tree of {package} does not begin with it"));
    }
    for name in tree.lines().filter_map(|line| line.split(' ').next()) {
        if forbidden.iter().any(|start| name.starts_with(start)) {
            faults.insert(format!(
                "{package} depends on {name}: see it with `cargo tree -p {package} -e normal -i {name}`"
            ));
        }
    }
    faults.into_iter().collect()
}

/// Every crate takes the workspace's lints and says what it is.
pub(crate) fn crates_inherit(files: &[SourceFile]) -> Vec<String> {
    let mut faults = Vec::new();
    for file in files.iter().filter(|file| file.path.rsplit('/').next() == Some("Cargo.toml")) {
        let keys = toml_keys(&file.text);
        if !keys.iter().any(|(key, _)| key.starts_with("package.")) {
            continue;
        }
        // A table of one's own (examples print) counts too, if it is as strict about what matters most.
        let own = |(key, value): &(String, &str)| key == "lints.rust.unsafe_code" && *value == "\"forbid\"";
        let inherits = |(key, value): &(String, &str)| key == "lints.workspace" && *value == "true";
        if !keys.iter().any(|entry| inherits(entry) || own(entry)) {
            faults.push(format!("{} lacks `[lints] workspace = true`", file.path));
        }
        if !keys.iter().any(|(key, value)| key == "package.description" && value.trim_matches('"').len() > 1) {
            faults.push(format!("{} has no description", file.path));
        }
    }
    faults
}

/// The one-line entries of a manifest, each key with its table's name before it.
fn toml_keys(text: &str) -> Vec<(String, &str)> {
    let mut table = String::new();
    let mut keys = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            name.trim().clone_into(&mut table);
        } else if let Some((key, value)) = line.split_once('=') {
            let dot = if table.is_empty() { "" } else { "." };
            keys.push((format!("{table}{dot}{}", key.trim()), value.trim()));
        }
    }
    keys
}

/// The changelog has a place for what is not released.
pub(crate) fn changelog_has_unreleased(changelog: &str) -> Vec<String> {
    let heading = |line: &str| {
        line.starts_with("## ") && line[3..].trim_matches(['[', ']', ' ']).eq_ignore_ascii_case("unreleased")
    };
    if changelog.lines().any(heading) { Vec::new() } else { vec!["CHANGELOG.md has no `## Unreleased`".to_owned()] }
}

/// No file holds a path of somebody's machine.
pub(crate) fn no_machine_paths(files: &[SourceFile]) -> Vec<String> {
    // In halves, or this file would be at fault.
    let homes = [concat!("/wo", "rk/"), concat!("/ro", "ot/")];
    let mut faults = Vec::new();
    for file in files {
        for (at, line) in file.text.lines().enumerate() {
            if let Some(home) = homes.iter().find(|home| has_absolute(line, home)) {
                faults.push(format!("{}:{}: a path that begins with {home} is of one machine only", file.path, at + 1));
            }
        }
    }
    faults
}

/// Whether `start` is in the line at the beginning of a path, not inside a longer one or a URL.
fn has_absolute(line: &str, start: &str) -> bool {
    let inside = |c: char| c.is_alphanumeric() || "._-~*$}/)".contains(c);
    line.match_indices(start).any(|(at, _)| !line[..at].ends_with(inside))
}

#[cfg(test)]
#[path = "checks_tests.rs"]
mod tests;
