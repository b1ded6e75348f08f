//! The whole way, over a store in memory: an inbox that applies each number once.

use std::{sync::Arc, time::Duration};

use inbox_core::{
    Handler, HandlerError, Inbox, InboxBuilder, InboxError, InboxHandle, Message, Publisher, Raw, Transport,
    memory::{MemoryStore, MemoryTx},
};
use inbox_rabbitmq::{QueueType, RabbitMqPublisher, RabbitMqTransport};
use tokio::{sync::oneshot, task::JoinHandle};

use crate::support::{PATIENCE, Queue, ack, at_most, empty, number, numbered, receive, try_ack, until};

/// Appends the number to the log `effects`, and takes its time.
struct Slowly<F>(F);

impl<F: Fn(u32) -> Duration + Send + Sync + 'static> Handler<Message<Raw>, MemoryTx> for Slowly<F> {
    async fn handle<'a>(&'a self, message: Message<Raw>, tx: &'a mut MemoryTx) -> Result<(), HandlerError> {
        let number = String::from_utf8_lossy(&message.body.0).into_owned();
        let time = (self.0)(number.parse()?);
        tx.append("effects", number)?;
        if !time.is_zero() {
            tokio::time::sleep(time).await;
        }
        Ok(())
    }
}

/// `time` is how long the handler takes for a number.
pub(crate) fn slowly(time: impl Fn(u32) -> Duration + Send + Sync + 'static) -> impl Handler<Message<Raw>, MemoryTx> {
    Slowly(time)
}

/// An inbox at work.
pub(crate) struct Running {
    pub(crate) handle: InboxHandle,
    store: MemoryStore,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), InboxError>>,
}

impl Running {
    pub(crate) fn start(
        transport: impl Transport,
        store: MemoryStore,
        with: impl FnOnce(InboxBuilder<MemoryStore>) -> InboxBuilder<MemoryStore>,
        time: impl Fn(u32) -> Duration + Send + Sync + 'static,
    ) -> Self {
        let inbox = with(Inbox::new("it", transport, store.clone()).on_any(slowly(time))).build().expect("an inbox");
        let handle = inbox.handle();
        let (stop, stopped) = oneshot::channel::<()>();
        #[allow(clippy::disallowed_methods, reason = "the lint is about the library")]
        let task = tokio::spawn(inbox.run(async { drop(stopped.await) }));
        Self { handle, store, stop, task }
    }

    pub(crate) async fn stop(self) -> MemoryStore {
        drop(self.stop);
        self.task.await.expect("no panic").expect("a clean end");
        self.store
    }
}

/// A producer that sends twice, so that copies come in one `receive`: each is a delivery of its own, and one runs.
async fn copies_within_one_receive(queue_type: QueueType) {
    let queue = Queue::of(queue_type).await;
    let publish = async |numbers: &[u32]| {
        let publisher = RabbitMqPublisher::connect(queue.config()).await.unwrap();
        for result in publisher.publish(numbers.iter().copied().map(numbered).collect()).await {
            result.unwrap();
        }
        publisher.close(PATIENCE).await.unwrap();
    };
    publish(&[0, 1, 1, 2, 1]).await;
    let transport = queue.consumer().await;
    let first = tokio::time::timeout(PATIENCE, transport.receive(inbox_core::Capacity { messages: 10, bytes: 1 }));
    let first = first.await.unwrap().unwrap();
    assert_eq!(first.iter().map(number).collect::<Vec<_>>(), [0]);
    until("all have come", async || transport.unsettled() == 5).await;
    let mut copies = transport.receive(at_most(9)).await.unwrap();
    assert_eq!(copies.iter().map(number).collect::<Vec<_>>(), [1, 1, 2, 1], "in one receive");
    // Settling one copy does not settle another.
    let last = copies.split_off(3);
    ack(&transport, last).await;
    transport.release(copies.drain(..1).map(|copy| copy.receipt).collect()).await.unwrap();
    ack(&transport, copies).await;
    let again = receive(&transport, 1).await;
    assert_eq!(number(&again[0]), 1);
    ack(&transport, again).await;
    ack(&transport, first).await;
    empty(&queue, transport).await;

    let numbers: Vec<u32> = (0..300).flat_map(|n| [n, n, n / 2]).collect();
    publish(&numbers).await;
    let transport = Arc::new(queue.consumer().await);
    let running = Running::start(Arc::clone(&transport), MemoryStore::new(), |inbox| inbox, |_| Duration::ZERO);
    let done = || running.handle.numbers().applied + running.handle.numbers().duplicates;
    until("all are done", async || done() == 900).await;
    let mut effects = running.stop().await.log("effects");
    effects.sort_unstable_by_key(|effect| effect.parse::<u32>().unwrap());
    assert_eq!(effects, (0..300).map(|n| n.to_string()).collect::<Vec<_>>());
    assert_eq!(queue.ready().await, 0);
    queue.delete().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_within_one_receive_are_settled_apart_and_run_once() {
    copies_within_one_receive(QueueType::Classic).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_of_a_quorum_queue_within_one_receive_are_settled_apart_and_run_once() {
    copies_within_one_receive(QueueType::Quorum).await;
}

/// Half of what is held is acked while somebody else has the rest: nothing of it is acked along.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receipt_settles_once() {
    let queue = Queue::new().await;
    queue.publish(0..2).await;
    let transport: RabbitMqTransport = queue.consumer().await;
    let mut held = receive(&transport, 2).await;
    ack(&transport, held.split_off(1)).await;
    transport.close(PATIENCE).await.unwrap();
    assert_eq!(try_ack(&transport, held).await, (0, 1), "its channel is gone");
    assert_eq!(queue.ready().await, 1);
    queue.delete().await;
}
