//! The publisher.

use std::{collections::BTreeMap, time::Duration};

use inbox_core::{Bytes, Message, Publisher, TransportErrorKind};

use crate::support::{Topic, number, numbered, receive};

#[tokio::test]
async fn t11_keys_keep_their_order_and_their_partition() {
    let topic = Topic::new(5).await;
    let publisher = inbox_kafka::publisher(&topic.url("group=ignored")).await.expect("a publisher");
    for from in [0, 500] {
        for result in publisher.publish((from..from + 500).map(|n| numbered(n, 11)).collect()).await {
            result.expect("published");
        }
    }
    publisher.close(Duration::from_secs(10)).await.expect("closed");
    assert_eq!(topic.count().await, 1_000);
    let transport = topic.member("").await;
    let mut by_key: BTreeMap<Bytes, (u64, u32)> = BTreeMap::new();
    for delivery in receive(&transport, 1_000).await {
        let key = delivery.message.key.clone().expect("a key");
        let (partition, n) = (delivery.partition.expect("a partition"), number(&delivery));
        if let Some((before, last)) = by_key.insert(key, (partition, n)) {
            assert_eq!(before, partition);
            assert!(last < n);
        }
    }
    assert_eq!(by_key.len(), 11);
    // As a Java producer chooses: murmur2, made positive, modulo the partitions.
    for (key, (partition, _)) in by_key {
        assert_eq!(u64::from((murmur2(&key) & 0x7fff_ffff) % 5), partition, "{key:?}");
    }
}

/// Kafka's `Utils.murmur2`.
fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut h = 0x9747_b28c ^ u32::try_from(data.len()).expect("short");
    let mut chunks = data.chunks_exact(4);
    for chunk in &mut chunks {
        let mut k = u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]).wrapping_mul(M);
        k = (k ^ (k >> 24)).wrapping_mul(M);
        h = h.wrapping_mul(M) ^ k;
    }
    let rest = chunks.remainder();
    if !rest.is_empty() {
        for (at, byte) in rest.iter().enumerate() {
            h ^= u32::from(*byte) << (8 * at);
        }
        h = h.wrapping_mul(M);
    }
    h = (h ^ (h >> 13)).wrapping_mul(M);
    h ^ (h >> 15)
}

#[tokio::test]
async fn t11_only_the_message_that_is_too_large_fails() {
    let topic = Topic::new(1).await;
    let publisher = inbox_kafka::publisher(&topic.url("")).await.expect("a publisher");
    let large = Message::new(Bytes::from(vec![0; 2_000_000]));
    let odd = Message::new(Bytes::new()).header("a\0b", "x");
    let results = publisher.publish(vec![numbered(0, 1), large, odd, numbered(1, 1)]).await;
    let kinds: Vec<Option<TransportErrorKind>> =
        results.iter().map(|result| result.as_ref().err().map(inbox_core::TransportError::kind)).collect();
    assert_eq!(kinds, [None, Some(TransportErrorKind::TooLarge), Some(TransportErrorKind::Rejected), None]);
    assert_eq!(topic.count().await, 2);
    assert!(publisher.publish(Vec::new()).await.is_empty());
    publisher.close(Duration::from_secs(10)).await.expect("closed");
    publisher.close(Duration::from_secs(10)).await.expect("twice is fine");
    let after = publisher.publish(vec![numbered(2, 1)]).await.remove(0).expect_err("closed");
    assert_eq!(after.kind(), TransportErrorKind::Closed);
}

#[tokio::test]
async fn the_brokers_limit_is_said_as_too_large() {
    let topic = Topic::new(1).await;
    // The client would let it pass, the broker does not.
    let publisher = inbox_kafka::publisher(&topic.url("kafka.message.max.bytes=5000000")).await.expect("a publisher");
    let large = Message::new(Bytes::from(vec![0; 2_000_000]));
    let error = publisher.publish(vec![large]).await.remove(0).expect_err("too large");
    assert_eq!(error.kind(), TransportErrorKind::TooLarge, "{}", inbox_core::report(&error));
}

#[tokio::test]
async fn more_than_the_clients_queue_holds() {
    let topic = Topic::new(3).await;
    let publisher =
        inbox_kafka::publisher(&topic.url("kafka.queue.buffering.max.messages=500")).await.expect("a publisher");
    for result in publisher.publish((0..20_000).map(|n| numbered(n, 50)).collect()).await {
        result.expect("published");
    }
    assert_eq!(topic.count().await, 20_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fatal_error_of_the_client_is_survived() {
    use rdkafka::{
        mocking::MockCluster,
        producer::DefaultProducerContext,
        types::{RDKafkaApiKey, RDKafkaRespErr},
    };
    let cluster: MockCluster<'_, DefaultProducerContext> = MockCluster::new(1).expect("a mock cluster");
    cluster.create_topic("t", 1, 1).expect("a topic");
    let url = format!("kafka://{}/t", cluster.bootstrap_servers());
    let publisher = inbox_kafka::publisher(&url).await.expect("a publisher");
    publisher.publish(vec![numbered(0, 1)]).await.remove(0).expect("published");
    let error = RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER;
    cluster.request_errors(RDKafkaApiKey::Produce, &[error; 1]);
    publisher.publish(vec![numbered(1, 1)]).await.remove(0).expect_err("out of order");
    // The client may not have told its fatal error yet.
    if let Err(error) = publisher.publish(vec![numbered(2, 1)]).await.remove(0) {
        assert_eq!(error.kind(), TransportErrorKind::Unavailable, "{}", inbox_core::report(&error));
        publisher.publish(vec![numbered(2, 1)]).await.remove(0).expect("published by a new client");
    }
}
