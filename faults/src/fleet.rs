//! Consumer processes, and what each says.

use std::{
    process::Stdio,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    task::JoinHandle,
};

/// What one process has said so far.
#[derive(Debug, Default)]
pub(crate) struct Said {
    pub(crate) received: AtomicU64,
    pub(crate) acked: AtomicU64,
    pub(crate) calls: AtomicU64,
    /// Deliveries that had the id of another one in the same receive.
    pub(crate) copies: AtomicU64,
    held: AtomicU64,
    pub(crate) stuck: AtomicBool,
    ready: AtomicBool,
    last_ack: Mutex<Option<Instant>>,
}

impl Said {
    fn hear(&self, line: &str) {
        let mut words = line.split(' ');
        let word = words.next().unwrap_or_default();
        let mut number = || words.next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
        match word {
            "ready" => self.ready.store(true, Ordering::SeqCst),
            "stuck" => self.stuck.store(true, Ordering::SeqCst),
            "r" => {
                self.received.fetch_add(number(), Ordering::SeqCst);
                self.copies.fetch_add(number(), Ordering::SeqCst);
                self.held.store(number(), Ordering::SeqCst);
            }
            "x" => {
                number();
                self.held.store(number(), Ordering::SeqCst);
            }
            "a" => {
                let (acked, _lost) = (number(), number());
                self.acked.fetch_add(acked, Ordering::SeqCst);
                self.calls.store(number(), Ordering::SeqCst);
                self.held.store(number(), Ordering::SeqCst);
                if acked > 0 {
                    *self.last_ack.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
                }
            }
            "end" => self.calls.store(number(), Ordering::SeqCst),
            _ => {}
        }
    }

    /// Deliveries that it has and has not settled, and that were not lost with a session, when it last spoke.
    pub(crate) fn in_flight(&self) -> u64 {
        self.held.load(Ordering::SeqCst)
    }

    pub(crate) fn acked(&self) -> u64 {
        self.acked.load(Ordering::SeqCst)
    }

    pub(crate) fn last_ack(&self) -> Option<Instant> {
        *self.last_ack.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One consumer process.
#[derive(Debug)]
pub(crate) struct Consumer {
    process: Child,
    pid: Pid,
    pub(crate) said: Arc<Said>,
    listener: JoinHandle<()>,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It stopped by itself, as it was asked to.
    Stopped,
    /// SIGKILL.
    Killed,
}

impl Consumer {
    /// Starts a consumer and waits until it is connected.
    pub(crate) async fn start(arguments: &[String]) -> anyhow::Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .arg("child")
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("start a consumer")?;
        let pid = Pid::from_raw(i32::try_from(process.id().context("it has ended already")?)?);
        let said = Arc::new(Said::default());
        let mut lines = BufReader::new(process.stdout.take().context("its output")?).lines();
        let hearing = Arc::clone(&said);
        let listener = tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                hearing.hear(&line);
            }
        });
        let mut consumer = Self { process, pid, said, listener };
        let deadline = Instant::now() + Duration::from_secs(60);
        while !consumer.said.ready.load(Ordering::SeqCst) {
            if let Some(status) = consumer.process.try_wait()? {
                // What it said last may still be on its way.
                while !consumer.listener.is_finished() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                if consumer.said.ready.load(Ordering::SeqCst) {
                    break;
                }
                bail!("a consumer ended at its start with {status}");
            }
            if Instant::now() > deadline {
                bail!("a consumer is not ready after 60 s");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(consumer)
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        kill(self.pid, signal).with_context(|| format!("send {signal} to a consumer"))
    }

    /// Whether it runs.
    pub(crate) fn runs(&mut self) -> anyhow::Result<bool> {
        Ok(self.process.try_wait()?.is_none())
    }

    /// Waits for its end, and until all that it said is heard.
    pub(crate) async fn ended(&mut self, within: Duration) -> anyhow::Result<End> {
        use std::os::unix::process::ExitStatusExt as _;

        let status = tokio::time::timeout(within, self.process.wait())
            .await
            .with_context(|| format!("a consumer does not end within {within:?}"))??;
        // The pipe is closed with the process.
        (&mut self.listener).await?;
        match (status.success(), status.signal()) {
            (true, _) => Ok(End::Stopped),
            (false, Some(signal)) if signal == Signal::SIGKILL as i32 => Ok(End::Killed),
            (false, _) => bail!("a consumer ended with {status}"),
        }
    }

    /// Kills it; how many deliveries it had in flight.
    pub(crate) async fn kill(mut self) -> anyhow::Result<(u64, Arc<Said>)> {
        self.signal(Signal::SIGKILL)?;
        self.ended(Duration::from_secs(30)).await?;
        Ok((self.said.in_flight(), Arc::clone(&self.said)))
    }

    /// Asks it to stop, and waits.
    pub(crate) async fn stop(mut self, within: Duration) -> anyhow::Result<Arc<Said>> {
        self.signal(Signal::SIGTERM)?;
        match self.ended(within).await? {
            End::Stopped => Ok(Arc::clone(&self.said)),
            End::Killed => bail!("a consumer was killed while it stopped"),
        }
    }
}
