//! PostgreSQL: a cluster of its own, with a password, made afresh at each start.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use super::{LIMIT, Service, Start, emptied, packages::Need, serves, state::Running};
use crate::process::{is_root, kill_tree, on_path, run_logged, tail, wait_until};

/// The user, who is also a user of the machine: the server refuses to run as root.
const USER: &str = "postgres";
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

/// The folder of `initdb` and its kin, the newest when there are several; Debian keeps them off the `PATH`.
fn binaries() -> Option<PathBuf> {
    let installed = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let version = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
    let newest = installed
        .map(|entry| entry.path())
        .filter(|path| path.join("bin/initdb").is_file())
        .max_by_key(|path| version(path));
    newest.map(|path| path.join("bin")).or_else(|| Some(on_path("initdb")?.parent()?.to_path_buf()))
}

fn start(with: &Start<'_>) -> Result<Running> {
    let bin = binaries().context("no PostgreSQL is installed")?;
    let base = base(with.folder)?;
    let log = with.folder.join("postgres-setup.log");
    let server_log = base.join("server.log");
    let data = base.join("data");
    let port = with.port()?;
    let password = with.last.and_then(|last| password_of(&last.url)).map_or_else(random_password, Ok)?;

    make_cluster(&bin, &base, &password, &log)?;
    configure(&data, port)?;
    let mut pg_ctl = as_user(&bin.join("pg_ctl"));
    pg_ctl.arg("-D").arg(&data).arg("-l").arg(&server_log).args(["-w", "-t", &LIMIT.as_secs().to_string(), "start"]);
    if let Err(error) = run_logged(&mut pg_ctl, &log) {
        // It may be late, not dead.
        if let Ok(pid) = pid(&data) {
            kill_tree(pid);
        }
        return Err(error).with_context(|| tail(&server_log));
    }

    let running = Running {
        name: SERVICE.name.to_owned(),
        pid: pid(&data)?,
        port,
        mark: data.display().to_string(),
        url: format!("postgres://{USER}:{password}@127.0.0.1:{port}/{DATABASE}"),
    };
    let ready = wait_until(LIMIT, || serves(port)) && running.alive();
    let made = if ready { make_database(&bin, port, &password, &log) } else { Err(anyhow::anyhow!("no answer")) };
    if let Err(error) = made {
        super::end(&running, SERVICE.stop)?;
        return Err(error).with_context(|| tail(&server_log));
    }
    Ok(running)
}

/// The folder of the cluster, emptied and owned by who runs it: under `target/`, or elsewhere where the user of the
/// server may not go there (a checkout in root's home).
fn base(folder: &Path) -> Result<PathBuf> {
    let near = folder.join("postgres");
    emptied(&near)?;
    if !is_root() {
        return Ok(near);
    }
    own(&near)?;
    if as_user(Path::new("test")).arg("-x").arg(&near).status().is_ok_and(|status| status.success()) {
        return Ok(near);
    }
    let far = far(folder);
    eprintln!("postgres: user {USER} may not enter {}, so the data is in {}", near.display(), far.display());
    emptied(&far)?;
    own(&far)?;
    Ok(far)
}

/// The folder outside the workspace, of this workspace only.
fn far(folder: &Path) -> PathBuf {
    PathBuf::from(format!("/var/tmp/inbox-postgres-{:016x}", hash(&folder.display().to_string())))
}

/// Removes what `cargo clean` would not.
fn clean(folder: &Path) -> Result<()> {
    let far = far(folder);
    if far.is_dir() {
        fs::remove_dir_all(&far).with_context(|| format!("cannot remove {}", far.display()))?;
    }
    Ok(())
}

fn own(folder: &Path) -> Result<()> {
    let status = Command::new("install").args(["-d", "-m", "0700", "-o", USER]).arg(folder).status();
    if !status.is_ok_and(|status| status.success()) {
        bail!("cannot give {} to user {USER}", folder.display());
    }
    Ok(())
}

/// FNV-1a: the same in every build, unlike the standard library's.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// A program run as the server's user when this process is root, and as it is otherwise.
fn as_user(program: &Path) -> Command {
    let mut command = if is_root() {
        let mut command = Command::new("runuser");
        command.args(["-u", USER, "--"]).arg(program);
        command
    } else {
        Command::new(program)
    };
    // The programs complain when they may not read the folder that they are started in.
    command.current_dir("/");
    command
}

fn make_cluster(bin: &Path, base: &Path, password: &str, log: &Path) -> Result<()> {
    let file = base.join("password");
    fs::write(&file, password).context("cannot write the password file")?;
    // The server's user must read it, whatever this process's mask is; nobody else may enter the folder.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).context("cannot hand over the password file")?;
    let mut initdb = as_user(&bin.join("initdb"));
    initdb.arg("-D").arg(base.join("data")).arg("--pwfile").arg(&file);
    initdb.args(["--username", USER, "--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C.UTF-8"]);
    let made = run_logged(&mut initdb, log);
    fs::remove_file(&file).context("cannot remove the password file")?;
    made
}

fn configure(data: &Path, port: u16) -> Result<()> {
    let file = data.join("postgresql.conf");
    let mut open = fs::File::options().append(true).open(&file).with_context(|| format!("no {}", file.display()))?;
    open.write_all(settings(data, port).as_bytes()).with_context(|| format!("cannot write {}", file.display()))
}

/// What differs from the defaults, or must not differ from them.
fn settings(data: &Path, port: u16) -> String {
    let path = data.display().to_string();
    // The kernel's limit is 107 bytes with the socket's own name; without a socket TCP still serves.
    let sockets = if path.len() > 80 { String::new() } else { path.replace('\'', "''") };
    format!(
        "\nlisten_addresses = '127.0.0.1'\nport = {port}\nmax_connections = 300\nfsync = on\n\
         shared_buffers = '256MB'\n\
         unix_socket_directories = '{sockets}'\n"
    )
}

fn pid(data: &Path) -> Result<u32> {
    let text = fs::read_to_string(data.join("postmaster.pid")).context("the server left no pid file")?;
    text.lines().next().and_then(|line| line.trim().parse().ok()).context("the server's pid file has no pid")
}

fn make_database(bin: &Path, port: u16, password: &str, log: &Path) -> Result<()> {
    let mut createdb = Command::new(bin.join("createdb"));
    createdb.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-U", USER, DATABASE]).env("PGPASSWORD", password);
    run_logged(&mut createdb, log)
}

/// The password in a URL made here: an `env.sh` read earlier stays true when the server is started again.
fn password_of(url: &str) -> Option<String> {
    let (password, _) = url.strip_prefix("postgres://")?.split_once(':')?.1.split_once('@')?;
    (!password.is_empty()).then(|| password.to_owned())
}

fn random_password() -> Result<String> {
    let mut bytes = [0_u8; 12];
    fs::File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut bytes)).context("no random bytes")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_password_is_found_in_the_url() {
        assert_eq!(password_of("postgres://postgres:secret@127.0.0.1:5/d").as_deref(), Some("secret"));
        assert_eq!(password_of("postgres://127.0.0.1/d"), None);
        assert_eq!(random_password().unwrap().len(), 24);
        assert_ne!(random_password().unwrap(), random_password().unwrap());
    }

    #[test]
    fn a_long_path_has_no_socket() {
        assert!(settings(Path::new("/short"), 5).contains("unix_socket_directories = '/short'\n"));
        assert!(settings(Path::new(&"/long".repeat(20)), 5).contains("unix_socket_directories = ''\n"));
        assert!(settings(Path::new("/short"), 5).contains("port = 5\n"));
    }

    #[test]
    fn another_folder_has_another_hash() {
        assert_eq!(hash("a"), 0xaf63_dc4c_8601_ec8c);
        assert_ne!(hash("/a"), hash("/b"));
    }
}
