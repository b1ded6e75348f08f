//! The publisher: each message has its own answer.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use inbox_core::{Bytes, Message, Publisher, TransportErrorKind, report};
use serde_json::{Value, json};

use crate::{
    service::{Service, refused},
    support::{PATIENCE, Queue, numbered, numbers, receive},
};

fn kinds(answers: &[Result<(), inbox_core::TransportError>]) -> Vec<Option<TransportErrorKind>> {
    answers.iter().map(|answer| answer.as_ref().err().map(inbox_core::TransportError::kind)).collect()
}

fn entries(request: &crate::service::Request) -> Vec<Value> {
    request.body["Entries"].as_array().expect("entries").clone()
}

#[tokio::test]
async fn ten_to_a_request_and_each_has_its_answer() {
    let service = Service::start();
    let queue = Queue::of(&service, "", "").await;
    let publisher = inbox_sqs::publisher(&queue.url()).await.expect("a publisher");
    service.fail_entries(|action, entry| {
        let body = entry["MessageBody"].as_str().filter(|_| action == "SendMessageBatch");
        match body {
            Some("3") => Some(("InternalError", false)),
            Some("14") => Some(("InvalidMessageContents", true)),
            _ => None,
        }
    });
    let answers = publisher.publish((0..25).map(|n| numbered(n, 5)).collect()).await;
    for (n, kind) in kinds(&answers).into_iter().enumerate() {
        let expected = match n {
            3 => Some(TransportErrorKind::Unavailable),
            14 => Some(TransportErrorKind::Rejected),
            _ => None,
        };
        assert_eq!(kind, expected, "message {n}");
    }
    assert_eq!(queue.backlog().await, 23);
    let mut sizes: Vec<usize> = service.requests("SendMessageBatch").iter().map(|sent| entries(sent).len()).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [5, 10, 10]);
    assert!(publisher.publish(Vec::new()).await.is_empty());
}

#[tokio::test]
async fn a_message_that_is_too_large_is_refused_and_its_neighbours_are_stored() {
    let queue = Queue::standard("").await;
    let publisher = inbox_sqs::publisher(&queue.url()).await.expect("a publisher");
    let sized = |bytes: usize| Message::new(Bytes::from(vec![b'x'; bytes]));
    let messages = vec![sized(10), sized((1 << 20) + 1), sized((1 << 20) - 10).id("1"), sized(1 << 20), sized(600_000)];
    let answers = publisher.publish(messages).await;
    let large = Some(TransportErrorKind::TooLarge);
    assert_eq!(kinds(&answers), [None, large, large, None, None]);
    let text = report(answers[1].as_ref().expect_err("too large"));
    assert!(text.contains("1048577 bytes") && text.contains("the queue takes 1048576"), "{text}");
    assert_eq!(queue.backlog().await, 3);
}

/// Groups and deduplication, as Amazon's own client sees them, and a second send.
#[tokio::test]
async fn a_fifo_queue_gets_the_key_as_group_and_the_id_as_deduplication() {
    let service = Service::start();
    let queue = Queue::of(&service, ".fifo", "").await;
    let publisher = inbox_sqs::publisher(&queue.url()).await.expect("a publisher");
    let messages = || (0..500).map(|n| numbered(n, 20)).collect();
    for _ in 0..2 {
        let answers: Vec<_> = publisher.publish(messages()).await;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    }
    assert_eq!(queue.backlog().await, 500, "what was sent twice is stored once");
    for entry in service.requests("SendMessageBatch").iter().flat_map(entries) {
        let n: u32 = entry["MessageBody"].as_str().expect("text").parse().expect("a number");
        assert_eq!(entry["MessageGroupId"], format!("key-{}", n % 20));
        let deduplication = entry["MessageDeduplicationId"].as_str().expect("text");
        assert!(deduplication.starts_with(&format!("id-{n}.")), "{deduplication}");
        assert_eq!(entry["MessageAttributes"]["message-id"]["StringValue"], format!("id-{n}"));
    }
    // In the order of each key.
    let transport = queue.connect().await;
    let mut next: Vec<u32> = (0..20).collect();
    let mut left = 500;
    while left > 0 {
        let came = receive(&transport, 1).await;
        for n in numbers(&came) {
            let expected = &mut next[(n % 20) as usize];
            assert_eq!(n, *expected);
            *expected += 20;
        }
        left -= came.len();
        crate::support::ack(&transport, came).await;
    }
}

/// Behind one that was not stored nothing of its group is sent any more; other groups are.
#[tokio::test]
async fn what_was_not_stored_is_not_overtaken() {
    let service = Service::start();
    let queue = Queue::of(&service, ".fifo", "").await;
    let publisher = inbox_sqs::publisher(&queue.url()).await.expect("a publisher");
    // The first request with a message of key 0 fails.
    let once = AtomicBool::new(false);
    service.meddle(move |request| {
        let chosen = request.action == "SendMessageBatch" && request.body.to_string().contains("\"key-0\"");
        (chosen && !once.swap(true, Ordering::SeqCst)).then(|| refused("com.amazonaws.sqs#RequestThrottled", "no"))
    });
    // The SDK tries again what was throttled: this one fails for good.
    service.fail_entries(|action, entry| {
        (action == "SendMessageBatch" && entry["MessageBody"] == "0").then_some(("InternalError", false))
    });
    let answers = publisher.publish((0..60).map(|n| numbered(n, 2)).collect()).await;
    let stored: Vec<usize> = (0..60).filter(|n| answers[*n].is_ok()).collect();
    assert!(stored.iter().filter(|n| *n % 2 == 1).count() == 30, "the other group: {stored:?}");
    assert!(answers[0].is_err());
    // Those in the same request are the service's own doing.
    let of_group: Vec<usize> = stored.iter().copied().filter(|n| n % 2 == 0).collect();
    assert!(of_group.iter().all(|n| *n < 20), "{of_group:?}");
    let text = report(answers[58].as_ref().expect_err("not sent"));
    assert!(text.contains("an earlier message of its group was not stored"), "{text}");
}

/// One message that the service refuses together with all of its request.
#[tokio::test]
async fn a_request_that_is_refused_is_sent_one_by_one() {
    let service = Service::start();
    let queue = Queue::of(&service, "", "").await;
    let publisher = inbox_sqs::publisher(&queue.url()).await.expect("a publisher");
    service.meddle(|request| {
        let chosen =
            request.action == "SendMessageBatch" && entries(request).iter().any(|entry| entry["MessageBody"] == "4");
        chosen.then(|| refused("com.amazonaws.sqs#InvalidParameterValue", "one of them is odd"))
    });
    let answers = publisher.publish((0..12).map(|n| numbered(n, 1)).collect()).await;
    let kinds = kinds(&answers);
    assert_eq!(kinds[4], Some(TransportErrorKind::Rejected));
    assert_eq!(kinds.iter().filter(|kind| kind.is_none()).count(), 11, "{kinds:?}");
    assert_eq!(queue.backlog().await, 11);
}

#[tokio::test]
async fn credentials_that_may_send_and_nothing_else_are_enough() {
    let service = Service::start();
    let queue = Queue::of(&service, "", "").await;
    service.meddle(|request| {
        let denied = request.action == "GetQueueAttributes";
        denied.then(|| (403, json!({ "__type": "com.amazonaws.sqs#AccessDeniedException", "message": "no" })))
    });
    let publisher = inbox_sqs::publisher(&queue.url()).await.expect("a publisher");
    assert!(publisher.publish(vec![numbered(0, 1)]).await[0].is_ok());
    let error = inbox_sqs::connect(&queue.url()).await.expect_err("a consumer has to look");
    assert_eq!(error.kind(), TransportErrorKind::Unauthorized);
}

#[tokio::test]
async fn a_closed_publisher_says_so() {
    let service = Service::start();
    let queue = Queue::of(&service, "", "").await;
    let publisher = inbox_sqs::publisher(&queue.url()).await.expect("a publisher");
    publisher.close(PATIENCE).await.expect("closed");
    publisher.close(Duration::from_secs(1)).await.expect("closed");
    assert_eq!(kinds(&publisher.publish(vec![numbered(0, 1)]).await), [Some(TransportErrorKind::Closed)]);
}
