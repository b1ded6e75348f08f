//! The servers of a run, which cases stop, start and cut.

use std::{
    collections::HashMap,
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
        rabbitmq,
    },
};

use crate::{args::Broker, proxy::Proxy};

/// How every server of this machine is named in URLs, with a port behind it.
pub(crate) const LOCAL: &str = "127.0.0.1:";

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

/// RabbitMQ.
#[derive(Debug)]
pub(crate) struct RabbitMq {
    pub(crate) node: rabbitmq::Node,
    folder: PathBuf,
    pid: u32,
}

impl RabbitMq {
    fn make(folder: PathBuf) -> anyhow::Result<Self> {
        let node = block_in_place(|| rabbitmq::Node::make(&folder, free_port()?))?;
        let pid = block_in_place(|| node.start())?;
        Ok(Self { node, folder, pid })
    }

    /// Runs `rabbitmqctl`.
    pub(crate) fn control(&self, arguments: &[&str]) -> anyhow::Result<()> {
        block_in_place(|| self.node.control(arguments))
    }

    fn runs(&self) -> bool {
        !gone(self.pid, &self.node.mark())
    }
}

impl Drop for RabbitMq {
    fn drop(&mut self) {
        if self.runs() {
            drop(self.node.stop(self.pid, true));
        }
        drop(rabbitmq::end_epmd(&self.folder));
    }
}

/// What a run has started so far; each server when it is first asked for.
#[derive(Debug)]
pub(crate) struct Servers {
    folder: PathBuf,
    downloads: PathBuf,
    postgres: Option<Postgres>,
    kafka: Option<Kafka>,
    rabbitmq: Option<RabbitMq>,
    /// Proxies before brokers but Kafka, by the broker's port.
    proxies: HashMap<u16, Proxy>,
}

impl Servers {
    /// None yet. `target` is cargo's folder.
    pub(crate) fn new(target: &Path) -> Self {
        Self {
            folder: target.join("faults").join(std::process::id().to_string()),
            downloads: target.join("services"),
            postgres: None,
            kafka: None,
            rabbitmq: None,
            proxies: HashMap::new(),
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
        if let Some(rabbitmq) = self.rabbitmq.as_mut().filter(|rabbitmq| !rabbitmq.runs()) {
            rabbitmq.pid = block_in_place(|| rabbitmq.node.start()).context("start RabbitMQ again")?;
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

    pub(crate) fn rabbitmq(&mut self) -> anyhow::Result<&mut RabbitMq> {
        if self.rabbitmq.is_none() {
            let folder = self.folder()?.join("rabbitmq");
            self.rabbitmq = Some(RabbitMq::make(folder).context("start RabbitMQ")?);
        }
        self.rabbitmq.as_mut().context("RabbitMQ was started just now")
    }

    /// The port of a proxy before a broker of this machine.
    pub(crate) async fn proxy_before(&mut self, port: u16) -> anyhow::Result<u16> {
        if let Some(proxy) = self.proxies.get(&port) {
            return Ok(proxy.port());
        }
        let proxy = Proxy::start(0, port).await?;
        Ok(self.proxies.entry(port).or_insert(proxy).port())
    }

    /// The proxy before the broker of a URL that goes by it.
    pub(crate) async fn proxy_of(&mut self, broker: Broker, url: &str) -> anyhow::Result<&Proxy> {
        match broker {
            Broker::Kafka => Ok(&self.kafka().await?.proxy),
            Broker::Sqlite => bail!("no proxy stands before a file"),
            Broker::Rabbitmq | Broker::Redis | Broker::Sqs | Broker::Pubsub => {
                let proxy = self.proxies.values().find(|proxy| url.contains(&format!("{LOCAL}{}", proxy.port())));
                proxy.context("no proxy stands before this broker")
            }
        }
    }

    /// Ends the harness's own broker, and waits for that: as an operator does, or by SIGKILL.
    pub(crate) async fn stop_broker(&mut self, broker: Broker, kill: bool) -> anyhow::Result<()> {
        match broker {
            Broker::Kafka => self.kafka().await?.stop(if kill { Signal::SIGKILL } else { Signal::SIGTERM }),
            Broker::Rabbitmq => {
                let rabbitmq = self.rabbitmq()?;
                block_in_place(|| rabbitmq.node.stop(rabbitmq.pid, kill))
            }
            _ => bail!("this broker is not the harness's own"),
        }
    }

    /// Starts it again on the data that is there.
    pub(crate) async fn start_broker(&mut self, broker: Broker) -> anyhow::Result<()> {
        match broker {
            Broker::Kafka => self.kafka().await?.start(),
            Broker::Rabbitmq => {
                let rabbitmq = self.rabbitmq()?;
                rabbitmq.pid = block_in_place(|| rabbitmq.node.start())?;
                Ok(())
            }
            _ => bail!("this broker is not the harness's own"),
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        drop((self.postgres.take(), self.kafka.take(), self.rabbitmq.take()));
        drop(std::fs::remove_dir_all(&self.folder));
    }
}

/// Waits; an outage takes its time.
pub(crate) async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}
