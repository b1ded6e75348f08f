//! The steps of a test run, in their order.

use std::time::Duration;

use clap::ValueEnum;

use super::programs::MESSAGES;

/// A step, by the name that `--only` takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Step {
    /// Servers are up; starts those that are not given.
    Services,
    /// Code is formatted.
    Fmt,
    /// Lints hold.
    Clippy,
    /// House rules hold.
    Tidy,
    /// All tests of all crates.
    Tests,
    /// Documentation builds without a warning.
    Doc,
    /// The README's program runs.
    Quickstart,
    /// The chaos run passes in memory, and finds the missing inbox.
    Chaos,
    /// The same against real servers, with threads and with processes.
    ChaosServers,
    /// One handler over every broker, and a broken transport is found out.
    Swap,
    /// The example of a consumer loop of one's own keeps the guarantee, on real servers.
    OwnLoop,
    /// Every fault once, shortly; and wrong consumers are found out.
    Faults,
}

/// What a step does.
#[derive(Debug)]
pub(crate) enum Work {
    /// Brings services up.
    Services,
    /// Runs the checks of `tidy`, each counted.
    Tidy,
    /// Builds test programs with the first command, which names them, and runs them; then runs the second one.
    /// Counts the tests that they report.
    Tests(Invocation, Invocation),
    /// Runs commands, each counted as one check.
    Commands(Vec<Invocation>),
}

/// One run of cargo and how it has to end.
#[derive(Debug, Clone)]
pub(crate) struct Invocation {
    /// The arguments of cargo; `$INBOX_TEST_KAFKA` at the start of one is replaced by what that variable is for tests.
    pub(crate) arguments: Vec<&'static str>,
    /// Variables for this run.
    pub(crate) variables: &'static [(&'static str, &'static str)],
    /// The exit status that passes.
    pub(crate) status: i32,
    /// When it is ended and has failed.
    pub(crate) limit: Duration,
    /// The program that cargo would build and run. It is taken from the build of the whole workspace instead: with a
    /// package's own features every broker's client would be compiled once more.
    pub(crate) bin: Option<&'static str>,
}

impl Invocation {
    fn of(arguments: &[&'static str]) -> Self {
        Self { arguments: arguments.to_vec(), variables: &[], status: 0, limit: minutes(30), bin: None }
    }

    /// The command as a person would type it, after reading `target/services/env.sh`.
    pub(crate) fn shown(&self) -> String {
        let variables = self.variables.iter().map(|(name, value)| format!("{name}='{value}' "));
        let expected = if self.status == 0 { String::new() } else { format!("   (has to exit {})", self.status) };
        format!("{}cargo {}{expected}", variables.collect::<String>(), self.arguments.join(" "))
    }
}

impl Step {
    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Services => "services",
            Self::Fmt => "fmt",
            Self::Clippy => "clippy",
            Self::Tidy => "tidy",
            Self::Tests => "tests",
            Self::Doc => "doc",
            Self::Quickstart => "quickstart",
            Self::Chaos => "chaos",
            Self::ChaosServers => "chaos-servers",
            Self::Swap => "swap",
            Self::OwnLoop => "own-loop",
            Self::Faults => "faults",
        }
    }

    /// Whether it cannot run without services.
    pub(crate) fn needs_services(self) -> bool {
        matches!(self, Self::Tests | Self::ChaosServers | Self::Swap | Self::OwnLoop | Self::Faults)
    }

    /// Whether it compiles the whole workspace, so needs the tools and libraries that a broker's client is built with.
    pub(crate) fn needs_build_tools(self) -> bool {
        matches!(self, Self::Clippy | Self::Doc)
    }

    /// Whether a quick run has it: the rest takes minutes and seldom finds what these do not.
    pub(crate) fn is_quick(self) -> bool {
        matches!(self, Self::Services | Self::Fmt | Self::Clippy | Self::Tidy | Self::Tests | Self::Quickstart)
    }

    /// What it does.
    pub(crate) fn work(self) -> Work {
        let one = |invocation| Work::Commands(vec![invocation]);
        match self {
            Self::Services => Work::Services,
            Self::Tidy => Work::Tidy,
            Self::Fmt => one(Invocation::of(&["fmt", "--all", "--check"])),
            Self::Clippy => {
                let arguments = ["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"];
                one(Invocation::of(&arguments))
            }
            Self::Tests => Work::Tests(
                Invocation::of(&["test", "--workspace", "--all-features", "--no-run", MESSAGES]),
                Invocation::of(&["test", "--workspace", "--all-features", "--doc", "--no-fail-fast"]),
            ),
            Self::Doc => one(Invocation {
                variables: &[("RUSTDOCFLAGS", "-D warnings")],
                ..Invocation::of(&["doc", "--workspace", "--no-deps", "--all-features"])
            }),
            Self::Quickstart => one(Invocation::of(&["run", "--bin", "quickstart"])),
            Self::Chaos => Work::Commands(vec![
                Invocation::of(&["run", "--bin", "chaos"]),
                // The chaos run must be able to fail.
                Invocation { status: 1, ..Invocation::of(&["run", "--bin", "chaos", "--", "--no-inbox"]) },
            ]),
            Self::ChaosServers => Work::Commands(vec![
                on_servers(KAFKA, DIRECT, None, 0),
                on_servers(KAFKA, DIRECT, Some("--processes"), 0),
                on_servers(KAFKA, DIRECT, Some("--no-inbox"), 1),
                on_servers(KAFKA, POOLED, Some("--processes"), 0),
                on_servers("$INBOX_TEST_RABBITMQ", DIRECT, Some("--processes"), 0),
                on_servers("$INBOX_TEST_REDIS", DIRECT, Some("--processes"), 0),
                on_servers("$INBOX_TEST_SQS", DIRECT, Some("--processes"), 0),
                on_servers("$INBOX_TEST_PUBSUB", DIRECT, Some("--processes"), 0),
            ]),
            Self::Swap => {
                Work::Commands(vec![example("swap", &["--all"], 0), example("swap", &["--saboteur", "sqlite"], 1)])
            }
            Self::OwnLoop => one(example("own_loop", &["--brokers", KAFKA, "--database", DIRECT], 0)),
            Self::Faults => Work::Commands(vec![
                faults(&["--short"], 0),
                faults(&with_cases("rabbitmq", &["kill", "connections-closed", "same-batch"]), 0),
                faults(&with_cases("redis", &["kill", "connections-cut", "same-batch"]), 0),
                faults(&with_cases("sqs", &["kill", "lease-out", "same-batch"]), 0),
                faults(&with_cases("pubsub", &["kill", "same-batch"]), 0),
                faults(&["--short", "--case", "kill", "--broker", "sqlite", "--saboteur", "ack-first"], 1),
                faults(&["--short", "--case", "kill", "--broker", "kafka", "--saboteur", "no-claim"], 1),
            ]),
        }
    }
}

const KAFKA: &str = "$INBOX_TEST_KAFKA";
/// The store on its server.
const DIRECT: &str = "$INBOX_TEST_POSTGRES";
/// The same behind a pooler in transaction mode.
const POOLED: &str = "$INBOX_TEST_PGBOUNCER?pooler=transaction";

fn on_servers(broker: &'static str, store: &'static str, option: Option<&'static str>, status: i32) -> Invocation {
    let mut invocation = example("chaos", &["--transport", broker, "--store", store], status);
    invocation.arguments.extend(option);
    invocation
}

/// Builds every program of the workspace. With `--tests`, which are built already: without them dependencies would have
/// fewer features, and be compiled again.
pub(crate) fn build_bins() -> Invocation {
    Invocation::of(&["build", "--workspace", "--all-features", "--bins", "--tests", MESSAGES])
}

/// An example that needs servers.
fn example(name: &'static str, options: &[&'static str], status: i32) -> Invocation {
    let mut invocation = Invocation::of(&["run", "-p", "inbox-examples", "--all-features", "--bin", name, "--"]);
    invocation.arguments.extend(options);
    Invocation { status, bin: Some(name), ..invocation }
}

fn faults(options: &[&'static str], status: i32) -> Invocation {
    let mut invocation = Invocation::of(&["run", "-p", "inbox-faults", "--"]);
    invocation.arguments.extend(options);
    Invocation { status, bin: Some("faults"), ..invocation }
}

/// Some cases on one broker, shortly.
fn with_cases(broker: &'static str, cases: &[&'static str]) -> Vec<&'static str> {
    let cases = cases.iter().flat_map(|case| ["--case", case]);
    ["--short", "--broker", broker].into_iter().chain(cases).collect()
}

fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_called_what_the_command_line_calls_them() {
        for step in Step::value_variants() {
            assert_eq!(step.to_possible_value().unwrap().get_name(), step.name());
        }
    }

    #[test]
    fn a_command_is_shown_as_it_can_be_typed() {
        let Work::Commands(doc) = Step::Doc.work() else { panic!("doc is a command") };
        assert_eq!(doc[0].shown(), "RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --all-features");
        let Work::Commands(chaos) = Step::ChaosServers.work() else { panic!("chaos-servers are commands") };
        assert_eq!(
            chaos[2].shown(),
            "cargo run -p inbox-examples --all-features --bin chaos -- --transport $INBOX_TEST_KAFKA --store \
             $INBOX_TEST_POSTGRES --no-inbox   (has to exit 1)"
        );
    }
}
