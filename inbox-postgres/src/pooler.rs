//! What differs behind a pooler in transaction mode, which gives each transaction a connection of the server's that
//! others have used, and keeps of a connection's start only what it knows. Pure.

use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr, postgres::PgConnectOptions};

use crate::sql;

/// Settings by name, as of a session.
pub(crate) type Settings = Vec<(String, String)>;

/// How a connection is asked for where it reaches the server as it is.
pub(crate) fn direct(options: PgConnectOptions, settings: &Settings) -> PgConnectOptions {
    // Ours behind the user's, since the last one counts: what a handler sends after it has ended our transaction is
    // refused instead of kept.
    options.options(settings.iter().map(|(name, value)| (name, value))).options(sql::SESSION)
}

/// How one is asked for behind a pooler: without what PgBouncer refuses, and without a cache of statements, which the
/// next transaction would look for on another connection.
pub(crate) fn pooled(options: PgConnectOptions) -> PgConnectOptions {
    options.extra_float_digits(None).statement_cache_capacity(0)
}

/// A BEGIN that also does what the session would have.
pub(crate) fn begin(begin: &SqlStr, settings: &Settings) -> SqlStr {
    let settings = settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    AssertSqlSafe(sql::begin_pooled(begin.as_str(), settings)).into_sql_str()
}

/// What is said of a connection that has not taken what its start asked for.
pub(crate) fn looks_like_one(server: &str) -> String {
    format!(
        "{server} does not pass on what a connection asks for when it starts: it looks like a pooler in transaction mode. \
         Connect to the server itself, or say `pooler=transaction` in the URL or `.transaction_pooler(true)` of the \
         configuration. That costs a round trip for each statement with parameters; and what a handler sends after a \
         ROLLBACK or a failed COMMIT of its own is kept, unless its role has `default_transaction_read_only = on` (see \
         `Behind pgbouncer` in the docs of inbox-postgres)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_come_first_in_the_transaction_and_are_quoted() {
        let settings = vec![("search_path".to_owned(), r"o'ne\".to_owned())];
        let begin = begin(&sql::BEGIN_OWN.into_sql_str(), &settings);
        let statements: Vec<&str> = begin.as_str().split("; ").collect();
        assert_eq!(statements[0], "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE");
        let at = |what: &str| begin.as_str().find(what).expect(what);
        assert!(at("DEALLOCATE") < at(r"set_config(E'search_path', E'o''ne\\', true)"));
        assert!(at("search_path") < at("SET LOCAL lock_timeout = '10s'"), "ours count");
    }

    #[test]
    fn nothing_is_left_of_a_session() {
        let pooled = pooled(PgConnectOptions::new_without_pgpass());
        assert_eq!(pooled.get_options(), None);
        let direct = direct(PgConnectOptions::new_without_pgpass(), &vec![("a".to_owned(), "b".to_owned())]);
        assert!(direct.get_options().is_some_and(|options| options.starts_with("-c a=b ")), "{direct:?}");
    }
}
