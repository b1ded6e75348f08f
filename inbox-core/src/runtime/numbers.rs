//! What an inbox has done so far: for health pages and tests, and the same as metrics.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use metrics::Counter;

use crate::{failure_store::Reason, observe};

/// What an inbox has done since it was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Numbers {
    /// Deliveries received.
    pub received: u64,
    /// Messages whose effect was committed.
    pub applied: u64,
    /// Deliveries acknowledged without running, because the message was processed before.
    pub duplicates: u64,
    /// Ids met with a second content.
    pub id_conflicts: u64,
    /// Messages put into quarantine.
    pub quarantined: u64,
    /// Messages ignored by policy.
    pub ignored: u64,
    /// Attempts that failed and were counted.
    pub attempts_failed: u64,
    /// Transactions rolled back, for whatever reason.
    pub rollbacks: u64,
    /// Transactions committed.
    pub commits: u64,
    /// Acknowledgements that reached nobody: these messages come again and are duplicates then.
    pub lost_acks: u64,
    /// Deliveries given back unattempted.
    pub released: u64,
    /// Deliveries held now.
    pub in_flight: u64,
}

/// A number that is a metric too.
pub(crate) struct Count {
    value: AtomicU64,
    metric: Counter,
}

impl Count {
    fn new(metric: Counter) -> Self {
        Self { value: AtomicU64::new(0), metric }
    }

    pub(crate) fn add(&self, n: usize) {
        self.value.fetch_add(n as u64, Ordering::Relaxed);
        self.metric.increment(n as u64);
    }

    pub(crate) fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }
}

pub(crate) struct Counters {
    name: Arc<str>,
    pub(crate) received: Count,
    pub(crate) applied: Count,
    duplicates: AtomicU64,
    pub(crate) id_conflicts: Count,
    quarantined: AtomicU64,
    ignored: AtomicU64,
    pub(crate) attempts_failed: Count,
    rollbacks: AtomicU64,
    pub(crate) commits: Count,
    pub(crate) lost_acks: Count,
    released: AtomicU64,
}

macro_rules! by_reason {
    ($(#[$doc:meta])* $name:ident, $metric:expr) => {
        $(#[$doc])*
        pub(crate) fn $name(&self, n: usize, reason: &'static str) {
            if n > 0 {
                self.$name.fetch_add(n as u64, Ordering::Relaxed);
                metrics::counter!($metric, observe::CONSUMER => self.name.to_string(), observe::REASON => reason)
                    .increment(n as u64);
            }
        }
    };
}

impl Counters {
    pub(crate) fn new(name: Arc<str>) -> Self {
        let count = |metric| Count::new(metrics::counter!(metric, observe::CONSUMER => name.to_string()));
        Self {
            received: count(observe::RECEIVED),
            applied: count(observe::APPLIED),
            duplicates: AtomicU64::new(0),
            id_conflicts: count(observe::ID_CONFLICTS),
            quarantined: AtomicU64::new(0),
            ignored: AtomicU64::new(0),
            attempts_failed: count(observe::ATTEMPTS_FAILED),
            rollbacks: AtomicU64::new(0),
            commits: count(observe::COMMITS),
            lost_acks: count(observe::LOST_ACKS),
            released: AtomicU64::new(0),
            name,
        }
    }

    by_reason!(duplicates, observe::DUPLICATES);
    by_reason!(rollbacks, observe::ROLLBACKS);
    by_reason!(released, observe::RELEASED);

    pub(crate) fn quarantined(&self, reason: Reason) {
        self.quarantined.fetch_add(1, Ordering::Relaxed);
        let name = self.name.to_string();
        metrics::counter!(observe::QUARANTINED, observe::CONSUMER => name, observe::REASON => reason.as_str())
            .increment(1);
    }

    pub(crate) fn ignored(&self, reason: Reason) {
        self.ignored.fetch_add(1, Ordering::Relaxed);
        let name = self.name.to_string();
        metrics::counter!(observe::IGNORED, observe::CONSUMER => name, observe::REASON => reason.as_str()).increment(1);
    }

    pub(crate) fn in_flight(&self, n: usize) {
        #[allow(clippy::cast_precision_loss, reason = "a gauge of thousands")]
        metrics::gauge!(observe::IN_FLIGHT, observe::CONSUMER => self.name.to_string()).set(n as f64);
    }

    pub(crate) fn batch(&self, size: usize, seconds: f64) {
        #[allow(clippy::cast_precision_loss, reason = "a histogram of hundreds")]
        metrics::histogram!(observe::BATCH_SIZE, observe::CONSUMER => self.name.to_string()).record(size as f64);
        metrics::histogram!(observe::BATCH_SECONDS, observe::CONSUMER => self.name.to_string()).record(seconds);
    }

    pub(crate) fn snapshot(&self, in_flight: usize) -> Numbers {
        Numbers {
            received: self.received.get(),
            applied: self.applied.get(),
            duplicates: self.duplicates.load(Ordering::Relaxed),
            id_conflicts: self.id_conflicts.get(),
            quarantined: self.quarantined.load(Ordering::Relaxed),
            ignored: self.ignored.load(Ordering::Relaxed),
            attempts_failed: self.attempts_failed.get(),
            rollbacks: self.rollbacks.load(Ordering::Relaxed),
            commits: self.commits.get(),
            lost_acks: self.lost_acks.get(),
            released: self.released.load(Ordering::Relaxed),
            in_flight: in_flight as u64,
        }
    }
}
