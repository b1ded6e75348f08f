//! Strict URLs: every key is known or it is an error that names what is accepted. No I/O.

use std::{fmt, str::FromStr, time::Duration};

use percent_encoding::percent_decode_str;
use url::Url;

use crate::error::{TransportError, TransportErrorKind};

/// A value that never shows itself in `Debug` or `Display`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret<T>(T);

impl<T> Secret<T> {
    /// Hides `value`.
    pub fn new(value: T) -> Self {
        Self(value)
    }

    /// The value itself: to hand it to a client, never to print it.
    pub fn expose(&self) -> &T {
        &self.0
    }
}

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hidden]")
    }
}

impl<T> fmt::Display for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hidden]")
    }
}

/// A transport's URL, taken apart: `scheme://user:password@authority/path?key=value&…`.
///
/// The adapter takes the keys that it knows, one by one, and calls [`finish`](Self::finish), which refuses the rest.
#[derive(Clone, Debug)]
pub struct TransportUrl {
    scheme: String,
    authority: String,
    user: Option<String>,
    password: Option<Secret<String>>,
    path: String,
    pairs: Vec<(String, Secret<String>)>,
    known: Vec<&'static str>,
}

impl TransportUrl {
    /// Parses a URL.
    ///
    /// # Errors
    /// `InvalidConfig` when it is no URL or a key stands there twice. The text never contains a password or a value.
    pub fn parse(text: &str) -> Result<Self, TransportError> {
        let (scheme, rest) = text
            .split_once(':')
            .filter(|(scheme, _)| {
                scheme.starts_with(|c: char| c.is_ascii_alphabetic())
                    && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
            })
            .ok_or_else(|| {
                invalid("a transport's URL starts with its scheme, as in `kafka://host:9092/topic?group=name`")
            })?;
        let (before_query, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = match before_query.strip_prefix("//") {
            // Several hosts with ports are no URL by the standard, so the authority is split here.
            Some(hierarchy) => match hierarchy.find('/') {
                Some(slash) => (&hierarchy[..slash], &hierarchy[slash + 1..]),
                None => (hierarchy, ""),
            },
            None => ("", before_query),
        };
        // The rest of a password that was not encoded would be taken for a path or a key, and be shown.
        if !authority.is_empty() && rest[authority.len() + 2..].contains('@') {
            return Err(invalid(
                "an `@` stands behind the host; percent-encode `/`, `?`, `#` and `@` in user and password",
            ));
        }
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (Some(login), hosts),
            None => (None, authority),
        };
        let (user, password) = match login {
            Some(login) => {
                let (user, password) = login.split_once(':').map_or((login, None), |(user, pw)| (user, Some(pw)));
                (Some(decode(user)?), password.map(decode).transpose()?.map(Secret::new))
            }
            None => (None, None),
        };
        let mut pairs: Vec<(String, Secret<String>)> = Vec::new();
        // `Url` knows how a query is split and decoded; the base is never looked at.
        let base =
            Url::parse(&format!("query:/?{query}")).map_err(|error| invalid("the query is malformed").source(error))?;
        for (key, value) in base.query_pairs() {
            if pairs.iter().any(|(known, _)| *known == key) {
                return Err(invalid(format!("`{key}` stands there twice")));
            }
            pairs.push((key.into_owned(), Secret::new(value.into_owned())));
        }
        Ok(Self {
            scheme: scheme.to_ascii_lowercase(),
            authority: hosts.to_owned(),
            user,
            password,
            path: decode(path)?,
            pairs,
            known: Vec::new(),
        })
    }

    /// The scheme in lower case.
    #[must_use]
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// Hosts and ports, without user and password.
    #[must_use]
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// The user before the `@`.
    #[must_use]
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The password before the `@`.
    #[must_use]
    pub fn password(&self) -> Option<&Secret<String>> {
        self.password.as_ref()
    }

    /// The path without its first slash, decoded.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Takes a key that the adapter knows.
    pub fn take(&mut self, key: &'static str) -> Option<String> {
        self.known.push(key);
        let at = self.pairs.iter().position(|(name, _)| name == key)?;
        Some(self.pairs.remove(at).1.expose().clone())
    }

    /// Takes a key that must be there.
    ///
    /// # Errors
    /// `InvalidConfig` when it is missing or empty.
    pub fn require(&mut self, key: &'static str, meaning: &str) -> Result<String, TransportError> {
        self.take(key)
            .filter(|value| !value.is_empty())
            .ok_or_else(|| invalid(format!("`{key}` is missing: {meaning}; add `{key}=…` to the query")))
    }

    /// Takes a key whose value is parsed.
    ///
    /// # Errors
    /// `InvalidConfig` when the value cannot be parsed; `accepted` says what can.
    pub fn take_parsed<T: FromStr>(&mut self, key: &'static str, accepted: &str) -> Result<Option<T>, TransportError> {
        self.take(key).map(|value| value.parse().map_err(|_| invalid(format!("`{key}` is not {accepted}")))).transpose()
    }

    /// Takes a duration: a number with `ms`, `s`, `m`, `h` or `d` behind it.
    ///
    /// # Errors
    /// `InvalidConfig` when the value is none.
    pub fn take_duration(&mut self, key: &'static str) -> Result<Option<Duration>, TransportError> {
        self.take(key)
            .map(|value| {
                duration(&value).ok_or_else(|| {
                    invalid(format!("`{key}` is not a duration such as `500ms`, `30s`, `5m`, `2h` or `7d`"))
                })
            })
            .transpose()
    }

    /// Takes all keys that begin with `prefix`, with the prefix removed (`kafka.linger.ms=5` by `kafka.`).
    #[must_use]
    pub fn take_prefixed(&mut self, prefix: &'static str) -> Vec<(String, Secret<String>)> {
        self.known.push(prefix);
        let (with, without) = std::mem::take(&mut self.pairs).into_iter().partition(|(key, _)| key.starts_with(prefix));
        self.pairs = without;
        let with: Vec<(String, Secret<String>)> = with;
        with.into_iter().map(|(key, value)| (key[prefix.len()..].to_owned(), value)).collect()
    }

    /// Refuses every key that was not taken.
    ///
    /// # Errors
    /// `InvalidConfig` that names the unknown keys and the accepted ones.
    pub fn finish(self) -> Result<(), TransportError> {
        if self.pairs.is_empty() {
            return Ok(());
        }
        let unknown: Vec<String> = self.pairs.iter().map(|(key, _)| format!("`{key}`")).collect();
        let known: Vec<String> = self
            .known
            .iter()
            .map(|key| if key.ends_with('.') { format!("`{key}*`") } else { format!("`{key}`") })
            .collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        Err(invalid(format!("unknown key {} in a {} URL; accepted: {known}", unknown.join(", "), self.scheme)))
    }
}

fn decode(text: &str) -> Result<String, TransportError> {
    percent_decode_str(text)
        .decode_utf8()
        .map(std::borrow::Cow::into_owned)
        .map_err(|error| invalid("a percent-encoded part of the URL is not UTF-8").source(error))
}

/// Parses `500ms`, `30s`, `5m`, `2h` or `7d`.
#[must_use]
pub fn duration(text: &str) -> Option<Duration> {
    let unit = text.find(|c: char| !c.is_ascii_digit())?;
    let number: u64 = text[..unit].parse().ok()?;
    let seconds = match &text[unit..] {
        "ms" => return Some(Duration::from_millis(number)),
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return None,
    };
    number.checked_mul(seconds).map(Duration::from_secs)
}

fn invalid(context: impl Into<String>) -> TransportError {
    TransportError::new(TransportErrorKind::InvalidConfig, "parse url").context(context)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_url_is_taken_apart() {
        let mut url =
            TransportUrl::parse("kafka://me:p%40ss@a:9092,b:9093/pay%2Fments?group=receipts&kafka.linger.ms=5&wait=3s")
                .expect("a good URL");
        assert_eq!((url.scheme(), url.authority(), url.path()), ("kafka", "a:9092,b:9093", "pay/ments"));
        assert_eq!((url.user(), url.password().map(|p| p.expose().as_str())), (Some("me"), Some("p@ss")));
        assert_eq!(url.require("group", "the consumer group").expect("there"), "receipts");
        assert_eq!(url.take_duration("wait").expect("parses"), Some(Duration::from_secs(3)));
        assert_eq!(url.take_prefixed("kafka.").len(), 1);
        url.finish().expect("nothing left");
    }

    #[test]
    fn what_is_wrong_is_named_and_secrets_are_not() {
        let twice = TransportUrl::parse("kafka://u:hunter2@h/t?group=a&group=b").expect_err("twice");
        assert!(twice.to_string().contains("`group` stands there twice"), "{twice}");
        let mut url = TransportUrl::parse("sqlite:f.db/t?gruop=hunter2&lease=1s").expect("parses");
        assert_eq!(url.path(), "f.db/t");
        let missing = url.require("group", "the consumer's name").expect_err("missing").to_string();
        assert!(missing.contains("`group` is missing"), "{missing}");
        assert!(url.take("lease").is_some());
        let unknown = url.clone().finish().expect_err("unknown").to_string();
        assert!(unknown.contains("`gruop`") && unknown.contains("`group`, `lease`"), "{unknown}");
        let debug = format!("{url:?} {:?}", TransportUrl::parse("kafka://u:hunter2@h/t?x=hunter2").expect("parses"));
        assert!(!unknown.contains("hunter2") && !debug.contains("hunter2"), "{debug}");
        assert!(TransportUrl::parse("nonsense").is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "\\PC{0,80}") {
            drop(TransportUrl::parse(&text));
        }

        #[test]
        fn durations_round_trip(n in 0_u32..1_000_000) {
            prop_assert_eq!(duration(&format!("{n}s")), Some(Duration::from_secs(u64::from(n))));
            prop_assert_eq!(duration(&format!("{n}ms")), Some(Duration::from_millis(u64::from(n))));
        }
    }
}
