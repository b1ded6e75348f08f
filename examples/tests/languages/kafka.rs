//! Kafka: confluent-kafka, which is librdkafka, and kafka-python, which is Python alone.

use serde_json::{Value, json};

use crate::{
    BODY, EVENT, EVENT_TYPE, KEY, KIND, UUID, broker, consume,
    page::{self, CONFLUENT_KAFKA, KAFKA_PYTHON},
    provision, publish,
    python::Program,
    unique,
};

/// A topic of its own for one case.
struct Topic {
    name: String,
    /// `host:port`.
    servers: String,
}

impl Topic {
    async fn new() -> Self {
        let servers = broker("INBOX_TEST_KAFKA", "kafka://host:port").trim_start_matches("kafka://").to_owned();
        let topic = Self { name: unique(), servers };
        provision(&topic.url()).await;
        topic
    }

    fn url(&self) -> String {
        format!("kafka://{}/{}?group=languages&partitions=1", self.servers, self.name)
    }

    async fn run(&self, file: &'static str, asked: Value) -> Value {
        let Value::Object(mut asked) = asked else { unreachable!("an object") };
        asked.insert("servers".to_owned(), self.servers.as_str().into());
        asked.insert("topic".to_owned(), self.name.as_str().into());
        Program::new(file).run(&asked.into()).await
    }

    async fn consumed_from(self, file: &'static str, title: &str) {
        let names = [("127.0.0.1:9092", self.servers.as_str()), ("\"payments\"", &format!("{:?}", self.name))];
        let asked = json!({
            "do": "publish", "page": page::snippet(title, &names), "body": BODY, "ids": [UUID, UUID],
            "messages": [
                { "key": KEY, "body": r#"{"payment":"p-1"}"#, "headers": {
                    "message-id": "plain-1", "message-kind": KIND, "content-type": "application/json", "trace": "t-1" } },
                { "key": KEY, "body": r#"{"payment":"p-2"}"#, "headers": {
                    "ce_specversion": "1.0", "ce_id": "binary-1", "ce_source": "/shop", "ce_type": KIND,
                    "ce_traceparent": "00-1", "content-type": "application/json" } },
                { "key": KEY, "body": EVENT, "headers": { "content-type": EVENT_TYPE } },
            ],
        });
        self.run(file, asked).await;
        consume::check(&self.url(), "ce_").await;
        self.remove().await;
    }

    async fn read_by(self, file: &'static str) {
        publish(&self.url()).await;
        let found = self.run(file, json!({ "do": "read" })).await;
        let headers = json!({
            "message-id": UUID, "message-kind": KIND, "content-type": "application/json", "trace": "t-9" });
        assert_eq!(found, json!({ "key": KEY, "headers": headers, "body": BODY }));
        self.remove().await;
    }

    async fn remove(self) {
        self.run("confluent_kafka_client.py", json!({ "do": "remove" })).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_confluent_kafka_publishes_is_consumed() {
    Topic::new().await.consumed_from("confluent_kafka_client.py", CONFLUENT_KAFKA).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_kafka_python_publishes_is_consumed() {
    Topic::new().await.consumed_from("kafka_python_client.py", KAFKA_PYTHON).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_we_publish_is_read_by_confluent_kafka() {
    Topic::new().await.read_by("confluent_kafka_client.py").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_we_publish_is_read_by_kafka_python() {
    Topic::new().await.read_by("kafka_python_client.py").await;
}
