//! Where the brokers are. All that differs between them is here: their URLs.

use std::path::Path;

use crate::args::Args;

/// A broker to run over.
#[derive(Debug)]
pub(crate) struct Place {
    /// The broker's name.
    pub(crate) name: String,
    /// Its URL, with what to consume; `None` when it is not here.
    pub(crate) url: Option<String>,
    /// The variable that would name it.
    pub(crate) variable: Option<&'static str>,
}

/// A broker that a variable names, and what is appended to its URL for a run of this name.
struct Known {
    name: &'static str,
    variable: &'static str,
    path: fn(&str) -> String,
}

const KNOWN: [Known; 5] = [
    Known { name: "kafka", variable: "INBOX_TEST_KAFKA", path: |run| format!("/swap-{run}?group=receipts") },
    Known { name: "rabbitmq", variable: "INBOX_TEST_RABBITMQ", path: |run| format!("?queue=swap-{run}") },
    Known { name: "redis", variable: "INBOX_TEST_REDIS", path: |run| format!("?stream=swap-{run}&group=receipts") },
    Known { name: "sqs", variable: "INBOX_TEST_SQS", path: |run| format!("/swap-{run}") },
    Known {
        name: "pubsub",
        variable: "INBOX_TEST_PUBSUB",
        path: |run| format!("/swap-{run}-receipts?topic=swap-{run}"),
    },
];

/// The places that the command line asks for.
pub(crate) fn chosen(args: &Args, dir: &Path, run: &str) -> Vec<Place> {
    let embedded = || Place {
        name: "sqlite".to_owned(),
        url: Some(format!("sqlite:{}/queue.db/swap?group=receipts", dir.display())),
        variable: None,
    };
    if args.all {
        let known = KNOWN.iter().map(|known| {
            let base = std::env::var(known.variable).ok();
            let url = base.map(|base| joined(&base, &(known.path)(run)));
            Place { name: known.name.to_owned(), url, variable: Some(known.variable) }
        });
        return std::iter::once(embedded()).chain(known).collect();
    }
    if args.transport.is_empty() {
        return vec![embedded()];
    }
    let named = |url: &String| {
        let name = url.split([':', '+']).next().unwrap_or_default().to_owned();
        Place { name, url: Some(url.clone()), variable: None }
    };
    args.transport.iter().map(named).collect()
}

/// A broker's URL with a path and keys behind it; keys that it has stay.
fn joined(base: &str, path: &str) -> String {
    let (base, keys) = base.split_once('?').map_or((base, None), |(base, keys)| (base, Some(keys)));
    let base = if path.starts_with('/') { base.trim_end_matches('/') } else { base };
    match keys {
        None => format!("{base}{path}"),
        Some(keys) if path.contains('?') => format!("{base}{path}&{keys}"),
        Some(keys) => format!("{base}{path}?{keys}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_goes_before_the_keys() {
        assert_eq!(joined("kafka://h:1/", "/t?group=g"), "kafka://h:1/t?group=g");
        assert_eq!(joined("pubsub://p?endpoint=x", "/s?topic=t"), "pubsub://p/s?topic=t&endpoint=x");
        assert_eq!(joined("sqs://r?endpoint=x", "/q"), "sqs://r/q?endpoint=x");
        assert_eq!(joined("rabbitmq://u:p@h/v", "?queue=q"), "rabbitmq://u:p@h/v?queue=q");
    }
}
