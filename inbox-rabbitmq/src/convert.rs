//! Between AMQP's properties and a message. Pure.
//!
//! | message | AMQP |
//! | --- | --- |
//! | id | `message_id`; a header where that cannot hold it (more than 255 bytes, no UTF-8) |
//! | kind | `type`; a header where that cannot hold it |
//! | key | a header |
//! | `produced_at` | `timestamp`, in seconds |
//! | headers | the table of headers; `content-type` and `content-encoding` are properties too |

use std::{
    collections::{BTreeMap, HashMap, VecDeque, hash_map::Entry},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use inbox_core::{Bytes, Headers, IdText, Message, TransportError, TransportErrorKind, message::printable};
use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldArray, FieldTable, ShortString},
};
use serde_json::Value;

use crate::config::{MOST_NAME, Names};

/// The names of all headers in their order, where a table cannot tell it: lapin sorts tables, and a table has each name
/// once. A name that is repeated has its values in an array then.
const ORDER: &str = "inbox-header-order";

/// How often a quorum queue has handed the message over before.
const DELIVERY_COUNT: &str = "x-delivery-count";

/// Messages outlive a restart of the broker.
const PERSISTENT: u8 = 2;

/// What the properties that are no headers take at most in a frame, beside strings: flags, delivery mode, timestamp,
/// lengths, and the frame's own bytes.
const OVERHEAD: usize = 128;

/// The message in a delivery.
pub(crate) fn message(properties: &BasicProperties, body: Vec<u8>, names: &Names) -> Message {
    let mut message = Message::new(Bytes::from(body));
    message.headers = properties.headers().as_ref().map(headers).unwrap_or_default();
    for (name, value) in [
        ("content-type", properties.content_type()),
        ("content-encoding", properties.content_encoding()),
        ("correlation-id", properties.correlation_id()),
        ("reply-to", properties.reply_to()),
        ("app-id", properties.app_id()),
        ("user-id", properties.user_id()),
    ] {
        if let Some(value) = value.as_ref().filter(|_| message.headers.get(name).is_none()) {
            message.headers.push(name, value.to_string());
        }
    }
    message.id = properties.message_id().as_ref().map(|id| IdText::new(id.to_string()));
    message.kind = properties.kind().as_ref().map(ToString::to_string);
    message.key = message.headers.get(&names.key).cloned();
    message.produced_at =
        properties.timestamp().and_then(|seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds)));
    names.envelope.open(message)
}

/// How often the message was handed over, this time included, where the queue counts it.
pub(crate) fn delivery_count(properties: &BasicProperties) -> Option<u32> {
    let before = match properties.headers().as_ref()?.inner().get(DELIVERY_COUNT)? {
        AMQPValue::LongLongInt(count) => u32::try_from(*count).ok()?,
        AMQPValue::LongInt(count) => u32::try_from(*count).ok()?,
        AMQPValue::LongUInt(count) => *count,
        AMQPValue::ShortInt(count) => u32::try_from(*count).ok()?,
        AMQPValue::ShortUInt(count) => u32::from(*count),
        AMQPValue::ShortShortInt(count) => u32::try_from(*count).ok()?,
        AMQPValue::ShortShortUInt(count) => u32::from(*count),
        _ => return None,
    };
    before.checked_add(1)
}

fn headers(table: &FieldTable) -> Headers {
    if let Some(AMQPValue::FieldArray(order)) = table.inner().get(ORDER)
        && let Some(headers) = ordered(table, order)
    {
        return headers;
    }
    table.inner().iter().map(|(name, value)| (name.to_string(), bytes(value))).collect()
}

/// The headers in the order that our publisher noted; `None` when somebody else has written what is no order.
fn ordered(table: &FieldTable, order: &FieldArray) -> Option<Headers> {
    let mut left: HashMap<&str, VecDeque<&AMQPValue>> = HashMap::new();
    let mut headers = Headers::new();
    let mut names = Vec::with_capacity(order.as_slice().len());
    for name in order.as_slice() {
        let AMQPValue::LongString(name) = name else { return None };
        names.push(std::str::from_utf8(name.as_bytes()).ok()?);
    }
    for name in names.iter().copied() {
        let values = match left.entry(name) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(match table.inner().get(name)? {
                AMQPValue::FieldArray(values) => values.as_slice().iter().collect(),
                value => VecDeque::from([value]),
            }),
        };
        headers.push(name, bytes(values.pop_front()?));
    }
    // What brokers and relays have added since.
    for (name, value) in table.inner() {
        if name.as_str() != ORDER && !left.contains_key(name.as_str()) {
            headers.push(name.to_string(), bytes(value));
        }
    }
    Some(headers)
}

/// A value as bytes: strings as they are, numbers and truth values as text, nothing as nothing, arrays and tables as
/// JSON.
fn bytes(value: &AMQPValue) -> Bytes {
    match value {
        AMQPValue::LongString(text) => Bytes::copy_from_slice(text.as_bytes()),
        AMQPValue::ByteArray(bytes) => Bytes::copy_from_slice(bytes.as_slice()),
        AMQPValue::ShortString(text) => Bytes::copy_from_slice(text.as_str().as_bytes()),
        AMQPValue::Void => Bytes::new(),
        AMQPValue::FieldArray(_) | AMQPValue::FieldTable(_) => Bytes::from(json(value).to_string()),
        AMQPValue::Boolean(_)
        | AMQPValue::ShortShortInt(_)
        | AMQPValue::ShortShortUInt(_)
        | AMQPValue::ShortInt(_)
        | AMQPValue::ShortUInt(_)
        | AMQPValue::LongInt(_)
        | AMQPValue::LongUInt(_)
        | AMQPValue::LongLongInt(_)
        | AMQPValue::Float(_)
        | AMQPValue::Double(_)
        | AMQPValue::DecimalValue(_)
        | AMQPValue::Timestamp(_) => Bytes::from(scalar(value)),
    }
}

fn scalar(value: &AMQPValue) -> String {
    match value {
        AMQPValue::Boolean(value) => value.to_string(),
        AMQPValue::ShortShortInt(value) => value.to_string(),
        AMQPValue::ShortShortUInt(value) => value.to_string(),
        AMQPValue::ShortInt(value) => value.to_string(),
        AMQPValue::ShortUInt(value) => value.to_string(),
        AMQPValue::LongInt(value) => value.to_string(),
        AMQPValue::LongUInt(value) => value.to_string(),
        AMQPValue::LongLongInt(value) => value.to_string(),
        AMQPValue::Float(value) => value.to_string(),
        AMQPValue::Double(value) => value.to_string(),
        AMQPValue::Timestamp(value) => value.to_string(),
        AMQPValue::DecimalValue(value) => {
            let scale = usize::from(value.scale);
            let digits = format!("{:0>width$}", value.value, width = scale + 1);
            let (whole, part) = digits.split_at(digits.len() - scale);
            if part.is_empty() { whole.to_owned() } else { format!("{whole}.{part}") }
        }
        AMQPValue::ShortString(text) => text.to_string(),
        AMQPValue::LongString(text) => text.to_string(),
        AMQPValue::ByteArray(bytes) => String::from_utf8_lossy(bytes.as_slice()).into_owned(),
        AMQPValue::FieldArray(_) | AMQPValue::FieldTable(_) | AMQPValue::Void => String::new(),
    }
}

fn json(value: &AMQPValue) -> Value {
    match value {
        AMQPValue::FieldArray(values) => values.as_slice().iter().map(json).collect(),
        AMQPValue::FieldTable(table) => {
            Value::Object(table.inner().iter().map(|(name, value)| (name.to_string(), json(value))).collect())
        }
        AMQPValue::Void => Value::Null,
        AMQPValue::Boolean(value) => Value::Bool(*value),
        AMQPValue::ShortShortInt(value) => Value::from(*value),
        AMQPValue::ShortShortUInt(value) => Value::from(*value),
        AMQPValue::ShortInt(value) => Value::from(*value),
        AMQPValue::ShortUInt(value) => Value::from(*value),
        AMQPValue::LongInt(value) => Value::from(*value),
        AMQPValue::LongUInt(value) => Value::from(*value),
        AMQPValue::LongLongInt(value) => Value::from(*value),
        AMQPValue::Timestamp(value) => Value::from(*value),
        AMQPValue::Float(value) => Value::from(*value),
        AMQPValue::Double(value) => Value::from(*value),
        AMQPValue::DecimalValue(_) | AMQPValue::ShortString(_) | AMQPValue::LongString(_) | AMQPValue::ByteArray(_) => {
            Value::String(scalar(value))
        }
    }
}

/// The way back: what a message is published with.
///
/// # Errors
/// `Rejected` for a header whose name AMQP cannot carry; `TooLarge` when all together does not fit into one frame: the
/// broker would close the connection.
pub(crate) fn properties(
    message: &Message,
    names: &Names,
    frame_max: usize,
) -> Result<BasicProperties, TransportError> {
    let mut properties = BasicProperties::default().with_delivery_mode(PERSISTENT);
    let mut table = Table::default();
    if let Some(id) = &message.id {
        match short(id.as_bytes()) {
            Some(text) => properties = properties.with_message_id(text),
            None => table.push(&names.envelope.id_header, id.as_bytes()),
        }
    }
    if let Some(kind) = &message.kind {
        match short(kind.as_bytes()) {
            Some(text) => properties = properties.with_type(text),
            None => table.push(&names.envelope.kind_header, kind.as_bytes()),
        }
    }
    if let Some(key) = &message.key {
        table.push(&names.key, key);
    }
    for (name, value) in message.headers.iter() {
        table.push(name, value);
    }
    if let Some(text) = message.headers.get("content-type").and_then(|value| short(value)) {
        properties = properties.with_content_type(text);
    }
    if let Some(text) = message.headers.get("content-encoding").and_then(|value| short(value)) {
        properties = properties.with_content_encoding(text);
    }
    if let Some(seconds) = message.produced_at.and_then(seconds) {
        properties = properties.with_timestamp(seconds);
    }
    let size = table.size() + OVERHEAD + 4 * (MOST_NAME + 1);
    if size > frame_max {
        return Err(TransportError::new(TransportErrorKind::TooLarge, "publish")
            .context(format!("the headers take {size} bytes, and a frame of this broker has {frame_max}")));
    }
    if let Some(table) = table.finish()? {
        properties = properties.with_headers(table);
    }
    Ok(properties)
}

/// The text, if AMQP's short strings can hold it.
fn short(bytes: &[u8]) -> Option<ShortString> {
    ShortString::try_new(std::str::from_utf8(bytes).ok()?).ok()
}

fn seconds(time: SystemTime) -> Option<u64> {
    time.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs())
}

/// Headers on their way into a table.
#[derive(Default)]
struct Table<'a> {
    order: Vec<&'a str>,
    values: BTreeMap<&'a str, Vec<&'a [u8]>>,
}

impl<'a> Table<'a> {
    fn push(&mut self, name: &'a str, value: &'a [u8]) {
        self.order.push(name);
        self.values.entry(name).or_default().push(value);
    }

    /// Whether a table has the order of itself: its names, each once, as lapin sorts them.
    fn is_ordered(&self) -> bool {
        self.order.is_sorted_by(|one, next| one < next)
    }

    /// What it takes in a frame, at most: each value and each name with their lengths and type tags, the order too.
    fn size(&self) -> usize {
        let values: usize = self.values.values().flatten().map(|value| value.len() + 5).sum();
        let names: usize = self.values.keys().map(|name| name.len() + 1 + 5).sum();
        let order: usize = self.order.iter().map(|name| name.len() + 5).sum();
        values + names + if self.is_ordered() { 0 } else { order + ORDER.len() + 6 }
    }

    fn finish(self) -> Result<Option<FieldTable>, TransportError> {
        if self.order.is_empty() {
            return Ok(None);
        }
        let mut table = FieldTable::default();
        if !self.is_ordered() {
            let order: Vec<AMQPValue> = self.order.iter().map(|name| value(name.as_bytes())).collect();
            table.insert(ORDER.into(), AMQPValue::FieldArray(order.into()));
        }
        for (name, mut values) in self.values {
            let Some(name) = short(name.as_bytes()).filter(|_| name != ORDER) else {
                return Err(TransportError::new(TransportErrorKind::Rejected, "publish").context(format!(
                    "the header name `{}` has more than {MOST_NAME} bytes, or is reserved",
                    printable(name.as_bytes(), 40)
                )));
            };
            let value = match (values.pop(), values.is_empty()) {
                (Some(only), true) => value(only),
                (last, _) => {
                    let all: Vec<AMQPValue> = values.into_iter().chain(last).map(value).collect();
                    AMQPValue::FieldArray(all.into())
                }
            };
            table.insert(name, value);
        }
        Ok(Some(table))
    }
}

/// Text as text, which other clients show as such; everything else as bytes.
fn value(bytes: &[u8]) -> AMQPValue {
    match std::str::from_utf8(bytes) {
        Ok(text) => AMQPValue::LongString(text.into()),
        Err(_) => AMQPValue::ByteArray(bytes.into()),
    }
}

#[cfg(test)]
#[path = "convert_tests.rs"]
mod tests;
