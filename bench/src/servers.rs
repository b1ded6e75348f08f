//! Which servers are used: those that the tests use, too.

use std::env;

use anyhow::{Context as _, Result, bail};
use url::Url;

/// The URLs of the servers.
#[derive(Clone, Debug)]
pub(crate) struct Urls {
    /// `kafka://host:port[,host:port…]`.
    pub(crate) kafka: String,
    /// `postgres://user:password@host:port/database`.
    pub(crate) postgres: Url,
}

impl Urls {
    pub(crate) fn from_environment() -> Result<Self> {
        let kafka = variable("INBOX_TEST_KAFKA")?.trim_end_matches('/').to_owned();
        hosts(&kafka)?;
        Ok(Self { kafka, postgres: postgres()? })
    }
}

/// The URL of PostgreSQL.
pub(crate) fn postgres() -> Result<Url> {
    Url::parse(&variable("INBOX_TEST_POSTGRES")?).context("INBOX_TEST_POSTGRES is not a URL")
}

/// What a variable says.
pub(crate) fn variable(name: &str) -> Result<String> {
    env::var(name).ok().filter(|value| !value.is_empty()).with_context(|| {
        format!(
            "{name} is not set: run `cargo xtask bench`, or `cargo xtask services up` and `. target/services/env.sh`"
        )
    })
}

/// The hosts of a broker's URL, as librdkafka takes them.
pub(crate) fn hosts(kafka: &str) -> Result<&str> {
    match kafka.strip_prefix("kafka://") {
        Some(hosts) if !hosts.contains(['/', '?', '@']) => Ok(hosts),
        // The hand-written contestants know no encryption and no passwords.
        _ => bail!("INBOX_TEST_KAFKA must be kafka://host:port[,host:port…] and nothing more"),
    }
}

/// The first port of a broker's URL.
pub(crate) fn port(kafka: &str) -> Option<u16> {
    hosts(kafka).ok()?.split(',').next()?.rsplit_once(':')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_hosts_are_accepted_and_nothing_else() {
        assert_eq!(hosts("kafka://a:1,b:2").unwrap(), "a:1,b:2");
        assert_eq!(port("kafka://a:1,b:2"), Some(1));
        for url in ["kafka://a:1/t", "kafka://u:p@a:1", "kafka+tls://a:1", "a:1"] {
            assert!(hosts(url).is_err(), "{url}");
        }
    }
}
