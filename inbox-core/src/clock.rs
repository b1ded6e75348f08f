//! The one place that reads the clock on the wall.

use std::time::SystemTime;

/// The time now. Durations are measured with `tokio::time::Instant`, which tests can pause; this is for stamps only.
#[must_use]
pub fn now() -> SystemTime {
    #[allow(clippy::disallowed_methods, reason = "this is the clock")]
    SystemTime::now()
}
