use lapin::types::DecimalValue;
use proptest::prelude::*;

use super::*;
use crate::RabbitMqConfig;

const FRAME: usize = 131_072;

fn names() -> Names {
    RabbitMqConfig::new("h").names
}

fn table(values: impl IntoIterator<Item = (&'static str, AMQPValue)>) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in values {
        table.insert(name.into(), value);
    }
    table
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

fn received(properties: &BasicProperties) -> Message {
    message(properties, b"{}".to_vec(), &names())
}

/// Publishes and receives, without a broker.
fn through(message: &Message) -> Message {
    let properties = properties(message, &names(), FRAME).expect("publishable");
    super::message(&properties, message.body.to_vec(), &names())
}

#[test]
fn a_message_of_another_client() {
    let properties = BasicProperties::default()
        .with_message_id("a-1".into())
        .with_type("paid".into())
        .with_timestamp(1_700_000_000)
        .with_content_type("application/json".into())
        .with_correlation_id("c".into())
        .with_headers(table([("message-key", text("order-1")), ("trace", text("x"))]));
    let message = received(&properties);
    assert_eq!((message.id, message.kind.as_deref()), (Some(IdText::new("a-1")), Some("paid")));
    assert_eq!((message.key.as_deref(), &message.body[..]), (Some(&b"order-1"[..]), &b"{}"[..]));
    assert_eq!(message.produced_at, Some(UNIX_EPOCH + Duration::from_secs(1_700_000_000)));
    for (name, value) in [("trace", "x"), ("content-type", "application/json"), ("correlation-id", "c")] {
        assert_eq!(message.headers.get_str(name), Some(value));
    }
}

#[test]
fn a_message_without_anything() {
    let message = received(&BasicProperties::default());
    assert!(message.id.is_none() && message.kind.is_none() && message.key.is_none() && message.produced_at.is_none());
    assert!(message.headers.is_empty());
}

#[test]
fn an_absurd_timestamp_is_none() {
    assert_eq!(received(&BasicProperties::default().with_timestamp(u64::MAX)).produced_at, None);
}

#[test]
fn header_values_of_every_type() {
    let decimal = |scale, value| AMQPValue::DecimalValue(DecimalValue { scale, value });
    let nested = table([("n", AMQPValue::LongInt(1)), ("s", text("é")), ("v", AMQPValue::Void)]);
    for (value, expected) in [
        (AMQPValue::Boolean(true), "true"),
        (AMQPValue::ShortShortInt(-1), "-1"),
        (AMQPValue::ShortShortUInt(255), "255"),
        (AMQPValue::ShortInt(-2), "-2"),
        (AMQPValue::ShortUInt(2), "2"),
        (AMQPValue::LongInt(-3), "-3"),
        (AMQPValue::LongUInt(3), "3"),
        (AMQPValue::LongLongInt(i64::MIN), "-9223372036854775808"),
        (AMQPValue::Float(1.5), "1.5"),
        (AMQPValue::Double(-2.25), "-2.25"),
        (AMQPValue::Timestamp(9), "9"),
        (decimal(2, 5), "0.05"),
        (decimal(0, 5), "5"),
        (AMQPValue::ShortString("s".into()), "s"),
        (text("größe"), "größe"),
        (AMQPValue::ByteArray(b"raw".as_slice().into()), "raw"),
        (AMQPValue::Void, ""),
        (AMQPValue::FieldArray(vec![text("a"), AMQPValue::Boolean(false)].into()), r#"["a",false]"#),
        (AMQPValue::FieldTable(nested), r#"{"n":1,"s":"é","v":null}"#),
    ] {
        let properties = BasicProperties::default().with_headers(table([("h", value.clone())]));
        assert_eq!(received(&properties).headers.get_str("h"), Some(expected), "{value:?}");
    }
}

#[test]
fn cloud_events_in_binary_mode() {
    for prefix in ["cloudEvents:", "cloudEvents_", "ce-", "ce_"] {
        let mut headers = FieldTable::default();
        for (name, value) in [
            ("specversion", "1.0"),
            ("id", "42"),
            ("type", "paid"),
            ("source", "/shop"),
            ("time", "2026-01-02T03:04:05Z"),
        ] {
            headers.insert(format!("{prefix}{name}").into(), text(value));
        }
        let message = received(&BasicProperties::default().with_headers(headers));
        assert_eq!((message.id, message.kind.as_deref()), (Some(IdText::new("42")), Some("paid")), "{prefix}");
        assert!(message.origin.as_deref() == Some("/shop") && message.produced_at.is_some());
    }
}

#[test]
fn the_property_wins_over_the_attributes_of_an_event() {
    let headers = [("ce-specversion", "1.0"), ("ce-id", "42"), ("ce-type", "paid"), ("ce-source", "/shop")];
    let headers = table(headers.map(|(name, value)| (name, text(value))));
    let properties = BasicProperties::default().with_message_id("own".into()).with_headers(headers);
    let message = received(&properties);
    assert_eq!((message.id, message.kind.as_deref()), (Some(IdText::new("own")), Some("paid")));
    assert_eq!(message.origin.as_deref(), Some("/shop"));
}

#[test]
fn cloud_events_in_structured_mode() {
    let body = br#"{"specversion":"1.0","id":"7","source":"/s","type":"paid","data":{"a": 1}}"#;
    let properties = BasicProperties::default().with_content_type("application/cloudevents+json; charset=utf-8".into());
    let message = message(&properties, body.to_vec(), &names());
    assert_eq!((message.id, message.kind.as_deref()), (Some(IdText::new("7")), Some("paid")));
    assert_eq!(&message.body[..], br#"{"a": 1}"#);
}

#[test]
fn quorum_queues_count() {
    let counted = |value| delivery_count(&BasicProperties::default().with_headers(table([(DELIVERY_COUNT, value)])));
    assert_eq!(counted(AMQPValue::LongLongInt(0)), Some(1));
    assert_eq!(counted(AMQPValue::LongInt(3)), Some(4));
    assert_eq!(counted(AMQPValue::LongLongInt(-1)), None);
    assert_eq!(counted(AMQPValue::LongUInt(u32::MAX)), None);
    assert_eq!(counted(text("3")), None);
    assert_eq!(delivery_count(&BasicProperties::default()), None);
}

#[test]
fn what_a_property_cannot_hold_is_a_header() {
    let long = "i".repeat(10_000);
    for id in [long.as_bytes(), b"\xff\xfe", b"a\0b", b"", "größe 🦀".as_bytes()] {
        let kind = String::from_utf8_lossy(id).into_owned();
        let message = Message::new(Bytes::new()).id(id.to_vec()).kind(kind.clone());
        let back = through(&message);
        assert_eq!((back.id, back.kind), (message.id, Some(kind)));
    }
}

#[test]
fn order_and_repetition_of_headers_are_kept() {
    let message = Message::new(Bytes::new())
        .key("k")
        .header("text", "value")
        .header("binary", vec![0_u8, 255])
        .header("twice", "one")
        .header("empty", "")
        .header("twice", "two")
        .header("content-type", "text/plain");
    let back = through(&message);
    let own: Vec<_> = back.headers.iter().filter(|(name, _)| *name != "message-key").collect();
    assert_eq!(own, message.headers.iter().collect::<Vec<_>>());
    assert_eq!(back.key.as_deref(), Some(&b"k"[..]));
    let sent = properties(&message, &names(), FRAME).expect("publishable");
    assert_eq!(sent.content_type().as_ref().map(ShortString::as_str), Some("text/plain"));
    // Another client sees each header by its name.
    let table = sent.headers().clone().expect("headers");
    assert_eq!(table.inner().get("text"), Some(&text("value")));
    assert_eq!(table.inner().get("twice"), Some(&AMQPValue::FieldArray(vec![text("one"), text("two")].into())));
}

#[test]
fn a_table_that_has_the_order_says_nothing_more() {
    let message = Message::new(Bytes::new()).header("a", "1").header("b", "2");
    let sent = properties(&message, &names(), FRAME).expect("publishable");
    assert_eq!(sent.headers().as_ref().map(|table| table.inner().len()), Some(2));
}

#[test]
fn an_order_that_is_none_is_a_header_like_others() {
    for order in [
        vec![AMQPValue::LongInt(1)],
        vec![text("missing")],
        vec![text("a"), text("a")],
        vec![AMQPValue::LongString(vec![255_u8].into())],
    ] {
        let table = table([("a", text("1")), (ORDER, AMQPValue::FieldArray(order.into()))]);
        let message = received(&BasicProperties::default().with_headers(table));
        assert_eq!(message.headers.get_str("a"), Some("1"));
        assert!(message.headers.get(ORDER).is_some());
    }
}

#[test]
fn what_was_added_on_the_way_comes_last() {
    let sent =
        properties(&Message::new(Bytes::new()).header("z", "1").header("b", "2"), &names(), FRAME).expect("fine");
    let mut table = sent.headers().clone().expect("headers");
    table.insert("added".into(), AMQPValue::LongInt(3));
    let message = received(&BasicProperties::default().with_headers(table));
    let shown: Vec<&str> = message.headers.iter().map(|(name, _)| name).collect();
    assert_eq!(shown, ["z", "b", "added"]);
}

#[test]
fn what_amqp_cannot_carry_is_refused() {
    let named = |name: String| properties(&Message::new(Bytes::new()).header(name, ""), &names(), FRAME);
    assert!(named("n".repeat(255)).is_ok());
    for name in ["n".repeat(256), ORDER.to_owned()] {
        assert_eq!(named(name).expect_err("no header").kind(), TransportErrorKind::Rejected);
    }
    let large = Message::new(Bytes::new()).header("h", vec![b'x'; FRAME]);
    let error = properties(&large, &names(), FRAME).expect_err("too large");
    assert_eq!(error.kind(), TransportErrorKind::TooLarge);
}

proptest! {
    #[test]
    fn messages_come_through(
        id in prop::option::of(prop::collection::vec(any::<u8>(), 0..300)),
        kind in prop::option::of("\\PC{0,90}"),
        key in prop::option::of(prop::collection::vec(any::<u8>(), 0..40)),
        headers in prop::collection::vec(("[a-c]{1,2}", prop::collection::vec(any::<u8>(), 0..20)), 0..8),
        at in prop::option::of(0_u64..1 << 40),
    ) {
        let mut message = Message::new(Bytes::from_static(b"body"));
        message.id = id.map(IdText::new);
        message.kind = kind;
        message.key = key.map(Bytes::from);
        message.headers = headers.into_iter().map(|(name, value)| (name, Bytes::from(value))).collect();
        message.produced_at = at.map(|at| UNIX_EPOCH + Duration::from_secs(at));
        let back = through(&message);
        prop_assert_eq!(&back.id, &message.id);
        prop_assert_eq!(&back.kind, &message.kind);
        prop_assert_eq!(&back.key, &message.key);
        prop_assert_eq!(back.produced_at, message.produced_at);
        let own: Vec<_> = back.headers.iter().filter(|(name, _)| !name.starts_with("message-")).collect();
        prop_assert_eq!(own, message.headers.iter().collect::<Vec<_>>());
    }

    #[test]
    fn the_size_is_never_too_small(
        headers in prop::collection::vec(("[a-d]{1,9}", prop::collection::vec(any::<u8>(), 0..50)), 0..8),
    ) {
        let mut table = Table::default();
        for (name, value) in &headers {
            table.push(name, value);
        }
        let size = table.size();
        let written = table.finish().expect("fine").map_or(0, |table| encoded(&AMQPValue::FieldTable(table)));
        prop_assert!(size + OVERHEAD >= written, "{size} for {written}");
    }
}

/// What a value takes on the wire.
fn encoded(value: &AMQPValue) -> usize {
    1 + match value {
        AMQPValue::LongString(text) => 4 + text.len(),
        AMQPValue::ByteArray(bytes) => 4 + bytes.len(),
        AMQPValue::FieldArray(values) => 4 + values.as_slice().iter().map(encoded).sum::<usize>(),
        AMQPValue::FieldTable(table) => {
            4 + table.inner().iter().map(|(name, value)| 1 + name.as_str().len() + encoded(value)).sum::<usize>()
        }
        other => panic!("never written: {other:?}"),
    }
}
