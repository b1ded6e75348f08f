//! What was started, remembered between commands.

use std::{fs, path::Path};

use anyhow::{Context, Result};

use xtask::process::runs;

/// One service that was started here; `pid` 0 once it was ended here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Running {
    /// The service's name.
    pub(crate) name: String,
    /// Its process.
    pub(crate) pid: u32,
    /// Its port on 127.0.0.1, kept for the next start so that an `env.sh` read earlier stays true.
    pub(crate) port: u16,
    /// What the command line of its process contains and no other's does.
    pub(crate) mark: String,
    /// What tests connect to.
    pub(crate) url: String,
}

impl Running {
    /// Whether its process is there and is still the one that was started.
    pub(crate) fn alive(&self) -> bool {
        self.pid != 0 && runs(self.pid, &self.mark)
    }
}

/// Reads the state file; none is an empty state, and a line of another layout is passed over.
pub(crate) fn read(file: &Path) -> Vec<Running> {
    parse(&fs::read_to_string(file).unwrap_or_default())
}

/// Writes the state file.
pub(crate) fn write(file: &Path, state: &[Running]) -> Result<()> {
    fs::write(file, render(state)).with_context(|| format!("cannot write {}", file.display()))
}

fn parse(text: &str) -> Vec<Running> {
    text.lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split('\t').collect();
            let [name, pid, port, mark, url] = fields[..] else { return None };
            Some(Running {
                name: name.to_owned(),
                pid: pid.parse().ok()?,
                port: port.parse().ok()?,
                mark: mark.to_owned(),
                url: url.to_owned(),
            })
        })
        .collect()
}

fn render(state: &[Running]) -> String {
    state.iter().map(|r| format!("{}\t{}\t{}\t{}\t{}\n", r.name, r.pid, r.port, r.mark, r.url)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_is_read_as_written() {
        let state = vec![Running {
            name: "kafka".into(),
            pid: 12,
            port: 9092,
            mark: "/a folder/server.properties".into(),
            url: "kafka://127.0.0.1:9092".into(),
        }];
        assert_eq!(parse(&render(&state)), state);
        assert_eq!(parse("an older layout\n"), []);
    }

    #[test]
    fn what_was_ended_is_not_alive() {
        let mark = std::env::args().next().unwrap();
        let mut running = Running { name: "x".into(), pid: std::process::id(), port: 1, mark, url: String::new() };
        assert!(running.alive());
        running.pid = 0;
        assert!(!running.alive());
    }
}
