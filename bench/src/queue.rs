//! Queues of RabbitMQ, SQS and Pub/Sub: where their servers are, and a queue of its own for each run.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use aws_sdk_sqs::config::{Credentials, Region, StalledStreamProtectionConfig};
use clap::ValueEnum;
use google_cloud_auth::credentials::anonymous::Builder as Anonymous;
use google_cloud_pubsub::client::{SubscriptionAdmin, TopicAdmin};
use inbox::rabbitmq::{RabbitMqAdmin, RabbitMqConfig};
use indicatif::ProgressBar;
use tokio::time::{Instant, sleep};
use url::Url;

use crate::{address::Address, machine, processes, servers, workload::Workload};

/// How many messages are given to a publisher at once.
const AT_ONCE: usize = 1_000;
/// How long acknowledgements may take to arrive, and between two looks.
const ARRIVING: (Duration, Duration) = (Duration::from_secs(10), Duration::from_millis(250));

/// A broker whose adapter is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Broker {
    Rabbitmq,
    Sqs,
    Pubsub,
}

impl Broker {
    /// Its name for people.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Rabbitmq => "RabbitMQ",
            Self::Sqs => "SQS",
            Self::Pubsub => "Pub/Sub",
        }
    }

    /// The name on the command line.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// How many payments a run has that goes into the report: as many as its server works off in some seconds.
    pub(crate) fn messages(self) -> usize {
        match self {
            Self::Rabbitmq => 50_000,
            // With each receive, moto walks over the whole queue.
            Self::Sqs => 3_000,
            Self::Pubsub => 20_000,
        }
    }

    /// What the hand-written loop does, for the report.
    pub(crate) fn loop_description(self) -> &'static str {
        match self {
            Self::Rabbitmq => {
                "lapin: one channel with one consumer and a prefetch of 2,000; `basic_ack` with `multiple` of the highest \
                 delivery below which all are committed."
            }
            Self::Sqs => {
                "aws-sdk-sqs: eight `ReceiveMessage` of ten under way; `DeleteMessageBatch` of ten that are \
                 committed, eight of them under way beside the transactions."
            }
            Self::Pubsub => {
                "google-cloud-pubsub: one stream that may have 2,000 messages out; the handler of each message \
                 acknowledges."
            }
        }
    }

    fn variable(self) -> (&'static str, &'static str) {
        match self {
            Self::Rabbitmq => ("INBOX_TEST_RABBITMQ", "rabbitmq://user:password@host:port[/vhost]"),
            Self::Sqs => ("INBOX_TEST_SQS", "sqs://host:port of a stand-in"),
            Self::Pubsub => ("INBOX_TEST_PUBSUB", "pubsub://project?endpoint=http://host:port of the emulator"),
        }
    }

    /// Its server.
    pub(crate) fn server(self) -> Result<Server> {
        let (variable, shape) = self.variable();
        let url = servers::variable(variable)?;
        // The hand-written loops know no encryption and no account.
        Server::of(self, &url).with_context(|| format!("{variable} must be {shape}, and nothing more"))
    }
}

/// A broker's server.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) broker: Broker,
    url: Url,
    /// Where it listens.
    port: u16,
}

impl Server {
    fn of(broker: Broker, url: &str) -> Option<Self> {
        let mut url = Url::parse(url).ok()?;
        let port = match (broker, url.scheme()) {
            (Broker::Rabbitmq, "rabbitmq" | "amqp") if url.query().is_none() => {
                url.set_scheme("amqp").ok()?;
                url.port().unwrap_or(5672)
            }
            (Broker::Sqs, "sqs") if url.query().is_none() => url.port()?,
            (Broker::Pubsub, "pubsub") => Url::parse(&endpoint(&url)?).ok()?.port_or_known_default()?,
            _ => return None,
        };
        url.host_str()?;
        Some(Self { broker, url, port })
    }

    /// Its process, if that runs here.
    pub(crate) fn process(&self) -> Option<i32> {
        processes::listener(self.port)
    }

    /// What it is.
    pub(crate) fn describe(&self) -> String {
        machine::broker(self.broker, self.process())
    }

    fn address(&self, name: &str) -> Address {
        let host = self.url.host_str().unwrap_or_default().to_owned();
        let name = name.to_owned();
        match self.broker {
            Broker::Rabbitmq => {
                Address::RabbitMq { server: self.url.as_str().trim_end_matches('/').to_owned(), queue: name }
            }
            Broker::Sqs => Address::Sqs { host: format!("{host}:{}", self.port), queue: name },
            Broker::Pubsub => {
                Address::Pubsub { endpoint: endpoint(&self.url).unwrap_or_default(), project: host, name }
            }
        }
    }

    /// Makes a queue and fills it.
    pub(crate) async fn filled(&self, name: &str, workload: Workload, bar: &ProgressBar) -> Result<Queue> {
        let queue = Queue { address: self.address(name) };
        let url = queue.address.url();
        let filled = async {
            inbox::provision(&url).await.context("the queue cannot be made")?;
            publish(&url, workload, AT_ONCE, bar).await
        };
        match filled.await {
            Ok(()) => Ok(queue),
            Err(error) => {
                queue.remove().await;
                Err(error)
            }
        }
    }
}

fn endpoint(url: &Url) -> Option<String> {
    let endpoint = url.query_pairs().find(|(key, _)| key == "endpoint")?.1.into_owned();
    endpoint.starts_with("http:").then_some(endpoint)
}

/// Publishes all messages to what a URL names.
pub(crate) async fn publish(url: &str, workload: Workload, at_once: usize, bar: &ProgressBar) -> Result<()> {
    let publisher = inbox::publisher(url).await?;
    bar.set_length(workload.records() as u64);
    let mut messages = workload.messages().peekable();
    while messages.peek().is_some() {
        for published in publisher.publish(messages.by_ref().take(at_once).collect()).await {
            published.context("a message was not published")?;
            bar.inc(1);
        }
    }
    Ok(publisher.close(Duration::from_secs(10)).await?)
}

/// A queue of a run.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) address: Address,
}

impl Queue {
    /// What its consumer, which has ended, has left in it, held messages included.
    pub(crate) async fn left(&self) -> Result<i64> {
        let url = self.address.url();
        let deadline = Instant::now() + ARRIVING.0;
        // What a consumer of RabbitMQ held is counted once its connection is known to be gone: so twice.
        let mut empty = 0;
        loop {
            let left = i64::try_from(inbox::backlog(&url).await?)?;
            empty = if left == 0 { empty + 1 } else { 0 };
            if empty == 2 || left > 0 && Instant::now() > deadline {
                return Ok(left);
            }
            sleep(ARRIVING.1).await;
        }
    }

    /// Removes it. What cannot be removed is named and left.
    pub(crate) async fn remove(self) {
        if let Err(error) = self.delete().await {
            eprintln!("a queue was not removed: {error:#}");
        }
    }

    async fn delete(&self) -> Result<()> {
        match &self.address {
            Address::Kafka { topic, .. } => bail!("{topic} is a topic"),
            Address::RabbitMq { .. } => {
                let admin = RabbitMqAdmin::connect(RabbitMqConfig::from_url(&self.address.url())?).await?;
                admin.delete().await.with_context(|| format!("{:?}", self.address))?;
                admin.close().await;
            }
            Address::Sqs { host, queue } => {
                let client = sqs_client(host);
                let url = client.get_queue_url().queue_name(queue).send().await?.queue_url;
                client.delete_queue().set_queue_url(url).send().await.context(queue.clone())?;
            }
            Address::Pubsub { endpoint, project, name } => {
                let admin = SubscriptionAdmin::builder().with_endpoint(endpoint).with_credentials(anonymous());
                let admin = admin.build().await?;
                let topics = TopicAdmin::builder().with_endpoint(endpoint).with_credentials(anonymous());
                let path = format!("projects/{project}/subscriptions/{name}");
                // The second is what a backlog is counted with.
                for path in [path.clone(), format!("{path}-audit")] {
                    admin.delete_subscription().set_subscription(&path).send().await.context(path)?;
                }
                let path = format!("projects/{project}/topics/{name}");
                topics.build().await?.delete_topic().set_topic(&path).send().await.context(path)?;
            }
        }
        Ok(())
    }
}

/// Amazon's client for a stand-in.
pub(crate) fn sqs_client(host: &str) -> aws_sdk_sqs::Client {
    let config = aws_sdk_sqs::Config::builder()
        .region(Region::new("us-east-1"))
        .endpoint_url(format!("http://{host}"))
        .credentials_provider(Credentials::new("test", "test", None, None, "bench"))
        // Meant for downloads: a receive that waits looks stalled to it.
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled());
    aws_sdk_sqs::Client::from_conf(config.build())
}

/// What the emulator takes.
pub(crate) fn anonymous() -> google_cloud_auth::credentials::Credentials {
    Anonymous::new().build()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(broker: Broker, server: &str) -> Option<String> {
        Server::of(broker, server).map(|server| server.address("q").url())
    }

    #[test]
    fn a_queue_is_named_for_the_facade() {
        let rabbitmq = url(Broker::Rabbitmq, "rabbitmq://u:p@h:1/");
        assert_eq!(rabbitmq.as_deref(), Some("amqp://u:p@h:1?queue=q"));
        assert_eq!(url(Broker::Rabbitmq, "amqp://h/v").as_deref(), Some("amqp://h/v?queue=q"));
        assert_eq!(url(Broker::Sqs, "sqs://h:1").as_deref(), Some("sqs://h:1/q"));
        let pubsub = url(Broker::Pubsub, "pubsub://p?endpoint=http://h:1");
        assert_eq!(pubsub.as_deref(), Some("pubsub://p/q?topic=q&ordering=false&endpoint=http://h:1"));
    }

    #[test]
    fn servers_that_want_an_account_are_refused() {
        assert_eq!(url(Broker::Rabbitmq, "amqps://h"), None);
        assert_eq!(url(Broker::Sqs, "sqs://eu-west-1"), None);
        assert_eq!(url(Broker::Pubsub, "pubsub://p"), None);
        assert_eq!(url(Broker::Pubsub, "pubsub://p?endpoint=https://h"), None);
    }
}
