//! A round under way: its scene, its load, its consumers.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use tokio::task::JoinHandle;

use crate::{
    args::{Broker, RunArgs, Saboteur, Store},
    fleet::{Consumer, End, Said},
    load::Load,
    outcome::{Outcome, Pair},
    servers::Servers,
    world::Scene,
};

/// Without progress for this long, something is stuck.
const PATIENCE: Duration = Duration::from_secs(90);
/// How long a consumer may take to stop.
const STOPPING: Duration = Duration::from_secs(40);

/// What every case gets.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) servers: Servers,
    pub(crate) args: RunArgs,
    pub(crate) rng: fastrand::Rng,
    pub(crate) pair: Pair,
}

impl Context {
    /// How many messages: as told, or so many that a fault of this length meets consumers at work.
    pub(crate) fn messages(&self, long: u32, short: u32) -> u32 {
        let usual = if self.args.short { short } else { long };
        // One writer: a tenth is as much work.
        let usual = if self.pair.store == Store::Sqlite { usual / 8 } else { usual };
        let usual = match self.pair.broker {
            // What stands in for it looks at its whole queue for each message.
            Broker::Sqs => usual / 5,
            // The emulator sends all that it has, read or not. What is longer on its way than a lease is sent again, an
            // acknowledgement of the first copy does nothing, and of a long queue nothing is acknowledged any more.
            Broker::Pubsub => usual / 3,
            _ => usual,
        };
        self.args.messages.unwrap_or(usual)
    }
}

/// How a round is set up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) messages: u32,
    /// Kafka's static members take their partitions back at once when they come again.
    pub(crate) static_members: bool,
    /// How long SQLite's queue leaves a delivery with a consumer that is silent; Kafka's session has 6 s.
    pub(crate) lease_seconds: u64,
    /// Whether consumers come by the proxies of broker and store.
    pub(crate) broker_by_proxy: bool,
    pub(crate) store_by_proxy: bool,
    /// How long each handler takes beside its statement, in microseconds.
    pub(crate) handler_us: u64,
    pub(crate) shutdown_seconds: u64,
    pub(crate) partitions: u32,
    /// How much of the load is published before the first consumer starts.
    pub(crate) published_before: f64,
    /// Each message is published twice in a row.
    pub(crate) twins: bool,
}

impl Setup {
    pub(crate) fn new(messages: u32) -> Self {
        Self {
            messages,
            static_members: false,
            lease_seconds: 2,
            broker_by_proxy: false,
            store_by_proxy: false,
            handler_us: 1_500,
            shutdown_seconds: 10,
            partitions: 8,
            published_before: 1.0,
            twins: false,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) scene: Scene,
    pub(crate) load: Load,
    setup: Setup,
    saboteur: Option<Saboteur>,
    consumers: Vec<Option<Consumer>>,
    /// Processes that have ended.
    past: Totals,
    began: Instant,
    pub(crate) outcome: Outcome,
    /// Of how many messages the publisher has been told so far.
    published: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    received: u64,
    acked: u64,
    calls: u64,
    copies: u64,
}

impl Totals {
    fn add(&mut self, said: &Said) {
        self.received += said.received.load(Ordering::SeqCst);
        self.acked += said.acked();
        self.calls += said.calls.load(Ordering::SeqCst);
        self.copies += said.copies.load(Ordering::SeqCst);
    }
}

/// Publishes while other things happen.
#[derive(Debug)]
pub(crate) struct Beside(JoinHandle<anyhow::Result<Vec<Instant>>>);

impl Beside {
    /// Waits until all is confirmed: when the attempt began that was, for each message.
    pub(crate) async fn confirmed(self) -> anyhow::Result<Vec<Instant>> {
        self.0.await.context("publish")?
    }
}

impl Stage {
    /// Makes topic and database, and publishes.
    pub(crate) async fn set(context: &mut Context, setup: Setup) -> anyhow::Result<Self> {
        let scene = Scene::set(&mut context.servers, context.pair, setup.partitions, None).await?;
        Self::on(context, setup, scene).await
    }

    /// The same on a scene that is there.
    pub(crate) async fn on(context: &mut Context, setup: Setup, scene: Scene) -> anyhow::Result<Self> {
        let load = Load::new(setup.messages, &mut context.rng);
        let load = if setup.twins { load.in_twins() } else { load };
        let mut stage = Self {
            scene,
            load,
            setup,
            saboteur: context.args.saboteur,
            consumers: Vec::new(),
            past: Totals::default(),
            began: Instant::now(),
            outcome: Outcome::default(),
            published: 0,
        };
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a small number")]
        let first = (stage.load.published() as f64 * setup.published_before) as usize;
        stage.publish(first).await?;
        Ok(stage)
    }

    /// Publishes up to this message.
    pub(crate) async fn publish(&mut self, until: usize) -> anyhow::Result<()> {
        let publisher = self.scene.publisher().await?;
        self.load.publish(&publisher, self.published..until, (500, Duration::ZERO)).await?;
        self.published = until;
        publisher.close(Duration::from_secs(10)).await?;
        Ok(())
    }

    /// Publishes what is left, a hundred messages and a pause at a time, while other things happen; and from which message
    /// on that is.
    pub(crate) async fn publish_beside(&mut self, rest: Duration) -> anyhow::Result<(usize, Beside)> {
        let publisher = self.scene.publisher().await?;
        let (load, part) = (self.load.clone(), self.published..self.load.published());
        self.published = part.end;
        let first = part.start;
        let work = async move {
            let sent = load.publish(&publisher, part, (100, rest)).await?;
            publisher.close(Duration::from_secs(10)).await?;
            Ok(sent)
        };
        Ok((first, Beside(tokio::spawn(work))))
    }

    /// Whether consumers that start from now on come by the broker's proxy.
    pub(crate) fn come_by_proxy(&mut self, does: bool) {
        self.setup.broker_by_proxy = does;
    }

    /// Waits until somebody has work in flight, which is nearly always; false when nobody comes to have any.
    pub(crate) async fn is_at_work(&mut self) -> anyhow::Result<bool> {
        let since = Instant::now();
        while !self.consumers.iter().flatten().any(|consumer| consumer.said.in_flight() > 0) {
            if since.elapsed() > Duration::from_secs(5) {
                return Ok(false);
            }
            self.all_run()?;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(true)
    }

    /// Waits until the broker has nothing left and no more effects come.
    pub(crate) async fn quiet(&mut self) -> anyhow::Result<()> {
        // Longer than a consumer takes for what it holds at most.
        const QUIET: Duration = Duration::from_millis(2_500);
        let (mut seen, mut since, began) = (-1, Instant::now(), Instant::now());
        while since.elapsed() < QUIET {
            let effects = self.scene.effects().await?;
            if effects != seen || self.scene.lag().await? > 0 {
                (seen, since) = (effects, Instant::now());
            }
            if began.elapsed() > PATIENCE {
                bail!("work does not end within {PATIENCE:?}");
            }
            self.all_run()?;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    /// Starts a consumer in this place; `extra` goes to its command line.
    pub(crate) async fn spawn(&mut self, place: usize, extra: &[String]) -> anyhow::Result<()> {
        let mut topic = self.scene.topic(self.setup.broker_by_proxy).to_owned();
        if self.scene.pair.broker == Broker::Sqlite {
            topic.push_str(&format!("&lease={}s", self.setup.lease_seconds));
        }
        if self.setup.static_members && self.scene.pair.broker == Broker::Kafka {
            topic = format!("{topic}&instance=i{place}");
        }
        let mut arguments: Vec<String> = [
            "--transport",
            &topic,
            "--store",
            self.scene.store(self.setup.store_by_proxy),
            "--instance",
            &format!("i{place}"),
            "--handler-us",
            &self.setup.handler_us.to_string(),
            "--shutdown",
            &self.setup.shutdown_seconds.to_string(),
        ]
        .map(str::to_owned)
        .into();
        if let Some(saboteur) = self.saboteur {
            arguments.extend(["--saboteur".to_owned(), saboteur.name().to_owned()]);
        }
        arguments.extend_from_slice(extra);
        let consumer = Consumer::start(&arguments).await?;
        if self.consumers.len() <= place {
            self.consumers.resize_with(place + 1, || None);
        }
        if self.consumers[place].replace(consumer).is_some() {
            bail!("place {place} is taken");
        }
        Ok(())
    }

    /// Starts consumers in the first places.
    pub(crate) async fn spawn_all(&mut self, instances: usize) -> anyhow::Result<()> {
        for place in 0..instances {
            self.spawn(place, &[]).await?;
        }
        Ok(())
    }

    pub(crate) fn consumer(&mut self, place: usize) -> anyhow::Result<&mut Consumer> {
        self.consumers.get_mut(place).and_then(Option::as_mut).with_context(|| format!("nobody is in place {place}"))
    }

    fn take(&mut self, place: usize) -> anyhow::Result<Consumer> {
        self.consumers.get_mut(place).and_then(Option::take).with_context(|| format!("nobody is in place {place}"))
    }

    /// Kills the consumer in this place; whether it had work in flight.
    pub(crate) async fn kill(&mut self, place: usize) -> anyhow::Result<bool> {
        let (in_flight, said) = self.take(place)?.kill().await?;
        self.past.add(&said);
        Ok(in_flight > 0)
    }

    /// Stops the consumer in this place.
    pub(crate) async fn stop(&mut self, place: usize) -> anyhow::Result<()> {
        let said = self.take(place)?.stop(STOPPING).await?;
        self.past.add(&said);
        Ok(())
    }

    /// Waits until the consumer in this place has ended by itself.
    pub(crate) async fn ended(&mut self, place: usize, within: Duration) -> anyhow::Result<End> {
        let mut consumer = self.take(place)?;
        let end = consumer.ended(within).await?;
        self.past.add(&consumer.said);
        Ok(end)
    }

    /// Deliveries acknowledged by all processes so far.
    pub(crate) fn acked(&self) -> u64 {
        self.past.acked + self.consumers.iter().flatten().map(|consumer| consumer.said.acked()).sum::<u64>()
    }

    /// Waits for so many more acknowledgements; false when all that was published is acknowledged before.
    pub(crate) async fn until_acked(&mut self, more: u64) -> anyhow::Result<bool> {
        let goal = self.acked() + more;
        let (mut seen, mut since) = (self.acked(), Instant::now());
        loop {
            let acked = self.acked();
            if acked >= goal {
                return Ok(true);
            }
            if acked > seen {
                (seen, since) = (acked, Instant::now());
            } else if since.elapsed() > Duration::from_secs(3) && self.is_done().await? {
                return Ok(false);
            } else if since.elapsed() > PATIENCE {
                bail!("no progress for {PATIENCE:?}");
            }
            self.all_run()?;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    fn all_run(&mut self) -> anyhow::Result<()> {
        for (place, consumer) in self.consumers.iter_mut().enumerate() {
            if let Some(consumer) = consumer
                && !consumer.runs()?
            {
                bail!("the consumer in place {place} ended by itself");
            }
        }
        Ok(())
    }

    /// Whether the broker has nothing more to hand over.
    async fn is_done(&self) -> anyhow::Result<bool> {
        Ok(self.scene.lag().await? == 0)
    }

    /// Waits for the first acknowledgement after `since` and notes how long it took.
    pub(crate) async fn resumed(&mut self, since: Instant) -> anyhow::Result<()> {
        loop {
            let last = self.consumers.iter().flatten().filter_map(|consumer| consumer.said.last_ack()).max();
            if let Some(after) = last.and_then(|last| last.checked_duration_since(since)) {
                let after = u64::try_from(after.as_millis())?;
                self.outcome.resumed_ms = Some(self.outcome.resumed_ms.unwrap_or(0).max(after));
                return Ok(());
            }
            if since.elapsed() > PATIENCE {
                bail!("work does not go on within {PATIENCE:?} of the server's return");
            }
            self.all_run()?;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Publishes what is left, waits for the end, stops everybody, and audits.
    pub(crate) async fn finish(mut self, keeps_order: bool) -> anyhow::Result<Outcome> {
        self.publish(self.load.published()).await?;
        if let Err(stuck) = self.worked_off().await {
            self.outcome.broken.push(format!("{stuck:#}"));
        }
        for place in 0..self.consumers.len() {
            if self.consumers[place].is_some()
                && let Err(error) = self.stop(place).await
            {
                self.outcome.broken.push(format!("{error:#}"));
            }
        }
        if self.scene.pair.broker == Broker::Rabbitmq {
            // The queue hears a moment later that its consumers have gone; then what they held would be in it again.
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        self.outcome.lag = self.scene.lag().await?;
        let ids = self.load.ids();
        self.scene.audit(&ids, &mut self.outcome).await?;
        (self.outcome.received, self.outcome.calls) = (self.past.received, self.past.calls);
        if self.setup.twins {
            self.outcome.counted = self.past.copies;
        }
        self.outcome.seconds = self.began.elapsed().as_secs_f64();
        self.outcome.judge(keeps_order && self.scene.pair.broker.keeps_order());
        Ok(self.outcome)
    }

    async fn worked_off(&mut self) -> anyhow::Result<()> {
        let (mut seen, mut since) = ((0, None), Instant::now());
        loop {
            self.all_run()?;
            let effects = self.scene.effects().await?;
            let complete = usize::try_from(effects)? >= self.load.payments();
            // Some brokers are asked at a price: when it could be the end.
            let left = if complete || since.elapsed().as_secs() > 5 { Some(self.scene.lag().await?) } else { None };
            if left == Some(0) {
                return Ok(());
            }
            let fewer = left.is_some() && seen.1.is_some_and(|seen| left != Some(seen));
            if effects != seen.0 || fewer {
                since = Instant::now();
            } else if since.elapsed() > PATIENCE {
                bail!("no progress for {PATIENCE:?}: {effects} effects, {} messages left", left.unwrap_or(-1));
            }
            seen = (effects, left.or(seen.1));
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Whether no consumer runs.
    pub(crate) fn is_empty(&self) -> bool {
        self.consumers.iter().all(Option::is_none)
    }

    /// The load was published by somebody else.
    pub(crate) fn was_published(&mut self) {
        self.published = self.load.published();
    }
}
