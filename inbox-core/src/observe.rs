//! Every span, metric and field name. No other file invents one.

/// Counter: deliveries received. Labels: [`CONSUMER`].
pub const RECEIVED: &str = "inbox_received_total";
/// Counter: messages whose effect was committed. Labels: [`CONSUMER`].
pub const APPLIED: &str = "inbox_applied_total";
/// Counter: deliveries that were acknowledged without running. Labels: [`CONSUMER`], [`REASON`] (`claimed`, `in_batch`).
pub const DUPLICATES: &str = "inbox_duplicates_total";
/// Counter: ids used for two contents. Labels: [`CONSUMER`].
pub const ID_CONFLICTS: &str = "inbox_id_conflicts_total";
/// Counter: messages put into quarantine. Labels: [`CONSUMER`], [`REASON`].
pub const QUARANTINED: &str = "inbox_quarantined_total";
/// Counter: messages ignored by policy. Labels: [`CONSUMER`], [`REASON`].
pub const IGNORED: &str = "inbox_ignored_total";
/// Counter: failed attempts. Labels: [`CONSUMER`].
pub const ATTEMPTS_FAILED: &str = "inbox_attempts_failed_total";
/// Counter: transactions rolled back. Labels: [`CONSUMER`], [`REASON`] (`failed`, `unpinned`, `busy`, `infrastructure`,
/// `contention`, `commit_unknown`, `aborted`).
pub const ROLLBACKS: &str = "inbox_rollbacks_total";
/// Counter: transactions committed. Labels: [`CONSUMER`].
pub const COMMITS: &str = "inbox_commits_total";
/// Counter: acknowledgements that reached nobody. Labels: [`CONSUMER`].
pub const LOST_ACKS: &str = "inbox_lost_acks_total";
/// Counter: deliveries given back unattempted. Labels: [`CONSUMER`], [`REASON`] (`shutdown`, `session`, `held_too_long`).
pub const RELEASED: &str = "inbox_released_total";
/// Histogram: messages a transaction. Labels: [`CONSUMER`].
pub const BATCH_SIZE: &str = "inbox_batch_size";
/// Histogram, seconds: from BEGIN to COMMIT. Labels: [`CONSUMER`].
pub const BATCH_SECONDS: &str = "inbox_batch_seconds";
/// Gauge: deliveries held. Labels: [`CONSUMER`].
pub const IN_FLIGHT: &str = "inbox_in_flight";

/// Label and field: the consumer's name.
pub const CONSUMER: &str = "consumer";
/// Label and field: why.
pub const REASON: &str = "reason";

/// Span around one batch: claim, handlers, commit. Fields: [`CONSUMER`], `messages`.
pub const BATCH_SPAN: &str = "inbox.batch";
/// Span around one handler call. Fields: `message_id`, `kind`, `attempt`, `traceparent`.
pub const HANDLE_SPAN: &str = "inbox.handle";
