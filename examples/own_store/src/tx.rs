//! A transaction that owns its connection.

use std::{fmt, ops::Deref, time::Duration};

use deadpool_postgres::Object;
use tokio::time::timeout;
use tokio_postgres::{Client, Row, types::ToSql};

/// Why a statement has no result.
#[derive(Debug)]
pub(crate) enum Refused {
    /// There was no answer in that time.
    NoAnswer(Duration),
    /// The client or the server said so.
    Said(tokio_postgres::Error),
}

/// The transaction that handlers get: used as the [`Client`] that it is on, `tx.execute(…)`.
///
/// Dropped before it has ended, it closes its connection, and the server rolls back: whatever may still be open there
/// never reaches the pool.
pub struct Tx {
    /// `None` once it was taken to be given back or closed.
    connection: Option<Object>,
    /// How long an answer may take.
    patience: Duration,
}

impl Tx {
    pub(crate) fn new(connection: Object, patience: Duration) -> Self {
        Self { connection: Some(connection), patience }
    }

    /// The rows of one statement, which is prepared once a connection.
    pub(crate) async fn ask(&self, statement: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Refused> {
        let answer = async {
            let prepared = self.connection().prepare_cached(statement).await?;
            self.connection().query(&prepared, parameters).await
        };
        self.in_time(answer).await
    }

    /// The same for a statement of which no plan may be kept.
    pub(crate) async fn ask_anew(
        &self,
        statement: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Refused> {
        self.in_time(self.connection().query(statement, parameters)).await
    }

    async fn in_time(
        &self,
        answer: impl Future<Output = Result<Vec<Row>, tokio_postgres::Error>>,
    ) -> Result<Vec<Row>, Refused> {
        timeout(self.patience, answer).await.map_err(|_| Refused::NoAnswer(self.patience))?.map_err(Refused::Said)
    }

    /// Sends statements that have no parameters.
    pub(crate) async fn send(&self, statements: &str) -> Result<(), Refused> {
        self.send_within(self.patience, statements).await
    }

    pub(crate) async fn send_within(&self, bound: Duration, statements: &str) -> Result<(), Refused> {
        let answer = self.connection().batch_execute(statements);
        timeout(bound, answer).await.map_err(|_| Refused::NoAnswer(bound))?.map_err(Refused::Said)
    }

    /// The server has said that the transaction has ended: the connection may be used again.
    pub(crate) fn ended(mut self) {
        drop(self.connection.take());
    }

    #[allow(clippy::expect_used, reason = "the connection is taken by `ended`, which consumes it, and by `drop` only")]
    fn connection(&self) -> &Object {
        self.connection.as_ref().expect("a transaction that can be used has its connection")
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            // Out of the pool first. Dropping what is left closes the socket, also in the middle of a statement.
            drop(Object::take(connection));
        }
    }
}

impl Deref for Tx {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.connection()
    }
}

impl fmt::Debug for Tx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx").field("patience", &self.patience).finish_non_exhaustive()
    }
}
