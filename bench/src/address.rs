//! Where the messages of a run are, as contestants are told.

use serde::{Deserialize, Serialize};

/// A queue, or a topic with who reads it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Address {
    /// A topic of Kafka and a group.
    Kafka {
        /// `host:port[,host:port…]`.
        hosts: String,
        topic: String,
        group: String,
    },
    /// A queue of RabbitMQ.
    RabbitMq {
        /// `amqp://user:password@host:port[/vhost]`.
        server: String,
        queue: String,
    },
    /// A queue of a stand-in for SQS.
    Sqs {
        /// `host:port`.
        host: String,
        queue: String,
    },
    /// A subscription at Pub/Sub's emulator.
    Pubsub {
        /// `http://host:port`.
        endpoint: String,
        project: String,
        /// The subscription's, and its topic's too.
        name: String,
    },
}

impl Address {
    /// The same as a URL of the facade.
    pub(crate) fn url(&self) -> String {
        match self {
            Self::Kafka { hosts, topic, group } => format!("kafka://{hosts}/{topic}?group={group}"),
            Self::RabbitMq { server, queue } => format!("{server}?queue={queue}"),
            Self::Sqs { host, queue } => format!("sqs://{host}/{queue}"),
            // Not in order: the emulator has a thread for each key of an ordered subscription.
            Self::Pubsub { endpoint, project, name } => {
                format!("pubsub://{project}/{name}?topic={name}&ordering=false&endpoint={endpoint}")
            }
        }
    }
}
