-- Rejects writes by former holders of a lock: INSERT INTO tenure_pass VALUES ('draw', 42), first in
-- the transaction. SQLite 3.24 or later. Run this once, as a migration.

CREATE TABLE tenure_fence (
    name TEXT PRIMARY KEY NOT NULL,
    token INTEGER NOT NULL
);

CREATE VIEW tenure_pass AS SELECT name, token FROM tenure_fence;

-- Fails with SQLITE_CONSTRAINT_TRIGGER if a newer token has passed, or a value is invalid.
CREATE TRIGGER tenure_pass_insert INSTEAD OF INSERT ON tenure_pass
BEGIN
    SELECT RAISE(ABORT, 'tenure: want a name and a token above 0')
    WHERE typeof(NEW.name) <> 'text' OR typeof(NEW.token) <> 'integer' OR NEW.token < 1;
    SELECT RAISE(ABORT, 'tenure: old token')
    WHERE NEW.token < (SELECT token FROM tenure_fence WHERE name = NEW.name);
    INSERT INTO tenure_fence VALUES (NEW.name, NEW.token)
    ON CONFLICT (name) DO UPDATE SET token = excluded.token;
END;
