//! From a broker's headers to a message: which header is the id, which the kind, and CloudEvents in both modes. Pure.

use std::{
    borrow::Cow,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::message::{Headers, IdText, Message};

/// The names of the headers that carry what a broker has no field for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The header with the id.
    pub id_header: Cow<'static, str>,
    /// The header with the kind.
    pub kind_header: Cow<'static, str>,
}

impl Default for Envelope {
    fn default() -> Self {
        Self { id_header: Cow::Borrowed("message-id"), kind_header: Cow::Borrowed("message-kind") }
    }
}

/// The prefixes under which CloudEvents' attributes travel as headers: Kafka's binding, and HTTP's and AMQP's.
const CLOUD_EVENTS_PREFIXES: [&str; 4] = ["ce_", "ce-", "cloudEvents:", "cloudEvents_"];

impl Envelope {
    /// Fills in id, kind, origin and time from the headers, or from the body when it is a structured CloudEvent, which
    /// is then replaced by its data. What the broker has already given is kept. The envelope's own header wins over
    /// CloudEvents' attributes.
    #[must_use]
    pub fn open(&self, mut message: Message) -> Message {
        if message.id.is_none() {
            message.id = message.headers.get(&self.id_header).cloned().map(IdText::new);
        }
        if message.kind.is_none() {
            message.kind = message.headers.get_str(&self.kind_header).map(str::to_owned);
        }
        if is_structured(&message.headers) {
            if let Ok(event) = serde_json::from_slice::<Structured<'_>>(&message.body.clone()) {
                return event.fill(message);
            }
            return message;
        }
        binary(message)
    }

    /// The headers that [`open`](Self::open) reads back, in front of the message's own.
    #[must_use]
    pub fn seal(&self, message: &Message) -> Headers {
        let mut headers = Headers::new();
        if let Some(id) = &message.id {
            headers.push(self.id_header.as_ref(), id.as_bytes().clone());
        }
        if let Some(kind) = &message.kind {
            headers.push(self.kind_header.as_ref(), kind.clone());
        }
        for (name, value) in message.headers.iter() {
            headers.push(name, value.clone());
        }
        headers
    }
}

fn is_structured(headers: &Headers) -> bool {
    headers.get_str("content-type").is_some_and(|kind| kind.trim().starts_with("application/cloudevents+json"))
}

fn binary(mut message: Message) -> Message {
    for prefix in CLOUD_EVENTS_PREFIXES {
        // Most messages are none, and should not pay for it.
        if !message.headers.iter().any(|(name, _)| has_prefix(name, prefix)) {
            continue;
        }
        let attribute = |name: &str| message.headers.get(&format!("{prefix}{name}")).cloned();
        // Both are required by the specification; one alone is somebody else's header.
        if let (Some(id), Some(_)) = (attribute("id"), attribute("specversion")) {
            let text = |name: &str| attribute(name).and_then(|value| String::from_utf8(value.to_vec()).ok());
            let (kind, origin, time) = (text("type"), text("source"), text("time").and_then(|time| rfc3339(&time)));
            message.id.get_or_insert(IdText::new(id));
            message.kind = message.kind.or(kind);
            message.origin = message.origin.or(origin);
            message.produced_at = message.produced_at.or(time);
            break;
        }
    }
    message
}

fn has_prefix(name: &str, prefix: &str) -> bool {
    name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

#[derive(Deserialize)]
struct Structured<'a> {
    id: String,
    #[serde(rename = "type")]
    kind: String,
    source: String,
    time: Option<String>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    data_base64: Option<String>,
}

impl Structured<'_> {
    fn fill(self, mut message: Message) -> Message {
        let body = match (self.data, self.data_base64) {
            (Some(data), _) => Bytes::copy_from_slice(data.get().as_bytes()),
            (None, Some(data)) => match STANDARD.decode(data) {
                Ok(data) => data.into(),
                // Not a CloudEvent after all: the body stays as it came, and its handler says what is wrong with it.
                Err(_) => return message,
            },
            (None, None) => Bytes::new(),
        };
        message.id.get_or_insert(IdText::new(self.id));
        message.kind.get_or_insert(self.kind);
        message.origin.get_or_insert(self.source);
        message.produced_at = message.produced_at.or_else(|| rfc3339(self.time.as_deref()?));
        message.body = body;
        message
    }
}

/// The subset of RFC 3339 that CloudEvents' clients write.
fn rfc3339(text: &str) -> Option<SystemTime> {
    let parsed = humantime::parse_rfc3339_weak(text.trim_end_matches("+00:00")).ok()?;
    // Years before 1970 are no time of a message.
    parsed.duration_since(UNIX_EPOCH).ok().and_then(|since: Duration| UNIX_EPOCH.checked_add(since))
}

/// Headers as bytes for a database column, and back: a JSON array of name and base64 pairs.
#[must_use]
pub fn encode_headers(headers: &Headers) -> Vec<u8> {
    let pairs: Vec<(&str, String)> = headers.iter().map(|(name, value)| (name, STANDARD.encode(value))).collect();
    serde_json::to_vec(&pairs).unwrap_or_default()
}

/// Reads what [`encode_headers`] wrote; `None` when it is something else.
#[must_use]
pub fn decode_headers(bytes: &[u8]) -> Option<Headers> {
    let pairs: Vec<(String, String)> = serde_json::from_slice(bytes).ok()?;
    pairs.into_iter().map(|(name, value)| Some((name, Bytes::from(STANDARD.decode(value).ok()?)))).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn own_headers_come_back() {
        let message = Message::new(Bytes::from_static(b"{}")).id("a-1").kind("payment.captured").header("x", "y");
        let envelope = Envelope::default();
        let mut received = Message::new(message.body.clone());
        received.headers = envelope.seal(&message);
        let opened = envelope.open(received);
        assert_eq!((opened.id, opened.kind.as_deref()), (message.id, Some("payment.captured")));
        assert_eq!(opened.headers.get_str("x"), Some("y"));
    }

    #[test]
    fn cloud_events_in_binary_mode() {
        for prefix in CLOUD_EVENTS_PREFIXES {
            let message = Message::new(Bytes::from_static(b"1"))
                .header(format!("{prefix}specversion"), "1.0")
                .header(format!("{prefix}id"), "42")
                .header(format!("{prefix}type"), "paid")
                .header(format!("{prefix}source"), "/shop")
                .header(format!("{prefix}time"), "2026-01-02T03:04:05Z");
            let opened = Envelope::default().open(message);
            assert_eq!(opened.id, Some(IdText::new("42")));
            assert_eq!((opened.kind.as_deref(), opened.origin.as_deref()), (Some("paid"), Some("/shop")));
            assert!(opened.produced_at.is_some());
        }
    }

    #[test]
    fn cloud_events_in_structured_mode() {
        let body = br#"{"specversion":"1.0","id":"7","source":"/s","type":"paid","data":{"a": 1}}"#;
        let message = Message::new(Bytes::from_static(body))
            .header("content-type", "application/cloudevents+json; charset=utf-8");
        let opened = Envelope::default().open(message);
        assert_eq!(opened.id, Some(IdText::new("7")));
        assert_eq!(&opened.body[..], br#"{"a": 1}"#);
    }

    proptest! {
        #[test]
        fn opening_never_fails_and_headers_round_trip(names in prop::collection::vec(("\\PC{0,20}", prop::collection::vec(any::<u8>(), 0..40)), 0..6), body in prop::collection::vec(any::<u8>(), 0..60)) {
            let headers: Headers = names.into_iter().map(|(name, value)| (name, Bytes::from(value))).collect();
            prop_assert_eq!(decode_headers(&encode_headers(&headers)), Some(headers.clone()));
            let mut message = Message::new(Bytes::from(body));
            message.headers = headers;
            drop(Envelope::default().open(message));
        }
    }
}
