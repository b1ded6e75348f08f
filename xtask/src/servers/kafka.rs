//! An Apache Kafka node: one process that is broker and controller, from the jars on Maven Central.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use super::{LIMIT, emptied, free_port, serves};
use crate::process::{kill_tree, on_path, run_logged, tail, wait_until};

const VERSION: &str = "4.1.1";
/// The oldest Java that runs it.
const JAVA: u32 = 17;
/// What it logs once it serves.
const READY: &str = "Kafka Server started";

/// A node in a folder.
#[derive(Clone, Debug)]
pub struct Node {
    java: PathBuf,
    jars: PathBuf,
    base: PathBuf,
    port: u16,
}

/// A second listener, for clients that come by a proxy: they are told to come back by the proxy too.
#[derive(Clone, Copy, Debug)]
pub struct Proxied {
    /// Where the node listens.
    pub listens: u16,
    /// The proxy's port.
    pub advertised: u16,
}

/// A Java that is new enough: the one on the `PATH`, or another that is installed.
#[must_use]
pub fn java() -> Option<PathBuf> {
    let installed =
        fs::read_dir("/usr/lib/jvm").into_iter().flatten().flatten().map(|entry| entry.path().join("bin/java"));
    on_path("java").into_iter().chain(installed).find(|java| {
        let output = Command::new(java).arg("-version").output();
        output.is_ok_and(|output| major(&String::from_utf8_lossy(&output.stderr)).is_some_and(|major| major >= JAVA))
    })
}

/// The major version in what `java -version` prints: `openjdk version "17.0.15" …`, and 1 for `"1.8.0"`.
fn major(text: &str) -> Option<u32> {
    text.split('"').nth(1)?.split(['.', '-', '+']).next()?.parse().ok()
}

impl Node {
    /// Makes an empty node in `base`. The jars are those in `downloads`, fetched if they are not there.
    ///
    /// # Errors
    /// When there is no Java, or the jars cannot be had.
    pub fn make(downloads: &Path, base: &Path, port: u16, proxied: Option<Proxied>) -> Result<Self> {
        let java = java().context("no Java that is new enough is installed")?;
        let node = Self { java, jars: jars(downloads)?, base: base.to_path_buf(), port };
        emptied(base)?;
        fs::write(node.properties(), settings(&base.join("data"), port, free_port()?, proxied))
            .context("cannot write server.properties")?;
        let mut format = node.program("kafka.tools.StorageTool");
        // Any id will do, there is nobody else in this cluster.
        format.args(["format", "-t", "aW5ib3gtdGVzdC0wMDAwMQ", "-c"]).arg(node.properties());
        run_logged(&mut format, &base.join("format.log"))?;
        Ok(node)
    }

    /// Starts the node, waits until it serves, and says its process id.
    ///
    /// # Errors
    /// When it does not come up within [`LIMIT`]; its log is in the text, and nothing of it is left running.
    pub fn start(&self) -> Result<u32> {
        let log = self.log();
        let output = File::create(&log).context("cannot write the server's log")?;
        let mut server = detached(&self.program("kafka.Kafka"));
        server.arg(self.properties()).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let mut child = server.spawn().context("cannot run setsid")?;
        let mut ended = false;
        wait_until(LIMIT, || {
            ended = !matches!(child.try_wait(), Ok(None));
            ended || (says_ready(&log) && serves(self.port))
        });
        if ended || !says_ready(&log) {
            kill_tree(child.id());
            bail!("{}", tail(&log));
        }
        let pid = child.id();
        // Nobody else waits for it, and as a zombie it would look alive.
        drop(std::thread::Builder::new().name("kafka".into()).spawn(move || child.wait()));
        Ok(pid)
    }

    /// What the command line of its process contains and no other's does.
    #[must_use]
    pub fn mark(&self) -> String {
        self.properties().display().to_string()
    }

    /// Its port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    fn properties(&self) -> PathBuf {
        self.base.join("server.properties")
    }

    fn log(&self) -> PathBuf {
        self.base.join("server.log")
    }

    fn program(&self, class: &str) -> Command {
        let mut command = Command::new(&self.java);
        command.args(["-Xmx512m", "-cp"]).arg(self.jars.join("*")).arg(class);
        command
    }
}

/// The command in a session of its own, as `pg_ctl` starts PostgreSQL: neither an interrupt at the terminal nor the end
/// of the session that started it is for it. A child is no group leader, so `setsid` becomes the program and keeps its
/// process id.
fn detached(command: &Command) -> Command {
    let mut detached = Command::new("setsid");
    detached.arg(command.get_program()).args(command.get_args());
    detached
}

fn says_ready(log: &Path) -> bool {
    fs::read(log).is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(READY))
}

/// The folder of the jars, fetched unless all of this version are there.
fn jars(downloads: &Path) -> Result<PathBuf> {
    let jars = downloads.join("kafka-lib");
    // Written last: without it the folder may be half full.
    let marker = jars.join("complete");
    if fs::read_to_string(&marker).is_ok_and(|version| version == VERSION) {
        return Ok(jars);
    }
    eprintln!("kafka: fetching the jars of {VERSION}");
    emptied(&jars)?;
    let project = downloads.join("kafka-pom");
    emptied(&project)?;
    let pom = project.join("pom.xml");
    fs::write(&pom, pom_text()).context("cannot write pom.xml")?;
    let mut mvn = Command::new("mvn");
    mvn.args(["-B", "-f"]).arg(&pom).arg("dependency:copy-dependencies").arg("-DincludeScope=runtime");
    mvn.arg(format!("-DoutputDirectory={}", jars.display()));
    run_logged(&mut mvn, &project.join("mvn.log"))?;
    fs::write(&marker, VERSION).context("cannot write the marker of the jars")?;
    Ok(jars)
}

fn pom_text() -> String {
    let dependency = |group: &str, artifact: &str, version: &str| {
        format!(
            "<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version></dependency>"
        )
    };
    format!(
        "<project xmlns=\"http://maven.apache.org/POM/4.0.0\"><modelVersion>4.0.0</modelVersion>\
         <groupId>inbox</groupId><artifactId>kafka-lib</artifactId><version>1</version><dependencies>{}{}</dependencies>\
         </project>\n",
        dependency("org.apache.kafka", "kafka_2.13", VERSION),
        dependency("org.slf4j", "slf4j-simple", "1.7.36"),
    )
}

fn settings(data: &Path, port: u16, controller: u16, proxied: Option<Proxied>) -> String {
    let (listens, advertised) = proxied.map_or_else(Default::default, |Proxied { listens, advertised }| {
        (format!(",PROXIED://127.0.0.1:{listens}"), format!(",PROXIED://127.0.0.1:{advertised}"))
    });
    format!(
        "process.roles=broker,controller\n\
         node.id=1\n\
         controller.quorum.voters=1@127.0.0.1:{controller}\n\
         listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}{listens}\n\
         advertised.listeners=PLAINTEXT://127.0.0.1:{port}{advertised}\n\
         listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:PLAINTEXT\n\
         controller.listener.names=CONTROLLER\n\
         log.dirs={}\n\
         offsets.topic.replication.factor=1\n\
         transaction.state.log.replication.factor=1\n\
         transaction.state.log.min.isr=1\n\
         share.coordinator.state.topic.replication.factor=1\n\
         share.coordinator.state.topic.min.isr=1\n\
         offsets.topic.num.partitions=8\n\
         transaction.state.log.num.partitions=8\n\
         group.initial.rebalance.delay.ms=0\n\
         num.partitions=1\n\
         auto.create.topics.enable=false\n",
        data.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_java_is_read() {
        assert_eq!(major("openjdk version \"17.0.15\" 2025-04-15\nOpenJDK …"), Some(17));
        assert_eq!(major("openjdk version \"21\" 2023-09-19"), Some(21));
        assert_eq!(major("java version \"1.8.0_392\""), Some(1));
        assert_eq!(major("command not found"), None);
    }

    #[test]
    fn the_server_leads_a_session_and_keeps_its_process_id() {
        let mut sleep = Command::new("sleep");
        sleep.arg("60.75");
        let mut child = detached(&sleep).spawn().unwrap();
        // The sixth field of stat is the session; the name before it holds no bracket here.
        let session = || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
            stat.rsplit_once(')').unwrap().1.split_whitespace().nth(3).unwrap().parse::<u32>().unwrap()
        };
        assert!(wait_until(LIMIT, || session() == child.id()));
        kill_tree(child.id());
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn the_broker_is_told_of_its_ports() {
        let text = settings(Path::new("/data"), 1000, 2000, None);
        assert!(text.contains("advertised.listeners=PLAINTEXT://127.0.0.1:1000\n"));
        assert!(text.contains("controller.quorum.voters=1@127.0.0.1:2000\n"));
        assert!(text.contains("log.dirs=/data\n"));
        // A topic that a test forgot to make is a failure, not a topic with the broker's defaults.
        assert!(text.contains("auto.create.topics.enable=false\n"));
        let text = settings(Path::new("/data"), 1000, 2000, Some(Proxied { listens: 3000, advertised: 4000 }));
        assert!(text.contains("advertised.listeners=PLAINTEXT://127.0.0.1:1000,PROXIED://127.0.0.1:4000\n"));
        assert!(text.contains("CONTROLLER://127.0.0.1:2000,PROXIED://127.0.0.1:3000\n"));
    }
}
