//! What a round came to.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::args::{Broker, Store};

/// A broker and a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) broker: Broker,
    pub(crate) store: Store,
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |value: Option<clap::builder::PossibleValue>| {
            value.map(|value| value.get_name().to_owned()).unwrap_or_default()
        };
        write!(f, "{} + {}", name(self.broker.to_possible_value()), name(self.store.to_possible_value()))
    }
}

/// What one round of one case came to.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) case: String,
    pub(crate) pair: String,
    /// Payments, each of which has one effect if all is well.
    pub(crate) messages: u64,
    /// Faults that hit a process with work in flight, or a server with consumers at work.
    pub(crate) counted: u64,
    /// Payments without an effect.
    pub(crate) lost: u64,
    /// Effects beyond the first of a payment.
    pub(crate) doubled: u64,
    /// Effects behind a later one of their account.
    pub(crate) reordered: u64,
    /// Effects without a claim and claims without an effect.
    pub(crate) unclaimed: u64,
    /// Attempts that were counted.
    pub(crate) attempts: u64,
    pub(crate) quarantined: u64,
    /// What the broker still has for the group.
    pub(crate) lag: i64,
    /// Deliveries received, and handlers called, by all processes together.
    pub(crate) received: u64,
    pub(crate) calls: u64,
    /// From the server's return to the first acknowledgement.
    pub(crate) resumed_ms: Option<u64>,
    pub(crate) seconds: f64,
    /// What does not hold, in words.
    pub(crate) broken: Vec<String>,
}

/// How soon work has to go on.
pub(crate) const RESUMES_WITHIN_MS: u64 = 15_000;

impl Outcome {
    /// Notes that something does not hold.
    pub(crate) fn expect(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.broken.push(what());
        }
    }

    /// Judges what is always expected.
    pub(crate) fn judge(&mut self, keeps_order: bool) {
        let counts = [
            (self.lost, "payments have no effect"),
            (self.doubled, "effects are there twice"),
            (self.unclaimed, "effects have no claim, or claims no effect"),
            (self.attempts, "attempts were counted"),
            (self.quarantined, "messages are in quarantine"),
            (if keeps_order { self.reordered } else { 0 }, "effects are out of order"),
            (self.lag.unsigned_abs(), "messages are not acknowledged"),
        ];
        for (count, what) in counts {
            self.expect(count == 0, || format!("{count} {what}"));
        }
        if let Some(resumed) = self.resumed_ms {
            self.expect(resumed <= RESUMES_WITHIN_MS, || format!("work went on after {resumed} ms only"));
        }
    }

    pub(crate) fn holds(&self) -> bool {
        self.broken.is_empty()
    }
}
