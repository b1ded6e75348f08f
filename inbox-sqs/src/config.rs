//! What a URL or the builder says, checked. No I/O.

use std::{borrow::Cow, time::Duration};

use aws_config::SdkConfig;
use inbox_core::{
    TransportError, TransportErrorKind,
    config::{Secret, TransportUrl},
    envelope::Envelope,
};
use url::{Host, Url};

/// The longest that SQS lets a message be invisible, from its receive on.
pub(crate) const MOST_LEASE: Duration = Duration::from_secs(12 * 3_600);
/// The longest that SQS lets a receive wait.
const MOST_WAIT: Duration = Duration::from_secs(20);

/// Which queue to read or write, how to reach it, and how.
///
/// Made from a URL ([`from_url`](Self::from_url); the keys are listed at the [crate](crate)) or by hand:
/// ```
/// # use std::time::Duration;
/// # use inbox_sqs::SqsConfig;
/// let config = SqsConfig::new("eu-west-1", "payments.fifo")
///     .account("123456789012")
///     .lease(Duration::from_secs(60))
///     .wait(Duration::from_secs(20));
/// ```
/// `Debug` shows no credentials.
#[derive(Clone, Debug)]
pub struct SqsConfig {
    pub(crate) region: String,
    pub(crate) queue: Queue,
    pub(crate) account: Option<String>,
    pub(crate) endpoint: Option<String>,
    pub(crate) login: Option<Login>,
    pub(crate) sdk: Option<Box<SdkConfig>>,
    pub(crate) lease: Duration,
    wait: Option<Duration>,
    pub(crate) polls: usize,
    pub(crate) sns: bool,
    pub(crate) deduplicate: bool,
    pub(crate) names: Names,
    pub(crate) connect_timeout: Duration,
    pub(crate) request_timeout: Duration,
}

/// How the queue is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    /// By its name, to be looked up.
    Name(String),
    /// By its own URL.
    Url { url: String, name: String },
}

/// The names of the attributes that carry what SQS has no field for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Names {
    pub(crate) envelope: Envelope,
    key: Option<String>,
}

impl Names {
    pub(crate) fn key(&self) -> &str {
        self.key.as_deref().unwrap_or("message-key")
    }
}

/// Credentials that were given instead of being looked for.
#[derive(Clone, Debug)]
pub(crate) struct Login {
    pub(crate) access_key: String,
    pub(crate) secret_key: Secret<String>,
    pub(crate) session_token: Option<Secret<String>>,
}

impl SqsConfig {
    /// A queue of the account that the credentials belong to, by its name. A name that ends in `.fifo` is a FIFO queue.
    #[must_use]
    pub fn new(region: impl Into<String>, queue: impl Into<String>) -> Self {
        Self {
            region: region.into(),
            queue: Queue::Name(queue.into()),
            account: None,
            endpoint: None,
            login: None,
            sdk: None,
            lease: Duration::from_secs(30),
            wait: None,
            polls: 8,
            sns: false,
            deduplicate: true,
            names: Names::default(),
            connect_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(10),
        }
    }

    /// Reads a URL: `sqs://region/queue`, `sqs://host:port/queue`, or a queue's own URL,
    /// `https://sqs.region.amazonaws.com/account/queue`, with or without `sqs+` before it.
    ///
    /// # Errors
    /// `InvalidConfig` that names what is wrong and what is accepted, never a value.
    pub fn from_url(text: &str) -> Result<Self, TransportError> {
        let mut url = TransportUrl::parse(text)?;
        let mut config = match url.scheme() {
            "sqs" => named(&url)?,
            "sqs+https" | "sqs+http" | "https" | "http" => full(&url)?,
            other => {
                return Err(invalid(format!(
                    "`{other}:` is not the scheme of an SQS URL: `sqs://region/queue`, or the queue's own `https:` URL"
                )));
            }
        };
        config.login = login(&url)?;
        if let Some(region) = url.take("region") {
            config.region = region;
        }
        if let Some(endpoint) = url.take("endpoint") {
            config.endpoint = Some(endpoint);
        }
        config.account = url.take("account");
        if let Some(lease) = url.take_duration("lease")? {
            config.lease = lease;
        }
        config.wait = url.take_duration("wait")?;
        if let Some(polls) = url.take_parsed("polls", "a number of requests")? {
            config.polls = polls;
        }
        if let Some(sns) = url.take_parsed("sns", "`true` or `false`")? {
            config.sns = sns;
        }
        if let Some(deduplicate) = url.take_parsed("deduplicate", "`true` or `false`")? {
            config.deduplicate = deduplicate;
        }
        if let Some(name) = url.take("id_header") {
            config.names.envelope.id_header = Cow::Owned(name);
        }
        if let Some(name) = url.take("kind_header") {
            config.names.envelope.kind_header = Cow::Owned(name);
        }
        config.names.key = url.take("key_header");
        if let Some(timeout) = url.take_duration("connect_timeout")? {
            config.connect_timeout = timeout;
        }
        if let Some(timeout) = url.take_duration("request_timeout")? {
            config.request_timeout = timeout;
        }
        url.finish()?;
        config.check()?;
        Ok(config)
    }

    /// The account that owns the queue, when it is another one than that of the credentials.
    #[must_use]
    pub fn account(mut self, account: impl Into<String>) -> Self {
        self.account = Some(account.into());
        self
    }

    /// Where the service is: `https://…` for a VPC endpoint, `http://127.0.0.1:4566` for a stand-in such as moto or
    /// LocalStack.
    #[must_use]
    pub fn endpoint(mut self, endpoint: impl Into<String>) -> Self {
        self.endpoint = Some(endpoint.into());
        self
    }

    /// Credentials to use instead of looking for some as every AWS program does.
    #[must_use]
    pub fn credentials(
        mut self,
        access_key: impl Into<String>,
        secret_key: impl Into<String>,
        session_token: Option<String>,
    ) -> Self {
        self.login = Some(Login {
            access_key: access_key.into(),
            secret_key: Secret::new(secret_key.into()),
            session_token: session_token.map(Secret::new),
        });
        self
    }

    /// Everything about the connection that the SDK lets be set: credentials provider, HTTP client, proxy, FIPS. What is
    /// set here by name (region, endpoint, credentials) comes before it.
    #[must_use]
    pub fn sdk(mut self, config: SdkConfig) -> Self {
        self.sdk = Some(Box::new(config));
        self
    }

    /// The visibility timeout: for how long a message that this process holds stays with it without a sign of life; whole
    /// seconds, 2 s to 12 h. 30 s.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How long a receive waits at the service while the queue is empty: whole seconds, at most 20 s and half the lease.
    /// 4 s, or half the lease if that is less. Closing takes as long, since what a receive brings that was under way has to
    /// be given back.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// How many receives are under way at once at most; 8.
    #[must_use]
    pub fn polls(mut self, polls: usize) -> Self {
        self.polls = polls;
        self
    }

    /// Bodies are notifications of SNS without raw delivery: the message in them is taken out.
    #[must_use]
    pub fn sns(mut self, on: bool) -> Self {
        self.sns = on;
        self
    }

    /// Whether the publisher to a FIFO queue lets the service drop a message that was sent within the last 5 minutes; it
    /// does.
    #[must_use]
    pub fn deduplicate(mut self, on: bool) -> Self {
        self.deduplicate = on;
        self
    }

    /// The names of the attributes with id and kind.
    #[must_use]
    pub fn envelope(mut self, envelope: Envelope) -> Self {
        self.names.envelope = envelope;
        self
    }

    /// The name of the attribute with the key; `message-key`.
    #[must_use]
    pub fn key_header(mut self, name: impl Into<String>) -> Self {
        self.names.key = Some(name.into());
        self
    }

    /// How long `connect` waits for the service; 10 s.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long one request may take, a receive's `wait` apart; 10 s.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// The queue's name.
    pub(crate) fn name(&self) -> &str {
        match &self.queue {
            Queue::Name(name) | Queue::Url { name, .. } => name,
        }
    }

    pub(crate) fn is_fifo(&self) -> bool {
        self.name().ends_with(".fifo")
    }

    /// How long a receive waits at the service.
    pub(crate) fn waits(&self) -> Duration {
        self.wait.unwrap_or_else(|| Duration::from_secs((self.lease.as_secs() / 2).min(4)))
    }

    /// Whether the endpoint is reached without encryption. Credentials of a real account are not looked for then.
    pub(crate) fn is_in_the_clear(&self) -> bool {
        self.endpoint.as_deref().is_some_and(|endpoint| endpoint.starts_with("http:"))
    }

    /// Where requests go, for people.
    pub(crate) fn place(&self) -> String {
        match &self.endpoint {
            Some(endpoint) => format!("the endpoint `{endpoint}`"),
            None => format!("SQS in the region `{}`", self.region),
        }
    }

    /// Checks what can be checked without the service.
    pub(crate) fn check(&self) -> Result<(), TransportError> {
        let label = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if self.region.is_empty() || !self.region.chars().all(label) {
            return Err(invalid(format!(
                "`{:.40}` is no region such as `eu-west-1`: `sqs://region/queue`, or the key `region`",
                self.region.escape_debug()
            )));
        }
        let name = self.name();
        let stem = name.strip_suffix(".fifo").unwrap_or(name);
        let legal = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if stem.is_empty() || name.len() > 80 || !stem.chars().all(legal) {
            return Err(invalid(format!(
                "`{:.100}` is no queue: 1 to 80 of letters, digits, `-` and `_`; a FIFO queue's name ends in `.fifo`",
                name.escape_debug()
            )));
        }
        if self.account.as_ref().is_some_and(|account| account.len() != 12 || !is_number(account)) {
            return Err(invalid("`account` is not the 12 digits of an account"));
        }
        self.check_endpoint()?;
        self.check_times()?;
        if self.polls == 0 || self.polls > 100 {
            return Err(invalid("`polls` is 1 to 100"));
        }
        self.check_names()
    }

    fn check_endpoint(&self) -> Result<(), TransportError> {
        let Some(endpoint) = &self.endpoint else { return Ok(()) };
        let good = Url::parse(endpoint).is_ok_and(|url| {
            matches!(url.scheme(), "http" | "https")
                && url.has_host()
                && url.username().is_empty()
                && url.password().is_none()
                && url.query().is_none()
        });
        // Nothing of the text is shown: it may hold a password.
        if good { Ok(()) } else { Err(invalid("`endpoint` is not a URL such as `http://127.0.0.1:4566`")) }
    }

    fn check_times(&self) -> Result<(), TransportError> {
        let whole = |time: Duration| time.subsec_nanos() == 0;
        if !whole(self.lease) || self.lease < Duration::from_secs(2) || self.lease > MOST_LEASE {
            return Err(invalid("`lease` is whole seconds from `2s` to `12h`"));
        }
        // A lease is counted from before the request: one that could run out while the request waits says nothing.
        if !whole(self.waits()) || self.waits() > MOST_WAIT || self.waits() > self.lease / 2 {
            return Err(invalid("`wait` is whole seconds, at most `20s` and at most half of `lease`"));
        }
        if self.connect_timeout.is_zero() || self.request_timeout.is_zero() {
            return Err(invalid("`connect_timeout` and `request_timeout` are more than 0"));
        }
        Ok(())
    }

    fn check_names(&self) -> Result<(), TransportError> {
        let names =
            [self.names.envelope.id_header.as_ref(), self.names.envelope.kind_header.as_ref(), self.names.key()];
        for (at, name) in names.iter().enumerate() {
            if !is_attribute_name(name) {
                return Err(invalid(
                    "`id_header`, `kind_header` and `key_header` are names of attributes: letters, digits, `-`, `_` and \
                     single `.` between them, not beginning with `AWS.` or `Amazon.`",
                ));
            }
            if names[..at].iter().any(|other| other.eq_ignore_ascii_case(name)) {
                return Err(invalid("`id_header`, `kind_header` and `key_header` name one attribute twice"));
            }
        }
        Ok(())
    }
}

/// Whether SQS takes an attribute of this name.
pub(crate) fn is_attribute_name(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    (1..=256).contains(&name.len())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        && !name.starts_with('.')
        && !name.ends_with('.')
        && !name.contains("..")
        && !lower.starts_with("aws.")
        && !lower.starts_with("amazon.")
}

fn is_number(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_digit())
}

/// `sqs://region/queue`, and `sqs://host:port/queue` for a stand-in.
fn named(url: &TransportUrl) -> Result<SqsConfig, TransportError> {
    let authority = url.authority();
    if authority.is_empty() {
        return Err(invalid("the region is missing: `sqs://region/queue`"));
    }
    // No region has a colon or a dot in it.
    if authority.contains([':', '.']) || authority == "localhost" {
        let mut config = SqsConfig::new("us-east-1", url.path());
        config.endpoint = Some(format!("http://{authority}"));
        return Ok(config);
    }
    Ok(SqsConfig::new(authority, url.path()))
}

/// A queue's own URL, as the service tells it: `https://sqs.region.amazonaws.com/account/queue`.
fn full(url: &TransportUrl) -> Result<SqsConfig, TransportError> {
    let scheme = url.scheme().trim_start_matches("sqs+");
    let authority = url.authority();
    let name = match url.path().split('/').collect::<Vec<_>>()[..] {
        [account, name] if is_number(account) && !account.is_empty() => name,
        _ => {
            return Err(invalid("a queue's own URL is `https://sqs.region.amazonaws.com/account/queue`"));
        }
    };
    let endpoint = format!("{scheme}://{authority}");
    let region = region_of(&endpoint).unwrap_or_default();
    let mut config = SqsConfig::new(region, name);
    config.queue = Queue::Url { url: format!("{endpoint}/{}", url.path()), name: name.to_owned() };
    config.endpoint = Some(endpoint);
    Ok(config)
}

/// The region in the host of an endpoint of AWS: `sqs.REGION.…`, `sqs-fips.REGION.…`, `….sqs.REGION.vpce.…`, the old
/// `REGION.queue.…`; a host of this machine has that of a stand-in.
fn region_of(endpoint: &str) -> Option<String> {
    let url = Url::parse(endpoint).ok()?;
    let host = match url.host()? {
        Host::Domain(host) if host != "localhost" => host,
        Host::Domain(_) | Host::Ipv4(_) | Host::Ipv6(_) => return Some("us-east-1".to_owned()),
    };
    let labels: Vec<&str> = host.split('.').collect();
    if let Some(at) = labels.iter().position(|label| *label == "sqs" || *label == "sqs-fips") {
        return labels.get(at + 1).map(|region| (*region).to_owned());
    }
    match labels[..] {
        ["queue", "amazonaws", "com"] => Some("us-east-1".to_owned()),
        [region, "queue", "amazonaws", ..] => Some(region.to_owned()),
        _ => None,
    }
}

fn login(url: &TransportUrl) -> Result<Option<Login>, TransportError> {
    match (url.user(), url.password()) {
        (None, _) => Ok(None),
        (Some(user), Some(password)) if !user.is_empty() && !password.expose().is_empty() => {
            Ok(Some(Login { access_key: user.to_owned(), secret_key: password.clone(), session_token: None }))
        }
        (Some(_), _) => Err(invalid("before the `@` stands an access key id, a `:` and its secret, percent-encoded")),
    }
}

fn invalid(context: impl Into<String>) -> TransportError {
    TransportError::new(TransportErrorKind::InvalidConfig, "configure").context(context)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn refused(url: &str) -> String {
        let error = SqsConfig::from_url(url).expect_err(url);
        assert_eq!(error.kind(), TransportErrorKind::InvalidConfig);
        error.to_string()
    }

    #[test]
    fn a_region_and_a_queue() {
        let config = SqsConfig::from_url(
            "sqs://eu-west-1/payments.fifo?lease=1m&wait=20s&polls=3&account=123456789012&sns=true&deduplicate=false",
        )
        .expect("good");
        assert_eq!((config.region.as_str(), config.name(), config.is_fifo()), ("eu-west-1", "payments.fifo", true));
        assert_eq!((config.lease.as_secs(), config.waits().as_secs(), config.polls), (60, 20, 3));
        assert_eq!(config.account.as_deref(), Some("123456789012"));
        assert!(config.endpoint.is_none() && config.sns && !config.deduplicate && !config.is_in_the_clear());
    }

    #[test]
    fn a_stand_in() {
        let config = SqsConfig::from_url("sqs://127.0.0.1:5000/q?region=eu-west-1").expect("good");
        assert_eq!((config.endpoint.as_deref(), &*config.region), (Some("http://127.0.0.1:5000"), "eu-west-1"));
        assert!(config.is_in_the_clear());
        let config = SqsConfig::from_url("sqs://eu-west-1/q?endpoint=http://localstack:4566").expect("good");
        assert_eq!((config.endpoint.as_deref(), &*config.region), (Some("http://localstack:4566"), "eu-west-1"));
        assert!(
            !SqsConfig::from_url("sqs://eu-west-1/q?endpoint=https://vpce.example").expect("good").is_in_the_clear()
        );
    }

    #[test]
    fn the_queues_own_url() {
        for (host, region) in [
            ("https://sqs.eu-central-1.amazonaws.com", "eu-central-1"),
            ("https://sqs.cn-north-1.amazonaws.com.cn", "cn-north-1"),
            ("https://sqs-fips.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
            ("https://sqs.us-east-2.api.aws", "us-east-2"),
            ("https://vpce-1-a.sqs.us-west-2.vpce.amazonaws.com", "us-west-2"),
            ("https://queue.amazonaws.com", "us-east-1"),
            ("https://eu-west-1.queue.amazonaws.com", "eu-west-1"),
            ("http://127.0.0.1:5000", "us-east-1"),
        ] {
            let config = SqsConfig::from_url(&format!("{host}/123456789012/q?lease=10s")).expect(host);
            assert_eq!((&*config.region, config.endpoint.as_deref()), (region, Some(host)));
            assert_eq!(
                config.queue,
                Queue::Url { url: format!("{host}/123456789012/q"), name: "q".into() },
                "without our own keys"
            );
        }
        let url = "https://sqs.eu-west-1.amazonaws.com/123456789012/q";
        let prefixed = SqsConfig::from_url(&format!("sqs+{url}")).expect("good");
        assert_eq!(prefixed.queue, Queue::Url { url: url.into(), name: "q".into() });
        assert!(refused("https://queue.example/123456789012/q").contains("key `region`"));
        assert!(refused("https://sqs.eu-west-1.amazonaws.com/q").contains("/account/queue"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (url, says) in [
            ("sqs:///q", "region is missing"),
            ("sqs://eu-west-1", "is no queue"),
            ("sqs://eu-west-1/a%20b", "is no queue"),
            ("sqs://eu-west-1/.fifo", "is no queue"),
            ("sqs://EU/q", "is no region"),
            ("kafka://h/q", "is not the scheme"),
            ("sqs://eu-west-1/q?lease=500ms", "`lease` is"),
            ("sqs://eu-west-1/q?lease=1s", "`lease` is"),
            ("sqs://eu-west-1/q?lease=13h", "`lease` is"),
            ("sqs://eu-west-1/q?lease=10s&wait=6s", "`wait` is"),
            ("sqs://eu-west-1/q?wait=21s&lease=1h", "`wait` is"),
            ("sqs://eu-west-1/q?polls=0", "`polls` is"),
            ("sqs://eu-west-1/q?account=1", "`account` is"),
            ("sqs://eu-west-1/q?endpoint=nonsense", "`endpoint` is"),
            ("sqs://eu-west-1/q?endpoint=http://u:hunter2%40h", "`endpoint` is"),
            ("sqs://eu-west-1/q?id_header=AWS.id", "names of attributes"),
            ("sqs://eu-west-1/q?id_header=message-kind", "twice"),
            ("sqs://AKIA@eu-west-1/q", "access key id"),
            ("sqs://eu-west-1/q?group=g", "unknown key `group`"),
        ] {
            let text = refused(url);
            assert!(text.contains(says) && !text.contains("hunter2"), "{url}: {text}");
        }
    }

    #[test]
    fn debug_shows_no_secret() {
        let url = SqsConfig::from_url("sqs://AKIA:hunter%2F2@eu-west-1/q").expect("good");
        let login = url.login.as_ref().expect("a login");
        assert_eq!((login.access_key.as_str(), login.secret_key.expose().as_str()), ("AKIA", "hunter/2"));
        let built = SqsConfig::new("eu-west-1", "q").credentials("AKIA", "hunter/2", Some("hunter/2".into()));
        let shown = format!("{url:?} {built:?}");
        assert!(!shown.contains("hunter"), "{shown}");
    }

    #[test]
    fn a_short_lease_waits_less() {
        let waits = |url| SqsConfig::from_url(url).expect("good").waits().as_secs();
        assert_eq!(waits("sqs://r/q"), 4);
        assert_eq!(waits("sqs://r/q?lease=3s"), 1);
        assert_eq!(waits("sqs://r/q?wait=0s"), 0);
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "(sqs|https)://\\PC{0,60}") {
            drop(SqsConfig::from_url(&text));
        }
    }
}
