//! PgBouncer in transaction mode, in front of the PostgreSQL that tests use, whoever started that one.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use percent_encoding::percent_decode_str;
use xtask::{
    process::{kill_tree, on_path, run_logged, tail, wait_until},
    servers::{
        LIMIT,
        postgres::{as_user, base, far},
        serves,
    },
};

use super::{Service, Start, packages::Need, postgres, state::Running};

/// PgBouncer as a service.
pub(super) const SERVICE: Service = Service {
    name: "pgbouncer",
    variable: "INBOX_TEST_PGBOUNCER",
    needs: &[Need { present: || program().is_some(), package: "pgbouncer" }],
    start,
    // At once: clients are cut off, not waited for.
    stop: "TERM",
    clean,
};

/// Debian puts it where root alone looks.
fn program() -> Option<PathBuf> {
    on_path("pgbouncer").or_else(|| Some(PathBuf::from("/usr/sbin/pgbouncer")).filter(|program| program.is_file()))
}

/// The server behind it, from the URL that tests have.
#[derive(Debug, PartialEq, Eq)]
struct Upstream {
    user: String,
    password: String,
    /// The host as its configuration takes it.
    host: String,
    port: u16,
    /// User, password and database as they stand in the URL, for the URL of the pooler.
    login: String,
    database: String,
}

impl Upstream {
    /// What of `postgres://user:password@host:port/database` matters here.
    fn of(url: &str) -> Result<Self> {
        let rest = url.strip_prefix("postgres://").or_else(|| url.strip_prefix("postgresql://"));
        let (login, rest) = rest.and_then(|rest| rest.rsplit_once('@')).context("no `user@` in it")?;
        let (place, database) = rest.split_once('/').unwrap_or((rest, ""));
        let database = database.split('?').next().filter(|name| !name.is_empty()).context("no database in it")?;
        let (host, port) = match place.rsplit_once(':').filter(|(_, port)| !port.contains(']')) {
            Some((host, port)) => (host, port.parse().context("its port is no number")?),
            None => (place, 5432),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() || host.contains('%') {
            bail!("it names no host that a pooler can connect to");
        }
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        let decoded = |text: &str| percent_decode_str(text).decode_utf8().map(std::borrow::Cow::into_owned);
        Ok(Self {
            user: decoded(user).context("its user is no text")?,
            password: decoded(password).context("its password is no text")?,
            host: host.to_owned(),
            port,
            login: login.to_owned(),
            database: database.to_owned(),
        })
    }

    fn url(&self, port: u16) -> String {
        format!("postgres://{}@127.0.0.1:{port}/{}", self.login, self.database)
    }

    /// What the configuration says. Any database of the server can be named, and any of its users logs in with the
    /// password that the server knows: tests make databases and roles of their own.
    ///
    /// The pools are small, so that a connection of the server's goes from one client to another all the time.
    fn settings(&self, base: &Path, port: u16) -> String {
        let Self { user, host, port: upstream, .. } = self;
        let base = base.display();
        let auth = if self.password.is_empty() { "trust" } else { "md5" };
        format!(
            "[databases]\n* = host={host} port={upstream}\n\n[pgbouncer]\npool_mode = transaction\n\
             default_pool_size = 20\nmax_client_conn = 1000\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = {auth}\nauth_file = {base}/userlist.txt\nauth_user = {user}\n\
             admin_users = {user}\nlogfile = {base}/pgbouncer.log\npidfile = {base}/pgbouncer.pid\n\
             server_idle_timeout = 30\nserver_login_retry = 1\nlog_connections = 0\nlog_disconnections = 0\n\
             log_stats = 0\n"
        )
    }

    /// The file of users. The plain password: with it the pooler can log in to the server by any method.
    fn users(&self) -> String {
        let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
        format!("{} {}\n", quoted(&self.user), quoted(&self.password))
    }
}

fn upstream(with: &Start<'_>) -> Result<Upstream> {
    let url =
        with.url_of(&postgres::SERVICE).context("it stands in front of PostgreSQL, which is not up: name both")?;
    Upstream::of(url).with_context(|| format!("cannot put a pooler in front of {}", postgres::SERVICE.variable))
}

/// Whether one that runs stands in front of the server that tests use now; `true` of any other service.
pub(super) fn fits(running: &Running, with: &Start<'_>) -> bool {
    let file = Path::new(&running.mark);
    running.name != SERVICE.name
        || upstream(with).is_ok_and(|upstream| {
            let settings = file.parent().map(|base| upstream.settings(base, running.port));
            running.url == upstream.url(running.port) && fs::read_to_string(file).ok() == settings
        })
}

fn start(with: &Start<'_>) -> Result<Running> {
    let program = program().context("no PgBouncer is installed")?;
    let upstream = upstream(with)?;
    let port = with.port()?;
    // It refuses to run as root too, and takes the same way out as the server.
    let base = base(&with.folder.join(SERVICE.name))?;
    let (file, log) = (base.join("pgbouncer.ini"), base.join("start.log"));
    for (file, text) in [(&file, upstream.settings(&base, port)), (&base.join("userlist.txt"), upstream.users())] {
        fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
        // Its user must read it, whatever this process's mask is.
        fs::set_permissions(file, fs::Permissions::from_mode(0o644)).context("cannot hand over the configuration")?;
    }
    run_logged(as_user(&program).arg("-d").arg(&file), &log)?;
    let pid = || fs::read_to_string(base.join("pgbouncer.pid")).ok()?.trim().parse().ok();
    let up = wait_until(LIMIT, || pid().is_some() && serves(port));
    let Some(pid) = pid() else { bail!("it left no pid file\n{}", tail(&base.join("pgbouncer.log"))) };
    if !up {
        kill_tree(pid);
        bail!("no answer\n{}", tail(&base.join("pgbouncer.log")));
    }
    Ok(Running { name: SERVICE.name.to_owned(), pid, port, mark: file.display().to_string(), url: upstream.url(port) })
}

/// Removes what `cargo clean` would not.
fn clean(folder: &Path) -> Result<()> {
    let far = far(&folder.join(SERVICE.name));
    if far.is_dir() {
        fs::remove_dir_all(&far).with_context(|| format!("cannot remove {}", far.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_is_read_from_the_url() {
        let upstream = Upstream::of("postgres://me:s%40cret%22@db.example:6000/shop?sslmode=disable").unwrap();
        assert_eq!((upstream.host.as_str(), upstream.port), ("db.example", 6000));
        assert_eq!(upstream.users(), "\"me\" \"s@cret\"\"\"\n");
        assert_eq!(upstream.url(7), "postgres://me:s%40cret%22@127.0.0.1:7/shop");
        let settings = upstream.settings(Path::new("/base"), 7);
        for line in ["* = host=db.example port=6000", "listen_port = 7", "auth_type = md5", "pool_mode = transaction"] {
            assert!(settings.lines().any(|found| found == line), "{line}: {settings}");
        }
        let plain = Upstream::of("postgresql://me@[::1]/shop").unwrap();
        assert_eq!((plain.host.as_str(), plain.port), ("::1", 5432));
        assert!(plain.settings(Path::new("/base"), 7).contains("auth_type = trust\n"));
        for url in
            ["postgres://db/shop", "postgres://me@db", "postgres://me@%2Frun%2Fpg/shop", "postgres://me@db:x/shop"]
        {
            assert!(Upstream::of(url).is_err(), "{url}");
        }
    }

    #[test]
    fn one_in_front_of_another_server_does_not_fit() {
        let base = std::env::temp_dir().join(format!("xtask-pgbouncer-{}", std::process::id()));
        fs::create_dir_all(&base).unwrap();
        let upstream = Upstream::of("postgres://me@one/shop").unwrap();
        let file = base.join("pgbouncer.ini");
        fs::write(&file, upstream.settings(&base, 7)).unwrap();
        let mark = file.display().to_string();
        let running = Running { name: "pgbouncer".into(), pid: 0, port: 7, mark, url: upstream.url(7) };
        let fits = |url: &str| {
            let variables = [(postgres::SERVICE.variable, url.to_owned())];
            fits(&running, &Start { folder: &base, last: None, variables: &variables })
        };
        assert!(fits("postgres://me@one/shop"));
        assert!(!fits("postgres://me@two/shop"));
        assert!(!fits("postgres://me:changed@one/shop"));
        fs::remove_dir_all(&base).unwrap();
    }
}
