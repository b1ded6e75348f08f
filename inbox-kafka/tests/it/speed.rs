//! x
use crate::support::*;
use inbox_core::Transport;
use std::time::{Duration, Instant};
use rdkafka::consumer::Consumer;

fn members(group: &str) -> Vec<String> {
    let c: rdkafka::consumer::BaseConsumer = rdkafka::ClientConfig::new().set("bootstrap.servers", hosts()).create().unwrap();
    let l = c.fetch_group_list(Some(group), Duration::from_secs(5)).unwrap();
    l.groups().iter().flat_map(|g| g.members().iter().map(|m| format!("{} {} {}", m.id(), g.state(), m.assignment().map_or(0, <[u8]>::len))).collect::<Vec<_>>()).collect()
}

#[tokio::test]
async fn close_zero() {
    let lines = collect_logs();
    let topic = Topic::new(1).await;
    topic.publish(0..10, 7).await;
    let a = topic.member("").await;
    ack(&a, receive(&a, 10).await).await;
    let b = topic.member("kafka.debug=cgrp").await;
    for wait in [0, 10, 300, 1500, 4000] {
        tokio::time::sleep(Duration::from_millis(wait)).await;
        println!("before {:?}", members(&format!("{}-g", topic.name)));
    }
    let t = Instant::now();
    b.close(Duration::from_secs(10)).await.unwrap();
    println!("closed in {:?}", t.elapsed());
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        println!("after {:?}", members(&format!("{}-g", topic.name)));
    }
    let l = lines.lock().unwrap();
    for x in l.lines().filter(|l| l.contains("TERM") || l.contains("Clos") || l.contains("LEAVE") || l.contains("assigned part")) { println!("{x}"); }
}
