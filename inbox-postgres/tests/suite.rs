//! The suite of `inbox-conformance` on a PostgreSQL server: `INBOX_TEST_POSTGRES=postgres://…`.

use std::{process::ExitCode, sync::Arc};

use inbox_conformance::{StoreSubject, Suite, memory::MemoryBrokerSubject};
use inbox_core::{BoxError, HandlerError, maintenance::Maintenance};
use inbox_postgres::{
    PgInboxStore, PgTransaction,
    sqlx::{self, PgPool},
};

struct PostgresSubject;

impl PostgresSubject {
    fn url() -> Result<String, BoxError> {
        std::env::var("INBOX_TEST_POSTGRES").map_err(|_| {
            "INBOX_TEST_POSTGRES is not set: the URL of a PostgreSQL server; `cargo xtask services up` starts one"
                .into()
        })
    }

    async fn pool() -> Result<PgPool, BoxError> {
        Ok(PgPool::connect(&Self::url()?).await?)
    }
}

impl StoreSubject for PostgresSubject {
    type Store = PgInboxStore;

    fn name(&self) -> &str {
        "postgres"
    }

    async fn open(&self) -> Result<Arc<PgInboxStore>, BoxError> {
        let pool = Self::pool().await?;
        // Cases run side by side, and two at once would meet each other's catalogue rows.
        let mut tx = pool.begin().await?;
        sqlx::query("SELECT pg_advisory_xact_lock(4711)").execute(&mut *tx).await?;
        sqlx::query(
            "CREATE TABLE IF NOT EXISTS suite_effects (number bigint GENERATED ALWAYS AS IDENTITY, scope text, effect text)",
        )
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        pool.close().await;
        let store = PgInboxStore::connect(&Self::url()?).await?;
        store.migrate().await?;
        Ok(Arc::new(store))
    }

    async fn apply(&self, tx: &mut PgTransaction<'static>, scope: &str, effect: &str) -> Result<(), HandlerError> {
        sqlx::query("INSERT INTO suite_effects (scope, effect) VALUES ($1, $2)")
            .bind(scope)
            .bind(effect)
            .execute(&mut **tx)
            .await?;
        Ok(())
    }

    async fn effects(&self, scope: &str) -> Result<Vec<String>, BoxError> {
        let pool = Self::pool().await?;
        let effects = sqlx::query_scalar("SELECT effect FROM suite_effects WHERE scope = $1 ORDER BY number")
            .bind(scope)
            .fetch_all(&pool)
            .await?;
        pool.close().await;
        Ok(effects)
    }

    async fn failing_statement(&self, tx: &mut PgTransaction<'static>) -> Result<(), HandlerError> {
        sqlx::query("SELECT 1 / 0").execute(&mut **tx).await?;
        Ok(())
    }

    async fn raw_commit(&self, tx: &mut PgTransaction<'static>) -> Result<(), HandlerError> {
        sqlx::raw_sql("COMMIT").execute(&mut **tx).await?;
        Ok(())
    }

    async fn raw_rollback(&self, tx: &mut PgTransaction<'static>) -> Result<(), HandlerError> {
        sqlx::raw_sql("ROLLBACK").execute(&mut **tx).await?;
        Ok(())
    }
}

fn main() -> ExitCode {
    let broker = Arc::new(MemoryBrokerSubject::default());
    let store = Arc::new(PostgresSubject);
    Suite::new().store(&store).end_to_end(&broker, &store).run()
}
