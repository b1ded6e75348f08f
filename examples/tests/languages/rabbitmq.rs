//! RabbitMQ: pika.

use serde_json::{Value, json};

use crate::{
    BODY, EVENT, EVENT_TYPE, KEY, KIND, UUID, broker, consume,
    page::{self, PIKA},
    provision, publish,
    python::Program,
    unique,
};

/// A queue of its own for one case, bound to an exchange of its own where the case publishes to one.
struct Queue {
    name: String,
    exchange: bool,
    /// `rabbitmq://user:password@host:port`.
    broker: String,
}

impl Queue {
    async fn new(exchange: bool) -> Self {
        let broker = broker("INBOX_TEST_RABBITMQ", "rabbitmq://user:password@host:port");
        let queue = Self { name: unique(), exchange, broker };
        provision(&queue.url()).await;
        queue
    }

    fn url(&self) -> String {
        let name = &self.name;
        let exchange = if self.exchange { format!("&exchange={name}&routing_key=captured") } else { String::new() };
        format!("{}?queue={name}{exchange}", self.broker)
    }

    async fn run(&self, asked: Value) -> Value {
        let Value::Object(mut asked) = asked else { unreachable!("an object") };
        let url = format!("{}/%2f", self.broker.replacen("rabbitmq:", "amqp:", 1));
        asked.insert("url".to_owned(), url.into());
        asked.insert("queue".to_owned(), self.name.as_str().into());
        if self.exchange {
            asked.insert("exchange".to_owned(), self.name.as_str().into());
        }
        Program::new("pika_client.py").run(&asked.into()).await
    }

    fn page(&self) -> String {
        page::snippet(PIKA, &[("\"payments\"", &format!("{:?}", self.name))])
    }

    async fn remove(self) {
        self.run(json!({ "do": "remove" })).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_pika_publishes_is_consumed() {
    let queue = Queue::new(true).await;
    let asked = json!({
        "do": "publish", "page": queue.page(), "body": BODY, "ids": [UUID, UUID],
        "messages": [
            { "body": r#"{"payment":"p-1"}"#, "headers": { "message-key": KEY, "trace": "t-1" }, "properties": {
                "message_id": "plain-1", "type": KIND, "content_type": "application/json" } },
            { "body": r#"{"payment":"p-2"}"#, "properties": { "content_type": "application/json" }, "headers": {
                "cloudEvents:specversion": "1.0", "cloudEvents:id": "binary-1", "cloudEvents:source": "/shop",
                "cloudEvents:type": KIND, "cloudEvents:traceparent": "00-1", "message-key": KEY } },
            { "body": EVENT, "properties": { "content_type": EVENT_TYPE }, "headers": { "message-key": KEY } },
        ],
    });
    queue.run(asked).await;
    consume::check(&queue.url(), "cloudEvents:").await;
    queue.remove().await;
}

/// As the snippet's comment promises.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pika_hears_of_a_message_that_no_queue_is_bound_for() {
    let queue = Queue::new(true).await;
    let page = page::snippet(
        PIKA,
        &[("\"payments\"", &format!("{:?}", queue.name)), ("\"captured\"", "\"nobody-is-bound-for-this\"")],
    );
    let asked = json!({ "do": "publish_unroutable", "page": page, "body": BODY });
    assert_eq!(queue.run(asked).await, json!({ "raised": ["lost"] }));
    queue.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_we_publish_is_read_by_pika() {
    let queue = Queue::new(false).await;
    publish(&queue.url()).await;
    let found = queue.run(json!({ "do": "read" })).await;
    let properties =
        json!({ "message_id": UUID, "type": KIND, "content_type": "application/json", "delivery_mode": 2 });
    assert_eq!((&found["properties"], &found["body"]), (&properties, &json!(BODY)));
    for (name, value) in [("message-key", KEY), ("trace", "t-9"), ("content-type", "application/json")] {
        assert_eq!(found["headers"][name], value, "{found}");
    }
    queue.remove().await;
}
