//! The suite of `inbox-conformance` on a PostgreSQL server, the cases of the claim path: `INBOX_TEST_POSTGRES=postgres://…`.

use std::{process::ExitCode, sync::Arc};

use inbox_conformance::{StoreSubject, Suite};
use inbox_core::{BoxError, HandlerError, maintenance::Maintenance};
use inbox_example_own_store::{
    OwnStore, Tx,
    tokio_postgres::{Client, NoTls},
};
use inbox_postgres::PgInboxStore;

struct OwnSubject;

impl OwnSubject {
    fn url() -> Result<String, BoxError> {
        std::env::var("INBOX_TEST_POSTGRES").map_err(|_| {
            "INBOX_TEST_POSTGRES is not set: the URL of a PostgreSQL server; `cargo xtask services up` starts one"
                .into()
        })
    }

    /// A connection that is not the store's.
    async fn connect() -> Result<Client, BoxError> {
        let (client, connection) = inbox_example_own_store::tokio_postgres::connect(&Self::url()?, NoTls).await?;
        // Ends when the client is dropped.
        drop(tokio::runtime::Handle::current().spawn(connection));
        Ok(client)
    }
}

impl StoreSubject for OwnSubject {
    type Store = OwnStore;

    fn name(&self) -> &str {
        "own-store"
    }

    async fn open(&self) -> Result<Arc<OwnStore>, BoxError> {
        let url = Self::url()?;
        PgInboxStore::connect(&url).await?.migrate().await?;
        // Cases run side by side, and two at once would meet each other's catalogue rows.
        let tables = "BEGIN; SELECT pg_advisory_xact_lock(4711); CREATE TABLE IF NOT EXISTS own_store_effects \
             (number bigint GENERATED ALWAYS AS IDENTITY, scope text, effect text); COMMIT";
        Self::connect().await?.batch_execute(tables).await?;
        Ok(Arc::new(OwnStore::new(&url)?))
    }

    async fn apply(&self, tx: &mut Tx, scope: &str, effect: &str) -> Result<(), HandlerError> {
        tx.execute("INSERT INTO own_store_effects (scope, effect) VALUES ($1, $2)", &[&scope, &effect]).await?;
        Ok(())
    }

    async fn effects(&self, scope: &str) -> Result<Vec<String>, BoxError> {
        let query = "SELECT effect FROM own_store_effects WHERE scope = $1 ORDER BY number";
        let rows = Self::connect().await?.query(query, &[&scope]).await?;
        Ok(rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?)
    }

    async fn failing_statement(&self, tx: &mut Tx) -> Result<(), HandlerError> {
        tx.batch_execute("SELECT 1 / 0").await?;
        Ok(())
    }

    async fn raw_commit(&self, tx: &mut Tx) -> Result<(), HandlerError> {
        tx.batch_execute("COMMIT").await?;
        Ok(())
    }

    async fn raw_rollback(&self, tx: &mut Tx) -> Result<(), HandlerError> {
        tx.batch_execute("ROLLBACK").await?;
        Ok(())
    }
}

fn main() -> ExitCode {
    Suite::new().claim_path(&Arc::new(OwnSubject)).run()
}
