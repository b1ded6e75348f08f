//! What a store is made from: a URL or the user's pool, and a few settings. No I/O but in [`PgConfig::connect`].

use std::{collections::HashSet, fmt, str::FromStr, time::Duration};

use inbox_core::{StoreError, StoreErrorKind};
use sqlx::{PgPool, postgres::PgConnectOptions};
use url::Url;

use crate::store::PgInboxStore;

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
    pub(crate) connections: u32,
    pub(crate) connect_timeout: Duration,
    pub(crate) migrate_on_start: bool,
    pub(crate) weak_durability: bool,
}

/// The keys that sqlx reads in the query of a URL; `options[…]` comes beside them.
const KEYS: [&str; 20] = [
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
];
/// Those of them that sqlx does not read, though every provider's console writes them.
const IGNORED: [&str; 1] = ["channel_binding"];

impl PgConfig {
    /// Takes `postgres://user:password@host:port/database?key=value&…`, with libpq's keys. What the URL leaves out comes
    /// from libpq's variables (`PGPASSWORD`, …) and `~/.pgpass`, as everywhere in sqlx.
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
        let (read, timeout) = without_ours(parsed)?;
        let options = PgConnectOptions::from_str(read.as_str())
            .map_err(|source| invalid("a value in the URL cannot be read").source(source))?;
        let mut config = Self::new(options);
        config.connect_timeout = timeout.unwrap_or(config.connect_timeout);
        Ok(config)
    }

    /// Copies the connect options of `pool`. The pool itself is never used: the store has connections of its own.
    pub fn pool(pool: &PgPool) -> Self {
        Self::new(pool.connect_options().as_ref().clone())
    }

    fn new(options: PgConnectOptions) -> Self {
        Self {
            options,
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
        Ok(PgInboxStore::from_config(self))
    }
}

/// Takes out of a URL what sqlx would warn about, values and all.
fn without_ours(mut url: Url) -> Result<(Url, Option<Duration>), StoreError> {
    let pairs: Vec<(String, String)> = url.query_pairs().into_owned().collect();
    let mut timeout = None;
    url.set_query(None);
    for (key, value) in pairs {
        if key == "connect_timeout" {
            let seconds = value.parse().map_err(|_| invalid("`connect_timeout` is not a number of seconds"))?;
            timeout = Some(Duration::from_secs(seconds));
        } else if !IGNORED.contains(&key.as_str()) {
            url.query_pairs_mut().append_pair(&key, &value);
        }
    }
    Ok((url, timeout))
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
        ] {
            assert!(!refused(url).contains("hunter2"), "{url}");
        }
        assert!(PgConfig::url("postgres://db/o").expect("good").connections(0).open().is_err());
    }
}
