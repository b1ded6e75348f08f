//! SQS: moto's server, a stand-in that keeps queues in memory, in a virtual environment of its own. `moto_server.py` starts it and
//! says what it mends.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use xtask::{
    process::{kill_tree, on_path, run_logged, tail, wait_until},
    servers::{LIMIT, emptied, serves},
};

use super::{Service, Start, packages::Need, state::Running};

const VERSION: &str = "5.2.5";
const SERVER: &str = include_str!("moto_server.py");

/// SQS as a service.
pub(super) const SERVICE: Service = Service {
    name: "sqs",
    variable: "INBOX_TEST_SQS",
    needs: &[
        Need { present: || on_path("python3").is_some(), package: "python3" },
        Need { present: makes_environments, package: "python3-venv" },
    ],
    start,
    stop: "TERM",
    clean: |_| Ok(()),
};

/// Whether Python can make virtual environments with `pip` in them; Debian has both in a package of their own.
fn makes_environments() -> bool {
    let output = Command::new("python3").args(["-c", "import venv, ensurepip"]).output();
    output.is_ok_and(|output| output.status.success())
}

fn start(with: &Start<'_>) -> Result<Running> {
    let python = python(&with.folder.join("moto"))?;
    let port = with.port()?;
    let base = with.folder.join("sqs");
    emptied(&base)?;
    let server_file = base.join("moto_server.py");
    fs::write(&server_file, SERVER).context("cannot write the server's program")?;
    let log = base.join("server.log");
    let output = File::create(&log).context("cannot write the server's log")?;
    // In a session of its own: an interrupt at the terminal is not for it.
    let mut server = Command::new("setsid");
    server.arg(&python).arg(&server_file).args(["-H", "127.0.0.1", "-p", &port.to_string()]);
    server.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    let mut child = server.spawn().context("cannot run setsid")?;
    let mut ended = false;
    let up = wait_until(LIMIT, || {
        ended = !matches!(child.try_wait(), Ok(None));
        ended || serves(port)
    });
    if ended || !up {
        kill_tree(child.id());
        bail!("{}", tail(&log));
    }
    let pid = child.id();
    // Nobody else waits for it, and as a zombie it would look alive.
    drop(std::thread::Builder::new().name("sqs".into()).spawn(move || child.wait()));
    let mark = server_file.display().to_string();
    Ok(Running { name: SERVICE.name.to_owned(), pid, port, mark, url: format!("sqs://127.0.0.1:{port}") })
}

/// The Python that has moto, installed unless this version is there.
fn python(environment: &Path) -> Result<PathBuf> {
    let python = environment.join("bin/python");
    // Written last: without it the installation may be half done.
    let marker = environment.join("complete");
    if fs::read_to_string(&marker).is_ok_and(|version| version == VERSION) && python.is_file() {
        return Ok(python);
    }
    eprintln!("sqs: installing moto {VERSION}");
    emptied(environment)?;
    let log = environment.join("install.log");
    run_logged(Command::new("python3").args(["-m", "venv"]).arg(environment), &log)?;
    let mut pip = Command::new(environment.join("bin/pip"));
    pip.args(["install", "--disable-pip-version-check", "--no-input", &format!("moto[server]=={VERSION}")]);
    run_logged(&mut pip, &log)?;
    fs::write(&marker, VERSION).context("cannot write the marker of moto's installation")?;
    Ok(python)
}
