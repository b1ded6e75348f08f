//! A RabbitMQ node with an epmd of its own.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
};

use anyhow::{Context, Result, bail};

use super::{LIMIT, emptied, free_port, serves};
use crate::process::{gone, kill_tree, on_path, run_logged, runs, signal, tail, wait_until};

/// How long the server lets a delivery be without an answer, in milliseconds: short, so that a test can see it happen.
pub const CONSUMER_TIMEOUT: u32 = 20_000;
/// How often it looks.
const CHANNEL_TICK: u32 = 1_000;

/// A node in a folder.
#[derive(Clone, Debug)]
pub struct Node {
    sbin: PathBuf,
    base: PathBuf,
    port: u16,
    /// Of epmd, which knows where nodes are.
    names: u16,
    /// Of the node, for other nodes and its command line tools.
    nodes: u16,
}

/// The folder of the server's own scripts: those on the `PATH` of a Debian machine change to another user first.
#[must_use]
pub fn scripts() -> Option<PathBuf> {
    let installed = fs::read_dir("/usr/lib/rabbitmq/lib").into_iter().flatten().flatten();
    let own = installed.map(|entry| entry.path().join("sbin")).find(|sbin| sbin.join("rabbitmq-server").is_file());
    own.or_else(|| Some(on_path("rabbitmq-server")?.parent()?.to_path_buf()))
}

impl Node {
    /// Makes an empty node in `base`. What an earlier one in it has left running is ended.
    ///
    /// # Errors
    /// When no RabbitMQ is installed, or the file system says no.
    pub fn make(base: &Path, port: u16) -> Result<Self> {
        let sbin = scripts().context("no RabbitMQ is installed")?;
        end_epmd(base)?;
        emptied(base)?;
        fs::write(base.join("rabbitmq.conf"), settings()).context("cannot write rabbitmq.conf")?;
        fs::write(base.join("advanced.config"), advanced_settings()).context("cannot write advanced.config")?;
        fs::write(base.join("enabled_plugins"), "[].\n").context("cannot write the list of plugins")?;
        Ok(Self { sbin, base: base.to_path_buf(), port, names: free_port()?, nodes: free_port()? })
    }

    /// Starts the node on the data that is there, waits until it serves, and says its process id.
    ///
    /// # Errors
    /// When it does not come up within [`LIMIT`]; its log is in the text, and nothing of it is left running.
    pub fn start(&self) -> Result<u32> {
        let started = self.start_epmd().and_then(|()| self.start_node());
        if started.is_err() {
            end_epmd(&self.base)?;
        }
        started
    }

    /// Ends the node as an operator does, or by `kill -9`; epmd stays for the next start.
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
            bail!("the node, process {pid}, does not end\n{}", tail(&self.log()));
        }
        Ok(())
    }

    /// Runs `rabbitmqctl` on the node.
    ///
    /// # Errors
    /// When it fails; the end of its output is in the text.
    pub fn control(&self, arguments: &[&str]) -> Result<()> {
        let mut command = Command::new(self.sbin.join("rabbitmqctl"));
        self.environment(&mut command);
        run_logged(command.args(arguments), &self.base.join("control.log"))
    }

    /// How often its log says this since it was made.
    #[must_use]
    pub fn has_logged(&self, words: &str) -> usize {
        fs::read(self.log()).map_or(0, |log| String::from_utf8_lossy(&log).matches(words).count())
    }

    /// What the command line of its process contains and no other's does.
    #[must_use]
    pub fn mark(&self) -> String {
        self.base.join("data").display().to_string()
    }

    /// Its port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where its user of the first day comes in.
    #[must_use]
    pub fn url(&self) -> String {
        format!("rabbitmq://guest:guest@127.0.0.1:{}", self.port)
    }

    fn log(&self) -> PathBuf {
        self.base.join("server.log")
    }

    /// Starts epmd, unless it runs, in the foreground of a session of its own. The node would start one too, but as a daemon
    /// on the port that all nodes of the machine share, where it outlives them.
    fn start_epmd(&self) -> Result<()> {
        let file = self.base.join("epmd");
        if epmd(&fs::read_to_string(&file).unwrap_or_default()).is_some_and(|(pid, mark)| runs(pid, &mark)) {
            return Ok(());
        }
        let mut epmd = Command::new("setsid");
        epmd.args(["epmd", "-address", "127.0.0.1", "-port", &self.names.to_string()]);
        let output = self.output()?;
        epmd.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let child = epmd.spawn().context("cannot run setsid")?;
        let pid = child.id();
        reap(child);
        fs::write(file, format!("{pid} {}", self.names)).context("cannot write down epmd's process")?;
        if !wait_until(LIMIT, || serves(self.names)) {
            bail!("epmd does not answer\n{}", tail(&self.log()));
        }
        Ok(())
    }

    fn start_node(&self) -> Result<u32> {
        let mut node = Command::new("setsid");
        node.arg(self.sbin.join("rabbitmq-server"));
        self.environment(&mut node);
        let output = self.output()?;
        node.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let mut child = node.spawn().context("cannot run setsid")?;
        let pid = child.id();
        let mut ended = false;
        let up = wait_until(LIMIT, || {
            ended = !matches!(child.try_wait(), Ok(None));
            ended || serves(self.port)
        });
        if ended || !up {
            kill_tree(pid);
            bail!("{}", tail(&self.log()));
        }
        reap(child);
        Ok(pid)
    }

    fn environment(&self, command: &mut Command) {
        let base = &self.base;
        // As a unit of systemd the script becomes the node; otherwise it stays its parent.
        command.env("RUNNING_UNDER_SYSTEMD", "true").env_remove("NOTIFY_SOCKET");
        // The cookie by which nodes know each other is made in here.
        command.env("HOME", base).current_dir(base);
        command.env("ERL_EPMD_ADDRESS", "127.0.0.1").env("ERL_EPMD_PORT", self.names.to_string());
        command.env("RABBITMQ_NODENAME", "inbox@localhost").env("RABBITMQ_DIST_PORT", self.nodes.to_string());
        command.env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1").env("RABBITMQ_NODE_PORT", self.port.to_string());
        command.env("RABBITMQ_CONFIG_FILE", base.join("rabbitmq.conf"));
        command.env("RABBITMQ_ADVANCED_CONFIG_FILE", base.join("advanced.config"));
        command.env("RABBITMQ_CONF_ENV_FILE", base.join("none"));
        command.env("RABBITMQ_MNESIA_BASE", base.join("data")).env("RABBITMQ_LOG_BASE", base.join("log"));
        command.env("RABBITMQ_ENABLED_PLUGINS_FILE", base.join("enabled_plugins"));
        command.env("RABBITMQ_FEATURE_FLAGS_FILE", base.join("feature_flags"));
        command.env("RABBITMQ_PID_FILE", base.join("pid"));
        // Waiting schedulers that spin would take time from everything else on a small machine.
        let spin = "+sbwt none +sbwtdcpu none +sbwtdio none";
        let listen = "-kernel inet_dist_use_interface {127,0,0,1}";
        command.env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", format!("{spin} {listen} -mark {}", self.mark()));
    }

    fn output(&self) -> Result<File> {
        File::options().create(true).append(true).open(self.log()).context("cannot write the server's log")
    }
}

/// What `rabbitmq.conf` says.
fn settings() -> String {
    // Tests must not stop because the machine's disk is nearly full.
    format!(
        "consumer_timeout = {CONSUMER_TIMEOUT}\ndisk_free_limit.absolute = 50MB\nlog.console = true\nlog.file = false\n"
    )
}

/// What only the old format can say.
fn advanced_settings() -> String {
    format!("[{{rabbit, [{{channel_tick_interval, {CHANNEL_TICK}}}]}}].\n")
}

/// Ends the epmd of the node in `base`.
///
/// # Errors
/// When it is still there after [`LIMIT`].
pub fn end_epmd(base: &Path) -> Result<()> {
    let file = base.join("epmd");
    let text = fs::read_to_string(&file).unwrap_or_default();
    let Some((pid, mark)) = epmd(&text) else { return Ok(()) };
    if runs(pid, &mark) {
        kill_tree(pid);
    }
    if !wait_until(LIMIT, || gone(pid, &mark)) {
        bail!("epmd, process {pid}, does not end");
    }
    fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))
}

/// The process that was written down, and what its command line contains.
fn epmd(text: &str) -> Option<(u32, String)> {
    let (pid, port) = text.split_once(' ')?;
    Some((pid.parse().ok()?, format!("-port {port}")))
}

/// Waits for a child in the background: as a zombie it would look alive.
fn reap(mut child: Child) {
    drop(thread::Builder::new().name("rabbitmq".into()).spawn(move || child.wait()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epmd_is_found_by_what_was_written_down() {
        assert_eq!(epmd("12 4369"), Some((12, "-port 4369".to_owned())));
        assert_eq!(epmd(""), None);
        assert_eq!(epmd("x 4369"), None);
    }

    #[test]
    fn the_server_is_told_of_its_timeout() {
        assert!(settings().contains("consumer_timeout = 20000\n"));
        assert_eq!(advanced_settings(), "[{rabbit, [{channel_tick_interval, 1000}]}].\n");
    }
}
