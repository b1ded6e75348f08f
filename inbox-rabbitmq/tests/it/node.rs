//! A broker that is restarted, killed, and administered while a service runs.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use inbox_core::{Publisher, Transport, TransportErrorKind, report};
use inbox_rabbitmq::{QueueType, RabbitMqAdmin, RabbitMqConfig, RabbitMqPublisher, RabbitMqTransport};
use xtask::servers::{
    free_port,
    rabbitmq::{Node, end_epmd},
};

use crate::support::{PATIENCE, ack, number, numbered, receive, some, try_ack, until};

/// A broker of this test alone, with its process while it runs.
struct Own {
    node: Node,
    pid: Option<u32>,
    folder: tempfile::TempDir,
}

impl Own {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let node = Node::make(folder.path(), free_port().unwrap()).unwrap();
        let mut own = Self { node, pid: None, folder };
        own.again().await;
        own
    }

    async fn again(&mut self) {
        let node = self.node.clone();
        self.pid = Some(tokio::task::spawn_blocking(move || node.start()).await.unwrap().unwrap());
    }

    async fn stop(&mut self, kill: bool) {
        let (node, pid) = (self.node.clone(), self.pid.take().unwrap());
        tokio::task::spawn_blocking(move || node.stop(pid, kill)).await.unwrap().unwrap();
    }

    async fn control(&self, arguments: &[&str]) {
        let (node, arguments) = (self.node.clone(), arguments.iter().map(ToString::to_string).collect::<Vec<_>>());
        let run = move || node.control(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        tokio::task::spawn_blocking(run).await.unwrap().unwrap();
    }

    fn config(&self, queue: &str, queue_type: QueueType) -> RabbitMqConfig {
        RabbitMqConfig::from_url(&self.node.url()).unwrap().queue(queue).queue_type(queue_type)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Some(pid) = self.pid {
            drop(self.node.stop(pid, true));
        }
        drop(end_epmd(self.folder.path()));
    }
}

async fn provision(config: &RabbitMqConfig) {
    let admin = RabbitMqAdmin::connect(config.clone()).await.unwrap();
    admin.provision().await.unwrap();
    admin.close().await;
}

async fn ready(config: &RabbitMqConfig) -> u64 {
    let admin = RabbitMqAdmin::connect(config.clone()).await.unwrap();
    let ready = admin.ready().await.unwrap();
    admin.close().await;
    ready
}

/// A queue through two restarts: what was confirmed is there, held or not, and both sides go on by themselves.
struct Survivor {
    config: RabbitMqConfig,
    transport: RabbitMqTransport,
    publisher: RabbitMqPublisher,
    /// Confirmed and not acked.
    left: BTreeSet<u32>,
}

impl Survivor {
    async fn new(own: &Own, queue_type: QueueType) -> Self {
        let config = own.config(&format!("{queue_type:?}"), queue_type);
        provision(&config).await;
        let transport = RabbitMqTransport::connect(config.clone()).await.unwrap();
        let publisher = RabbitMqPublisher::connect(config.clone()).await.unwrap();
        Self { config, transport, publisher, left: BTreeSet::new() }
    }

    async fn publish(&mut self, numbers: std::ops::Range<u32>) {
        for (n, result) in numbers.clone().zip(self.publisher.publish(numbers.map(numbered).collect()).await) {
            result.unwrap_or_else(|error| panic!("{n}: {}", report(&error)));
            self.left.insert(n);
        }
    }

    /// Acks some and holds some.
    async fn work(&mut self) -> Vec<inbox_core::Delivery> {
        let mut held = receive(&self.transport, 60).await;
        let done = held.split_off(30);
        for delivery in &done {
            self.left.remove(&number(delivery));
        }
        ack(&self.transport, done).await;
        // An ack is not confirmed: one that is on its way when the broker is killed is lost.
        tokio::time::sleep(Duration::from_millis(500)).await;
        held
    }

    async fn finish(mut self) {
        let mut seen = BTreeSet::new();
        while !self.left.is_empty() {
            let deliveries = some(&self.transport, 100).await;
            for delivery in &deliveries {
                seen.insert(number(delivery));
                self.left.remove(&number(delivery));
            }
            ack(&self.transport, deliveries).await;
        }
        self.transport.close(PATIENCE).await.unwrap();
        let config = &self.config;
        until("nothing is left", async || ready(config).await == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_restarted_and_killed_has_lost_nothing() {
    let mut own = Own::start().await;
    let mut queues = [Survivor::new(&own, QueueType::Classic).await, Survivor::new(&own, QueueType::Quorum).await];
    for (round, kill) in [(0, false), (1, true)] {
        let mut held = Vec::new();
        for queue in &mut queues {
            queue.publish(round * 200..round * 200 + 200).await;
            held.push(queue.work().await);
        }
        own.stop(kill).await;
        for (queue, held) in queues.iter().zip(held) {
            until("it is noticed", async || !queue.transport.connected()).await;
            let lost = held.len();
            assert_eq!(try_ack(&queue.transport, held).await, (0, lost));
            let refused = queue.publisher.publish(vec![numbered(9_999)]).await.remove(0).expect_err("nobody is there");
            assert_eq!(refused.kind(), TransportErrorKind::Unavailable, "{}", report(&refused));
        }
        let down = Instant::now();
        own.again().await;
        for queue in &queues {
            until("it consumes again", async || queue.transport.connected()).await;
        }
        println!("consuming again {:?} after it was started", down.elapsed());
    }
    for queue in queues {
        queue.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_operator_does_to_a_service_that_runs() {
    let own = Own::start().await;
    let config = own.config("q", QueueType::Classic);
    provision(&config).await;
    own.control(&["add_user", "app", "hunter2"]).await;
    // The rights that the documentation names: to write and nothing else.
    own.control(&["set_permissions", "app", "^$", "^amq\\.default$", "^$"]).await;
    let app = config.clone().login("app", "hunter2");
    let publisher = RabbitMqPublisher::connect(app.clone()).await.unwrap();
    for result in publisher.publish((0..20).map(numbered).collect()).await {
        result.unwrap();
    }
    // That the queue may not be read is known, and fatal, when it is read.
    let transport = RabbitMqTransport::connect(app.clone()).await.unwrap();
    let refused = tokio::time::timeout(Duration::from_secs(5), transport.receive(crate::support::at_most(1))).await;
    let refused = refused.unwrap().unwrap_err();
    let text = report(&refused);
    assert_eq!(refused.kind(), TransportErrorKind::Unauthorized, "{text}");
    assert!(text.contains("`app` may not read the queue `q`") && !text.contains("hunter2"), "{text}");
    assert!(!transport.connected());
    // Given the right, the same transport reads: to read and nothing else.
    own.control(&["set_permissions", "app", "^$", "^$", "^q$"]).await;
    // The broker caches rights for a channel's life; the transport opens another one.
    until("it may read", async || transport.connected()).await;
    let held = receive(&transport, 20).await;
    let session = held[0].receipt.session().clone();
    // Neither that, nor to make anything.
    let elsewhere = RabbitMqPublisher::connect(app.clone()).await.unwrap();
    let refused = elsewhere.publish(vec![numbered(1)]).await.remove(0).expect_err("no right to write");
    assert_eq!(refused.kind(), TransportErrorKind::Unauthorized, "{}", report(&refused));
    let refused = RabbitMqAdmin::connect(app.queue("another")).await.unwrap().provision().await.expect_err("no right");
    assert_eq!(refused.kind(), TransportErrorKind::Unauthorized, "{}", report(&refused));

    own.control(&["close_all_connections", "closed by the operator"]).await;
    tokio::time::timeout(PATIENCE, session.lost()).await.expect("noticed");
    assert_eq!(try_ack(&transport, held).await, (0, 20));
    let again = receive(&transport, 20).await;
    ack(&transport, again).await;
    transport.close(PATIENCE).await.unwrap();
    until("all are acked", async || ready(&config).await == 0).await;
}
