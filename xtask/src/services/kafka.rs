//! Apache Kafka: one process that is broker and controller, from the jars on Maven Central.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use super::{LIMIT, Service, Start, emptied, free_port, packages::Need, serves, state::Running};
use crate::process::{kill_tree, on_path, run_logged, tail, wait_until};

const VERSION: &str = "4.1.1";
/// The oldest Java that runs it.
const JAVA: u32 = 17;
/// What it logs once it serves.
const READY: &str = "Kafka Server started";

/// Kafka as a service.
pub(super) const SERVICE: Service = Service {
    name: "kafka",
    variable: "INBOX_TEST_KAFKA",
    needs: &[
        Need { present: || java().is_some(), package: "openjdk-17-jre-headless" },
        Need { present: || on_path("mvn").is_some(), package: "maven" },
    ],
    start,
    stop: "TERM",
    clean: |_| Ok(()),
};

/// A Java that is new enough: the one on the `PATH`, or another that is installed.
fn java() -> Option<PathBuf> {
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

fn start(with: &Start<'_>) -> Result<Running> {
    let java = java().context("no Java that is new enough is installed")?;
    let jars = jars(with.folder)?;
    let base = with.folder.join("kafka");
    emptied(&base)?;
    let (port, controller) = (with.port()?, free_port()?);
    let properties = base.join("server.properties");
    fs::write(&properties, settings(&base.join("data"), port, controller)).context("cannot write server.properties")?;

    let format_log = base.join("format.log");
    let mut format = program(&java, &jars, "kafka.tools.StorageTool");
    // Any id will do, there is nobody else in this cluster.
    run_logged(format.args(["format", "-t", "aW5ib3gtdGVzdC0wMDAwMQ", "-c"]).arg(&properties), &format_log)?;

    let log = base.join("server.log");
    let output = File::create(&log).context("cannot write the server's log")?;
    let mut server = detached(&program(&java, &jars, "kafka.Kafka"));
    server.arg(&properties).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    let mut child = server.spawn().context("cannot run setsid")?;
    let running = Running {
        name: SERVICE.name.to_owned(),
        pid: child.id(),
        port,
        mark: properties.display().to_string(),
        url: format!("kafka://127.0.0.1:{port}"),
    };
    let mut ended = false;
    wait_until(LIMIT, || {
        ended = !matches!(child.try_wait(), Ok(None));
        ended || (says_ready(&log) && serves(port))
    });
    if ended || !says_ready(&log) {
        kill_tree(child.id());
        bail!("{}", tail(&log));
    }
    Ok(running)
}

/// The command in a session of its own, as `pg_ctl` starts PostgreSQL: neither an interrupt at the terminal nor the end
/// of the session that called `up` is for it. A child is no group leader, so `setsid` becomes the program and keeps its
/// process id.
fn detached(command: &Command) -> Command {
    let mut detached = Command::new("setsid");
    detached.arg(command.get_program()).args(command.get_args());
    detached
}

fn says_ready(log: &Path) -> bool {
    fs::read(log).is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(READY))
}

fn program(java: &Path, jars: &Path, class: &str) -> Command {
    let mut command = Command::new(java);
    command.args(["-Xmx512m", "-cp"]).arg(jars.join("*")).arg(class);
    command
}

/// The folder of the jars, fetched unless all of this version are there.
fn jars(folder: &Path) -> Result<PathBuf> {
    let jars = folder.join("kafka-lib");
    // Written last: without it the folder may be half full.
    let marker = jars.join("complete");
    if fs::read_to_string(&marker).is_ok_and(|version| version == VERSION) {
        return Ok(jars);
    }
    eprintln!("kafka: fetching the jars of {VERSION}");
    emptied(&jars)?;
    let project = folder.join("kafka-pom");
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

fn settings(data: &Path, port: u16, controller: u16) -> String {
    format!(
        "process.roles=broker,controller\n\
         node.id=1\n\
         controller.quorum.voters=1@127.0.0.1:{controller}\n\
         listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n\
         advertised.listeners=PLAINTEXT://127.0.0.1:{port}\n\
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
    fn the_broker_is_told_of_both_ports() {
        let text = settings(Path::new("/data"), 1000, 2000);
        assert!(text.contains("advertised.listeners=PLAINTEXT://127.0.0.1:1000\n"));
        assert!(text.contains("controller.quorum.voters=1@127.0.0.1:2000\n"));
        assert!(text.contains("log.dirs=/data\n"));
        // A topic that a test forgot to make is a failure, not a topic with the broker's defaults.
        assert!(text.contains("auto.create.topics.enable=false\n"));
    }
}
