//! Runs Python programs, in an environment that has the clients.

use std::{
    path::{Path, PathBuf},
    process::{Output, Stdio},
};

use serde_json::Value;
use tokio::{
    io::AsyncWriteExt,
    process::{Child, Command},
    time::timeout,
};

use crate::PATIENCE;

const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/languages");

/// One of the programs beside this file.
pub(crate) struct Program {
    file: &'static str,
    variables: Vec<(&'static str, String)>,
}

impl Program {
    pub(crate) fn new(file: &'static str) -> Self {
        Self { file, variables: Vec::new() }
    }

    pub(crate) fn variable(mut self, name: &'static str, value: String) -> Self {
        self.variables.push((name, value));
        self
    }

    /// Runs it with what it is asked for; what it answers, nothing at all being `null`.
    pub(crate) async fn run(&self, asked: &Value) -> Value {
        let python = tokio::task::spawn_blocking(python).await.expect("no panic");
        let mut command = Command::new(python);
        command.arg(Path::new(PROGRAMS).join(self.file)).envs(self.variables.iter().cloned());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let child = command.spawn().expect("Python runs");
        let answer = timeout(PATIENCE, talk(child, asked.to_string()));
        let answer = answer.await.unwrap_or_else(|_| panic!("{} has not ended after {PATIENCE:?}", self.file));
        let (said, errors) = (String::from_utf8_lossy(&answer.stdout), String::from_utf8_lossy(&answer.stderr));
        assert!(answer.status.success(), "{} ended with {}\n{errors}", self.file, answer.status);
        if said.is_empty() { Value::Null } else { serde_json::from_str(&said).expect("the program answers in JSON") }
    }
}

async fn talk(mut child: Child, asked: String) -> Output {
    // One that has ended says why on its standard error.
    drop(child.stdin.take().expect("a pipe").write_all(asked.as_bytes()).await);
    child.wait_with_output().await.expect("an end")
}

/// The Python that has the clients, made the first time.
fn python() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("languages");
    xtask::python::environment(&folder, include_str!("requirements.txt")).unwrap_or_else(|error| panic!("{error:#}"))
}
