//! How fast it is, roughly: a fault that costs a factor is seen here.

use std::time::{Duration, Instant};

use inbox_core::Publisher;
use inbox_rabbitmq::{RabbitMqPublisher, RabbitMqTransport};

use crate::support::{PATIENCE, Queue, drain, empty, numbered};

const MESSAGES: u32 = 20_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publishing_and_consuming_are_pipelined() {
    let queue = Queue::new().await;
    let publisher = RabbitMqPublisher::connect(queue.config()).await.unwrap();
    let started = Instant::now();
    for result in publisher.publish((0..MESSAGES).map(numbered).collect()).await {
        result.unwrap();
    }
    let published = started.elapsed();
    publisher.close(PATIENCE).await.unwrap();
    let transport = RabbitMqTransport::connect(queue.config()).await.unwrap();
    let started = Instant::now();
    assert_eq!(drain(&transport, 0..MESSAGES).await.len(), MESSAGES as usize);
    let consumed = started.elapsed();
    let rate = |time: Duration| f64::from(MESSAGES) / time.as_secs_f64();
    println!("published {:.0} messages/s, consumed {:.0} messages/s", rate(published), rate(consumed));
    // One at a time is less than a thousand a second, here and with this build.
    assert!(rate(published) > 1_500.0 && rate(consumed) > 1_500.0, "{published:?} {consumed:?}");
    empty(&queue, transport).await;
    queue.delete().await;
}
