//! What every run on Kafka needs and leaves nothing of: the servers, a database and a topic of its own.

use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::signal;

use crate::{
    broker::Topic,
    contestant::{Contestant, Line},
    database::Found,
    machine::{self, Machine},
    processes,
    servers::{self, Urls},
    trial::{Performance, Trials},
    workload::Workload,
};

/// Where contestants run.
#[derive(Debug)]
pub(crate) struct Stage {
    /// Kafka's only process.
    kafka: Option<i32>,
    workload: Workload,
    trials: Trials,
    pub(crate) topic: Topic,
}

impl Stage {
    /// Makes the database and the topic, and fills it.
    pub(crate) async fn set(workload: Workload) -> Result<Self> {
        let urls = Urls::from_environment()?;
        let name = unique();
        let trials = Trials::new(&urls.postgres, &name).await?;
        let bar = ProgressBar::no_length().with_style(style("filling the topic"));
        let topic = Topic::filled(&urls.kafka, &name, workload, &bar).await;
        bar.finish_and_clear();
        let kafka = servers::port(&urls.kafka).and_then(processes::listener);
        match topic {
            Ok(topic) => Ok(Self { kafka, workload, trials, topic }),
            Err(error) => {
                trials.remove().await;
                Err(error)
            }
        }
    }

    /// What the figures depend on.
    pub(crate) async fn machine(&self) -> Result<Machine> {
        self.trials.machine(machine::kafka(self.kafka)).await
    }

    /// Runs a contestant in a group of its own on empty tables, and proves what it left.
    pub(crate) async fn perform(
        &mut self,
        contestant: Contestant,
        group: String,
        watched: bool,
        each: impl FnMut(Line),
    ) -> Result<Performance> {
        let job = (self.topic.address(&group)?, self.workload.records());
        let (measured, found) = self.trials.run(contestant, job, self.kafka, watched, each).await?;
        let found = found.with_lag(self.topic.observer().lag(&group).await?);
        let expected = if contestant.writes() { Found::expected(&self.workload) } else { Found::nothing() };
        Ok(Performance::judged(measured, found, &expected))
    }

    /// Removes the database and the topic.
    pub(crate) async fn strike(self) {
        self.topic.remove().await;
        self.trials.remove().await;
    }
}

/// A name that nothing else has.
pub(crate) fn unique() -> String {
    format!("inbox_bench_{}_{:08x}", std::process::id(), fastrand::u32(..))
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
