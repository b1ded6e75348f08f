//! A consumer that is slower than its queue holds no more than it has room for.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use inbox_core::{Transport, memory::MemoryStore};
use inbox_rabbitmq::{QueueType, RabbitMqTransport};

use crate::{
    inbox::Running,
    proxy::Proxy,
    support::{PATIENCE, Queue, ack, at_most, empty, number, port, receive, until},
};

const MESSAGES: u32 = 10_000;
const BOUND: usize = 100;

/// Works the queue off and looks all the time how much is out: by the transport's own word, and by what has gone through
/// the connection.
async fn never_more_than_there_is_room_for(queue_type: QueueType) {
    let queue = Queue::of(queue_type).await;
    queue.publish(0..MESSAGES).await;
    let proxy = Proxy::start(port()).await.unwrap();
    let transport = RabbitMqTransport::connect(queue.config_by(proxy.port)).await.unwrap();
    // Nobody asks for a while: the broker would send everything.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!((transport.unsettled(), proxy.held()), (0, 0));
    let deliveries = transport.receive(at_most(BOUND)).await.unwrap();
    until("the broker has sent what there is room for", async || transport.unsettled() == BOUND).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!((transport.unsettled(), proxy.held()), (BOUND, 100));
    let mut seen: Vec<u32> = deliveries.iter().map(number).collect();
    ack(&transport, deliveries).await;
    let mut most = 0;
    while seen.len() < MESSAGES as usize {
        let deliveries = transport.receive(at_most(30)).await.unwrap();
        most = most.max(transport.unsettled());
        assert!(transport.unsettled() <= BOUND && proxy.held() <= 100, "{transport:?}");
        seen.extend(deliveries.iter().map(number));
        ack(&transport, deliveries).await;
    }
    assert_eq!(most, BOUND);
    assert_eq!(seen, (0..MESSAGES).collect::<Vec<_>>(), "one consumer gets the order of the queue");
    empty(&queue, transport).await;
    queue.delete().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_messages_and_a_hundred_at_a_time() {
    never_more_than_there_is_room_for(QueueType::Classic).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_of_a_quorum_queue() {
    never_more_than_there_is_room_for(QueueType::Quorum).await;
}

/// No setting of the transport: what an inbox has in flight is what the broker hands out, a session that is lost in the
/// midst of it included.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_inbox_and_its_broker_have_one_bound() {
    let queue = Queue::new().await;
    queue.publish(0..MESSAGES).await;
    let proxy = Proxy::start(port()).await.unwrap();
    let transport = Arc::new(RabbitMqTransport::connect(queue.config_by(proxy.port)).await.unwrap());
    let running = Running::start(
        Arc::clone(&transport),
        MemoryStore::new(),
        |inbox| inbox.in_flight(BOUND),
        |_| Duration::from_millis(1),
    );
    let (started, mut most, mut cut) = (Instant::now(), 0, false);
    while running.handle.numbers().applied < u64::from(MESSAGES) {
        let (here, out) = (transport.unsettled(), proxy.held());
        assert!(here <= BOUND && out <= 100, "{here} here, {out} out: {transport:?}");
        most = most.max(here);
        if !cut && running.handle.numbers().applied > 5_000 {
            cut = true;
            proxy.cut();
        }
        assert!(started.elapsed() < 4 * PATIENCE, "{:?}", running.handle.numbers());
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
    assert!(cut && most == BOUND, "never full: {most}");
    let mut effects = running.stop().await.log("effects");
    effects.sort_unstable_by_key(|effect| effect.parse::<u32>().unwrap());
    assert_eq!(effects, (0..MESSAGES).map(|n| n.to_string()).collect::<Vec<_>>());
    assert_eq!(queue.ready().await, 0);
    queue.delete().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prefetch_that_is_set_is_the_most() {
    let queue = Queue::new().await;
    queue.publish(0..50).await;
    let transport = RabbitMqTransport::connect(queue.config().prefetch(10)).await.unwrap();
    let held = receive(&transport, 10).await;
    let more = tokio::time::timeout(Duration::from_millis(500), transport.receive(at_most(10))).await;
    assert!(more.is_err() && transport.unsettled() == 10, "{more:?}");
    ack(&transport, held).await;
    let next = receive(&transport, 10).await;
    ack(&transport, next).await;
    queue.delete().await;
}

/// A caller that counts otherwise than an inbox is not left without: it holds what it has and asks for more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_for_more_gets_more_and_keeps_what_it_holds() {
    for queue_type in [QueueType::Classic, QueueType::Quorum] {
        let queue = Queue::of(queue_type).await;
        queue.publish(0..60).await;
        let transport = queue.consumer().await;
        let mut held = Vec::new();
        for more in [1, 2, 5, 20, 32] {
            held.extend(receive(&transport, more).await);
        }
        let session = held[0].receipt.session().id();
        assert!(held.iter().all(|delivery| delivery.receipt.session().id() == session && !delivery.suspect));
        assert_eq!(held.iter().map(number).collect::<Vec<_>>(), (0..60).collect::<Vec<_>>());
        ack(&transport, held).await;
        empty(&queue, transport).await;
        queue.delete().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_consumers_share_and_none_takes_more() {
    let queue = Queue::new().await;
    queue.publish(0..50).await;
    let (one, other) = (queue.consumer().await, queue.consumer().await);
    let (mine, theirs) = (receive(&one, 10).await, receive(&other, 10).await);
    assert_eq!(queue.ready().await, 30);
    let mut all: Vec<u32> = mine.iter().chain(&theirs).map(number).collect();
    all.sort_unstable();
    assert_eq!(all, (0..20).collect::<Vec<_>>());
    ack(&one, mine).await;
    ack(&other, theirs).await;
    queue.delete().await;
}
