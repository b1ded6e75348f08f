//! For the suite of `inbox-conformance`, on a PostgreSQL server, `INBOX_TEST_POSTGRES=postgres://…`, and behind a PgBouncer in
//! transaction mode in front of it, `INBOX_TEST_PGBOUNCER=postgres://…`.

use std::{env, sync::Arc};

use inbox_conformance::StoreSubject;
use inbox_core::{BoxError, HandlerError, maintenance::Maintenance};
use inbox_postgres::{
    PgInboxStore, PgTransaction,
    sqlx::{self, AssertSqlSafe, PgPool},
};
use url::Url;

/// Cases run side by side, and two at once would meet each other's catalogue rows.
const ONE_AT_A_TIME: &str = "SELECT pg_advisory_xact_lock(4711)";

/// How the store comes to the server. The tests' own statements go there directly.
pub(crate) struct PostgresSubject {
    /// Behind the pooler: the role that it is there, of this run's own.
    pub(crate) pooled: Option<String>,
}

impl PostgresSubject {
    fn url() -> Result<String, BoxError> {
        env::var("INBOX_TEST_POSTGRES").map_err(|_| {
            "INBOX_TEST_POSTGRES is not set: the URL of a PostgreSQL server; `cargo xtask services up` starts one"
                .into()
        })
    }

    /// That of the store.
    fn store_url(&self) -> Result<String, BoxError> {
        let Some(role) = &self.pooled else { return Self::url() };
        let pooler = env::var("INBOX_TEST_PGBOUNCER").map_err(|_| {
            "INBOX_TEST_PGBOUNCER is not set: the URL of a PgBouncer in front of INBOX_TEST_POSTGRES; `cargo xtask \
             services up` starts one"
        })?;
        let mut url = Url::parse(&pooler)?;
        url.set_username(role).and_then(|()| url.set_password(Some(role))).map_err(|()| "it names no host")?;
        url.query_pairs_mut().append_pair("pooler", "transaction");
        Ok(url.into())
    }

    async fn pool() -> Result<PgPool, BoxError> {
        Ok(PgPool::connect(&Self::url()?).await?)
    }
}

impl StoreSubject for PostgresSubject {
    type Store = PgInboxStore;

    fn name(&self) -> &str {
        if self.pooled.is_some() { "postgres-pgbouncer" } else { "postgres" }
    }

    async fn open(&self) -> Result<Arc<PgInboxStore>, BoxError> {
        let pool = Self::pool().await?;
        let mut tx = pool.begin().await?;
        sqlx::query(ONE_AT_A_TIME).execute(&mut *tx).await?;
        sqlx::query(
            "CREATE TABLE IF NOT EXISTS suite_effects (number bigint GENERATED ALWAYS AS IDENTITY, scope text, effect text)",
        )
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        PgInboxStore::new(&pool).migrate().await?;
        if let Some(role) = &self.pooled {
            sqlx::raw_sql(AssertSqlSafe(make_role(role))).execute(&pool).await?;
        }
        pool.close().await;
        let store = PgInboxStore::connect(&self.store_url()?).await?;
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

/// What the docs say that a role behind a pooler needs, and the table of effects. Several at once make it once.
fn make_role(role: &str) -> String {
    format!(
        "{ONE_AT_A_TIME};
         DO $$ BEGIN
             IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{role}') THEN
                 CREATE ROLE {role} LOGIN PASSWORD '{role}';
                 ALTER ROLE {role} SET default_transaction_read_only = on;
                 GRANT USAGE ON SCHEMA inbox TO {role};
                 GRANT SELECT ON inbox.schema_version TO {role};
                 GRANT SELECT, INSERT ON inbox.consumers TO {role};
                 GRANT SELECT, INSERT, DELETE ON inbox.claims, inbox.guard TO {role};
                 GRANT SELECT, INSERT, UPDATE, DELETE ON inbox.failures TO {role};
                 GRANT INSERT ON suite_effects TO {role};
             END IF;
         END $$"
    )
}

/// Takes the role away again, if a case has made it.
#[allow(dead_code, reason = "not used by all who share this file")]
pub(crate) async fn drop_role(role: &str) -> Result<(), BoxError> {
    let pool = PostgresSubject::pool().await?;
    let exists = sqlx::query("SELECT FROM pg_roles WHERE rolname = $1").bind(role).fetch_optional(&pool).await?;
    if exists.is_some() {
        sqlx::raw_sql(AssertSqlSafe(format!("{ONE_AT_A_TIME}; DROP OWNED BY {role}; DROP ROLE {role}")))
            .execute(&pool)
            .await?;
    }
    pool.close().await;
    Ok(())
}
