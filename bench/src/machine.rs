//! On what the figures were measured.

use std::{
    fmt,
    fs::File,
    io::{Seek as _, Write as _},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use procfs::{Current as _, process::Process};

use crate::{database::Database, processes, queue::Broker};

/// How many times the disk is asked.
const SYNCS: usize = 200;

/// What the figures depend on, line by line.
#[derive(Debug)]
pub(crate) struct Machine {
    lines: Vec<(&'static str, String)>,
}

impl Machine {
    /// Looks at the machine and the servers.
    pub(crate) async fn look(database: &Database, broker: String) -> Result<Self> {
        let cpu = procfs::CpuInfo::current()?;
        let model = cpu.model_name(0).unwrap_or("unknown").to_owned();
        let memory = procfs::Meminfo::current()?.mem_total >> 20;
        let kernel = procfs::sys::kernel::Version::current()?;
        let load = procfs::LoadAverage::current()?.one;
        let kernel = format!("Linux {}.{}.{}", kernel.major, kernel.minor, kernel.patch);
        let folder = folder(database.folder().await.as_deref());
        Ok(Self {
            lines: vec![
                ("date", database.today().await?),
                ("processor", format!("{} × {model}", cpu.num_cores())),
                ("memory", format!("{memory} MiB")),
                ("kernel", kernel),
                ("disk", disk(&folder)?),
                ("load before the run", format!("{load:.2} (1 minute); client, database and broker share the machine")),
                ("database", database.describe().await?),
                ("broker", broker),
                ("compiler", rust_version()),
            ],
        })
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines.iter().try_for_each(|(name, value)| writeln!(f, "- {name}: {value}"))
    }
}

/// Beside the database's own files, where this process may write there.
fn folder(data: Option<&str>) -> PathBuf {
    let beside = data.and_then(|data| Path::new(data).parent()).map(Path::to_path_buf);
    beside.filter(|folder| tempfile::tempfile_in(folder).is_ok()).unwrap_or_else(std::env::temp_dir)
}

/// The file system of a folder, and how long it takes to make 8 kB durable there.
fn disk(folder: &Path) -> Result<String> {
    let mut file = tempfile::tempfile_in(folder).with_context(|| format!("cannot write to {}", folder.display()))?;
    let mut times: Vec<Duration> = (0..SYNCS).map(|_| sync(&mut file)).collect::<Result<_>>()?;
    times.sort_unstable();
    let (median, slow) = (times[SYNCS / 2], times[SYNCS * 99 / 100]);
    let kind = file_system(folder).unwrap_or_else(|| "unknown file system".to_owned());
    Ok(format!(
        "{kind}; write of 8 kB and fdatasync: median {:.2} ms, 99 % within {:.2} ms ({SYNCS} times)",
        median.as_secs_f64() * 1e3,
        slow.as_secs_f64() * 1e3
    ))
}

fn sync(file: &mut File) -> Result<Duration> {
    let begin = Instant::now();
    // As the database does with its log: files that are there already.
    if file.stream_position()? > 1 << 20 {
        file.rewind()?;
    }
    file.write_all(&[7; 8_192])?;
    file.sync_data()?;
    Ok(begin.elapsed())
}

fn file_system(folder: &Path) -> Option<String> {
    let folder = folder.canonicalize().ok()?;
    let mounts = Process::myself().and_then(|process| process.mountinfo()).ok()?;
    let mount = mounts
        .into_iter()
        .filter(|mount| folder.starts_with(&mount.mount_point))
        .max_by_key(|mount| mount.mount_point.components().count())?;
    Some(mount.fs_type)
}

/// Kafka, by the name of its own jar, which it holds open.
pub(crate) fn kafka(pid: Option<i32>) -> String {
    let files = pid.map(processes::files_of).unwrap_or_default();
    let version = files.iter().find_map(|path| jar_version(path));
    version.map_or_else(|| "Kafka, version unknown".to_owned(), |version| format!("Apache Kafka {version}"))
}

/// Another broker, by what its process was started with.
pub(crate) fn broker(broker: Broker, pid: Option<i32>) -> String {
    let mut words = pid.map(processes::words_of).unwrap_or_default();
    let (name, before) = match broker {
        Broker::Rabbitmq => ("RabbitMQ", "rabbitmq_server-"),
        Broker::Sqs => {
            words = words.first().map(|python| packages_of(Path::new(python))).unwrap_or_default();
            ("moto in SQS's place", "moto-")
        }
        Broker::Pubsub => ("the Pub/Sub emulator", "cloud-pubsub-emulator-"),
    };
    let version = words.iter().find_map(|word| version_behind(word, before));
    format!("{name} {}", version.unwrap_or("of an unknown version"))
}

/// The names of what is installed for an interpreter of Python.
fn packages_of(python: &Path) -> Vec<String> {
    let Some(environment) = python.parent().and_then(Path::parent) else { return Vec::new() };
    let names = |folder: PathBuf| folder.read_dir().into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let packages = names(environment.join("lib")).flat_map(|folder| names(folder.join("site-packages")));
    packages.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect()
}

fn version_behind<'a>(word: &'a str, before: &str) -> Option<&'a str> {
    let (_, rest) = word.split_once(before)?;
    let end = rest.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(rest.len());
    Some(rest[..end].trim_end_matches('.')).filter(|version| !version.is_empty())
}

fn jar_version(path: &str) -> Option<&str> {
    path.rsplit('/').next()?.strip_prefix("kafka_2.13-")?.strip_suffix(".jar")
}

fn rust_version() -> String {
    let output = Command::new("rustc").arg("--version").output();
    output.ok().and_then(|output| String::from_utf8(output.stdout).ok()).map_or_else(
        || "unknown".to_owned(),
        |version| {
            let profile =
                if cfg!(debug_assertions) { "debug build: the figures mean nothing" } else { "release build" };
            format!("{}, {profile}", version.trim())
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_broker_is_known_by_its_jar() {
        assert_eq!(jar_version("/lib/kafka_2.13-4.1.1.jar"), Some("4.1.1"));
        assert_eq!(jar_version("/lib/kafka-clients-4.1.1.jar"), None);
    }

    #[test]
    fn other_brokers_are_known_by_their_words() {
        assert_eq!(version_behind("/lib/rabbitmq_server-3.10.8/plugins", "rabbitmq_server-"), Some("3.10.8"));
        assert_eq!(version_behind("moto-5.2.5.dist-info", "moto-"), Some("5.2.5"));
        assert_eq!(version_behind("a:cloud-pubsub-emulator-0.8.20-all.jar", "cloud-pubsub-emulator-"), Some("0.8.20"));
        assert_eq!(version_behind("moto-x", "moto-"), None);
        assert_eq!(broker(Broker::Sqs, None), "moto in SQS's place of an unknown version");
    }

    #[test]
    fn a_disk_answers() {
        let described = disk(&std::env::temp_dir()).unwrap();
        assert!(described.contains("fdatasync: median "), "{described}");
    }
}
