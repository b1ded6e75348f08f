//! What a URL or the builder says, checked. No I/O.

use std::time::Duration;

use inbox_core::{
    TransportError, TransportErrorKind,
    config::{Secret, TransportUrl, duration},
    envelope::Envelope,
};

/// The longest name that AMQP can carry, in bytes.
pub(crate) const MOST_NAME: usize = 255;

/// How to reach a broker, which queue to read, where to publish, and how.
///
/// Made from a URL ([`from_url`](Self::from_url); the keys are listed at the [crate](crate)) or by hand:
/// ```
/// # use inbox_rabbitmq::{QueueType, RabbitMqConfig};
/// let config = RabbitMqConfig::new("rabbit-1:5671,rabbit-2:5671")
///     .tls(true)
///     .login("app", "password")
///     .vhost("shop")
///     .queue("receipts")
///     .queue_type(QueueType::Quorum);
/// ```
/// `Debug` does not show the password.
#[derive(Clone, Debug)]
pub struct RabbitMqConfig {
    hosts: String,
    pub(crate) tls: bool,
    pub(crate) ca: Option<String>,
    pub(crate) user: String,
    pub(crate) password: Secret<String>,
    pub(crate) vhost: String,
    pub(crate) queue: Option<String>,
    pub(crate) queue_type: QueueType,
    pub(crate) exchange: Option<String>,
    pub(crate) exchange_type: ExchangeType,
    routing_key: Option<String>,
    pub(crate) prefetch: u16,
    pub(crate) consumer_timeout: Option<Duration>,
    pub(crate) heartbeat: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) publish_timeout: Duration,
    pub(crate) names: Names,
}

/// The headers that carry what AMQP has no property for, or what does not fit it.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    pub(crate) envelope: Envelope,
    pub(crate) key: String,
}

/// What [`provision`](crate::provision) makes of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueType {
    /// Durable, on one node.
    #[default]
    Classic,
    /// Replicated over the nodes of a cluster.
    Quorum,
}

/// What [`provision`](crate::provision) makes of an exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExchangeType {
    /// Every bound queue gets every message.
    Fanout,
    /// By the routing key as it is.
    Direct,
    /// By patterns of the routing key.
    #[default]
    Topic,
    /// By headers.
    Headers,
}

impl RabbitMqConfig {
    /// A broker, `host` or `host:port`; several, separated by commas, are the nodes of one cluster.
    #[must_use]
    pub fn new(hosts: impl Into<String>) -> Self {
        Self {
            hosts: hosts.into(),
            tls: false,
            ca: None,
            user: "guest".to_owned(),
            password: Secret::new("guest".to_owned()),
            vhost: "/".to_owned(),
            queue: None,
            queue_type: QueueType::default(),
            exchange: None,
            exchange_type: ExchangeType::default(),
            routing_key: None,
            prefetch: u16::MAX,
            consumer_timeout: Some(Duration::from_secs(30 * 60)),
            heartbeat: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(10),
            publish_timeout: Duration::from_secs(30),
            names: Names { envelope: Envelope::default(), key: "message-key".to_owned() },
        }
    }

    /// Reads a URL: `rabbitmq://[user:password@]host[:port][,host[:port]…][/vhost]?queue=name`.
    ///
    /// # Errors
    /// `InvalidConfig` that names what is wrong and what is accepted, never a value.
    pub fn from_url(text: &str) -> Result<Self, TransportError> {
        let mut url = TransportUrl::parse(text)?;
        let tls = match url.scheme() {
            "rabbitmq" | "amqp" => false,
            "amqps" => true,
            other => {
                return Err(invalid(format!(
                    "`{other}:` is not the scheme of a RabbitMQ URL: `rabbitmq:`, `amqp:`, or `amqps:` with TLS"
                )));
            }
        };
        if path_of(text).contains('/') {
            return Err(invalid(
                "the path of a RabbitMQ URL is the virtual host alone; the queue is named by `queue=…`, and a `/` in a \
                 virtual host is written `%2f`",
            ));
        }
        let mut config = Self::new(url.authority()).tls(tls);
        if let Some(user) = url.user() {
            let password = url.password().ok_or_else(|| invalid("the URL names a user and no password"))?;
            config = config.login(user, password.expose());
        }
        if !url.path().is_empty() {
            url.path().clone_into(&mut config.vhost);
        }
        config.queue = url.take("queue");
        config.exchange = url.take("exchange");
        config.routing_key = url.take("routing_key");
        config.ca = url.take("ca");
        config.take_rest(&mut url)?;
        url.finish()?;
        config.check()?;
        Ok(config)
    }

    fn take_rest(&mut self, url: &mut TransportUrl) -> Result<(), TransportError> {
        if let Some(text) = url.take("consumer_timeout") {
            self.consumer_timeout = match text.as_str() {
                "none" => None,
                text => Some(duration(text).ok_or_else(|| {
                    invalid("`consumer_timeout` is neither `none` nor a duration such as `500ms`, `30s`, `5m` or `2h`")
                })?),
            };
        }
        for (key, field) in [
            ("connect_timeout", &mut self.connect_timeout),
            ("publish_timeout", &mut self.publish_timeout),
            ("heartbeat", &mut self.heartbeat),
        ] {
            if let Some(time) = url.take_duration(key)? {
                *field = time;
            }
        }
        if let Some(prefetch) = url.take_parsed("prefetch", "a number of messages, 1 to 65535")? {
            self.prefetch = prefetch;
        }
        self.queue_type = match url.take("queue_type").as_deref() {
            None | Some("classic") => QueueType::Classic,
            Some("quorum") => QueueType::Quorum,
            Some(_) => return Err(invalid("`queue_type` is neither `classic` nor `quorum`")),
        };
        self.exchange_type = match url.take("exchange_type").as_deref() {
            None | Some("topic") => ExchangeType::Topic,
            Some("fanout") => ExchangeType::Fanout,
            Some("direct") => ExchangeType::Direct,
            Some("headers") => ExchangeType::Headers,
            Some(_) => return Err(invalid("`exchange_type` is none of `topic`, `fanout`, `direct` and `headers`")),
        };
        if let Some(header) = url.take("id_header") {
            self.names.envelope.id_header = header.into();
        }
        if let Some(header) = url.take("kind_header") {
            self.names.envelope.kind_header = header.into();
        }
        if let Some(header) = url.take("key_header") {
            self.names.key = header;
        }
        Ok(())
    }

    /// Encrypts the connection and checks the broker's certificate and host name.
    #[must_use]
    pub fn tls(mut self, on: bool) -> Self {
        self.tls = on;
        self
    }

    /// A PEM file with certificate authorities to trust besides the system's.
    #[must_use]
    pub fn ca(mut self, file: impl Into<String>) -> Self {
        self.ca = Some(file.into());
        self
    }

    /// The user; `guest` with the password `guest`, whom a broker lets in from its own machine only.
    #[must_use]
    pub fn login(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.user = user.into();
        self.password = Secret::new(password.into());
        self
    }

    /// The virtual host; `/`.
    #[must_use]
    pub fn vhost(mut self, vhost: impl Into<String>) -> Self {
        self.vhost = vhost.into();
        self
    }

    /// The queue to read, and to publish to when there is no exchange.
    #[must_use]
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queue = Some(queue.into());
        self
    }

    /// What `provision` makes of the queue.
    #[must_use]
    pub fn queue_type(mut self, queue_type: QueueType) -> Self {
        self.queue_type = queue_type;
        self
    }

    /// The exchange to publish to, and to bind the queue to in `provision`.
    #[must_use]
    pub fn exchange(mut self, exchange: impl Into<String>) -> Self {
        self.exchange = Some(exchange.into());
        self
    }

    /// What `provision` makes of the exchange.
    #[must_use]
    pub fn exchange_type(mut self, exchange_type: ExchangeType) -> Self {
        self.exchange_type = exchange_type;
        self
    }

    /// With what every message is published to the exchange and, in `provision`, the queue bound to it.
    #[must_use]
    pub fn routing_key(mut self, key: impl Into<String>) -> Self {
        self.routing_key = Some(key.into());
        self
    }

    /// How many messages the broker hands out at most before the first of them is settled. It never hands out more than an
    /// inbox has `in_flight`, and without this setting just as many.
    #[must_use]
    pub fn prefetch(mut self, messages: u16) -> Self {
        self.prefetch = messages;
        self
    }

    /// The broker's own `consumer_timeout`, which nobody can ask it for; 30 minutes, as every broker has it by default.
    /// `None` where it is off.
    #[must_use]
    pub fn consumer_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.consumer_timeout = timeout;
        self
    }

    /// After twice this silence a connection is broken; 10 s.
    #[must_use]
    pub fn heartbeat(mut self, every: Duration) -> Self {
        self.heartbeat = every;
        self
    }

    /// How long `connect` waits for a broker, and each later attempt too; 10 s.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long a publisher waits for a confirmation; 30 s.
    #[must_use]
    pub fn publish_timeout(mut self, timeout: Duration) -> Self {
        self.publish_timeout = timeout;
        self
    }

    /// The names of the headers with id and kind, where the properties `message_id` and `type` do not have them.
    #[must_use]
    pub fn envelope(mut self, envelope: Envelope) -> Self {
        self.names.envelope = envelope;
        self
    }

    /// The name of the header with the ordering key.
    #[must_use]
    pub fn key_header(mut self, name: impl Into<String>) -> Self {
        self.names.key = name.into();
        self
    }

    /// Checks what can be checked without a broker.
    pub(crate) fn check(&self) -> Result<(), TransportError> {
        self.addresses()?;
        let names = [
            ("queue", self.queue.as_deref()),
            ("exchange", self.exchange.as_deref()),
            ("id_header", Some(&*self.names.envelope.id_header)),
            ("kind_header", Some(&*self.names.envelope.kind_header)),
            ("key_header", Some(&*self.names.key)),
        ];
        for (key, name) in names {
            if name.is_some_and(|name| name.is_empty() || name.len() > MOST_NAME) {
                return Err(invalid(format!("`{key}` is a name of 1 to {MOST_NAME} bytes")));
            }
        }
        if self.routing_key.as_ref().is_some_and(|key| key.len() > MOST_NAME) || self.vhost.len() > MOST_NAME {
            return Err(invalid(format!("`routing_key` and the virtual host have at most {MOST_NAME} bytes")));
        }
        if self.prefetch == 0 {
            return Err(invalid("`prefetch` is at least 1: without a bound the broker sends the whole queue at once"));
        }
        if self.heartbeat_seconds() == 0 {
            return Err(invalid("`heartbeat` is from 1 s to 65535 s"));
        }
        if self.connect_timeout.is_zero() || self.publish_timeout.is_zero() {
            return Err(invalid("`connect_timeout` and `publish_timeout` are more than 0"));
        }
        if self.consumer_timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Err(invalid("`consumer_timeout` is more than 0; a broker without one is said by `none`"));
        }
        Ok(())
    }

    /// The nodes, each with its port.
    pub(crate) fn addresses(&self) -> Result<Vec<(String, u16)>, TransportError> {
        let default = if self.tls { 5671 } else { 5672 };
        self.hosts.split(',').map(|host| address(host, default)).collect()
    }

    /// In whole seconds, as AMQP has it; 0 when it does not fit.
    pub(crate) fn heartbeat_seconds(&self) -> u16 {
        u16::try_from(self.heartbeat.as_secs()).unwrap_or(0)
    }

    /// The queue, which consumers need.
    pub(crate) fn required_queue(&self) -> Result<&str, TransportError> {
        self.queue
            .as_deref()
            .ok_or_else(|| invalid("`queue` is missing: the queue to read; add `queue=…` to the query"))
    }

    /// Where a publisher writes: the exchange, which is empty for the default one, and the routing key.
    pub(crate) fn target(&self) -> Result<(&str, &str), TransportError> {
        match (&self.exchange, &self.queue) {
            (Some(exchange), _) => Ok((exchange, self.routing_key.as_deref().unwrap_or_default())),
            (None, Some(_)) if self.routing_key.is_some() => {
                Err(invalid("`routing_key` needs an `exchange`: without one, messages go to the queue by its name"))
            }
            (None, Some(queue)) => Ok(("", queue)),
            (None, None) => Err(invalid("a publisher needs a `queue`, or an `exchange` and its `routing_key`")),
        }
    }
}

/// The path of a URL as it was written, without its first slash.
fn path_of(url: &str) -> &str {
    let hierarchy = url.split_once("//").map_or("", |(_, rest)| rest);
    let before_query = hierarchy.split_once('?').map_or(hierarchy, |(before, _)| before);
    before_query.split_once('/').map_or("", |(_, path)| path)
}

/// `host`, `host:port`, `[::1]` or `[::1]:port`.
fn address(text: &str, default: u16) -> Result<(String, u16), TransportError> {
    let wrong = || invalid("a host is missing or wrong: `rabbitmq://host:5672[,host:5672]/vhost?queue=name`");
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or_else(wrong)?;
            (host, port.strip_prefix(':'))
        }
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let port = port.map_or(Ok(default), str::parse).map_err(|_| wrong())?;
    if host.is_empty() || port == 0 {
        return Err(wrong());
    }
    Ok((host.to_owned(), port))
}

fn invalid(context: impl Into<String>) -> TransportError {
    TransportError::new(TransportErrorKind::InvalidConfig, "parse url").context(context)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(url: &str) -> RabbitMqConfig {
        RabbitMqConfig::from_url(url).expect("a good URL")
    }

    fn refused(url: &str) -> String {
        RabbitMqConfig::from_url(url).expect_err("a bad URL").to_string()
    }

    #[test]
    fn a_whole_url() {
        let config = parsed(
            "amqps://me:p%40ss@a:1,[::1]:2,b/sh%2Fop?queue=q&exchange=e&routing_key=r.k&prefetch=7&consumer_timeout=5m\
             &heartbeat=30s&connect_timeout=2s&publish_timeout=3s&queue_type=quorum&exchange_type=fanout&ca=f.pem\
             &id_header=i&kind_header=k&key_header=y",
        );
        let nodes = config.addresses().expect("hosts");
        assert_eq!(nodes, [("a".to_owned(), 1), ("::1".to_owned(), 2), ("b".to_owned(), 5671)]);
        assert_eq!((config.user.as_str(), config.password.expose().as_str()), ("me", "p@ss"));
        assert_eq!((config.vhost.as_str(), config.required_queue().expect("a queue")), ("sh/op", "q"));
        assert_eq!(config.target().expect("a target"), ("e", "r.k"));
        assert_eq!((config.prefetch, config.consumer_timeout), (7, Some(Duration::from_secs(300))));
        assert_eq!((config.heartbeat_seconds(), config.connect_timeout), (30, Duration::from_secs(2)));
        assert_eq!((config.queue_type, config.exchange_type), (QueueType::Quorum, ExchangeType::Fanout));
        assert_eq!((config.names.key.as_str(), &*config.names.envelope.id_header), ("y", "i"));
        assert!(config.tls && config.ca.as_deref() == Some("f.pem"));
    }

    #[test]
    fn the_default_virtual_host_in_all_its_spellings() {
        for url in ["rabbitmq://h?queue=q", "rabbitmq://h/?queue=q", "rabbitmq://h/%2f?queue=q", "amqp://h/%2F?queue=q"]
        {
            let config = parsed(url);
            assert_eq!(
                (config.vhost.as_str(), config.addresses().expect("a host")),
                ("/", vec![("h".to_owned(), 5672)])
            );
            assert_eq!(config.target().expect("a target"), ("", "q"));
        }
        assert_eq!(parsed("rabbitmq://h?consumer_timeout=none").consumer_timeout, None);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (url, expected) in [
            ("rabbit://h?queue=q", "is not the scheme"),
            ("rabbitmq://?queue=q", "host is missing"),
            ("rabbitmq://h:x?queue=q", "host is missing or wrong"),
            ("rabbitmq://h:0?queue=q", "host is missing or wrong"),
            ("rabbitmq://h,?queue=q", "host is missing or wrong"),
            ("rabbitmq://h/v/q", "named by `queue=…`"),
            ("rabbitmq://me@h?queue=q", "no password"),
            ("rabbitmq://h?queue=", "`queue` is a name"),
            ("rabbitmq://h?queue=q&queu=1", "unknown key `queu`"),
            ("rabbitmq://h?queue=q&queue=r", "twice"),
            ("rabbitmq://h?queue=q&prefetch=0", "at least 1"),
            ("rabbitmq://h?queue=q&prefetch=65536", "1 to 65535"),
            ("rabbitmq://h?queue=q&queue_type=stream", "neither `classic` nor `quorum`"),
            ("rabbitmq://h?queue=q&exchange_type=x", "none of"),
            ("rabbitmq://h?queue=q&heartbeat=500ms", "`heartbeat` is from 1 s"),
            ("rabbitmq://h?queue=q&consumer_timeout=soon", "neither `none` nor a duration"),
            ("rabbitmq://h?queue=q&consumer_timeout=0s", "`consumer_timeout` is more than 0"),
            ("rabbitmq://h?queue=q&connect_timeout=0s", "more than 0"),
        ] {
            let text = refused(url);
            assert!(text.contains(expected), "{url}: {text}");
        }
        let accepted = refused("rabbitmq://h?nonsense=1");
        assert!(accepted.contains("`queue`, `exchange`, `routing_key`, `ca`, `consumer_timeout`"), "{accepted}");
        let nothing = parsed("rabbitmq://h").target().expect_err("nowhere to publish").to_string();
        assert!(nothing.contains("needs a `queue`"), "{nothing}");
        let useless = parsed("rabbitmq://h?queue=q&routing_key=k").target().expect_err("no exchange").to_string();
        assert!(useless.contains("`routing_key` needs an `exchange`"), "{useless}");
        let none = parsed("rabbitmq://h?exchange=e").required_queue().expect_err("no queue").to_string();
        assert!(none.contains("`queue` is missing"), "{none}");
    }

    #[test]
    fn secrets_are_not_shown() {
        let config = parsed("rabbitmq://me:hunter2@h?queue=q");
        let shown = format!("{config:?} {config:#?}");
        assert!(!shown.contains("hunter2"), "{shown}");
        for url in [
            "rabbitmq://me:hunter2@h?queue=q&hunter=hunter2",
            "rabbitmq://me:hunter2@h?prefetch=hunter2",
            "rabbitmq://me:hunter2@h/a/b?queue=hunter2",
            "rabbitmq://me:hunter2@h:hunter2?queue=q",
        ] {
            let text = format!("{} {:?}", refused(url), RabbitMqConfig::from_url(url));
            assert!(!text.contains("hunter2"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_url_is_read_or_refused(rest in "\\PC{0,80}") {
            drop(RabbitMqConfig::from_url(&format!("rabbitmq://{rest}")));
        }
    }
}
