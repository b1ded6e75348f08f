//! What is SQLite's own: the guard on its connection, other writers, leases, files.

mod guard;
mod leases;
mod writers;
