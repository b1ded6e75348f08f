//! The servers of a run, which cases stop, start and cut.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::task::block_in_place;
use xtask::{
    process::{gone, wait_until},
    servers::{
        LIMIT, free_port,
        kafka::{Node, Proxied},
        postgres::{Cluster, Stop},
    },
};

use crate::proxy::Proxy;

/// PostgreSQL and a proxy before it.
#[derive(Debug)]
pub(crate) struct Postgres {
    pub(crate) cluster: Cluster,
    pub(crate) proxy: Proxy,
    pub(crate) pid: u32,
}

impl Postgres {
    /// A cluster in `folder`.
    pub(crate) async fn make(folder: &Path, settings: &str) -> anyhow::Result<Self> {
        let cluster = block_in_place(|| Cluster::make(folder, free_port()?, None, settings))?;
        let pid = block_in_place(|| cluster.start())?;
        let proxy = Proxy::start(0, cluster.port()).await?;
        Ok(Self { cluster, proxy, pid })
    }

    pub(crate) fn stop(&self, how: Stop) -> anyhow::Result<()> {
        block_in_place(|| self.cluster.stop(how))
    }

    pub(crate) fn start(&mut self) -> anyhow::Result<()> {
        self.pid = block_in_place(|| self.cluster.start())?;
        Ok(())
    }

    /// Whether its process is there.
    pub(crate) fn runs(&self) -> bool {
        !gone(self.pid, &self.cluster.data().display().to_string())
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if self.runs() {
            drop(self.cluster.stop(Stop::Immediate));
        }
        // Its folder may lie outside of the build's.
        drop(std::fs::remove_dir_all(self.cluster.base()));
    }
}

/// Kafka and a proxy before it.
#[derive(Debug)]
pub(crate) struct Kafka {
    node: Node,
    pub(crate) proxy: Proxy,
    pid: u32,
}

impl Kafka {
    pub(crate) async fn make(downloads: &Path, folder: &Path) -> anyhow::Result<Self> {
        let (listens, advertised) = (free_port()?, free_port()?);
        let proxied = Some(Proxied { listens, advertised });
        let node = block_in_place(|| Node::make(downloads, folder, free_port()?, proxied))?;
        let pid = block_in_place(|| node.start())?;
        let proxy = Proxy::start(advertised, listens).await?;
        Ok(Self { node, proxy, pid })
    }

    pub(crate) fn port(&self) -> u16 {
        self.node.port()
    }

    /// Ends it, by SIGTERM or by SIGKILL, and waits for that.
    pub(crate) fn stop(&self, signal: Signal) -> anyhow::Result<()> {
        kill(Pid::from_raw(i32::try_from(self.pid)?), signal).context("end Kafka")?;
        if !block_in_place(|| wait_until(LIMIT, || gone(self.pid, &self.node.mark()))) {
            bail!("Kafka does not end");
        }
        Ok(())
    }

    pub(crate) fn start(&mut self) -> anyhow::Result<()> {
        self.pid = block_in_place(|| self.node.start())?;
        Ok(())
    }

    /// Whether its process is there.
    fn runs(&self) -> bool {
        !gone(self.pid, &self.node.mark())
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        if self.runs() {
            drop(self.stop(Signal::SIGKILL));
        }
    }
}

/// What a run has started so far; each server when it is first asked for.
#[derive(Debug)]
pub(crate) struct Servers {
    folder: PathBuf,
    downloads: PathBuf,
    postgres: Option<Postgres>,
    kafka: Option<Kafka>,
}

impl Servers {
    /// None yet. `target` is cargo's folder.
    pub(crate) fn new(target: &Path) -> Self {
        Self {
            folder: target.join("faults").join(std::process::id().to_string()),
            downloads: target.join("services"),
            postgres: None,
            kafka: None,
        }
    }

    /// Where files of this run are.
    pub(crate) fn folder(&self) -> anyhow::Result<&Path> {
        std::fs::create_dir_all(&self.folder).with_context(|| format!("make {}", self.folder.display()))?;
        Ok(&self.folder)
    }

    /// Starts what a case that broke off has left lying.
    pub(crate) fn revive(&mut self) -> anyhow::Result<()> {
        if let Some(postgres) = self.postgres.as_mut().filter(|postgres| !postgres.runs()) {
            postgres.start().context("start PostgreSQL again")?;
        }
        if let Some(kafka) = self.kafka.as_mut().filter(|kafka| !kafka.runs()) {
            kafka.start().context("start Kafka again")?;
        }
        Ok(())
    }

    pub(crate) async fn postgres(&mut self) -> anyhow::Result<&mut Postgres> {
        if self.postgres.is_none() {
            let folder = self.folder()?.join("postgres");
            // Checkpoints and autovacuum as they come; the rest as in tests.
            self.postgres = Some(Postgres::make(&folder, "").await.context("start PostgreSQL")?);
        }
        self.postgres.as_mut().context("PostgreSQL was started just now")
    }

    pub(crate) async fn kafka(&mut self) -> anyhow::Result<&mut Kafka> {
        if self.kafka.is_none() {
            std::fs::create_dir_all(&self.downloads).context("make the folder of downloads")?;
            let folder = self.folder()?.join("kafka");
            self.kafka = Some(Kafka::make(&self.downloads, &folder).await.context("start Kafka")?);
        }
        self.kafka.as_mut().context("Kafka was started just now")
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        drop((self.postgres.take(), self.kafka.take()));
        drop(std::fs::remove_dir_all(&self.folder));
    }
}

/// Waits; an outage takes its time.
pub(crate) async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}
