//! A PostgreSQL cluster of its own.

use std::{
    fmt, fs,
    io::{Read as _, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use super::{LIMIT, emptied};
use crate::process::{is_root, kill_tree, on_path, run_logged, tail};

/// The user, who is also a user of the machine: the server refuses to run as root.
pub const USER: &str = "postgres";

/// How a server is asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Open sessions are ended and their transactions rolled back.
    Fast,
    /// As by a crash: the next start recovers from the log.
    Immediate,
}

/// A cluster in a folder, and the programs that work on it.
#[derive(Clone)]
pub struct Cluster {
    bin: PathBuf,
    base: PathBuf,
    port: u16,
    password: String,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("base", &self.base).field("port", &self.port).finish_non_exhaustive()
    }
}

/// The folder of `initdb` and its kin, the newest when there are several; Debian keeps them off the `PATH`.
#[must_use]
pub fn binaries() -> Option<PathBuf> {
    let installed = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let version = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
    let newest = installed
        .map(|entry| entry.path())
        .filter(|path| path.join("bin/initdb").is_file())
        .max_by_key(|path| version(path));
    newest.map(|path| path.join("bin")).or_else(|| Some(on_path("initdb")?.parent()?.to_path_buf()))
}

impl Cluster {
    /// Makes a cluster, with a password and with `settings` behind its own. `near` is its folder, or names one that is
    /// used in its place where the server's user may not enter it: see [`far`].
    ///
    /// # Errors
    /// When PostgreSQL is not installed or `initdb` fails.
    pub fn make(near: &Path, port: u16, password: Option<String>, settings: &str) -> Result<Self> {
        let bin = binaries().context("no PostgreSQL is installed")?;
        let cluster = Self { bin, base: base(near)?, port, password: password.map_or_else(random_password, Ok)? };
        cluster.init()?;
        let file = cluster.data().join("postgresql.conf");
        let mut open =
            fs::File::options().append(true).open(&file).with_context(|| format!("no {}", file.display()))?;
        open.write_all(format!("{}{settings}\n", own_settings(&cluster.data(), port)).as_bytes())
            .with_context(|| format!("cannot write {}", file.display()))?;
        Ok(cluster)
    }

    /// Starts the server, waits until it serves, and says its process id.
    ///
    /// # Errors
    /// When it does not come up within [`LIMIT`]; its log is in the text, and nothing of it is left running.
    pub fn start(&self) -> Result<u32> {
        let mut start = self.pg_ctl("start");
        start.arg("-l").arg(self.log()).args(["-w", "-t", &LIMIT.as_secs().to_string()]);
        if let Err(error) = run_logged(&mut start, &self.setup_log()) {
            // It may be late, not dead.
            if let Ok(pid) = self.pid() {
                kill_tree(pid);
            }
            return Err(error).with_context(|| tail(&self.log()));
        }
        self.pid()
    }

    /// Ends the server and waits for that.
    ///
    /// # Errors
    /// When it does not run or does not end.
    pub fn stop(&self, how: Stop) -> Result<()> {
        let mode = match how {
            Stop::Fast => "fast",
            Stop::Immediate => "immediate",
        };
        let mut stop = self.pg_ctl("stop");
        stop.args(["-m", mode, "-w", "-t", &LIMIT.as_secs().to_string()]);
        run_logged(&mut stop, &self.setup_log())
    }

    /// Makes the next start that of a standby without a primary: everything can be read and nothing written.
    ///
    /// # Errors
    /// When its folder cannot be written.
    pub fn be_standby(&self) -> Result<()> {
        fs::write(self.data().join("standby.signal"), "").context("cannot write standby.signal")
    }

    /// Makes a standby the primary.
    ///
    /// # Errors
    /// When it is none.
    pub fn promote(&self) -> Result<()> {
        run_logged(self.pg_ctl("promote").args(["-w", "-t", &LIMIT.as_secs().to_string()]), &self.setup_log())
    }

    /// Makes a database.
    ///
    /// # Errors
    /// When it is there, or the server is not.
    pub fn create_database(&self, name: &str) -> Result<()> {
        let mut createdb = Command::new(self.bin.join("createdb"));
        createdb.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", USER, name]);
        run_logged(createdb.env("PGPASSWORD", &self.password), &self.setup_log())
    }

    /// The URL of a database by the server's own port.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        self.url_by(self.port, database)
    }

    /// The URL of a database by another port, that of a proxy.
    #[must_use]
    pub fn url_by(&self, port: u16, database: &str) -> String {
        format!("postgres://{USER}:{}@127.0.0.1:{port}/{database}", self.password)
    }

    /// Its port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder that it really is in.
    #[must_use]
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// Its data; the command line of its process names it.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.base.join("data")
    }

    /// What the server writes.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.base.join("server.log")
    }

    /// Its process, of the last start.
    ///
    /// # Errors
    /// When it does not run.
    pub fn pid(&self) -> Result<u32> {
        let text = fs::read_to_string(self.data().join("postmaster.pid")).context("the server left no pid file")?;
        text.lines().next().and_then(|line| line.trim().parse().ok()).context("the server's pid file has no pid")
    }

    fn setup_log(&self) -> PathBuf {
        self.base.join("setup.log")
    }

    fn pg_ctl(&self, what: &str) -> Command {
        let mut command = as_user(&self.bin.join("pg_ctl"));
        command.arg(what).arg("-D").arg(self.data());
        command
    }

    fn init(&self) -> Result<()> {
        let file = self.base.join("password");
        fs::write(&file, &self.password).context("cannot write the password file")?;
        // The server's user must read it, whatever this process's mask is; nobody else may enter the folder.
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).context("cannot hand over the password file")?;
        let mut initdb = as_user(&self.bin.join("initdb"));
        initdb.arg("-D").arg(self.data()).arg("--pwfile").arg(&file);
        initdb.args(["--username", USER, "--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C.UTF-8"]);
        let made = run_logged(&mut initdb, &self.setup_log());
        fs::remove_file(&file).context("cannot remove the password file")?;
        made
    }
}

/// The folder of a cluster, or of another server that runs as its user, emptied and owned by who runs it.
///
/// # Errors
/// When it cannot be made.
pub fn base(near: &Path) -> Result<PathBuf> {
    emptied(near)?;
    if !is_root() {
        return Ok(near.to_path_buf());
    }
    own(near)?;
    if as_user(Path::new("test")).arg("-x").arg(near).status().is_ok_and(|status| status.success()) {
        return Ok(near.to_path_buf());
    }
    let far = far(near);
    eprintln!("postgres: user {USER} may not enter {}, so the data is in {}", near.display(), far.display());
    emptied(&far)?;
    own(&far)?;
    Ok(far)
}

/// The folder outside of the workspace that stands for `near` where the server's user may not go (a checkout in root's
/// home). `cargo clean` does not know it: who made the cluster removes it.
#[must_use]
pub fn far(near: &Path) -> PathBuf {
    PathBuf::from(format!("/var/tmp/inbox-postgres-{:016x}", hash(&near.display().to_string())))
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
#[must_use]
pub fn as_user(program: &Path) -> Command {
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

/// What differs from the defaults, or must not differ from them.
fn own_settings(data: &Path, port: u16) -> String {
    let path = data.display().to_string();
    // The kernel's limit is 107 bytes with the socket's own name; without a socket TCP still serves.
    let sockets = if path.len() > 80 { String::new() } else { path.replace('\'', "''") };
    format!(
        "\nlisten_addresses = '127.0.0.1'\nport = {port}\nmax_connections = 300\nfsync = on\n\
         shared_buffers = '256MB'\n\
         unix_socket_directories = '{sockets}'\n"
    )
}

/// The password in a URL made here: an `env.sh` read earlier stays true when the server is started again.
#[must_use]
pub fn password_of(url: &str) -> Option<String> {
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
        assert!(own_settings(Path::new("/short"), 5).contains("unix_socket_directories = '/short'\n"));
        assert!(own_settings(Path::new(&"/long".repeat(20)), 5).contains("unix_socket_directories = ''\n"));
        assert!(own_settings(Path::new("/short"), 5).contains("port = 5\n"));
    }

    #[test]
    fn another_folder_has_another_hash() {
        assert_eq!(hash("a"), 0xaf63_dc4c_8601_ec8c);
        assert_ne!(hash("/a"), hash("/b"));
    }
}
