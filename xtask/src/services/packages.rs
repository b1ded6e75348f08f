//! What the machine must have before services start and the workspace builds; installed where it is missing.

use std::{path::Path, process::Command};

use anyhow::{Context, Result, bail};

use xtask::{
    process::{is_root, on_path, run_logged},
    python::makes_environments,
};

/// Something that a build or a service needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Need {
    /// Whether it is there, however it came there.
    pub(crate) present: fn() -> bool,
    /// The Debian package that brings it.
    pub(crate) package: &'static str,
}

/// What `rdkafka` with the features `ssl`, `zstd` and `libz` is built with.
pub(crate) const BUILD: &[Need] = &[
    Need { present: || on_path("g++").is_some(), package: "g++" },
    Need { present: || on_path("make").is_some(), package: "make" },
    Need { present: || on_path("cmake").is_some(), package: "cmake" },
    Need { present: || on_path("pkg-config").is_some(), package: "pkg-config" },
    Need { present: || knows("openssl"), package: "libssl-dev" },
    Need { present: || knows("zlib"), package: "zlib1g-dev" },
];

/// What virtual environments of Python are made with.
pub(crate) const PYTHON: &[Need] = &[
    Need { present: || on_path("python3").is_some(), package: "python3" },
    Need { present: makes_environments, package: "python3-venv" },
];

/// Whether `pkg-config` knows a library.
fn knows(library: &str) -> bool {
    Command::new("pkg-config").args(["--exists", library]).status().is_ok_and(|status| status.success())
}

/// Installs the packages of what is missing; asks the network for nothing when all is there.
pub(crate) fn install(needs: &[Need], log: &Path) -> Result<()> {
    let packages = missing(needs);
    if packages.is_empty() {
        return Ok(());
    }
    let list = packages.join(" ");
    if on_path("apt-get").is_none() || !is_root() {
        bail!(
            "this machine lacks what these Debian packages bring: {list}\ninstall them, as root: apt-get install {list}"
        );
    }
    eprintln!("installing {list}");
    run_logged(apt().arg("update"), log).context("the package lists could not be brought up to date")?;
    run_logged(apt().args(["install", "-y", "--no-install-recommends"]).args(&packages), log)
        .with_context(|| format!("could not install {list}"))?;
    let still = missing(needs);
    if !still.is_empty() {
        bail!("installed {list}, yet what these bring is not found: {}", still.join(" "));
    }
    Ok(())
}

fn missing(needs: &[Need]) -> Vec<&'static str> {
    needs.iter().filter(|need| !(need.present)()).map(|need| need.package).collect()
}

fn apt() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").args(["-q", "-o", "DPkg::Lock::Timeout=300"]);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_missing_is_named() {
        let needs = [Need { present: || true, package: "there" }, Need { present: || false, package: "not-there" }];
        assert_eq!(missing(&needs), ["not-there"]);
    }
}
