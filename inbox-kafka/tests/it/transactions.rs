//! Transactional producers: only what was committed comes, and the lag still reaches 0.

use std::time::Duration;

use inbox_core::Transport;
use inbox_kafka::KafkaTransport;
use rdkafka::{
    ClientConfig,
    producer::{BaseProducer, BaseRecord, Producer},
};

use crate::support::{Topic, ack, broker, hosts, number, quiet, receive, until};

const WAIT: Duration = Duration::from_secs(20);

/// Transactions of `size` messages each; every one that `aborts` says is aborted. Answers what was committed.
fn transact(topic: &str, transactions: u32, size: u32, aborts: impl Fn(u32) -> bool) -> Vec<u32> {
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", hosts())
        .set("transactional.id", uuid::Uuid::now_v7().to_string())
        .create()
        .expect("a producer");
    producer.init_transactions(WAIT).expect("transactions");
    let mut committed = Vec::new();
    for transaction in 0..transactions {
        producer.begin_transaction().expect("begun");
        for at in 0..size {
            let n = transaction * size + at;
            producer.send(BaseRecord::to(topic).key(&format!("k{}", n % 7)).payload(&n.to_string())).expect("enqueued");
            if !aborts(transaction) {
                committed.push(n);
            }
        }
        producer.flush(WAIT).expect("flushed");
        if aborts(transaction) {
            producer.abort_transaction(WAIT).expect("aborted");
        } else {
            producer.commit_transaction(WAIT).expect("committed");
        }
    }
    committed
}

async fn all_committed(transport: &KafkaTransport, committed: &[u32]) {
    let deliveries = receive(transport, committed.len()).await;
    let mut seen: Vec<u32> = deliveries.iter().map(number).collect();
    seen.sort_unstable();
    assert_eq!(seen, committed);
    ack(transport, deliveries).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lag_reaches_0_behind_commits_and_aborts() {
    let topic = Topic::new(3).await;
    let committed = transact(&topic.name, 12, 10, |n| n % 3 == 1);
    assert_eq!(topic.count().await, committed.len() as u64, "records, not offsets");
    let transport = topic.member("").await;
    all_committed(&transport, &committed).await;
    until("the lag reaches 0", async || topic.lag().await == 0).await;
    // While it runs, and ending with an aborted one.
    let more = transact(&topic.name, 5, 4, |n| n % 2 == 0);
    all_committed(&transport, &more).await;
    until("the lag reaches 0 again", async || topic.lag().await == 0).await;
    transport.close(WAIT).await.expect("closed");
    let next = topic.member("").await;
    quiet(&next, Duration::from_secs(3)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lag_reaches_0_where_everything_was_aborted() {
    let topic = Topic::new(2).await;
    transact(&topic.name, 3, 10, |_| true);
    assert!(topic.lag().await > 0);
    assert_eq!(topic.count().await, 0);
    let transport = topic.member("").await;
    tokio::join!(
        until("the lag reaches 0", async || topic.lag().await == 0),
        quiet(&transport, Duration::from_secs(4))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lag_reaches_0_on_two_topics() {
    let one = Topic::new(2).await;
    let two = Topic::new(2).await;
    let committed = transact(&one.name, 6, 10, |n| n % 2 == 0);
    transact(&two.name, 2, 10, |_| true);
    let url = format!("{}/{},{}?group={}-g", broker(), one.name, two.name, one.name);
    let transport = inbox_kafka::connect(&url).await.expect("connected");
    all_committed(&transport, &committed).await;
    until("the lag reaches 0", async || inbox_kafka::group_lag(&url).await.expect("a lag") == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unacked_message_holds_the_watermark_also_behind_markers() {
    let topic = Topic::new(1).await;
    let committed = transact(&topic.name, 4, 5, |n| n == 1);
    let transport = topic.member("").await;
    let mut deliveries = receive(&transport, committed.len()).await;
    let held = deliveries.remove(4);
    assert_eq!(number(&held), 4);
    ack(&transport, deliveries).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(topic.lag().await > 0, "the end was seen, and nothing was stored beyond what is in flight");
    transport.close(WAIT).await.expect("closed");
    let next = topic.member("").await;
    let again = receive(&next, 1 + 10).await;
    assert_eq!(number(&again[0]), 4);
    ack(&next, again).await;
    until("the lag reaches 0", async || topic.lag().await == 0).await;
    drop(held);
}
