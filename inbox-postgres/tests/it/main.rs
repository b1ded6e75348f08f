//! What is PostgreSQL's own: the guard on our transactions, hostile settings, broken connections, races.

mod blame;
mod connect;
mod doubt;
mod failures;
mod guard;
mod races;
mod schema;
mod settings;
mod support;
