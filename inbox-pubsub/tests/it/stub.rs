//! The stand-in with one subscription, for what the emulator does not do.

use std::{collections::HashMap, ops::Deref};

use crate::standin::{StandIn, proto::PubsubMessage, service::Subscription};

pub(crate) const PERMISSION_DENIED: i32 = 7;
pub(crate) const UNAVAILABLE: i32 = 14;

const TOPIC: &str = "projects/p/topics/top";
const SUBSCRIPTION: &str = "projects/p/subscriptions/sub";

/// The stand-in, with the subscription `sub` of the topic `top`.
pub(crate) struct Stub(StandIn);

impl Stub {
    /// One whose subscription keeps keys in order.
    pub(crate) async fn start() -> Self {
        Self::with(false).await
    }

    /// One whose subscription confirms acknowledgements too.
    pub(crate) async fn exactly_once() -> Self {
        Self::with(true).await
    }

    async fn with(exactly_once: bool) -> Self {
        let standin = StandIn::start(0).await.expect("a port");
        {
            let mut seen = standin.seen();
            seen.service.topics.insert(TOPIC.to_owned());
            let subscription = Subscription::new(TOPIC, true, exactly_once, 10);
            seen.service.subscriptions.insert(SUBSCRIPTION.to_owned(), subscription);
        }
        Self(standin)
    }

    pub(crate) fn url(&self, query: &str) -> String {
        format!("pubsub://p/sub?topic=top&endpoint=http://{}&lease=10s{query}", self.address)
    }

    /// Puts messages with the numbers as bodies into the subscription, keyed by the number modulo `keys`.
    pub(crate) fn fill(&self, numbers: std::ops::Range<u32>, keys: u32) {
        let mut seen = self.seen();
        let subscription = seen.service.subscriptions.get_mut(SUBSCRIPTION).expect("the subscription");
        for n in numbers {
            subscription.add(PubsubMessage {
                data: n.to_string().into_bytes(),
                attributes: HashMap::from([("message-id".to_owned(), format!("id-{n}"))]),
                message_id: format!("m{n}"),
                publish_time: None,
                ordering_key: format!("k{}", n % keys),
            });
        }
    }
}

impl Deref for Stub {
    type Target = StandIn;

    fn deref(&self) -> &StandIn {
        &self.0
    }
}
