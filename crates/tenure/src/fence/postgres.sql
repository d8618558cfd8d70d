-- Rejects writes by former holders of a lock: SELECT tenure_pass('draw', 42), first in the
-- transaction. PostgreSQL 9.5 or later. Run this once, as a migration.

CREATE TABLE tenure_fence (
    name text PRIMARY KEY,
    token bigint NOT NULL CHECK (token > 0)
);

-- Raises TN001 if a newer token has passed, 23514 if the token is below 1, 23502 if an argument is null.
CREATE FUNCTION tenure_pass(lock_name text, lock_token bigint) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO tenure_fence AS fence VALUES (lock_name, lock_token)
    ON CONFLICT (name) DO UPDATE SET token = excluded.token WHERE fence.token <= excluded.token;
    IF NOT FOUND THEN
        RAISE 'tenure: old token % of lock "%"', lock_token, lock_name USING ERRCODE = 'TN001';
    END IF;
END
$$;
