-- Rejects writes by former holders of a lock: CALL tenure_pass('draw', 42), first in the
-- transaction. MariaDB 10.2, MySQL 5.7 or later, with InnoDB. Run this once, as a migration.

CREATE TABLE tenure_fence (
    name VARBINARY(1024) PRIMARY KEY,
    token BIGINT NOT NULL
) ENGINE = InnoDB;

-- Signals 45000 if a newer token has passed, the token is below 1, or an argument is null.
-- DELIMITER is for the `mysql` client. Drivers send the procedure without it and without `//`.
DELIMITER //
CREATE PROCEDURE tenure_pass(lock_name VARBINARY(1024), lock_token BIGINT)
BEGIN
    DECLARE seen BIGINT;
    IF lock_name IS NULL OR lock_token IS NULL OR lock_token < 1 THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'tenure: want a name and a token above 0';
    END IF;
    INSERT INTO tenure_fence VALUES (lock_name, lock_token)
    ON DUPLICATE KEY UPDATE token = GREATEST(token, lock_token);
    SELECT token INTO seen FROM tenure_fence WHERE name = lock_name FOR UPDATE;
    IF seen > lock_token THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'tenure: old token';
    END IF;
END //
DELIMITER ;
