//! What is secret in a URL is in no error, no `Debug` and no log line, at any level.

use std::{
    fmt::Debug,
    sync::{Mutex, Once},
};

use inbox::{Inbox, memory::MemoryStore};

use crate::support::on_paid;

const SECRET: &str = "hunter2-secret";

/// Everything that this process logs from now on: through `tracing`, and through `log`, which drivers use.
fn logs() -> &'static Mutex<String> {
    static LINES: Mutex<String> = Mutex::new(String::new());
    static ONCE: Once = Once::new();

    fn add(text: &str) {
        LINES.lock().expect("not poisoned").push_str(text);
    }

    struct Lines;
    impl log::Log for Lines {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            true
        }
        fn log(&self, record: &log::Record<'_>) {
            add(&format!("{} {}: {}\n", record.level(), record.target(), record.args()));
        }
        fn flush(&self) {}
    }
    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            add(&String::from_utf8_lossy(bytes));
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    ONCE.call_once(|| {
        let everything = tracing_subscriber::fmt().with_max_level(tracing_subscriber::filter::LevelFilter::TRACE);
        let spans = tracing_subscriber::fmt::format::FmtSpan::FULL;
        let subscriber = everything.with_ansi(false).with_span_events(spans).with_writer(|| Lines).finish();
        tracing::subscriber::set_global_default(subscriber).expect("the only subscriber");
        log::set_logger(&Lines).expect("the only logger");
        log::set_max_level(log::LevelFilter::Trace);
    });
    &LINES
}

#[track_caller]
fn clean(text: &str) {
    let line = text.lines().find(|line| line.contains(SECRET) || line.contains("hunter2"));
    assert!(line.is_none(), "the secret is shown: {}", line.unwrap_or_default());
}

/// Looks at an error in every way in which it can be shown.
#[track_caller]
fn clean_error<E: std::error::Error + 'static>(error: &E) {
    clean(&format!("{error}\n{error:?}\n{error:#?}\n{}", inbox::report(error)));
    let mut cause = error.source();
    while let Some(error) = cause {
        clean(&format!("{error}\n{error:?}\n{error:#?}"));
        cause = error.source();
    }
}

#[track_caller]
fn clean_debug(value: &dyn Debug) {
    clean(&format!("{value:?}\n{value:#?}"));
}

#[track_caller]
fn clean_logs() {
    clean(&logs().lock().expect("not poisoned"));
}

/// Each of them a slip of the pen with a password in it.
#[tokio::test]
async fn urls_that_nobody_takes() {
    logs();
    for url in [
        "rabbit://me:hunter2-secret@host/queue?group=g",
        "me:hunter2-secret@host:9092/queue?group=g",
        "hunter2-secret@host:9092/queue?group=g",
        "hunter2-secret",
        "://me:hunter2-secret@host/queue",
        "sqlite:?group=hunter2-secret",
        "sqlite://me:hunter2-secret@host/",
        "sqlite:no-such.db/payments?lease=hunter2-secret",
        "sqlite:no-such.db/payments?group=g&password=hunter2-secret",
        "sqlite:no-such.db/payments?group=hunter2-secret&group=hunter2-secret",
    ] {
        clean_error(&inbox::connect(url).await.expect_err(url));
        clean_error(&inbox::publisher(url).await.map(drop).expect_err(url));
        clean_error(&inbox::provision(url).await.expect_err(url));
    }
    clean_logs();
}

#[tokio::test]
async fn a_builder_shows_its_settings_and_no_content() {
    logs();
    let builder = Inbox::local("receipts", MemoryStore::new()).on_with(SECRET.to_owned(), "paid", with_secret);
    clean_debug(&builder);
    let inbox = builder.on("refunded", on_paid).build().expect("good");
    clean_debug(&inbox);
    clean_debug(&inbox.handle());
    let message = inbox::Message::new(inbox::Bytes::from(format!("\"{SECRET}\""))).id("1").kind("paid");
    let message = message.header("authorization", SECRET).key(SECRET);
    clean_debug(&message);
    inbox.process(message).await.expect("processed");
    clean_logs();
}

async fn with_secret(_: String, _: inbox::Raw, _: &mut inbox::memory::MemoryTx) -> Result<(), inbox::HandlerError> {
    Ok(())
}

#[cfg(feature = "kafka")]
mod kafka {
    use std::time::Duration;

    use inbox::kafka::{KafkaConfig, KafkaTransport, Sasl};

    use super::*;
    use crate::support::{closed_port, kafka, unique};

    async fn clean_url(url: &str) {
        logs();
        clean_error(&inbox::connect(url).await.expect_err(url));
        clean_error(&inbox::publisher(url).await.map(drop).expect_err(url));
        clean_error(&inbox::provision(url).await.expect_err(url));
        clean_logs();
    }

    #[tokio::test]
    async fn a_broker_that_is_not_there() {
        let port = closed_port();
        clean_url(&format!(
            "kafka://me:hunter2-secret@127.0.0.1:{port}/t?group=g&sasl=plain&connect_timeout=1s&kafka.debug=all"
        ))
        .await;
        clean_url(&format!(
            "kafka+tls://me:hunter2-secret@127.0.0.1:{port}/t?group=g&sasl=scram-sha-256&connect_timeout=1s"
        ))
        .await;
    }

    #[tokio::test]
    async fn a_broker_that_does_not_want_it() {
        let hosts = kafka().replacen("kafka://", "", 1);
        clean_url(&format!(
            "kafka://me:hunter2-secret@{hosts}/t?group=g&sasl=plain&connect_timeout=2s&kafka.debug=all"
        ))
        .await;
        let lines = logs().lock().expect("not poisoned");
        assert!(lines.contains("sasl.password") && lines.contains("librdkafka"), "its configuration was logged");
    }

    #[tokio::test]
    async fn urls_that_are_wrong() {
        for url in [
            "kafka://me:hunter2-secret@host:9092/t?connect_timeout=1s",
            "kafka://me:hunter2-secret@host:9092/t?connect_timeout=1s&group=g",
            "kafka://me:hunter2-secret@host:9092?connect_timeout=1s&group=g",
            "kafka://me:hunter2-secret@/t?connect_timeout=1s&group=g&sasl=plain",
            "kafka://me:hunter2-secret@host:9092/t?connect_timeout=1s&group=g&sasl=hunter2-secret",
            "kafka://me:hunter2-secret@host:9092/t?connect_timeout=1s&group=g&sasl=plain&password=hunter2-secret",
            "kafka://me:hunter2-secret@host:9092/t?connect_timeout=1s&group=g&sasl=plain&kafka.sasl.password=hunter2-secret",
            "kafka://host:9092/t?connect_timeout=1s&group=g&kafka.enable.auto.commit=hunter2-secret",
            "kafka://host:9092/t?connect_timeout=1s&group=g&kafka.ssl.key.pem=hunter2-secret",
            "kafka://host:9092/t?connect_timeout=1s&group=g&kafka.session.timeout.ms=hunter2-secret",
            "kafka://host:9092/t?connect_timeout=1s&group=g&kafka.no.such=hunter2-secret",
            "kafka://host:9092/t?connect_timeout=1s&group=g&prefetch=hunter2-secret",
            "kafka://host:9092/t?group=g&connect_timeout=hunter2-secret",
        ] {
            clean_url(url).await;
        }
    }

    #[tokio::test]
    async fn a_password_that_should_have_been_percent_encoded() {
        logs();
        let mut leaks = Vec::new();
        for password in [
            "pa/hunter2-secret",
            "hunter2-secret/pa",
            "9092/hunter2-secret",
            "9092?hunter2-secret",
            "hunter2-secret?pa",
            "9092#hunter2-secret",
            "hunter2-secret%ff",
            "pa@hunter2-secret",
        ] {
            for query in ["group=g", "group=g&sasl=plain"] {
                let url = format!("kafka://me:{password}@127.0.0.1:1/t?connect_timeout=1s&{query}");
                for error in [
                    inbox::connect(&url).await.expect_err(&url),
                    inbox::publisher(&url).await.map(drop).expect_err(&url),
                ] {
                    let shown = format!("{error:#?} {}", inbox::report(&error));
                    if shown.contains("hunter2") {
                        leaks.push(format!("{url}: {}", inbox::report(&error)));
                    }
                }
            }
        }
        assert!(leaks.is_empty(), "{leaks:#?}");
        clean_logs();
    }

    #[tokio::test]
    async fn builders_and_what_they_make() {
        logs();
        let topic = unique("topic");
        inbox::provision(&format!("{}/{topic}?partitions=1", kafka())).await.expect("provisioned");
        let hosts = kafka().replacen("kafka://", "", 1);
        let config = KafkaConfig::new(hosts, &*topic).group("g").connect_timeout(Duration::from_secs(2));
        clean_debug(&config.clone().sasl(Sasl::ScramSha512, "me", SECRET));
        let config = config.property("ssl.key.password", SECRET).property("debug", "all");
        clean_debug(&config);
        let transport = KafkaTransport::connect(config).await.expect("connected");
        clean_debug(&transport);
        clean_debug(&Inbox::new("receipts", transport, MemoryStore::new()).on("paid", on_paid));
        clean_logs();
    }
}

#[cfg(feature = "postgres")]
mod postgres {
    use inbox::{
        maintenance::Maintenance,
        memory::MemoryBroker,
        postgres::{PgConfig, PgInboxStore, PgTransaction, sqlx},
    };

    use super::*;
    use crate::support::{closed_port, postgres};

    async fn clean_url(url: &str) {
        logs();
        clean_error(&PgInboxStore::connect(url).await.expect_err(url));
        clean_logs();
    }

    fn with_secret() -> url::Url {
        let mut url = url::Url::parse(&postgres()).expect("INBOX_TEST_POSTGRES is a URL");
        url.set_password(Some(SECRET)).expect("set");
        url
    }

    #[tokio::test]
    async fn a_server_that_is_not_there() {
        let port = closed_port();
        clean_url(&format!("postgres://me:hunter2-secret@127.0.0.1:{port}/orders?connect_timeout=1")).await;
        clean_url(&format!("postgres://me@127.0.0.1:{port}/orders?connect_timeout=1&password=hunter2-secret")).await;
    }

    #[tokio::test]
    async fn a_server_that_does_not_want_it() {
        let url = with_secret();
        clean_url(url.as_str()).await;
        let store = PgConfig::url(url.as_str()).expect("good").open().expect("made");
        clean_debug(&store);
        clean_error(&store.migrate().await.expect_err("refused"));
        let handler = async |_: inbox::Raw, _: &mut PgTransaction<'_>| Ok(());
        let inbox = Inbox::new("receipts", MemoryBroker::new().transport("t", "g"), store).on("paid", handler);
        clean_debug(&inbox);
        clean_error(&inbox.run(std::future::pending()).await.expect_err("refused"));
        let pool = sqlx::postgres::PgPoolOptions::new().connect_lazy(url.as_str()).expect("lazy");
        let store = PgInboxStore::new(&pool);
        clean_debug(&store);
        clean_error(&store.migrate().await.expect_err("refused"));
        clean_logs();
    }

    #[tokio::test]
    async fn urls_that_are_wrong() {
        for url in [
            "mysql://me:hunter2-secret@host/orders",
            "me:hunter2-secret@host/orders",
            "hunter2-secret",
            "postgres://me:hunter2-secret@host:hunter2-secret/orders",
            "postgres://me:hunter2-secret@host/orders?passwrod=hunter2-secret",
            "postgres://me:hunter2-secret@host/orders?connect_timeout=hunter2-secret",
            "postgres://me:hunter2-secret@host/orders?statement-cache-capacity=hunter2-secret",
            "postgres://me:hunter2-secret@host/orders?port=hunter2-secret",
        ] {
            clean_url(url).await;
        }
    }

    #[tokio::test]
    async fn a_password_that_should_have_been_percent_encoded() {
        let mut leaks = Vec::new();
        for url in [
            "postgres://me:pa/hunter2-secret@127.0.0.1:1/orders?connect_timeout=1",
            "postgres://me:1/hunter2-secret@127.0.0.1:1/orders?connect_timeout=1",
            "postgres://me:1?hunter2-secret@127.0.0.1:1/orders?connect_timeout=1",
            "postgres://me:1#hunter2-secret@127.0.0.1:1/orders?connect_timeout=1",
            "postgres://me:hunter2-secret%ff@127.0.0.1:1/orders?connect_timeout=1",
        ] {
            let error = PgInboxStore::connect(url).await.expect_err(url);
            let shown = format!("{:?} {error:#?} {}", PgConfig::url(url), inbox::report(&error));
            if shown.contains("hunter2") {
                leaks.push(format!("{url}: {shown}"));
            }
        }
        assert!(leaks.is_empty(), "{leaks:#?}");
        clean_logs();
    }

    #[test]
    fn builders() {
        clean_debug(&PgConfig::url(with_secret().as_str()).expect("good").migrate_on_start(true));
        let with_key = format!("postgres://me@host/orders?password={SECRET}");
        clean_debug(&PgConfig::url(&with_key).expect("good"));
    }
}
