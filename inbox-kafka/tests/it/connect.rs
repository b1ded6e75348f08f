//! What goes wrong at the start, and what is said about it.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    time::{Duration, Instant},
};

use inbox_core::{TransportErrorKind, report};
use inbox_kafka::{KafkaPublisher, KafkaTransport, Sasl};

use crate::support::{Topic, broker, collect_logs};

#[tokio::test]
async fn a_port_where_nobody_listens() {
    let started = Instant::now();
    let error =
        inbox_kafka::connect("kafka://127.0.0.1:9/t?group=g&connect_timeout=2s").await.expect_err("nobody there");
    assert_eq!(error.kind(), TransportErrorKind::Unavailable);
    let text = report(&error);
    assert!(text.contains("127.0.0.1:9"), "{text}");
    assert!(started.elapsed() < Duration::from_secs(5));
    let error = inbox_kafka::publisher("kafka://127.0.0.1:9/t?connect_timeout=1s").await.expect_err("nobody there");
    assert_eq!(error.kind(), TransportErrorKind::Unavailable);
}

#[tokio::test]
async fn a_topic_that_does_not_exist() {
    let url = format!("{}/no-such-topic-{}?group=g", broker(), uuid::Uuid::now_v7());
    let started = Instant::now();
    for error in [
        inbox_kafka::connect(&url).await.expect_err("missing"),
        inbox_kafka::publisher(&url).await.expect_err("missing"),
        inbox_kafka::count_records(&url).await.expect_err("missing"),
        inbox_kafka::group_lag(&url).await.expect_err("missing"),
    ] {
        assert_eq!(error.kind(), TransportErrorKind::NotFound);
        let text = report(&error);
        assert!(text.contains("no-such-topic-") && text.contains("inbox::provision"), "{text}");
    }
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_url_that_is_wrong() {
    for (query, expected) in
        [("group=g&grop=1", "`grop`"), ("", "`group` is missing"), ("group=g&kafka.nonsense=1", "`nonsense`")]
    {
        let error = inbox_kafka::connect(&format!("{}/t?{query}", broker())).await.expect_err("wrong");
        assert_eq!(error.kind(), TransportErrorKind::InvalidConfig);
        assert!(report(&error).contains(expected), "{}", report(&error));
    }
    let error = inbox_kafka::publisher(&format!("{}/a,b", broker())).await.expect_err("two topics");
    assert!(report(&error).contains("several"), "{}", report(&error));
}

#[tokio::test]
async fn provisioning_twice_is_fine() {
    let topic = Topic::new(3).await;
    inbox_kafka::provision(&topic.url("partitions=5")).await.expect("exists");
    let error = inbox_kafka::provision(
        &topic
            .url("partitions=1")
            .replace(&topic.name, &format!("{}-b", topic.name))
            .replace("partitions=1", "partitions=1&replication=7"),
    )
    .await
    .expect_err("one broker has no seven replicas");
    assert_eq!(error.kind(), TransportErrorKind::InvalidConfig, "{}", report(&error));
}

#[tokio::test]
async fn a_topic_that_is_deleted_while_it_is_read() {
    use inbox_core::Transport;
    let topic = Topic::new(2).await;
    topic.publish(0..3, 3).await;
    let transport = topic.member("kafka.topic.metadata.refresh.interval.ms=1000").await;
    drop(crate::support::receive(&transport, 3).await);
    crate::support::delete(&topic.name).await;
    let failed = async {
        loop {
            match transport.receive(crate::support::at_most(3)).await {
                Ok(deliveries) => {
                    drop(deliveries);
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(error) => break error,
            }
        }
    };
    let error = tokio::time::timeout(Duration::from_secs(60), failed).await.expect("in time");
    assert_eq!(error.kind(), TransportErrorKind::NotFound, "{}", report(&error));
    assert!(report(&error).contains(&topic.name));
}

/// A broker that knows only how to refuse a login.
fn refusing_broker() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || refuse(stream));
        }
    });
    address
}

fn refuse(mut stream: TcpStream) -> Option<()> {
    loop {
        let mut length = [0; 4];
        stream.read_exact(&mut length).ok()?;
        let mut request = vec![0; usize::try_from(i32::from_be_bytes(length)).ok()?];
        stream.read_exact(&mut request).ok()?;
        let [key, version] = [0, 2].map(|at| i16::from_be_bytes([request[at], request[at + 1]]));
        let mut answer = request[4..8].to_vec();
        match (key, version) {
            // ApiVersions: no error, and the three requests that are known.
            (18, 0) => {
                answer.extend([0, 0, 0, 0, 0, 3]);
                for (key, most) in [(18_i16, 0_i16), (17, 1), (36, 0)] {
                    answer.extend([key.to_be_bytes(), [0, 0], most.to_be_bytes()].concat());
                }
            }
            // Newer than that: UNSUPPORTED_VERSION.
            (18, _) => answer.extend([0, 35, 0, 0, 0, 0]),
            // SaslHandshake: no error, the mechanism.
            (17, _) => answer.extend([&[0, 0, 0, 0, 0, 1, 0, 5][..], b"PLAIN"].concat()),
            // SaslAuthenticate: SASL_AUTHENTICATION_FAILED, with a text.
            _ => answer.extend([&[0, 58, 0, 2][..], b"no", &[0, 0, 0, 0]].concat()),
        }
        stream.write_all(&i32::try_from(answer.len()).ok()?.to_be_bytes()).ok()?;
        stream.write_all(&answer).ok()?;
    }
}

#[tokio::test]
async fn a_refused_login_is_said_at_once() {
    let hosts = refusing_broker();
    let started = Instant::now();
    let url = format!("kafka://me:hunter2@{hosts}/t?group=g&sasl=plain");
    for error in [
        inbox_kafka::connect(&url).await.expect_err("refused"),
        inbox_kafka::publisher(&url).await.expect_err("refused"),
        inbox_kafka::provision(&url).await.expect_err("refused"),
    ] {
        assert_eq!(error.kind(), TransportErrorKind::Unauthorized, "{}", report(&error));
        let text = format!("{} {error:?}", report(&error));
        assert!(!text.contains("hunter2"), "{text}");
    }
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_failed_handshake_is_said_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let hosts = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").expect("written");
        }
    });
    let started = Instant::now();
    let url = format!("kafka+tls://{hosts}/t?group=g&connect_timeout=20s");
    let error = inbox_kafka::connect(&url).await.expect_err("no TLS there");
    assert_eq!(error.kind(), TransportErrorKind::Unauthorized, "{}", report(&error));
    assert!(report(&error).contains("SSL handshake"), "{}", report(&error));
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}

#[tokio::test]
async fn tls_at_a_port_that_speaks_in_the_clear() {
    let url = format!("{}/t?group=g&tls=true&connect_timeout=2s", broker());
    let error = inbox_kafka::connect(&url).await.expect_err("no TLS there");
    assert_eq!(error.kind(), TransportErrorKind::Unavailable, "a broker that restarts looks the same");
    // librdkafka guesses at the cause only when the broker takes its time to hang up.
    let text = report(&error);
    assert!(text.contains("PLAINTEXT") || text.contains("SSL_HANDSHAKE"), "{text}");
}

#[tokio::test]
async fn secrets_are_in_no_log_at_any_level() {
    let lines = collect_logs();
    let topic = Topic::new(1).await;
    let config = topic
        .config()
        .property("debug", "all")
        .property("ssl.key.password", "hunter2")
        .property("ssl.keystore.password", "hunter2")
        .connect_timeout(Duration::from_secs(3));
    let transport = KafkaTransport::connect(config.clone()).await.expect("connected");
    let publisher = KafkaPublisher::connect(config.clone()).await.expect("connected");
    let refused = config.sasl(Sasl::Plain, "me", "hunter2");
    let error = KafkaTransport::connect(refused.clone()).await.expect_err("no SASL there");
    let shown = format!("{transport:?} {publisher:?} {refused:?} {error:?} {}", report(&error));
    assert!(!shown.contains("hunter2"), "{shown}");
    let lines = lines.lock().expect("not poisoned");
    assert!(lines.contains("librdkafka") && lines.contains("sasl.username"), "the configuration was logged");
    assert!(!lines.contains("hunter2"), "{}", lines.lines().find(|line| line.contains("hunter2")).unwrap_or_default());
}
