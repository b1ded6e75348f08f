//! The suite itself is tested: each case that is named for a saboteur fails with it, and passes without.

use std::{collections::BTreeSet, path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use inbox_conformance::{
    memory::{MemoryBrokerSubject, MemoryStoreSubject},
    saboteur::{SABOTEURS, Sabotage, case_names, caught_by, run, table},
};
use libtest_mimic::{Arguments, Failed, Trial};

/// A saboteur that makes its case wait for ever is caught by this.
const PATIENCE: Duration = Duration::from_secs(6);
const HONEST: Duration = Duration::from_secs(60);

fn over_memory(sabotage: Option<Sabotage>, case: &str, deadline: Duration) -> Result<(), String> {
    let broker = Arc::new(MemoryBrokerSubject::default());
    let store = Arc::new(MemoryStoreSubject::default());
    run(sabotage, case, &broker, &store, deadline)
}

fn caught(sabotage: Sabotage, case: &str) -> Result<(), Failed> {
    match over_memory(Some(sabotage), case, PATIENCE) {
        Ok(()) => Err(format!("{case} did not notice").into()),
        Err(why) => {
            if std::env::var_os("INBOX_SHOW").is_some() {
                #[allow(clippy::print_stdout, reason = "asked for, to see whether it fails for the right reason")]
                {
                    println!("{case}: {why}");
                }
            }
            Ok(())
        }
    }
}

fn table_is_fresh() -> Result<(), Failed> {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/SABOTEURS.md");
    if std::env::var_os("INBOX_BLESS").is_some() {
        return std::fs::write(&file, table()).map_err(Into::into);
    }
    if std::fs::read_to_string(&file).unwrap_or_default() == table() {
        return Ok(());
    }
    Err("docs/SABOTEURS.md is stale: run `INBOX_BLESS=1 cargo test -p inbox-conformance --test saboteurs`".into())
}

fn every_case_catches_somebody() -> Result<(), Failed> {
    let idle: Vec<&str> = case_names().into_iter().filter(|case| caught_by(case).next().is_none()).collect();
    if idle.is_empty() { Ok(()) } else { Err(format!("cases that no saboteur is named for: {idle:?}").into()) }
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Most of them wait for what never comes.
    arguments.test_threads.get_or_insert(8);
    let mut trials = vec![
        Trial::test("docs/SABOTEURS.md is fresh", table_is_fresh),
        Trial::test("every case catches somebody", every_case_catches_somebody),
    ];
    let mut honest = BTreeSet::new();
    for saboteur in SABOTEURS {
        for case in saboteur.caught_by {
            honest.insert(*case);
            let sabotage = saboteur.sabotage;
            trials.push(Trial::test(format!("{saboteur}/{case} notices"), move || caught(sabotage, case)));
        }
    }
    for case in honest {
        let passes = move || over_memory(None, case, HONEST).map_err(Into::into);
        trials.push(Trial::test(format!("nobody/{case} passes"), passes));
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}
