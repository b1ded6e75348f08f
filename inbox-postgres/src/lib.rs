//! The PostgreSQL store of the transactional inbox: claims, effects and failures in one database.
//!
//! ```no_run
//! # use inbox_core::{HandlerError, Inbox, memory::MemoryBroker};
//! use inbox_core::maintenance::Maintenance;
//! use inbox_postgres::{PgInboxStore, PgTransaction, sqlx};
//!
//! async fn on_captured(payment: i64, tx: &mut PgTransaction<'_>) -> Result<(), HandlerError> {
//!     sqlx::query("UPDATE payments SET captured = true WHERE id = $1").bind(payment).execute(&mut **tx).await?;
//!     Ok(())
//! }
//!
//! # async fn f() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! # let transport = MemoryBroker::new().transport("payments", "receipts");
//! let store = PgInboxStore::connect("postgres://app:…@db/shop?sslmode=verify-full").await?;
//! store.migrate().await?;
//! Inbox::new("receipts", transport, store).on("payment.captured", on_captured).run(std::future::pending()).await?;
//! # Ok(()) }
//! ```
//!
//! Queries use the re-exported [`sqlx`], or one of the same version: another one's types are not the handler's.
//!
//! # What it makes in the database
//!
//! One schema, `inbox`; nothing outside it is touched, `_sqlx_migrations` neither. PostgreSQL 13 or newer, with PL/pgSQL,
//! which every database has unless somebody dropped it; tested on 15.
//!
//! | table | holds |
//! | --- | --- |
//! | `claims` | a row for each processed message and consumer: about 108 bytes with both indexes when ids are UUIDv7. Nothing is pruned in this version |
//! | `failures` | messages that are quarantined, with content, and attempts that are counted |
//! | `fingerprints()` | how a claim compares what was claimed before; in PL/pgSQL |
//! | `consumers` | a number for each consumer's name |
//! | `guard`, `nothing` | how COMMITs that are not the store's are refused; `guard` is unlogged and empty but for open transactions, and needs autovacuum |
//! | `schema_version` | the version of these tables |
//!
//! [`migrate`](inbox_core::maintenance::Maintenance::migrate) makes them or brings them up to date, from many processes
//! at once if need be; [`PgConfig::migrate_on_start`] does it when an inbox starts. Without either, missing or older
//! tables are an error that says so.
//!
//! # Permissions
//!
//! The role that migrates needs CREATE on the database, or owns a schema `inbox` that was made for it (`CREATE SCHEMA
//! inbox AUTHORIZATION migrator`). A role that only runs needs this, besides what its handlers need:
//!
//! ```sql
//! GRANT USAGE ON SCHEMA inbox TO app;
//! GRANT SELECT ON inbox.schema_version TO app;
//! GRANT SELECT, INSERT ON inbox.consumers TO app;
//! GRANT SELECT, INSERT, DELETE ON inbox.claims, inbox.guard TO app;
//! GRANT SELECT, INSERT, UPDATE, DELETE ON inbox.failures TO app;
//! GRANT EXECUTE ON FUNCTION inbox.fingerprints TO app; -- where PUBLIC does not have it
//! ```
//!
//! # Connections
//!
//! The store opens connections of its own, six at most ([`PgConfig::connections`]): an inbox needs one for each lane
//! and two more. Clones of a store share them. [`PgInboxStore::new`] copies how your pool connects and never uses the
//! pool: a `pool.begin()` that was cancelled can spoil one of its connections (sqlx issue 4393). They are called `inbox`
//! in `pg_stat_activity` unless the URL or the pool says otherwise (`application_name`).
//!
//! Each is read-only outside transactions (`default_transaction_read_only`), and checks every second of a long statement
//! whether the client is still there (`client_connection_check_interval`, PostgreSQL 14). When the state of one is in
//! doubt, because an answer did not come in time, it and all that are idle are closed and opened anew.
//!
//! PgBouncer in front of the server is [another matter](crate#behind-pgbouncer). Other poolers are not tested.
//!
//! # What BEGIN sets
//!
//! `READ COMMITTED`, `READ WRITE`, no `idle_in_transaction_session_timeout`, and as `statement_timeout` the inbox's
//! `handler_timeout`. While ids are claimed, `lock_timeout` is the inbox's `claim_wait`; handlers then have the role's
//! own. Before COMMIT, a `synchronous_commit` of `off` or `local` is made `on`, unless [`PgConfig::weak_durability`] was
//! asked for. So these settings of a role, a database or the server do not matter: `default_transaction_isolation`,
//! `default_transaction_read_only`, `idle_in_transaction_session_timeout`, `statement_timeout`, `synchronous_commit`,
//! `search_path` (ours; your handlers' tables are found by it).
//!
//! # Behind pgbouncer
//!
//! In transaction mode, of versions without prepared statements too: the suite and the chaos run pass behind 1.18. From
//! BEGIN to COMMIT it stays with one connection of the server's, so claim, effects and COMMIT are one transaction as
//! anywhere. Three things to set up:
//!
//! 1. The URL says so, `postgres://app:…@pooler:6432/shop?pooler=transaction`; for a pool of yours it is
//!    [`PgConfig::transaction_pooler`]. Where it is missing, `connect`, `migrate` and the start of an inbox notice the
//!    pooler and refuse with `InvalidConfig`, which names the setting.
//! 2. The inbox has a role of its own, which can write in transactions only; an inbox warns once at its start if it can
//!    elsewhere:
//!
//!    ```sql
//!    ALTER ROLE app SET default_transaction_read_only = on;
//!    ALTER ROLE app SET client_connection_check_interval = '1s'; -- PostgreSQL 14
//!    ```
//! 3. In `pgbouncer.ini`, `pool_mode = transaction`; a `default_pool_size` of a connection for each lane of all
//!    instances and a few more, or lanes wait for each other; `query_timeout` and `idle_transaction_timeout` off, or above
//!    the inbox's `handler_timeout`. Nothing of `ignore_startup_parameters` is needed. After the role was changed,
//!    `RECONNECT` at PgBouncer's console.
//!
//! What is different then:
//!
//! | | on the server itself | behind the pooler |
//! | --- | --- | --- |
//! | a statement with parameters | a round trip, but for its first time on a connection | two round trips |
//! | BEGIN | | also removes statements that others have prepared there under sqlx's names (`sqlx_s_…`) |
//! | what a handler sends after its own `ROLLBACK` or failed `COMMIT` | is refused | is refused with the role above. Otherwise it is kept, and a statement with parameters may meet one that others have prepared. The inbox notices, keeps no claim of the batch and stops |
//! | a statement whose program has died | ends within a second | likewise with the role above, otherwise after `handler_timeout` |
//! | `options[name]=value` in the URL | hold for the session | are set in each transaction |
//! | `options=…`, `PGOPTIONS` | hold for the session | are refused: set them for the role |
//! | a wrong password, a missing database | is `Unauthorized`, `InvalidConfig` | is `Unavailable`, with PgBouncer's words: it has one code for all it says, so an inbox tries again |
//!
//! It works in session mode as well, in which each of the store's connections holds one of the server's. Statement mode
//! has no transactions.
//!
//! # What a handler must not do
//!
//! - `COMMIT` or `ROLLBACK` by SQL, or `mem::forget` a nested transaction: nothing of the batch is kept, and `run` ends
//!   with `TransactionEscaped`. A handler that goes as far as `ROLLBACK; BEGIN READ WRITE; …; COMMIT` has written what
//!   it has written.
//! - `SET CONSTRAINTS ALL IMMEDIATE`: it meets the guard and fails with 23503, a failed attempt. Name your constraints.
//! - Rely on, or leave behind, the state of a session: `SET` without `LOCAL`, temporary tables, `pg_advisory_lock`. A
//!   later message on the same connection meets it.
//!
//! Savepoints (`tx.begin()`, ended) are fine. An error of a statement outside of one aborts the transaction, and a
//! handler that swallows it has a failed attempt all the same.
//!
//! # How far the promise holds
//!
//! As far as the database keeps what it has committed. With asynchronous replication, a failover loses the last claims
//! and effects together, *after* the broker was told that they are done. Use a synchronous standby
//! (`synchronous_standby_names`; `synchronous_commit = on` or `remote_apply`), or rewind the broker after a failover:
//! what was kept is a duplicate then, what was lost runs.
//!
//! # Time-outs
//!
//! | what | bound |
//! | --- | --- |
//! | a connection | [`PgConfig::connect_timeout`], 10 s; `connect_timeout` in the URL |
//! | a claim that waits for another transaction | `claim_wait` of the inbox, 250 ms |
//! | a statement of a handler, COMMIT and its deferred triggers | `handler_timeout` of the inbox, 30 s |
//! | the answer to any of the store's statements | the longest of the above and 10 s more; then the connection is closed |
//! | ROLLBACK | 5 s; then the connection is closed, and the server rolls back by itself |
//!
//! A COMMIT without an answer is `CommitUnknown`: nothing is acknowledged, and the ids are claimed again.

mod config;
mod connections;
mod error;
mod failures;
mod migrate;
mod pooler;
mod store;
mod time;

// A crate of its own, which stores over other drivers use as well.
use inbox_postgres_sql as sql;

pub use crate::{config::PgConfig, store::PgInboxStore};
/// The sqlx that this crate was built with: depend on the same one, or its types are not the handler's.
pub use sqlx;

/// The transaction that handlers get: `tx: &mut PgTransaction<'_>`, used as `&mut **tx`.
pub type PgTransaction<'a> = sqlx::Transaction<'a, sqlx::Postgres>;
