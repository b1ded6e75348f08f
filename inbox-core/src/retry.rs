//! How long to wait before the next attempt. Pure: chance comes in as a number.

use std::time::Duration;

/// Exponential backoff with jitter, bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The wait after the first failed attempt.
    pub first: Duration,
    /// No wait is longer.
    pub most: Duration,
}

impl Default for Backoff {
    /// 200 ms, doubled up to 10 s.
    fn default() -> Self {
        Self { first: Duration::from_millis(200), most: Duration::from_secs(10) }
    }
}

impl Backoff {
    /// The wait after attempt number `attempt` (from 1). `chance` in 0..1 spreads it over the upper half, so that
    /// messages that failed together do not come back together.
    #[must_use]
    pub fn wait(self, attempt: u32, chance: f64) -> Duration {
        let doubled = self.first.saturating_mul(1_u32.checked_shl(attempt.saturating_sub(1)).unwrap_or(u32::MAX));
        let full = doubled.min(self.most);
        full.mul_f64(0.5 + chance.clamp(0.0, 1.0) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn waits_are_bounded_and_never_zero(attempt in 1_u32..200, chance in 0.0..1.0_f64) {
            let backoff = Backoff::default();
            let wait = backoff.wait(attempt, chance);
            prop_assert!(wait >= backoff.first / 2 && wait <= backoff.most);
        }

        #[test]
        fn waits_grow(attempt in 1_u32..40) {
            let backoff = Backoff { first: Duration::from_millis(1), most: Duration::from_secs(3_600) };
            prop_assert!(backoff.wait(attempt + 1, 0.5) >= backoff.wait(attempt, 0.5));
        }
    }
}
