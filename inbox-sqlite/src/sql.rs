//! Every statement of this crate.

/// The schema that this version makes and works with.
pub(crate) const VERSION: i64 = 1;

/// Empty for a database in memory.
pub(crate) const FILE: &str = "SELECT file FROM pragma_database_list WHERE name = 'main'";

pub(crate) const BEGIN: &str = "BEGIN IMMEDIATE";

pub(crate) const MIGRATE: &str = "
CREATE TABLE IF NOT EXISTS inbox_schema (version INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS inbox_consumers (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
) STRICT;
CREATE TABLE IF NOT EXISTS inbox_claims (
    consumer INTEGER NOT NULL,
    message_id BLOB NOT NULL,
    fingerprint INTEGER NOT NULL,
    claimed_at INTEGER NOT NULL,
    PRIMARY KEY (consumer, message_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS inbox_claims_by_time ON inbox_claims (claimed_at);
CREATE TABLE IF NOT EXISTS inbox_failures (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    consumer INTEGER NOT NULL,
    message_id BLOB NOT NULL,
    fingerprint INTEGER NOT NULL,
    reason TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    seen INTEGER NOT NULL DEFAULT 1,
    error TEXT NOT NULL,
    id_text BLOB,
    kind BLOB,
    key BLOB,
    headers BLOB,
    origin BLOB,
    body BLOB,
    source_name TEXT NOT NULL,
    coordinates TEXT,
    produced_at INTEGER,
    stored_at INTEGER,
    first_failed_at INTEGER NOT NULL,
    last_failed_at INTEGER NOT NULL,
    next_attempt_at INTEGER,
    UNIQUE (consumer, message_id, fingerprint)
) STRICT;
";

pub(crate) const READ_VERSION: &str = "SELECT max(version) FROM inbox_schema";
pub(crate) const HAS_SCHEMA: &str =
    "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'inbox_schema')";
pub(crate) const WRITE_VERSION: &str = "INSERT INTO inbox_schema (version) VALUES (?1)";

pub(crate) const REGISTER: &str = "INSERT INTO inbox_consumers (name) VALUES (?1) ON CONFLICT DO NOTHING";
pub(crate) const CONSUMER: &str = "SELECT id FROM inbox_consumers WHERE name = ?1";

/// ?1 consumer, ?2 now, ?3 a JSON array of [id as hex, fingerprint, the id's time], sorted by id. Times in milliseconds.
pub(crate) const CLAIM: &str = "
INSERT INTO inbox_claims (consumer, message_id, fingerprint, claimed_at)
SELECT ?1, unhex(value ->> 0), value ->> 1, max(?2, value ->> 2) FROM json_each(?3) WHERE true
ON CONFLICT DO NOTHING RETURNING message_id";

/// ?1 consumer, ?2 a JSON array of ids as hex.
pub(crate) const FINGERPRINTS: &str = "
SELECT message_id, fingerprint FROM inbox_claims
WHERE consumer = ?1 AND message_id IN (SELECT unhex(value) FROM json_each(?2))";

pub(crate) const UNCLAIM: &str =
    "DELETE FROM inbox_claims WHERE consumer = ?1 AND message_id IN (SELECT unhex(value) FROM json_each(?2))";

pub(crate) const IS_CLAIMED: &str =
    "SELECT EXISTS (SELECT 1 FROM inbox_claims WHERE consumer = ?1 AND message_id = ?2)";

pub(crate) const RECORD_ATTEMPT: &str = "
INSERT INTO inbox_failures (consumer, message_id, fingerprint, reason, attempts, error, id_text, kind, key, headers,
    origin, body, source_name, coordinates, produced_at, stored_at, first_failed_at, last_failed_at)
VALUES (?1, ?2, ?3, ?4, 1, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?16)
ON CONFLICT (consumer, message_id, fingerprint) DO UPDATE SET
    attempts = attempts + 1, error = excluded.error, last_failed_at = excluded.last_failed_at
RETURNING attempts";

pub(crate) const GIVE_UP: &str = "
INSERT INTO inbox_failures (consumer, message_id, fingerprint, reason, attempts, error, id_text, kind, key, headers,
    origin, body, source_name, coordinates, produced_at, stored_at, first_failed_at, last_failed_at)
VALUES (?1, ?2, ?3, ?4, 0, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?16)
ON CONFLICT (consumer, message_id, fingerprint) DO UPDATE SET
    reason = excluded.reason, error = excluded.error, last_failed_at = excluded.last_failed_at, body = excluded.body";

/// A `retrying` row of the same content has no body yet: it becomes the kept one.
pub(crate) const KEEP: &str = "
INSERT INTO inbox_failures (consumer, message_id, fingerprint, reason, attempts, error, id_text, kind, key, headers,
    origin, body, source_name, coordinates, produced_at, stored_at, first_failed_at, last_failed_at)
VALUES (?1, ?2, ?3, ?4, 0, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?16)
ON CONFLICT (consumer, message_id, fingerprint) DO UPDATE SET
    seen = seen + (reason <> 'retrying'), reason = excluded.reason, error = excluded.error, body = excluded.body,
    last_failed_at = excluded.last_failed_at";

pub(crate) const FORGET_ATTEMPTS: &str =
    "DELETE FROM inbox_failures WHERE consumer = ?1 AND message_id = ?2 AND reason = 'retrying'";

/// A `retrying` row whose id has a claim is finished business: the pruner's, nobody's to see.
pub(crate) const COUNTS: &str = "
SELECT (SELECT count(*) FROM inbox_claims WHERE consumer = ?1),
       (SELECT count(*) FROM inbox_failures f WHERE consumer = ?1 AND reason = 'retrying' AND NOT EXISTS (
            SELECT 1 FROM inbox_claims c WHERE c.consumer = f.consumer AND c.message_id = f.message_id)),
       (SELECT count(*) FROM inbox_failures WHERE consumer = ?1 AND reason <> 'retrying')";

pub(crate) const FAILURES: &str = "
SELECT message_id, reason, attempts, seen, error, id_text, kind, body, source_name, coordinates, last_failed_at
FROM inbox_failures f WHERE consumer = ?1 AND (reason <> 'retrying' OR NOT EXISTS (
    SELECT 1 FROM inbox_claims c WHERE c.consumer = f.consumer AND c.message_id = f.message_id))
ORDER BY number LIMIT ?2";

pub(crate) mod queue {
    //! Statements of the queue.

    pub(crate) const MAKE: &str = "
CREATE TABLE IF NOT EXISTS inbox_queue_topics (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE IF NOT EXISTS inbox_queue_messages (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    topic INTEGER NOT NULL,
    id BLOB,
    kind TEXT,
    key BLOB,
    headers BLOB,
    origin TEXT,
    produced_at INTEGER,
    stored_at INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS inbox_queue_by_topic ON inbox_queue_messages (topic, seq);
CREATE TABLE IF NOT EXISTS inbox_queue_groups (
    id INTEGER PRIMARY KEY,
    topic INTEGER NOT NULL,
    name TEXT NOT NULL,
    position INTEGER NOT NULL DEFAULT 0,
    UNIQUE (topic, name)
) STRICT;
CREATE TABLE IF NOT EXISTS inbox_queue_deliveries (
    grp INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    key BLOB,
    owner INTEGER NOT NULL DEFAULT 0,
    lease INTEGER NOT NULL DEFAULT 0,
    lease_until INTEGER NOT NULL DEFAULT 0,
    count INTEGER NOT NULL DEFAULT 0,
    suspect INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (grp, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS inbox_queue_by_key ON inbox_queue_deliveries (grp, key);";

    pub(crate) const HAS_QUEUE: &str =
        "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'inbox_queue_topics')";
    pub(crate) const ADD_TOPIC: &str = "INSERT INTO inbox_queue_topics (name) VALUES (?1) ON CONFLICT DO NOTHING";
    pub(crate) const TOPIC: &str = "SELECT id FROM inbox_queue_topics WHERE name = ?1";
    pub(crate) const TOPICS: &str = "SELECT name FROM inbox_queue_topics ORDER BY name LIMIT 20";
    pub(crate) const ADD_GROUP: &str =
        "INSERT INTO inbox_queue_groups (topic, name) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
    pub(crate) const GROUP: &str = "SELECT id FROM inbox_queue_groups WHERE topic = ?1 AND name = ?2";

    pub(crate) const PUBLISH: &str = "
INSERT INTO inbox_queue_messages (topic, id, kind, key, headers, origin, produced_at, stored_at, body)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";

    /// Whether `receive` would find something: ?1 topic, ?2 group, ?3 now.
    pub(crate) const ANY: &str = "
SELECT EXISTS (SELECT 1 FROM inbox_queue_deliveries WHERE grp = ?2 AND lease_until <= ?3)
    OR EXISTS (SELECT 1 FROM inbox_queue_messages WHERE topic = ?1
               AND seq > (SELECT position FROM inbox_queue_groups WHERE id = ?2))";

    /// Makes rows for messages that nobody has had yet: ?1 group, ?2 topic, ?3 most. Sequence numbers are given by the one
    /// writer, so none below the highest one can appear later.
    pub(crate) const ADMIT: &str = "
INSERT INTO inbox_queue_deliveries (grp, seq, key)
SELECT ?1, seq, key FROM inbox_queue_messages
WHERE topic = ?2 AND seq > (SELECT position FROM inbox_queue_groups WHERE id = ?1) ORDER BY seq LIMIT ?3";

    pub(crate) const ADVANCE: &str = "
UPDATE inbox_queue_groups SET position = max(position, coalesce(
    (SELECT max(seq) FROM inbox_queue_deliveries WHERE grp = ?1), 0)) WHERE id = ?1";

    /// How many rows nobody holds: ?1 group, ?2 now.
    pub(crate) const WAITING: &str = "SELECT count(*) FROM inbox_queue_deliveries WHERE grp = ?1 AND lease_until <= ?2";

    /// Leases what nobody holds, in order: ?1 group, ?2 owner, ?3 lease, ?4 until, ?5 now, ?6 most, ?7 most bytes, which the
    /// first message may exceed. A key of which another member holds a message waits; those keys are a list made once, since
    /// a correlated search goes through all rows of the group for each row. A lease that ran out, and was not given back, may
    /// have been in flight at a crash.
    pub(crate) const TAKE: &str = "
UPDATE inbox_queue_deliveries
SET suspect = (owner <> 0), owner = ?2, lease = ?3, lease_until = ?4, count = count + 1
WHERE grp = ?1 AND seq IN (
    SELECT seq FROM (
        SELECT free.seq, row_number() OVER (ORDER BY free.seq) AS place,
            sum(length(m.body) + coalesce(length(m.headers), 0) + coalesce(length(m.key), 0) + coalesce(length(m.id), 0))
                OVER (ORDER BY free.seq) AS bytes
        FROM (SELECT seq FROM inbox_queue_deliveries WHERE grp = ?1 AND lease_until <= ?5
              AND (key IS NULL OR key NOT IN (
                  SELECT key FROM inbox_queue_deliveries
                  WHERE grp = ?1 AND owner <> ?2 AND lease_until > ?5 AND key IS NOT NULL))
              ORDER BY seq LIMIT ?6) free
        JOIN inbox_queue_messages m ON m.seq = free.seq)
    WHERE place = 1 OR bytes <= ?7)";

    pub(crate) const TAKEN: &str = "
SELECT m.seq, d.count, d.suspect, m.id, m.kind, m.key, m.headers, m.origin, m.produced_at, m.stored_at, m.body
FROM inbox_queue_deliveries d JOIN inbox_queue_messages m ON m.seq = d.seq
WHERE d.grp = ?1 AND d.lease = ?2 ORDER BY m.seq";

    pub(crate) const ACK: &str = "
DELETE FROM inbox_queue_deliveries WHERE grp = ?1 AND lease = ?2 AND seq IN (SELECT value FROM json_each(?3))";

    pub(crate) const RELEASE: &str = "
UPDATE inbox_queue_deliveries SET owner = 0, lease = 0, lease_until = 0
WHERE grp = ?1 AND lease = ?2 AND seq IN (SELECT value FROM json_each(?3))";

    pub(crate) const RELEASE_ALL: &str =
        "UPDATE inbox_queue_deliveries SET owner = 0, lease = 0, lease_until = 0 WHERE grp = ?1 AND owner = ?2";

    /// Only what is still ours, since a lease that ran out may be somebody else's by now, and only what is held: ?4, a JSON
    /// array of numbers. A delivery whose settling failed is held no more, and must come again when its lease ends.
    pub(crate) const EXTEND: &str = "
UPDATE inbox_queue_deliveries SET lease_until = ?3
WHERE grp = ?1 AND owner = ?2 AND seq IN (SELECT value FROM json_each(?4))";

    pub(crate) const PUBLISHED: &str = "SELECT count(*) FROM inbox_queue_messages WHERE topic = ?1";

    pub(crate) const BACKLOG: &str = "
SELECT (SELECT count(*) FROM inbox_queue_deliveries WHERE grp = ?2)
     + (SELECT count(*) FROM inbox_queue_messages WHERE topic = ?1
        AND seq > (SELECT position FROM inbox_queue_groups WHERE id = ?2))";
}
