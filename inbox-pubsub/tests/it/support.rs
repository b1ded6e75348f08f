//! An emulator, a fresh topic, and a few ways to drive a transport.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use inbox_core::{
    Bytes, Capacity, Delivery, HandlerError, Inbox, InboxError, InboxHandle, Message, Publisher, Raw, Receipt,
    Transport,
    memory::{MemoryStore, MemoryTx},
    report,
};
use inbox_pubsub::PubsubTransport;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::JoinHandle,
};

/// How long a case waits for what must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The emulator: `pubsub://project`, and the address of its endpoint.
pub(crate) fn emulator() -> (String, String) {
    let url = std::env::var("INBOX_TEST_PUBSUB").expect(
        "INBOX_TEST_PUBSUB is not set: these tests need an emulator, `pubsub://project?endpoint=http://host:port`",
    );
    let (project, endpoint) =
        url.split_once("?endpoint=http://").expect("`pubsub://project?endpoint=http://host:port`");
    (project.trim_end_matches('/').to_owned(), endpoint.to_owned())
}

/// A topic of its own for one case, with one subscription.
pub(crate) struct Topic {
    pub(crate) name: String,
    /// Keys of the URL that the subscription is made and consumed with.
    query: &'static str,
    endpoint: String,
}

impl Topic {
    pub(crate) async fn new(query: &'static str) -> Self {
        let topic = Self { name: format!("it-{}", uuid::Uuid::now_v7().simple()), query, endpoint: emulator().1 };
        inbox_pubsub::provision(&topic.url()).await.expect("provisioned");
        // Counts from now on.
        assert_eq!(topic.backlog().await, 0);
        topic
    }

    pub(crate) fn url(&self) -> String {
        self.url_at(&self.endpoint)
    }

    /// The same by another address, a proxy's.
    pub(crate) fn url_at(&self, endpoint: &str) -> String {
        let Self { name, query, .. } = self;
        format!("{}/{name}?topic={name}&endpoint=http://{endpoint}&lease=10s{query}", emulator().0)
    }

    pub(crate) async fn connect(&self) -> PubsubTransport {
        inbox_pubsub::connect(&self.url()).await.expect("connected")
    }

    pub(crate) async fn delete_subscription(&self) {
        let (project, endpoint) = emulator();
        let admin = google_cloud_pubsub::client::SubscriptionAdmin::builder()
            .with_endpoint(format!("http://{endpoint}"))
            .with_credentials(google_cloud_auth::credentials::anonymous::Builder::new().build())
            .build()
            .await
            .expect("a client");
        let project = project.trim_start_matches("pubsub://");
        let path = format!("projects/{project}/subscriptions/{}", self.name);
        admin.delete_subscription().set_subscription(path).send().await.expect("deleted");
    }

    pub(crate) async fn backlog(&self) -> u64 {
        inbox_pubsub::backlog(&self.url()).await.expect("a backlog")
    }

    /// Publishes messages with the given numbers as bodies and ids, keyed by the number modulo `keys`.
    pub(crate) async fn publish(&self, numbers: std::ops::Range<u32>, keys: u32) {
        let publisher = inbox_pubsub::publisher(&self.url()).await.expect("a publisher");
        let messages = numbers.map(|n| numbered(n, keys)).collect();
        for result in publisher.publish(messages).await {
            result.expect("published");
        }
        publisher.close(PATIENCE).await.expect("closed");
    }
}

impl Drop for Topic {
    fn drop(&mut self) {
        let (project, endpoint) = emulator();
        let project = format!("projects/{}", project.trim_start_matches("pubsub://"));
        let subscription = format!("{project}/subscriptions/{}", self.name);
        let subscriptions = [format!("{subscription}-audit"), subscription];
        let topic = format!("{project}/topics/{}", self.name);
        crate::cleaning::delete(&format!("http://{endpoint}"), &topic, &subscriptions);
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
pub(crate) async fn receive(transport: &PubsubTransport, n: usize) -> Vec<Delivery> {
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
pub(crate) async fn quiet(transport: &PubsubTransport, time: Duration) {
    if let Ok(result) = tokio::time::timeout(time, transport.receive(at_most(10))).await {
        panic!("nothing should have come: {result:?}");
    }
}

pub(crate) async fn ack(transport: &PubsubTransport, deliveries: Vec<Delivery>) {
    let n = deliveries.len();
    let acked = transport.ack(receipts(deliveries)).await.expect("acked");
    assert_eq!((acked.acked, acked.lost), (n, 0));
}

/// How many messages wait in the transport, and how many are out.
pub(crate) fn counts(transport: &PubsubTransport) -> (usize, usize) {
    let shown = format!("{transport:?}");
    let count = |name: &str| {
        let rest = shown.split(&format!(" {name}: ")).nth(1).expect("shown");
        rest.split(',').next().expect("a number").trim().parse().expect("a number")
    };
    (count("waiting"), count("out"))
}

/// Waits for a condition that nothing signals.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The number and the attempt of a handler's call.
pub(crate) type Decide = Arc<dyn Fn(u32) -> Act + Send + Sync>;

/// What a handler does, after it has applied its effect.
#[derive(Clone, Copy)]
pub(crate) enum Act {
    Succeed,
    Fail,
    Sleep(Duration),
    /// Holds its thread, and so notices no deadline.
    Block(Duration),
}

/// An inbox over the memory store that appends each number to the log of its key.
pub(crate) struct Running {
    pub(crate) store: MemoryStore,
    pub(crate) handle: InboxHandle,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), InboxError>>,
}

impl Running {
    pub(crate) fn start(transport: PubsubTransport, store: MemoryStore, in_flight: usize, decide: Decide) -> Self {
        Self::start_for(Duration::from_secs(60), transport, store, in_flight, decide)
    }

    /// With a time that a handler may take.
    pub(crate) fn start_for(
        handler_timeout: Duration,
        transport: PubsubTransport,
        store: MemoryStore,
        in_flight: usize,
        decide: Decide,
    ) -> Self {
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
                    Act::Block(time) => {
                        tokio::task::block_in_place(|| std::thread::sleep(time));
                        Ok(())
                    }
                }
            })
        });
        let inbox = Inbox::new("it", Arc::new(transport), store.clone())
            .on_any(handler)
            .in_flight(in_flight)
            .max_attempts(50)
            .handler_timeout(handler_timeout)
            .backoff(inbox_core::Backoff { first: Duration::from_millis(1), most: Duration::from_millis(10) })
            .build()
            .expect("an inbox");
        let handle = inbox.handle();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(async move { inbox.run(async { drop(stopped.await) }).await });
        Self { store, handle, stop, task }
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

/// A way to the emulator that can be cut.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    open: Option<JoinHandle<()>>,
}

impl Proxy {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        Self { address, open: Some(tokio::spawn(forward(listener))) }
    }

    /// Breaks all connections and refuses new ones.
    pub(crate) async fn cut(&mut self) {
        if let Some(open) = self.open.take() {
            open.abort();
            drop(open.await);
        }
    }

    pub(crate) async fn mend(&mut self) {
        let listener = TcpListener::bind(self.address).await.expect("the same port");
        self.open = Some(tokio::spawn(forward(listener)));
    }
}

async fn forward(listener: TcpListener) {
    let emulator = emulator().1;
    // Dropped with this task, and with it every connection.
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((mut here, _)) = listener.accept().await {
        let emulator = emulator.clone();
        connections.spawn(async move {
            if let Ok(mut there) = TcpStream::connect(emulator).await {
                drop(tokio::io::copy_bidirectional(&mut here, &mut there).await);
            }
        });
    }
}
