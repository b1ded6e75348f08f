//! Runs the pipeline: the producer, and everything that crashes, restarted until all is done.

use std::{
    collections::HashMap,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::sync::oneshot;

use crate::{
    args::Role,
    crash::Crash,
    roles::{End, Run, live},
};

/// The chance of a crash: of a relay at each batch, of a consumer at each acknowledgement.
const RELAY_CHANCE: f64 = 0.10;
const CONSUMER_CHANCE: f64 = 0.08;
/// A part that has crashed this often is left alone, so that every run ends.
const MOST_CRASHES: u64 = 25;
/// Without progress for this long, something is stuck.
const PATIENCE: Duration = Duration::from_secs(120);

/// How the parts are kept alive.
pub(crate) struct Pipeline {
    pub(crate) run: Run,
    pub(crate) payments: i64,
    pub(crate) seed: u64,
    /// The command line of a child process; `None`: everything in this process.
    pub(crate) child: Option<Vec<String>>,
}

/// How often each part crashed.
pub(crate) type Crashes = HashMap<Role, u64>;

impl Pipeline {
    /// Runs until every event is published and every group has worked off the topic.
    pub(crate) async fn run(&self) -> anyhow::Result<Crashes> {
        let mut parts = Vec::new();
        for role in Role::ALL {
            let (stop, stopped) = oneshot::channel::<()>();
            let count = Arc::new(AtomicU64::new(0));
            let kept = keep_alive(self.run.clone(), role, self.seed, self.child.clone(), Arc::clone(&count), stopped);
            parts.push((role, stop, count, tokio::task::spawn(kept)));
        }
        let produced = tokio::task::spawn(produce(self.run.clone(), self.payments));
        self.watch(&parts.iter().map(|(.., task)| task.abort_handle()).collect::<Vec<_>>(), produced).await?;
        let mut crashes = Crashes::new();
        for (role, stop, count, task) in parts {
            drop(stop);
            task.await?.with_context(|| format!("{} failed", role.name()))?;
            crashes.insert(role, count.load(Ordering::SeqCst));
        }
        Ok(crashes)
    }

    /// Waits for the end, and shows how far it is.
    async fn watch(
        &self,
        parts: &[tokio::task::AbortHandle],
        produced: tokio::task::JoinHandle<anyhow::Result<()>>,
    ) -> anyhow::Result<()> {
        let bar = ProgressBar::new(u64::try_from(self.payments * 6).unwrap_or(0));
        bar.set_style(ProgressStyle::with_template("{bar:40} {pos}/{len} {msg}")?);
        let mut produced = Some(produced);
        let (mut seen, mut since) = (u64::MAX, Instant::now());
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            if produced.as_ref().is_some_and(tokio::task::JoinHandle::is_finished)
                && let Some(produced) = produced.take()
            {
                produced.await?.context("the producer failed")?;
            }
            if parts.iter().any(tokio::task::AbortHandle::is_finished) {
                // Its own error says why; the caller finds it.
                return Ok(());
            }
            let books = self.run.shop.books().await?;
            let left = self.backlogs().await?;
            let published = u64::try_from(books.events - books.unpublished).unwrap_or(0);
            bar.set_position(published + (published * 2).saturating_sub(left));
            bar.set_message(format!("{left} to consume"));
            if produced.is_none() && books.events == self.payments * 2 && books.unpublished == 0 && left == 0 {
                bar.finish_and_clear();
                return Ok(());
            }
            let now = published.wrapping_mul(31).wrapping_add(left);
            if now != seen {
                (seen, since) = (now, Instant::now());
            } else if since.elapsed() > PATIENCE {
                bail!("no progress for {PATIENCE:?}: {published} events published, {left} deliveries left");
            }
        }
    }

    async fn backlogs(&self) -> anyhow::Result<u64> {
        let mut left = 0;
        for role in Role::ALL.into_iter().filter(|role| role.is_consumer()) {
            left += self.run.broker.backlog(role.name()).await?;
        }
        Ok(left)
    }
}

async fn produce(run: Run, payments: i64) -> anyhow::Result<()> {
    let mut next = 0;
    while next < payments {
        let end = (next + 20).min(payments);
        run.shop.pay(next..end).await?;
        next = end;
    }
    Ok(())
}

/// One life after the other, until it is told to stop.
async fn keep_alive(
    run: Run,
    role: Role,
    seed: u64,
    child: Option<Vec<String>>,
    count: Arc<AtomicU64>,
    mut stopped: oneshot::Receiver<()>,
) -> anyhow::Result<()> {
    for life in 0_u64.. {
        let chance = if life >= MOST_CRASHES { 0.0 } else { chance(role) };
        let seed = life_seed(seed, role, life);
        let (stop, receiver) = oneshot::channel();
        let living = async {
            match &child {
                Some(child) => live_elsewhere(child, role, seed, chance, receiver, &count).await,
                None => live(&run, role, Crash::new(seed, chance, false, Arc::clone(&count)), receiver).await,
            }
        };
        tokio::pin!(living);
        let mut stop = Some(stop);
        let end = loop {
            tokio::select! {
                end = &mut living => break end?,
                _ = &mut stopped, if stop.is_some() => drop(stop.take()),
            }
        };
        if end == End::Stopped || stop.is_none() {
            break;
        }
    }
    Ok(())
}

fn chance(role: Role) -> f64 {
    if role.is_consumer() { CONSUMER_CHANCE } else { RELAY_CHANCE }
}

fn life_seed(seed: u64, role: Role, life: u64) -> u64 {
    let mut rng = fastrand::Rng::with_seed(seed ^ (role as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    (0..=life).map(|_| rng.u64(..)).last().unwrap_or(seed)
}

/// A life in a process of its own, which aborts when it crashes.
async fn live_elsewhere(
    child: &[String],
    role: Role,
    seed: u64,
    chance: f64,
    stop: oneshot::Receiver<()>,
    count: &AtomicU64,
) -> anyhow::Result<End> {
    let mut process = tokio::process::Command::new(std::env::current_exe()?)
        .args(child)
        .args(["--role", role.name(), "--seed", &seed.to_string()])
        .env("CHAOS_CHANCE", chance.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .context("start a child process")?;
    let mut stdin = process.stdin.take();
    let mut stop = Some(stop);
    loop {
        let stopped = async {
            match stop.as_mut() {
                Some(stop) => drop(stop.await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            ended = process.wait() => {
                let ended = ended?;
                if ended.success() {
                    return Ok(End::Stopped);
                }
                // Aborted by itself: a crash. Everything else is an error that the child has printed.
                if ended.code().is_some() {
                    bail!("the process of {} ended with {ended}", role.name());
                }
                count.fetch_add(1, Ordering::SeqCst);
                return Ok(End::Crashed);
            }
            () = stopped => {
                // End of file on its input tells a child to stop.
                stop = None;
                drop(stdin.take());
            }
        }
    }
}

/// What a child process does.
pub(crate) async fn be_child(run: Run, role: Role, seed: u64) -> anyhow::Result<()> {
    let chance: f64 = std::env::var("CHAOS_CHANCE")?.parse()?;
    let (stop, stopped) = oneshot::channel();
    std::thread::spawn(move || {
        drop(std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
        drop(stop);
    });
    live(&run, role, Crash::new(seed, chance, true, Arc::default()), stopped).await.map(drop)
}
