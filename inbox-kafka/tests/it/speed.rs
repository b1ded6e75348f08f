//! x
use crate::support::*;
use inbox_core::{Transport, Publisher};
use std::time::{Duration, Instant};
fn threads() -> Vec<String> {
    std::fs::read_dir("/proc/self/task").unwrap().filter_map(|e| std::fs::read_to_string(e.unwrap().path().join("comm")).ok()).filter(|n| n.starts_with("inbox-kafka")).collect()
}
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zz_down() {
    use rdkafka::{mocking::MockCluster, producer::DefaultProducerContext};
    let cluster: MockCluster<'_, DefaultProducerContext> = MockCluster::new(1).expect("a mock cluster");
    cluster.create_topic("t", 2, 1).expect("a topic");
    let url = format!("kafka://{}/t?group=g", cluster.bootstrap_servers());
    let publisher = inbox_kafka::publisher(&url).await.expect("a publisher");
    publisher.publish((0..10).map(|n| numbered(n, 5)).collect()).await.into_iter().for_each(|r| r.expect("published"));
    let transport = inbox_kafka::connect(&url).await.expect("connected");
    let deliveries = receive(&transport, 10).await;
    cluster.broker_down(1).expect("down");
    until("it is noticed", async || !transport.connected()).await;
    ack(&transport, deliveries).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let t = Instant::now();
    println!("{:?} {:?}", threads(), transport.close(Duration::from_secs(2)).await);
    while !threads().is_empty() && t.elapsed() < Duration::from_secs(120) { tokio::time::sleep(Duration::from_millis(100)).await; }
    println!("{:?} after {:?}", threads(), t.elapsed());
}
