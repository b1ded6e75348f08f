//! Each error names what is wrong and what is accepted.

use std::time::{Duration, Instant};

use inbox::{
    Backoff, Inbox, InboxBuilder, InboxError, StoreErrorKind, TransportErrorKind,
    maintenance::Maintenance,
    memory::{MemoryBroker, MemoryStore},
    report,
    sqlite::SqliteInboxStore,
};

use crate::support::{Queue, config, mentions, on_paid, refused, seen};

#[tokio::test]
async fn an_unknown_scheme() {
    let url = "rabbit://host/queue?group=g";
    for error in [
        inbox::connect(url).await.expect_err("unknown"),
        inbox::publisher(url).await.map(drop).expect_err("unknown"),
        inbox::provision(url).await.expect_err("unknown"),
    ] {
        let (kind, text) = seen(error);
        assert_eq!(kind, TransportErrorKind::InvalidConfig);
        mentions(&text, &["`rabbit:`", "accepted: ", "`sqlite:`"]);
        assert_eq!(text.contains("`kafka:`"), cfg!(feature = "kafka"), "{text}");
    }
}

#[tokio::test]
async fn no_scheme_at_all() {
    for url in
        ["payments", "", "payments?group=g", "host:9092/payments", "/var/queue.db/payments", "me@host:9092/payments"]
    {
        let (kind, text) = refused(url).await;
        assert_eq!(kind, TransportErrorKind::InvalidConfig, "{url}");
        mentions(&text, &["accepted: ", "`sqlite:`"]);
        assert!(!text.contains("`:`"), "{url}: {text}");
    }
}

#[tokio::test]
async fn a_scheme_is_the_same_in_capitals() {
    let queue = Queue::new().await;
    let url = queue.url("payments", "group=receipts").replacen("sqlite:", "SQLite:", 1);
    inbox::connect(&url).await.expect("schemes have no case");
}

#[cfg(not(feature = "kafka"))]
#[tokio::test]
async fn a_scheme_whose_feature_is_off() {
    for url in ["kafka://host:9092/t?group=g", "kafka+tls://host:9092/t?group=g"] {
        let (kind, text) = refused(url).await;
        assert_eq!(kind, TransportErrorKind::InvalidConfig);
        mentions(&text, &["needs the feature `kafka` of inbox-rs", "off", "accepted now: `sqlite:`"]);
    }
}

#[tokio::test]
async fn keys_of_a_queue_in_a_file() {
    let queue = Queue::new().await;
    for (query, words) in [
        ("gruop=receipts", &["unknown key `gruop`", "accepted: `group`, `lease`"][..]),
        ("group=a&group=b", &["`group` stands there twice"]),
        ("", &["`group` is missing", "`?group=…`"]),
        ("group=", &["`group` is missing"]),
        ("group=g&lease=30", &["`lease` is not a duration", "`30s`"]),
        ("group=g&lease=1ms", &["accepted: 100ms to"]),
    ] {
        let (kind, text) = refused(&queue.url("payments", query)).await;
        assert_eq!(kind, TransportErrorKind::InvalidConfig, "{query}: {text}");
        mentions(&text, words);
    }
    let (_, text) = refused("sqlite:payments?group=g").await;
    mentions(&text, &["file and topic are needed", "sqlite:queue.db/payments?group=receipts"]);
}

#[tokio::test]
async fn a_topic_that_is_not_in_the_file() {
    let queue = Queue::new().await;
    let there = |error: TransportErrorKind, text: &str| {
        assert_eq!(error, TransportErrorKind::NotFound, "{text}");
        mentions(text, &["queue.db", "`inbox::provision(url)`"]);
    };
    let (kind, text) = refused(&queue.url("refunds", "group=g")).await;
    there(kind, &text);
    mentions(&text, &["topic `refunds`", "no such topic", "`payments`"]);
    let (kind, text) = seen(inbox::publisher(&queue.url("refunds", "")).await.map(drop).expect_err("missing"));
    there(kind, &text);
    let missing = format!("sqlite:{}/no-such/queue.db/payments?group=g", queue.dir.path().display());
    let (kind, text) = refused(&missing).await;
    there(kind, &text);
    mentions(&text, &["topic `payments`", "the file does not exist"]);
    // A database that holds something else.
    let other = queue.dir.path().join("app-queue.db");
    let store = SqliteInboxStore::builder(&other.display().to_string()).expect("a file").migrate_on_start(true);
    drop(store.open().await.expect("opened"));
    let (kind, text) = refused(&format!("sqlite:{}/payments?group=g", other.display())).await;
    there(kind, &text);
    mentions(&text, &["the file holds no queue"]);
}

#[tokio::test]
async fn a_file_that_is_no_database() {
    let queue = Queue::new().await;
    let file = queue.dir.path().join("letter.txt");
    std::fs::write(&file, "Dear Sir or Madam, this is no database. ".repeat(100)).expect("written");
    let (kind, text) = refused(&format!("sqlite:{}/payments?group=g", file.display())).await;
    assert_eq!(kind, TransportErrorKind::InvalidConfig, "{text}");
    mentions(&text, &["letter.txt", "not a database"]);
    let error = SqliteInboxStore::open(&file.display().to_string()).await.expect_err("no database");
    assert_eq!(error.kind(), StoreErrorKind::InvalidConfig);
    mentions(&report(&error), &["not a database"]);
}

#[tokio::test]
async fn a_store_without_tables() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = SqliteInboxStore::open(&dir.path().join("app.db").display().to_string()).await.expect("opened");
    let sql = async |_: inbox::Raw, _: &mut inbox::sqlite::SqliteTransaction<'_>| Ok(());
    let inbox = Inbox::new("receipts", MemoryBroker::new().transport("t", "g"), store.clone()).on("paid", sql);
    let started = Instant::now();
    let error = inbox.run(std::future::pending()).await.expect_err("no tables");
    assert!(matches!(&error, InboxError::Store(error) if error.kind() == StoreErrorKind::Schema), "{error:?}");
    mentions(&report(&error), &["migrate"]);
    assert!(started.elapsed() < Duration::from_secs(5), "nothing to wait for: {:?}", started.elapsed());
    store.migrate().await.expect("migrated");
}

fn inbox(name: &str) -> InboxBuilder<MemoryStore> {
    Inbox::local(name, MemoryStore::new())
}

fn good() -> InboxBuilder<MemoryStore> {
    inbox("receipts").on("paid", on_paid)
}

#[test]
fn handlers_of_an_inbox() {
    mentions(&config(inbox("receipts").build()), &["no handler", "`.on(kind, handler)`", "`.on_any(handler)`"]);
    mentions(&config(inbox("receipts").ignore("paid").build()), &["no handler"]);
    mentions(&config(good().on("paid", on_paid).build()), &["two handlers for paid", "one handler"]);
    mentions(
        &config(good().on_with((), "paid", async |(), _: inbox::Raw, _: &mut _| Ok(())).build()),
        &["two handlers for paid"],
    );
    mentions(&config(good().on_any(on_paid).on_any(on_paid).build()), &["two handlers for any kind"]);
    mentions(&config(good().ignore("paid").build()), &["paid", "has a handler and is ignored"]);
    good().on("Paid", on_paid).on_any(on_paid).ignore("refunded").ignore("refunded").build().expect("nothing wrong");
}

#[test]
fn the_name_of_an_inbox() {
    for name in ["", "  ", "a\0b", "a\nb", &"n".repeat(201)] {
        let text = config(inbox(name).on("paid", on_paid).build());
        mentions(&text, &["the consumer's name", "1 to 200 printable characters"]);
        assert!(!text.contains(['\0', '\n']), "{text:?}");
    }
    for name in ["r", "receipts of März 📬", &"n".repeat(200)] {
        inbox(name).on("paid", on_paid).build().expect(name);
    }
}

#[test]
fn settings_of_an_inbox() {
    let zero = Duration::ZERO;
    let backoff = |first, most| Backoff { first, most };
    let second = Duration::from_secs(1);
    for (built, words) in [
        (good().lanes(0), &["`lanes` is 0", "accepted: 1 to 1000"][..]),
        (good().lanes(1_001), &["`lanes` is 1001", "accepted: 1 to 1000"]),
        (good().max_batch(0), &["`max_batch` is 0", "accepted: 1 to 10000"]),
        (good().in_flight(0), &["`in_flight` is 0", "accepted: 1 to 1000000"]),
        (good().in_flight_bytes(0), &["`in_flight_bytes` is 0", "accepted: 1 to"]),
        (good().max_attempts(0), &["`max_attempts` is 0", "accepted: 1 to 1000"]),
        (good().handler_timeout(zero), &["`handler_timeout` is zero", "accepted: any longer time"]),
        (good().claim_wait(zero), &["`claim_wait` is zero"]),
        (good().max_batch_time(zero), &["`max_batch_time` is zero"]),
        (good().backoff(backoff(zero, second)), &["`backoff.first` is zero"]),
        (good().backoff(backoff(second, second / 2)), &["`backoff.most` is shorter than `backoff.first`"]),
    ] {
        mentions(&config(built.build()), words);
    }
}

#[tokio::test]
async fn a_local_inbox_has_nothing_to_run() {
    let text = config(good().run(std::future::pending()).await);
    mentions(&text, &["`Inbox::local`", "no transport", "`process`"]);
}

#[cfg(feature = "kafka")]
mod kafka {
    use super::*;
    use crate::support::{closed_port, kafka, unique};

    #[tokio::test]
    async fn keys() {
        let topic = unique("topic");
        inbox::provision(&format!("{}/{topic}", kafka())).await.expect("provisioned");
        for (query, words) in [
            ("grop=g", &["unknown key `grop`", "accepted: `group`", "`connect_timeout`"][..]),
            ("group=a&group=b", &["`group` stands there twice"]),
            ("", &["`group` is missing", "`group=…`"]),
            ("group=", &["`group` is empty"]),
            ("group=g&start=newest", &["`start`", "`earliest`", "`latest`"]),
            ("group=g&kafka.enable.auto.commit=true", &["`enable.auto.commit`", "cannot be set"]),
            ("group=g&kafka.no.such.thing=1", &["no.such.thing"]),
        ] {
            let (kind, text) = refused(&format!("{}/{topic}?{query}", kafka())).await;
            assert_eq!(kind, TransportErrorKind::InvalidConfig, "{query}: {text}");
            mentions(&text, words);
        }
        let (_, text) = refused(&format!("{}?group=g", kafka())).await;
        mentions(&text, &["topic"]);
    }

    #[tokio::test]
    async fn a_topic_that_is_not_there() {
        let topic = unique("no-such-topic");
        let url = format!("{}/{topic}?group=g", kafka());
        let started = Instant::now();
        for error in [
            inbox::connect(&url).await.expect_err("missing"),
            inbox::publisher(&url).await.map(drop).expect_err("missing"),
        ] {
            let (kind, text) = seen(error);
            assert_eq!(kind, TransportErrorKind::NotFound);
            mentions(&text, &[&topic, "inbox::provision"]);
        }
        assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    }

    #[tokio::test]
    async fn a_broker_that_is_not_there() {
        let host = format!("127.0.0.1:{}", closed_port());
        let started = Instant::now();
        let (kind, text) = refused(&format!("kafka://{host}/t?group=g&connect_timeout=1s")).await;
        assert_eq!(kind, TransportErrorKind::Unavailable);
        mentions(&text, &["no broker answers", &host]);
        assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
        let (kind, text) = seen(
            inbox::publisher(&format!("kafka://{host}/t?connect_timeout=1s")).await.map(drop).expect_err("nobody"),
        );
        assert_eq!(kind, TransportErrorKind::Unavailable);
        mentions(&text, &[&host]);
        assert!(started.elapsed() < Duration::from_secs(6), "{:?}", started.elapsed());
    }
}

#[cfg(feature = "postgres")]
mod postgres {
    use inbox::{
        StoreError,
        postgres::{PgConfig, PgInboxStore, PgTransaction, sqlx},
    };

    use super::*;
    use crate::support::{closed_port, postgres, unique};

    async fn refused(url: &str) -> (StoreErrorKind, String) {
        let error: StoreError = PgInboxStore::connect(url).await.expect_err(url);
        (error.kind(), report(&error))
    }

    /// The server's URL with another part of it.
    fn with(change: impl FnOnce(&mut url::Url)) -> String {
        let mut url = url::Url::parse(&postgres()).expect("INBOX_TEST_POSTGRES is a URL");
        change(&mut url);
        url.into()
    }

    #[tokio::test]
    async fn urls() {
        for (url, words) in [
            ("mysql://me@host/orders", &["the scheme is `mysql`", "`postgres`", "`postgresql`"][..]),
            ("orders", &["not a URL"]),
            ("postgres://me@host/orders?sslmod=require", &["unknown key `sslmod`", "accepted: sslmode"]),
            ("postgres://me@host/orders?connect_timeout=soon", &["`connect_timeout` is not a number of seconds"]),
        ] {
            let (kind, text) = refused(url).await;
            assert_eq!(kind, StoreErrorKind::InvalidConfig, "{url}: {text}");
            mentions(&text, words);
        }
    }

    #[tokio::test]
    async fn a_key_that_stands_there_twice() {
        let (kind, text) = refused("postgres://me@host/orders?sslmode=require&sslmode=disable").await;
        assert_eq!(kind, StoreErrorKind::InvalidConfig, "{text}");
        mentions(&text, &["`sslmode` stands there twice"]);
    }

    #[test]
    fn settings() {
        let error = PgConfig::url("postgres://host/orders").expect("good").connections(0).open().expect_err("none");
        mentions(&report(&error), &["`connections(0)`", "at least one"]);
        let error = PgConfig::url("postgres://host/o").expect("good").connect_timeout(Duration::ZERO).open();
        mentions(&report(&error.expect_err("zero")), &["`connect_timeout` is zero"]);
    }

    #[tokio::test]
    async fn a_server_that_is_not_there() {
        let host = format!("127.0.0.1:{}", closed_port());
        let started = Instant::now();
        let (kind, text) = refused(&format!("postgres://me@{host}/orders?connect_timeout=1")).await;
        assert_eq!(kind, StoreErrorKind::Unavailable);
        mentions(&text, &[&host]);
        assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    }

    #[tokio::test]
    async fn an_inbox_whose_database_is_not_there() {
        let host = format!("127.0.0.1:{}", closed_port());
        let url = format!("postgres://me@{host}/orders?connect_timeout=1");
        let store = PgConfig::url(&url).expect("good").open().expect("made");
        let handler = async |_: inbox::Raw, _: &mut PgTransaction<'_>| Ok(());
        let inbox = Inbox::new("receipts", MemoryBroker::new().transport("t", "g"), store).on("paid", handler);
        let started = Instant::now();
        let error = inbox.start_timeout(Duration::from_secs(2)).run(std::future::pending()).await.expect_err("nobody");
        mentions(&report(&error), &["the store failed for good", &host]);
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    }

    #[tokio::test]
    async fn credentials() {
        let (kind, text) = refused(&with(|url| url.set_password(Some("wrong")).expect("set"))).await;
        assert_eq!(kind, StoreErrorKind::Unauthorized, "{text}");
        mentions(&text, &["refuses user", "password authentication failed"]);
        let (kind, text) = refused(&with(|url| url.set_username("nobody-we-know").expect("set"))).await;
        assert_eq!(kind, StoreErrorKind::Unauthorized, "{text}");
        mentions(&text, &["nobody-we-know"]);
    }

    #[tokio::test]
    async fn a_database_that_is_not_there() {
        let name = unique("no_such_database");
        let (kind, text) = refused(&with(|url| url.set_path(&name))).await;
        assert_eq!(kind, StoreErrorKind::InvalidConfig, "{text}");
        mentions(&text, &["has no database", &name]);
    }

    #[tokio::test]
    async fn tables_that_are_not_there() {
        // A fresh database, which costs a tenth of a second, has no tables for certain.
        let name = unique("bare").replace('-', "_");
        let pool = sqlx::PgPool::connect(&postgres()).await.expect("connected");
        let run = async |statement: String| {
            sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&pool).await.expect("ran");
        };
        run(format!("CREATE DATABASE {name}")).await;
        let store = PgInboxStore::connect(&with(|url| url.set_path(&name))).await.expect("connected");
        let handler = async |_: inbox::Raw, _: &mut PgTransaction<'_>| Ok(());
        let inbox = Inbox::new("receipts", MemoryBroker::new().transport("t", "g"), store).on("paid", handler);
        let error = inbox.run(std::future::pending()).await.expect_err("no tables");
        assert!(matches!(&error, InboxError::Store(error) if error.kind() == StoreErrorKind::Schema), "{error:?}");
        mentions(&report(&error), &["`store.migrate().await`", "`.migrate_on_start(true)`"]);
        run(format!("DROP DATABASE {name} WITH (FORCE)")).await;
    }
}
