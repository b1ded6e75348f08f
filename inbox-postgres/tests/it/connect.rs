//! Connecting, and what is said when that fails.

use std::{
    io::Write,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use inbox_core::{InboxStore, Limits, StoreErrorKind, maintenance::Maintenance, operator::Operator, report};
use inbox_postgres::{
    PgConfig, PgInboxStore,
    sqlx::{self, PgPool},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use crate::support::{unique, url, url_with, within};

const SECRET: &str = "hunter2-hunter2";

#[derive(Clone, Default)]
struct Captured(Arc<Mutex<Vec<u8>>>);

impl Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("not poisoned").extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

// In one thread, which is all that a subscriber of a test's own sees.
#[tokio::test(flavor = "current_thread")]
async fn a_wrong_password_is_unauthorized_and_shown_nowhere() {
    let captured = Captured::default();
    let writer = captured.clone();
    let subscriber =
        tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(move || writer.clone()).finish();
    // With one subscriber alone, a thread of another test that has none decides for all what is traced.
    let second = tracing::Dispatch::new(tracing_subscriber::fmt().with_writer(std::io::sink).finish());
    let subscribed = tracing::subscriber::set_default(subscriber);
    let wrong = url_with(|url| url.set_password(Some(SECRET)).expect("a password"));
    let config = PgConfig::url(&wrong).expect("a URL");
    let mut shown = vec![format!("{config:?} {config:#?}")];
    let store = config.clone().open().expect("a store");
    shown.push(format!("{store:?} {store:#?}"));
    for error in [
        config.connect().await.expect_err("refused"),
        store.register("c").await.expect_err("refused"),
        store.begin(&Limits::default()).await.expect_err("refused"),
    ] {
        assert_eq!(error.kind(), StoreErrorKind::Unauthorized, "{}", report(&error));
        shown.push(format!("{error} {error:?} {error:#?} {}", report(&error)));
    }
    // One that works is traced as well, statements and all.
    let good = PgInboxStore::connect(&url()).await.expect("connects");
    good.migrate().await.expect("migrates");
    assert_eq!(good.failures("nobody", 1).await.expect("reads").len(), 0);
    drop((subscribed, second));
    let traced = String::from_utf8(captured.0.lock().expect("not poisoned").clone()).expect("text");
    assert!(traced.contains("inbox.failures"), "statements are not captured: {traced}");
    let good = url::Url::parse(&url()).expect("a URL");
    for text in shown.iter().chain([&traced]) {
        assert!(!text.contains(SECRET), "{text}");
        assert!(!text.contains(good.password().expect("a password")), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_reached_is_unavailable_within_the_timeout() {
    for (host, port) in [("127.0.0.1", 1), ("192.0.2.1", 5432)] {
        let nowhere = format!("postgres://me:{SECRET}@{host}:{port}/db?connect_timeout=1");
        let began = Instant::now();
        let error = within(10, PgInboxStore::connect(&nowhere)).await.expect_err("not there");
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        let text = format!("{error:#?} {}", report(&error));
        assert!(text.contains(&format!("{host}:{port}")) && !text.contains(SECRET), "{text}");
        let store = PgConfig::url(&nowhere).expect("a URL").open().expect("a store");
        let began = Instant::now();
        let error = within(10, store.begin(&Limits::default())).await.expect_err("not there");
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_database_is_named() {
    let missing = unique("missing");
    let error = PgInboxStore::connect(&url_with(|url| url.set_path(&missing))).await.expect_err("not there");
    assert_eq!(error.kind(), StoreErrorKind::InvalidConfig);
    assert!(report(&error).contains(&missing), "{}", report(&error));
}

/// Passes on everything but one setting, as a pooler would that ignores `options`.
async fn pooler(server: String, listener: TcpListener, setting: &'static str) {
    let mut pairs = JoinSet::new();
    loop {
        let (mut client, _) = listener.accept().await.expect("accepts");
        let mut upstream = TcpStream::connect(&server).await.expect("connects");
        pairs.spawn(async move {
            let mut startup = vec![0; 4_096];
            let length = client.read(&mut startup).await.expect("reads");
            let ours = format!("{setting}=on");
            let at =
                startup.windows(ours.len()).position(|window| window == ours.as_bytes()).expect("the start-up message");
            startup[at..at + ours.len()].copy_from_slice(format!("{setting}=no").as_bytes());
            upstream.write_all(&startup[..length]).await.expect("writes");
            drop(tokio::io::copy_bidirectional(&mut client, &mut upstream).await);
        });
    }
}

/// A password that is wrong six times may lock the account.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_server_refuses_is_not_asked_for_again() {
    let real = url::Url::parse(&url()).expect("a URL");
    let server = format!("{}:{}", real.host_str().expect("a host"), real.port().unwrap_or(5432));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let port = listener.local_addr().expect("an address").port();
    let asked = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    let count = Arc::clone(&asked);
    tasks.spawn(async move {
        let mut pairs = JoinSet::new();
        loop {
            let (mut client, _) = listener.accept().await.expect("accepts");
            count.fetch_add(1, Ordering::Relaxed);
            let mut upstream = TcpStream::connect(&server).await.expect("connects");
            pairs.spawn(async move { drop(tokio::io::copy_bidirectional(&mut client, &mut upstream).await) });
        }
    });
    let through = |change: fn(&mut url::Url)| {
        url_with(|url| {
            url.set_ip_host([127, 0, 0, 1].into()).expect("a host");
            url.set_port(Some(port)).expect("a port");
            change(url);
        })
    };
    for (url, kind) in [
        (through(|url| url.set_password(Some(SECRET)).expect("a password")), StoreErrorKind::Unauthorized),
        (through(|url| url.set_path("no_such_database")), StoreErrorKind::InvalidConfig),
    ] {
        let store = PgConfig::url(&url).expect("a URL").open().expect("a store");
        asked.store(0, Ordering::Relaxed);
        let error = within(20, store.begin(&Limits::default())).await.expect_err("refused");
        assert_eq!((error.kind(), asked.load(Ordering::Relaxed)), (kind, 1), "{}", report(&error));
    }
}

/// What is said by all that a program starts with.
pub(crate) async fn refused_as_pooler(url: &str) {
    let secret = url::Url::parse(url).expect("a URL").password().expect("a password").to_owned();
    let store = || PgConfig::url(url).expect("a URL").open().expect("a store");
    for error in [
        within(20, PgInboxStore::connect(url)).await.expect_err("refused"),
        within(20, store().register("c")).await.expect_err("refused"),
        within(20, store().migrate()).await.expect_err("refused"),
    ] {
        assert_eq!(error.kind(), StoreErrorKind::InvalidConfig, "{}", report(&error));
        let text = report(&error);
        assert!(text.contains("pooler=transaction") && text.contains("costs"), "{text}");
        assert!(!format!("{text} {error:#?}").contains(&secret), "{error:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_drops_what_a_connection_asks_for_is_refused() {
    let real = url::Url::parse(&url()).expect("a URL");
    let server = format!("{}:{}", real.host_str().expect("a host"), real.port().unwrap_or(5432));
    // The second where the role has the default by itself.
    for setting in ["default_transaction_read_only", "inbox.direct"] {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let port = listener.local_addr().expect("an address").port();
        let mut tasks = JoinSet::new();
        tasks.spawn(pooler(server.clone(), listener, setting));
        let through = url_with(|url| {
            url.set_ip_host([127, 0, 0, 1].into()).expect("a host");
            url.set_port(Some(port)).expect("a port");
            url.set_query(Some("sslmode=disable"));
        });
        refused_as_pooler(&through).await;
    }
}

async fn application_name(store: &PgInboxStore) -> String {
    let mut tx = store.begin(&Limits::default()).await.expect("begins");
    let name = sqlx::query_scalar("SELECT current_setting('application_name')").fetch_one(&mut *tx).await;
    store.rollback(tx).await.expect("rolls back");
    name.expect("reads")
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_called_inbox_unless_the_user_says_otherwise() {
    assert_eq!(application_name(&PgInboxStore::connect(&url()).await.expect("connects")).await, "inbox");
    let named = url_with(|url| url.set_query(Some("application_name=mine")));
    let store = PgInboxStore::new(&PgPool::connect(&named).await.expect("connects"));
    assert_eq!(application_name(&store).await, "mine");
    assert_eq!(application_name(&PgInboxStore::connect(&named).await.expect("connects")).await, "mine");
}
