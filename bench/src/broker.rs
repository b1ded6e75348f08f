//! The topic: made, filled once, and removed with its groups.

use anyhow::{Context as _, Result, ensure};
use indicatif::ProgressBar;
use rdkafka::{
    ClientConfig,
    admin::{AdminClient, AdminOptions},
    client::DefaultClientContext,
};

use crate::{address::Address, queue, servers, workload::Workload};

/// How many partitions the topic has.
pub(crate) const PARTITIONS: usize = 8;
/// How many messages are published at once.
const AT_ONCE: usize = 10_000;

/// A topic of this run.
#[derive(Debug)]
pub(crate) struct Topic {
    kafka: String,
    pub(crate) name: String,
    groups: Vec<String>,
}

/// Sees a topic from the outside.
#[derive(Clone, Debug)]
pub(crate) struct Observer {
    url: String,
}

impl Observer {
    /// How many messages the group has not committed.
    pub(crate) async fn lag(&self, group: &str) -> Result<i64> {
        Ok(inbox::kafka::group_lag(&format!("{}?group={group}", self.url)).await?)
    }
}

impl Topic {
    /// Makes a topic and fills it.
    pub(crate) async fn filled(kafka: &str, name: &str, workload: Workload, bar: &ProgressBar) -> Result<Self> {
        let topic = Self { kafka: kafka.to_owned(), name: name.to_owned(), groups: Vec::new() };
        match topic.fill(workload, bar).await {
            Ok(()) => Ok(topic),
            Err(error) => {
                topic.remove().await;
                Err(error)
            }
        }
    }

    async fn fill(&self, workload: Workload, bar: &ProgressBar) -> Result<()> {
        let url = format!("{}/{}?partitions={PARTITIONS}", self.kafka, self.name);
        inbox::provision(&url).await.context("the topic cannot be made")?;
        queue::publish(&url, workload, AT_ONCE, bar).await?;
        let url = format!("{}/{}", self.kafka, self.name);
        let count = inbox::kafka::count_records(&url).await?;
        ensure!(count == workload.records() as u64, "the topic has {count} records, not {}", workload.records());
        Ok(())
    }

    /// A group of this topic that nobody has used.
    pub(crate) fn group(&mut self, name: &str) -> String {
        let group = format!("{}-{name}", self.name);
        self.groups.push(group.clone());
        group
    }

    /// Where it is for a member of a group.
    pub(crate) fn address(&self, group: &str) -> Result<Address> {
        let hosts = servers::hosts(&self.kafka)?.to_owned();
        Ok(Address::Kafka { hosts, topic: self.name.clone(), group: group.to_owned() })
    }

    /// Who can ask for the lag of a group.
    pub(crate) fn observer(&self) -> Observer {
        Observer { url: format!("{}/{}", self.kafka, self.name) }
    }

    /// Removes it. What cannot be removed is named and left.
    pub(crate) async fn remove(self) {
        if let Err(error) = self.delete().await {
            eprintln!("the topic {} was not removed: {error:#}", self.name);
        }
    }

    async fn delete(&self) -> Result<()> {
        let admin: AdminClient<DefaultClientContext> =
            ClientConfig::new().set("bootstrap.servers", servers::hosts(&self.kafka)?).create()?;
        let options = AdminOptions::new();
        let groups: Vec<&str> = self.groups.iter().map(String::as_str).collect();
        if !groups.is_empty() {
            // A group whose contestant failed before it joined does not exist.
            drop(admin.delete_groups(&groups, &options).await?);
        }
        for deleted in admin.delete_topics(&[self.name.as_str()], &options).await? {
            deleted.map_err(|(_, code)| rdkafka::error::KafkaError::AdminOp(code))?;
        }
        Ok(())
    }
}
