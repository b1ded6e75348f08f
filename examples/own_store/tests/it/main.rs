//! What the suite does not see: connections that die, and the other store on the same tables. Needs a PostgreSQL
//! server: `INBOX_TEST_POSTGRES=postgres://…`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use inbox_core::{
    Blame, Candidate, Claim, Claims, ConsumerId, InboxStore, Limits, MessageId, StoreErrorKind,
    maintenance::Maintenance,
};
use inbox_example_own_store::{
    OwnStore, Tx,
    tokio_postgres::{self, Client, NoTls},
};
use inbox_postgres::PgInboxStore;
use uuid::Uuid;

fn url() -> String {
    std::env::var("INBOX_TEST_POSTGRES")
        .expect("INBOX_TEST_POSTGRES is not set: the URL of a PostgreSQL server; `cargo xtask services up` starts one")
}

/// A connection that is no store's.
async fn connect() -> Client {
    let (client, connection) = tokio_postgres::connect(&url(), NoTls).await.unwrap();
    drop(tokio::runtime::Handle::current().spawn(connection));
    client
}

/// A store, a consumer of its own and its name.
async fn store() -> (OwnStore, ConsumerId, String) {
    PgInboxStore::connect(&url()).await.unwrap().migrate().await.unwrap();
    let store = OwnStore::new(&url()).unwrap();
    let name = format!("own-store-{}", Uuid::now_v7());
    let consumer = store.register(&name).await.unwrap();
    (store, consumer, name)
}

fn candidate() -> Candidate {
    Candidate { id: MessageId::from_uuid(Uuid::now_v7()), fingerprint: 1, time: None }
}

async fn claim(store: &OwnStore, consumer: ConsumerId, candidate: Candidate) -> (Tx, Claims) {
    let mut tx = store.begin(&Limits { claim_wait: Duration::from_secs(5), ..Limits::default() }).await.unwrap();
    let mut claims = store.claim(&mut tx, consumer, &[candidate]).await.unwrap();
    claims.done(candidate.id);
    (tx, claims)
}

async fn found(store: &OwnStore, consumer: ConsumerId, candidate: Candidate) -> Option<Claim> {
    let (tx, claims) = claim(store, consumer, candidate).await;
    store.rollback(tx).await.unwrap();
    claims.get(candidate.id)
}

async fn process_of(tx: &Tx) -> i32 {
    tx.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0)
}

async fn terminate(process: i32) {
    connect().await.execute("SELECT pg_terminate_backend($1, 5000)", &[&process]).await.unwrap();
}

#[tokio::test]
async fn a_transaction_dropped_in_the_middle_of_a_statement_is_gone_and_its_connection_too() {
    let (store, consumer, _) = store().await;
    let a = candidate();
    let (tx, _claims) = claim(&store, consumer, a).await;
    let process = process_of(&tx).await;
    let statement = tx.batch_execute("SELECT pg_sleep(30)");
    assert!(tokio::time::timeout(Duration::from_millis(100), statement).await.is_err());
    drop(tx);
    assert_eq!(found(&store, consumer, a).await, Some(Claim::New));
    let alive = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1";
    let alive: i64 = connect().await.query_one(alive, &[&process]).await.unwrap().get(0);
    assert_eq!(alive, 0, "the server still has the connection");
}

#[tokio::test]
async fn connections_that_died_while_idle_are_replaced() {
    let (store, consumer, _) = store().await;
    let mut open = Vec::new();
    for _ in 0..4 {
        open.push(claim(&store, consumer, candidate()).await.0);
    }
    let mut processes = Vec::new();
    for tx in open {
        processes.push(process_of(&tx).await);
        store.rollback(tx).await.unwrap();
    }
    for process in processes {
        terminate(process).await;
    }
    assert_eq!(found(&store, consumer, candidate()).await, Some(Claim::New));
}

/// A table whose rows say at COMMIT what happens: `sleep` takes a while, `refuse` fails.
async fn table_with_a_deferred_trigger() -> String {
    let name = format!("own_store_{}", Uuid::now_v7().simple());
    let statements = format!(
        "CREATE TABLE {name} (what text);
         CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF NEW.what = 'sleep' THEN PERFORM pg_sleep(20); ELSE RAISE EXCEPTION 'no'; END IF;
             RETURN NULL;
         END $$;
         CREATE CONSTRAINT TRIGGER t AFTER INSERT ON {name} DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW EXECUTE FUNCTION {name}();"
    );
    connect().await.batch_execute(&statements).await.unwrap();
    name
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_unknown_and_one_that_is_refused_is_not() {
    let (store, consumer, _) = store().await;
    let table = table_with_a_deferred_trigger().await;
    for (what, expected) in [("sleep", StoreErrorKind::CommitUnknown), ("refuse", StoreErrorKind::Unexpected)] {
        let a = candidate();
        let (tx, claims) = claim(&store, consumer, a).await;
        tx.execute(&format!("INSERT INTO {table} VALUES ($1)"), &[&what]).await.unwrap();
        let process = process_of(&tx).await;
        let killer = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            if what == "sleep" {
                terminate(process).await;
            }
        };
        let (answer, ()) = tokio::join!(store.commit(tx, claims), killer);
        assert_eq!(answer.unwrap_err().kind(), expected, "{what}");
        assert_eq!(found(&store, consumer, a).await, Some(Claim::New), "{what}");
    }
    connect().await.batch_execute(&format!("DROP TABLE {table}; DROP FUNCTION {table}")).await.unwrap();
}

#[tokio::test]
async fn blame_is_found_by_codes() {
    let (store, consumer, _) = store().await;
    let raise = |code: &str| format!("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '{code}'; END $$");
    for (statement, expected) in [
        (raise("40P01"), Blame::Contention),
        (raise("40001"), Blame::Contention),
        (raise("53100"), Blame::Infrastructure),
        (raise("55P03"), Blame::Infrastructure),
        (raise("23505"), Blame::Message),
        ("SELECT pg_terminate_backend(pg_backend_pid())".to_owned(), Blame::Infrastructure),
    ] {
        let (tx, _claims) = claim(&store, consumer, candidate()).await;
        let error = tx.batch_execute(&statement).await.unwrap_err();
        assert_eq!(store.classify(&error), expected, "{statement}");
        // What a handler's error type of its own hides is found.
        assert_eq!(store.classify(&std::io::Error::other(error)), expected, "{statement}");
    }
    let (tx, _claims) = claim(&store, consumer, candidate()).await;
    let error = tx.batch_execute("SELECT 'a\0b'").await.unwrap_err();
    assert_eq!(store.classify(&error), Blame::Message, "{error}: a value that cannot be sent");
    let error = tx.batch_execute("SELECT 1 / 0").await.and(tx.batch_execute("SELECT 1").await).unwrap_err();
    assert_eq!(store.classify(&error), Blame::Message, "{error}");
    let error = tx.batch_execute("SELECT 1").await.unwrap_err();
    assert_eq!(store.classify(&error), Blame::Unpinned, "{error}");
}

#[tokio::test]
async fn a_role_without_the_database_or_the_password_is_told_so() {
    let url = url();
    let (server, _) = url.rsplit_once('/').unwrap();
    let error = OwnStore::new(&format!("{server}/no_such_database")).unwrap().register("x").await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::InvalidConfig, "{error}");
    let error = OwnStore::new("postgres://nobody@127.0.0.1:1/x").unwrap().register("x").await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
}

#[tokio::test]
async fn the_stores_of_both_drivers_share_their_claims() {
    let (own, consumer, name) = store().await;
    let other = PgInboxStore::connect(&url()).await.unwrap();
    assert_eq!(other.register(&name).await.unwrap(), consumer);
    let (a, b) = (candidate(), candidate());
    let (tx, claims) = claim(&own, consumer, a).await;
    own.commit(tx, claims).await.unwrap();
    let mut tx = other.begin(&Limits::default()).await.unwrap();
    let mut claims = other.claim(&mut tx, consumer, &[a, b]).await.unwrap();
    assert_eq!((claims.get(a.id), claims.get(b.id)), (Some(Claim::Duplicate), Some(Claim::New)));
    claims.done(b.id);
    other.commit(tx, claims).await.unwrap();
    assert_eq!(found(&own, consumer, b).await, Some(Claim::Duplicate));
    assert_eq!(found(&own, consumer, Candidate { fingerprint: 2, ..b }).await, Some(Claim::Conflict));
}
