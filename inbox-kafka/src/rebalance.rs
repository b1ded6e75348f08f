//! librdkafka's callbacks. They run on the polling thread, inside `poll` and while the consumer is dropped.
//!
//! A partition that goes to another member takes four steps, all inside the callback: its session is *ending*, and what
//! waits for it is dropped; what is in flight may still be acked, for a bounded time (acks come by the lock, never by
//! this thread, which is busy here); its watermark is stored; its session is *lost*. Then librdkafka commits what is
//! stored, and only then joins the group again, which gives the partition away. An assignment that is already lost is
//! only the last step: somebody else may own it.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use inbox_core::TransportErrorKind;
use rdkafka::{
    ClientContext, Statistics, TopicPartitionList,
    config::RDKafkaLogLevel,
    consumer::{BaseConsumer, Consumer, ConsumerContext, Rebalance},
    error::{KafkaError, KafkaResult, RDKafkaErrorCode},
};

use crate::{
    error,
    handover::Shared,
    settle::{self, Place},
};

/// How long a refused login is taken for a broker that is restarting, once the consumer runs.
const REFUSED_FOR: Duration = Duration::from_secs(30);

/// What librdkafka calls back.
pub(crate) struct Context {
    shared: Arc<Shared>,
    revoke_timeout: Duration,
    seen: Mutex<Seen>,
}

/// What the callbacks leave for the polling thread.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// The assignment has changed: a paused consumer pauses what is new.
    pub(crate) assignment_changed: bool,
    /// A topic is said not to exist.
    pub(crate) topic_missing: bool,
    /// Whether to look for the end of the membership, and whether it was seen.
    pub(crate) leaving: bool,
    pub(crate) left: bool,
    refused_since: Option<Instant>,
}

impl Context {
    pub(crate) fn new(shared: Arc<Shared>, revoke_timeout: Duration) -> Self {
        Self { shared, revoke_timeout, seen: Mutex::new(Seen::default()) }
    }

    /// Looks at, or changes, what the callbacks left.
    pub(crate) fn seen<T>(&self, look: impl FnOnce(&mut Seen) -> T) -> T {
        look(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The broker has answered.
    pub(crate) fn answered(&self) {
        if !self.shared.connected() {
            tracing::info!("connected to kafka again");
            self.shared.set_connected(true);
            self.seen(|seen| seen.refused_since = None);
        }
    }

    fn revoke(&self, consumer: &BaseConsumer<Self>, places: &[Place]) {
        let deadline = Instant::now() + self.revoke_timeout;
        let ended = self.shared.end(places, deadline, || consumer.assignment_lost());
        tracing::debug!(partitions = places.len(), lost = consumer.assignment_lost(), "partitions are taken away");
        store(consumer, &self.shared, &ended.offsets);
        self.shared.lose_all(ended);
    }

    fn refused(&self, reason: &str) {
        tracing::warn!(reason, "kafka refuses the login");
        self.shared.set_connected(false);
        let now = Instant::now();
        let since = self.seen(|seen| *seen.refused_since.get_or_insert(now));
        if now.duration_since(since) >= REFUSED_FOR {
            self.shared.fail(TransportErrorKind::Unauthorized, reason.to_owned());
        }
    }
}

/// Hands offsets to librdkafka. Those of partitions that are taken away it commits before the group is joined again,
/// and so before anybody else can own them.
pub(crate) fn store(consumer: &BaseConsumer<Context>, shared: &Shared, offsets: &[(Place, i64)]) -> bool {
    if offsets.is_empty() {
        return true;
    }
    match consumer.store_offsets(&settle::list(&shared.topics, offsets)) {
        Ok(()) => true,
        Err(error) => {
            tracing::debug!(%error, "offsets were not stored");
            false
        }
    }
}

fn places(shared: &Shared, list: &TopicPartitionList) -> Vec<Place> {
    list.elements().iter().filter_map(|element| shared.place(element.topic(), element.partition())).collect()
}

impl ConsumerContext for Context {
    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        match rebalance {
            Rebalance::Assign(list) => {
                let places = places(&self.shared, list);
                tracing::debug!(partitions = places.len(), "partitions are assigned");
                self.shared.start(&places);
                self.answered();
            }
            Rebalance::Revoke(list) => self.revoke(consumer, &places(&self.shared, list)),
            Rebalance::Error(error) => tracing::warn!(%error, "a rebalance failed"),
        }
    }

    fn post_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        // A partition that was revoked while it was paused comes back paused.
        if let Rebalance::Assign(list) = rebalance
            && let Err(error) = consumer.resume(list)
        {
            tracing::debug!(%error, "new partitions were not resumed");
        }
        self.seen(|seen| seen.assignment_changed = true);
    }

    fn commit_callback(&self, result: KafkaResult<()>, _offsets: &TopicPartitionList) {
        match result {
            Ok(()) => self.answered(),
            Err(KafkaError::ConsumerCommit(RDKafkaErrorCode::NoOffset)) => {}
            // Tried again at the next interval, unless this was the last one.
            Err(error) => {
                tracing::debug!(%error, "a commit failed");
                self.shared.commit_failed();
            }
        }
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        log(level, facility, line);
    }

    fn stats(&self, _statistics: Statistics) {}

    fn stats_raw(&self, statistics: &[u8]) {
        self.seen(|seen| seen.left |= seen.leaving && is_out_of_the_group(statistics));
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let Some(code) = error::code_of(&error) else { return };
        match code {
            RDKafkaErrorCode::PartitionEOF => {}
            RDKafkaErrorCode::AllBrokersDown => {
                tracing::warn!(reason, "no kafka broker is reachable");
                self.shared.set_connected(false);
            }
            RDKafkaErrorCode::UnknownTopic | RDKafkaErrorCode::UnknownTopicOrPartition => {
                self.seen(|seen| seen.topic_missing = true);
            }
            RDKafkaErrorCode::Authentication | RDKafkaErrorCode::SaslAuthenticationFailed => self.refused(reason),
            // A broker that restarts breaks handshakes.
            RDKafkaErrorCode::SSL => tracing::warn!(reason, "a TLS handshake failed"),
            code if error::is_fatal(code) => {
                let kind = error::kind_of(code);
                self.shared.fail(kind, reason.to_owned());
                if error::ends_the_client(code) {
                    // No revoke comes for these partitions, and somebody else may own them.
                    let ended = self.shared.end(&self.shared.places(), Instant::now(), || true);
                    self.shared.lose_all(ended);
                }
            }
            code => tracing::debug!(%code, reason, "kafka client"),
        }
    }
}

/// Whether librdkafka's statistics say that this client has left its group, or has not joined it.
fn is_out_of_the_group(statistics: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Statistics {
        cgrp: Option<Group>,
    }
    #[derive(serde::Deserialize)]
    struct Group {
        join_state: String,
    }
    serde_json::from_slice::<Statistics>(statistics)
        .is_ok_and(|statistics| statistics.cgrp.is_none_or(|group| group.join_state == "init"))
}

/// librdkafka's own log lines. What matters of them reaches the caller as an error.
pub(crate) fn log(level: RDKafkaLogLevel, facility: &str, line: &str) {
    match level {
        RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical | RDKafkaLogLevel::Error => {
            tracing::warn!(target: "librdkafka", facility, "{line}");
        }
        RDKafkaLogLevel::Warning if facility != "CONFWARN" => tracing::info!(target: "librdkafka", facility, "{line}"),
        RDKafkaLogLevel::Warning | RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => {
            tracing::debug!(target: "librdkafka", facility, "{line}");
        }
        RDKafkaLogLevel::Debug => tracing::trace!(target: "librdkafka", facility, "{line}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_the_membership() {
        let statistics =
            |state: &str| format!(r#"{{"name":"c","brokers":{{}},"cgrp":{{"state":"up","join_state":"{state}"}}}}"#);
        assert!(is_out_of_the_group(statistics("init").as_bytes()));
        assert!(!is_out_of_the_group(statistics("steady").as_bytes()));
        assert!(!is_out_of_the_group(statistics("wait-join").as_bytes()));
        assert!(!is_out_of_the_group(b"nonsense"));
    }
}
