//! The test run: every check of the project, here as in CI.

mod counts;
mod invoke;
mod programs;
mod steps;
mod table;

use std::{
    collections::BTreeMap,
    env,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};

use self::{
    counts::Counts,
    invoke::invoke,
    steps::{Invocation, Step, Work},
};
use crate::{services, tidy, workspace};

/// What to run.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Run this step alone; may be given several times.
    #[arg(long, value_name = "STEP", value_enum)]
    only: Vec<Step>,
    /// Leave out the documentation and the chaos runs.
    #[arg(long, conflicts_with = "only")]
    quick: bool,
    /// Go on after a step that failed.
    #[arg(long)]
    keep_going: bool,
    /// Leave out a service that cannot be had here, and the tests of its adapter. Refused in CI.
    #[arg(long, value_name = "SERVICE", value_enum)]
    without: Vec<Without>,
}

/// A service that some machines cannot have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Without {
    /// Google's emulator is in no registry.
    Pubsub,
}

impl Without {
    fn service(self) -> &'static str {
        match self {
            Self::Pubsub => "pubsub",
        }
    }

    /// The package whose tests need it.
    fn adapter(self) -> &'static str {
        match self {
            Self::Pubsub => "inbox-pubsub",
        }
    }
}

impl Options {
    fn steps(&self) -> Vec<Step> {
        let all = Step::value_variants().iter().copied();
        let chosen = |step: &Step| self.only.is_empty() || self.only.contains(step);
        all.filter(|step| chosen(step) && (!self.quick || step.is_quick())).collect()
    }
}

/// One row of the summary.
#[derive(Debug)]
struct Row {
    name: &'static str,
    took: Duration,
    counts: Counts,
    note: String,
}

impl Row {
    fn mark(&self) -> &'static str {
        match self.counts {
            Counts { failed: 1.., .. } => "FAILED",
            Counts { passed: 1.., .. } => "ok",
            _ => "skipped",
        }
    }
}

/// A run under way.
#[derive(Debug, Default)]
struct Run {
    /// The services that are left out.
    without: Vec<Without>,
    /// The variables for tests, once services are up.
    services: Option<services::Variables>,
    /// The services that this run started, so has to end.
    started: Vec<&'static str>,
    rows: Vec<Row>,
}

/// Runs the steps and prints what came of them; true when something ran and nothing failed.
pub(crate) fn run(options: &Options) -> bool {
    let steps = options.steps();
    let mut run = Run { without: options.without.clone(), ..Run::default() };
    if !run.without.is_empty() && env::var_os("CI").is_some() {
        eprintln!("CI runs everything: --without is not taken there");
        return false;
    }
    for (at, &step) in steps.iter().enumerate() {
        let failed = run.rows.iter().find(|row| row.counts.failed > 0).map(|row| row.name);
        if let Some(failed) = failed.filter(|_| !options.keep_going) {
            run.skip(step, format!("not run after {failed} failed"));
            continue;
        }
        run.step(step, &format!("[{:>2}/{}]", at + 1, steps.len()));
    }
    run.end_services();
    run.own_up();
    let total = run.summary();
    println!("{total}");
    total.good()
}

impl Run {
    fn step(&mut self, step: Step, place: &str) {
        eprintln!("\n{place} {} …", step.name());
        let begun = Instant::now();
        let (counts, note) = match self.work(step) {
            Ok(done) => done,
            Err(error) => {
                eprintln!("{error:#}");
                (Counts::one(false), String::new())
            }
        };
        let row = Row { name: step.name(), took: begun.elapsed(), counts, note };
        eprintln!("{place} {} … {} {} ({})", row.name, row.mark(), seconds(row.took), row.counts);
        if counts.failed > 0 {
            eprintln!("    again: cargo xtask test --only {}", row.name);
        }
        self.rows.push(row);
    }

    fn skip(&mut self, step: Step, note: String) {
        let counts = Counts { skipped: 1, ..Counts::default() };
        self.rows.push(Row { name: step.name(), took: Duration::ZERO, counts, note });
    }

    /// Does a step; an error is one failed check.
    fn work(&mut self, step: Step) -> Result<(Counts, String)> {
        if step.needs_services() {
            self.bring_services_up()?;
        } else if step.needs_build_tools() {
            services::install_build_tools()?;
        }
        match step.work() {
            Work::Services => {
                self.bring_services_up()?;
                Ok((Counts::one(true), String::new()))
            }
            Work::Tidy => {
                let verdicts = tidy::run()?;
                tidy::report(&verdicts);
                let mut counts = Counts::default();
                verdicts.iter().for_each(|verdict| counts += Counts::one(verdict.faults.is_empty()));
                Ok((counts, String::new()))
            }
            Work::Tests(build, doc) => self.tests(&build, &doc),
            Work::Commands(invocations) => self.commands(&invocations),
        }
    }

    fn bring_services_up(&mut self) -> Result<()> {
        if self.services.is_none() {
            let left_out = |name: &str| self.without.iter().any(|without| without.service() == name);
            let names: Vec<String> = services::names().filter(|name| !left_out(name)).map(str::to_owned).collect();
            self.services = Some(services::up(&names, &mut self.started).context("services are not up")?);
        }
        Ok(())
    }

    fn tests(&self, build: &Invocation, doc: &Invocation) -> Result<(Counts, String)> {
        services::install_languages()?;
        let build = self.without_what_is_left_out(build);
        eprintln!("$ {}", build.shown());
        let programs = programs::build(&mut self.command(&build)?, build.limit)?;
        // A table of a part of the suite would be another one.
        let fresh = if self.without.is_empty() { table::check(&programs::suites(&programs)?) } else { Ok(()) };
        let show = |name: &str, said: &[u8]| println!("\n{name}\n{}", String::from_utf8_lossy(said));
        let variables = self.services.as_deref().unwrap_or_default();
        let (mut counts, mut notes) =
            programs::run(&programs, variables, build.limit, || services::renew(&self.started), show);
        counts += Counts::one(fresh.is_ok());
        notes.extend(fresh.err().map(|error| format!("{error:#}")));
        let doc = self.without_what_is_left_out(doc);
        eprintln!("$ {}", doc.shown());
        let ended = invoke(&mut self.command(&doc)?, doc.limit, Some(Box::new(std::io::stdout())))?;
        counts += ended.counts;
        if let Err(note) = verdict(&doc, ended.status.map(|status| status.code())) {
            if ended.counts.failed == 0 {
                // It did not compile.
                counts += Counts::one(false);
            }
            notes.push(format!("documentation: {note}"));
        }
        if counts.passed + counts.failed == 0 {
            counts += Counts::one(false);
            notes.push("no test ran".to_owned());
        }
        notes.iter().for_each(|note| eprintln!("    {note}"));
        Ok((counts, notes.join("; ")))
    }

    fn without_what_is_left_out(&self, invocation: &Invocation) -> Invocation {
        let mut invocation = invocation.clone();
        invocation.arguments.extend(self.without.iter().flat_map(|without| ["--exclude", without.adapter()]));
        invocation
    }

    fn commands(&self, invocations: &[Invocation]) -> Result<(Counts, String)> {
        let (mut counts, mut notes) = (Counts::default(), Vec::new());
        let bins = if invocations.iter().any(|invocation| invocation.bin.is_some()) {
            let build = self.without_what_is_left_out(&steps::build_bins());
            programs::build_bins(&mut self.command(&build)?, build.limit)?
        } else {
            BTreeMap::new()
        };
        for invocation in invocations {
            services::renew(&self.started)?;
            eprintln!("$ {}", invocation.shown());
            let mut command = match invocation.bin {
                Some(name) => {
                    self.program(invocation, bins.get(name).with_context(|| format!("no {name} was built"))?)?
                }
                None => self.command(invocation)?,
            };
            let ended = invoke(&mut command, invocation.limit, None)?;
            let passed = verdict(invocation, ended.status.map(|status| status.code()));
            counts += Counts::one(passed.is_ok());
            if let Err(note) = passed {
                eprintln!("    {note}\n    command: {}", invocation.shown());
                notes.push(note);
            }
        }
        Ok((counts, notes.join("; ")))
    }

    fn command(&self, invocation: &Invocation) -> Result<Command> {
        self.told(workspace::cargo(), &invocation.arguments, invocation)
    }

    /// The program itself, with what cargo would hand on to it.
    fn program(&self, invocation: &Invocation, path: &Path) -> Result<Command> {
        let mut command = Command::new(path);
        command.current_dir(workspace::root());
        let own = invocation.arguments.iter().position(|argument| *argument == "--").map_or(0, |at| at + 1);
        self.told(command, &invocation.arguments[own..], invocation)
    }

    fn told(&self, mut command: Command, arguments: &[&str], invocation: &Invocation) -> Result<Command> {
        let variables = self.services.as_deref().unwrap_or_default();
        for argument in arguments {
            command.arg(expanded(argument, variables)?);
        }
        command.envs(variables.iter().map(|(name, url)| (name, url))).envs(invocation.variables.iter().copied());
        Ok(command)
    }

    /// Says in the summary what was left out.
    fn own_up(&mut self) {
        for without in &self.without {
            let note = format!("without {}: the tests of {} did not run", without.service(), without.adapter());
            let counts = Counts { skipped: 1, ..Counts::default() };
            self.rows.push(Row { name: "left out", took: Duration::ZERO, counts, note });
        }
    }

    /// Ends the services that this run started; a failure to do so is a row of its own.
    fn end_services(&mut self) {
        if self.started.is_empty() {
            return;
        }
        let begun = Instant::now();
        if let Err(error) = services::down(Some(&self.started)) {
            let note = format!("{error:#}");
            self.rows.push(Row { name: "services down", took: begun.elapsed(), counts: Counts::one(false), note });
        }
    }

    fn summary(&self) -> Counts {
        println!("\n{:<15}{:<9}{:>8}{:>8}{:>8}{:>10}", "step", "", "passed", "failed", "skipped", "time");
        let mut total = Counts::default();
        for row in &self.rows {
            let Counts { passed, failed, skipped } = row.counts;
            let time = seconds(row.took);
            let line =
                format!("{:<15}{:<9}{passed:>8}{failed:>8}{skipped:>8}{time:>10}  {}", row.name, row.mark(), row.note);
            println!("{}", line.trim_end());
            total += row.counts;
        }
        total
    }
}

/// Whether a command ended as it has to; why not otherwise. No code is the end by a signal, no status that by its limit.
fn verdict(invocation: &Invocation, status: Option<Option<i32>>) -> Result<(), String> {
    match status {
        Some(Some(code)) if code == invocation.status => Ok(()),
        Some(Some(code)) => Err(format!("exit status {code} instead of {}", invocation.status)),
        Some(None) => Err("ended by a signal".to_owned()),
        None => Err(format!("ended after its limit of {}", seconds(invocation.limit))),
    }
}

/// The argument, or the variable that it names.
fn expanded(argument: &str, variables: &[(&str, String)]) -> Result<String> {
    let Some(name) = argument.strip_prefix('$') else { return Ok(argument.to_owned()) };
    let end = name.find(|c: char| c != '_' && !c.is_ascii_alphanumeric()).unwrap_or(name.len());
    let (name, behind) = name.split_at(end);
    match variables.iter().find(|(variable, _)| *variable == name) {
        Some((_, url)) => Ok(format!("{url}{behind}")),
        None => bail!("{name} is not known"),
    }
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_chosen_and_keep_their_order() {
        let all = Options { only: Vec::new(), quick: false, keep_going: false, without: Vec::new() };
        assert_eq!(all.steps().len(), Step::value_variants().len());
        let only = Options { only: vec![Step::Tests, Step::Fmt], quick: false, keep_going: false, without: Vec::new() };
        assert_eq!(only.steps(), [Step::Fmt, Step::Tests]);
        let quick = Options { only: Vec::new(), quick: true, keep_going: false, without: Vec::new() };
        assert_eq!(quick.steps(), [Step::Services, Step::Fmt, Step::Clippy, Step::Tidy, Step::Tests, Step::Quickstart]);
    }

    #[test]
    fn a_command_has_to_end_as_expected() {
        let Work::Commands(chaos) = Step::Chaos.work() else { panic!("chaos is commands") };
        assert_eq!(verdict(&chaos[1], Some(Some(1))), Ok(()));
        assert!(verdict(&chaos[1], Some(Some(0))).unwrap_err().contains("0 instead of 1"));
        assert!(verdict(&chaos[0], Some(None)).unwrap_err().contains("signal"));
        assert!(verdict(&chaos[0], None).unwrap_err().contains("limit"));
    }

    #[test]
    fn variables_are_put_in() {
        let variables = [("INBOX_TEST_KAFKA", "kafka://x".to_owned())];
        assert_eq!(expanded("$INBOX_TEST_KAFKA", &variables).unwrap(), "kafka://x");
        assert_eq!(expanded("$INBOX_TEST_KAFKA?key=value", &variables).unwrap(), "kafka://x?key=value");
        assert_eq!(expanded("--store", &variables).unwrap(), "--store");
        assert!(expanded("$INBOX_TEST_OTHER", &variables).is_err());
    }
}
