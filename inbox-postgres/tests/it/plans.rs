//! What a claim reads does not grow with the table, whatever plans and statistics of younger days say.

use inbox_core::{Candidate, Claim, InboxStore, Limits, MessageId};
use inbox_postgres::{PgConfig, PgTransaction, sqlx};
use uuid::Uuid;

use crate::{
    schema::Scratch,
    support::{candidate, within},
};

const CLAIMED: i64 = 20_000;
const COPIES: usize = 100;

/// How many rows of the claims this transaction has read.
async fn read(tx: &mut PgTransaction<'static>) -> i64 {
    sqlx::query_scalar(
        "SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables \
         WHERE relid = 'inbox.claims'::regclass",
    )
    .fetch_one(&mut **tx)
    .await
    .expect("reads")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_was_empty_when_it_was_looked_at_is_not_read_as_a_whole() {
    let scratch = Scratch::new().await;
    // One connection, so that every plan it has kept is met again.
    let store = PgConfig::url(&scratch.url).expect("a URL").connections(1).migrate_on_start(true);
    let store = store.connect().await.expect("connects");
    let consumer = store.register("plans").await.expect("registers");
    let pool = sqlx::PgPool::connect(&scratch.url).await.expect("connects");
    for sql in ["ALTER TABLE inbox.claims SET (autovacuum_enabled = false)", "VACUUM ANALYZE inbox.claims"] {
        sqlx::raw_sql(sql).execute(&pool).await.expect(sql);
    }
    // Often enough for PostgreSQL to take to a plan that it keeps.
    for _ in 0..12 {
        let (seen, mut other) = (candidate(), candidate());
        let mut tx = store.begin(&Limits::default()).await.expect("begins");
        let mut claims = store.claim(&mut tx, consumer, &[seen, other]).await.expect("claims");
        store.unclaim(&mut tx, &mut claims, &[other.id]).await.expect("unclaims");
        claims.done(seen.id);
        store.commit(tx, claims).await.expect("commits");
        let mut tx = store.begin(&Limits::default()).await.expect("begins");
        other.time = None;
        let claims = store.claim(&mut tx, consumer, &[seen, other]).await.expect("claims");
        drop(claims);
        store.rollback(tx).await.expect("rolls back");
    }
    let claimed: Vec<Uuid> = sqlx::query_scalar(
        "INSERT INTO inbox.claims (consumer, message_id, fingerprint, claimed_at) \
         SELECT $1, gen_random_uuid(), 1, now() FROM generate_series(1, $2) RETURNING message_id",
    )
    .bind(consumer.0)
    .bind(CLAIMED)
    .fetch_all(&pool)
    .await
    .expect("inserts");

    let copies: Vec<Candidate> =
        claimed.iter().take(COPIES).map(|id| Candidate { id: MessageId::from_uuid(*id), ..candidate() }).collect();
    let mut tx = store.begin(&Limits::default()).await.expect("begins");
    let claims = within(60, store.claim(&mut tx, consumer, &copies)).await.expect("claims");
    assert!(copies.iter().all(|copy| claims.get(copy.id) == Some(Claim::Duplicate)));
    let rows = read(&mut tx).await;
    assert!(rows <= 10 * COPIES as i64, "{COPIES} copies read {rows} rows");
    store.rollback(tx).await.expect("rolls back");

    let new: Vec<Candidate> = (0..COPIES).map(|_| candidate()).collect();
    let mut tx = store.begin(&Limits::default()).await.expect("begins");
    let mut claims = store.claim(&mut tx, consumer, &new).await.expect("claims");
    let ids: Vec<MessageId> = new.iter().map(|new| new.id).collect();
    store.unclaim(&mut tx, &mut claims, &ids).await.expect("unclaims");
    let rows = read(&mut tx).await;
    assert!(rows <= 10 * COPIES as i64, "taking {COPIES} claims back read {rows} rows");
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM inbox.claims WHERE message_id = ANY ($1)")
        .bind(new.iter().map(|new| new.id.as_uuid()).collect::<Vec<_>>())
        .fetch_one(&mut *tx)
        .await
        .expect("counts");
    assert_eq!(left, 0, "all were taken back");
    store.rollback(tx).await.expect("rolls back");
    pool.close().await;
    scratch.drop().await;
}
