//! Results: kept from run to run, and shown as tables.

use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
};

use anyhow::Context;
use comfy_table::{Table, presets};

use crate::{cases::Case, outcome::Outcome};

/// The results of all runs since the last fresh start, one JSON object a line.
#[derive(Debug)]
pub(crate) struct Results(PathBuf);

impl Results {
    pub(crate) fn new(target: &Path) -> anyhow::Result<Self> {
        let folder = target.join("faults");
        fs::create_dir_all(&folder).context("make the folder of results")?;
        Ok(Self(folder.join("results.jsonl")))
    }

    pub(crate) fn clear(&self) -> anyhow::Result<()> {
        fs::write(&self.0, "").context("clear the results")
    }

    pub(crate) fn add(&self, outcome: &Outcome) -> anyhow::Result<()> {
        let mut file = fs::File::options().create(true).append(true).open(&self.0).context("keep a result")?;
        writeln!(file, "{}", serde_json::to_string(outcome)?).context("keep a result")
    }

    /// Keeps the report of the last soak.
    pub(crate) fn keep_soak(&self, text: &str) -> anyhow::Result<()> {
        fs::write(self.soak(), text).context("keep the soak's report")
    }

    /// What [`keep_soak`](Self::keep_soak) has kept.
    pub(crate) fn read_soak(&self) -> Option<String> {
        fs::read_to_string(self.soak()).ok()
    }

    fn soak(&self) -> PathBuf {
        self.0.with_file_name("soak.md")
    }

    pub(crate) fn read(&self) -> anyhow::Result<Vec<Outcome>> {
        let text = fs::read_to_string(&self.0).context("no results yet: run `cargo xtask faults`")?;
        text.lines().map(|line| serde_json::from_str(line).context("read a result")).collect()
    }
}

const HEADINGS: [&str; 12] = [
    "case",
    "broker + store",
    "rounds",
    "messages",
    "faults",
    "lost",
    "doubled",
    "out of order",
    "attempts",
    "quarantined",
    "resumed, worst",
    "held",
];

/// One row for each case and pair, in the order of the cases.
fn rows(outcomes: &[Outcome]) -> Vec<[String; 12]> {
    let mut grouped: BTreeMap<(usize, &str), Vec<&Outcome>> = BTreeMap::new();
    for outcome in outcomes {
        let place = Case::ALL.iter().position(|case| case.name() == outcome.case).unwrap_or(usize::MAX);
        grouped.entry((place, &outcome.pair)).or_default().push(outcome);
    }
    let row = |((_, pair), rounds): ((usize, &str), Vec<&Outcome>)| {
        let sum = |field: fn(&Outcome) -> u64| rounds.iter().map(|outcome| field(outcome)).sum::<u64>().to_string();
        let resumed = rounds.iter().filter_map(|outcome| outcome.resumed_ms).max();
        #[allow(clippy::cast_precision_loss, reason = "milliseconds for people")]
        let resumed = resumed.map_or_else(String::new, |ms| format!("{:.1} s", ms as f64 / 1_000.0));
        let held = rounds.iter().filter(|outcome| outcome.holds()).count();
        [
            rounds[0].case.clone(),
            pair.to_owned(),
            rounds.len().to_string(),
            sum(|outcome| outcome.messages),
            sum(|outcome| outcome.counted),
            sum(|outcome| outcome.lost),
            sum(|outcome| outcome.doubled),
            sum(|outcome| outcome.reordered),
            sum(|outcome| outcome.attempts),
            sum(|outcome| outcome.quarantined),
            resumed,
            format!("{held} of {}", rounds.len()),
        ]
    };
    grouped.into_iter().map(row).collect()
}

/// For the terminal.
pub(crate) fn table(outcomes: &[Outcome]) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header(HEADINGS);
    for row in rows(outcomes) {
        table.add_row(row);
    }
    table.to_string()
}

/// For docs/RELIABILITY.md.
pub(crate) fn markdown(outcomes: &[Outcome], soak: Option<String>) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(HEADINGS);
    for row in rows(outcomes) {
        table.add_row(row);
    }
    let about: String = Case::ALL.iter().map(|case| format!("- `{}`: {}.\n", case.name(), case.about())).collect();
    include_str!("reliability.md")
        .replace("{table}", &table.to_string())
        .replace("{cases}", about.trim_end())
        .replace("{soak}", soak.as_deref().unwrap_or("Not run yet.").trim_end())
}
