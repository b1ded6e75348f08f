//! Real servers for tests: plain processes on 127.0.0.1, their data under `target/services/`.
//!
//! A service whose URL is given in the environment is used and not started. Each start begins with empty data.

mod kafka;
mod packages;
mod pgbouncer;
mod postgres;
mod pubsub;
mod rabbitmq;
mod redis;
mod sqs;
mod state;

use std::{
    env,
    fs::{self, File},
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use xtask::{
    process::{gone, kill_tree, signal, wait_until},
    servers::{LIMIT, free_port, serves},
};

use self::{packages::Need, state::Running};
use crate::workspace;

/// How long a service that runs may take to accept a connection.
const PATIENCE: Duration = Duration::from_secs(5);

/// A kind of server that can be started here.
struct Service {
    /// Its name, also of its folder.
    name: &'static str,
    /// The environment variable of its URL.
    variable: &'static str,
    /// What must be installed.
    needs: &'static [Need],
    /// Starts it and waits until it serves; on failure nothing of it is left running.
    start: fn(&Start<'_>) -> Result<Running>,
    /// The signal that asks it to end.
    stop: &'static str,
    /// Removes, once it has ended, what it left outside `target/services`, the folder that it gets.
    clean: fn(&Path) -> Result<()>,
}

/// What a service gets for its start.
struct Start<'a> {
    /// `target/services`.
    folder: &'a Path,
    /// Its last run here.
    last: Option<&'a Running>,
    /// The variables of the services before it, which can be used by now.
    variables: &'a [(&'static str, String)],
}

impl Start<'_> {
    /// The port of the last run when it is free, otherwise any free one.
    fn port(&self) -> Result<u16> {
        match self.last {
            Some(last) if TcpListener::bind((Ipv4Addr::LOCALHOST, last.port)).is_ok() => Ok(last.port),
            _ => free_port(),
        }
    }

    /// The URL of a service before it.
    fn url_of(&self, service: &Service) -> Option<&str> {
        self.variables.iter().find(|(name, _)| *name == service.variable).map(|(_, url)| url.as_str())
    }
}

/// Further services are added here, each in a file of its own.
const ALL: &[Service] = &[
    postgres::SERVICE,
    pgbouncer::SERVICE,
    kafka::SERVICE,
    rabbitmq::SERVICE,
    redis::SERVICE,
    sqs::SERVICE,
    pubsub::SERVICE,
];

/// The variables for tests, by name.
pub(crate) type Variables = Vec<(&'static str, String)>;

/// The names of all services.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|service| service.name)
}

/// Brings the named services up, all when none is named: starts those that are not given and do not answer.
/// The names of those that it starts go to `started`, also when a later one fails.
///
/// The variables are those of every service that can be used then, also of one that was not named.
pub(crate) fn up(names: &[String], started: &mut Vec<&'static str>) -> Result<Variables> {
    let folder = folder()?;
    let _lock = lock(&folder)?;
    let mut state = state::read(&folder.join("state"));
    let named = |service: &Service| names.is_empty() || names.iter().any(|name| name == service.name);
    if named(&pubsub::SERVICE) && given(&pubsub::SERVICE, &state).is_none() {
        // Before anything else is installed or started.
        pubsub::possible()?;
    }
    install(&folder, &state, named)?;
    let mut variables = Variables::new();
    for service in ALL {
        let last = state.iter().find(|running| running.name == service.name);
        let with = Start { folder: &folder, last, variables: &variables };
        let usable = |running: &&Running| {
            running.alive() && (!named(service) || answers(running) && pgbouncer::fits(running, &with))
        };
        let url = if let Some(url) = given(service, &state) {
            eprintln!("{}: {} is given", service.name, service.variable);
            url
        } else if let Some(running) = last.filter(usable) {
            eprintln!("{}: is up on port {}", service.name, running.port);
            running.url.clone()
        } else if named(service) {
            let running = start(service, &with)?;
            let url = running.url.clone();
            state.retain(|other| other.name != service.name);
            state.push(running);
            // At once: when the next one fails, `down` must still know of this one.
            state::write(&folder.join("state"), &state)?;
            started.push(service.name);
            url
        } else {
            continue;
        };
        variables.push((service.variable, url));
    }
    fs::write(folder.join("env.sh"), exports(&variables)).context("cannot write env.sh")?;
    Ok(variables)
}

/// Installs what the workspace is built with, where it is missing.
pub(crate) fn install_build_tools() -> Result<()> {
    let folder = folder()?;
    let _lock = lock(&folder)?;
    packages::install(packages::BUILD, &folder.join("install.log"))
}

/// Installs what the clients of other languages in tests are run with, where it is missing.
pub(crate) fn install_languages() -> Result<()> {
    let folder = folder()?;
    let _lock = lock(&folder)?;
    packages::install(packages::PYTHON, &folder.join("install.log"))
}

/// Installs what the named services are run with, and starts nothing.
pub(crate) fn install_for(names: &[&str]) -> Result<()> {
    let folder = folder()?;
    let _lock = lock(&folder)?;
    let wanted = ALL.iter().filter(|service| names.contains(&service.name)).flat_map(|service| service.needs);
    let needs: Vec<Need> = packages::BUILD.iter().chain(wanted).copied().collect();
    packages::install(&needs, &folder.join("install.log"))
}

/// Ends what `up` started, and nothing else; with `names`, of those only.
pub(crate) fn down(names: Option<&[&str]>) -> Result<()> {
    let folder = folder()?;
    let _lock = lock(&folder)?;
    let file = folder.join("state");
    let mut state = state::read(&file);
    for running in state.iter_mut().filter(|running| names.is_none_or(|names| names.contains(&running.name.as_str()))) {
        let service = ALL.iter().find(|service| service.name == running.name);
        if running.alive() {
            end(running, service.map_or("TERM", |service| service.stop))?;
            eprintln!("{}: ended", running.name);
        } else {
            eprintln!("{}: is not running", running.name);
        }
        service.map_or(Ok(()), |service| (service.clean)(&folder))?;
        running.pid = 0;
    }
    state::write(&file, &state)
}

/// Starts those of the named services anew, empty and where they were, that are worn out by what they did so far.
pub(crate) fn renew(names: &[&str]) -> Result<()> {
    let folder = folder()?;
    let _lock = lock(&folder)?;
    let file = folder.join("state");
    let mut state = state::read(&file);
    let worn = |running: &Running| pubsub::is_worn(running) && names.contains(&running.name.as_str());
    for running in state.iter_mut().filter(|running| worn(running)) {
        let Some(service) = ALL.iter().find(|service| service.name == running.name) else { continue };
        end(running, service.stop)?;
        let renewed = start(service, &Start { folder: &folder, last: Some(running), variables: &[] })?;
        let same = renewed.url == running.url;
        *running = renewed;
        if !same {
            bail!("{}: its port was taken by somebody else while it was started anew", service.name);
        }
    }
    state::write(&file, &state)
}

/// Says of every service whether it can be used; false when one cannot.
pub(crate) fn status() -> Result<bool> {
    let state = state::read(&folder()?.join("state"));
    let mut all = true;
    for service in ALL {
        let running = state.iter().find(|running| running.name == service.name && running.alive());
        let line = match (given(service, &state), running) {
            (Some(url), _) => format!("given   {url}"),
            (None, Some(running)) if serves(running.port) => {
                format!("up      {} (process {})", running.url, running.pid)
            }
            (None, Some(running)) => format!("mute    {} (process {} does not answer)", running.url, running.pid),
            (None, None) => "down".to_owned(),
        };
        all &= line.starts_with("given") || line.starts_with("up");
        println!("{:<10}{line}", service.name);
    }
    Ok(all)
}

/// The shell's lines that set the variables.
pub(crate) fn exports(variables: &[(&str, String)]) -> String {
    let line = |(name, url): &(&str, String)| {
        let plain = url.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~:/@%,".contains(&byte));
        let value = if plain { url.clone() } else { format!("'{}'", url.replace('\'', r"'\''")) };
        format!("export {name}={value}\n")
    };
    variables.iter().map(line).collect()
}

/// The URL that the environment gives, unless it is that of a service started here, which may have to be started again.
fn given(service: &Service, state: &[Running]) -> Option<String> {
    let url = env::var(service.variable).ok().filter(|url| !url.is_empty())?;
    (!state.iter().any(|running| running.url == url)).then_some(url)
}

fn install(folder: &Path, state: &[Running], named: impl Fn(&Service) -> bool) -> Result<()> {
    let missing = ALL.iter().filter(|service| named(service) && given(service, state).is_none());
    let wanted = missing.flat_map(|service| service.needs);
    let needs: Vec<Need> = packages::BUILD.iter().chain(wanted).copied().collect();
    packages::install(&needs, &folder.join("install.log"))
}

fn start(service: &Service, with: &Start<'_>) -> Result<Running> {
    if let Some(mute) = with.last.filter(|last| last.alive()) {
        eprintln!("{}: process {} is of no use, ending it", service.name, mute.pid);
        end(mute, service.stop)?;
    }
    eprintln!("{}: starting", service.name);
    let started = Instant::now();
    let running = (service.start)(with).with_context(|| format!("{} did not start", service.name))?;
    eprintln!("{}: up on port {} after {:.1} s", service.name, running.port, started.elapsed().as_secs_f64());
    Ok(running)
}

fn end(running: &Running, stop: &str) -> Result<()> {
    // It may end by itself between the look and the signal; the wait below tells.
    drop(signal(running.pid, stop));
    let gone = || gone(running.pid, &running.mark);
    if wait_until(LIMIT, gone) {
        return Ok(());
    }
    if running.alive() {
        kill_tree(running.pid);
    }
    if wait_until(LIMIT, gone) {
        return Ok(());
    }
    bail!("{}: process {} does not end", running.name, running.pid)
}

fn folder() -> Result<PathBuf> {
    let folder = workspace::root().join("target/services");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

/// Held while services start or end: two commands at a time would start everything twice.
fn lock(folder: &Path) -> Result<File> {
    let file = File::options().create(true).append(true).open(folder.join("lock")).context("cannot open the lock")?;
    if file.try_lock().is_err() {
        eprintln!("waiting for another `cargo xtask`");
        file.lock().context("cannot lock the services")?;
    }
    Ok(file)
}

/// Whether a service that runs can be used; one under load may take a moment to say so.
fn answers(running: &Running) -> bool {
    wait_until(PATIENCE, || serves(running.port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_can_be_read_by_a_shell() {
        let variables = [("A", "kafka://127.0.0.1:9".to_owned()), ("B", "postgres://u:p@h/d?a='b&c".to_owned())];
        let script = format!("{}printf '%s %s' \"$A\" \"$B\"", exports(&variables));
        assert!(script.starts_with("export A=kafka://127.0.0.1:9\n"));
        let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "kafka://127.0.0.1:9 postgres://u:p@h/d?a='b&c");
    }

    #[test]
    fn one_that_accepts_connections_answers() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let running = Running { name: "x".into(), pid: 0, port, mark: String::new(), url: String::new() };
        assert!(answers(&running));
        drop(listener);
        assert!(wait_until(LIMIT, || !serves(port)));
    }

    #[test]
    fn the_last_port_is_taken_again_unless_it_is_in_use() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let last = Running { name: "x".into(), pid: 0, port, mark: String::new(), url: String::new() };
        let start = Start { folder: Path::new("."), last: Some(&last), variables: &[] };
        assert_ne!(start.port().unwrap(), port);
        drop(listener);
        // Not at once: a child that another test is starting holds the listener until it has become its program.
        assert!(wait_until(LIMIT, || start.port().unwrap() == port));
    }
}
