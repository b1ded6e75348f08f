//! SQS, standard and FIFO queues: boto3.

use serde_json::{Value, json};

use crate::{
    BODY, EVENT, EVENT_TYPE, KEY, KIND, UUID, broker, consume,
    page::{self, BOTO3, BOTO3_FIFO},
    provision, publish,
    python::Program,
    unique,
};

/// A queue of its own for one case.
struct Queue {
    name: String,
    /// `sqs://host:port`.
    service: String,
}

impl Queue {
    async fn new(suffix: &str) -> Self {
        let service = broker("INBOX_TEST_SQS", "sqs://host:port");
        let queue = Self { name: format!("{}{suffix}", unique()), service };
        provision(&queue.url()).await;
        queue
    }

    fn url(&self) -> String {
        format!("{}/{}?wait=1s", self.service, self.name)
    }

    async fn run(&self, asked: Value) -> Value {
        let Value::Object(mut asked) = asked else { unreachable!("an object") };
        asked.insert("endpoint".to_owned(), self.service.replacen("sqs:", "http:", 1).into());
        asked.insert("queue".to_owned(), self.name.as_str().into());
        Program::new("boto3_client.py").run(&asked.into()).await
    }

    async fn remove(self) {
        self.run(json!({ "do": "remove" })).await;
    }
}

/// The messages beside those of the snippet: `key` is attributes for the key, `fifo` what a FIFO queue wants of each.
fn messages(key: &Value, fifo: impl Fn(&str) -> Value) -> Value {
    let with_key = |attributes: Value| {
        let (Value::Object(mut all), Value::Object(key)) = (attributes, key.clone()) else { unreachable!("objects") };
        all.extend(key);
        Value::Object(all)
    };
    let plain = json!({
        "message-id": "plain-1", "message-kind": KIND, "content-type": "application/json", "trace": "t-1" });
    let binary = json!({
        "ce-specversion": "1.0", "ce-id": "binary-1", "ce-source": "/shop", "ce-type": KIND,
        "ce-traceparent": "00-1", "content-type": "application/json" });
    let structured = json!({ "content-type": EVENT_TYPE });
    json!([
        { "body": r#"{"payment":"p-1"}"#, "attributes": with_key(plain), "fifo": fifo("plain-1") },
        { "body": r#"{"payment":"p-2"}"#, "attributes": with_key(binary), "fifo": fifo("binary-1") },
        { "body": EVENT, "attributes": with_key(structured), "fifo": fifo("structured-1") },
    ])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_boto3_sends_to_a_standard_queue_is_consumed() {
    let queue = Queue::new("").await;
    let messages = messages(&json!({ "message-key": KEY }), |_| json!({}));
    let page = page::snippet(BOTO3, &[]);
    let asked = json!({ "do": "publish", "page": page, "body": BODY, "ids": [UUID, UUID], "messages": messages });
    queue.run(asked).await;
    consume::check(&queue.url(), "ce-").await;
    queue.remove().await;
}

/// A FIFO queue drops what is sent twice within five minutes; under another deduplication id, as if that time were over,
/// it is up to the inbox.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_boto3_sends_to_a_fifo_queue_is_consumed() {
    let queue = Queue::new(".fifo").await;
    let messages = messages(&json!({}), |id| json!({ "MessageGroupId": KEY, "MessageDeduplicationId": id }));
    let page = page::snippet(BOTO3_FIFO, &[]);
    let asked = json!({ "do": "publish", "page": page, "body": BODY, "ids": [UUID, UUID], "messages": messages });
    queue.run(asked).await;
    let later = [("MessageDeduplicationId=event_id", "MessageDeduplicationId=event_id + \".later\"")];
    let page = page::snippet(BOTO3_FIFO, &later);
    queue.run(json!({ "do": "publish", "page": page, "body": BODY, "ids": [UUID], "messages": [] })).await;
    let (seen, numbers) = consume::consume(&queue.url(), 5).await;
    assert_eq!((numbers.received, numbers.duplicates), (5, 1), "{numbers:?}");
    consume::check_effects(&seen, "ce-");
    queue.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_we_send_is_read_by_boto3() {
    for suffix in ["", ".fifo"] {
        let queue = Queue::new(suffix).await;
        publish(&queue.url()).await;
        let found = queue.run(json!({ "do": "read" })).await;
        let mut attributes = json!({
            "message-id": UUID, "message-kind": KIND, "content-type": "application/json", "trace": "t-9" });
        let mut group = json!(KEY);
        if suffix.is_empty() {
            attributes["message-key"] = group.take();
        }
        assert_eq!(found, json!({ "attributes": attributes, "group": group, "body": BODY }));
        queue.remove().await;
    }
}
