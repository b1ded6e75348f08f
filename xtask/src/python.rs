//! Virtual environments of Python: made once, used until something else is wanted in them.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{
    process::{run_logged, shown},
    servers::emptied,
};

/// The file that says what an environment has.
const MARKER: &str = "complete";

/// Whether Python can make virtual environments with `pip` in them; Debian has both in a package of their own.
#[must_use]
pub fn makes_environments() -> bool {
    let output = Command::new("python3").args(["-c", "import venv, ensurepip"]).output();
    output.is_ok_and(|output| output.status.success())
}

/// The Python of the environment in `folder`, which has the packages that `requirements` names, written as for `pip`.
///
/// It is made anew when it is not complete, has other packages, or is of another Python. Of those that ask at the same time
/// one makes it, and the others wait.
///
/// # Errors
/// When the machine has no Python that can make one, or `pip` does not find a package; the latter with what `pip` said.
pub fn environment(folder: &Path, requirements: &str) -> Result<PathBuf> {
    let parent = folder.parent().context("an environment is in a folder")?;
    fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    let lock = folder.with_extension("lock");
    let lock = File::options().create(true).append(true).open(&lock).context("cannot open the environment's lock")?;
    lock.lock().context("cannot lock the environment")?;
    let python = folder.join("bin/python");
    let wanted = format!("{}\n{requirements}", version()?);
    if has(folder, &wanted) {
        return Ok(python);
    }
    eprintln!("installing Python packages into {}", folder.display());
    emptied(folder)?;
    let (list, log) = (folder.join("requirements.txt"), folder.join("install.log"));
    fs::write(&list, requirements).context("cannot write the list of packages")?;
    run_logged(Command::new("python3").args(["-m", "venv"]).arg(folder), &log)?;
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--requirement"]).arg(&list);
    run_logged(&mut pip, &log)?;
    // Last: without it the installation may be half done.
    fs::write(folder.join(MARKER), wanted).context("cannot write the environment's marker")?;
    Ok(python)
}

/// Whether the environment was made to its end with what is wanted.
fn has(folder: &Path, wanted: &str) -> bool {
    fs::read_to_string(folder.join(MARKER)).is_ok_and(|has| has == wanted) && folder.join("bin/python").is_file()
}

/// Which Python there is: an environment does not outlive the one that it was made by.
fn version() -> Result<String> {
    let mut command = Command::new("python3");
    command.arg("--version");
    let output = command.output().context("cannot run python3; on Debian `apt-get install python3-venv` brings it")?;
    if !output.status.success() {
        bail!("{} ended with {}", shown(&command), output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::env;

    use super::*;

    /// One environment for all of it: making one takes seconds.
    #[test]
    fn an_environment_is_made_once_and_anew_when_something_else_is_wanted() {
        let folder = env::temp_dir().join(format!("xtask-python-{}", std::process::id())).join("environment");
        let error = environment(&folder, "./no-such-folder\n").unwrap_err();
        assert!(error.to_string().contains("no-such-folder"), "what pip said: {error}");
        let one = format!("{}\n# one\n", version().unwrap());
        assert!(!has(&folder, &one), "half done");
        // What `pip` would have left behind.
        fs::write(folder.join(MARKER), &one).unwrap();
        assert!(has(&folder, &one) && !has(&folder, &one.replace("one", "two")));
        let traced = folder.join("traced");
        fs::write(&traced, "").unwrap();
        let python = environment(&folder, "# one\n").unwrap();
        assert!(Command::new(&python).args(["-m", "pip", "--version"]).output().unwrap().status.success());
        assert!(traced.exists(), "it was made again");
        fs::remove_file(&python).unwrap();
        assert!(!has(&folder, &one), "gone in part");
        fs::remove_dir_all(folder.parent().unwrap()).unwrap();
    }
}
