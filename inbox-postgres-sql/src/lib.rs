//! The tables and every statement of the inbox on PostgreSQL: text, and nothing else.
//!
//! Stores over different drivers use these, so that they share their tables and can take turns on one database:
//! `inbox-postgres` (on sqlx), and one of your own. The numbers of a statement's parameters and columns are part of it.
//!
//! This crate has the version of [`MIGRATIONS`] and changes with it: a minor version may change a statement, so a store
//! of your own pins it exactly (`=0.1.0`) and runs the suite of `inbox-conformance` before it moves on.

/// What every BEGIN of a transaction for handlers starts with; [`begin`] adds the bounds.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; \
     SET LOCAL idle_in_transaction_session_timeout = 0";

/// Begins a transaction for handlers, with the bounds of its claim. That of a handler's statements is kept aside;
/// [`CLAIM`] puts it in force.
///
/// `SET` where `SELECT set_config(…)` would do: nothing is planned and run for it, which is noticed with small batches.
pub fn begin(lock_timeout_ms: i64, claim_timeout_ms: i64, statement_timeout_ms: i64) -> String {
    format!(
        "{BEGIN}; SET LOCAL inbox.statement_timeout = {statement_timeout_ms}; \
         SET LOCAL lock_timeout = {lock_timeout_ms}; SET LOCAL statement_timeout = {claim_timeout_ms}"
    )
}

/// What a connection is started with (`options`), where that reaches the server: outside the store's transactions it is
/// read-only. The second one is there to be found by [`IS_DIRECT`].
pub const SESSION: [(&str, &str); 2] = [("default_transaction_read_only", "on"), ("inbox.direct", "on")];

/// `begin` behind a pooler in transaction mode. The server's connection has been others': statements that they prepared
/// under sqlx's names, which begin at 1 on each of its connections, are removed, and nobody else's. `settings` then hold
/// for the transaction as if the session had them, so that what `begin` sets counts for more.
pub fn begin_pooled<'a>(begin: &str, settings: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    // Read in the same way whatever `standard_conforming_strings` is.
    let quoted = |text: &str| format!("E'{}'", text.replace('\\', r"\\").replace('\'', "''"));
    let (begin, rest) = begin.split_once("; ").unwrap_or((begin, "SELECT"));
    let set = settings.into_iter().map(|(name, value)| {
        // To be put in force again by [`CLAIM`]: the session does not have it.
        let kept = if name.eq_ignore_ascii_case("lock_timeout") { "inbox.lock_timeout" } else { name };
        let (name, kept, value) = (quoted(name), quoted(kept), quoted(value));
        format!("SELECT set_config({name}, {value}, true), set_config({kept}, {value}, true); ")
    });
    format!("{begin}; {DEALLOCATE}; {}{rest}", set.collect::<String>())
}

/// `DEALLOCATE ALL` would take the statements of poolers that keep some themselves.
const DEALLOCATE: &str = "DO $$ DECLARE statement text; BEGIN \
     FOR statement IN SELECT name FROM pg_catalog.pg_prepared_statements WHERE left(name, 7) = 'sqlx_s_' \
     LOOP EXECUTE 'DEALLOCATE ' || pg_catalog.quote_ident(statement); END LOOP; END $$";

/// Begins a transaction of the store's own that writes. It is durable when its COMMIT returns, whatever the role's
/// `synchronous_commit` says: a consumer's number that a crash of the database forgot could be given to another one.
pub const BEGIN_OWN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; \
     SET LOCAL idle_in_transaction_session_timeout = 0; SET LOCAL lock_timeout = '10s'; \
     SET LOCAL statement_timeout = '20s'; \
     SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') IN ('off', 'local')";

/// Begins a migration, which may wait for another one as long as it takes.
pub const BEGIN_MIGRATION: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; \
     SET LOCAL idle_in_transaction_session_timeout = 0; SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = 0; \
     SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') IN ('off', 'local')";

/// Begins a transaction that only reads.
pub const BEGIN_READ: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY; \
     SET LOCAL idle_in_transaction_session_timeout = 0; SET LOCAL statement_timeout = '20s'";

/// Makes the server notice within a second that a connection in doubt was closed in the middle of a statement.
pub const NOTICE_CLOSED_CONNECTIONS: &str = "SET client_connection_check_interval = '1s'";

/// Claims ids, in ascending order; says which are new, and of the others, in the same order, by which fingerprint they
/// were claimed before (NULL where that claim is gone); puts a guard row under the transaction; and, once no wait can
/// follow, ends the claim's own bounds: `lock_timeout` is the session's again.
///
/// The guard row's deferred foreign key points at a row that never exists: a COMMIT that is not preceded by [`FINISH`],
/// which deletes it, fails with 23503 and takes claims and effects along. It also gives the transaction an id when
/// every message is a duplicate. `max` makes the settings wait for all rows of `claimed`.
pub const CLAIM: &str = "\
    WITH guard AS (
        INSERT INTO inbox.guard (transaction) VALUES (pg_current_xact_id()::text::bigint)
    ), claimed AS (
        INSERT INTO inbox.claims (consumer, message_id, fingerprint, claimed_at)
        SELECT $1, c.id, c.fingerprint, greatest(now(), c.time)
        FROM unnest($2::uuid[], $3::int[], $4::timestamptz[]) AS c (id, fingerprint, time)
        ORDER BY c.id
        ON CONFLICT (consumer, message_id) DO NOTHING
        RETURNING message_id
    )
    SELECT pg_current_xact_id()::text::bigint, new.ids,
        CASE WHEN cardinality(new.ids) < cardinality($2) THEN inbox.fingerprints($1, $2, new.ids) END,
        set_config('lock_timeout', nullif(current_setting('inbox.lock_timeout', true), ''), true),
        set_config('statement_timeout', current_setting('inbox.statement_timeout'), true)
    FROM (SELECT coalesce(array_agg(message_id), '{}') AS ids FROM claimed) AS new";

/// Takes claims of the same transaction back.
///
/// One look into the index for each id, whatever the table's statistics say: of a young table they say that it is empty,
/// or that there are few ids, and then `= ANY` reads every claim of the consumer. For the same reason no plan of it may be
/// kept: send it unprepared.
pub const UNCLAIM: &str = "\
    DELETE FROM inbox.claims WHERE ctid = ANY (ARRAY(
        SELECT claim.place
        FROM unnest($2::uuid[]) AS wanted (id)
        CROSS JOIN LATERAL (
            SELECT ctid AS place FROM inbox.claims WHERE consumer = $1 AND message_id = wanted.id LIMIT 1
        ) AS claim
    ))";

/// Which transaction this is, without making it one that writes.
pub const CHECK: &str = "SELECT pg_current_xact_id_if_assigned()::text::bigint";

/// The last statement before COMMIT: lifts the guard, says which transaction this is, and makes its COMMIT wait for the
/// disk whatever a handler or the role has set, unless `$2`.
pub const FINISH: &str = "\
    WITH guard AS (DELETE FROM inbox.guard WHERE transaction = $1 RETURNING transaction)
    SELECT pg_current_xact_id_if_assigned()::text::bigint, (SELECT count(*) FROM guard),
        CASE WHEN NOT $2 AND current_setting('synchronous_commit') IN ('off', 'local')
            THEN set_config('synchronous_commit', 'on', true) END";

/// [`FINISH`] as one message of the protocol, without parameters. Where a handler has ended the transaction, a pooler may
/// lend each message another connection of the server's, and on that one a statement that others have prepared.
pub fn finish(transaction: i64, weak_durability: bool) -> String {
    FINISH.replace("$1", &transaction.to_string()).replace("$2", if weak_durability { "true" } else { "false" })
}

/// The version of the schema.
pub const VERSION: &str = "SELECT coalesce(max(version), 0) FROM inbox.schema_version";

/// Whether what is sent outside a transaction is refused on this connection; asked within one, too, whatever that one
/// has set for itself.
pub const IS_READ_ONLY_OUTSIDE: &str =
    "SELECT reset_val::bool FROM pg_catalog.pg_settings WHERE name = 'default_transaction_read_only'";

/// Whether this connection was started with [`SESSION`]; by the second one, since a role may have the first.
pub const IS_DIRECT: &str = "SELECT current_setting('default_transaction_read_only')::bool \
     AND coalesce(current_setting('inbox.direct', true), '') = 'on'";

/// Whether there is a schema at all, for a role that may not create one. Not `to_regclass`: it answers from a cache, and
/// after the wait for [`LOCK_MIGRATION`] it would not see what the holder has committed.
pub const HAS_VERSION: &str = "SELECT EXISTS (SELECT FROM pg_catalog.pg_class c \
     JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
     WHERE n.nspname = 'inbox' AND c.relname = 'schema_version')";

/// Whether the schema `inbox` exists: `CREATE SCHEMA IF NOT EXISTS` asks for a permission even then.
pub const HAS_SCHEMA: &str = "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'inbox')";

/// Makes the schema.
pub const CREATE_SCHEMA: &str = "CREATE SCHEMA inbox";

/// One migration at a time; the lock ends with the transaction, also behind a pooler.
pub const LOCK_MIGRATION: &str = "SELECT pg_advisory_xact_lock(7596554172801110113)";

/// Notes a version.
pub const SET_VERSION: &str = "INSERT INTO inbox.schema_version (version) VALUES ($1)";

/// What brings the schema from version n to n + 1, at index n. A published one never changes.
pub const MIGRATIONS: [&str; 2] = [include_str!("v1.sql"), include_str!("v2.sql")];

/// The number of a consumer.
pub const CONSUMER: &str = "SELECT number FROM inbox.consumers WHERE name = $1";

/// Gives a consumer a number unless somebody just did.
pub const NEW_CONSUMER: &str =
    "INSERT INTO inbox.consumers (name) VALUES ($1) ON CONFLICT (name) DO NOTHING RETURNING number";

/// Counts one attempt unless the id has a claim. A row that is quarantined stays so.
pub const RECORD_ATTEMPT: &str = "\
    INSERT INTO inbox.failures AS f (consumer, message_id, fingerprint, reason, error, id_text, kind, key, headers, body,
        origin, source_name, coordinates, produced_at, stored_at, attempts)
    SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, 1
    WHERE NOT EXISTS (SELECT FROM inbox.claims c WHERE c.consumer = $1 AND c.message_id = $2)
    ON CONFLICT (consumer, message_id, fingerprint) DO UPDATE
    SET attempts = f.attempts + 1, error = excluded.error, last_failed_at = now()
    RETURNING attempts";

/// Quarantines a message. A `retrying` row of the same content becomes that row and keeps its attempts; another copy of
/// what is quarantined already is counted.
pub const QUARANTINE: &str = "\
    INSERT INTO inbox.failures AS f (consumer, message_id, fingerprint, reason, error, id_text, kind, key, headers, body,
        origin, source_name, coordinates, produced_at, stored_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
    ON CONFLICT (consumer, message_id, fingerprint) DO UPDATE
    SET reason = excluded.reason, error = excluded.error, last_failed_at = now(), next_attempt_at = NULL,
        seen = f.seen + (f.reason <> 'retrying')::int,
        key = CASE WHEN f.reason = 'retrying' THEN excluded.key ELSE f.key END,
        headers = CASE WHEN f.reason = 'retrying' THEN excluded.headers ELSE f.headers END,
        body = CASE WHEN f.reason = 'retrying' THEN excluded.body ELSE f.body END,
        origin = CASE WHEN f.reason = 'retrying' THEN excluded.origin ELSE f.origin END,
        source_name = CASE WHEN f.reason = 'retrying' THEN excluded.source_name ELSE f.source_name END,
        coordinates = CASE WHEN f.reason = 'retrying' THEN excluded.coordinates ELSE f.coordinates END,
        produced_at = CASE WHEN f.reason = 'retrying' THEN excluded.produced_at ELSE f.produced_at END,
        stored_at = CASE WHEN f.reason = 'retrying' THEN excluded.stored_at ELSE f.stored_at END";

/// Forgets the attempts of an id.
pub const FORGET_ATTEMPTS: &str =
    "DELETE FROM inbox.failures WHERE consumer = $1 AND message_id = $2 AND reason = 'retrying'";

/// How much there is of a consumer. A `retrying` row whose id has a claim is done with.
pub const COUNTS: &str = "\
    SELECT (SELECT count(*) FROM inbox.claims WHERE consumer = $1),
        count(*) FILTER (WHERE f.reason = 'retrying' AND NOT EXISTS (
            SELECT FROM inbox.claims c WHERE c.consumer = f.consumer AND c.message_id = f.message_id)),
        count(*) FILTER (WHERE f.reason <> 'retrying')
    FROM inbox.failures f WHERE f.consumer = $1";

/// The oldest failures of a consumer.
pub const FAILURES: &str = "\
    SELECT f.message_id, f.reason, f.attempts, f.seen, f.error, f.id_text, f.kind, f.body, f.source_name, f.coordinates,
        f.last_failed_at
    FROM inbox.failures f JOIN inbox.consumers n ON n.number = f.consumer
    WHERE n.name = $1 AND (f.reason <> 'retrying' OR NOT EXISTS (
        SELECT FROM inbox.claims c WHERE c.consumer = f.consumer AND c.message_id = f.message_id))
    ORDER BY f.number LIMIT $2";
