//! Pub/Sub: google-cloud-pubsub.

use serde_json::{Value, json};

use crate::{
    BODY, EVENT, EVENT_TYPE, KEY, KIND, UUID, broker, consume,
    page::{self, PUBSUB},
    provision, publish,
    python::Program,
    unique,
};

/// A topic of its own for one case, with one ordered subscription.
struct Topic {
    name: String,
    project: String,
    /// `host:port` of the emulator.
    endpoint: String,
}

impl Topic {
    async fn new() -> Self {
        const EXAMPLE: &str = "pubsub://project?endpoint=http://host:port";
        let url = broker("INBOX_TEST_PUBSUB", EXAMPLE);
        let parts = url.strip_prefix("pubsub://").and_then(|url| url.split_once("?endpoint=http://"));
        let (project, endpoint) = parts.unwrap_or_else(|| panic!("INBOX_TEST_PUBSUB is not `{EXAMPLE}`"));
        let project = project.trim_end_matches('/').to_owned();
        let topic = Self { name: unique(), project, endpoint: endpoint.to_owned() };
        provision(&topic.url()).await;
        topic
    }

    fn url(&self) -> String {
        let Self { name, project, endpoint } = self;
        format!("pubsub://{project}/{name}?topic={name}&endpoint=http://{endpoint}&lease=10s")
    }

    async fn run(&self, asked: Value) -> Value {
        let Value::Object(mut asked) = asked else { unreachable!("an object") };
        let Self { name, project, endpoint } = self;
        asked.insert("topic".to_owned(), format!("projects/{project}/topics/{name}").into());
        asked.insert("subscription".to_owned(), format!("projects/{project}/subscriptions/{name}").into());
        let program = Program::new("pubsub_client.py").variable("PUBSUB_EMULATOR_HOST", endpoint.clone());
        program.run(&asked.into()).await
    }

    async fn remove(self) {
        self.run(json!({ "do": "remove" })).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_google_cloud_pubsub_publishes_is_consumed() {
    let topic = Topic::new().await;
    let asked = json!({
        "do": "publish", "page": page::snippet(PUBSUB, &[]), "body": BODY, "ids": [UUID, UUID],
        "messages": [
            { "key": KEY, "body": r#"{"payment":"p-1"}"#, "attributes": {
                "message-id": "plain-1", "message-kind": KIND, "content-type": "application/json", "trace": "t-1" } },
            { "key": KEY, "body": r#"{"payment":"p-2"}"#, "attributes": {
                "ce-specversion": "1.0", "ce-id": "binary-1", "ce-source": "/shop", "ce-type": KIND,
                "ce-traceparent": "00-1", "content-type": "application/json" } },
            { "key": KEY, "body": EVENT, "attributes": { "content-type": EVENT_TYPE } },
        ],
    });
    topic.run(asked).await;
    consume::check(&topic.url(), "ce-").await;
    topic.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_we_publish_is_read_by_google_cloud_pubsub() {
    let topic = Topic::new().await;
    publish(&topic.url()).await;
    let found = topic.run(json!({ "do": "read" })).await;
    let attributes =
        json!({ "message-id": UUID, "message-kind": KIND, "content-type": "application/json", "trace": "t-9" });
    assert_eq!(found, json!({ "attributes": attributes, "key": KEY, "body": BODY }));
    topic.remove().await;
}
