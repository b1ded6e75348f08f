//! What a URL or the builder says, checked. No I/O.

use std::{borrow::Cow, collections::BTreeMap, time::Duration};

use inbox_core::{
    TransportError, TransportErrorKind,
    config::{Secret, TransportUrl},
    envelope::Envelope,
};
use rdkafka::{ClientConfig, config::RDKafkaLogLevel};

/// How to reach a cluster, which topics to read or write, and how.
///
/// Made from a URL ([`from_url`](Self::from_url); the keys are listed at the [crate](crate)) or by hand:
/// ```
/// # use inbox_kafka::{KafkaConfig, Sasl};
/// let config = KafkaConfig::new("kafka-1:9093,kafka-2:9093", "payments")
///     .group("receipts")
///     .sasl(Sasl::ScramSha512, "user", "password")
///     .tls(true)
///     .property("client.rack", "eu-west-1a");
/// ```
/// `Debug` shows neither the password nor the values of properties.
#[derive(Clone, Debug)]
pub struct KafkaConfig {
    pub(crate) hosts: String,
    pub(crate) topics: Vec<String>,
    pub(crate) group: Option<String>,
    login: Option<Login>,
    tls: bool,
    ca: Option<String>,
    pub(crate) start: Start,
    isolation: Isolation,
    pub(crate) connect_timeout: Duration,
    session_timeout: Option<Duration>,
    pub(crate) revoke_timeout: Duration,
    pub(crate) instance: Option<String>,
    pub(crate) envelope: Envelope,
    pub(crate) prefetch: usize,
    pub(crate) prefetch_bytes: usize,
    pub(crate) partitions: i32,
    pub(crate) replication: Option<i32>,
    properties: BTreeMap<String, Secret<String>>,
}

#[derive(Clone, Debug)]
struct Login {
    mechanism: Sasl,
    user: String,
    password: Secret<String>,
}

/// How the client says who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sasl {
    /// User and password as they are: over TLS only, or the network sees them.
    Plain,
    /// Challenge and response with SHA-256.
    ScramSha256,
    /// Challenge and response with SHA-512.
    ScramSha512,
}

impl Sasl {
    fn mechanism(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}

/// Where a group starts in a partition for which it has committed nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// At the oldest message.
    #[default]
    Earliest,
    /// Behind the newest message. **Loses** what is published before the group's first commit: see the crate's page.
    Latest,
}

/// Which records of transactional producers are handed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// Those of committed transactions only.
    #[default]
    ReadCommitted,
    /// All, also those of transactions that are aborted later.
    ReadUncommitted,
}

/// Properties of librdkafka that the adapter sets itself, and why.
const OWNED: [(&str, &str); 21] = [
    ("bootstrap.servers", "the hosts stand in the URL"),
    ("metadata.broker.list", "the hosts stand in the URL"),
    ("group.id", "the key `group` sets it"),
    ("group.instance.id", "the key `instance` sets it"),
    ("session.timeout.ms", "the key `session_timeout` sets it"),
    ("auto.offset.reset", "the key `start` sets it"),
    ("isolation.level", "the key `isolation` sets it"),
    ("ssl.ca.location", "the key `ca` sets it"),
    ("enable.auto.commit", "stored offsets are committed in the background, and only acked messages are stored"),
    ("auto.commit.enable", "stored offsets are committed in the background, and only acked messages are stored"),
    ("enable.auto.offset.store", "an offset is stored once everything below it is acked, or messages are lost"),
    ("offset.store.method", "offsets belong to the broker, or a takeover by another process loses its place"),
    ("partition.assignment.strategy", "cooperative-sticky keeps the sessions of partitions that stay"),
    ("group.protocol", "sessions follow the classic protocol's rebalance"),
    ("group.remote.assignor", "sessions follow the classic protocol's rebalance"),
    ("enable.partition.eof", "the end of a partition is how the lag behind transaction markers reaches 0"),
    ("enable.idempotence", "a publisher neither doubles nor reorders on retry"),
    ("acks", "a confirmed message is on all replicas in sync"),
    ("request.required.acks", "a confirmed message is on all replicas in sync"),
    ("statistics.interval.ms", "the adapter reads them to know when the group was left"),
    ("transactional.id", "the publisher does not write transactions"),
];

/// Properties that the login and TLS keys set, when these are used.
const SECURITY: [&str; 5] =
    ["security.protocol", "sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password"];

impl KafkaConfig {
    /// Brokers (`host:port`, several separated by commas) and a topic.
    #[must_use]
    pub fn new(hosts: impl Into<String>, topic: impl Into<String>) -> Self {
        Self {
            hosts: hosts.into(),
            topics: vec![topic.into()],
            group: None,
            login: None,
            tls: false,
            ca: None,
            start: Start::default(),
            isolation: Isolation::default(),
            connect_timeout: Duration::from_secs(10),
            session_timeout: None,
            revoke_timeout: Duration::from_secs(5),
            instance: None,
            envelope: Envelope::default(),
            prefetch: 1_000,
            prefetch_bytes: 16 << 20,
            partitions: 8,
            replication: None,
            properties: BTreeMap::new(),
        }
    }

    /// Reads a URL: `kafka://[user:password@]host:port[,host:port…]/topic[,topic…]?group=name`.
    ///
    /// # Errors
    /// `InvalidConfig` that names what is wrong and what is accepted, never a value.
    pub fn from_url(url: &str) -> Result<Self, TransportError> {
        let mut url = TransportUrl::parse(url)?;
        let tls_scheme = match url.scheme() {
            "kafka" => false,
            "kafka+tls" => true,
            other => {
                return Err(invalid(format!("`{other}:` is not the scheme of a Kafka URL: `kafka:` or `kafka+tls:`")));
            }
        };
        let mut config = Self::new(url.authority(), "");
        config.topics = url.path().split(',').map(str::to_owned).collect();
        config.group = url.take("group");
        config.tls = url.take_parsed("tls", "`true` or `false`")?.unwrap_or(tls_scheme);
        if tls_scheme && !config.tls {
            return Err(invalid("`kafka+tls:` and `tls=false` contradict each other"));
        }
        config.ca = url.take("ca");
        config.login = login(&mut url)?;
        config.take_reading(&mut url)?;
        if let Some(header) = url.take("id_header") {
            config.envelope.id_header = Cow::Owned(header);
        }
        if let Some(header) = url.take("kind_header") {
            config.envelope.kind_header = Cow::Owned(header);
        }
        if let Some(timeout) = url.take_duration("connect_timeout")? {
            config.connect_timeout = timeout;
        }
        if let Some(partitions) = url.take_parsed("partitions", "a number of partitions")? {
            config.partitions = partitions;
        }
        config.replication = url.take_parsed("replication", "a number of replicas")?;
        config.properties = url.take_prefixed("kafka.").into_iter().collect();
        url.finish()?;
        config.check()?;
        Ok(config)
    }

    fn take_reading(&mut self, url: &mut TransportUrl) -> Result<(), TransportError> {
        self.start = match url.take("start").as_deref() {
            None | Some("earliest") => Start::Earliest,
            Some("latest") => Start::Latest,
            Some(_) => return Err(invalid("`start` is neither `earliest` nor `latest`")),
        };
        self.isolation = match url.take("isolation").as_deref() {
            None | Some("read_committed") => Isolation::ReadCommitted,
            Some("read_uncommitted") => Isolation::ReadUncommitted,
            Some(_) => return Err(invalid("`isolation` is neither `read_committed` nor `read_uncommitted`")),
        };
        self.instance = url.take("instance");
        self.session_timeout = url.take_duration("session_timeout")?;
        if let Some(timeout) = url.take_duration("revoke_timeout")? {
            self.revoke_timeout = timeout;
        }
        if let Some(messages) = url.take_parsed("prefetch", "a number of messages")? {
            self.prefetch = messages;
        }
        if let Some(bytes) = url.take_parsed("prefetch_bytes", "a number of bytes")? {
            self.prefetch_bytes = bytes;
        }
        Ok(())
    }

    /// Replaces the topics. A publisher takes exactly one.
    #[must_use]
    pub fn topics<T: Into<String>>(mut self, topics: impl IntoIterator<Item = T>) -> Self {
        self.topics = topics.into_iter().map(Into::into).collect();
        self
    }

    /// The consumer group. Consumers need one, publishers do not.
    #[must_use]
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// Logs in.
    #[must_use]
    pub fn sasl(mut self, mechanism: Sasl, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.login = Some(Login { mechanism, user: user.into(), password: Secret::new(password.into()) });
        self
    }

    /// Encrypts the connection and checks the broker's certificate and host name.
    #[must_use]
    pub fn tls(mut self, on: bool) -> Self {
        self.tls = on;
        self
    }

    /// A PEM file with the certificate authorities to trust instead of the system's.
    #[must_use]
    pub fn ca(mut self, file: impl Into<String>) -> Self {
        self.ca = Some(file.into());
        self
    }

    /// Where a group without a commit starts.
    #[must_use]
    pub fn start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// Which records of transactional producers are handed over.
    #[must_use]
    pub fn isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = isolation;
        self
    }

    /// How long `connect` waits for a broker; 10 s.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// After how long without a sign of life the broker gives a dead process's partitions to others; 45 s.
    #[must_use]
    pub fn session_timeout(mut self, timeout: Duration) -> Self {
        self.session_timeout = Some(timeout);
        self
    }

    /// How long a partition that goes to another process waits for what is in flight of it; 5 s.
    #[must_use]
    pub fn revoke_timeout(mut self, timeout: Duration) -> Self {
        self.revoke_timeout = timeout;
        self
    }

    /// Static membership: a name that only this process has, kept over restarts, so that a restart within the session
    /// timeout moves no partition. A process that stops for good then leaves its partitions idle for that long.
    #[must_use]
    pub fn instance(mut self, instance: impl Into<String>) -> Self {
        self.instance = Some(instance.into());
        self
    }

    /// The names of the headers with id and kind.
    #[must_use]
    pub fn envelope(mut self, envelope: Envelope) -> Self {
        self.envelope = envelope;
        self
    }

    /// How much is kept ready before `receive` asks for it; 1,000 messages and 16 MiB.
    #[must_use]
    pub fn prefetch(mut self, messages: usize, bytes: usize) -> Self {
        self.prefetch = messages;
        self.prefetch_bytes = bytes;
        self
    }

    /// What `provision` creates; 8 partitions, and as many replicas as the cluster's default says.
    #[must_use]
    pub fn partitions(mut self, partitions: i32, replication: Option<i32>) -> Self {
        self.partitions = partitions;
        self.replication = replication;
        self
    }

    /// Sets a property of librdkafka, except those that the adapter sets itself.
    #[must_use]
    pub fn property(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.properties.insert(name.into(), Secret::new(value.into()));
        self
    }

    /// Checks what can be checked without a broker.
    pub(crate) fn check(&self) -> Result<(), TransportError> {
        if self.hosts.split(',').any(str::is_empty) {
            return Err(invalid("a host is missing: `kafka://host:9092[,host:9092]/topic`"));
        }
        for topic in &self.topics {
            let legal = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            if topic.is_empty() || topic.len() > 249 || !topic.chars().all(legal) {
                return Err(invalid(format!(
                    "`{}` is no topic: 1 to 249 of letters, digits, `.`, `_` and `-`; several are separated by commas",
                    topic.escape_debug()
                )));
            }
        }
        if self.topics.iter().enumerate().any(|(at, topic)| self.topics[..at].contains(topic)) {
            return Err(invalid("a topic stands there twice"));
        }
        if self.topics.is_empty() {
            return Err(invalid("a topic is missing"));
        }
        if self.group.as_deref() == Some("") {
            return Err(invalid("`group` is empty"));
        }
        if self.prefetch == 0 || self.prefetch_bytes == 0 {
            return Err(invalid("`prefetch` and `prefetch_bytes` are at least 1"));
        }
        if self.partitions < 1 || self.replication.is_some_and(|replicas| replicas < 1) {
            return Err(invalid("`partitions` and `replication` are at least 1"));
        }
        self.check_properties()
    }

    fn check_properties(&self) -> Result<(), TransportError> {
        for name in self.properties.keys() {
            if let Some((_, why)) = OWNED.iter().find(|(owned, _)| owned == name) {
                return Err(invalid(format!("the property `{name}` cannot be set: {why}")));
            }
            if SECURITY.contains(&name.as_str()) && (self.login.is_some() || self.tls) {
                return Err(invalid(format!(
                    "the property `{name}` cannot be set beside `sasl` or `tls`, which set it too"
                )));
            }
        }
        // A thread that waits in a revoke does not poll.
        let poll = self.properties.get("max.poll.interval.ms").and_then(|value| value.expose().parse().ok());
        let poll = poll.map_or(Duration::from_secs(300), Duration::from_millis);
        if poll < Duration::from_secs(1) || self.revoke_timeout >= poll {
            return Err(invalid(
                "`max.poll.interval.ms` is at least 1000 and more than `revoke_timeout`, or the group drops this member",
            ));
        }
        Ok(())
    }

    /// The group, which consumers need.
    pub(crate) fn required_group(&self) -> Result<&str, TransportError> {
        self.group.as_deref().ok_or_else(|| {
            invalid("`group` is missing: the consumer group that shares the topic; add `group=…` to the query")
        })
    }

    /// What every client is configured with.
    fn client(&self) -> ClientConfig {
        let mut client = ClientConfig::new();
        // Which lines are wanted is decided where tracing decides.
        client.set_log_level(RDKafkaLogLevel::Debug);
        client.set("bootstrap.servers", &self.hosts);
        client.set("client.id", "inbox-kafka");
        for (name, value) in &self.properties {
            client.set(name, value.expose());
        }
        let protocol = match (&self.login, self.tls) {
            (Some(_), true) => Some("sasl_ssl"),
            (Some(_), false) => Some("sasl_plaintext"),
            (None, true) => Some("ssl"),
            (None, false) => None,
        };
        if let Some(protocol) = protocol {
            client.set("security.protocol", protocol);
        }
        if let Some(login) = &self.login {
            client.set("sasl.mechanism", login.mechanism.mechanism());
            client.set("sasl.username", &login.user);
            client.set("sasl.password", login.password.expose());
        }
        if let Some(ca) = &self.ca {
            client.set("ssl.ca.location", ca);
        }
        client
    }

    /// The client of a member of the group.
    pub(crate) fn consumer(&self) -> Result<ClientConfig, TransportError> {
        let mut client = self.client();
        client.set("group.id", self.required_group()?);
        client.set("enable.auto.commit", "true");
        client.set("enable.auto.offset.store", "false");
        client.set("enable.partition.eof", "true");
        client.set("partition.assignment.strategy", "cooperative-sticky");
        client.set("statistics.interval.ms", "500");
        client.set(
            "auto.offset.reset",
            match self.start {
                Start::Earliest => "earliest",
                Start::Latest => "latest",
            },
        );
        self.set_isolation(&mut client);
        self.set_session_timeout(&mut client);
        if let Some(instance) = &self.instance {
            client.set("group.instance.id", instance);
        }
        self.set_default(&mut client, &["auto.commit.interval.ms"], "1000");
        // librdkafka's own queue lies in front of our buffer and is dropped by every pause: keep it short.
        self.set_default(&mut client, &["queued.max.messages.kbytes"], "16384");
        self.set_default(&mut client, &["queued.min.messages"], "10000");
        self.set_default(&mut client, &["fetch.max.bytes"], "16777216");
        // A full queue is looked at again soon: the default of a second starves a fast consumer.
        self.set_default(&mut client, &["fetch.queue.backoff.ms"], "20");
        Ok(client)
    }

    /// A client that asks the cluster or reads partitions by itself. It belongs to no group and commits nothing.
    pub(crate) fn inspector(&self) -> ClientConfig {
        let mut client = self.client();
        // librdkafka assigns nothing without a group; nothing is ever committed to this one.
        client.set("group.id", self.group.as_deref().unwrap_or("inbox-kafka-inspector"));
        client.set("enable.auto.commit", "false");
        client.set("enable.partition.eof", "true");
        client.set("auto.offset.reset", "earliest");
        self.set_isolation(&mut client);
        self.set_session_timeout(&mut client);
        client
    }

    /// The client of a publisher.
    pub(crate) fn producer(&self) -> ClientConfig {
        let mut client = self.client();
        client.set("enable.idempotence", "true");
        client.set("acks", "all");
        self.set_default(&mut client, &["linger.ms", "queue.buffering.max.ms"], "5");
        self.set_default(&mut client, &["partitioner"], "murmur2_random");
        self.set_default(&mut client, &["message.timeout.ms", "delivery.timeout.ms"], "30000");
        client
    }

    fn set_session_timeout(&self, client: &mut ClientConfig) {
        if let Some(timeout) = self.session_timeout {
            client.set("session.timeout.ms", timeout.as_millis().to_string());
        }
    }

    fn set_isolation(&self, client: &mut ClientConfig) {
        client.set(
            "isolation.level",
            match self.isolation {
                Isolation::ReadCommitted => "read_committed",
                Isolation::ReadUncommitted => "read_uncommitted",
            },
        );
    }

    /// Sets the first of `names` unless one of them, which all mean the same, was set by the user.
    fn set_default(&self, client: &mut ClientConfig, names: &[&str], value: &str) {
        if let ([first, ..], false) = (names, names.iter().any(|name| self.properties.contains_key(*name))) {
            client.set(*first, value);
        }
    }
}

fn login(url: &mut TransportUrl) -> Result<Option<Login>, TransportError> {
    let mechanism = match url.take("sasl").as_deref() {
        None => None,
        Some("plain") => Some(Sasl::Plain),
        Some("scram-sha-256") => Some(Sasl::ScramSha256),
        Some("scram-sha-512") => Some(Sasl::ScramSha512),
        Some(_) => return Err(invalid("`sasl` is none of `plain`, `scram-sha-256` and `scram-sha-512`")),
    };
    match (mechanism, url.user(), url.password()) {
        (None, None, _) => Ok(None),
        (Some(mechanism), Some(user), Some(password)) => {
            Ok(Some(Login { mechanism, user: user.to_owned(), password: password.clone() }))
        }
        (None, Some(_), _) => {
            Err(invalid("the URL has a user, and `sasl` is missing: `plain`, `scram-sha-256` or `scram-sha-512`"))
        }
        (Some(_), ..) => Err(invalid("`sasl` needs `user:password@` in front of the hosts")),
    }
}

fn invalid(context: impl Into<String>) -> TransportError {
    TransportError::new(TransportErrorKind::InvalidConfig, "configure kafka").context(context)
}

#[cfg(test)]
mod tests {
    use inbox_core::report;
    use proptest::prelude::*;

    use super::*;

    fn refused(url: &str) -> String {
        let error = KafkaConfig::from_url(url).expect_err(url);
        assert_eq!(error.kind(), TransportErrorKind::InvalidConfig, "{url}");
        report(&error)
    }

    #[test]
    fn a_full_url() {
        let config = KafkaConfig::from_url(
            "kafka+tls://me:p%40ss@a:9092,b:9093/x,y?group=g&sasl=scram-sha-512&ca=/ca.pem&start=latest&isolation=read_uncommitted\
             &connect_timeout=3s&session_timeout=10s&revoke_timeout=2s&instance=pod-0&id_header=x-id&kind_header=x-kind\
             &prefetch=10&prefetch_bytes=4096&partitions=3&replication=2&kafka.client.id=me&kafka.fetch.wait.max.ms=50",
        )
        .expect("a good URL");
        assert_eq!((config.hosts.as_str(), config.topics.join(" ")), ("a:9092,b:9093", "x y".to_owned()));
        assert_eq!((config.partitions, config.replication, config.prefetch), (3, Some(2), 10));
        let client = config.consumer().expect("has a group");
        for (name, value) in [
            ("bootstrap.servers", "a:9092,b:9093"),
            ("group.id", "g"),
            ("group.instance.id", "pod-0"),
            ("security.protocol", "sasl_ssl"),
            ("sasl.mechanism", "SCRAM-SHA-512"),
            ("sasl.username", "me"),
            ("sasl.password", "p@ss"),
            ("ssl.ca.location", "/ca.pem"),
            ("session.timeout.ms", "10000"),
            ("auto.offset.reset", "latest"),
            ("isolation.level", "read_uncommitted"),
            ("client.id", "me"),
            ("fetch.wait.max.ms", "50"),
            ("enable.auto.offset.store", "false"),
        ] {
            assert_eq!(client.get(name), Some(value), "{name}");
        }
        client.create_native_config().expect("librdkafka takes it");
    }

    #[test]
    fn defaults_are_taken_by_librdkafka_and_give_way() {
        let config = KafkaConfig::new("h:1", "t").group("g");
        config.consumer().expect("a consumer").create_native_config().expect("librdkafka takes it");
        config.producer().create_native_config().expect("librdkafka takes it");
        config.inspector().create_native_config().expect("librdkafka takes it");
        assert_eq!(config.producer().get("linger.ms"), Some("5"));
        let other = config.property("queue.buffering.max.ms", "50").property("partitioner", "consistent_random");
        other.check().expect("allowed");
        assert_eq!(other.producer().get("linger.ms"), None, "an alias counts");
        assert_eq!(other.producer().get("partitioner"), Some("consistent_random"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (url, expected) in [
            ("rabbit://h/t", "`kafka:` or `kafka+tls:`"),
            ("kafka:///t?group=g", "a host is missing"),
            ("kafka://h:1?group=g", "is no topic"),
            ("kafka://h:1/a,,b?group=g", "is no topic"),
            ("kafka://h:1/a,a?group=g", "twice"),
            ("kafka://h:1/^a.*?group=g", "is no topic"),
            ("kafka://h:1/t?group=", "`group` is empty"),
            ("kafka://h:1/t?gruop=g", "`gruop`"),
            ("kafka://h:1/t?group=g&group=h", "twice"),
            ("kafka://h:1/t?start=now", "`start`"),
            ("kafka://h:1/t?isolation=none", "`isolation`"),
            ("kafka://h:1/t?tls=yes", "`tls`"),
            ("kafka+tls://h:1/t?tls=false", "contradict"),
            ("kafka://u:p@h:1/t", "`sasl` is missing"),
            ("kafka://h:1/t?sasl=plain", "needs `user:password@`"),
            ("kafka://u:p@h:1/t?sasl=gssapi", "`scram-sha-256`"),
            ("kafka://h:1/t?connect_timeout=10", "`connect_timeout` is not a duration"),
            ("kafka://h:1/t?kafka.enable.auto.commit=false", "`enable.auto.commit` cannot be set: stored offsets"),
            ("kafka://h:1/t?kafka.group.id=x", "the key `group` sets it"),
            ("kafka://h:1/t?kafka.partition.assignment.strategy=range", "cooperative-sticky"),
            ("kafka://u:p@h:1/t?sasl=plain&kafka.sasl.password=x", "beside `sasl` or `tls`"),
            ("kafka://h:1/t?kafka.max.poll.interval.ms=4000", "`max.poll.interval.ms`"),
            ("kafka://h:1/t?prefetch=0", "at least 1"),
            ("kafka://h:1/t?partitions=0", "at least 1"),
        ] {
            let text = refused(url);
            assert!(text.contains(expected), "{url}: {text}");
        }
        let none = KafkaConfig::from_url("kafka://h:1/t").expect("a publisher needs no group");
        assert!(none.consumer().expect_err("a consumer does").to_string().contains("`group` is missing"));
    }

    #[test]
    fn secrets_are_not_shown() {
        let config = KafkaConfig::from_url(
            "kafka://me:hunter2@h:1/t?group=g&sasl=plain&kafka.ssl.key.password=hunter2&kafka.ssl.keystore.password=hunter2",
        )
        .expect("a good URL");
        let shown = format!("{config:?} {config:#?} {:?}", config.consumer());
        assert!(!shown.contains("hunter2"), "{shown}");
        for url in [
            "kafka://me:hunter2@h:1/t?sasl=plain&hunter=hunter2",
            "kafka://me:hunter2@h:1/t?sasl=plain&kafka.sasl.password=hunter2",
            "kafka://me:hunter2@h:1/t?connect_timeout=hunter2",
            "kafka://me:hunter2@h:1/t?start=hunter2",
        ] {
            let text = format!("{} {:?}", refused(url), KafkaConfig::from_url(url));
            assert!(!text.contains("hunter2"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_url_is_read_or_refused(rest in "\\PC{0,80}") {
            drop(KafkaConfig::from_url(&format!("kafka://{rest}")));
        }
    }
}
