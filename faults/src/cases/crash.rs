//! Processes that die, come, go and freeze.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rdkafka::{
    ClientConfig, Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer as _},
};
use tokio::task::block_in_place;

use crate::{
    args::Broker,
    fleet::End,
    outcome::Outcome,
    servers::pause,
    stage::{Context, Setup, Stage},
};

/// SIGKILL at random, again and again, until enough have hit or the work is done.
pub(crate) async fn kill(context: &mut Context) -> anyhow::Result<Outcome> {
    let messages = context.messages(20_000, 4_000);
    // So many that they are spread over nine tenths of the work.
    let kills = context.args.kills.unwrap_or(if context.args.short { 4 } else { 10 });
    let between = (u64::from(messages) * 9 / 10 / u64::from(kills.max(1))).max(2);
    let mut stage =
        Stage::set(context, Setup { static_members: true, handler_us: 500, ..Setup::new(messages) }).await?;
    stage.spawn_all(2).await?;
    while stage.outcome.counted < u64::from(kills) {
        if !stage.until_acked(context.rng.u64(between / 2..=between)).await? {
            break;
        }
        // Not always right behind an acknowledgement.
        pause(Duration::from_micros(context.rng.u64(..3_000))).await;
        // One that is at work, if there is one: killing the other proves nothing.
        let first = context.rng.usize(..2);
        let place = if stage.consumer(first)?.said.in_flight() > 0 { first } else { 1 - first };
        if stage.kill(place).await? {
            stage.outcome.counted += 1;
        }
        stage.spawn(place, &[]).await?;
    }
    stage.finish(true).await
}

/// SIGKILL at a point of a delivery's life, five times.
pub(crate) async fn kill_at(context: &mut Context, point: char) -> anyhow::Result<Outcome> {
    // More than is done before the point is passed for the last time.
    let messages = context.args.messages.unwrap_or(2_000);
    let setup = Setup { static_members: true, handler_us: 300, ..Setup::new(messages) };
    let mut stage = Stage::set(context, setup).await?;
    // All that fits is received at once, so the first point is passed seldom.
    let most = if point == 'a' { 1 } else { 4 };
    for _ in 0..5 {
        let after = context.rng.u64(1..=most);
        let extra = [format!("--fail-at=inbox::{point}"), format!("--after={after}")];
        stage.spawn(0, &extra).await?;
        let end = stage.ended(0, Duration::from_secs(60)).await?;
        stage.outcome.expect(end == End::Killed, || format!("the process did not pass {point}"));
        stage.outcome.counted += 1;
    }
    stage.spawn_all(2).await?;
    stage.finish(true).await
}

/// Instances join and leave.
pub(crate) async fn members(context: &mut Context) -> anyhow::Result<Outcome> {
    let between = Duration::from_secs(if context.args.short { 3 } else { 15 });
    let messages = context.messages(60_000, 12_000);
    let mut stage = Stage::set(context, Setup::new(messages)).await?;
    stage.spawn_all(2).await?;
    stage.until_acked(100).await?;
    // A third joins, the first leaves, it joins again, the second leaves: never are all away.
    for (joins, place) in [(true, 2), (false, 0), (true, 0), (false, 1)] {
        if joins {
            stage.spawn(place, &[]).await?;
        } else {
            stage.stop(place).await?;
        }
        stage.outcome.counted += 1;
        pause(between).await;
    }
    stage.finish(true).await
}

/// A process freezes for so long that another one takes its work, and wakes up.
pub(crate) async fn zombie(context: &mut Context) -> anyhow::Result<Outcome> {
    let messages = context.messages(40_000, 24_000);
    let is_kafka = context.pair.broker == Broker::Kafka;
    let mut stage = Stage::set(context, Setup { handler_us: 2_000, ..Setup::new(messages) }).await?;
    let mut offsets = if is_kafka { Some(Offsets::new(stage.scene.topic(false))?) } else { None };
    stage.spawn_all(2).await?;
    let zombie = freeze_at_work(&mut stage).await?;
    stage.outcome.expect(zombie.is_some(), || "no process had work in flight to freeze with".into());
    stage.outcome.counted += u64::from(zombie.is_some());
    for _ in 0..context.pair.broker.frozen().as_millis() / 250 {
        pause(Duration::from_millis(250)).await;
        watch(&mut offsets, &mut stage.outcome)?;
    }
    if let Some(place) = zombie {
        stage.consumer(place)?.signal(Signal::SIGCONT)?;
    }
    for _ in 0..20 {
        pause(Duration::from_millis(250)).await;
        watch(&mut offsets, &mut stage.outcome)?;
    }
    stage.finish(true).await
}

/// Freezes the first process that is well at work and holds something; its place. Which one that is cannot be
/// chosen: two writers of one SQLite file may starve each other for seconds.
async fn freeze_at_work(stage: &mut Stage) -> anyhow::Result<Option<usize>> {
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(30) {
        for place in 0..2 {
            let consumer = stage.consumer(place)?;
            if consumer.said.acked() <= 50 || consumer.said.in_flight() == 0 {
                continue;
            }
            consumer.signal(Signal::SIGSTOP)?;
            // What it said last may still be on its way.
            pause(Duration::from_millis(20)).await;
            if consumer.said.in_flight() > 0 {
                return Ok(Some(place));
            }
            consumer.signal(Signal::SIGCONT)?;
        }
        pause(Duration::from_millis(3)).await;
    }
    Ok(None)
}

fn watch(offsets: &mut Option<Offsets>, outcome: &mut Outcome) -> anyhow::Result<()> {
    if let Some(offsets) = offsets
        && let Some(back) = block_in_place(|| offsets.look())?
    {
        outcome.broken.push(back);
    }
    Ok(())
}

/// The committed offsets of a group: a zombie's commit would set one back.
struct Offsets {
    client: BaseConsumer,
    topic: String,
    seen: [i64; 8],
}

impl Offsets {
    fn new(url: &str) -> anyhow::Result<Self> {
        let parts = url.strip_prefix("kafka://").and_then(|rest| rest.split_once('/'));
        let (server, topic) = parts.ok_or_else(|| anyhow::anyhow!("no Kafka URL"))?;
        let topic = topic.split('?').next().unwrap_or_default().to_owned();
        let client =
            ClientConfig::new().set("bootstrap.servers", server).set("group.id", &topic).create::<BaseConsumer>()?;
        Ok(Self { client, topic, seen: [0; 8] })
    }

    fn look(&mut self) -> anyhow::Result<Option<String>> {
        let mut list = TopicPartitionList::new();
        for partition in 0..8 {
            list.add_partition(&self.topic, partition);
        }
        let committed = self.client.committed_offsets(list, Duration::from_secs(10))?;
        for element in committed.elements() {
            let (Offset::Offset(offset), Ok(partition)) = (element.offset(), usize::try_from(element.partition()))
            else {
                continue;
            };
            let seen = std::mem::replace(&mut self.seen[partition], offset);
            if offset < seen {
                return Ok(Some(format!("partition {partition} was set back from {seen} to {offset}")));
            }
        }
        Ok(None)
    }
}
