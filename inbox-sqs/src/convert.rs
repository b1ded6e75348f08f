//! Between a message of SQS and ours. Pure.
//!
//! SQS takes text only, ten attributes in no order, and no value that is empty. What does not fit is written so that it
//! comes back as it was; the [crate](crate) says how, for those who read or write without it.

use std::{
    collections::HashMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use aws_sdk_sqs::{
    primitives::Blob,
    types::{Message as Received, MessageAttributeValue as Attribute, MessageSystemAttributeName as System},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use inbox_core::{
    Bytes, Headers, IdText, Message, TransportError, TransportErrorKind,
    envelope::{decode_headers, encode_headers},
    id::fingerprint,
};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::config::{Names, is_attribute_name};

/// How many attributes a message may have.
const MOST_ATTRIBUTES: usize = 10;
/// How long a group and a deduplication id may be.
const MOST_TOKEN: usize = 128;
/// How the body is written, when it is not the text itself.
const ENCODING: &str = "message-encoding";
/// All headers, when they do not fit into attributes of their own.
const HEADERS: &str = "message-headers";
/// The names of the headers in their order, when it is not that of the alphabet.
const ORDER: &str = "message-header-order";
/// When the producer made the message, in milliseconds since 1970.
const TIME: &str = "message-time";
/// What stands where SQS takes nothing that is empty.
const EMPTY: &str = "empty";
/// How the group of a message without a key begins.
const NO_KEY: &str = "no-key:";

/// The message in what was received. `sns`: the body is a notification whose message is taken out.
pub(crate) fn message(received: Received, names: &Names, fifo: bool, sns: bool) -> Message {
    let system = |name: System| received.attributes.as_ref().and_then(|all| all.get(&name)).cloned();
    let (stored_at, group) = (system(System::SentTimestamp), system(System::MessageGroupId));
    let mut body = received.body.unwrap_or_default();
    let mut attributes = values(received.message_attributes.unwrap_or_default());
    if sns && let Ok(notification) = serde_json::from_str::<Notification>(&body) {
        body = notification.message;
        attributes =
            notification.attributes.into_iter().filter_map(|(name, value)| Some((name, value.bytes()?))).collect();
    }
    let mut take = |name: &str| attributes.remove(name);
    let mut message = Message::new(decoded(body, take(ENCODING).as_deref()));
    message.id = take(&names.envelope.id_header).map(IdText::new);
    message.kind = take(&names.envelope.kind_header).and_then(|kind| String::from_utf8(kind.into()).ok());
    message.key = take(names.key());
    if fifo && message.key.is_none() {
        message.key = group.filter(|group| !group.starts_with(NO_KEY)).map(Bytes::from);
    }
    message.produced_at = take(TIME).and_then(|time| time_of(std::str::from_utf8(&time).ok()?));
    message.stored_at = stored_at.and_then(|time| time_of(&time));
    let (order, packed) = (take(ORDER), take(HEADERS));
    message.headers = headers(attributes, order.as_deref(), packed.as_deref());
    names.envelope.open(message)
}

/// How often it has been received, this time included.
pub(crate) fn count(received: &Received) -> Option<u32> {
    received.attributes.as_ref()?.get(&System::ApproximateReceiveCount)?.parse().ok()
}

/// The group of a message of a FIFO queue.
pub(crate) fn group(received: &Received) -> Option<String> {
    received.attributes.as_ref()?.get(&System::MessageGroupId).cloned()
}

fn values(attributes: HashMap<String, Attribute>) -> HashMap<String, Bytes> {
    attributes
        .into_iter()
        .map(|(name, value)| {
            if value.data_type.ends_with(&format!(".{EMPTY}")) {
                return (name, Bytes::new());
            }
            let text = value.string_value.map(Bytes::from);
            let bytes = text.or_else(|| value.binary_value.map(|blob| blob.into_inner().into()));
            (name, bytes.unwrap_or_default())
        })
        .collect()
}

fn decoded(body: String, encoding: Option<&[u8]>) -> Bytes {
    match encoding {
        Some(b"base64") => STANDARD.decode(&body).map_or_else(|_| body.into(), Bytes::from),
        Some(encoding) if encoding == EMPTY.as_bytes() => Bytes::new(),
        _ => body.into(),
    }
}

fn time_of(millis: &str) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_millis(millis.parse().ok()?))
}

/// The headers: those that were packed, then the attributes, in the order that is told, the others by their names.
fn headers(mut attributes: HashMap<String, Bytes>, order: Option<&[u8]>, packed: Option<&[u8]>) -> Headers {
    let mut headers = packed.and_then(decode_headers).unwrap_or_default();
    for name in order.and_then(|order| std::str::from_utf8(order).ok()).unwrap_or_default().split(',') {
        if let Some(value) = attributes.remove(name) {
            headers.push(name, value);
        }
    }
    let mut rest: Vec<(String, Bytes)> = attributes.into_iter().collect();
    rest.sort_unstable_by(|one, other| one.0.cmp(&other.0));
    rest.into_iter().for_each(|(name, value)| headers.push(name, value));
    headers
}

/// What SNS puts around a message unless raw delivery is on.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Notification {
    #[serde(rename = "Type")]
    _kind: NotificationKind,
    message: String,
    #[serde(rename = "MessageAttributes", default)]
    attributes: HashMap<String, NotificationAttribute>,
}

#[derive(Deserialize)]
enum NotificationKind {
    Notification,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct NotificationAttribute {
    #[serde(rename = "Type")]
    kind: String,
    value: String,
}

impl NotificationAttribute {
    fn bytes(self) -> Option<Bytes> {
        if self.kind.ends_with(&format!(".{EMPTY}")) {
            return Some(Bytes::new());
        }
        if self.kind.starts_with("Binary") {
            return STANDARD.decode(self.value).ok().map(Bytes::from);
        }
        Some(self.value.into())
    }
}

/// A message as SQS takes it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) body: String,
    pub(crate) attributes: HashMap<String, Attribute>,
    /// For FIFO queues.
    pub(crate) fifo: Option<Fifo>,
    /// What it counts for in SQS's limits.
    pub(crate) size: usize,
}

/// What a FIFO queue wants besides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fifo {
    pub(crate) group: String,
    pub(crate) deduplication: String,
}

/// How a message is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing<'a> {
    pub(crate) names: &'a Names,
    pub(crate) fifo: bool,
    pub(crate) deduplicate: bool,
    /// The most bytes that the queue takes.
    pub(crate) limit: usize,
}

impl Outgoing<'_> {
    /// The message as SQS takes it.
    ///
    /// `TooLarge` when it is more than the queue takes, attributes and encoding included.
    pub(crate) fn entry(&self, message: &Message) -> Result<Entry, TransportError> {
        // Before anything is copied.
        if message.body.len() > self.limit {
            return Err(self.too_large(message.body.len(), false));
        }
        let mut attributes = HashMap::new();
        if let Some(id) = &message.id {
            attributes.insert(self.names.envelope.id_header.to_string(), attribute(id.as_bytes()));
        }
        if let Some(kind) = &message.kind {
            attributes.insert(self.names.envelope.kind_header.to_string(), attribute(kind.as_bytes()));
        }
        let group = message.key.as_deref().filter(|_| self.fifo).and_then(group_of);
        if let Some(key) = message.key.as_ref().filter(|_| group.is_none()) {
            attributes.insert(self.names.key().to_owned(), attribute(key));
        }
        if let Some(millis) = message.produced_at.and_then(|time| time.duration_since(UNIX_EPOCH).ok()) {
            attributes.insert(TIME.to_owned(), typed("Number", &millis.as_millis().to_string()));
        }
        let (body, encoding) = encoded(&message.body);
        if let Some(encoding) = encoding {
            attributes.insert(ENCODING.to_owned(), typed("String", encoding));
        }
        self.add_headers(&message.headers, &mut attributes);
        let size = body.len() + attributes.iter().map(|(name, value)| name.len() + size_of(value)).sum::<usize>();
        if size > self.limit {
            return Err(self.too_large(size, encoding == Some("base64")));
        }
        let fifo = self.fifo.then(|| Fifo {
            group: group.map_or_else(|| fallback_group(message), str::to_owned),
            deduplication: self.deduplication(message),
        });
        Ok(Entry { body, attributes, fifo, size })
    }

    fn too_large(&self, size: usize, base64: bool) -> TransportError {
        let why = if base64 { ", as base64 since the body is no text," } else { "" };
        TransportError::new(TransportErrorKind::TooLarge, "publish").context(format!(
            "the message takes {size} bytes{why} attributes included, and the queue takes {}; put large contents elsewhere \
             and send their address",
            self.limit
        ))
    }

    /// Adds the headers, each as an attribute if all fit, else packed into one.
    fn add_headers(&self, headers: &Headers, attributes: &mut HashMap<String, Attribute>) {
        let names: Vec<&str> = headers.iter().map(|(name, _)| name).collect();
        let sorted = names.windows(2).all(|pair| pair[0] < pair[1]);
        let slots = attributes.len() + names.len() + usize::from(!sorted);
        let fits = slots <= MOST_ATTRIBUTES
            && names.iter().enumerate().all(|(at, name)| {
                is_attribute_name(name)
                    && !self.is_reserved(name)
                    && !names[..at].iter().any(|other| other.eq_ignore_ascii_case(name))
            });
        if !fits {
            let packed = encode_headers(headers);
            attributes.insert(HEADERS.to_owned(), attribute(&packed));
            return;
        }
        if !sorted {
            attributes.insert(ORDER.to_owned(), typed("String", &names.join(",")));
        }
        for (name, value) in headers.iter() {
            attributes.insert(name.to_owned(), attribute(value));
        }
    }

    fn is_reserved(&self, name: &str) -> bool {
        let envelope = &self.names.envelope;
        [&envelope.id_header, &envelope.kind_header, self.names.key(), ENCODING, HEADERS, ORDER, TIME]
            .iter()
            .any(|reserved| reserved.eq_ignore_ascii_case(name))
    }

    /// Under which id the queue drops what was sent before: the message's own with its content, so that two messages under
    /// one id are seen by the inbox as the conflict that they are.
    fn deduplication(&self, message: &Message) -> String {
        let Some(id) = message.id.as_ref().filter(|id| self.deduplicate && !id.as_bytes().is_empty()) else {
            return uuid::Uuid::new_v4().simple().to_string();
        };
        let content = format!("{:08x}", fingerprint(message));
        match token(id.as_bytes()).map(|id| format!("{id}.{content}")) {
            Some(token) if token.len() <= MOST_TOKEN => token,
            _ => hash(&[id.as_bytes(), content.as_bytes()]),
        }
    }
}

/// The key as a group, if SQS takes it as one.
fn group_of(key: &[u8]) -> Option<&str> {
    token(key).filter(|key| !key.starts_with(NO_KEY))
}

/// The group of a message whose key is none.
fn fallback_group(message: &Message) -> String {
    if let Some(key) = &message.key {
        return hash(&[key]);
    }
    let id = message.id.as_ref().map(|id| id.as_bytes()).filter(|id| !id.is_empty());
    let name = match id {
        Some(id) => match token(id).filter(|id| id.len() + NO_KEY.len() <= MOST_TOKEN) {
            Some(id) => id.to_owned(),
            None => hash(&[id]),
        },
        None => uuid::Uuid::new_v4().simple().to_string(),
    };
    format!("{NO_KEY}{name}")
}

/// Text that SQS takes as a group or a deduplication id: letters, digits and punctuation of ASCII.
fn token(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?;
    ((1..=MOST_TOKEN).contains(&text.len()) && text.chars().all(|c| c.is_ascii_graphic())).then_some(text)
}

fn hash(parts: &[&[u8]]) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The text of `bytes`, if SQS takes it: not empty, and no character that XML does not have.
fn text(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?;
    let legal = |c: char| matches!(c, '\t' | '\n' | '\r' | ' '..='\u{fffd}' | '\u{10000}'..);
    (!text.is_empty() && text.chars().all(legal)).then_some(text)
}

fn encoded(body: &[u8]) -> (String, Option<&'static str>) {
    match text(body) {
        Some(text) => (text.to_owned(), None),
        None if body.is_empty() => (EMPTY.to_owned(), Some(EMPTY)),
        None => (STANDARD.encode(body), Some("base64")),
    }
}

/// An attribute of any bytes.
fn attribute(value: &[u8]) -> Attribute {
    if let Some(text) = text(value) {
        return typed("String", text);
    }
    if value.is_empty() {
        return typed(&format!("String.{EMPTY}"), EMPTY);
    }
    built(Attribute::builder().data_type("Binary").binary_value(Blob::new(value)))
}

fn typed(kind: &str, text: &str) -> Attribute {
    built(Attribute::builder().data_type(kind).string_value(text))
}

#[allow(clippy::expect_used, reason = "fails without a data type only, and each caller sets one")]
fn built(builder: aws_sdk_sqs::types::builders::MessageAttributeValueBuilder) -> Attribute {
    builder.build().expect("a data type")
}

fn size_of(attribute: &Attribute) -> usize {
    attribute.data_type.len()
        + attribute.string_value.as_ref().map_or(0, String::len)
        + attribute.binary_value.as_ref().map_or(0, |blob| blob.as_ref().len())
}

#[cfg(test)]
#[path = "convert_tests.rs"]
mod tests;
