//! What every run needs and leaves nothing of: the servers, a database and a topic of its own.

use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::signal;

use crate::{
    broker::Topic,
    child,
    contestant::{Contestant, Job, Line, Measured},
    database::{Database, Found},
    machine::Machine,
    processes::{self, Servers},
    servers::{self, Urls},
    workload::Workload,
};

/// Where contestants run.
#[derive(Debug)]
pub(crate) struct Stage {
    urls: Urls,
    servers: Servers,
    workload: Workload,
    pub(crate) database: Database,
    pub(crate) topic: Topic,
}

/// What a contestant did, and what it left.
#[derive(Debug)]
pub(crate) struct Performance {
    pub(crate) measured: Measured,
    pub(crate) found: Found,
    pub(crate) faults: Vec<String>,
}

impl Stage {
    /// Makes the database and the topic, and fills it.
    pub(crate) async fn set(workload: Workload) -> Result<Self> {
        let urls = Urls::from_environment()?;
        let name = format!("inbox_bench_{}_{:08x}", std::process::id(), fastrand::u32(..));
        let database = Database::new(&urls.postgres, &name).await?;
        let bar = ProgressBar::no_length().with_style(style("filling the topic"));
        let set = async {
            let broker = servers::port(&urls.kafka).and_then(processes::listener);
            let servers = Servers { postmaster: database.postmaster().await?, broker };
            Ok((servers, Topic::filled(&urls.kafka, &name, workload, &bar).await?))
        };
        let set: Result<_> = set.await;
        bar.finish_and_clear();
        match set {
            Ok((servers, topic)) => Ok(Self { urls, servers, workload, database, topic }),
            Err(error) => {
                database.remove().await;
                Err(error)
            }
        }
    }

    /// What the figures depend on.
    pub(crate) async fn machine(&self) -> Result<Machine> {
        Machine::look(&self.database, self.servers.broker).await
    }

    /// Runs a contestant in a group of its own on empty tables, and proves what it left.
    pub(crate) async fn perform(
        &mut self,
        contestant: Contestant,
        group: String,
        watched: bool,
        each: impl FnMut(Line),
    ) -> Result<Performance> {
        self.database.reset().await?;
        let job = Job {
            contestant,
            kafka: self.urls.kafka.clone(),
            topic: self.topic.name.clone(),
            group,
            database: self.database.url(),
            records: self.workload.records(),
            servers: self.servers,
            watched,
        };
        let measured = child::run(&job, each).await?;
        let found = self.database.found().await?.with_lag(self.topic.observer().lag(&job.group).await?);
        let expected = if contestant.writes() { Found::expected(&self.workload) } else { Found::nothing() };
        Ok(Performance { measured, found, faults: found.faults(&expected) })
    }

    /// Removes the database and the topic.
    pub(crate) async fn strike(self) {
        self.topic.remove().await;
        self.database.remove().await;
    }
}

/// Does `work`, or gives up when the person at the terminal does: what was made is removed all the same.
pub(crate) async fn unless_interrupted<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::select! {
        done = work => done,
        interrupted = signal::ctrl_c() => {
            interrupted?;
            bail!("interrupted")
        }
    }
}

/// The look of a bar.
pub(crate) fn style(what: &str) -> ProgressStyle {
    let template = format!("{what} [{{elapsed}}] {{bar:40}} {{human_pos}}/{{human_len}} {{msg}}");
    ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
