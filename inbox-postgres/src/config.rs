//! What a store is made from: a URL or the user's pool, and a few settings. No I/O but in [`PgConfig::connect`].

use std::{collections::HashSet, fmt, str::FromStr, time::Duration};

use inbox_core::{StoreError, StoreErrorKind};
use sqlx::{PgPool, postgres::PgConnectOptions};
use url::Url;

use crate::{pooler::Settings, store::PgInboxStore};

/// The settings of a [`PgInboxStore`].
///
/// ```no_run
/// # async fn f() -> Result<(), inbox_core::StoreError> {
/// use inbox_postgres::PgConfig;
///
/// let store = PgConfig::url("postgres://app@db/orders")?.connections(10).migrate_on_start(true).connect().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a configuration does nothing until `connect` or `open`"]
pub struct PgConfig {
    pub(crate) options: PgConnectOptions,
    /// What the URL sets for each session.
    pub(crate) settings: Settings,
    pub(crate) transaction_pooler: bool,
    pub(crate) connections: u32,
    pub(crate) connect_timeout: Duration,
    pub(crate) migrate_on_start: bool,
    pub(crate) weak_durability: bool,
}

/// The keys in the query of a URL; `options[…]` comes beside them.
const KEYS: [&str; 21] = [
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "statement-cache-capacity",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "options",
    "channel_binding",
    "connect_timeout",
    "pooler",
];
/// Those of them that sqlx does not read, though every provider's console writes them.
const IGNORED: [&str; 1] = ["channel_binding"];

impl PgConfig {
    /// Takes `postgres://user:password@host:port/database?key=value&…`, with libpq's keys. What the URL leaves out comes
    /// from libpq's variables (`PGPASSWORD`, …) and `~/.pgpass`, as everywhere in sqlx. One key is the store's own:
    /// `pooler=transaction`, see [`transaction_pooler`](Self::transaction_pooler).
    ///
    /// # Errors
    /// `InvalidConfig` when it is no such URL, or has a key that is not read.
    pub fn url(url: &str) -> Result<Self, StoreError> {
        let parsed = Url::parse(url).map_err(|source| invalid("not a URL").source(source))?;
        if !matches!(parsed.scheme(), "postgres" | "postgresql") {
            return Err(invalid(format!("the scheme is `{}`; accepted: `postgres`, `postgresql`", parsed.scheme())));
        }
        // The rest of a password that was not encoded would be taken for a database or a key, and be shown.
        let behind = url.split_once("://").and_then(|(_, rest)| rest.find(['/', '?', '#']).map(|at| &rest[at..]));
        if behind.is_some_and(|behind| behind.contains('@')) {
            return Err(invalid(
                "an `@` stands behind the host; percent-encode `/`, `?`, `#` and `@` in user and password",
            ));
        }
        let mut keys = HashSet::new();
        if let Some((key, _)) = parsed.query_pairs().find(|(key, _)| !keys.insert(key.clone().into_owned())) {
            return Err(invalid(format!("`{key}` stands there twice")));
        }
        let unknown = |key: &str| !KEYS.contains(&key) && !key.starts_with("options[");
        if let Some((key, _)) = parsed.query_pairs().find(|(key, _)| unknown(key)) {
            return Err(invalid(format!("unknown key `{key}` in the URL; accepted: {}", KEYS.join(", "))));
        }
        let (read, ours) = without_ours(parsed)?;
        let options = PgConnectOptions::from_str(read.as_str())
            .map_err(|source| invalid("a value in the URL cannot be read").source(source))?;
        let mut config = Self::new(options);
        config.connect_timeout = ours.connect_timeout.unwrap_or(config.connect_timeout);
        config.settings = ours.settings;
        Ok(config.transaction_pooler(ours.transaction_pooler))
    }

    /// Copies the connect options of `pool`. The pool itself is never used: the store has connections of its own.
    pub fn pool(pool: &PgPool) -> Self {
        Self::new(pool.connect_options().as_ref().clone())
    }

    fn new(options: PgConnectOptions) -> Self {
        Self {
            options,
            settings: Settings::new(),
            transaction_pooler: false,
            connections: 6,
            connect_timeout: Duration::from_secs(10),
            migrate_on_start: false,
            weak_durability: false,
        }
    }

    /// How many connections the store may have open: 6 if not said. An inbox needs one for each of its lanes and two
    /// more.
    pub fn connections(mut self, connections: u32) -> Self {
        self.connections = connections;
        self
    }

    /// How long to wait for a connection: 10 s if not said.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Whether registering a consumer, which an inbox does when it starts, makes or updates the tables first. Without
    /// it, that is an error that says so.
    pub fn migrate_on_start(mut self, migrate: bool) -> Self {
        self.migrate_on_start = migrate;
        self
    }

    /// Whether a pooler in transaction mode, as PgBouncer's, stands in front of the server; `pooler=transaction` in the
    /// URL. Without it, one that is there is refused. What it costs, and what else to set up, stands in
    /// [`Behind pgbouncer`](crate#behind-pgbouncer). It works without a pooler too, at the same cost.
    pub fn transaction_pooler(mut self, pooler: bool) -> Self {
        self.transaction_pooler = pooler;
        self
    }

    /// Leaves `synchronous_commit` as the role or a handler sets it. With it off, a crash of the database can lose
    /// effects and claims of messages that the broker has been told to forget.
    pub fn weak_durability(mut self) -> Self {
        self.weak_durability = true;
        self
    }

    /// Connects once, to fail early.
    ///
    /// # Errors
    /// `Unavailable` when the server cannot be reached in time, `Unauthorized` when it refuses the credentials,
    /// `InvalidConfig` when the database does not exist or a setting cannot work.
    pub async fn connect(self) -> Result<PgInboxStore, StoreError> {
        let store = self.open()?;
        store.connect_once().await?;
        Ok(store)
    }

    /// Makes the store without connecting.
    ///
    /// # Errors
    /// `InvalidConfig` when a setting cannot work.
    pub fn open(self) -> Result<PgInboxStore, StoreError> {
        if self.connections == 0 {
            return Err(invalid("`connections(0)`: a store needs at least one connection"));
        }
        if self.connect_timeout.is_zero() {
            return Err(invalid("`connect_timeout` is zero"));
        }
        if self.transaction_pooler && self.options.get_options().is_some() {
            return Err(invalid(
                "a pooler in transaction mode does not pass on `options` of a URL, a pool or PGOPTIONS; set them for the \
                 role (`ALTER ROLE … SET …`), or write each as `options[name]=value` in the URL: then every transaction \
                 of the store sets it",
            ));
        }
        Ok(PgInboxStore::from_config(self))
    }
}

/// What a URL says that sqlx does not read.
#[derive(Default)]
struct Ours {
    connect_timeout: Option<Duration>,
    settings: Settings,
    transaction_pooler: bool,
}

/// Takes out of a URL what sqlx would warn about, values and all.
fn without_ours(mut url: Url) -> Result<(Url, Ours), StoreError> {
    let pairs: Vec<(String, String)> = url.query_pairs().into_owned().collect();
    let mut ours = Ours::default();
    url.set_query(None);
    for (key, value) in pairs {
        match key.as_str() {
            "connect_timeout" => {
                let seconds = value.parse().map_err(|_| invalid("`connect_timeout` is not a number of seconds"))?;
                ours.connect_timeout = Some(Duration::from_secs(seconds));
            }
            "pooler" if value == "transaction" => ours.transaction_pooler = true,
            "pooler" => return Err(invalid("`pooler` of the URL is unknown; accepted: `transaction`")),
            key if IGNORED.contains(&key) => {}
            key => match key.strip_prefix("options[").map(|name| name.strip_suffix(']')) {
                Some(Some(name)) if is_setting(name, &value) => ours.settings.push((name.to_owned(), value)),
                Some(_) => return Err(invalid("`options[…]` of the URL is not `options[name]=value`")),
                None => drop(url.query_pairs_mut().append_pair(key, &value)),
            },
        }
    }
    Ok((url, ours))
}

/// Whether it can be a setting's name and value at all.
fn is_setting(name: &str, value: &str) -> bool {
    let plain = |c: char| c.is_alphanumeric() || "_.$".contains(c);
    !name.is_empty() && name.chars().all(plain) && !value.contains('\0')
}

fn invalid(context: impl Into<String>) -> StoreError {
    StoreError::new(StoreErrorKind::InvalidConfig, "connect").context(context)
}

impl fmt::Debug for PgConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgConfig")
            .field("server", &server(&self.options))
            .field("database", &self.options.get_database().unwrap_or_default())
            .field("user", &self.options.get_username())
            .field("transaction_pooler", &self.transaction_pooler)
            .field("connections", &self.connections)
            .field("connect_timeout", &self.connect_timeout)
            .field("migrate_on_start", &self.migrate_on_start)
            .field("weak_durability", &self.weak_durability)
            .finish_non_exhaustive()
    }
}

/// `host:port`, or the path of the socket.
pub(crate) fn server(options: &PgConnectOptions) -> String {
    match options.get_socket() {
        Some(path) => format!("{}:{}", path.display(), options.get_port()),
        None => format!("{}:{}", options.get_host(), options.get_port()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str) -> String {
        let error = PgConfig::url(url).expect_err("refused");
        assert_eq!(error.kind(), StoreErrorKind::InvalidConfig);
        inbox_core::report(&error)
    }

    #[test]
    fn a_url_is_read_and_its_password_is_not_shown() {
        let config = PgConfig::url(
            "postgres://me:hunter2@db:5433/orders?connect_timeout=3&sslmode=disable&channel_binding=prefer",
        )
        .expect("a good URL")
        .connections(9);
        assert_eq!((config.options.get_port(), config.connect_timeout), (5433, Duration::from_secs(3)));
        let shown = format!("{config:?}");
        assert!(shown.contains("db:5433") && shown.contains("orders") && !shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn what_is_wrong_is_named_and_secrets_are_not() {
        let unknown = refused("postgres://me:hunter2@db/orders?passwrod=hunter2");
        assert!(unknown.contains("`passwrod`") && unknown.contains("sslmode"), "{unknown}");
        for url in [
            "mysql://me:hunter2@db/orders",
            "hunter2",
            "postgres://me:hunter2@db:hunter2/orders",
            "postgres://me:hunter2@db/o?connect_timeout=hunter2",
            "postgres://me:hunter2@db/o?pooler=hunter2",
            "postgres://me:hunter2@db/o?options[]=hunter2",
            "postgres://me:hunter2@db/o?options[a%20b]=hunter2",
            "postgres://me:hunter2@db/o?options[a]=hunter2%00",
            "postgres://me:hunter2@db/o?options[a=hunter2",
        ] {
            assert!(!refused(url).contains("hunter2"), "{url}");
        }
        assert!(PgConfig::url("postgres://db/o").expect("good").connections(0).open().is_err());
    }

    #[test]
    fn a_pooler_is_named_in_the_url_and_gets_no_options() {
        let config = PgConfig::url("postgres://me:hunter2@db/o?pooler=transaction&options[search_path]=hunter2,b")
            .expect("a good URL");
        assert!(config.transaction_pooler);
        assert_eq!(config.settings, [("search_path".to_owned(), "hunter2,b".to_owned())]);
        assert_eq!(config.options.get_options(), None);
        let shown = format!("{config:?}");
        assert!(shown.contains("transaction_pooler: true") && !shown.contains("hunter2"), "{shown}");
        config.open().expect("a store");
        let options = PgConfig::url("postgres://me:hunter2@db/o?pooler=transaction&options=-c%20a=hunter2");
        let error = options.expect("a good URL").open().expect_err("refused");
        assert_eq!(error.kind(), StoreErrorKind::InvalidConfig);
        let text = inbox_core::report(&error);
        assert!(text.contains("ALTER ROLE") && !text.contains("hunter2"), "{text}");
        assert!(!PgConfig::url("postgres://db/o").expect("good").transaction_pooler);
    }
}
