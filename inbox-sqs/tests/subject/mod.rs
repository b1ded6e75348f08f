//! For the suite of `inbox-conformance`, over a standard and a FIFO queue of moto, `INBOX_TEST_SQS=sqs://host:port`, as
//! `cargo xtask services up` starts it, and over a FIFO queue of a service of these tests, which can end a lease.

#[path = "../it/service.rs"]
#[allow(
    dead_code,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "shared with the tests of this crate, and clippy takes only functions that are a test for tests"
)]
mod service;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::future::join_all;
use inbox_conformance::{Link, TransportSubject, harness::unique};
use inbox_core::{
    BoxError, Message, Publisher, Transport, TransportError,
    capability::{Capabilities, Lease, Ordering},
};
use inbox_sqs::SqsTransport;

use self::service::Service;

/// A queue each: the groups that the cases ask for.
const GROUPS: [&str; 3] = ["own", "other", "another"];

/// Short leases: what a case kills comes again soon.
const KEYS: &str = "lease=4s&wait=1s";

pub(crate) struct SqsSubject {
    name: &'static str,
    fifo: bool,
    /// `None`: moto.
    service: Option<Arc<Service>>,
}

impl SqsSubject {
    pub(crate) fn standard() -> Arc<Self> {
        Arc::new(Self { name: "sqs", fifo: false, service: None })
    }

    pub(crate) fn fifo() -> Arc<Self> {
        Arc::new(Self { name: "sqs-fifo", fifo: true, service: None })
    }

    #[allow(dead_code, reason = "not used by all who share this file")]
    pub(crate) fn own_service() -> Arc<Self> {
        Arc::new(Self { name: "sqs-fifo-stub", fifo: true, service: Some(Service::start()) })
    }
}

#[async_trait]
impl TransportSubject for SqsSubject {
    fn name(&self) -> &str {
        self.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "sqs",
            ordering: if self.fifo { Ordering::Key } else { Ordering::None },
            lease: Lease::Ceiling(Duration::from_secs(12 * 3_600)),
            delivery_count: !self.fifo,
            suspect_flag: false,
            exclusive_keys: self.fifo,
            max_body: Some(1 << 20),
            durable: true,
        }
    }

    fn can_lose_leases(&self) -> bool {
        self.service.is_some()
    }

    fn holds_many_of_a_key(&self) -> bool {
        !self.fifo
    }

    async fn fresh(&self) -> Result<Arc<dyn Link>, BoxError> {
        let base = match &self.service {
            Some(service) => service.url(),
            None => std::env::var("INBOX_TEST_SQS").map_err(
                |_| "INBOX_TEST_SQS is not set: moto, `sqs://host:port`; `cargo xtask services up` starts one",
            )?,
        };
        let link = SqsLink {
            base: base.trim_end_matches('/').to_owned(),
            queue: unique("suite"),
            suffix: if self.fifo { ".fifo" } else { "" },
            service: self.service.clone(),
            published: Arc::default(),
        };
        for group in GROUPS {
            let url = link.url(group);
            inbox_sqs::provision(&url).await?;
            MADE.lock().unwrap_or_else(PoisonError::into_inner).push(url);
        }
        Ok(Arc::new(link))
    }
}

struct SqsLink {
    base: String,
    queue: String,
    suffix: &'static str,
    service: Option<Arc<Service>>,
    /// The ids of what was published, in that order: a FIFO queue stores groups side by side.
    published: Arc<Mutex<Vec<String>>>,
}

impl SqsLink {
    fn url(&self, group: &str) -> String {
        format!("{}/{}?{KEYS}", self.base, self.name(group))
    }

    fn name(&self, group: &str) -> String {
        format!("{}-{group}{}", self.queue, self.suffix)
    }

    async fn consumer(&self, group: &str) -> Result<Arc<SqsTransport>, BoxError> {
        if !GROUPS.contains(&group) {
            return Err(format!("no queue was made for a group `{group}`").into());
        }
        Ok(Arc::new(inbox_sqs::connect(&self.url(group)).await?))
    }
}

#[async_trait]
impl Link for SqsLink {
    async fn connect(&self) -> Result<Arc<dyn Transport>, BoxError> {
        Ok(self.consumer(GROUPS[0]).await?)
    }

    async fn connect_group(&self, group: &str) -> Result<Arc<dyn Transport>, BoxError> {
        Ok(self.consumer(group).await?)
    }

    async fn publisher(&self) -> Result<Arc<dyn Publisher>, BoxError> {
        let mut queues = Vec::new();
        for group in GROUPS {
            queues.push(inbox_sqs::publisher(&format!("{}&deduplicate=false", self.url(group))).await?);
        }
        Ok(Arc::new(FanOut { queues, published: Arc::clone(&self.published) }))
    }

    async fn break_sessions(&self) -> Result<(), BoxError> {
        Err("a lease belongs to a message, no broken connection ends it".into())
    }

    async fn lose_lease(&self, place: usize) -> Result<(), BoxError> {
        let service = self.service.as_ref().ok_or("moto ends no lease before its time")?;
        let published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
        let id = published.get(place).ok_or_else(|| format!("message {place} was not published"))?;
        service.end_lease(&self.name(GROUPS[0]), id);
        Ok(())
    }

    async fn backlog(&self) -> Result<u64, BoxError> {
        Ok(inbox_sqs::backlog(&self.url(GROUPS[0])).await?)
    }
}

/// What SNS does in front of SQS: each queue gets everything.
struct FanOut<P> {
    queues: Vec<P>,
    published: Arc<Mutex<Vec<String>>>,
}

#[async_trait]
impl<P: Publisher> Publisher for FanOut<P> {
    async fn publish(&self, messages: Vec<Message>) -> Vec<Result<(), TransportError>> {
        let id = |message: &Message| message.id.as_ref().map(|id| String::from_utf8_lossy(id.as_bytes()).into_owned());
        let ids = messages.iter().map(|message| id(message).unwrap_or_default());
        self.published.lock().unwrap_or_else(PoisonError::into_inner).extend(ids);
        let mut answers: Vec<Result<(), TransportError>> = messages.iter().map(|_| Ok(())).collect();
        for queue in join_all(self.queues.iter().map(|queue| queue.publish(messages.clone()))).await {
            answers.iter_mut().zip(queue).filter(|(answer, _)| answer.is_ok()).for_each(|(answer, own)| *answer = own);
        }
        answers
    }

    async fn close(&self, deadline: Duration) -> Result<(), TransportError> {
        join_all(self.queues.iter().map(|queue| queue.close(deadline))).await.into_iter().collect()
    }
}

/// What the cases have made.
static MADE: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Takes it away again: the service may be somebody's own.
pub(crate) fn clean() {
    let made = std::mem::take(&mut *MADE.lock().unwrap_or_else(PoisonError::into_inner));
    let Ok(runtime) = tokio::runtime::Runtime::new() else { return };
    runtime.block_on(join_all(made.iter().map(|url| service::delete_queue(url))));
}
