//! SQS: moto's server, a stand-in that keeps queues in memory, in a virtual environment of its own. `moto_server.py` starts it and
//! says what it mends.

use std::{
    fs::{self, File},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use xtask::{
    process::{kill_tree, tail, wait_until},
    python,
    servers::{LIMIT, emptied, serves},
};

use super::{Service, Start, packages::PYTHON, state::Running};

const PACKAGES: &str = "moto[server]==5.2.5\n";
const SERVER: &str = include_str!("moto_server.py");

/// SQS as a service.
pub(super) const SERVICE: Service =
    Service { name: "sqs", variable: "INBOX_TEST_SQS", needs: PYTHON, start, stop: "TERM", clean: |_| Ok(()) };

fn start(with: &Start<'_>) -> Result<Running> {
    let python = python::environment(&with.folder.join("moto"), PACKAGES)?;
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
