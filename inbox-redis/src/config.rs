//! What a URL or the builder says, checked. No I/O.

use std::time::Duration;

use inbox_core::{
    TransportError, TransportErrorKind,
    config::{Secret, TransportUrl},
    envelope::Envelope,
};

use crate::convert::TIME;

/// The shortest lease: it is extended at a third of it.
const LEAST_LEASE: Duration = Duration::from_secs(1);

/// How to reach a server, which stream to read or write, and how.
///
/// Made from a URL ([`from_url`](Self::from_url); the keys are listed at the [crate](crate)) or by hand:
/// ```
/// # use inbox_redis::RedisConfig;
/// let config = RedisConfig::new("redis-1:6380").tls(true).login("app", "password").stream("payments").group("receipts");
/// ```
/// `Debug` does not show the password.
#[derive(Clone, Debug)]
pub struct RedisConfig {
    address: String,
    pub(crate) tls: bool,
    pub(crate) ca: Option<String>,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Secret<String>>,
    pub(crate) database: i64,
    stream: Option<String>,
    group: Option<String>,
    pub(crate) lease: Duration,
    wait: Duration,
    pub(crate) delete: bool,
    pub(crate) connect_timeout: Duration,
    pub(crate) request_timeout: Duration,
    pub(crate) names: Names,
}

/// The fields of an entry that are no headers.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    pub(crate) envelope: Envelope,
    pub(crate) key: String,
    pub(crate) body: String,
}

impl Names {
    /// Whether a field of this name is none of the message's headers.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.all().contains(&name)
    }

    fn all(&self) -> [&str; 5] {
        [&self.envelope.id_header, &self.envelope.kind_header, &self.key, &self.body, TIME]
    }
}

impl Default for Names {
    fn default() -> Self {
        Self { envelope: Envelope::default(), key: "message-key".to_owned(), body: "body".to_owned() }
    }
}

impl RedisConfig {
    /// A server, `host` or `host:port`.
    #[must_use]
    pub fn new(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            tls: false,
            ca: None,
            user: None,
            password: None,
            database: 0,
            stream: None,
            group: None,
            lease: Duration::from_secs(30),
            wait: Duration::from_secs(1),
            delete: false,
            connect_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(10),
            names: Names::default(),
        }
    }

    /// Reads a URL: `redis://[[user]:password@]host[:port][/database]?stream=name&group=name`.
    ///
    /// # Errors
    /// `InvalidConfig` that names what is wrong and what is accepted, never a value.
    pub fn from_url(text: &str) -> Result<Self, TransportError> {
        let mut url = TransportUrl::parse(text)?;
        let tls = match url.scheme() {
            "redis" => false,
            "rediss" => true,
            other => {
                return Err(invalid(format!(
                    "`{other}:` is not the scheme of a Redis URL: `redis:`, or `rediss:` with TLS"
                )));
            }
        };
        let mut config = Self::new(url.authority()).tls(tls);
        config.user = url.user().filter(|user| !user.is_empty()).map(str::to_owned);
        config.password = url.password().cloned();
        if !url.path().is_empty() {
            config.database = url.path().parse().map_err(|_| {
                invalid("the path of a Redis URL is the number of a database; the stream is `stream=…`")
            })?;
        }
        config.stream = url.take("stream");
        config.group = url.take("group");
        config.ca = url.take("ca");
        if let Some(delete) = url.take_parsed("delete", "`true` or `false`")? {
            config.delete = delete;
        }
        for (key, field) in [
            ("lease", &mut config.lease),
            ("wait", &mut config.wait),
            ("connect_timeout", &mut config.connect_timeout),
            ("request_timeout", &mut config.request_timeout),
        ] {
            if let Some(time) = url.take_duration(key)? {
                *field = time;
            }
        }
        if let Some(name) = url.take("id_header") {
            config.names.envelope.id_header = name.into();
        }
        if let Some(name) = url.take("kind_header") {
            config.names.envelope.kind_header = name.into();
        }
        for (key, field) in [("key_header", &mut config.names.key), ("body_field", &mut config.names.body)] {
            if let Some(name) = url.take(key) {
                *field = name;
            }
        }
        url.finish()?;
        config.check()?;
        Ok(config)
    }

    /// Encrypts the connection and checks the server's certificate and host name.
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

    /// The user and its password.
    #[must_use]
    pub fn login(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self.password = Some(Secret::new(password.into()));
        self
    }

    /// The password of the user `default`, as `requirepass` sets it.
    #[must_use]
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(Secret::new(password.into()));
        self
    }

    /// The number of the database; 0.
    #[must_use]
    pub fn database(mut self, number: i64) -> Self {
        self.database = number;
        self
    }

    /// The key of the stream.
    #[must_use]
    pub fn stream(mut self, key: impl Into<String>) -> Self {
        self.stream = Some(key.into());
        self
    }

    /// The consumer group, which is made on first use and reads the stream from its start.
    #[must_use]
    pub fn group(mut self, name: impl Into<String>) -> Self {
        self.group = Some(name.into());
        self
    }

    /// How long the messages of a dead process wait; 30 s.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How long a read waits at the server while there is nothing, half a lease at most; 1 s.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Whether what is acked is deleted from the stream: for a stream of one group only.
    #[must_use]
    pub fn delete(mut self, on: bool) -> Self {
        self.delete = on;
        self
    }

    /// How long `connect` waits for a server; 10 s.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long a request may take; 10 s.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// The names of the fields with id and kind.
    #[must_use]
    pub fn envelope(mut self, envelope: Envelope) -> Self {
        self.names.envelope = envelope;
        self
    }

    /// The name of the field with the ordering key.
    #[must_use]
    pub fn key_header(mut self, name: impl Into<String>) -> Self {
        self.names.key = name.into();
        self
    }

    /// The name of the field with the body.
    #[must_use]
    pub fn body_field(mut self, name: impl Into<String>) -> Self {
        self.names.body = name.into();
        self
    }

    /// Checks what can be checked without a server.
    pub(crate) fn check(&self) -> Result<(), TransportError> {
        self.host_and_port()?;
        if self.user.is_some() && self.password.is_none() {
            return Err(invalid("the URL names a user and no password"));
        }
        if self.database < 0 {
            return Err(invalid("a database is a number from 0 on"));
        }
        if [&self.stream, &self.group].into_iter().flatten().any(String::is_empty) {
            return Err(invalid("`stream` and `group` are names of at least one character"));
        }
        if self.ca.is_some() && !self.tls {
            return Err(invalid("`ca` needs TLS: `rediss:`"));
        }
        if self.lease < LEAST_LEASE {
            return Err(invalid("`lease` is at least `1s`"));
        }
        if self.wait < Duration::from_millis(1) {
            return Err(invalid("`wait` is at least `1ms`: a server takes 0 for ever"));
        }
        if self.connect_timeout.is_zero() || self.request_timeout.is_zero() {
            return Err(invalid("`connect_timeout` and `request_timeout` are more than 0"));
        }
        let mut names = self.names.all();
        names.sort_unstable();
        if names.windows(2).any(|two| two[0] == two[1]) {
            return Err(invalid(format!(
                "`id_header`, `kind_header`, `key_header` and `body_field` are four names, and none is `{TIME}`"
            )));
        }
        Ok(())
    }

    /// `host`, `host:port`, `[::1]` or `[::1]:port`.
    pub(crate) fn host_and_port(&self) -> Result<(&str, u16), TransportError> {
        let wrong = || invalid("a host is missing or wrong: one server, `redis://host:6379?stream=name&group=name`");
        let (host, port) = match self.address.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or_else(wrong)?;
                (host, port.strip_prefix(':'))
            }
            None => self.address.split_once(':').map_or((&*self.address, None), |(host, port)| (host, Some(port))),
        };
        let port = port.map_or(Ok(6379), str::parse).map_err(|_| wrong())?;
        if host.is_empty() || host.contains(',') || port == 0 {
            return Err(wrong());
        }
        Ok((host, port))
    }

    pub(crate) fn required_stream(&self) -> Result<&str, TransportError> {
        self.stream.as_deref().ok_or_else(|| invalid("`stream` is missing: its key; add `stream=…` to the query"))
    }

    pub(crate) fn required_group(&self) -> Result<&str, TransportError> {
        self.group
            .as_deref()
            .ok_or_else(|| invalid("`group` is missing: the consumer group; add `group=…` to the query"))
    }

    pub(crate) fn group_if_any(&self) -> Option<&str> {
        self.group.as_deref()
    }

    /// How long a read waits at the server.
    pub(crate) fn waits(&self) -> Duration {
        self.wait.min(self.lease / 2)
    }

    /// Where the server is, for people.
    pub(crate) fn address(&self) -> String {
        self.host_and_port().map_or_else(|_| self.address.clone(), |(host, port)| format!("{host}:{port}"))
    }
}

fn invalid(context: impl Into<String>) -> TransportError {
    TransportError::new(TransportErrorKind::InvalidConfig, "parse url").context(context)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(url: &str) -> RedisConfig {
        RedisConfig::from_url(url).expect("a good URL")
    }

    fn refused(url: &str) -> String {
        let error = RedisConfig::from_url(url).expect_err("a bad URL");
        assert_eq!(error.kind(), TransportErrorKind::InvalidConfig);
        error.to_string()
    }

    #[test]
    fn a_url_is_taken_apart() {
        let config = parsed(
            "rediss://me:p%40ss@redis.example:6380/3?stream=pay%2Fments&group=receipts&lease=10s&wait=9s&delete=true&ca=f.pem",
        );
        assert_eq!(config.host_and_port().unwrap(), ("redis.example", 6380));
        assert_eq!(
            (config.user.as_deref(), config.password.as_ref().map(|p| p.expose().as_str())),
            (Some("me"), Some("p@ss"))
        );
        assert_eq!((config.required_stream().unwrap(), config.required_group().unwrap()), ("pay/ments", "receipts"));
        assert!(config.tls && config.delete && config.database == 3);
        assert_eq!(config.waits(), Duration::from_secs(5), "half the lease at most");
        let plain = parsed("redis://[::1]?stream=s");
        assert_eq!((plain.host_and_port().unwrap(), plain.tls), (("::1", 6379), false));
        assert!(plain.required_group().is_err(), "a publisher needs none");
        let password = parsed("redis://:secret@h?stream=s");
        assert_eq!((password.user, password.password.map(|p| p.expose().clone())), (None, Some("secret".to_owned())));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (url, words) in [
            ("redis://h?stream=s&gruop=g", "`gruop`"),
            ("redis://h/payments?group=g", "`stream=…`"),
            ("redis://?stream=s", "host"),
            ("redis://a,b?stream=s", "one server"),
            ("redis://h:0?stream=s", "host"),
            ("redis://h?stream=", "`stream`"),
            ("redis://me@h?stream=s", "no password"),
            ("redis://h?stream=s&lease=10", "`lease`"),
            ("redis://h?stream=s&lease=10ms", "`lease`"),
            ("redis://h?stream=s&wait=0s", "`wait`"),
            ("redis://h?stream=s&ca=x", "`rediss:`"),
            ("redis://h/-1?stream=s", "from 0 on"),
            ("redis://h?stream=s&key_header=body", "four names"),
            ("kafka://h?stream=s", "`redis:`"),
        ] {
            let text = refused(url);
            assert!(text.contains(words), "{url}: {text}");
        }
    }

    #[test]
    fn no_secret_is_shown() {
        let config = parsed("redis://me:hunter2@h?stream=s&group=g");
        assert!(!format!("{config:?}").contains("hunter2"), "{config:?}");
        for url in ["redis://me:hunter2@h/x?stream=s", "redis://me:hunter2@h?hunter=2", "redis://me:hunter2@,?stream=s"]
        {
            assert!(!refused(url).contains("hunter2"), "{}", refused(url));
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "(redis:)?\\PC{0,60}") {
            drop(RedisConfig::from_url(&text));
        }
    }
}
