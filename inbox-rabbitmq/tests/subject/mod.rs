//! For the suite of `inbox-conformance`, against a real broker, over a classic and over a quorum queue:
//! `INBOX_TEST_RABBITMQ=rabbitmq://user:password@host:port`.

#[path = "../it/proxy.rs"]
#[allow(dead_code, reason = "shared with the tests of this crate")]
mod proxy;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use inbox_conformance::{Link, TransportSubject, harness::unique};
use inbox_core::{
    BoxError, Publisher, Transport,
    capability::{Capabilities, Lease, Ordering},
    config::TransportUrl,
};
use inbox_rabbitmq::{ExchangeType, QueueType, RabbitMqAdmin, RabbitMqConfig, RabbitMqPublisher, RabbitMqTransport};

use self::proxy::Proxy;

pub(crate) struct RabbitMqSubject {
    name: &'static str,
    queue_type: QueueType,
}

impl RabbitMqSubject {
    pub(crate) fn classic() -> Arc<Self> {
        Arc::new(Self { name: "rabbitmq", queue_type: QueueType::Classic })
    }

    #[allow(dead_code, reason = "not used by all who share this file")]
    pub(crate) fn quorum() -> Arc<Self> {
        Arc::new(Self { name: "rabbitmq-quorum", queue_type: QueueType::Quorum })
    }
}

#[async_trait]
impl TransportSubject for RabbitMqSubject {
    fn name(&self) -> &str {
        self.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "rabbitmq",
            ordering: Ordering::None,
            lease: Lease::Ceiling(Duration::from_secs(30 * 60)),
            delivery_count: false,
            suspect_flag: false,
            exclusive_keys: false,
            max_body: None,
            durable: true,
        }
    }

    fn can_break_sessions(&self) -> bool {
        true
    }

    async fn fresh(&self) -> Result<Arc<dyn Link>, BoxError> {
        let url = std::env::var("INBOX_TEST_RABBITMQ").map_err(
            |_| "INBOX_TEST_RABBITMQ is not set: a broker, `rabbitmq://user:password@host:port`; `cargo xtask services up` starts one",
        )?;
        let proxy = Proxy::start(port(&url)?).await?;
        let config = RabbitMqConfig::from_url(&url)?
            .exchange(unique("suite"))
            .exchange_type(ExchangeType::Fanout)
            .queue_type(self.queue_type);
        let (queue, spare) = (unique("suite"), unique("suite-other"));
        for queue in [&queue, &spare] {
            let config = config.clone().queue(queue);
            let admin = RabbitMqAdmin::connect(config.clone()).await?;
            admin.provision().await?;
            admin.close().await;
            MADE.lock().unwrap_or_else(PoisonError::into_inner).push(config);
        }
        Ok(Arc::new(RabbitMqLink { queue, spare: Mutex::new(Some(spare)), config, url, proxy }))
    }
}

fn port(url: &str) -> Result<u16, BoxError> {
    let url = TransportUrl::parse(url)?;
    let (_, port) = url.authority().rsplit_once(':').ok_or("INBOX_TEST_RABBITMQ names no port")?;
    Ok(port.parse()?)
}

/// Every group has a queue of its own, all of them bound to one exchange.
struct RabbitMqLink {
    url: String,
    config: RabbitMqConfig,
    queue: String,
    /// That of a group which comes later: a queue has what was published since it was made.
    spare: Mutex<Option<String>>,
    /// Between the consumers of the topic's own group and the broker.
    proxy: Proxy,
}

impl RabbitMqLink {
    async fn consumer(&self, queue: &str, port: u16) -> Result<Arc<RabbitMqTransport>, BoxError> {
        let url = TransportUrl::parse(&self.url)?;
        let config = RabbitMqConfig::new(format!("127.0.0.1:{port}")).queue(queue);
        let config = match (url.user(), url.password()) {
            (Some(user), Some(password)) => config.login(user, password.expose()),
            _ => config,
        };
        Ok(Arc::new(RabbitMqTransport::connect(config).await?))
    }
}

#[async_trait]
impl Link for RabbitMqLink {
    async fn connect(&self) -> Result<Arc<dyn Transport>, BoxError> {
        Ok(self.consumer(&self.queue, self.proxy.port).await?)
    }

    async fn connect_group(&self, group: &str) -> Result<Arc<dyn Transport>, BoxError> {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).take();
        let queue = spare.ok_or_else(|| format!("no queue is left for the group {group}"))?;
        Ok(self.consumer(&queue, port(&self.url)?).await?)
    }

    async fn publisher(&self) -> Result<Arc<dyn Publisher>, BoxError> {
        Ok(Arc::new(RabbitMqPublisher::connect(self.config.clone()).await?))
    }

    async fn break_sessions(&self) -> Result<(), BoxError> {
        self.proxy.cut();
        Ok(())
    }

    async fn backlog(&self) -> Result<u64, BoxError> {
        let admin = RabbitMqAdmin::connect(self.config.clone().queue(&self.queue)).await?;
        let mut backlog = 0;
        // Nobody sees a message that is on its way between the queue and the proxy: nothing is nothing when it stays so.
        for _ in 0..4 {
            backlog = admin.ready().await? + self.proxy.held();
            if backlog > 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(40)).await;
        }
        admin.close().await;
        Ok(backlog)
    }
}

/// What the cases have made at the broker.
static MADE: Mutex<Vec<RabbitMqConfig>> = Mutex::new(Vec::new());

/// Takes it away again: the broker may be somebody's own.
pub(crate) fn clean() {
    let made = std::mem::take(&mut *MADE.lock().unwrap_or_else(PoisonError::into_inner));
    let Ok(runtime) = tokio::runtime::Runtime::new() else { return };
    runtime.block_on(async {
        for config in made {
            if let Ok(admin) = RabbitMqAdmin::connect(config).await {
                drop(admin.delete().await);
                admin.close().await;
            }
        }
    });
}
