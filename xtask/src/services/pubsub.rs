//! Google Cloud Pub/Sub: Google's emulator, which keeps everything in memory.
//!
//! It is no Debian package, so that a machine without it cannot be given it here. Google's fake for Go programs (`pstest`)
//! is no way out: it does not speak the HTTP by which the client makes topics and subscriptions, has no snapshots, hands
//! out one message of a key at a time, and never refuses an acknowledgement. A stand-in of our own needs nothing but cargo.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use xtask::{
    process::{kill_tree, on_path, run_logged, tail, wait_until},
    servers::{LIMIT, emptied, kafka::java, serves},
};

use super::{Service, Start, packages::Need, state::Running};

const MAIN: &str = "com.google.cloud.pubsub.testing.v1.Main";
/// What it logs once it serves.
const READY: &str = "Server started, listening on";
/// The emulator that was packed with parts of two versions of gRPC: it does not notice that a client's stream has ended,
/// and goes on delivering to it. With the older part in front it does.
const MIXED: &str = "cloud-pubsub-emulator-0.8.20-all.jar";
const GRPC_API: &str = "1.68.1";
/// How many threads it may have. It makes one for each key of an ordered subscription, which looks for work again and again
/// and never ends: after a few thousand, requests take seconds.
const MOST_THREADS: usize = 400;

/// Pub/Sub as a service.
pub(super) const SERVICE: Service = Service {
    name: "pubsub",
    variable: "INBOX_TEST_PUBSUB",
    needs: &[
        Need { present: || java().is_some(), package: "openjdk-17-jre-headless" },
        Need {
            present: || !emulator().is_some_and(|jar| is_mixed(&jar)) || on_path("mvn").is_some(),
            package: "maven",
        },
    ],
    start,
    stop: "TERM",
    clean: |_| Ok(()),
};

/// Whether it can be started here; the error names the ways out.
pub(super) fn possible() -> Result<()> {
    if emulator().is_some() {
        return Ok(());
    }
    bail!(
        "the Pub/Sub emulator is not installed, and no registry that is used here has it; either\n\
         - install it: `gcloud components install pubsub-emulator`, or Google's package google-cloud-cli-pubsub-emulator;\n\
         - or give one that runs elsewhere: {0}='pubsub://PROJECT?endpoint=http://HOST:PORT';\n\
         - or run our own stand-in, `cargo run -p inbox-pubsub --example pubsub-standin 8085`, and give that: \
         {0}='pubsub://inbox-tests?endpoint=http://127.0.0.1:8085';\n\
         - or leave its tests out, outside CI: `cargo xtask test --without pubsub`, and with `services up` name the others",
        SERVICE.variable
    )
}

/// Whether it is the emulator, and slow by now.
pub(super) fn is_worn(running: &Running) -> bool {
    let threads = || fs::read_dir(format!("/proc/{}/task", running.pid)).map_or(0, Iterator::count);
    running.name == SERVICE.name && running.alive() && threads() > MOST_THREADS
}

/// The emulator's program, wherever Google's installers put it.
fn emulator() -> Option<PathBuf> {
    let gcloud = on_path("gcloud").and_then(|gcloud| gcloud.canonicalize().ok());
    let own = gcloud.as_deref().and_then(Path::parent).and_then(Path::parent).map(Path::to_path_buf);
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join("google-cloud-sdk"));
    let roots =
        ["/usr/lib/google-cloud-sdk", "/usr/share/google-cloud-sdk", "/opt/google-cloud-sdk"].map(PathBuf::from);
    own.into_iter().chain(home).chain(roots).find_map(|root| {
        let files = fs::read_dir(root.join("platform/pubsub-emulator/lib")).into_iter().flatten().flatten();
        files.map(|file| file.path()).find(|file| is_emulator(file))
    })
}

fn is_emulator(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("cloud-pubsub-emulator-") && name.ends_with("-all.jar")
}

fn is_mixed(jar: &Path) -> bool {
    jar.file_name().is_some_and(|name| name == MIXED)
}

fn start(with: &Start<'_>) -> Result<Running> {
    possible()?;
    let (java, jar) = (java().context("no Java that is new enough")?, emulator().context("no emulator")?);
    let port = with.port()?;
    let base = with.folder.join("pubsub");
    emptied(&base)?;
    let mut path = std::ffi::OsString::new();
    if is_mixed(&jar) {
        path.push(grpc_api(&with.folder.join("pubsub-lib"))?);
        path.push(":");
    }
    path.push(&jar);
    let log = base.join("server.log");
    let output = File::create(&log).context("cannot write the server's log")?;
    // In a session of its own: an interrupt at the terminal is not for it.
    let mut server = Command::new("setsid");
    server.arg(java).args(["-Xmx512m", "-cp"]).arg(path).arg(MAIN);
    let listens = format!("--port={port}");
    server.args(["--host=127.0.0.1", &listens]);
    server.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    let mut child = server.spawn().context("cannot run setsid")?;
    let ready = || fs::read(&log).is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(READY));
    let mut ended = false;
    let up = wait_until(LIMIT, || {
        ended = !matches!(child.try_wait(), Ok(None));
        ended || (ready() && serves(port))
    });
    if ended || !up {
        kill_tree(child.id());
        bail!("{}", tail(&log));
    }
    let pid = child.id();
    // Nobody else waits for it, and as a zombie it would look alive.
    drop(std::thread::Builder::new().name("pubsub".into()).spawn(move || child.wait()));
    let mark = format!("{MAIN} --host=127.0.0.1 {listens}");
    let url = format!("pubsub://inbox-tests?endpoint=http://127.0.0.1:{port}");
    Ok(Running { name: SERVICE.name.to_owned(), pid, port, mark, url })
}

/// The part of gRPC that the mixed emulator lacks, fetched unless it is there.
fn grpc_api(folder: &Path) -> Result<PathBuf> {
    let jar = folder.join(format!("grpc-api-{GRPC_API}.jar"));
    // Written last: without it the file may be half there.
    let marker = folder.join("complete");
    if fs::read_to_string(&marker).is_ok_and(|version| version == GRPC_API) && jar.is_file() {
        return Ok(jar);
    }
    eprintln!("pubsub: fetching grpc-api {GRPC_API}");
    emptied(folder)?;
    let mut mvn = Command::new("mvn");
    mvn.args(["-B", "dependency:copy", "-Dtransitive=false"]);
    mvn.arg(format!("-Dartifact=io.grpc:grpc-api:{GRPC_API}"));
    mvn.arg(format!("-DoutputDirectory={}", folder.display()));
    run_logged(&mut mvn, &folder.join("mvn.log"))?;
    fs::write(&marker, GRPC_API).context("cannot write the marker of the jar")?;
    Ok(jar)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_emulator_is_known_by_its_name() {
        assert!(is_emulator(Path::new("/x/cloud-pubsub-emulator-0.8.20-all.jar")));
        assert!(is_emulator(Path::new("/x/cloud-pubsub-emulator-0.9.0-all.jar")));
        assert!(!is_emulator(Path::new("/x/cloud-pubsub-emulator.txt")));
        assert!(is_mixed(Path::new("/x").join(MIXED).as_path()));
        assert!(!is_mixed(Path::new("/x/cloud-pubsub-emulator-0.9.0-all.jar")));
    }
}
