//! The suite of `inbox-conformance` on a PostgreSQL server, `INBOX_TEST_POSTGRES=postgres://…`, and behind a PgBouncer in
//! transaction mode in front of it, `INBOX_TEST_PGBOUNCER=postgres://…`.

mod subject;

use std::{process::ExitCode, sync::Arc};

use inbox_conformance::{Suite, harness::unique, memory::MemoryBrokerSubject};

use crate::subject::PostgresSubject;

fn main() -> ExitCode {
    let broker = Arc::new(MemoryBrokerSubject::default());
    let role = unique("role").replace('-', "_");
    let direct = Arc::new(PostgresSubject { pooled: None });
    let pooled = Arc::new(PostgresSubject { pooled: Some(role.clone()) });
    let suite = Suite::new().store(&direct).store(&pooled);
    let ended = suite.end_to_end(&broker, &direct).end_to_end(&broker, &pooled).run();
    let dropped = tokio::runtime::Runtime::new().map(|tokio| tokio.block_on(subject::drop_role(&role)));
    // Where the servers are not there, every case has said so; and nobody uses the name again.
    drop(dropped);
    ended
}
