//! Messages as clients of other languages write and read them, by Amazon's own client.

use aws_sdk_sqs::{
    Client,
    config::{Builder, Region},
    primitives::Blob,
    types::{MessageAttributeValue, MessageSystemAttributeName},
};
use inbox_core::{Bytes, IdText, Message, Publisher, Transport};

use crate::support::{PATIENCE, Queue, ack, moto, numbered, receipts, receive};

fn client() -> Client {
    let credentials = aws_credential_types::Credentials::new("test", "test", None, None, "tests");
    let config = Builder::new()
        .region(Region::new("us-east-1"))
        .endpoint_url(moto().replace("sqs:", "http:"))
        .credentials_provider(credentials)
        .behavior_version_latest()
        .build();
    Client::from_conf(config)
}

async fn url(client: &Client, queue: &Queue) -> String {
    client.get_queue_url().queue_name(&queue.name).send().await.expect("a queue").queue_url.expect("a URL")
}

fn text(value: &str) -> MessageAttributeValue {
    MessageAttributeValue::builder().data_type("String").string_value(value).build().expect("built")
}

#[tokio::test]
async fn what_others_send_is_understood() {
    let queue = Queue::standard("lease=30s&wait=1s").await;
    let client = client();
    let url = url(&client, &queue).await;
    let send = |body: &str| client.send_message().queue_url(&url).message_body(body);
    // Our own names; CloudEvents in binary and in structured mode; nothing at all.
    send("1")
        .message_attributes("message-id", text("a"))
        .message_attributes("message-kind", text("paid"))
        .send()
        .await
        .unwrap();
    let binary =
        MessageAttributeValue::builder().data_type("Binary").binary_value(Blob::new([0, 159])).build().unwrap();
    send("2")
        .message_attributes("ce-specversion", text("1.0"))
        .message_attributes("ce-id", text("b"))
        .message_attributes("ce-source", text("/shop"))
        .message_attributes("ce-type", text("paid"))
        .message_attributes("ce-time", text("2026-01-02T03:04:05Z"))
        .message_attributes("content-type", text("application/json"))
        .message_attributes("raw", binary)
        .send()
        .await
        .unwrap();
    let event = r#"{"specversion":"1.0","id":"c","source":"/shop","type":"paid","data":3}"#;
    let kind = text("application/cloudevents+json; charset=utf-8");
    send(event).message_attributes("content-type", kind).send().await.unwrap();
    send("4").send().await.unwrap();
    let transport = queue.connect().await;
    let mut came = receive(&transport, 4).await;
    came.sort_by_key(crate::support::number);
    let ids: Vec<Option<IdText>> = came.iter().map(|delivery| delivery.message.id.clone()).collect();
    assert_eq!(ids, [Some(IdText::new("a")), Some(IdText::new("b")), Some(IdText::new("c")), None]);
    assert!(came[..3].iter().all(|delivery| delivery.message.kind.as_deref() == Some("paid")));
    let event = &came[1].message;
    assert_eq!(event.origin.as_deref(), Some("/shop"));
    assert_eq!(event.headers.get("raw").map(|value| &value[..]), Some(&[0, 159][..]));
    assert_eq!(event.headers.get_str("content-type"), Some("application/json"));
    assert!(event.produced_at.is_some() && came.iter().all(|delivery| delivery.message.stored_at.is_some()));
    ack(&transport, came).await;
}

#[tokio::test]
async fn what_we_send_is_plain_to_others() {
    let queue = Queue::standard("lease=30s&wait=1s").await;
    let publisher = inbox_sqs::publisher(&queue.url()).await.expect("a publisher");
    let message = numbered(7, 3).header("tenant", "blue").header("content-type", "application/json");
    assert!(publisher.publish(vec![message]).await[0].is_ok());
    let client = client();
    let received = client
        .receive_message()
        .queue_url(url(&client, &queue).await)
        .message_attribute_names("All")
        .message_system_attribute_names(MessageSystemAttributeName::All)
        .send()
        .await
        .expect("received")
        .messages
        .expect("some")
        .remove(0);
    assert_eq!(received.body.as_deref(), Some("7"));
    let attributes = received.message_attributes.expect("some");
    for (name, value) in
        [("message-id", "id-7"), ("message-kind", "numbered"), ("message-key", "key-1"), ("tenant", "blue")]
    {
        assert_eq!(attributes[name].string_value(), Some(value), "{name}");
    }
}

#[tokio::test]
async fn any_bytes_come_back_over_a_fifo_queue_too() {
    let queue = Queue::new(&moto(), ".fifo", "lease=30s&wait=1s").await;
    let publisher = inbox_sqs::publisher(&queue.url()).await.expect("a publisher");
    let bytes: Vec<u8> = (0..=255).collect();
    let sent = vec![
        Message::new(Bytes::from(bytes.clone()))
            .id(bytes.clone())
            .kind("größe 🦀")
            .key(bytes.clone())
            .header("twice", "1")
            .header("twice", bytes),
        Message::new(Bytes::new()).id("plain"),
        Message::new(Bytes::from_static(b"nothing else")),
    ];
    assert!(publisher.publish(sent.clone()).await.iter().all(Result::is_ok));
    let transport = queue.connect().await;
    let came = receive(&transport, 3).await;
    for message in &sent {
        let found = came.iter().find(|delivery| delivery.message.body == message.body).expect("it came");
        let found = &found.message;
        assert_eq!((&found.id, &found.kind, &found.key), (&message.id, &message.kind, &message.key));
        assert!(found.headers == message.headers, "{found:?}");
    }
    assert_eq!(transport.ack(receipts(came)).await.expect("acked").acked, 3);
    transport.close(PATIENCE).await.expect("closed");
}
