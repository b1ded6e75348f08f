//! A store of one's own: the claim path of the inbox on `tokio-postgres`, in the tables that `inbox-postgres` makes.
//!
//! It is a worked example of how a third party writes a store. [`OwnStore`] is enough for a consumer loop of your own
//! (`own_loop` in the examples shows one); an `Inbox` needs `FailureStore` besides.
//!
//! # What it takes to write a store
//!
//! 1. **A transaction that owns its connection** ([`Tx`]): `Send + 'static`, and safe to drop. One that did not end
//!    closes its connection; the pool never gets back what may still be open.
//! 2. **`begin`** says all that matters and trusts no default: READ COMMITTED, READ WRITE, time-outs. Outside of
//!    transactions connections are read-only, so that what follows a handler's own COMMIT or ROLLBACK is refused.
//! 3. **`claim`** is one statement for all ids, in ascending order ([`sorted`](inbox_core::store::sorted)), with ON
//!    CONFLICT DO NOTHING: what it returns is `New`. For the rest, a second statement with a newer snapshot compares
//!    fingerprints: `Duplicate` or `Conflict`. Only a claim's wait for other transactions is bounded, not a handler's.
//! 4. **`unclaim`** deletes claims of this transaction, and of no other.
//! 5. **`commit`** asks [`Claims::resolved`](inbox_core::Claims::resolved) first; then *your* last statement looks
//!    whether this is the transaction that claimed; then COMMIT. Its error is `CommitUnknown` unless the server said no.
//! 6. **A COMMIT that is not yours keeps nothing**: here by a guard row whose deferred foreign key fails.
//! 7. **`rollback`** waits for the answer, for a bounded time; then it closes the connection.
//! 8. **Errors** get their kind by code, never by text, and so does `classify`, which walks the `source()` chain.
//! 9. **No call waits for ever**: each has a bound of its own beside the server's.
//! 10. **The suite**: implement `StoreSubject` and run `Suite::claim_path` (`tests/suite.rs`); `Suite::store` and
//!     `end_to_end` once the other traits are there. Break the store, and see which case finds it.
//!
//! The statements are those of [`inbox_postgres_sql`], so both stores can work on one database. Tables of your own design
//! are as good: the suite looks at what a store does, not at its tables.
//!
//! # What is left out
//!
//! Failures and counts (`FailureStore`, `Maintenance`, `Operator`), TLS, `weak_durability`, poolers.
//! `PgInboxStore::migrate` of `inbox-postgres` makes the tables; the store itself needs no sqlx.

mod error;
mod store;
mod tx;

pub use crate::{store::OwnStore, tx::Tx};
/// The client that this crate was built with: its types are those of the handlers' statements.
pub use tokio_postgres;
