//! The report: the same Markdown for the terminal and for `docs/BENCHMARKS.md`. Pure, but for what writes the file.

use std::{fs, io, path::Path};

use anyhow::{Context as _, Result};
use comfy_table::{CellAlignment, Table, presets};

use crate::{
    adapters::Figures,
    args::{AdapterArgs, Args},
    backlog::Backlog,
    broker::PARTITIONS,
    contestant::{BATCH, Contestant, IN_FLIGHT_BYTES, LANES},
    summary::{Row, Spread, Summary, Verdict},
};

/// What the file begins as.
const TEMPLATE: &str = include_str!("template.md");
/// How many moments of a backlog are shown.
const MOMENTS: usize = 12;

/// A part of the file that a run writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    Compare,
    Adapters,
    Backlog,
}

impl Section {
    fn markers(self) -> (&'static str, &'static str) {
        match self {
            Self::Compare => ("<!-- begin compare -->\n", "<!-- end compare -->"),
            Self::Adapters => ("<!-- begin adapters -->\n", "<!-- end adapters -->"),
            Self::Backlog => ("<!-- begin backlog -->\n", "<!-- end backlog -->"),
        }
    }
}

/// Puts a section into the file, which is made if it is not there; the rest of it stays.
pub(crate) fn write(file: &Path, section: Section, text: &str) -> Result<()> {
    let before = match fs::read_to_string(file) {
        Ok(before) => before,
        Err(error) if error.kind() == io::ErrorKind::NotFound => TEMPLATE.to_owned(),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
    };
    let after =
        replaced(&before, section, text).with_context(|| format!("{} has no markers for it", file.display()))?;
    fs::write(file, after).with_context(|| format!("cannot write {}", file.display()))
}

fn replaced(before: &str, section: Section, text: &str) -> Option<String> {
    let (begin, end) = section.markers();
    let (head, rest) = before.split_once(begin)?;
    let (_, tail) = rest.split_once(end)?;
    Some(format!("{head}{begin}\n{}\n\n{end}{tail}", text.trim()))
}

/// The comparison.
pub(crate) fn compare(args: &Args, machine: &str, summary: &Summary) -> String {
    let mut blocks = opening(&args.shown(), machine);
    blocks.push(format!(
        "{} payments, {} of them sent twice, {PARTITIONS} partitions, {} rounds. Messages a second count the copies \
         too. Processor time is in microseconds a message, the median of the rounds.",
        whole(args.messages),
        whole(args.messages / 10),
        args.rounds
    ));
    blocks.push(figures(summary).to_string());
    if !summary.verdicts.is_empty() {
        blocks.push("Ratios are taken within each round, and judged by their median.".to_owned());
        blocks.push(goals(summary).to_string());
    }
    let described = |row: &Row| format!("- **{}**: {}", row.contestant.name(), row.contestant.description());
    blocks.push(summary.rows.iter().map(described).collect::<Vec<_>>().join("\n"));
    blocks.join("\n\n")
}

/// The command, and on what it ran.
fn opening(command: &str, machine: &str) -> Vec<String> {
    vec![format!("`{command}`"), machine.trim().to_owned()]
}

/// What is said of a contestant.
const COLUMNS: [&str; 8] =
    ["contestant", "msg/s min", "median", "max", "msg/transaction", "client µs", "database µs", "broker µs"];

fn figures(summary: &Summary) -> Table {
    let mut figures = table(&COLUMNS, 1);
    for row in &summary.rows {
        figures.add_row(cells(row));
    }
    figures
}

fn cells(row: &Row) -> [String; COLUMNS.len()] {
    let Spread { least, median, most } = row.rate;
    [
        row.contestant.name(),
        thousands(least),
        thousands(median),
        thousands(most),
        optional(row.batch, 1),
        format!("{:.1}", row.client),
        // What the server does by itself is not the contestant's.
        optional(row.database.filter(|_| row.contestant.writes()), 1),
        optional(row.broker, 1),
    ]
}

fn goals(summary: &Summary) -> Table {
    let mut goals = table(&["ratio", "min", "median", "max", "goal", "verdict"], 1);
    for verdict in &summary.verdicts {
        goals.add_row(judgement(verdict));
    }
    goals
}

fn judgement(verdict: &Verdict) -> [String; 6] {
    let goal = verdict.goal;
    [
        format!("{} : {}", goal.of.name(), goal.to.name()),
        format!("{:.2}", verdict.ratio.least),
        format!("{:.2}", verdict.ratio.median),
        format!("{:.2}", verdict.ratio.most),
        format!("≥ {:.1}", goal.least),
        if verdict.is_met() { "met".to_owned() } else { "**MISSED**".to_owned() },
    ]
}

/// The comparison of the adapters.
pub(crate) fn adapters(args: &AdapterArgs, machine: &str, brokers: &[Figures]) -> String {
    let mut blocks = opening(&args.shown(), machine);
    let payments = |one: &Figures| format!("{} payments on {}", whole(one.payments), one.broker.title());
    blocks.push(format!(
        "{}; a tenth of them sent twice; {} rounds. Messages a second count the copies too. Processor time is in \
         microseconds a message, the median of the rounds.",
        brokers.iter().map(payments).collect::<Vec<_>>().join(", "),
        args.rounds
    ));
    let mut figures = table(&[&["broker"], &COLUMNS[..]].concat(), 2);
    let mut goals = table(&["broker", "ratio", "min", "median", "max", "goal", "verdict", "of each round"], 2);
    for one in brokers {
        let of = |cells: &[String]| [&[one.broker.title().to_owned()], cells].concat();
        for row in &one.summary.rows {
            figures.add_row(of(&cells(row)));
        }
        for verdict in &one.summary.verdicts {
            let rounds: Vec<String> = verdict.rounds.iter().map(|ratio| format!("{ratio:.2}")).collect();
            goals.add_row([of(&judgement(verdict)), vec![rounds.join(", ")]].concat());
        }
    }
    blocks.push(figures.to_string());
    blocks.push("Ratios are taken within each round, and judged by their median.".to_owned());
    blocks.push(goals.to_string());
    let described =
        |one: &Figures| format!("- **batch-4** on {}: {}", one.broker.title(), one.broker.loop_description());
    let mut described: Vec<String> = brokers.iter().map(described).collect();
    described.push(format!("- **ours**: {}", Contestant::Ours.description()));
    blocks.push(described.join("\n"));
    blocks.join("\n\n")
}

/// The backlog.
pub(crate) fn backlog(args: &Args, machine: &str, backlog: &Backlog) -> String {
    #[allow(clippy::cast_precision_loss, reason = "millions")]
    let rate = backlog.records as f64 / backlog.measured.seconds;
    let mut blocks = opening(&args.shown(), machine);
    blocks.push(format!(
        "{} messages wait; `{}` ({LANES} lanes, {BATCH} messages a batch) works them off in {:.1} s, {} msg/s.",
        whole(backlog.records),
        Contestant::Ours.name(),
        backlog.measured.seconds,
        thousands(rate)
    ));
    blocks.push(memory(backlog).to_string());
    let verdict = |good: bool| if good { "met" } else { "**MISSED**" };
    blocks.push(format!(
        "- resident memory ≤ idle + in-flight bound + 60 MB: {}\n\
         - the lag of the group, asked each second, never rises nor stands still: {}",
        verdict(backlog.is_bounded()),
        verdict(backlog.falls())
    ));
    blocks.push(moments(backlog).to_string());
    blocks.join("\n\n")
}

fn memory(backlog: &Backlog) -> Table {
    let mut memory = table(&["resident memory", "MB"], 1);
    memory.add_row(["idle: connected, nothing received yet".to_owned(), megabytes(backlog.idle)]);
    memory.add_row(["bound of what is in flight".to_owned(), megabytes(IN_FLIGHT_BYTES)]);
    memory.add_row(["most".to_owned(), megabytes(backlog.measured.peak)]);
    memory.add_row(["idle + bound + 60 MB".to_owned(), megabytes(backlog.bound())]);
    memory
}

fn moments(backlog: &Backlog) -> Table {
    let mut moments = table(&["seconds", "lag", "in flight", "resident MB"], 0);
    let step = backlog.moments.len().div_ceil(MOMENTS).max(1);
    let last = backlog.moments.len().saturating_sub(1);
    for (_, now) in backlog.moments.iter().enumerate().filter(|(at, _)| at % step == 0 || *at == last) {
        moments.add_row([
            format!("{:.0}", now.sample.seconds),
            now.lag.to_string(),
            now.sample.in_flight.to_string(),
            megabytes(now.sample.resident),
        ]);
    }
    moments
}

/// A table of Markdown; columns from `numbers` on are aligned to the right.
fn table(columns: &[&str], numbers: usize) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(columns);
    for column in table.column_iter_mut().skip(numbers) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn whole(count: usize) -> String {
    #[allow(clippy::cast_precision_loss, reason = "millions")]
    thousands(count as f64)
}

fn thousands(figure: f64) -> String {
    let digits = format!("{figure:.0}");
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

fn optional(figure: Option<f64>, digits: usize) -> String {
    figure.map_or_else(|| "–".to_owned(), |figure| format!("{figure:.digits$}"))
}

fn megabytes(bytes: u64) -> String {
    #[allow(clippy::cast_precision_loss, reason = "shown with one digit")]
    let bytes = bytes as f64;
    format!("{:.1}", bytes / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_replaced_and_the_rest_stays() {
        let once = replaced(TEMPLATE, Section::Compare, "first!").unwrap();
        let both = replaced(&once, Section::Backlog, "second!").unwrap();
        assert!(both.contains("first!") && both.contains("second!"));
        let again = replaced(&both, Section::Compare, "third!").unwrap();
        assert!(again.contains("third!") && again.contains("second!") && !again.contains("first!"));
        assert_eq!(replaced(&again, Section::Compare, "third!").as_deref(), Some(&*again));
        assert_eq!(replaced("nothing", Section::Compare, "x"), None);
    }

    #[test]
    fn figures_are_grouped() {
        assert_eq!(
            ["1", "12", "123", "1,234", "1,234,567"],
            [1.0, 12.0, 123.0, 1_234.0, 1_234_567.0].map(thousands)[..]
        );
    }
}
