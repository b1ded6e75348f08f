use inbox_core::Bytes;
use proptest::prelude::*;

use super::*;

fn names() -> Names {
    Names::default()
}

fn outgoing(names: &Names, fifo: bool) -> Outgoing<'_> {
    Outgoing { names, fifo, deduplicate: true, limit: 1 << 20 }
}

/// What a consumer receives of an entry.
fn received(entry: &Entry) -> Received {
    let received = Received::builder().message_id("m").receipt_handle("r").body(&entry.body);
    let received = match &entry.fifo {
        Some(fifo) => received.attributes(System::MessageGroupId, &fifo.group),
        None => received,
    };
    received
        .attributes(System::SentTimestamp, "1700000000123")
        .attributes(System::ApproximateReceiveCount, "3")
        .set_message_attributes(Some(entry.attributes.clone()))
        .build()
}

fn sent(message: &Message, fifo: bool) -> Entry {
    outgoing(&names(), fifo).entry(message).expect("it fits")
}

fn back(message: &Message, fifo: bool) -> Message {
    super::message(received(&sent(message, fifo)), &names(), fifo, false)
}

fn listed(headers: &Headers) -> Vec<(String, Bytes)> {
    headers.iter().map(|(name, value)| (name.to_owned(), value.clone())).collect()
}

fn same(one: &Message, other: &Message) -> bool {
    (&one.body, &one.id, &one.kind, &one.key, listed(&one.headers))
        == (&other.body, &other.id, &other.kind, &other.key, listed(&other.headers))
}

#[test]
fn a_plain_message_is_written_plainly() {
    let message = Message::new(Bytes::from_static(b"{\"a\": 1}"))
        .id("a-1")
        .kind("paid")
        .key("order-1")
        .header("tenant", "blue")
        .produced_at(UNIX_EPOCH + Duration::from_millis(5));
    let entry = sent(&message, false);
    assert_eq!(entry.body, "{\"a\": 1}");
    let mut texts: Vec<(&str, &str)> =
        entry.attributes.iter().map(|(n, v)| (n.as_str(), v.string_value().expect("text"))).collect();
    texts.sort_unstable();
    let expected = [("message-id", "a-1"), ("message-key", "order-1"), ("message-kind", "paid"), ("message-time", "5")];
    assert_eq!(texts[..4], expected);
    assert_eq!((texts[4], entry.fifo.as_ref()), (("tenant", "blue"), None));
    let back = back(&message, false);
    assert!(same(&back, &message), "{back:?}");
    assert_eq!(back.produced_at, message.produced_at);
    assert_eq!(back.stored_at, Some(UNIX_EPOCH + Duration::from_millis(1_700_000_000_123)));
}

#[test]
fn the_size_counts_names_types_and_values() {
    let entry = sent(&Message::new(Bytes::from_static(b"12345")).id("abc"), false);
    assert_eq!(entry.size, 5 + "message-id".len() + "String".len() + 3);
}

#[test]
fn what_is_no_text_comes_back() {
    let bytes: Vec<u8> = (0..=255).collect();
    for body in [Bytes::new(), Bytes::from(bytes.clone()), Bytes::from_static(b"a\0b"), Bytes::from_static(b" \r\n\t")]
    {
        let message = Message::new(body.clone())
            .id(bytes.clone())
            .kind("Ünï/🦀")
            .key(bytes.clone())
            .header("binary", bytes.clone())
            .header("empty", "");
        for fifo in [false, true] {
            let back = back(&message, fifo);
            assert!(same(&back, &message), "{body:?}");
        }
    }
    assert_eq!(sent(&Message::new(Bytes::from_static(b" \r\n\t")), false).body, " \r\n\t", "is text");
    for odd in ["\u{1}", "\u{fffe}", "\u{ffff}"] {
        assert!(text(odd.as_bytes()).is_none(), "{odd:?}");
    }
    assert!(text("\u{7f}\u{fffd}\u{10000}\u{10ffff}".as_bytes()).is_some());
}

#[test]
fn what_is_absent_stays_absent_and_what_is_empty_empty() {
    let nothing = back(&Message::new(Bytes::from_static(b"x")), true);
    assert!(nothing.id.is_none() && nothing.kind.is_none() && nothing.key.is_none() && nothing.headers.is_empty());
    let empty = back(&Message::new(Bytes::from_static(b"x")).id("").kind("").key(""), true);
    assert_eq!((empty.id, empty.kind, empty.key), (Some(IdText::new("")), Some(String::new()), Some(Bytes::new())));
}

#[test]
fn headers_keep_their_order_as_attributes() {
    let message = Message::new(Bytes::from_static(b"x")).header("b", "1").header("a", "2");
    let entry = sent(&message, false);
    assert_eq!(entry.attributes[ORDER].string_value(), Some("b,a"));
    assert!(!entry.attributes.contains_key(HEADERS));
    assert!(same(&back(&message, false), &message));
    let sorted = sent(&Message::new(Bytes::from_static(b"x")).header("a", "1").header("b", "2"), false);
    assert!(!sorted.attributes.contains_key(ORDER));
}

#[test]
fn headers_that_do_not_fit_are_packed() {
    let base = || Message::new(Bytes::from_static(b"x")).id("1").kind("k");
    let many = |n: usize| (0..n).fold(base(), |message, at| message.header(format!("h{at}"), "v"));
    assert_eq!(sent(&many(8), false).attributes.len(), 10);
    for packed in [
        many(9),
        base().header("twice", "1").header("twice", "2"),
        base().header("Case", "1").header("case", "2"),
        base().header("white space", "1"),
        base().header("", "1"),
        base().header("AWS.x", "1"),
        base().header("message-id", "somebody else's"),
        base().header("Message-Headers", "1"),
    ] {
        let entry = sent(&packed, false);
        assert!(entry.attributes.contains_key(HEADERS) && entry.attributes.len() == 3, "{packed:?}");
        assert!(same(&back(&packed, false), &packed), "{packed:?}");
    }
}

#[test]
fn a_fifo_queue_gets_group_and_deduplication() {
    let fifo = |message: &Message| sent(message, true).fifo.expect("a FIFO queue's");
    let message = Message::new(Bytes::from_static(b"x")).id("a-1").kind("paid").key("order-1");
    let entry = sent(&message, true);
    assert!(!entry.attributes.contains_key("message-key"), "the group carries it");
    let first = fifo(&message);
    assert_eq!(first.group, "order-1");
    assert!(first.deduplication.starts_with("a-1."), "{first:?}");
    assert_eq!(first, fifo(&message), "a second send is recognised");
    let other = fifo(&message.with_body(Bytes::from_static(b"y")));
    assert_ne!(other.deduplication, first.deduplication, "another content under the same id is not dropped");
    let keyless = Message::new(Bytes::from_static(b"x")).id("a-1");
    assert_eq!(fifo(&keyless).group, "no-key:a-1");
    let nameless = Message::new(Bytes::from_static(b"x"));
    assert_ne!(fifo(&nameless), fifo(&nameless), "nothing says that they are one");
    for odd in ["größe", "white space", "", "no-key:a", &"x".repeat(129)] {
        let message = Message::new(Bytes::from_static(b"x")).id(odd.to_owned()).key(odd.to_owned());
        let made = fifo(&message);
        assert!(token(made.group.as_bytes()).is_some() && token(made.deduplication.as_bytes()).is_some(), "{made:?}");
        assert!(same(&back(&message, true), &message), "{odd}");
    }
    let off = Outgoing { deduplicate: false, ..outgoing(&names(), true) }.entry(&message).expect("it fits");
    assert_ne!(off.fifo.expect("a FIFO queue's").deduplication, first.deduplication);
}

#[test]
fn the_limit_is_kept_with_attributes_and_encoding() {
    let names = names();
    let outgoing = Outgoing { limit: 1_000, ..outgoing(&names, false) };
    let sized = |n: usize, byte: u8| Message::new(Bytes::from(vec![byte; n]));
    assert_eq!(outgoing.entry(&sized(1_000, b'x')).expect("it fits").size, 1_000);
    for (message, says) in [
        (sized(1_001, b'x'), "1001 bytes attributes"),
        (sized(1_000, b'x').id("1"), "1017 bytes attributes"),
        (sized(800, 0), "as base64 since the body is no text"),
    ] {
        let error = outgoing.entry(&message).expect_err("too large");
        assert_eq!(error.kind(), TransportErrorKind::TooLarge);
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn others_attributes_become_headers() {
    let received = Received::builder()
        .body("not base64!")
        .message_attributes("n", typed("Number.int", "42"))
        .message_attributes("b", built(Attribute::builder().data_type("Binary").binary_value(Blob::new([0, 255]))))
        .message_attributes(ENCODING, typed("String", "base64"))
        .message_attributes(HEADERS, typed("String", "nonsense"))
        .build();
    assert_eq!((count(&received), group(&received)), (None, None));
    let message = super::message(received, &names(), true, false);
    assert_eq!(&message.body[..], b"not base64!");
    assert_eq!(message.headers.get_str("n"), Some("42"));
    assert_eq!(message.headers.get("b").map(|value| &value[..]), Some(&[0, 255][..]));
    assert!(message.key.is_none() && message.id.is_none() && message.stored_at.is_none());
}

#[test]
fn a_group_is_no_key_on_a_standard_queue() {
    let received = || Received::builder().body("x").attributes(System::MessageGroupId, "tenant").build();
    assert_eq!(super::message(received(), &names(), false, false).key, None);
    assert_eq!(super::message(received(), &names(), true, false).key, Some(Bytes::from("tenant")));
}

#[test]
fn cloud_events() {
    let binary = Received::builder()
        .body("1")
        .message_attributes("ce-specversion", typed("String", "1.0"))
        .message_attributes("ce-id", typed("String", "42"))
        .message_attributes("ce-type", typed("String", "paid"))
        .message_attributes("ce-source", typed("String", "/shop"))
        .build();
    let structured = Received::builder()
        .body(r#"{"specversion":"1.0","id":"42","source":"/shop","type":"paid","data":1}"#)
        .message_attributes("content-type", typed("String", "application/cloudevents+json"))
        .build();
    for received in [binary, structured] {
        let message = super::message(received, &names(), false, false);
        assert_eq!((message.id, message.origin.as_deref()), (Some(IdText::new("42")), Some("/shop")));
        assert_eq!((message.kind.as_deref(), &message.body[..]), (Some("paid"), &b"1"[..]));
    }
}

#[test]
fn a_notification_of_sns_is_opened_when_it_is_asked_for() {
    let body = r#"{"Type":"Notification","MessageId":"x","TopicArn":"arn:aws:sns:eu-west-1:1:t","Message":"{\"a\":1}",
        "Timestamp":"2026-01-02T03:04:05.678Z","SignatureVersion":"1","Signature":"s","SigningCertURL":"u",
        "UnsubscribeURL":"u","MessageAttributes":{"message-id":{"Type":"String","Value":"a-1"},
        "raw":{"Type":"Binary","Value":"AP8="},"bad":{"Type":"Binary","Value":"%"},
        "list":{"Type":"String.Array","Value":"[1]"}}}"#;
    let received = || Received::builder().body(body).message_attributes("own", typed("String", "1")).build();
    let opened = super::message(received(), &names(), false, true);
    assert_eq!((&opened.body[..], opened.id), (&b"{\"a\":1}"[..], Some(IdText::new("a-1"))));
    assert_eq!(opened.headers.get("raw").map(|value| &value[..]), Some(&[0, 255][..]));
    assert_eq!(opened.headers.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["list", "raw"]);
    let closed = super::message(received(), &names(), false, false);
    assert!(closed.id.is_none() && closed.body.starts_with(b"{\"Type\""));
    for other in ["text", "{}", r#"{"Type":"SubscriptionConfirmation","Message":"m"}"#] {
        let kept = super::message(Received::builder().body(other).build(), &names(), false, true);
        assert_eq!(&kept.body[..], other.as_bytes());
    }
}

fn any_bytes(most: usize) -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![prop::collection::vec(any::<u8>(), 0..most), "\\PC{0,20}".prop_map(String::into_bytes)]
}

proptest! {
    #[test]
    fn every_message_comes_back(
        body in any_bytes(60),
        id in prop::option::of(any_bytes(200)),
        kind in prop::option::of("\\PC{0,20}"),
        key in prop::option::of(any_bytes(200)),
        headers in prop::collection::vec((prop_oneof!["[a-z]{1,3}", "\\PC{0,9}", Just("message-id".to_owned())], any_bytes(20)), 0..12),
        fifo in any::<bool>(),
    ) {
        let mut message = Message::new(Bytes::from(body));
        message.id = id.map(IdText::new);
        message.kind = kind;
        message.key = key.map(Bytes::from);
        // A header of this name is the id of a message that has none.
        let is_kept = |name: &str| message.id.is_some() || name != "message-id";
        let headers = headers.into_iter().filter(|(name, _)| is_kept(name));
        message.headers = headers.map(|(name, value)| (name, Bytes::from(value))).collect();
        let entry = sent(&message, fifo);
        prop_assert!(entry.attributes.len() <= MOST_ATTRIBUTES);
        prop_assert!(text(entry.body.as_bytes()).is_some());
        for (name, value) in &entry.attributes {
            prop_assert!(is_attribute_name(name) && size_of(value) > value.data_type.len());
            prop_assert!(value.string_value().is_none_or(|value| text(value.as_bytes()).is_some()));
        }
        if let Some(fifo) = &entry.fifo {
            prop_assert!(token(fifo.group.as_bytes()).is_some() && token(fifo.deduplication.as_bytes()).is_some());
        }
        let back = back(&message, fifo);
        prop_assert!(same(&back, &message), "{:?} became {:?}", message, back);
    }

    #[test]
    fn anything_that_is_received_is_a_message(body in "\\PC{0,40}", names in prop::collection::vec("\\PC{0,9}", 0..4), value in any_bytes(20), sns in any::<bool>()) {
        let attributes = names.into_iter().map(|name| (name, attribute(&value))).collect();
        let received = Received::builder().body(body).set_message_attributes(Some(attributes)).build();
        drop(super::message(received, &Names::default(), true, sns));
    }
}
