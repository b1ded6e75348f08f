//! What goes wrong at the start, and what is said about it.

use std::time::{Duration, Instant};

use inbox_core::{Publisher, Transport, TransportError, TransportErrorKind, report};
use tokio::net::TcpListener;

use crate::support::{Stream, address, at_most, numbered, receive, server, unique};

/// What each way to connect says, within a time.
async fn errors(url: &str, within: Duration) -> Vec<TransportError> {
    let started = Instant::now();
    let errors = vec![
        inbox_redis::connect(url).await.expect_err("wrong"),
        inbox_redis::publisher(url).await.expect_err("wrong"),
        inbox_redis::backlog(url).await.expect_err("wrong"),
    ];
    assert!(started.elapsed() < within * 3, "{:?}", started.elapsed());
    errors
}

fn all_say(errors: Vec<TransportError>, kind: TransportErrorKind, words: &[&str]) {
    for error in errors {
        let text = report(&error);
        assert_eq!(error.kind(), kind, "{text}");
        for word in words {
            assert!(text.contains(word), "{word}: {text}");
        }
        assert!(!format!("{text} {error:?}").contains("hunter2"), "{text}");
    }
}

#[tokio::test]
async fn a_port_where_nobody_listens() {
    let errors =
        errors("redis://me:hunter2@127.0.0.1:9?stream=s&group=g&connect_timeout=1s", Duration::from_secs(2)).await;
    all_say(errors, TransportErrorKind::Unavailable, &["127.0.0.1:9"]);
}

#[tokio::test]
async fn a_host_that_does_not_exist() {
    let url = "redis://me:hunter2@no-such-host.invalid?stream=s&group=g&connect_timeout=1s";
    all_say(errors(url, Duration::from_secs(4)).await, TransportErrorKind::Unavailable, &["no-such-host.invalid:6379"]);
}

#[tokio::test]
async fn a_server_that_says_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let url = format!("redis://me:hunter2@{address}?stream=s&group=g&connect_timeout=1s");
    all_say(errors(&url, Duration::from_secs(2)).await, TransportErrorKind::Unavailable, &[&address]);
}

#[tokio::test]
async fn a_wrong_password_and_an_unknown_user() {
    for user in ["", "nobody-like-this"] {
        let url = format!("redis://{user}:hunter2@{}?stream=s&group=g", address());
        let named = if user.is_empty() { "default" } else { user };
        let errors = errors(&url, Duration::from_secs(5)).await;
        all_say(errors, TransportErrorKind::Unauthorized, &[&address(), &format!("`{named}`"), "password"]);
    }
}

#[tokio::test]
async fn a_stream_that_does_not_exist_and_a_key_that_is_none() {
    let name = unique();
    let url = format!("{}?stream={name}&group=g", server());
    all_say(errors(&url, Duration::from_secs(5)).await, TransportErrorKind::NotFound, &[&name, "inbox::provision"]);
    let other = Stream { server: server(), name: name.clone(), keys: "" };
    other.run::<()>("SET {} x").await;
    all_say(errors(&url, Duration::from_secs(5)).await, TransportErrorKind::InvalidConfig, &[&name]);
    assert_eq!(inbox_redis::provision(&url).await.expect_err("no stream").kind(), TransportErrorKind::InvalidConfig);
    other.delete().await;
}

#[tokio::test]
async fn a_url_that_is_wrong() {
    for (query, expected) in
        [("strem=s", "`strem`"), ("group=g", "`stream` is missing"), ("stream=s", "`group` is missing")]
    {
        let error = inbox_redis::connect(&format!("{}?{query}", server())).await.expect_err("wrong");
        assert_eq!(error.kind(), TransportErrorKind::InvalidConfig);
        assert!(report(&error).contains(expected), "{}", report(&error));
    }
    let url = format!("{}/99?stream=s&group=g", server());
    all_say(errors(&url, Duration::from_secs(5)).await, TransportErrorKind::InvalidConfig, &["s"]);
}

#[tokio::test]
async fn provisioning_leaves_what_is_there_as_it_is() {
    let stream = Stream::new("").await;
    stream.publish(0..3).await;
    inbox_redis::provision(&stream.url()).await.unwrap();
    inbox_redis::provision(&format!("{}?stream={}", stream.server, stream.name)).await.unwrap();
    assert_eq!((stream.backlog().await, inbox_redis::count_entries(&stream.url()).await.unwrap()), (3, 3));
    assert_eq!(stream.run::<Vec<redis::Value>>("XINFO GROUPS {}").await.len(), 1, "none is left behind");
    stream.delete().await;
}

/// The rights that the documentation names are enough, and without one of them it is said.
#[tokio::test]
async fn rights() {
    let stream = Stream::new("").await;
    let set = async |user: &str, rights: &str| {
        stream
            .run::<()>(&format!("ACL SETUSER {user} reset on >hunter2 ~{} resetchannels {rights}", stream.name))
            .await;
    };
    let url = |user: &str| format!("redis://{user}:hunter2@{}?stream={}&group=it", address(), stream.name);
    let scripts = "+evalsha +script|load";
    let consumer = format!(
        "+xreadgroup +xack +xpending +xclaim +xautoclaim +xgroup|create +xgroup|delconsumer +xinfo|consumers {scripts} \
         +config|get +client|id +client|unblock"
    );
    let users = [unique(), unique(), unique(), unique()];
    set(&users[0], &consumer).await;
    set(&users[1], "+type +multi +exec +xadd").await;
    set(&users[2], &format!("+xgroup|create +xgroup|destroy +xpending +xinfo|groups +xrange +type +xtrim {scripts}"))
        .await;
    set(&users[3], "+xgroup|create").await;

    inbox_redis::provision(&url(&users[2])).await.unwrap();
    let publisher = inbox_redis::publisher(&url(&users[1])).await.unwrap();
    for result in publisher.publish((0..4).map(numbered).collect()).await {
        result.unwrap();
    }
    let transport = inbox_redis::connect(&url(&users[0])).await.unwrap();
    assert!(transport.capabilities().durable);
    let held = receive(&transport, 4).await;
    transport.release(held.into_iter().map(|delivery| delivery.receipt).collect()).await.unwrap();
    crate::support::ack(&transport, receive(&transport, 4).await).await;
    transport.close(crate::support::PATIENCE).await.unwrap();
    assert_eq!(inbox_redis::backlog(&url(&users[2])).await.unwrap(), 0);
    assert_eq!(inbox_redis::trim(&url(&users[2])).await.unwrap(), 3);
    assert_eq!(stream.run::<Vec<redis::Value>>("XINFO CONSUMERS {} it").await.len(), 1, "only nobody is left");

    // May neither read nor ask about the server.
    let transport = inbox_redis::connect(&url(&users[3])).await.unwrap();
    assert!(!transport.capabilities().durable, "not known, so not promised");
    let refused = tokio::time::timeout(Duration::from_secs(5), transport.receive(at_most(1))).await.unwrap();
    all_say(vec![refused.expect_err("no right")], TransportErrorKind::Unauthorized, &[&users[3], &stream.name]);
    let publisher = inbox_redis::publisher(&url(&users[0])).await.expect_err("no right to ask");
    all_say(vec![publisher], TransportErrorKind::Unauthorized, &[&users[0]]);
    for user in &users {
        stream.run::<()>(&format!("ACL DELUSER {user}")).await;
    }
    stream.delete().await;
}
