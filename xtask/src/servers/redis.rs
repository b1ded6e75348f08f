//! A Redis server.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
};

use anyhow::{Context, Result, bail};

use super::{LIMIT, emptied, serves};
use crate::process::{gone, kill_tree, on_path, signal, tail, wait_until};

/// A server in a folder.
#[derive(Clone, Debug)]
pub struct Node {
    program: PathBuf,
    base: PathBuf,
    port: u16,
}

/// The server's program.
#[must_use]
pub fn program() -> Option<PathBuf> {
    on_path("redis-server")
}

impl Node {
    /// Makes an empty server in `base`.
    ///
    /// # Errors
    /// When no Redis is installed, or the file system says no.
    pub fn make(base: &Path, port: u16) -> Result<Self> {
        let program = program().context("no Redis is installed")?;
        emptied(base)?;
        fs::create_dir_all(base.join("data")).context("cannot make the data folder")?;
        let node = Self { program, base: base.to_path_buf(), port };
        fs::write(node.settings_file(), settings(&base.join("data"), port)).context("cannot write redis.conf")?;
        Ok(node)
    }

    /// Starts the server on the data that is there, waits until it accepts connections, and says its process id.
    ///
    /// # Errors
    /// When it does not come up within [`LIMIT`]; its log is in the text, and nothing of it is left running.
    pub fn start(&self) -> Result<u32> {
        let log = self.base.join("server.log");
        let output = File::options().create(true).append(true).open(&log).context("cannot write the server's log")?;
        // In a session of its own: an interrupt at the terminal is not for it.
        let mut server = Command::new("setsid");
        server.arg(&self.program).arg(self.settings_file());
        server.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let mut child = server.spawn().context("cannot run setsid")?;
        let pid = child.id();
        let mut ended = false;
        let up = wait_until(LIMIT, || {
            ended = !matches!(child.try_wait(), Ok(None));
            ended || serves(self.port)
        });
        if ended || !up {
            kill_tree(pid);
            bail!("{}", tail(&log));
        }
        reap(child);
        Ok(pid)
    }

    /// Ends the server as an operator does, or by `kill -9`.
    ///
    /// # Errors
    /// When it is still there after [`LIMIT`].
    pub fn stop(&self, pid: u32, kill: bool) -> Result<()> {
        if kill {
            kill_tree(pid)
        } else {
            signal(pid, "TERM")?
        }
        if !wait_until(LIMIT, || gone(pid, &self.mark())) {
            bail!("the server, process {pid}, does not end\n{}", tail(&self.base.join("server.log")));
        }
        Ok(())
    }

    /// What the command line of its process contains and no other's does.
    #[must_use]
    pub fn mark(&self) -> String {
        self.settings_file().display().to_string()
    }

    /// Its port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where it is.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    fn settings_file(&self) -> PathBuf {
        self.base.join("redis.conf")
    }
}

/// What `redis.conf` says: what is confirmed is on the disk, as production should have it, and nothing is ever evicted.
fn settings(data: &Path, port: u16) -> String {
    format!(
        "bind 127.0.0.1\nport {port}\ndir {}\nappendonly yes\nappendfsync always\nsave \"\"\nmaxmemory-policy noeviction\n\
         daemonize no\nset-proc-title no\n",
        data.display()
    )
}

/// Waits for a child in the background: as a zombie it would look alive.
fn reap(mut child: Child) {
    drop(thread::Builder::new().name("redis".into()).spawn(move || child.wait()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_writes_before_it_confirms() {
        let settings = settings(Path::new("here"), 1);
        assert!(settings.contains("appendonly yes\nappendfsync always\n") && settings.contains("dir here\n"));
    }
}
