//! A fresh queue, and a few ways to drive a transport.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use inbox_core::{
    Bytes, Capacity, Delivery, HandlerError, Inbox, InboxError, Message, Publisher, Raw, Receipt, Transport,
    memory::{MemoryStore, MemoryTx},
    report,
};
use inbox_sqs::SqsTransport;
use tokio::{sync::oneshot, task::JoinHandle};

use crate::service::Service;

/// How long a case waits for what must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// `sqs://host:port` of moto.
pub(crate) fn moto() -> String {
    let url = std::env::var("INBOX_TEST_SQS").expect(
        "INBOX_TEST_SQS is not set: these tests need moto, `sqs://host:port`; `cargo xtask services up` starts it",
    );
    url.trim_end_matches('/').to_owned()
}

/// A queue of its own for one case.
pub(crate) struct Queue {
    base: String,
    pub(crate) name: String,
    /// Keys of the URL.
    query: &'static str,
}

impl Queue {
    pub(crate) async fn new(base: &str, suffix: &str, query: &'static str) -> Self {
        let name = format!("it-{}{suffix}", uuid::Uuid::now_v7().simple());
        let queue = Self { base: base.to_owned(), name, query };
        inbox_sqs::provision(&queue.url()).await.expect("provisioned");
        queue
    }

    /// Of moto.
    pub(crate) async fn standard(query: &'static str) -> Self {
        Self::new(&moto(), "", query).await
    }

    /// Of a service of these tests.
    pub(crate) async fn of(service: &Service, suffix: &str, query: &'static str) -> Self {
        Self::new(&service.url(), suffix, query).await
    }

    pub(crate) fn url(&self) -> String {
        format!("{}/{}?{}", self.base, self.name, self.query)
    }

    pub(crate) async fn connect(&self) -> SqsTransport {
        inbox_sqs::connect(&self.url()).await.expect("connected")
    }

    pub(crate) async fn backlog(&self) -> u64 {
        inbox_sqs::backlog(&self.url()).await.expect("a backlog")
    }

    pub(crate) async fn drained(&self) {
        until("all is deleted", async || self.backlog().await == 0).await;
    }

    /// Publishes messages with the given numbers as bodies and ids, keyed by the number modulo `keys`.
    pub(crate) async fn publish(&self, numbers: std::ops::Range<u32>, keys: u32) {
        let publisher = inbox_sqs::publisher(&self.url()).await.expect("a publisher");
        let messages = numbers.map(|n| numbered(n, keys)).collect();
        for result in publisher.publish(messages).await {
            result.unwrap_or_else(|error| panic!("{}", report(&error)));
        }
        publisher.close(PATIENCE).await.expect("closed");
    }
}

pub(crate) fn numbered(n: u32, keys: u32) -> Message {
    Message::new(Bytes::from(n.to_string())).id(format!("id-{n}")).kind("numbered").key(format!("key-{}", n % keys))
}

pub(crate) fn number(delivery: &Delivery) -> u32 {
    std::str::from_utf8(&delivery.message.body).expect("text").parse().expect("a number")
}

pub(crate) fn numbers(deliveries: &[Delivery]) -> Vec<u32> {
    deliveries.iter().map(number).collect()
}

pub(crate) fn receipts(deliveries: Vec<Delivery>) -> Vec<Receipt> {
    deliveries.into_iter().map(|delivery| delivery.receipt).collect()
}

pub(crate) fn at_most(messages: usize) -> Capacity {
    Capacity { messages, bytes: 64 << 20 }
}

/// Receives until there are `n` deliveries.
pub(crate) async fn receive(transport: &SqsTransport, n: usize) -> Vec<Delivery> {
    let mut all = Vec::new();
    while all.len() < n {
        match tokio::time::timeout(PATIENCE, transport.receive(at_most(n - all.len()))).await {
            Ok(Ok(deliveries)) => all.extend(deliveries),
            Ok(Err(error)) => panic!("{}", report(&error)),
            Err(_) => panic!("nothing came in time: {transport:?}"),
        }
    }
    all
}

/// Nothing comes for a while.
pub(crate) async fn quiet(transport: &SqsTransport, time: Duration) {
    if let Ok(result) = tokio::time::timeout(time, transport.receive(at_most(10))).await {
        panic!("nothing should have come: {result:?}");
    }
}

pub(crate) async fn ack(transport: &SqsTransport, deliveries: Vec<Delivery>) {
    let n = deliveries.len();
    let acked = transport.ack(receipts(deliveries)).await.expect("acked");
    assert_eq!((acked.acked, acked.lost), (n, 0));
}

/// How many messages wait to be received, and how many are out.
pub(crate) fn counts(transport: &SqsTransport) -> (usize, usize) {
    let shown = format!("{transport:?}");
    let count = |name: &str| {
        let rest = shown.rsplit(&format!(" {name}: ")).next().expect("shown");
        rest.split([',', ' ']).next().expect("a number").parse().expect("a number")
    };
    (count("waiting"), count("out"))
}

/// Waits for a condition that nothing signals.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE * 2;
    while !holds().await {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// What a handler does with a number.
pub(crate) type Decide = Arc<dyn Fn(u32) -> Act + Send + Sync>;

/// What a handler does, after it has applied its effect.
#[derive(Clone, Copy)]
pub(crate) enum Act {
    Succeed,
    Fail,
    Sleep(Duration),
}

/// An inbox over the memory store that appends each number to the log of its key.
pub(crate) struct Running {
    pub(crate) store: MemoryStore,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), InboxError>>,
}

impl Running {
    pub(crate) fn start(transport: impl Transport, store: MemoryStore, in_flight: usize, decide: Decide) -> Self {
        let handler = handler(move |message: Message<Raw>, tx: &mut MemoryTx| {
            let decide = Arc::clone(&decide);
            Box::pin(async move {
                let number = String::from_utf8_lossy(&message.body.0).into_owned();
                let key = String::from_utf8_lossy(message.key.as_deref().unwrap_or_default()).into_owned();
                tx.append(&key, &number)?;
                match decide(number.parse()?) {
                    Act::Succeed => Ok(()),
                    Act::Fail => Err(HandlerError::retry("as it was decided")),
                    Act::Sleep(time) => {
                        tokio::time::sleep(time).await;
                        Ok(())
                    }
                }
            })
        });
        let inbox = Inbox::new("it", Arc::new(transport), store.clone())
            .on_any(handler)
            .in_flight(in_flight)
            .max_attempts(50)
            .handler_timeout(Duration::from_secs(60))
            .backoff(inbox_core::Backoff { first: Duration::from_millis(1), most: Duration::from_millis(10) })
            .build()
            .expect("an inbox");
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(async move { inbox.run(async { drop(stopped.await) }).await });
        Self { store, stop, task }
    }

    pub(crate) async fn stop(self) -> MemoryStore {
        drop(self.stop);
        self.task.await.expect("no panic").expect("a clean end");
        self.store
    }
}

/// Only says what a closure's type is.
fn handler<F>(handler: F) -> impl inbox_core::Handler<Message<Raw>, MemoryTx>
where
    F: for<'a> Fn(
            Message<Raw>,
            &'a mut MemoryTx,
        ) -> std::pin::Pin<Box<dyn Future<Output = Result<(), HandlerError>> + Send + 'a>>
        + Send
        + Sync
        + 'static,
{
    handler
}
