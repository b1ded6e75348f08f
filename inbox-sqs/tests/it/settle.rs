//! Deleting: ten to a request, and each message's own answer counts.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use inbox_core::{Transport, memory::MemoryStore};
use serde_json::json;

use crate::{
    service::{Service, refused},
    support::{Act, Queue, Running, ack, numbered, numbers, receipts, receive, until},
};

#[tokio::test]
async fn what_could_not_be_deleted_right_now_is_tried_again() {
    let service = Service::start();
    let queue = Queue::of(&service, "", "lease=30s&wait=1s").await;
    queue.publish(0..25, 1).await;
    let transport = queue.connect().await;
    let held = receive(&transport, 25).await;
    let failures = AtomicUsize::new(0);
    service.fail_entries(move |action, entry| {
        let chosen = ["message-3#1", "message-17#1"].contains(&entry["ReceiptHandle"].as_str().unwrap_or_default());
        let first = action == "DeleteMessageBatch" && chosen && failures.fetch_add(1, Ordering::SeqCst) < 4;
        first.then_some(("InternalError", false))
    });
    ack(&transport, held).await;
    assert_eq!(queue.backlog().await, 0);
    let sizes: Vec<usize> = service
        .requests("DeleteMessageBatch")
        .iter()
        .map(|request| request.body["Entries"].as_array().expect("entries").len())
        .collect();
    assert_eq!(sizes.iter().filter(|size| **size == 10).count(), 2, "{sizes:?}");
    assert_eq!(sizes.iter().sum::<usize>(), 25 + 4, "only what failed is sent again: {sizes:?}");
}

/// Neither its neighbours in the request nor the others suffer for it.
#[tokio::test]
async fn one_that_cannot_be_deleted_is_lost() {
    let service = Service::start();
    let queue = Queue::of(&service, "", "lease=5s&wait=1s").await;
    queue.publish(0..12, 1).await;
    let transport = queue.connect().await;
    let held = receive(&transport, 12).await;
    service.fail_entries(|action, entry| {
        let refused = action == "DeleteMessageBatch" && entry["ReceiptHandle"] == "message-5#1";
        let silent = action == "DeleteMessageBatch" && entry["ReceiptHandle"] == "message-6#1";
        if refused { Some(("ReceiptHandleIsInvalid", true)) } else { silent.then_some(("InternalError", false)) }
    });
    let acked = transport.ack(receipts(held)).await.expect("no error");
    assert_eq!((acked.acked, acked.lost), (10, 2));
    let mut again = receive(&transport, 2).await;
    again.sort_by_key(crate::support::number);
    assert_eq!(numbers(&again), [5, 6]);
    ack(&transport, again).await;
    assert_eq!(queue.backlog().await, 0);
}

#[tokio::test]
async fn a_request_that_fails_loses_what_was_in_it() {
    let service = Service::start();
    let queue = Queue::of(&service, "", "lease=4s&wait=1s").await;
    queue.publish(0..12, 1).await;
    let transport = queue.connect().await;
    let held = receive(&transport, 12).await;
    service.meddle(|request| {
        let chosen = request.action == "DeleteMessageBatch" && request.body.to_string().contains("\"message-0#");
        chosen.then(|| refused("com.amazonaws.sqs#SomethingNew", "no"))
    });
    let acked = transport.ack(receipts(held)).await.expect("no error");
    assert_eq!((acked.acked, acked.lost), (2, 10));
}

/// The same message twice in one answer, and two messages under one id: one effect each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicates_within_one_receive() {
    let service = Service::start();
    let queue = Queue::of(&service, "", "lease=30s&wait=1s").await;
    let publisher = inbox_sqs::publisher(&queue.url()).await.expect("a publisher");
    let messages = vec![numbered(0, 1), numbered(1, 1), numbered(0, 1)];
    let answers = inbox_core::Publisher::publish(&publisher, messages).await;
    assert!(answers.iter().all(Result::is_ok));
    let twice = AtomicUsize::new(0);
    service.meddle(move |request| {
        let first = request.action == "ReceiveMessage" && twice.fetch_add(1, Ordering::SeqCst) == 0;
        first.then(|| {
            let copy = |handle: &str| {
                json!({ "MessageId": "m-7", "ReceiptHandle": handle, "Body": "7",
                        "MessageAttributes": { "message-id": { "DataType": "String", "StringValue": "id-7" },
                                               "message-key": { "DataType": "String", "StringValue": "key-0" } } })
            };
            (200, json!({ "Messages": [copy("first"), copy("second")] }))
        })
    });
    let running = Running::start(queue.connect().await, MemoryStore::default(), 100, Arc::new(|_| Act::Succeed));
    queue.drained().await;
    until("both receipts are settled", async || {
        let deleted: String =
            service.requests("DeleteMessageBatch").iter().map(|request| request.body.to_string()).collect();
        deleted.contains("\"first\"") && deleted.contains("\"second\"")
    })
    .await;
    let mut effects = running.stop().await.log("key-0");
    effects.sort_unstable();
    assert_eq!(effects, ["0", "1", "7"]);
}

/// Released is visible at once, for whoever asks, and the service counts it.
#[tokio::test]
async fn released_messages_of_a_standard_queue_go_to_others() {
    let queue = Queue::standard("lease=30s&wait=1s").await;
    queue.publish(0..12, 1).await;
    let transport = queue.connect().await;
    let mut held = receive(&transport, 12).await;
    assert!(held.iter().all(|delivery| delivery.delivery_count == Some(1)));
    let mut back = held.split_off(1);
    back.sort_by_key(crate::support::number);
    let expected = numbers(&back);
    transport.release(receipts(back)).await.expect("released");
    let other = queue.connect().await;
    let mut again = receive(&other, 11).await;
    again.sort_by_key(crate::support::number);
    assert_eq!(numbers(&again), expected);
    assert!(again.iter().all(|delivery| delivery.delivery_count == Some(2)));
    ack(&other, again).await;
    ack(&transport, held).await;
    assert_eq!(queue.backlog().await, 0);
}
