//! The queue's URL, its file and its topics.

use std::{path::PathBuf, time::Duration};

use backon::Retryable;
use inbox_core::{TransportError, TransportErrorKind, config::TransportUrl};
use sqlx::{
    Connection, SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};

use crate::{error, sql::queue as sql};

const SHORTEST_LEASE: Duration = Duration::from_millis(100);
const LONGEST_LEASE: Duration = Duration::from_secs(7 * 86_400);

/// A topic in a file, and how to use it: `sqlite:FILE/topic?group=NAME&lease=30s`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    pub(crate) file: PathBuf,
    pub(crate) topic: String,
    pub(crate) group: Option<String>,
    pub(crate) lease: Duration,
    pub(crate) busy_timeout: Duration,
}

impl QueueConfig {
    /// A topic in a file.
    #[must_use]
    pub fn new(file: impl Into<PathBuf>, topic: impl Into<String>) -> Self {
        Self {
            file: file.into(),
            topic: topic.into(),
            group: None,
            lease: Duration::from_secs(30),
            busy_timeout: Duration::from_secs(30),
        }
    }

    /// The group whose members share the messages; each group gets all of them.
    #[must_use]
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// How long after a process died its messages are handed to others: 100 ms to 7 days. Default: 30 s.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> &std::path::Path {
        &self.file
    }

    /// Reads a URL. The last part of its path is the topic, what is before it the file. Keys: `group`, `lease`.
    ///
    /// # Errors
    /// `InvalidConfig` naming what is wrong and what is accepted.
    pub fn parse(url: &str) -> Result<Self, TransportError> {
        let invalid = |text: &str| TransportError::new(TransportErrorKind::InvalidConfig, "parse url").context(text);
        let absolute = url.to_ascii_lowercase().starts_with("sqlite:///");
        let mut parts = TransportUrl::parse(url)?;
        let path = match (parts.authority(), absolute) {
            ("", true) => format!("/{}", parts.path()),
            ("", false) => parts.path().to_owned(),
            (first, _) => format!("{first}/{}", parts.path()),
        };
        let (file, topic) = path
            .rsplit_once('/')
            .filter(|(file, topic)| !file.is_empty() && !topic.is_empty())
            .ok_or_else(|| invalid("file and topic are needed, as in `sqlite:queue.db/payments?group=receipts`"))?;
        let mut config = Self::new(file, topic);
        config.group = parts.take("group");
        if let Some(lease) = parts.take_duration("lease")? {
            config.lease = lease;
        }
        parts.finish()?;
        config.check()?;
        Ok(config)
    }

    /// Refuses a lease that nobody could keep, or that outlives everybody.
    pub(crate) fn check(&self) -> Result<(), TransportError> {
        if (SHORTEST_LEASE..=LONGEST_LEASE).contains(&self.lease) {
            return Ok(());
        }
        Err(TransportError::new(TransportErrorKind::InvalidConfig, "connect")
            .context(format!("`lease` is {:?}; accepted: {SHORTEST_LEASE:?} to {LONGEST_LEASE:?}", self.lease)))
    }

    pub(crate) async fn pool(
        &self,
        make: bool,
        synchronous: SqliteSynchronous,
        connections: u32,
    ) -> Result<SqlitePool, TransportError> {
        let options = SqliteConnectOptions::new()
            .filename(&self.file)
            .create_if_missing(make)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(synchronous)
            .busy_timeout(self.busy_timeout);
        if !make && !self.file.exists() {
            return Err(self.missing("the file does not exist"));
        }
        let open = || {
            SqlitePoolOptions::new()
                .max_connections(connections)
                .acquire_timeout(self.busy_timeout * 2)
                .idle_timeout(None)
                .max_lifetime(None)
                .test_before_acquire(false)
                // SQLite ends a transaction by itself when its disk is full, and sqlx takes the connection to be in one
                // for ever. The ping comes behind a rollback that is still on its way.
                .after_release(|connection, _| {
                    Box::pin(async move {
                        connection.ping().await?;
                        Ok(!connection.is_in_transaction())
                    })
                })
                .connect_with(options.clone())
        };
        open.retry(error::patience())
            .when(error::is_busy)
            .await
            .map_err(|error| error::transport(error, "connect").context(format!("cannot open {}", self.file.display())))
    }

    pub(crate) fn missing(&self, what: &str) -> TransportError {
        TransportError::new(TransportErrorKind::NotFound, "connect").context(format!(
            "topic `{}` in {}: {what}; `inbox::provision(url)` makes file and topic",
            self.topic,
            self.file.display()
        ))
    }

    /// The number of the topic.
    pub(crate) async fn topic_id(&self, pool: &SqlitePool) -> Result<i64, TransportError> {
        let fail = |error| error::transport(error, "connect");
        let there: bool = sqlx::query_scalar(sql::HAS_QUEUE).fetch_one(pool).await.map_err(fail)?;
        if !there {
            return Err(self.missing("the file holds no queue"));
        }
        let found: Option<i64> =
            sqlx::query_scalar(sql::TOPIC).bind(&self.topic).fetch_optional(pool).await.map_err(fail)?;
        if let Some(id) = found {
            return Ok(id);
        }
        let topics: Vec<String> = sqlx::query_scalar(sql::TOPICS).fetch_all(pool).await.map_err(fail)?;
        Err(self.missing(&format!("there is no such topic, but `{}`", topics.join("`, `"))))
    }

    /// Makes the file, its tables and the topic; what is there stays.
    ///
    /// # Errors
    /// `InvalidConfig` when the file cannot be opened or is no database.
    pub async fn provision(&self) -> Result<(), TransportError> {
        let pool = self.pool(true, SqliteSynchronous::Full, 1).await?;
        let make = || self.make(&pool);
        make.retry(error::patience())
            .when(error::is_busy)
            .await
            .map_err(|error| error::transport(error, "provision"))?;
        pool.close().await;
        Ok(())
    }

    async fn make(&self, pool: &SqlitePool) -> Result<(), sqlx::Error> {
        let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
        sqlx::raw_sql(sql::MAKE).execute(&mut *tx).await?;
        sqlx::query(sql::ADD_TOPIC).bind(&self.topic).execute(&mut *tx).await?;
        tx.commit().await
    }

    /// How many messages the topic holds: the queue keeps them all.
    ///
    /// # Errors
    /// `NotFound` when file or topic are missing.
    pub async fn published(&self) -> Result<u64, TransportError> {
        let pool = self.pool(false, SqliteSynchronous::Normal, 1).await?;
        let topic = self.topic_id(&pool).await?;
        let count: i64 = sqlx::query_scalar(sql::PUBLISHED)
            .bind(topic)
            .fetch_one(&pool)
            .await
            .map_err(|error| error::transport(error, "count"))?;
        pool.close().await;
        Ok(u64::try_from(count).unwrap_or(0))
    }

    /// How many messages the group has not acknowledged, those that are out included.
    ///
    /// # Errors
    /// `NotFound` when file or topic are missing, `InvalidConfig` without a group.
    pub async fn backlog(&self) -> Result<u64, TransportError> {
        let pool = self.pool(false, SqliteSynchronous::Normal, 1).await?;
        let topic = self.topic_id(&pool).await?;
        let group = self.group_id(&pool, topic).await?;
        let count: i64 = sqlx::query_scalar(sql::BACKLOG)
            .bind(topic)
            .bind(group)
            .fetch_one(&pool)
            .await
            .map_err(|error| error::transport(error, "count"))?;
        pool.close().await;
        Ok(u64::try_from(count).unwrap_or(0))
    }

    /// The number of the group, which is made on first use and begins with the topic's first message.
    pub(crate) async fn group_id(&self, pool: &SqlitePool, topic: i64) -> Result<i64, TransportError> {
        let fail = |error| error::transport(error, "connect");
        let group = self.group.as_deref().filter(|group| !group.is_empty()).ok_or_else(|| {
            TransportError::new(TransportErrorKind::InvalidConfig, "connect")
                .context("`group` is missing: the name of the consumer group; add `?group=…` to the URL")
        })?;
        let known = || sqlx::query_scalar(sql::GROUP).bind(topic).bind(group).fetch_optional(pool);
        if let Some(id) = known().await.map_err(fail)? {
            return Ok(id);
        }
        sqlx::query(sql::ADD_GROUP).bind(topic).bind(group).execute(pool).await.map_err(fail)?;
        known().await.map_err(fail)?.ok_or_else(|| self.missing("the group could not be made"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        for (url, file, topic) in [
            ("sqlite:q.db/pay?group=g", "q.db", "pay"),
            ("sqlite:a/b/q.db/pay?group=g", "a/b/q.db", "pay"),
            ("sqlite:/tmp/q.db/pay?group=g", "/tmp/q.db", "pay"),
            ("sqlite:///tmp/q.db/pay?group=g", "/tmp/q.db", "pay"),
            ("sqlite://q.db/pay?group=g&lease=30s", "q.db", "pay"),
        ] {
            assert_eq!(QueueConfig::parse(url).expect(url), QueueConfig::new(file, topic).group("g"), "{url}");
        }
        for (url, hint) in [
            ("sqlite:pay?group=g", "file and topic"),
            ("sqlite:q.db/pay?lease=1", "`lease` is not a duration"),
            ("sqlite:q.db/pay?leese=1s&group=g", "accepted: `group`, `lease`"),
        ] {
            let error = QueueConfig::parse(url).expect_err(url).to_string();
            assert!(error.contains(hint), "{error}");
        }
    }
}
