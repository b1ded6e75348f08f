//! Questions to the cluster, each with a client of its own that is gone when the answer is there.
//!
//! rdkafka's calls block, and so does dropping its clients: everything here runs on tokio's blocking threads.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use inbox_core::{TransportError, TransportErrorKind, capability::MaxAge};
use rdkafka::{
    ClientContext, Message as _, Offset, Statistics, TopicPartitionList,
    admin::{AdminClient, AdminOptions, ConfigResource, NewTopic, ResourceSpecifier, TopicReplication},
    config::{FromClientConfigAndContext as _, RDKafkaLogLevel},
    consumer::{BaseConsumer, Consumer, ConsumerContext},
    error::{KafkaError, RDKafkaErrorCode},
};

use crate::{config::KafkaConfig, error, rebalance};

/// One try for an answer; errors are looked at in between.
const TRY: Duration = Duration::from_millis(250);
/// How long a reader waits for the next record of a partition that is not at its end.
const STALLED: Duration = Duration::from_secs(30);
/// Kafka's default for `log.retention.check.interval.ms`, when the broker's is not to be had.
const CHECK_INTERVAL: u64 = 5 * 60 * 1_000;

/// Makes sure that a broker answers and that the topics exist.
pub(crate) async fn verify(config: &KafkaConfig, operation: &'static str) -> Result<(), TransportError> {
    blocking(config, operation, move |config| {
        let inspector = Inspector::new(config, operation)?;
        let deadline = Instant::now() + config.connect_timeout;
        for topic in &config.topics {
            inspector.partitions(topic, deadline)?.ok_or_else(|| not_found(operation, topic))?;
        }
        Ok(())
    })
    .await
}

/// Creates the topics that do not exist.
pub(crate) async fn provision(config: &KafkaConfig) -> Result<(), TransportError> {
    const OPERATION: &str = "provision";
    blocking(config, OPERATION, |config| {
        let inspector = Inspector::new(config, OPERATION)?;
        let deadline = Instant::now() + config.connect_timeout;
        let mut missing = Vec::new();
        for topic in &config.topics {
            if inspector.partitions(topic, deadline)?.is_none() {
                missing.push(topic.as_str());
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let admin = admin(config, OPERATION)?;
        // -1 is the cluster's default.
        let replicas = config.replication.unwrap_or(-1);
        let topics: Vec<NewTopic<'_>> = missing
            .iter()
            .map(|topic| NewTopic::new(topic, config.partitions, TopicReplication::Fixed(replicas)))
            .collect();
        let timeout = Some(config.connect_timeout);
        let options = AdminOptions::new().request_timeout(timeout).operation_timeout(timeout);
        let created = wait(admin.create_topics(&topics, &options)).map_err(|error| error::of(OPERATION, error))?;
        for result in created {
            match result {
                // Somebody else was faster.
                Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
                Err((topic, code)) => {
                    return Err(error::of(OPERATION, KafkaError::AdminOp(code)).context(format!("topic `{topic}`")));
                }
            }
        }
        // Until the broker that is asked next knows them too.
        let deadline = Instant::now() + config.connect_timeout;
        for topic in missing {
            while inspector.partitions(topic, deadline)?.is_none() {
                if Instant::now() >= deadline {
                    return Err(not_found(OPERATION, topic));
                }
                inspector.pause();
            }
        }
        Ok(())
    })
    .await
}

/// How many records there are that a consumer would be given, up to the ends as they are now.
pub(crate) async fn count_records(config: &KafkaConfig) -> Result<u64, TransportError> {
    const OPERATION: &str = "count records";
    blocking(config, OPERATION, |config| {
        let inspector = Inspector::new(config, OPERATION)?;
        let mut count = 0;
        // One topic at a time: rdkafka's event for the end of a partition does not name the topic.
        for topic in &config.topics {
            let ends = inspector.ends(topic, config.connect_timeout)?;
            count += inspector.count(topic, &ends)?;
        }
        Ok(count)
    })
    .await
}

/// How far the group's committed offsets are behind the ends, all partitions together.
pub(crate) async fn group_lag(config: &KafkaConfig) -> Result<i64, TransportError> {
    const OPERATION: &str = "group lag";
    config.required_group()?;
    blocking(config, OPERATION, |config| {
        let inspector = Inspector::new(config, OPERATION)?;
        let mut lag = 0;
        for topic in &config.topics {
            let ends = inspector.ends(topic, config.connect_timeout)?;
            let committed = inspector.committed(topic, ends.keys().copied(), config.connect_timeout)?;
            for (partition, (low, high)) in ends {
                let from = committed.get(&partition).copied().unwrap_or(low).max(low);
                lag += (high - from).max(0);
            }
        }
        Ok(lag)
    })
    .await
}

/// The oldest that a message of the topics can be.
pub(crate) async fn max_age(config: &KafkaConfig) -> Result<MaxAge, TransportError> {
    const OPERATION: &str = "max age";
    blocking(config, OPERATION, |config| {
        let inspector = Inspector::new(config, OPERATION)?;
        let deadline = Instant::now() + config.connect_timeout;
        let mut broker = None;
        for topic in &config.topics {
            let known = inspector.partitions(topic, deadline)?.ok_or_else(|| not_found(OPERATION, topic))?;
            broker = broker.or_else(|| known.iter().map(|(_, leader)| *leader).find(|leader| *leader >= 0));
        }
        let admin = admin(config, OPERATION)?;
        let options = AdminOptions::new().request_timeout(Some(config.connect_timeout));
        let topics: Vec<ResourceSpecifier<'_>> =
            config.topics.iter().map(|topic| ResourceSpecifier::Topic(topic)).collect();
        let described = wait(admin.describe_configs(&topics, &options)).map_err(|error| error::of(OPERATION, error))?;
        let check_interval = broker
            .and_then(|broker| wait(admin.describe_configs(&[ResourceSpecifier::Broker(broker)], &options)).ok())
            .and_then(|described| {
                setting(described.first()?.as_ref().ok()?, "log.retention.check.interval.ms")?.parse().ok()
            })
            .unwrap_or(CHECK_INTERVAL);
        let mut oldest = MaxAge::AtMost(Duration::ZERO);
        for topic in described {
            let age = match topic {
                Ok(topic) => age(|name| setting(&topic, name).map(str::to_owned), check_interval),
                // Reading settings is a permission of its own.
                Err(RDKafkaErrorCode::TopicAuthorizationFailed) => MaxAge::Unknown,
                Err(code) => return Err(error::of(OPERATION, KafkaError::AdminOp(code))),
            };
            oldest = older(oldest, age);
        }
        Ok(oldest)
    })
    .await
}

fn setting<'a>(resource: &'a ConfigResource, name: &str) -> Option<&'a str> {
    resource.get(name)?.value.as_deref()
}

/// How old a message of a topic with these settings can be when it is read. Pure.
///
/// A segment goes when its newest record, by the record's own time, is older than `retention.ms`, and only once it is no
/// longer written to, which lasts `segment.ms`; the broker looks at intervals; and a record's time may lie ahead of the
/// broker's by `message.timestamp.after.max.ms`, unless the broker stamps records itself.
fn age(setting: impl Fn(&str) -> Option<String>, check_interval: u64) -> MaxAge {
    let millis = |name: &str| setting(name)?.parse::<i64>().ok();
    if setting("cleanup.policy").is_some_and(|policy| policy.contains("compact")) {
        return MaxAge::Unbounded;
    }
    let (Some(retention), Some(segment)) = (millis("retention.ms"), millis("segment.ms")) else {
        return MaxAge::Unknown;
    };
    let ahead = if setting("message.timestamp.type").as_deref() == Some("LogAppendTime") {
        0
    } else {
        // Brokers before 3.6 know one bound for both directions.
        millis("message.timestamp.after.max.ms")
            .or_else(|| millis("message.timestamp.difference.max.ms"))
            .unwrap_or(i64::MAX)
    };
    let parts = [retention, segment, ahead].map(u64::try_from);
    let [Ok(retention), Ok(segment), Ok(ahead)] = parts else {
        return MaxAge::Unbounded;
    };
    // What "no bound" is written as.
    if [retention, segment, ahead].iter().any(|part| *part >= u64::MAX / 2) {
        return MaxAge::Unbounded;
    }
    let sum = retention.saturating_add(segment).saturating_add(ahead).saturating_add(check_interval);
    MaxAge::AtMost(Duration::from_millis(sum))
}

fn older(one: MaxAge, other: MaxAge) -> MaxAge {
    match (one, other) {
        (MaxAge::Unknown, _) | (_, MaxAge::Unknown) => MaxAge::Unknown,
        (MaxAge::Unbounded, _) | (_, MaxAge::Unbounded) => MaxAge::Unbounded,
        (MaxAge::AtMost(one), MaxAge::AtMost(other)) => MaxAge::AtMost(one.max(other)),
    }
}

fn not_found(operation: &'static str, topic: &str) -> TransportError {
    TransportError::new(TransportErrorKind::NotFound, operation)
        .context(format!("the topic `{topic}` does not exist; `inbox::provision(url)` creates it"))
}

async fn blocking<T: Send + 'static>(
    config: &KafkaConfig,
    operation: &'static str,
    ask: impl FnOnce(&KafkaConfig) -> Result<T, TransportError> + Send + 'static,
) -> Result<T, TransportError> {
    config.check()?;
    let config = config.clone();
    tokio::task::spawn_blocking(move || ask(&config))
        .await
        .unwrap_or_else(|error| Err(TransportError::new(TransportErrorKind::Unexpected, operation).source(error)))
}

/// Waits for an answer of the admin client. Called on blocking threads only.
fn wait<T>(answer: impl Future<Output = T>) -> T {
    tokio::runtime::Handle::current().block_on(answer)
}

fn admin(config: &KafkaConfig, operation: &'static str) -> Result<AdminClient<Heard>, TransportError> {
    AdminClient::from_config_and_context(&config.inspector(), Heard::default())
        .map_err(|error| error::of(operation, error))
}

/// What the client says besides its answers.
#[derive(Clone, Debug, Default)]
struct Heard {
    last: Arc<Mutex<Option<(RDKafkaErrorCode, String)>>>,
}

impl Heard {
    fn last(&self) -> Option<(RDKafkaErrorCode, String)> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ClientContext for Heard {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        rebalance::log(level, facility, line);
    }

    fn stats(&self, _statistics: Statistics) {}

    fn stats_raw(&self, _statistics: &[u8]) {}

    fn error(&self, error: KafkaError, reason: &str) {
        let Some(code) = error::code_of(&error).filter(|code| *code != RDKafkaErrorCode::PartitionEOF) else { return };
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        // Why the login was refused, or a broker not reached, says more than that nobody is left to talk to.
        let keep = match &*last {
            Some((before, _)) => error::refuses(*before) || code == RDKafkaErrorCode::AllBrokersDown,
            None => false,
        };
        if !keep {
            *last = Some((code, reason.to_owned()));
        }
    }
}

impl ConsumerContext for Heard {}

/// A client that asks. It is no member of any group.
struct Inspector {
    consumer: BaseConsumer<Heard>,
    heard: Heard,
    hosts: String,
    operation: &'static str,
}

/// Low and high offsets by partition. At `read_committed` the high one is the last stable offset.
type Ends = BTreeMap<i32, (i64, i64)>;

impl Inspector {
    fn new(config: &KafkaConfig, operation: &'static str) -> Result<Self, TransportError> {
        let heard = Heard::default();
        let consumer = BaseConsumer::from_config_and_context(&config.inspector(), heard.clone())
            .map_err(|error| error::of(operation, error))?;
        Ok(Self { consumer, heard, hosts: config.hosts.clone(), operation })
    }

    /// Lets the client tell its errors.
    fn pause(&self) {
        drop(self.consumer.poll(Duration::from_millis(20)));
    }

    /// The topic's partitions and their leaders; `None` when there is no such topic.
    fn partitions(&self, topic: &str, deadline: Instant) -> Result<Option<Vec<(i32, i32)>>, TransportError> {
        loop {
            let answer = self.consumer.fetch_metadata(Some(topic), TRY);
            self.pause();
            if let Some((code, reason)) = self.heard.last().filter(|(code, _)| error::refuses(*code)) {
                return Err(TransportError::new(error::kind_of(code), self.operation).context(reason));
            }
            match answer {
                Ok(metadata) => {
                    let topic = metadata.topics().iter().find(|known| known.name() == topic);
                    match topic.map(|topic| (topic, topic.error().map(RDKafkaErrorCode::from))) {
                        Some((topic, None)) if !topic.partitions().is_empty() => {
                            let partitions: Vec<(i32, i32)> = topic
                                .partitions()
                                .iter()
                                .map(|partition| (partition.id(), partition.leader()))
                                .collect();
                            if partitions.iter().all(|(_, leader)| *leader >= 0) || Instant::now() >= deadline {
                                return Ok(Some(partitions));
                            }
                        }
                        Some((_, Some(RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic))) => {
                            return Ok(None);
                        }
                        Some((_, Some(code))) if error::refuses(code) => {
                            return Err(error::of(self.operation, KafkaError::MetadataFetch(code)));
                        }
                        // Being created, or electing a leader.
                        _ => {}
                    }
                }
                Err(error) if error::of(self.operation, error.clone()).is_retryable() => {}
                Err(error) => return Err(error::of(self.operation, error)),
            }
            if Instant::now() >= deadline {
                return Err(self.unavailable());
            }
        }
    }

    fn unavailable(&self) -> TransportError {
        let why = self.heard.last().map(|(_, reason)| format!(" ({reason})")).unwrap_or_default();
        TransportError::new(TransportErrorKind::Unavailable, self.operation)
            .context(format!("no broker answers at {}{why}", self.hosts))
    }

    fn ends(&self, topic: &str, timeout: Duration) -> Result<Ends, TransportError> {
        let deadline = Instant::now() + timeout;
        let partitions = self.partitions(topic, deadline)?.ok_or_else(|| not_found(self.operation, topic))?;
        partitions
            .into_iter()
            .map(|(partition, _)| {
                // A partition that was made just now, or moves, has no leader for a moment.
                loop {
                    match self.consumer.fetch_watermarks(topic, partition, timeout) {
                        Ok(ends) => return Ok((partition, ends)),
                        Err(error) => {
                            let error = error::of(self.operation, error);
                            if error.kind() != TransportErrorKind::Unavailable || Instant::now() >= deadline {
                                return Err(error);
                            }
                            self.pause();
                        }
                    }
                }
            })
            .collect()
    }

    fn committed(
        &self,
        topic: &str,
        partitions: impl Iterator<Item = i32>,
        timeout: Duration,
    ) -> Result<HashMap<i32, i64>, TransportError> {
        let mut list = TopicPartitionList::new();
        for partition in partitions {
            list.add_partition(topic, partition);
        }
        // The list ends here, before the consumer does: rust-rdkafka #453.
        let list = self.consumer.committed_offsets(list, timeout).map_err(|error| error::of(self.operation, error))?;
        let offsets = list.elements().into_iter().filter_map(|element| match element.offset() {
            Offset::Offset(offset) => Some((element.partition(), offset)),
            Offset::Beginning | Offset::End | Offset::Stored | Offset::Invalid | Offset::OffsetTail(_) => None,
        });
        Ok(offsets.collect())
    }

    /// Reads from the lows to the highs.
    fn count(&self, topic: &str, ends: &Ends) -> Result<u64, TransportError> {
        let mut open: BTreeMap<i32, i64> = ends
            .iter()
            .filter(|(_, (low, high))| low < high)
            .map(|(partition, (_, high))| (*partition, *high))
            .collect();
        let mut list = TopicPartitionList::new();
        for (partition, (low, _)) in ends.iter().filter(|(partition, _)| open.contains_key(partition)) {
            list.add_partition_offset(topic, *partition, Offset::Offset(*low))
                .map_err(|error| error::of(self.operation, error))?;
        }
        self.consumer.assign(&list).map_err(|error| error::of(self.operation, error))?;
        drop(list);
        let (mut count, mut moved_at) = (0, Instant::now());
        while !open.is_empty() {
            match self.consumer.poll(TRY) {
                Some(Ok(record)) => {
                    moved_at = Instant::now();
                    if let Some(end) = open.get(&record.partition()).copied() {
                        count += u64::from(record.offset() < end);
                        if record.offset() + 1 >= end {
                            open.remove(&record.partition());
                        }
                    }
                }
                // Behind the last record there may be nothing but markers.
                Some(Err(KafkaError::PartitionEOF(partition))) => drop(open.remove(&partition)),
                Some(Err(_)) | None if moved_at.elapsed() > STALLED => return Err(self.unavailable()),
                Some(Err(_)) | None => {}
            }
        }
        self.consumer.unassign().map_err(|error| error::of(self.operation, error))?;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn age_of(settings: &[(&str, &str)]) -> MaxAge {
        let base = [
            ("cleanup.policy", "delete"),
            ("retention.ms", "604800000"),
            ("segment.ms", "604800000"),
            ("message.timestamp.type", "CreateTime"),
            ("message.timestamp.after.max.ms", "3600000"),
        ];
        let find = |name: &str| {
            let own = settings.iter().chain(&base).find(|(known, _)| *known == name);
            own.map(|(_, value)| (*value).to_owned()).filter(|value| value != "absent")
        };
        age(find, 300_000)
    }

    #[test]
    fn ages() {
        let hour = 3_600_000;
        let most = |millis| MaxAge::AtMost(Duration::from_millis(millis));
        for (settings, expected) in [
            (&[][..], most(14 * 24 * hour + hour + 300_000)),
            (&[("retention.ms", "1000"), ("segment.ms", "2000")], most(hour + 3_000 + 300_000)),
            (&[("message.timestamp.type", "LogAppendTime")], most(14 * 24 * hour + 300_000)),
            (&[("retention.ms", "-1")], MaxAge::Unbounded),
            (&[("cleanup.policy", "compact")], MaxAge::Unbounded),
            (&[("cleanup.policy", "compact,delete")], MaxAge::Unbounded),
            (&[("message.timestamp.after.max.ms", "9223372036854775807")], MaxAge::Unbounded),
            (&[("message.timestamp.after.max.ms", "absent")], MaxAge::Unbounded),
            (&[("retention.ms", "absent")], MaxAge::Unknown),
        ] {
            assert_eq!(age_of(settings), expected, "{settings:?}");
        }
        assert_eq!(older(most(1), most(2)), most(2));
        assert_eq!(older(most(1), MaxAge::Unbounded), MaxAge::Unbounded);
        assert_eq!(older(MaxAge::Unknown, MaxAge::Unbounded), MaxAge::Unknown);
    }
}
