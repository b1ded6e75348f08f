//! The PostgreSQL store of the transactional inbox: claims, effects and failures in one database.
mod config;
mod connections;
mod error;
mod failures;
mod migrate;
mod sql;
mod store;
mod time;

pub use crate::{config::PgConfig, store::PgInboxStore};
/// The sqlx that this crate was built with: depend on the same one, or its types are not the handler's.
pub use sqlx;

/// The transaction that handlers get: `tx: &mut PgTransaction<'_>`, used as `&mut **tx`.
pub type PgTransaction<'a> = sqlx::Transaction<'a, sqlx::Postgres>;
