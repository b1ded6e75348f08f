//! From Pub/Sub's messages to ours, and back. Pure.
//!
//! Pub/Sub has attributes: at most 100 distinct names, each with up to 1,024 bytes of text, in no order; and one ordering
//! key of up to 1,024 bytes of text. What fits goes there as it is, so that everybody can read it. What does not (bytes
//! that are no text, a name that repeats, an order, an id of 10 kB) goes beside it into attributes `inbox-0`, `inbox-1`, …:
//! the parts of one JSON text ([`Exact`]), which only this crate reads.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use bytes::Bytes;
use google_cloud_pubsub::model::Message as Theirs;
use inbox_core::{Headers, IdText, Message, TransportError, TransportErrorKind, envelope::Envelope};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The largest body, and the largest request, that Pub/Sub takes.
pub(crate) const MAX_BODY: usize = 10_000_000;
/// What a request needs besides its message, the topic's name included.
const REQUEST: usize = 1_024;
const MAX_ATTRIBUTES: usize = 100;
const MAX_NAME: usize = 256;
const MAX_TEXT: usize = 1_024;
/// The attribute with the producer's time, in milliseconds since 1970.
const TIME: &str = "message-time";
/// Attributes of this name with a number behind it are the parts of an [`Exact`].
const EXACT: &str = "inbox-";
/// Pub/Sub refuses a message that has neither a body nor an attribute.
const EMPTY: &str = "inbox-empty";

/// What attributes cannot carry.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Exact {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// All headers in order.
    #[serde(skip_serializing_if = "Option::is_none")]
    headers: Option<Vec<Header>>,
}

impl Exact {
    fn is_empty(&self) -> bool {
        self.id.is_none() && self.kind.is_none() && self.key.is_none() && self.headers.is_none()
    }
}

/// A header: one that an attribute carries, or a name and its value in base64.
#[derive(Debug, Deserialize, Serialize)]
#[serde(untagged)]
enum Header {
    Attribute(String),
    Inline(String, String),
}

/// Whether an attribute may be called so.
pub(crate) fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len()) && !name.starts_with("goog") && !name.starts_with(EXACT) && is_plain(name)
}

/// Whether the service is sure to keep a text as it is.
fn is_plain(text: &str) -> bool {
    !text.contains('\0')
}

/// The value as an attribute carries it, if one can.
fn text(value: &[u8]) -> Option<&str> {
    std::str::from_utf8(value).ok().filter(|text| text.len() <= MAX_TEXT && is_plain(text))
}

/// What is published for `message`.
///
/// # Errors
/// `TooLarge` when it exceeds what Pub/Sub takes, naming the figures.
pub(crate) fn theirs(message: &Message, envelope: &Envelope) -> Result<Theirs, TransportError> {
    let too_large = |context: String| TransportError::new(TransportErrorKind::TooLarge, "publish").context(context);
    if message.body.len() > MAX_BODY {
        return Err(too_large(format!("the body has {} bytes, Pub/Sub takes {MAX_BODY}", message.body.len())));
    }
    let mut exact = Exact::default();
    let mut attributes: HashMap<String, String> = HashMap::new();
    exact.headers = headers(&message.headers, envelope, &mut attributes);
    if let Some(id) = &message.id {
        match text(id.as_bytes()) {
            Some(id) => drop(attributes.insert(envelope.id_header.clone().into_owned(), id.to_owned())),
            None => exact.id = Some(STANDARD.encode(id.as_bytes())),
        }
    }
    if let Some(kind) = &message.kind {
        match text(kind.as_bytes()) {
            Some(kind) => drop(attributes.insert(envelope.kind_header.clone().into_owned(), kind.to_owned())),
            None => exact.kind = Some(kind.clone()),
        }
    }
    if let Some(millis) = message.produced_at.and_then(millis) {
        attributes.insert(TIME.to_owned(), millis.to_string());
    }
    let mut ordering_key = String::new();
    if let Some(key) = &message.key {
        ordering_key = match text(key).filter(|text| !text.is_empty()) {
            Some(key) => key.to_owned(),
            None => {
                exact.key = Some(STANDARD.encode(key));
                // Equal for equal keys and for no others, which is all that an order needs.
                format!("{EXACT}{}", URL_SAFE_NO_PAD.encode(Sha256::digest(key)))
            }
        };
    }
    if !exact.is_empty() {
        let json = serde_json::to_string(&exact)
            .map_err(|error| TransportError::new(TransportErrorKind::Unexpected, "publish").source(error))?;
        for (index, part) in parts(&json).enumerate() {
            attributes.insert(format!("{EXACT}{index}"), part.to_owned());
        }
    }
    if message.body.is_empty() && attributes.is_empty() {
        attributes.insert(EMPTY.to_owned(), "1".to_owned());
    }
    if attributes.len() > MAX_ATTRIBUTES {
        return Err(too_large(format!(
            "its id, kind and headers take {} attributes, Pub/Sub takes {MAX_ATTRIBUTES} of {MAX_TEXT} bytes",
            attributes.len()
        )));
    }
    let beside: usize = attributes.iter().map(|(name, value)| name.len() + value.len() + 16).sum();
    let request = message.body.len() + beside + ordering_key.len() + REQUEST;
    if request > MAX_BODY {
        return Err(too_large(format!("body and attributes have {request} bytes together, Pub/Sub takes {MAX_BODY}")));
    }
    Ok(Theirs::new().set_data(message.body.clone()).set_attributes(attributes).set_ordering_key(ordering_key))
}

/// Puts into attributes what they can carry; the list of all headers when that does not say everything.
fn headers(headers: &Headers, envelope: &Envelope, attributes: &mut HashMap<String, String>) -> Option<Vec<Header>> {
    let mut list = Vec::with_capacity(headers.len());
    let mut all_are_attributes = true;
    let mut last = "";
    for (name, value) in headers.iter() {
        // An attribute of the envelope's own name would be read as the envelope.
        let ours =
            [&*envelope.id_header, &*envelope.kind_header, TIME].iter().any(|own| own.eq_ignore_ascii_case(name));
        match text(value).filter(|_| is_name(name) && !ours && !attributes.contains_key(name)) {
            Some(value) => {
                attributes.insert(name.to_owned(), value.to_owned());
                // They come back sorted by name.
                all_are_attributes &= last <= name;
                last = name;
                list.push(Header::Attribute(name.to_owned()));
            }
            None => {
                all_are_attributes = false;
                list.push(Header::Inline(name.to_owned(), STANDARD.encode(value)));
            }
        }
    }
    Some(list).filter(|_| !all_are_attributes)
}

/// The text in parts that an attribute can carry.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (part, left) = rest.split_at(rest.floor_char_boundary(MAX_TEXT));
        rest = left;
        Some(part)
    })
}

/// The message that was published. Pub/Sub's own id and time are the delivery's business and `stored_at`.
pub(crate) fn ours(theirs: Theirs, envelope: &Envelope) -> Message {
    let stored_at = theirs.publish_time.and_then(|time| SystemTime::try_from(time).ok());
    let mut attributes: BTreeMap<String, String> = theirs.attributes.into_iter().collect();
    let exact = exact(&mut attributes);
    attributes.remove(EMPTY);
    let mut message = Message::new(theirs.data);
    message.stored_at = stored_at;
    message.produced_at = attributes.get(TIME).and_then(|millis| time(millis));
    message.key = Some(theirs.ordering_key).filter(|key| !key.is_empty()).map(Bytes::from);
    // Before the headers are looked at: one of the message's own may have the same name in other letters.
    let attribute = |name: &str| attributes.get(name).cloned();
    message.id = decoded(exact.id.as_deref()).or(attribute(&envelope.id_header).map(Bytes::from)).map(IdText::new);
    message.kind = exact.kind.or(attribute(&envelope.kind_header));
    if let Some(key) = decoded(exact.key.as_deref()) {
        message.key = Some(key);
    }
    for header in exact.headers.unwrap_or_default() {
        match header {
            Header::Attribute(name) => {
                if let Some(value) = attributes.remove(&name) {
                    message.headers.push(name, value);
                }
            }
            Header::Inline(name, value) => message.headers.push(name, decoded(Some(&value)).unwrap_or_default()),
        }
    }
    for (name, value) in attributes {
        message.headers.push(name, value);
    }
    envelope.open(message)
}

fn decoded(text: Option<&str>) -> Option<Bytes> {
    STANDARD.decode(text?).ok().map(Bytes::from)
}

/// Takes the parts of the exact content out of the attributes. What somebody else has written there is left alone.
fn exact(attributes: &mut BTreeMap<String, String>) -> Exact {
    let name = |index: usize| format!("{EXACT}{index}");
    let json: String = (0..).map_while(|index| attributes.get(&name(index)).map(String::as_str)).collect();
    let Ok(exact) = serde_json::from_str::<Exact>(&json) else {
        return Exact::default();
    };
    for index in (0..).take_while(|index| attributes.contains_key(&name(*index))).collect::<Vec<_>>() {
        attributes.remove(&name(index));
    }
    exact
}

fn millis(time: SystemTime) -> Option<u64> {
    time.duration_since(UNIX_EPOCH).ok().and_then(|since| u64::try_from(since.as_millis()).ok())
}

fn time(millis: &str) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_millis(millis.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use google_cloud_wkt as wkt;
    use proptest::prelude::*;

    use super::*;

    fn theirs_of(message: &Message) -> Theirs {
        theirs(message, &Envelope::default()).expect("fits")
    }

    fn there_and_back(message: &Message) -> Message {
        ours(theirs_of(message), &Envelope::default())
    }

    fn own_headers(message: &Message) -> Vec<(&str, &[u8])> {
        let envelope = ["message-id", "message-kind", TIME];
        message.headers.iter().filter(|(name, _)| !envelope.contains(name)).map(|(n, v)| (n, &v[..])).collect()
    }

    #[test]
    fn what_anybody_publishes_is_read() {
        let published = Theirs::new()
            .set_data("{}")
            .set_attributes([("message-id", "a-1"), ("message-kind", "paid"), ("trace", "x"), ("empty", "")])
            .set_ordering_key("order-1")
            .set_message_id("4711")
            .set_publish_time(wkt::Timestamp::clamp(1_700_000_000, 123_000_000));
        let message = ours(published, &Envelope::default());
        assert_eq!((&message.body[..], message.key.as_deref()), (&b"{}"[..], Some(&b"order-1"[..])));
        assert_eq!((message.id, message.kind.as_deref()), (Some(IdText::new("a-1")), Some("paid")));
        assert_eq!((message.headers.get_str("trace"), message.headers.get_str("empty")), (Some("x"), Some("")));
        assert_eq!(message.stored_at, Some(UNIX_EPOCH + Duration::from_millis(1_700_000_000_123)));
        assert_eq!(message.produced_at, None, "which only the producer knows");
    }

    #[test]
    fn pub_subs_own_id_is_no_id() {
        let message = ours(Theirs::new().set_data("x").set_message_id("4711"), &Envelope::default());
        assert!(message.id.is_none() && message.kind.is_none() && message.key.is_none() && message.headers.is_empty());
    }

    #[test]
    fn cloud_events_in_both_modes() {
        let attributes = [("ce-specversion", "1.0"), ("ce-id", "42"), ("ce-type", "paid"), ("ce-source", "/shop")];
        let message = ours(Theirs::new().set_data("1").set_attributes(attributes), &Envelope::default());
        assert_eq!((message.id, message.origin.as_deref()), (Some(IdText::new("42")), Some("/shop")));
        let event = r#"{"specversion":"1.0","id":"7","source":"/s","type":"paid","data":{"a": 1}}"#;
        let attributes = [("content-type", "application/cloudevents+json")];
        let message = ours(Theirs::new().set_data(event).set_attributes(attributes), &Envelope::default());
        assert_eq!((message.id, message.kind.as_deref()), (Some(IdText::new("7")), Some("paid")));
        assert_eq!(&message.body[..], br#"{"a": 1}"#);
    }

    #[test]
    fn what_attributes_can_carry_is_there_for_everybody() {
        let message = Message::new(Bytes::from_static(b"1"))
            .id("größe 🦀")
            .kind("paid")
            .key("k")
            .header("a", "1")
            .header("b", "2")
            .produced_at(UNIX_EPOCH + Duration::from_millis(1_700_000_000_123));
        let published = theirs_of(&message);
        let mut attributes: Vec<(&str, &str)> =
            published.attributes.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        attributes.sort_unstable();
        let expected =
            [("a", "1"), ("b", "2"), ("message-id", "größe 🦀"), ("message-kind", "paid"), (TIME, "1700000000123")];
        assert_eq!(attributes, expected, "and nothing of ours beside them");
        assert_eq!(published.ordering_key, "k");
        assert_eq!(there_and_back(&message).produced_at, message.produced_at);
    }

    #[test]
    fn what_they_cannot_goes_beside_them() {
        let bytes: Vec<u8> = (0..=255).collect();
        let message = Message::new(Bytes::new())
            .id(vec![b'x'; 10_240])
            .kind("k".repeat(2_000))
            .key(bytes.clone())
            .header("z", "first")
            .header("a", "second")
            .header("a", "third")
            .header("binary", bytes)
            .header("Message-Id", "not the id")
            .header("goog-like", "reserved")
            .header("", "no name");
        let published = theirs_of(&message);
        assert_eq!(published.attributes.get("z").map(String::as_str), Some("first"));
        for (name, value) in &published.attributes {
            assert!((1..=256).contains(&name.len()) && value.len() <= 1_024 && !name.starts_with("goog"), "{name}");
        }
        assert!(published.ordering_key.len() <= 1_024);
        let back = there_and_back(&message);
        assert_eq!((&back.id, &back.kind, &back.key), (&message.id, &message.kind, &message.key));
        assert_eq!(own_headers(&back), own_headers(&message), "in their order");
        let other = theirs_of(&Message::new(Bytes::new()).key(vec![0xff]));
        assert_ne!(other.ordering_key, published.ordering_key, "another key");
    }

    #[test]
    fn an_empty_message_is_one() {
        let message = Message::new(Bytes::new());
        assert!(!theirs_of(&message).attributes.is_empty(), "Pub/Sub takes none without body and attributes");
        let back = there_and_back(&message);
        assert!(back.body.is_empty() && back.headers.is_empty() && back.key.is_none() && back.id.is_none());
    }

    #[test]
    fn what_is_too_large_is_said_before_it_is_sent() {
        let refused = |message: &Message| {
            let error = theirs(message, &Envelope::default()).expect_err("too large");
            assert_eq!(error.kind(), TransportErrorKind::TooLarge);
            error.to_string()
        };
        assert!(refused(&Message::new(Bytes::from(vec![0; MAX_BODY + 1]))).contains("10000001 bytes"));
        assert!(refused(&Message::new(Bytes::from(vec![0; MAX_BODY]))).contains("together"));
        let many = (0..200).fold(Message::new(Bytes::new()), |message, n| message.header(format!("h{n:03}"), "v"));
        assert!(refused(&many).contains("200 attributes"));
        assert!(refused(&Message::new(Bytes::new()).id(vec![0; 100_000])).contains("attributes"));
    }

    #[test]
    fn what_others_wrote_under_our_names_is_left_alone() {
        let published = Theirs::new().set_data("x").set_attributes([("inbox-0", "not JSON"), ("inbox-7", "{}")]);
        let message = ours(published, &Envelope::default());
        assert_eq!(message.headers.get_str("inbox-0"), Some("not JSON"));
        assert_eq!(message.headers.get_str("inbox-7"), Some("{}"));
    }

    prop_compose! {
        fn any_message()(
            body in prop::collection::vec(any::<u8>(), 0..60),
            id in prop::option::of(prop::collection::vec(any::<u8>(), 0..2_000)),
            kind in prop::option::of("\\PC{0,20}"),
            key in prop::option::of(prop::collection::vec(any::<u8>(), 0..1_500)),
            headers in prop::collection::vec(("[a-c]{0,3}|\\PC{0,300}|goog.?|inbox-[0-2]", prop::collection::vec(any::<u8>(), 0..1_200)), 0..6),
            at in prop::option::of(0_u64..4_000_000_000_000),
        ) -> Message {
            let mut message = Message::new(Bytes::from(body));
            message.id = id.map(IdText::new);
            message.kind = kind;
            message.key = key.map(Bytes::from);
            message.headers = headers.into_iter().map(|(name, value)| (name, Bytes::from(value))).collect();
            message.produced_at = at.map(|millis| UNIX_EPOCH + Duration::from_millis(millis));
            message
        }
    }

    proptest! {
        #[test]
        fn every_message_comes_back(message in any_message()) {
            let published = theirs_of(&message);
            prop_assert!(published.attributes.len() <= MAX_ATTRIBUTES && published.ordering_key.len() <= MAX_TEXT);
            for (name, value) in &published.attributes {
                prop_assert!((1..=MAX_NAME).contains(&name.len()) && value.len() <= MAX_TEXT);
                prop_assert!(!name.starts_with("goog") && is_plain(name) && is_plain(value));
            }
            let back = ours(published, &Envelope::default());
            prop_assert_eq!(&back.body, &message.body);
            prop_assert_eq!((&back.id, &back.kind, &back.key), (&message.id, &message.kind, &message.key));
            prop_assert_eq!(back.produced_at, message.produced_at);
            prop_assert_eq!(own_headers(&back), own_headers(&message));
        }

        #[test]
        fn whatever_comes_is_read(attributes in prop::collection::hash_map("inbox-[0-3]|message-id|content-type|\\PC{0,9}", "\\PC{0,40}|[{}\":,\\[\\]idkeyhrs]{0,30}", 0..8), data in prop::collection::vec(any::<u8>(), 0..30)) {
            let published = Theirs::new().set_data(data).set_attributes(attributes);
            drop(ours(published, &Envelope::default()));
        }
    }
}
