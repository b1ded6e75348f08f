//! For the suite of `inbox-conformance`, against the emulator: `INBOX_TEST_PUBSUB=pubsub://project?endpoint=http://host:port`.
//!
//! Twice: over a subscription that keeps keys in order, and over one that confirms acknowledgements. Not over one that does
//! both: the emulator then takes all messages without a key for those of one key, over all consumers, and refuses to
//! acknowledge any before the earlier ones. This crate's own tests have such a subscription, with keys.

#![allow(clippy::unwrap_used, reason = "locks that nobody poisons, in a test's subject")]

#[path = "../cleaning/mod.rs"]
mod cleaning;

use std::{
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use async_trait::async_trait;
use inbox_conformance::{Link, TransportSubject, harness::unique};
use inbox_core::{
    BoxError, IdText, Message, Publisher, Transport, TransportError,
    capability::{Capabilities, Lease, Ordering},
};
use inbox_pubsub::{PubsubPublisher, PubsubTransport};

const MAX_LEASE: Duration = Duration::from_secs(3_600);

/// A subscription knows only what is published after it was made: those of other groups must be there from the start.
const GROUPS: [&str; 3] = ["own", "other", "another"];

pub(crate) struct PubsubSubject {
    name: &'static str,
    exactly_once: bool,
}

impl PubsubSubject {
    pub(crate) fn ordered() -> Arc<Self> {
        Arc::new(Self { name: "pubsub", exactly_once: false })
    }

    #[allow(dead_code, reason = "not used by all who share this file")]
    pub(crate) fn exactly_once() -> Arc<Self> {
        Arc::new(Self { name: "pubsub-exactly-once", exactly_once: true })
    }
}

#[async_trait]
impl TransportSubject for PubsubSubject {
    fn name(&self) -> &str {
        self.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "pubsub",
            ordering: if self.exactly_once { Ordering::None } else { Ordering::Key },
            lease: Lease::Ceiling(MAX_LEASE),
            delivery_count: false,
            suspect_flag: false,
            exclusive_keys: false,
            max_body: Some(10_000_000),
            durable: true,
        }
    }

    /// The service keeps a key's later messages back until those of a dead consumer have come again. The emulator hands
    /// them to the next one at once.
    fn keeps_order_after_a_crash(&self) -> bool {
        false
    }

    fn can_lose_leases(&self) -> bool {
        true
    }

    // https://cloud.google.com/pubsub/docs/ordering: a redelivery takes along later messages of the key, also acknowledged ones.
    // What was on its way to a consumer that stops is given back, so on a busy machine some of what it acked comes again.
    fn delivers_acked_anew(&self) -> bool {
        !self.exactly_once
    }

    async fn fresh(&self) -> Result<Arc<dyn Link>, BoxError> {
        let service = std::env::var("INBOX_TEST_PUBSUB").map_err(
            |_| "INBOX_TEST_PUBSUB is not set: an emulator, `pubsub://project?endpoint=http://host:port`; `cargo xtask services up` starts one",
        )?;
        let (project, query) = service.split_once('?').ok_or("INBOX_TEST_PUBSUB has no `?endpoint=…`")?;
        let link = PubsubLink {
            project: project.trim_end_matches('/').to_owned(),
            query: format!("{query}&lease=10s&exactly_once={}&ordering={}", self.exactly_once, !self.exactly_once),
            topic: unique("suite"),
            connected: Mutex::default(),
            published: Arc::default(),
        };
        for group in GROUPS {
            inbox_pubsub::provision(&link.url(group)).await?;
        }
        // Counts from now on.
        link.backlog().await?;
        Ok(Arc::new(link))
    }
}

struct PubsubLink {
    project: String,
    query: String,
    topic: String,
    connected: Mutex<Vec<Weak<PubsubTransport>>>,
    /// The ids of what was published, in order.
    published: Arc<Mutex<Vec<Option<IdText>>>>,
}

impl PubsubLink {
    fn url(&self, group: &str) -> String {
        let Self { project, query, topic, .. } = self;
        format!("{project}/{topic}-{group}?topic={topic}&{query}")
    }
}

impl Drop for PubsubLink {
    fn drop(&mut self) {
        let Some(endpoint) = self.query.split(['=', '&']).nth(1) else { return };
        let project = format!("projects/{}", self.project.trim_start_matches("pubsub://"));
        let subscription = |group: &str| format!("{project}/subscriptions/{}-{group}", self.topic);
        let of_groups = GROUPS.iter().map(|group| subscription(group));
        let subscriptions: Vec<String> = of_groups.chain([subscription(&format!("{}-audit", GROUPS[0]))]).collect();
        cleaning::delete(endpoint, &format!("{project}/topics/{}", self.topic), &subscriptions);
    }
}

#[async_trait]
impl Link for PubsubLink {
    async fn connect(&self) -> Result<Arc<dyn Transport>, BoxError> {
        self.connect_group(GROUPS[0]).await
    }

    async fn connect_group(&self, group: &str) -> Result<Arc<dyn Transport>, BoxError> {
        if !GROUPS.contains(&group) {
            return Err(format!("no subscription was made for a group `{group}`").into());
        }
        let transport = Arc::new(inbox_pubsub::connect(&self.url(group)).await?);
        self.connected.lock().unwrap().push(Arc::downgrade(&transport));
        Ok(transport)
    }

    async fn publisher(&self) -> Result<Arc<dyn Publisher>, BoxError> {
        let inner = inbox_pubsub::publisher(&self.url(GROUPS[0])).await?;
        Ok(Arc::new(Noting { inner, published: Arc::clone(&self.published) }))
    }

    async fn break_sessions(&self) -> Result<(), BoxError> {
        Err("a lease belongs to a delivery, no broken stream ends it".into())
    }

    async fn lose_lease(&self, place: usize) -> Result<(), BoxError> {
        let id = self.published.lock().unwrap().get(place).cloned().flatten().ok_or("it has no id to be found by")?;
        let connected = self.connected.lock().unwrap();
        let lost = connected.iter().filter_map(Weak::upgrade).any(|transport| transport.lose_lease(&id));
        if lost { Ok(()) } else { Err(format!("message {place} is not out").into()) }
    }

    async fn backlog(&self) -> Result<u64, BoxError> {
        Ok(inbox_pubsub::backlog(&self.url(GROUPS[0])).await?)
    }
}

/// Notes what is published: the service keeps no order between keys that would tell a message's place.
struct Noting {
    inner: PubsubPublisher,
    published: Arc<Mutex<Vec<Option<IdText>>>>,
}

#[async_trait]
impl Publisher for Noting {
    async fn publish(&self, messages: Vec<Message>) -> Vec<Result<(), TransportError>> {
        self.published.lock().unwrap().extend(messages.iter().map(|message| message.id.clone()));
        self.inner.publish(messages).await
    }

    async fn close(&self, deadline: Duration) -> Result<(), TransportError> {
        self.inner.close(deadline).await
    }
}
