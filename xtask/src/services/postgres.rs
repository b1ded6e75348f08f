//! PostgreSQL: a cluster of its own, with a password, made afresh at each start.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use xtask::{
    process::{tail, wait_until},
    servers::{
        LIMIT,
        postgres::{Cluster, binaries, far, password_of},
        serves,
    },
};

use super::{Service, Start, packages::Need, state::Running};

const DATABASE: &str = "inbox_test";

/// PostgreSQL as a service.
pub(super) const SERVICE: Service = Service {
    name: "postgres",
    variable: "INBOX_TEST_POSTGRES",
    needs: &[Need { present: || binaries().is_some(), package: "postgresql" }],
    start,
    // Fast shutdown: open sessions are ended, not waited for.
    stop: "INT",
    clean,
};

fn start(with: &Start<'_>) -> Result<Running> {
    let port = with.port()?;
    let password = with.last.and_then(|last| password_of(&last.url));
    let cluster = Cluster::make(&with.folder.join("postgres"), port, password, "")?;
    let running = Running {
        name: SERVICE.name.to_owned(),
        pid: cluster.start()?,
        port,
        mark: cluster.data().display().to_string(),
        url: cluster.url(DATABASE),
    };
    let ready = wait_until(LIMIT, || serves(port)) && running.alive();
    let made = if ready { cluster.create_database(DATABASE) } else { Err(anyhow::anyhow!("no answer")) };
    if let Err(error) = made {
        super::end(&running, SERVICE.stop)?;
        return Err(error).with_context(|| tail(&cluster.log()));
    }
    Ok(running)
}

/// Removes what `cargo clean` would not.
fn clean(folder: &Path) -> Result<()> {
    let far = far(&folder.join("postgres"));
    if far.is_dir() {
        fs::remove_dir_all(&far).with_context(|| format!("cannot remove {}", far.display()))?;
    }
    Ok(())
}
