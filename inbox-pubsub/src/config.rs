//! What a URL or the builder says, checked. No I/O.

use std::{borrow::Cow, fmt, time::Duration};

use google_cloud_auth::credentials::Credentials;
use inbox_core::{TransportError, TransportErrorKind, config::TransportUrl, envelope::Envelope};

/// What Pub/Sub takes as an acknowledgement deadline.
const LEASE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(600));

/// How to reach a subscription or a topic.
///
/// Made from a URL ([`from_url`](Self::from_url); the keys are listed at the [crate](crate)) or by hand:
/// ```
/// # use std::time::Duration;
/// # use inbox_pubsub::PubsubConfig;
/// let config = PubsubConfig::new("my-project")
///     .subscription("receipts")
///     .topic("payments")
///     .lease(Duration::from_secs(30));
/// ```
/// `Debug` does not show credentials.
#[derive(Clone)]
pub struct PubsubConfig {
    pub(crate) project: String,
    pub(crate) subscription: Option<String>,
    pub(crate) topic: Option<String>,
    pub(crate) endpoint: Option<String>,
    pub(crate) credentials: Option<Credentials>,
    pub(crate) lease: Duration,
    pub(crate) max_lease: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) publish_timeout: Duration,
    pub(crate) envelope: Envelope,
    pub(crate) ordering: Option<bool>,
    pub(crate) exactly_once: Option<bool>,
}

impl PubsubConfig {
    /// A project.
    #[must_use]
    pub fn new(project: impl Into<String>) -> Self {
        Self {
            project: project.into(),
            subscription: None,
            topic: None,
            endpoint: None,
            credentials: None,
            lease: Duration::from_secs(60),
            max_lease: Duration::from_secs(3_600),
            connect_timeout: Duration::from_secs(10),
            publish_timeout: Duration::from_secs(30),
            envelope: Envelope::default(),
            ordering: None,
            exactly_once: None,
        }
    }

    /// Reads a URL: `pubsub://project/subscription?topic=name`.
    ///
    /// # Errors
    /// `InvalidConfig` that names what is wrong and what is accepted, never a value of a key.
    pub fn from_url(url: &str) -> Result<Self, TransportError> {
        let mut url = TransportUrl::parse(url)?;
        if url.scheme() != "pubsub" {
            return Err(invalid(format!("`{}:` is not the scheme of a Pub/Sub URL: `pubsub:`", url.scheme())));
        }
        if url.user().is_some() || url.password().is_some() {
            return Err(invalid(
                "a Pub/Sub URL carries no user and no password: credentials are the application default ones",
            ));
        }
        let mut config = Self::new(url.authority());
        config.subscription = Some(url.path().to_owned()).filter(|path| !path.is_empty());
        config.topic = url.take("topic");
        config.endpoint = url.take("endpoint");
        if let Some(lease) = url.take_duration("lease")? {
            config.lease = lease;
        }
        if let Some(lease) = url.take_duration("max_lease")? {
            config.max_lease = lease;
        }
        if let Some(timeout) = url.take_duration("connect_timeout")? {
            config.connect_timeout = timeout;
        }
        if let Some(timeout) = url.take_duration("publish_timeout")? {
            config.publish_timeout = timeout;
        }
        if let Some(name) = url.take("id_attribute") {
            config.envelope.id_header = Cow::Owned(name);
        }
        if let Some(name) = url.take("kind_attribute") {
            config.envelope.kind_header = Cow::Owned(name);
        }
        config.ordering = url.take_parsed("ordering", "`true` or `false`")?;
        config.exactly_once = url.take_parsed("exactly_once", "`true` or `false`")?;
        url.finish()?;
        config.check()?;
        Ok(config)
    }

    /// The subscription. Consumers need one, publishers do not.
    #[must_use]
    pub fn subscription(mut self, subscription: impl Into<String>) -> Self {
        self.subscription = Some(subscription.into());
        self
    }

    /// The topic, by its name or, in another project, as `projects/PROJECT/topics/NAME`. Publishers need one; for a
    /// consumer it is compared with the subscription's.
    #[must_use]
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.topic = Some(topic.into());
        self
    }

    /// Where the service is: `https://REGION-pubsub.googleapis.com`, or `http://127.0.0.1:PORT` for the emulator, to which
    /// no credentials are ever sent.
    #[must_use]
    pub fn endpoint(mut self, endpoint: impl Into<String>) -> Self {
        self.endpoint = Some(endpoint.into());
        self
    }

    /// Whether an endpoint is set.
    #[must_use]
    pub fn has_endpoint(&self) -> bool {
        self.endpoint.is_some()
    }

    /// Other credentials than the application default ones.
    #[must_use]
    pub fn credentials(mut self, credentials: Credentials) -> Self {
        self.credentials = Some(credentials);
        self
    }

    /// For how long a delivery is leased at a time, 10 s to 10 min: what a dead process held comes again after it; 60 s.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// For how long leases are extended; 1 h.
    #[must_use]
    pub fn max_lease(mut self, lease: Duration) -> Self {
        self.max_lease = lease;
        self
    }

    /// How long `connect` waits for the service; 10 s.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long a publisher tries to have a message stored; 30 s.
    #[must_use]
    pub fn publish_timeout(mut self, timeout: Duration) -> Self {
        self.publish_timeout = timeout;
        self
    }

    /// The names of the attributes with id and kind.
    #[must_use]
    pub fn envelope(mut self, envelope: Envelope) -> Self {
        self.envelope = envelope;
        self
    }

    /// Whether the subscription keeps messages of one ordering key in order: what `provision` makes (`true` unless said
    /// otherwise), and what `connect` insists on if it is said.
    #[must_use]
    pub fn ordering(mut self, on: bool) -> Self {
        self.ordering = Some(on);
        self
    }

    /// Whether the subscription confirms acknowledgements: what `provision` makes (`false` unless said otherwise), and what
    /// `connect` insists on if it is said.
    #[must_use]
    pub fn exactly_once(mut self, on: bool) -> Self {
        self.exactly_once = Some(on);
        self
    }

    /// Checks what can be checked without the service.
    pub(crate) fn check(&self) -> Result<(), TransportError> {
        let legal = |c: char| c.is_ascii_alphanumeric() || "-.:_".contains(c);
        if self.project.is_empty() || !self.project.chars().all(legal) {
            return Err(invalid(format!(
                "`{}` is no project: a Pub/Sub URL is `pubsub://project/subscription?topic=name`",
                self.project.escape_debug()
            )));
        }
        if let Some(subscription) = &self.subscription {
            resource("subscription", subscription)?;
        }
        if let Some(topic) = &self.topic {
            match topic.strip_prefix("projects/").map(|rest| rest.split_once("/topics/")) {
                Some(Some((project, name))) if !project.is_empty() && project.chars().all(legal) => {
                    resource("topic", name)?;
                }
                Some(_) => return Err(invalid("`topic` is neither a name nor `projects/PROJECT/topics/NAME`")),
                None => resource("topic", topic)?,
            }
        }
        if let Some(endpoint) = &self.endpoint {
            let host = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix("https://"));
            if host.is_none_or(|host| host.is_empty() || host.contains(['/', '?', '#', '@', ' '])) {
                return Err(invalid(
                    "`endpoint` is neither `https://HOST` nor, for the emulator, `http://HOST:PORT`, without a path",
                ));
            }
        }
        if !(LEASE.0..=LEASE.1).contains(&self.lease) || self.lease.subsec_nanos() != 0 {
            return Err(invalid(
                "`lease` is not between `10s` and `600s` in whole seconds, which is what Pub/Sub takes",
            ));
        }
        if self.max_lease < self.lease {
            return Err(invalid("`max_lease` is shorter than `lease`"));
        }
        if self.connect_timeout.is_zero() || self.publish_timeout.is_zero() {
            return Err(invalid("`connect_timeout` and `publish_timeout` are more than 0"));
        }
        for (key, name) in [("id_attribute", &self.envelope.id_header), ("kind_attribute", &self.envelope.kind_header)]
        {
            if !crate::convert::is_name(name) {
                return Err(invalid(format!(
                    "`{key}` is no name of an attribute: 1 to 256 bytes, beginning with neither `goog` nor `inbox-`"
                )));
            }
        }
        Ok(())
    }

    /// The subscription's full name.
    pub(crate) fn subscription_path(&self) -> Result<String, TransportError> {
        let name = self.subscription.as_ref().ok_or_else(|| {
            invalid("the subscription is missing: `pubsub://project/subscription`; `inbox::provision(url)` makes one")
        })?;
        Ok(format!("projects/{}/subscriptions/{name}", self.project))
    }

    /// The topic's full name.
    pub(crate) fn topic_path(&self) -> Result<String, TransportError> {
        let topic = self.topic.as_ref().ok_or_else(|| invalid("`topic` is missing: add `topic=…` to the query"))?;
        if topic.starts_with("projects/") {
            return Ok(topic.clone());
        }
        Ok(format!("projects/{}/topics/{topic}", self.project))
    }

    /// The endpoint for people.
    pub(crate) fn shown_endpoint(&self) -> &str {
        self.endpoint.as_deref().unwrap_or("https://pubsub.googleapis.com")
    }

    /// Whether the endpoint is one that gets no credentials: whatever crosses the network in the clear.
    pub(crate) fn is_plain(&self) -> bool {
        self.endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http://"))
    }
}

/// Checks the name of a topic or subscription.
fn resource(what: &str, name: &str) -> Result<(), TransportError> {
    let legal = |c: char| c.is_ascii_alphanumeric() || "-._~+%".contains(c);
    let good = (3..=255).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(legal)
        && !name.starts_with("goog");
    if good {
        return Ok(());
    }
    Err(invalid(format!(
        "`{}` is no {what}: 3 to 255 of letters, digits, `-._~+%`, beginning with a letter and not with `goog`",
        name.escape_debug()
    )))
}

impl fmt::Debug for PubsubConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PubsubConfig")
            .field("project", &self.project)
            .field("subscription", &self.subscription)
            .field("topic", &self.topic)
            .field("endpoint", &self.endpoint)
            .field("credentials", &self.credentials.as_ref().map(|_| "[hidden]"))
            .field("lease", &self.lease)
            .field("max_lease", &self.max_lease)
            .field("connect_timeout", &self.connect_timeout)
            .field("publish_timeout", &self.publish_timeout)
            .field("envelope", &self.envelope)
            .field("ordering", &self.ordering)
            .field("exactly_once", &self.exactly_once)
            .finish()
    }
}

fn invalid(context: impl Into<String>) -> TransportError {
    TransportError::new(TransportErrorKind::InvalidConfig, "parse url").context(context)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn refused(url: &str) -> String {
        let error = PubsubConfig::from_url(url).expect_err(url);
        assert_eq!(error.kind(), TransportErrorKind::InvalidConfig);
        error.to_string()
    }

    #[test]
    fn a_full_url() {
        let config = PubsubConfig::from_url(
            "pubsub://my-project/receipts?topic=payments&endpoint=http://127.0.0.1:8085&lease=20s&max_lease=2h&\
             connect_timeout=3s&publish_timeout=4s&id_attribute=x-id&kind_attribute=x-kind&ordering=true&exactly_once=true",
        )
        .expect("a good URL");
        assert_eq!(config.subscription_path().expect("named"), "projects/my-project/subscriptions/receipts");
        assert_eq!(config.topic_path().expect("named"), "projects/my-project/topics/payments");
        assert!(config.is_plain() && config.has_endpoint());
        assert_eq!((config.lease.as_secs(), config.max_lease.as_secs()), (20, 7_200));
        assert_eq!((config.connect_timeout.as_secs(), config.publish_timeout.as_secs()), (3, 4));
        assert_eq!((&*config.envelope.id_header, &*config.envelope.kind_header), ("x-id", "x-kind"));
        assert_eq!((config.ordering, config.exactly_once), (Some(true), Some(true)));
    }

    #[test]
    fn a_short_url_and_a_topic_elsewhere() {
        let config = PubsubConfig::from_url("pubsub://p/receipts").expect("a good URL");
        assert_eq!((config.lease.as_secs(), config.max_lease.as_secs()), (60, 3_600));
        assert!(!config.is_plain() && config.ordering.is_none());
        assert!(config.topic_path().expect_err("none").to_string().contains("`topic` is missing"));
        let config = PubsubConfig::from_url("pubsub://p?topic=projects/other/topics/payments").expect("a good URL");
        assert_eq!(config.topic_path().expect("named"), "projects/other/topics/payments");
        assert!(config.subscription_path().expect_err("none").to_string().contains("subscription is missing"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (url, names) in [
            ("kafka://p/sub", "`pubsub:`"),
            ("pubsub:///sub", "is no project"),
            ("pubsub://p/a/b", "is no subscription"),
            ("pubsub://p/goog-sub", "is no subscription"),
            ("pubsub://p/sub?topic=a/b", "is no topic"),
            ("pubsub://p/sub?topic=projects/p/topic/x", "`projects/PROJECT/topics/NAME`"),
            ("pubsub://p/sub?endpoint=127.0.0.1:8085", "`endpoint`"),
            ("pubsub://p/sub?endpoint=http://h:1/path", "`endpoint`"),
            ("pubsub://p/sub?lease=9s", "`lease`"),
            ("pubsub://p/sub?lease=601s", "`lease`"),
            ("pubsub://p/sub?lease=20s&max_lease=19s", "`max_lease`"),
            ("pubsub://p/sub?connect_timeout=0s", "`connect_timeout`"),
            ("pubsub://p/sub?ordering=perhaps", "`ordering`"),
            ("pubsub://p/sub?id_attribute=googid", "`id_attribute`"),
            ("pubsub://p/sub?kind_attribute=inbox-0", "`kind_attribute`"),
            ("pubsub://p/sub?group=g", "unknown key `group`"),
            ("pubsub://p/sub?topic=abc&topic=abd", "`topic` stands there twice"),
        ] {
            let text = refused(url);
            assert!(text.contains(names), "{url}: {text}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        for url in [
            "pubsub://me:hunter2@p/sub",
            "pubsub://p/sub?hunter=hunter2",
            "pubsub://p/sub?endpoint=https://me:hunter2@host",
            "pubsub://p/sub?lease=hunter2",
            "pubsub://p/sub?exactly_once=hunter2",
        ] {
            let text = format!("{} {:?}", refused(url), PubsubConfig::from_url(url));
            assert!(!text.contains("hunter2"), "{text}");
        }
        let credentials = google_cloud_auth::credentials::anonymous::Builder::new().build();
        let shown = format!("{:?}", PubsubConfig::new("p").credentials(credentials));
        assert!(shown.contains("[hidden]"), "{shown}");
    }

    proptest! {
        #[test]
        fn any_url_is_read_or_refused(rest in "\\PC{0,80}") {
            drop(PubsubConfig::from_url(&format!("pubsub://{rest}")));
        }
    }
}
