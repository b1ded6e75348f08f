//! Processor time and memory, of this process and of the servers, as Linux counts them.

use std::{net::SocketAddr, ops::Add};

use anyhow::Result;
use procfs::{
    WithCurrentSystemInfo as _,
    net::TcpState,
    process::{FDTarget, Process, Stat},
};
use serde::{Deserialize, Serialize};

/// The servers' processes, where they run on this machine and can be looked at.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Servers {
    /// The parent of all processes of PostgreSQL.
    pub(crate) postmaster: Option<i32>,
    /// The broker's only process.
    pub(crate) broker: Option<i32>,
}

/// Seconds of processor time, in user and kernel mode together.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Usage {
    /// This process.
    pub(crate) client: f64,
    /// All processes of PostgreSQL, also those that have ended.
    pub(crate) database: Option<f64>,
    /// The broker.
    pub(crate) broker: Option<f64>,
}

impl Usage {
    /// What was used since `before`.
    pub(crate) fn since(self, before: Self) -> Self {
        let minus = |now: Option<f64>, then: Option<f64>| now.zip(then).map(|(now, then)| now - then);
        Self {
            client: self.client - before.client,
            database: minus(self.database, before.database),
            broker: minus(self.broker, before.broker),
        }
    }
}

impl Servers {
    /// What was used so far.
    pub(crate) fn usage(&self) -> Usage {
        Usage {
            client: Process::myself().and_then(|process| process.stat()).map_or(0.0, |stat| own(&stat)),
            database: self.postmaster.and_then(family),
            broker: self.broker.and_then(stat_of).map(|stat| own(&stat)),
        }
    }
}

fn stat_of(pid: i32) -> Option<Stat> {
    Process::new(pid).and_then(|process| process.stat()).ok()
}

/// Seconds of a number of clock ticks.
fn seconds(ticks: u64) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "a count of hundredths of a second")]
    let seconds = ticks as f64 / procfs::ticks_per_second() as f64;
    seconds
}

fn own(stat: &Stat) -> f64 {
    seconds(stat.utime + stat.stime)
}

/// A process with its children, those included that have ended and been waited for.
fn family(parent: i32) -> Option<f64> {
    // A child that ends between the two looks is in neither sum, or in both: then look again.
    for _ in 0..10 {
        let before = stat_of(parent)?;
        let living: f64 = procfs::process::all_processes()
            .ok()?
            .filter_map(|process| process.ok()?.stat().ok())
            .filter(|stat| stat.ppid == parent)
            .map(|stat| own(&stat))
            .fold(0.0, f64::add);
        let after = stat_of(parent)?;
        if ended(&before) == ended(&after) {
            return Some(own(&after) + seconds(ended(&after)) + living);
        }
    }
    None
}

fn ended(stat: &Stat) -> u64 {
    u64::try_from(stat.cutime + stat.cstime).unwrap_or(0)
}

/// The resident memory of this process, in bytes.
pub(crate) fn resident() -> Result<u64> {
    Ok(Process::myself()?.stat()?.rss_bytes().get())
}

/// The most that it ever was.
pub(crate) fn peak() -> Result<u64> {
    Ok(Process::myself()?.status()?.vmhwm.unwrap_or(0) * 1024)
}

/// The parent of process `pid`, if that is called `name` and runs here.
pub(crate) fn parent_of(pid: i32, name: &str) -> Option<i32> {
    stat_of(pid).filter(|stat| stat.comm == name).map(|stat| stat.ppid)
}

/// The process that listens on `port` of this machine.
pub(crate) fn listener(port: u16) -> Option<i32> {
    let (four, six) = (procfs::net::tcp().unwrap_or_default(), procfs::net::tcp6().unwrap_or_default());
    let listens = |address: SocketAddr, state: &TcpState| *state == TcpState::Listen && address.port() == port;
    let mut sockets = four.iter().chain(&six);
    let inode = sockets.find(|socket| listens(socket.local_address, &socket.state))?.inode;
    procfs::process::all_processes().ok()?.flatten().find(|process| holds(process, inode)).map(|process| process.pid)
}

fn holds(process: &Process, socket: u64) -> bool {
    let Ok(files) = process.fd() else { return false };
    files.flatten().any(|file| matches!(file.target, FDTarget::Socket(inode) if inode == socket))
}

/// The names of the files that process `pid` has open.
pub(crate) fn files_of(pid: i32) -> Vec<String> {
    let Ok(files) = Process::new(pid).and_then(|process| process.fd()) else { return Vec::new() };
    let path = |target| match target {
        FDTarget::Path(path) => Some(path.display().to_string()),
        _ => None,
    };
    files.flatten().filter_map(|file| path(file.target)).collect()
}

/// What process `pid` was started with: its arguments, and what its environment's variables hold.
pub(crate) fn words_of(pid: i32) -> Vec<String> {
    let Ok(process) = Process::new(pid) else { return Vec::new() };
    let mut words = process.cmdline().unwrap_or_default();
    let variables = process.environ().unwrap_or_default();
    words.extend(variables.into_values().filter_map(|value| value.into_string().ok()));
    words
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_listener_is_found_by_its_port() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(super::listener(port), Some(std::process::id().cast_signed()));
        drop(listener);
        assert_eq!(super::listener(port), None);
    }

    #[test]
    fn children_that_have_ended_count() {
        let me = std::process::id().cast_signed();
        let before = family(me).unwrap();
        let mut busy = std::process::Command::new("sh");
        busy.args(["-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"]);
        assert!(busy.status().unwrap().success());
        assert!(family(me).unwrap() - before > 0.01, "the loop took no time");
    }
}
