//! Requests are signed for the region and the credentials that were given, and ask for what the adapter needs.

use inbox_core::Transport;
use inbox_sqs::{SqsConfig, SqsTransport};
use serde_json::json;

use crate::{
    service::Service,
    support::{Queue, ack, at_most, receive},
};

#[tokio::test]
async fn receives_ask_for_attributes_and_wait() {
    let service = Service::start();
    let queue = Queue::of(&service, "", "lease=40s&wait=7s").await;
    queue.publish(0..1, 1).await;
    let transport = queue.connect().await;
    let held = receive(&transport, 1).await;
    ack(&transport, held).await;
    let request = service.requests("ReceiveMessage").remove(0);
    let url = format!("http://{}/123456789012/{}", service.address(), queue.name);
    assert_eq!(request.body["QueueUrl"], url);
    assert_eq!(request.body["WaitTimeSeconds"], 7);
    assert_eq!(request.body["VisibilityTimeout"], 40);
    assert_eq!(request.body["MessageAttributeNames"], json!(["All"]));
    let mut system: Vec<&str> = request.body["MessageSystemAttributeNames"]
        .as_array()
        .expect("names")
        .iter()
        .map(|name| name.as_str().expect("text"))
        .collect();
    system.sort_unstable();
    assert_eq!(system, ["ApproximateReceiveCount", "MessageGroupId", "SentTimestamp"]);
    let deleted = service.requests("DeleteMessageBatch").remove(0);
    assert_eq!(deleted.body["Entries"], json!([{ "Id": "0", "ReceiptHandle": "message-0#1" }]));
}

#[tokio::test]
async fn requests_are_signed_for_region_and_credentials() {
    let service = Service::start();
    let queue = Queue::of(&service, "", "").await;
    let config = SqsConfig::new("eu-central-2", &*queue.name)
        .endpoint(format!("http://{}", service.address()))
        .account("123456789012")
        .credentials("AKIAEXAMPLE", "a secret", Some("a token".into()));
    let transport = SqsTransport::connect(config).await.expect("connected");
    drop(tokio::time::timeout(std::time::Duration::from_millis(300), transport.receive(at_most(1))).await);
    for action in ["GetQueueUrl", "GetQueueAttributes", "ReceiveMessage"] {
        let request = service.requests(action).pop().expect(action);
        let signed = &request.headers["authorization"];
        assert!(signed.contains("Credential=AKIAEXAMPLE/") && signed.contains("/eu-central-2/sqs/"), "{signed}");
        assert_eq!(request.headers["x-amz-security-token"], "a token");
        assert!(!format!("{request:?}").contains("a secret"));
    }
    assert_eq!(service.requests("GetQueueUrl")[1].body["QueueOwnerAWSAccountId"], "123456789012");
}

/// A queue's own URL is not looked up, so that nobody needs the permission for it.
#[tokio::test]
async fn a_queues_own_url_is_used_as_it_is() {
    let service = Service::start();
    let queue = Queue::of(&service, "", "").await;
    let looked_up = service.requests("GetQueueUrl").len();
    let url = format!("http://{}/123456789012/{}", service.address(), queue.name);
    for prefix in ["", "sqs+"] {
        let transport = inbox_sqs::connect(&format!("{prefix}{url}?lease=10s")).await.expect("connected");
        drop(tokio::time::timeout(std::time::Duration::from_millis(300), transport.receive(at_most(1))).await);
        assert_eq!(service.requests("ReceiveMessage").pop().expect("one").body["QueueUrl"], url);
    }
    assert_eq!(service.requests("GetQueueUrl").len(), looked_up);
}
