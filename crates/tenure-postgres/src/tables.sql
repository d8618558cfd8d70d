CREATE TABLE IF NOT EXISTS {table} (
    name text COLLATE "C" PRIMARY KEY,
    whole text,
    version text NOT NULL DEFAULT '1',
    kind text,
    value text,
    ends bigint NOT NULL DEFAULT 0,
    fence bigint NOT NULL DEFAULT 0,
    serial bigint NOT NULL DEFAULT 0,
    awaited bigint NOT NULL DEFAULT 0,
    record bytea,
    record_at bigint,
    record_ends bigint
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);
INSERT INTO {table} (name) VALUES ('') ON CONFLICT DO NOTHING
