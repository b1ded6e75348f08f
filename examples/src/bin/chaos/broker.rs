//! The topic of a run: its URL, what is on it, and what a group has left.

use anyhow::{Context, bail};

/// The topic of one run.
#[derive(Clone, Debug)]
pub(crate) struct Broker {
    base: String,
    topic: String,
}

impl Broker {
    pub(crate) fn new(base: &str, run: &str) -> Self {
        Self { base: base.trim_end_matches('/').to_owned(), topic: format!("chaos-{run}") }
    }

    /// The topic's URL, with a group and what makes a crashed member's messages come back soon.
    pub(crate) fn url(&self, group: Option<&str>) -> String {
        let url = format!("{}/{}", self.base, self.topic);
        match group {
            None => url,
            // A static member that comes back after a crash has its partitions at once.
            Some(group) if self.is_kafka() => {
                format!("{url}?group={}-{group}&instance={group}&session_timeout=10s", self.topic)
            }
            Some(group) => format!("{url}?group={group}&lease=2s"),
        }
    }

    fn is_kafka(&self) -> bool {
        self.base.starts_with("kafka")
    }

    /// How many messages are on the topic: read from the broker.
    pub(crate) async fn published(&self) -> anyhow::Result<u64> {
        if self.is_kafka() {
            #[cfg(feature = "kafka")]
            return inbox::kafka::count_records(&self.url(None)).await.context("count the topic's records");
        }
        if self.base.starts_with("sqlite") {
            return inbox::sqlite::QueueConfig::parse(&self.url(None))?.published().await.context("count the messages");
        }
        bail!("no such transport in this build: {}; accepted: sqlite:FILE, kafka://host:port", self.base)
    }

    /// How many messages a group has not acknowledged.
    pub(crate) async fn backlog(&self, group: &str) -> anyhow::Result<u64> {
        if self.is_kafka() {
            #[cfg(feature = "kafka")]
            {
                let lag = inbox::kafka::group_lag(&self.url(Some(group))).await.context("read the group's lag")?;
                return Ok(u64::try_from(lag).unwrap_or(0));
            }
        }
        Ok(inbox::sqlite::QueueConfig::parse(&self.url(Some(group)))?.backlog().await?)
    }
}
