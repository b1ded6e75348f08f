//! How fast, next to a loop that polls and does nothing else.
//!
//! `cargo test --release -p inbox-kafka --test it -- --ignored --nocapture speed`

use std::time::{Duration, Instant};

use inbox_core::{Bytes, Message, Publisher, Transport};
use rdkafka::{
    ClientConfig, Message as _, Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer},
};

use crate::support::{Topic, at_most, hosts};

const MESSAGES: u32 = 200_000;
const PARTITIONS: i32 = 8;
const ROUNDS: usize = 4;

fn per_second(since: Instant) -> u128 {
    u128::from(MESSAGES) * 1_000_000 / since.elapsed().as_micros().max(1)
}

/// Polls every record of the topic and looks at it.
fn raw(topic: &str) -> u128 {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", hosts())
        .set("group.id", "raw")
        .set("enable.auto.commit", "false")
        .create()
        .expect("a consumer");
    let mut list = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        list.add_partition_offset(topic, partition, Offset::Beginning).expect("an offset");
    }
    consumer.assign(&list).expect("assigned");
    drop(list);
    let (mut count, mut bytes, mut started) = (0, 0, None);
    while count < MESSAGES {
        let Some(record) = consumer.poll(Duration::from_secs(10)) else { panic!("{count} records came") };
        let record = record.expect("a record");
        started.get_or_insert_with(Instant::now);
        count += 1;
        bytes += record.payload().map_or(0, <[u8]>::len);
    }
    assert!(bytes > 0);
    per_second(started.expect("started"))
}

/// Receives and acks every message of the topic, from the first message on.
async fn ours(topic: &Topic, round: usize, batch: usize) -> u128 {
    let url = topic.url(&format!("group={}-{round}-{batch}", topic.name));
    let transport = inbox_kafka::connect(&url).await.expect("connected");
    let (mut count, mut started) = (0, None);
    while count < MESSAGES as usize {
        let deliveries = transport.receive(at_most(batch)).await.expect("received");
        started.get_or_insert_with(Instant::now);
        count += deliveries.len();
        let receipts = deliveries.into_iter().map(|delivery| delivery.receipt).collect();
        assert_eq!(transport.ack(receipts).await.expect("acked").lost, 0);
    }
    let speed = per_second(started.expect("started"));
    transport.close(Duration::from_secs(10)).await.expect("closed");
    assert_eq!(inbox_kafka::group_lag(&url).await.expect("a lag"), 0);
    speed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn receive_and_ack_next_to_raw_polling() {
    let topic = Topic::new(u32::try_from(PARTITIONS).expect("small")).await;
    let publisher = inbox_kafka::publisher(&topic.url("")).await.expect("a publisher");
    let message = |n: u32| {
        Message::new(Bytes::from(vec![b'x'; 100])).id(uuid::Uuid::now_v7().to_string()).kind("k").key(n.to_string())
    };
    let started = Instant::now();
    for from in (0..MESSAGES).step_by(10_000) {
        for result in publisher.publish((from..from + 10_000).map(message).collect()).await {
            result.expect("published");
        }
    }
    println!("publish: {} msg/s", per_second(started));
    for round in 0..ROUNDS {
        let name = topic.name.clone();
        let raw = tokio::task::spawn_blocking(move || raw(&name)).await.expect("ran");
        let small = ours(&topic, round, 200).await;
        let large = ours(&topic, round, 1_000).await;
        println!("raw {raw} msg/s; receive + ack by 200: {small}; by 1,000: {large}");
    }
}
