//! In what brokers really differ: one field each. Nothing else in the runtime branches on a broker.

use std::time::Duration;

/// What a transport promises beyond the contract that all of them keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The transport's name for people, logs and metrics (`kafka`). Never branched on.
    pub name: &'static str,
    /// In what order deliveries come.
    pub ordering: Ordering,
    /// How long a delivery may be held.
    pub lease: Lease,
    /// Whether every delivery says how often it was handed over.
    pub delivery_count: bool,
    /// Whether deliveries that may have been in flight at a crash are flagged.
    pub suspect_flag: bool,
    /// Whether one ordering key is never handed to two consumers of a group at once.
    pub exclusive_keys: bool,
    /// The largest body, in bytes, that the broker takes; `None` when it is the server's setting.
    pub max_body: Option<usize>,
    /// Whether messages outlive the process that published them.
    pub durable: bool,
}

/// In what order a transport hands messages over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ordering {
    /// None is promised.
    None,
    /// Messages of one key in the order of publishing.
    Key,
    /// All messages of a partition in the order of publishing.
    Partition,
}

/// How long a delivery may be held before the broker hands it to somebody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// As long as the session lives.
    Session,
    /// The adapter extends it for everything that is held, as long as the process lives.
    Extended {
        /// How long after the process died the broker waits.
        timeout: Duration,
    },
    /// A hard ceiling that nobody can extend.
    Ceiling(Duration),
}

/// The oldest that a message can be when the broker hands it over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxAge {
    /// No older than this.
    AtMost(Duration),
    /// The broker keeps messages for ever.
    Unbounded,
    /// The transport cannot find out.
    Unknown,
}
