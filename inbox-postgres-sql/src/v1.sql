CREATE TABLE inbox.schema_version (
    version int PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE inbox.consumers (
    number int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    registered_at timestamptz NOT NULL DEFAULT now()
);

-- No foreign key to consumers: it would be looked up for every message. Truncation by VACUUM would lock out claims.
CREATE TABLE inbox.claims (
    consumer int NOT NULL,
    message_id uuid NOT NULL,
    fingerprint int NOT NULL,
    claimed_at timestamptz NOT NULL,
    PRIMARY KEY (consumer, message_id)
) WITH (vacuum_truncate = off);
CREATE INDEX claims_by_time ON inbox.claims (claimed_at);

CREATE TABLE inbox.nothing (id int PRIMARY KEY CHECK (false));

-- One row per open transaction, deleted by its last statement; none is ever committed, hence UNLOGGED.
CREATE UNLOGGED TABLE inbox.guard (
    transaction bigint PRIMARY KEY,
    nothing int NOT NULL DEFAULT 0,
    CONSTRAINT only_the_inbox_may_commit_its_transaction FOREIGN KEY (nothing) REFERENCES inbox.nothing
        DEFERRABLE INITIALLY DEFERRED
) WITH (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

CREATE TABLE inbox.failures (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer int NOT NULL,
    message_id uuid NOT NULL,
    fingerprint int NOT NULL,
    reason text NOT NULL,
    attempts int NOT NULL DEFAULT 0,
    seen int NOT NULL DEFAULT 1,
    error text NOT NULL,
    id_text bytea,
    kind bytea,
    key bytea,
    headers bytea,
    body bytea,
    origin text,
    source_name text NOT NULL,
    coordinates text,
    produced_at timestamptz,
    stored_at timestamptz,
    first_failed_at timestamptz NOT NULL DEFAULT now(),
    last_failed_at timestamptz NOT NULL DEFAULT now(),
    next_attempt_at timestamptz,
    UNIQUE (consumer, message_id, fingerprint)
);
CREATE INDEX failures_by_consumer ON inbox.failures (consumer, number);
