//! What goes wrong at the start, and what is said about it.

use std::{
    sync::{Mutex, Once},
    time::{Duration, Instant},
};

use inbox_core::{TransportError, TransportErrorKind, report};
use inbox_rabbitmq::{QueueType, RabbitMqAdmin, RabbitMqConfig, RabbitMqPublisher, RabbitMqTransport};
use tokio::net::TcpListener;

use crate::support::{Queue, broker, hosts, unique};

/// What each way to connect says, within a time.
async fn errors(config: &RabbitMqConfig, within: Duration) -> Vec<TransportError> {
    let started = Instant::now();
    let errors = vec![
        RabbitMqTransport::connect(config.clone()).await.expect_err("wrong"),
        RabbitMqPublisher::connect(config.clone()).await.expect_err("wrong"),
        RabbitMqAdmin::connect(config.clone()).await.expect_err("wrong"),
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
    let config = RabbitMqConfig::from_url("rabbitmq://me:hunter2@127.0.0.1:9?queue=q&connect_timeout=1s").unwrap();
    let errors = errors(&config, Duration::from_secs(2)).await;
    all_say(errors, TransportErrorKind::Unavailable, &["127.0.0.1:9"]);
}

#[tokio::test]
async fn a_host_that_does_not_exist() {
    let config = RabbitMqConfig::new("no-such-host.invalid").queue("q").connect_timeout(Duration::from_secs(1));
    let errors = errors(&config, Duration::from_secs(3)).await;
    all_say(errors, TransportErrorKind::Unavailable, &["no-such-host.invalid:5672"]);
}

#[tokio::test]
async fn a_server_that_says_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let config = RabbitMqConfig::new(&*address).queue("q").connect_timeout(Duration::from_secs(1));
    let errors = errors(&config, Duration::from_secs(2)).await;
    all_say(errors, TransportErrorKind::Unavailable, &[&address, "1s"]);
}

#[tokio::test]
async fn a_wrong_password_and_an_unknown_user() {
    for (user, password) in [("guest", "hunter2"), ("nobody-like-this", "hunter2")] {
        let config = RabbitMqConfig::new(hosts()).login(user, password).queue("q");
        let errors = errors(&config, Duration::from_secs(5)).await;
        all_say(errors, TransportErrorKind::Unauthorized, &[&hosts(), &format!("`{user}`"), "password"]);
    }
}

#[tokio::test]
async fn a_virtual_host_that_does_not_exist() {
    let config = RabbitMqConfig::from_url(&format!("{}/no%2Fsuch?queue=q", broker())).unwrap();
    let errors = errors(&config, Duration::from_secs(5)).await;
    all_say(errors, TransportErrorKind::InvalidConfig, &["virtual host `no/such`", "the URL's path"]);
}

#[tokio::test]
async fn a_queue_or_an_exchange_that_does_not_exist() {
    let name = unique();
    let started = Instant::now();
    let url = format!("{}?queue={name}", broker());
    let missing = vec![
        inbox_rabbitmq::connect(&url).await.expect_err("missing"),
        inbox_rabbitmq::publisher(&url).await.expect_err("missing"),
        inbox_rabbitmq::count_ready(&url).await.expect_err("missing"),
        inbox_rabbitmq::publisher(&format!("{}?exchange={name}", broker())).await.expect_err("missing"),
    ];
    all_say(missing, TransportErrorKind::NotFound, &[&format!("`{name}`"), "virtual host `/`", "inbox::provision"]);
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_url_that_is_wrong() {
    for (query, expected) in [("queu=q", "`queu`"), ("", "`queue` is missing")] {
        let error = inbox_rabbitmq::connect(&format!("{}?{query}", broker())).await.expect_err("wrong");
        assert_eq!(error.kind(), TransportErrorKind::InvalidConfig);
        assert!(report(&error).contains(expected), "{}", report(&error));
    }
}

#[tokio::test]
async fn provisioning_leaves_what_is_there_as_it_is() {
    let queue = Queue::of(QueueType::Quorum).await;
    queue.publish(0..3).await;
    let exchange = unique();
    for (queue_type, exchange_type) in [("classic", "fanout"), ("quorum", "fanout"), ("classic", "topic")] {
        let url = format!(
            "{}?queue={}&queue_type={queue_type}&exchange={exchange}&exchange_type={exchange_type}",
            broker(),
            queue.name
        );
        inbox_rabbitmq::provision(&url).await.unwrap();
        assert_eq!(inbox_rabbitmq::count_ready(&url).await.unwrap(), 3);
    }
    RabbitMqAdmin::connect(queue.config().exchange(exchange)).await.unwrap().delete().await.unwrap();
}

#[tokio::test]
async fn a_queue_that_another_connection_has_for_itself() {
    use lapin::{Connection, ConnectionProperties, options::QueueDeclareOptions, types::FieldTable};
    let url = broker().replacen("rabbitmq:", "amqp:", 1);
    let connection = Connection::connect(&url, ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let name = unique();
    let options = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(name.as_str().into(), options, FieldTable::default()).await.unwrap();
    let error = inbox_rabbitmq::connect(&format!("{}?queue={name}", broker())).await.expect_err("locked");
    let text = report(&error);
    assert!(!error.is_retryable() && text.contains(&name) && text.contains("exclusive"), "{text}");
}

/// Everything that is logged from now on, at any level.
fn collect_logs() -> &'static Mutex<String> {
    static LINES: Mutex<String> = Mutex::new(String::new());
    static ONCE: Once = Once::new();

    struct Lines;
    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            LINES.lock().expect("not poisoned").push_str(&String::from_utf8_lossy(bytes));
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    ONCE.call_once(|| {
        let everything = tracing_subscriber::fmt().with_max_level(tracing_subscriber::filter::LevelFilter::TRACE);
        let subscriber = everything.with_ansi(false).with_writer(|| Lines).finish();
        tracing::subscriber::set_global_default(subscriber).expect("the only subscriber");
    });
    &LINES
}

#[tokio::test]
async fn secrets_are_in_no_log_at_any_level() {
    let lines = collect_logs();
    let config = RabbitMqConfig::new(hosts()).login("guest", "hunter2").queue("q");
    let refused = errors(&config, Duration::from_secs(5)).await;
    let nobody = RabbitMqConfig::new("127.0.0.1:9").login("guest", "hunter2").queue("q");
    let nobody = errors(&nobody.connect_timeout(Duration::from_millis(500)), Duration::from_secs(5)).await;
    let shown = format!("{config:?} {refused:?} {nobody:?}");
    assert!(!shown.contains("hunter2"), "{shown}");
    let lines = lines.lock().expect("not poisoned");
    assert!(lines.contains("lapin"), "lapin logs");
    assert!(!lines.contains("hunter2"), "{}", lines.lines().find(|line| line.contains("hunter2")).unwrap_or_default());
}
