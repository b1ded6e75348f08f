//! The benchmark still works, and its proof can fail. Needs the variables of all services.

use std::{
    fs,
    process::{Command, Output},
};

fn bench(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bench"));
    command.args(arguments);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn show(output: &Output) -> String {
    format!("{}\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr))
}

#[test]
fn every_contestant_is_proved_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report.md");
    let file = report.to_str().unwrap();
    let output = bench(&["--messages", "500", "--rounds", "1", "--report", file]).output().unwrap();
    assert!(output.status.success(), "{}", show(&output));
    let proved = "proved: 500 receipts";
    assert_eq!(text(&output.stderr).matches(proved).count(), 6, "{}", show(&output));
    let written = fs::read_to_string(&report).unwrap();
    assert!(!written.contains(file), "the report names its own place:\n{written}");
    for expected in ["| raw ", "| hand-16 ", "| batch-4 ", "| ours ", "ours-1 : hand-1", "ours : batch-4", "fsync = on"]
    {
        assert!(written.contains(expected), "{expected} is missing in\n{written}");
    }
}

#[test]
fn every_adapter_is_proved_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report.md");
    let file = report.to_str().unwrap();
    let output = bench(&["adapters", "--messages", "200", "--rounds", "1", "--report", file]).output().unwrap();
    assert!(output.status.success(), "{}", show(&output));
    assert_eq!(text(&output.stderr).matches("proved: 200 receipts").count(), 6, "{}", show(&output));
    let written = fs::read_to_string(&report).unwrap();
    for expected in ["| RabbitMQ | batch-4 ", "| Pub/Sub  | ours ", "ours : batch-4", "RabbitMQ 3", "moto"] {
        assert!(written.contains(expected), "{expected} is missing in\n{written}");
    }
}

#[test]
fn a_loop_that_does_not_claim_is_caught() {
    let output = bench(&["--messages", "500", "--rounds", "1", "--only", "unclaimed"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", show(&output));
    let said = text(&output.stderr);
    assert!(said.contains("receipts: 550, expected 500") && said.contains("claims: 0, expected 500"), "{said}");
}

#[test]
fn a_backlog_is_worked_off_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report.md");
    let output = bench(&["--backlog", "3000", "--report", report.to_str().unwrap()]).output().unwrap();
    assert!(output.status.success(), "{}", show(&output));
    let written = fs::read_to_string(&report).unwrap();
    for expected in ["3,000 messages wait", "idle: connected", "resident memory ≤ idle + in-flight bound + 60 MB: met"]
    {
        assert!(written.contains(expected), "{expected} is missing in\n{written}");
    }
}

#[test]
fn without_servers_it_says_what_is_missing() {
    for (mode, name) in [
        (&[][..], "INBOX_TEST_KAFKA"),
        (&[], "INBOX_TEST_POSTGRES"),
        (&["adapters"], "INBOX_TEST_RABBITMQ"),
        (&["adapters"], "INBOX_TEST_SQS"),
        (&["adapters"], "INBOX_TEST_PUBSUB"),
        (&["adapters"], "INBOX_TEST_POSTGRES"),
    ] {
        let output = bench(mode).env_remove(name).output().unwrap();
        assert!(!output.status.success());
        assert!(text(&output.stderr).contains(&format!("{name} is not set")), "{}", show(&output));
    }
}
