//! Between an entry of a stream and a message. Pure.
//!
//! An entry is a list of fields with values: bytes, in order, names repeated. So nothing is packed; only a header that has
//! the name of a field with another meaning gets another name.

use std::{
    borrow::Cow,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use inbox_core::{Bytes, IdText, Message, TransportError, TransportErrorKind};
use redis::Value;

use crate::config::Names;

/// When the producer made the message, in milliseconds since 1970.
pub(crate) const TIME: &str = "message-time";
/// In front of the name of a header that would be taken for something else.
const ESCAPE: &str = "header.";
/// The largest value that a server takes, unless `proto-max-bulk-len` says otherwise. It closes the connection on a larger
/// one, with all that is under way.
const MOST_VALUE: usize = 512 << 20;

/// An entry as the server gives it.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: Box<str>,
    /// Names and values, one behind the other.
    pub(crate) fields: Vec<Bytes>,
}

/// An entry that another consumer left, with what the script adds.
#[derive(Debug)]
pub(crate) struct Left {
    pub(crate) entry: Entry,
    /// How often it was handed over, this time included.
    pub(crate) count: u32,
    /// Whether its lease has ended; otherwise it was given back.
    pub(crate) suspect: bool,
}

/// A name and a value.
pub(crate) type Field<'a> = (Cow<'a, str>, Cow<'a, [u8]>);

/// The fields of a message, in the order in which they are written.
///
/// # Errors
/// `TooLarge`.
pub(crate) fn fields<'a>(message: &'a Message, names: &'a Names) -> Result<Vec<Field<'a>>, TransportError> {
    let mut fields: Vec<Field<'a>> = Vec::with_capacity(message.headers.len() + 5);
    if let Some(id) = &message.id {
        fields.push((Cow::Borrowed(&names.envelope.id_header), Cow::Borrowed(id.as_bytes())));
    }
    if let Some(kind) = &message.kind {
        fields.push((Cow::Borrowed(&names.envelope.kind_header), Cow::Borrowed(kind.as_bytes())));
    }
    if let Some(key) = &message.key {
        fields.push((Cow::Borrowed(&names.key), Cow::Borrowed(key)));
    }
    if let Some(since) = message.produced_at.and_then(|time| time.duration_since(UNIX_EPOCH).ok()) {
        fields.push((Cow::Borrowed(TIME), Cow::Owned(since.as_millis().to_string().into_bytes())));
    }
    for (name, value) in message.headers.iter() {
        let name = if is_escaped(name, names) { Cow::Owned(format!("{ESCAPE}{name}")) } else { Cow::Borrowed(name) };
        fields.push((name, Cow::Borrowed(value)));
    }
    fields.push((Cow::Borrowed(&names.body), Cow::Borrowed(&message.body)));
    match fields.iter().find(|(name, value)| name.len().max(value.len()) > MOST_VALUE) {
        None => Ok(fields),
        Some((name, value)) => Err(TransportError::new(TransportErrorKind::TooLarge, "publish").context(format!(
            "`{}` has {} bytes, and a server takes {MOST_VALUE}",
            name.chars().take(40).flat_map(char::escape_debug).collect::<String>(),
            name.len().max(value.len())
        ))),
    }
}

/// Whether a header of this name is written under another.
fn is_escaped(mut name: &str, names: &Names) -> bool {
    while let Some(rest) = name.strip_prefix(ESCAPE) {
        name = rest;
    }
    names.has(name)
}

/// The message in an entry.
pub(crate) fn message(entry: Entry, names: &Names) -> Message {
    let stored_at = entry.id.split_once('-').and_then(|(millis, _)| time_of(millis));
    let mut message = Message::new(Bytes::new());
    message.stored_at = stored_at;
    let mut body = None;
    let mut fields = entry.fields.into_iter();
    while let (Some(name), Some(value)) = (fields.next(), fields.next()) {
        let name = String::from_utf8_lossy(&name);
        let text = |value: &Bytes| std::str::from_utf8(value).map(str::to_owned).ok();
        // What is there twice, or is not what it should be, stays a header.
        if name == names.body && body.is_none() {
            body = Some(value);
        } else if name == names.envelope.id_header && message.id.is_none() {
            message.id = Some(IdText::new(value));
        } else if name == names.envelope.kind_header
            && message.kind.is_none()
            && let Some(kind) = text(&value)
        {
            message.kind = Some(kind);
        } else if name == names.key && message.key.is_none() {
            message.key = Some(value);
        } else if name == TIME
            && message.produced_at.is_none()
            && let Some(time) = text(&value).and_then(|millis| time_of(&millis))
        {
            message.produced_at = Some(time);
        } else {
            let unescaped = name.strip_prefix(ESCAPE).filter(|_| is_escaped(&name, names));
            message.headers.push(unescaped.unwrap_or(&name), value);
        }
    }
    message.body = body.unwrap_or_default();
    names.envelope.open(message)
}

fn time_of(millis: &str) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_millis(millis.parse().ok()?))
}

/// The entries in the answer to `XREADGROUP` of one stream; `None` when it is no such answer.
pub(crate) fn read(answer: Value) -> Option<Vec<Entry>> {
    if answer == Value::Nil {
        return Some(Vec::new());
    }
    let Value::Array(mut streams) = answer else { return None };
    let Value::Array(mut stream) = streams.pop()? else { return None };
    let Value::Array(entries) = stream.pop()? else { return None };
    entries.into_iter().map(entry).collect()
}

fn entry(value: Value) -> Option<Entry> {
    let Value::Array(mut pair) = value else { return None };
    let fields = pair.pop()?;
    entry_of(pair.pop()?, fields)
}

fn entry_of(id: Value, fields: Value) -> Option<Entry> {
    let Value::BulkString(id) = id else { return None };
    let Value::Array(fields) = fields else { return None };
    let bytes = |value| match value {
        Value::BulkString(bytes) => Some(Bytes::from(bytes)),
        _ => None,
    };
    let fields = fields.into_iter().map(bytes).collect::<Option<_>>()?;
    Some(Entry { id: String::from_utf8(id).ok()?.into(), fields })
}

/// What the script that takes what others left has answered: where to go on, and the entries.
pub(crate) fn left(answer: Value) -> Option<(String, Vec<Left>)> {
    let Value::Array(mut answer) = answer else { return None };
    let Value::Array(taken) = answer.pop()? else { return None };
    let Value::BulkString(cursor) = answer.pop()? else { return None };
    let left = |value| {
        let Value::Array(mut parts) = value else { return None };
        let fields = parts.pop()?;
        let Value::Int(suspect) = parts.pop()? else { return None };
        let Value::Int(count) = parts.pop()? else { return None };
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        Some(Left { entry: entry_of(parts.pop()?, fields)?, count, suspect: suspect == 1 })
    };
    Some((String::from_utf8(cursor).ok()?, taken.into_iter().map(left).collect::<Option<_>>()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(message: &Message, names: &Names) -> Entry {
        let fields = fields(message, names).expect("not too large");
        let fields = fields
            .into_iter()
            .flat_map(|(name, value)| [Bytes::from(name.into_owned()), Bytes::from(value.into_owned())])
            .collect();
        Entry { id: "1700000000123-4".into(), fields }
    }

    fn foreign(pairs: &[(&'static str, &'static str)]) -> Message {
        let fields = pairs.iter().flat_map(|(name, value)| [Bytes::from(*name), Bytes::from(*value)]).collect();
        message(Entry { id: "5-0".into(), fields }, &Names::default())
    }

    #[test]
    fn what_others_write_is_understood() {
        let plain = foreign(&[("body", "{}"), ("message-id", "7"), ("tenant", "a"), ("tenant", "b")]);
        assert_eq!((plain.id, &plain.body[..]), (Some(IdText::new("7")), &b"{}"[..]));
        assert_eq!(plain.headers.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["tenant", "tenant"]);
        assert_eq!(plain.stored_at, UNIX_EPOCH.checked_add(Duration::from_millis(5)));
        let event = foreign(&[
            ("ce_specversion", "1.0"),
            ("ce_id", "9"),
            ("ce_type", "paid"),
            ("ce_source", "/s"),
            ("body", "1"),
        ]);
        assert_eq!((event.id, event.kind.as_deref()), (Some(IdText::new("9")), Some("paid")));
        let nothing = foreign(&[("amount", "5")]);
        assert!(nothing.body.is_empty() && nothing.id.is_none() && nothing.headers.len() == 1);
        assert_eq!(foreign(&[("header.x", "1")]).headers.get_str("header.x"), Some("1"), "not ours to change");
    }

    #[test]
    fn headers_with_names_of_other_fields_come_back() {
        let names = Names::default();
        for name in ["body", "message-key", TIME, "header.body", "header.header.message-key", "header.other"] {
            let sent = Message::new(Bytes::from_static(b"b")).id("1").kind("k").key("key").header(name, "value");
            let came = message(written(&sent, &names), &names);
            assert_eq!(came.headers, sent.headers);
            assert_eq!((came.key, &came.body[..], came.produced_at), (sent.key, &b"b"[..], None));
        }
    }

    #[test]
    fn answers_that_are_none_are_noticed() {
        assert!(read(Value::Int(1)).is_none() && read(Value::Array(vec![Value::Nil])).is_none());
        assert_eq!(read(Value::Nil).map(|entries| entries.len()), Some(0));
        assert!(left(Value::Nil).is_none() && left(Value::Array(vec![Value::Int(1)])).is_none());
    }

    proptest! {
        #[test]
        fn everything_comes_back(
            id in prop::option::of(prop::collection::vec(any::<u8>(), 0..40)),
            kind in prop::option::of("\\PC{0,20}"),
            key in prop::option::of(prop::collection::vec(any::<u8>(), 0..40)),
            headers in prop::collection::vec(("(header\\.)?(body|x|\\PC{0,12})", prop::collection::vec(any::<u8>(), 0..40)), 0..6),
            body in prop::collection::vec(any::<u8>(), 0..100),
            millis in prop::option::of(0_u64..1 << 42),
        ) {
            let mut sent = Message::new(Bytes::from(body));
            sent.id = id.map(IdText::new);
            sent.kind = kind;
            sent.key = key.map(Bytes::from);
            sent.headers = headers.into_iter().map(|(name, value)| (name, Bytes::from(value))).collect();
            sent.produced_at = millis.map(|millis| UNIX_EPOCH + Duration::from_millis(millis));
            let names = Names::default();
            let came = message(written(&sent, &names), &names);
            prop_assert_eq!((came.id, came.kind, came.key), (sent.id, sent.kind, sent.key));
            prop_assert_eq!(came.headers, sent.headers);
            prop_assert_eq!((came.body, came.produced_at), (sent.body, sent.produced_at));
        }
    }
}
