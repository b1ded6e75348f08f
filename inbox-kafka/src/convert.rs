//! From a record to a message. Pure.

use std::{
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use inbox_core::{Message, envelope::Envelope};
use rdkafka::{
    Timestamp,
    message::{Headers, Message as Record},
};

/// The message in `record`. Body, key and header values share one allocation.
///
/// A tombstone (a record without a value) has an empty body, and a header without a value an empty one. The producer's
/// time (`CreateTime`) becomes `produced_at`, the broker's (`LogAppendTime`) `stored_at`.
pub(crate) fn message<R: Record>(record: &R, envelope: &Envelope) -> Message {
    let payload = record.payload().unwrap_or_default();
    let key = record.key();
    let mut bytes = Vec::with_capacity(payload.len() + key.map_or(0, <[u8]>::len) + 64);
    let body = append(&mut bytes, payload);
    let key = key.map(|key| append(&mut bytes, key));
    let headers = record.headers().map_or_else(Vec::new, |headers| named(headers, &mut bytes));

    let bytes = Bytes::from(bytes);
    let mut message = Message::new(bytes.slice(body));
    message.key = key.map(|key| bytes.slice(key));
    message.headers = headers.into_iter().map(|(name, value)| (name, bytes.slice(value))).collect();
    match record.timestamp() {
        Timestamp::CreateTime(millis) => message.produced_at = time(millis),
        Timestamp::LogAppendTime(millis) => message.stored_at = time(millis),
        Timestamp::NotAvailable => {}
    }
    envelope.open(message)
}

fn append(bytes: &mut Vec<u8>, part: &[u8]) -> Range<usize> {
    let start = bytes.len();
    bytes.extend_from_slice(part);
    start..bytes.len()
}

fn named<H: Headers>(headers: &H, bytes: &mut Vec<u8>) -> Vec<(String, Range<usize>)> {
    (0..headers.count())
        .filter_map(|index| {
            // rdkafka 0.39 panics at a name that is not UTF-8: one such record must not end the polling thread.
            match catch_unwind(AssertUnwindSafe(|| headers.try_get(index))) {
                Ok(header) => {
                    let header = header?;
                    Some((header.key.to_owned(), append(bytes, header.value.unwrap_or_default())))
                }
                Err(_) => {
                    tracing::warn!(index, "left out a header whose name is not UTF-8");
                    None
                }
            }
        })
        .collect()
}

/// Milliseconds since 1970; what lies before is no time of a message.
fn time(millis: i64) -> Option<SystemTime> {
    u64::try_from(millis).ok().and_then(|millis| UNIX_EPOCH.checked_add(Duration::from_millis(millis)))
}

/// The way back: what the publisher stamps a record with.
pub(crate) fn millis(time: SystemTime) -> Option<i64> {
    time.duration_since(UNIX_EPOCH).ok().and_then(|since| i64::try_from(since.as_millis()).ok())
}

#[cfg(test)]
mod tests {
    use inbox_core::IdText;
    use proptest::prelude::*;
    use rdkafka::message::{Header, OwnedHeaders, OwnedMessage};

    use super::*;

    fn record(
        payload: Option<&[u8]>,
        key: Option<&[u8]>,
        at: Timestamp,
        headers: &[(&str, Option<&[u8]>)],
    ) -> OwnedMessage {
        let headers =
            headers.iter().fold(OwnedHeaders::new(), |all, (key, value)| all.insert(Header { key, value: *value }));
        OwnedMessage::new(payload.map(Into::into), key.map(Into::into), "t".into(), at, 3, 7, Some(headers))
    }

    #[test]
    fn a_plain_record() {
        let record = record(
            Some(b"{}"),
            Some(b"order-1"),
            Timestamp::CreateTime(1_700_000_000_123),
            &[("message-id", Some(b"a-1")), ("message-kind", Some(b"paid")), ("trace", Some(b"x")), ("empty", None)],
        );
        let message = message(&record, &Envelope::default());
        assert_eq!((&message.body[..], message.key.as_deref()), (&b"{}"[..], Some(&b"order-1"[..])));
        assert_eq!((message.id, message.kind.as_deref()), (Some(IdText::new("a-1")), Some("paid")));
        assert_eq!(message.produced_at, Some(UNIX_EPOCH + Duration::from_millis(1_700_000_000_123)));
        assert_eq!((message.headers.get_str("trace"), message.headers.get_str("empty")), (Some("x"), Some("")));
        assert_eq!(message.stored_at, None);
    }

    #[test]
    fn a_tombstone_with_the_brokers_time() {
        let record = record(None, None, Timestamp::LogAppendTime(5), &[]);
        let message = message(&record, &Envelope::default());
        assert!(message.body.is_empty() && message.key.is_none() && message.id.is_none());
        assert_eq!((message.produced_at, message.stored_at), (None, Some(UNIX_EPOCH + Duration::from_millis(5))));
    }

    #[test]
    fn times_before_1970_are_none() {
        for at in [Timestamp::CreateTime(-1), Timestamp::CreateTime(i64::MIN), Timestamp::NotAvailable] {
            let message = message(&record(None, None, at, &[]), &Envelope::default());
            assert_eq!(message.produced_at, None);
        }
    }

    #[test]
    fn a_cloud_event() {
        let record = record(
            Some(b"1"),
            None,
            Timestamp::NotAvailable,
            &[
                ("ce_specversion", Some(b"1.0")),
                ("ce_id", Some(b"42")),
                ("ce_type", Some(b"paid")),
                ("ce_source", Some(b"/shop")),
            ],
        );
        let message = message(&record, &Envelope::default());
        assert_eq!((message.id, message.origin.as_deref()), (Some(IdText::new("42")), Some("/shop")));
    }

    /// Panics at one header, as rdkafka does at a name that is not UTF-8.
    struct Poison;

    impl Headers for Poison {
        fn count(&self) -> usize {
            3
        }
        fn try_get(&self, index: usize) -> Option<Header<'_, &[u8]>> {
            assert!(index != 1, "not UTF-8");
            Some(Header { key: if index == 0 { "a" } else { "b" }, value: Some(b"v") })
        }
    }

    #[test]
    fn a_header_that_rdkafka_cannot_read_is_left_out() {
        let mut bytes = Vec::new();
        let names: Vec<String> = named(&Poison, &mut bytes).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["a", "b"]);
    }

    proptest! {
        #[test]
        fn parts_do_not_mix(
            payload in prop::option::of(prop::collection::vec(any::<u8>(), 0..60)),
            key in prop::option::of(prop::collection::vec(any::<u8>(), 0..20)),
            headers in prop::collection::vec(("[a-z]{1,9}", prop::option::of(prop::collection::vec(any::<u8>(), 0..20))), 0..5),
            at in any::<i64>(),
        ) {
            let listed: Vec<(&str, Option<&[u8]>)> = headers.iter().map(|(n, v)| (n.as_str(), v.as_deref())).collect();
            let record = record(payload.as_deref(), key.as_deref(), Timestamp::CreateTime(at), &listed);
            let message = message(&record, &Envelope { id_header: "\u{1}".into(), kind_header: "\u{2}".into() });
            prop_assert_eq!(&message.body[..], payload.as_deref().unwrap_or_default());
            prop_assert_eq!(message.key.as_deref(), key.as_deref());
            let back: Vec<(String, Vec<u8>)> = message.headers.iter().map(|(n, v)| (n.to_owned(), v.to_vec())).collect();
            let sent: Vec<(String, Vec<u8>)> = headers.into_iter().map(|(n, v)| (n, v.unwrap_or_default())).collect();
            prop_assert_eq!(back, sent);
            prop_assert_eq!(message.produced_at.and_then(millis), Some(at).filter(|at| *at >= 0));
        }
    }
}
