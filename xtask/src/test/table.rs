//! `docs/SUITE.md`: which cases of the suite run over what, read from what its programs list.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    fs,
};

use anyhow::{Context, Result, bail};

use crate::workspace;

const FILE: &str = "docs/SUITE.md";
/// Set, the file is written instead of compared.
const BLESS: &str = "INBOX_BLESS";

/// What one program lists is `subject/case: test`, and `subject/case [lacks WHAT]: test` of what it cannot run.
#[derive(Debug, Default, PartialEq, Eq)]
struct Listed {
    runs: BTreeSet<String>,
    /// What is lacking, by the case.
    lacking: BTreeMap<String, String>,
}

impl Listed {
    fn cases(&self) -> usize {
        self.runs.len() + self.lacking.len()
    }

    fn numbers(&self) -> String {
        if self.lacking.is_empty() {
            format!("all {}", self.cases())
        } else {
            format!("{} of {}", self.runs.len(), self.cases())
        }
    }
}

/// Compares the file with what `lists` say, or writes it.
pub(crate) fn check(lists: &[String]) -> Result<()> {
    let table = table(&subjects(lists))?;
    let file = workspace::root().join(FILE);
    if std::env::var_os(BLESS).is_some() {
        return fs::write(&file, table).with_context(|| format!("cannot write {FILE}"));
    }
    if fs::read_to_string(&file).unwrap_or_default() == table {
        return Ok(());
    }
    bail!("{FILE} is stale: run `{BLESS}=1 cargo xtask test --only tests`")
}

/// By the subject's name and the letter of its cases: one name may be a transport's and a store's.
type Subjects = BTreeMap<(String, char), Listed>;

fn subjects(lists: &[String]) -> Subjects {
    let mut subjects = Subjects::new();
    for line in lists.iter().flat_map(|list| list.lines()) {
        let Some((subject, case)) = line.strip_suffix(": test").and_then(|line| line.split_once('/')) else { continue };
        let Some(letter) = case.chars().next() else { continue };
        let subject = subjects.entry((subject.to_owned(), letter)).or_default();
        match case.split_once(" [lacks ") {
            None => drop(subject.runs.insert(case.to_owned())),
            Some((case, what)) => {
                drop(subject.lacking.insert(case.to_owned(), what.trim_end_matches(']').to_owned()));
            }
        }
    }
    subjects
}

/// The file's text. `a+b` is a pair.
fn table(subjects: &Subjects) -> Result<String> {
    let mut text = format!(
        "# The suite\n\nWhich cases of `inbox-conformance` run over what; [CONTRACT.md](CONTRACT.md) says what each \
         proves, and [SABOTEURS.md](SABOTEURS.md) who is caught by it. A case that a subject cannot have is listed as \
         ignored, with what is lacking. Written by `{BLESS}=1 cargo xtask test --only tests`, which fails when it is \
         stale.\n"
    );
    for (title, letter) in [("Transports", 't'), ("Stores", 's')] {
        write!(text, "\n## {title}\n\n| over | cases that run | cases that cannot |\n| --- | --- | --- |\n")?;
        for ((name, _), listed) in subjects.iter().filter(|((_, of), _)| *of == letter) {
            writeln!(text, "| {name} | {} | {} |", listed.numbers(), lacking(listed))?;
        }
    }
    let pairs: Vec<((&str, &str), &Listed)> =
        subjects.iter().filter_map(|((name, _), listed)| Some((name.split_once('+')?, listed))).collect();
    let stores: BTreeSet<&str> = pairs.iter().map(|((_, store), _)| *store).collect();
    let transports: BTreeSet<&str> = pairs.iter().map(|((transport, _), _)| *transport).collect();
    write!(text, "\n## End to end\n\n| transport |")?;
    stores.iter().try_for_each(|store| write!(text, " {store} |"))?;
    write!(text, "\n| --- |{}\n", " --- |".repeat(stores.len()))?;
    for transport in transports {
        write!(text, "| {transport} |")?;
        for store in &stores {
            let found = pairs.iter().find(|(pair, _)| *pair == (transport, *store));
            write!(text, " {} |", found.map_or(String::new(), |(_, listed)| listed.numbers()))?;
        }
        text.push('\n');
    }
    text.push_str("\nWhat cannot run there:\n\n");
    for ((transport, store), listed) in pairs.iter().filter(|(_, listed)| !listed.lacking.is_empty()) {
        writeln!(text, "- {transport} with {store}: {}", lacking(listed))?;
    }
    Ok(text)
}

/// `t05, t11 (many_of_a_key); t08 (break_sessions)`
fn lacking(listed: &Listed) -> String {
    let mut by_need = BTreeMap::<&str, Vec<&str>>::new();
    for (case, need) in &listed.lacking {
        by_need.entry(need).or_default().push(case.split('_').next().unwrap_or(case));
    }
    let parts: Vec<String> = by_need.iter().map(|(need, cases)| format!("{} (`{need}`)", cases.join(", "))).collect();
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_run_is_shown_with_its_reason() {
        let list = "q/t01_a: test\nq/t02_b [lacks order]: test\nq/t03_c [lacks order]: test\nq/s01_x: test\nd/s01_x: test\n\
                    q+d/e01_y: test\nq+d/e02_z [lacks sql]: test\n\n6 tests, 0 benchmarks\n";
        let table = table(&subjects(&[list.to_owned()])).unwrap();
        assert!(table.contains("| q | 1 of 3 | t02, t03 (`order`) |"), "{table}");
        assert!(table.contains("| d | all 1 |  |"), "{table}");
        assert!(table.contains("| q | all 1 |  |"), "a store of the same name: {table}");
        assert!(table.contains("| transport | d |\n| --- | --- |\n| q | 1 of 2 |"), "{table}");
        assert!(table.contains("- q with d: e02 (`sql`)"), "{table}");
    }
}
