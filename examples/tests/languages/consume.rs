//! Consumes through an inbox, and says what its handler saw.

use std::{collections::BTreeMap, time::Instant};

use inbox::{
    HandlerError, Inbox, Message, Numbers, Raw,
    sqlite::{SqliteInboxStore, SqliteTransaction, sqlx},
};
use serde::{Deserialize, Serialize};

use crate::{BODY, EVENT_DATA, EVENT_TYPE, KEY, KIND, PATIENCE, UUID};

/// A message as the handler saw it; kept as JSON.
#[derive(Debug, Deserialize, Serialize, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Seen {
    id: Option<String>,
    kind: Option<String>,
    key: Option<String>,
    origin: Option<String>,
    body: String,
    headers: BTreeMap<String, String>,
}

async fn keep(message: Message<Raw>, tx: &mut SqliteTransaction<'_>) -> Result<(), HandlerError> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec());
    let headers = message.headers.iter().map(|(name, value)| Ok((name.to_owned(), text(value)?)));
    let seen = Seen {
        id: message.id.as_ref().map(|id| text(id.as_bytes())).transpose()?,
        kind: message.kind.clone(),
        key: message.key.as_ref().map(|key| text(key)).transpose()?,
        origin: message.origin.clone(),
        body: text(&message.body.0)?,
        headers: headers.collect::<Result<_, HandlerError>>()?,
    };
    sqlx::query("INSERT INTO effects (seen) VALUES (?1)")
        .bind(serde_json::to_string(&seen)?)
        .execute(&mut **tx)
        .await?;
    Ok(())
}

/// What an inbox makes of `deliveries` messages, sorted by id; every message of another kind than [`KIND`] is a failure.
pub(crate) async fn consume(url: &str, deliveries: u64) -> (Vec<Seen>, Numbers) {
    let dir = tempfile::tempdir().expect("a folder");
    let database = format!("sqlite:{}/app.db", dir.path().display());
    let pool = sqlx::SqlitePool::connect(&format!("{database}?mode=rwc")).await.expect("a database");
    sqlx::query("CREATE TABLE effects (seen TEXT NOT NULL)").execute(&pool).await.expect("a table");
    let store = SqliteInboxStore::builder(&database).expect("a URL").migrate_on_start(true).open().await.expect("open");
    let transport = inbox::connect(url).await.unwrap_or_else(|error| panic!("{}", inbox::report(&error)));
    let inbox = Inbox::new("languages", transport, store).on(KIND, keep).build().expect("an inbox");
    let handle = inbox.handle();
    let done = |numbers: Numbers| numbers.applied + numbers.duplicates + numbers.quarantined;
    let began = Instant::now();
    let finished = async {
        while done(handle.numbers()) < deliveries && began.elapsed() < PATIENCE {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    inbox.run(finished).await.unwrap_or_else(|error| panic!("{}", inbox::report(&error)));
    let numbers = handle.numbers();
    let rows = sqlx::query_scalar("SELECT seen FROM effects").fetch_all(&pool).await;
    let rows: Vec<String> = rows.expect("rows");
    let mut seen: Vec<Seen> = rows.iter().map(|row| serde_json::from_str(row).expect("what was kept")).collect();
    seen.sort();
    assert!(done(numbers) >= deliveries, "in time came only {numbers:?}, {seen:?}");
    assert_eq!(numbers.quarantined, 0, "{numbers:?}, {seen:?}");
    (seen, numbers)
}

/// What came of a snippet that was run twice with one id, and of the three messages that every case sends beside: one effect
/// each, with everything in its place. `prefix` is that of CloudEvents' attributes.
pub(crate) async fn check(url: &str, prefix: &str) {
    let (seen, numbers) = consume(url, 5).await;
    assert!(numbers.duplicates >= 1, "the second one of an id was no duplicate: {numbers:?}");
    check_effects(&seen, prefix);
}

/// The same of the effects alone, where a broker drops the second message itself.
pub(crate) fn check_effects(seen: &[Seen], prefix: &str) {
    let ids: Vec<&str> = seen.iter().filter_map(|seen| seen.id.as_deref()).collect();
    assert_eq!(ids, [UUID, "binary-1", "plain-1", "structured-1"], "one effect for each id");
    let [snippet, binary, plain, structured] = seen else { unreachable!("four ids") };
    for seen in seen {
        assert_eq!((seen.kind.as_deref(), seen.key.as_deref()), (Some(KIND), Some(KEY)), "{seen:?}");
    }
    let origins = [snippet, binary, plain, structured].map(|seen| seen.origin.as_deref());
    assert_eq!(origins, [None, Some("/shop"), None, Some("/shop")]);
    let bodies = [snippet, binary, plain, structured].map(|seen| seen.body.as_str());
    assert_eq!(bodies, [BODY, r#"{"payment":"p-2"}"#, r#"{"payment":"p-1"}"#, EVENT_DATA]);
    has_headers(plain, &[("content-type", "application/json"), ("trace", "t-1")]);
    has_headers(binary, &[("content-type", "application/json"), (&format!("{prefix}traceparent"), "00-1")]);
    has_headers(structured, &[("content-type", EVENT_TYPE)]);
}

fn has_headers(seen: &Seen, expected: &[(&str, &str)]) {
    for (name, value) in expected {
        assert_eq!(seen.headers.get(*name).map(String::as_str), Some(*value), "the header {name} of {seen:?}");
    }
}
