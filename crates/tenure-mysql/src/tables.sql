CREATE TABLE IF NOT EXISTS tenure_lock (
    name varbinary(1000) NOT NULL PRIMARY KEY,
    whole mediumblob,
    version varbinary(16) NOT NULL DEFAULT '1',
    kind varbinary(32),
    value longblob,
    ends bigint NOT NULL DEFAULT 0,
    fence bigint NOT NULL DEFAULT 0, serial bigint NOT NULL DEFAULT 0,
    record longblob,
    record_at bigint, record_ends bigint,
    batch bigint NOT NULL DEFAULT 0
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC
