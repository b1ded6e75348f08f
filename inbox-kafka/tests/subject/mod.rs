//! What the suite of `inbox-conformance` runs against: a real broker, `INBOX_TEST_KAFKA=kafka://host:port`.

use std::sync::Arc;

use async_trait::async_trait;
use inbox_conformance::{Link, TransportSubject, harness::unique};
use inbox_core::{
    BoxError, Publisher, Transport,
    capability::{Capabilities, Lease, Ordering},
};

pub(crate) struct KafkaSubject;

#[async_trait]
impl TransportSubject for KafkaSubject {
    fn name(&self) -> &str {
        "kafka"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "kafka",
            ordering: Ordering::Partition,
            lease: Lease::Session,
            delivery_count: false,
            suspect_flag: false,
            exclusive_keys: true,
            max_body: None,
            durable: true,
        }
    }

    async fn fresh(&self) -> Result<Arc<dyn Link>, BoxError> {
        let broker = std::env::var("INBOX_TEST_KAFKA").map_err(
            |_| "INBOX_TEST_KAFKA is not set: a broker, `kafka://host:port`; `cargo xtask services up` starts one",
        )?;
        let topic = format!("{}/{}", broker.trim_end_matches('/'), unique("suite"));
        inbox_kafka::provision(&format!("{topic}?partitions=4")).await?;
        Ok(Arc::new(KafkaLink { group: unique("group"), topic }))
    }
}

struct KafkaLink {
    topic: String,
    group: String,
}

impl KafkaLink {
    /// Short sessions: what a case drops without closing comes again soon.
    fn url(&self, group: &str) -> String {
        format!("{}?group={group}&session_timeout=6s&revoke_timeout=2s", self.topic)
    }
}

#[async_trait]
impl Link for KafkaLink {
    async fn connect(&self) -> Result<Arc<dyn Transport>, BoxError> {
        Ok(Arc::new(inbox_kafka::connect(&self.url(&self.group)).await?))
    }

    async fn connect_group(&self, group: &str) -> Result<Arc<dyn Transport>, BoxError> {
        Ok(Arc::new(inbox_kafka::connect(&self.url(&format!("{}-{group}", self.group))).await?))
    }

    async fn publisher(&self) -> Result<Arc<dyn Publisher>, BoxError> {
        Ok(Arc::new(inbox_kafka::publisher(&self.topic).await?))
    }

    async fn break_sessions(&self) -> Result<(), BoxError> {
        Err("sessions end by rebalance here, which this crate's own tests make".into())
    }

    async fn backlog(&self) -> Result<u64, BoxError> {
        let lag = inbox_kafka::group_lag(&self.url(&self.group)).await?;
        Ok(u64::try_from(lag).unwrap_or(0))
    }
}
