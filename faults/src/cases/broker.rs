//! A broker that goes away, and topics that change.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use rdkafka::{
    ClientConfig,
    admin::{AdminClient, AdminOptions, NewPartitions},
    client::DefaultClientContext,
    message::{Header, OwnedHeaders},
    producer::{BaseProducer, BaseRecord, Producer as _},
};
use tokio::task::block_in_place;
use uuid::Uuid;

use crate::{
    child::KIND,
    load::Load,
    outcome::Outcome,
    servers::pause,
    stage::{Context, Setup, Stage},
};

async fn away(context: &mut Context, kill: bool, outage: Duration) -> anyhow::Result<Outcome> {
    let broker = context.pair.broker;
    let messages = context.messages(40_000, 12_000);
    // A producer that is cut off sends again what was not confirmed, which is behind what was: so not where keys have an
    // order.
    let published_before = if broker.keeps_order() { 1.0 } else { 0.8 };
    let mut stage = Stage::set(context, Setup { published_before, ..Setup::new(messages) }).await?;
    stage.spawn_all(2).await?;
    stage.until_acked(u64::from(messages) / 10).await?;
    let (_, publishing) = stage.publish_beside(Duration::from_millis(100)).await?;
    stage.outcome.counted += u64::from(stage.is_at_work().await?);
    context.servers.stop_broker(broker, kill).await?;
    pause(outage).await;
    context.servers.start_broker(broker).await?;
    stage.resumed(Instant::now()).await?;
    publishing.confirmed().await?;
    stage.finish(true).await
}

/// Stopped, and started later.
pub(crate) async fn stop(context: &mut Context) -> anyhow::Result<Outcome> {
    let outage = context.args.outage();
    away(context, false, outage).await
}

/// Killed, and started at once.
pub(crate) async fn crash(context: &mut Context) -> anyhow::Result<Outcome> {
    away(context, true, Duration::ZERO).await
}

fn client(stage: &Stage) -> anyhow::Result<(ClientConfig, String)> {
    let rest = stage.scene.topic(false).strip_prefix("kafka://").context("a Kafka URL")?;
    let (server, topic) = rest.split_once('/').context("a Kafka URL has a topic")?;
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", server);
    Ok((config, topic.split('?').next().unwrap_or_default().to_owned()))
}

/// Partitions are added while half of the load is still to come. Keys change their partition by it, so order is not
/// kept across the change: that is Kafka's.
pub(crate) async fn partitions(context: &mut Context) -> anyhow::Result<Outcome> {
    let messages = context.messages(16_000, 6_000);
    let setup = Setup { partitions: 3, published_before: 0.5, ..Setup::new(messages) };
    let mut stage = Stage::set(context, setup).await?;
    stage.spawn_all(2).await?;
    stage.until_acked(100).await?;
    let (config, topic) = client(&stage)?;
    let admin: AdminClient<DefaultClientContext> = config.create()?;
    let results = admin.create_partitions(&[NewPartitions::new(&topic, 8)], &AdminOptions::new()).await?;
    for result in results {
        result.map_err(|(topic, code)| anyhow::anyhow!("add partitions to {topic}: {code}"))?;
    }
    stage.outcome.counted += 1;
    stage.finish(false).await
}

/// Every other transaction of the producer's is aborted: its payments must never be seen, and the holes that it leaves
/// must not keep the lag from reaching 0.
pub(crate) async fn aborted(context: &mut Context) -> anyhow::Result<Outcome> {
    let messages = context.messages(6_000, 2_000);
    let setup = Setup { published_before: 0.0, handler_us: 200, ..Setup::new(messages) };
    let mut stage = Stage::set(context, setup).await?;
    stage.spawn_all(2).await?;
    let (mut config, topic) = client(&stage)?;
    config.set("transactional.id", &topic).set("linger.ms", "1");
    let producer: BaseProducer = config.create()?;
    let bound = Duration::from_secs(30);
    block_in_place(|| producer.init_transactions(bound))?;
    let count = stage.load.published();
    for start in (0..count).step_by(200) {
        for is_kept in [false, true] {
            block_in_place(|| -> anyhow::Result<()> {
                producer.begin_transaction()?;
                for at in start..(start + 200).min(count) {
                    send(&producer, &topic, &stage.load, at, is_kept)?;
                }
                producer.flush(bound)?;
                if is_kept {
                    producer.commit_transaction(bound)?;
                } else {
                    producer.abort_transaction(bound)?;
                }
                Ok(())
            })?;
            stage.outcome.counted += u64::from(!is_kept);
        }
    }
    // An aborted one at the very end leaves a hole that no message follows.
    block_in_place(|| -> anyhow::Result<()> {
        producer.begin_transaction()?;
        send(&producer, &topic, &stage.load, 0, false)?;
        producer.flush(bound)?;
        Ok(producer.abort_transaction(bound)?)
    })?;
    stage.was_published();
    stage.finish(true).await
}

fn send(producer: &BaseProducer, topic: &str, load: &Load, at: usize, is_kept: bool) -> anyhow::Result<()> {
    let message = load.message(at)?;
    let id = message.id.as_ref().map(|id| id.as_bytes().to_vec()).unwrap_or_default();
    // What is aborted is a payment of its own: seen, it would be one that was never made.
    let id = if is_kept { id } else { Uuid::now_v7().to_string().into_bytes() };
    let body = if is_kept {
        message.body.to_vec()
    } else {
        br#"{"payment":1000000000,"account":"nobody","place":0}"#.to_vec()
    };
    let key = message.key.as_deref().unwrap_or_default().to_vec();
    let headers = OwnedHeaders::new()
        .insert(Header { key: "message-id", value: Some(&id) })
        .insert(Header { key: "message-kind", value: Some(KIND) });
    let mut record = BaseRecord::to(topic).key(&key).payload(&body).headers(headers);
    loop {
        match producer.send(record) {
            Ok(()) => return Ok(()),
            Err((error, back)) => {
                if error.rdkafka_error_code() != Some(rdkafka::error::RDKafkaErrorCode::QueueFull) {
                    return Err(error).context("produce");
                }
                producer.poll(Duration::from_millis(10));
                record = back;
            }
        }
    }
}
