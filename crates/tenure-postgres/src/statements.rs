//! The SQL statements. Each is a transaction of its own, so that no row stays locked during a round trip.

use tokio_postgres::types::Type;

use super::url::PostgresTarget;
use tenure_core::planted::{Bug, planted};
use tenure_core::protocol::codec::VERSION;

/// The statements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// Grants locks that nobody holds, or whose only holder hands them over. Returns a row for each.
    Acquire,
    /// Frees locks with a single holder. Returns a row for each that was held and is not checked in.
    Release,
    /// Extends the leases of locks with a single holder. Returns a row for each that was held.
    Renew,
    /// Reads the rows of locks and the server's clock.
    Read,
    /// As `Read`, with the records beside the locks.
    ReadRecords,
    /// Replaces the rows that are unchanged since they were read. Returns a row for each.
    Write,
    /// Marks rows as having listeners.
    Await,
    /// Deletes the rows of clients that name these sessions.
    Forget,
    /// A page of the locks.
    List,
    /// A page of the records.
    Records,
    /// Deletes unused rows among one page of rows.
    Sweep,
    /// A no-op.
    Ping,
}

pub(super) const ALL: [Which; 12] = [
    Which::Acquire,
    Which::Release,
    Which::Renew,
    Which::Read,
    Which::ReadRecords,
    Which::Write,
    Which::Await,
    Which::Forget,
    Which::List,
    Which::Records,
    Which::Sweep,
    Which::Ping,
];

/// Creates the table.
const TABLES: &str = include_str!("tables.sql");
/// Checks a hold in.
const CHECK: &str = include_str!("check.sql");

/// The server's clock, in microseconds since 1970.
const CLOCK: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// Rows are deleted an hour after their last use, because no statement that read the clock before then can
/// still be running. The row with an empty name keeps the greatest token of the deleted rows.
const HOUR_US: &str = "3600000000";

/// A value with a single holder, from its text, the token and the end of the lease: see `codec::sole`.
const VALUE: &str = "replace(replace({text}, chr(1), ({token})::text), chr(2), ({end})::text)";

/// Rows that another transaction has are left out, so that one of them delays no other. A new row may wait for
/// another transaction that makes it; the order of the names prevents deadlocks.
const ACQUIRE: &str = "
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::text[], $7::text[])
        AS asked (name, whole, kind, value, ttl, before, message)),
drawn AS MATERIALIZED (
    SELECT us, greatest(us, (SELECT fence + 1 FROM {table} WHERE name = '')) AS token
    FROM (SELECT {clock} AS us) AS clock),
mine AS MATERIALIZED (
    SELECT asked.*, us, token FROM {table} AS l JOIN asked ON l.name = asked.name CROSS JOIN drawn
    WHERE l.version = '{version}' AND CASE WHEN before IS NULL THEN l.value IS NULL
        ELSE l.kind = asked.kind AND l.value = {value before|l.fence|l.ends} AND l.ends >= us / 1000 END
    ORDER BY l.name FOR UPDATE OF l SKIP LOCKED),
taken AS (
    UPDATE {table} AS l SET kind = mine.kind, fence = greatest(l.fence + 1, token), ends = us / 1000 + ttl,
        value = {value mine.value|greatest(l.fence + 1, token)|us / 1000 + ttl}, serial = l.serial + 1
    FROM mine WHERE l.name = mine.name
    RETURNING l.name, l.fence,
        CASE WHEN before IS NOT NULL AND l.awaited >= us / 1000 THEN pg_notify($8, message) END),
made AS (
    INSERT INTO {table} (name, whole, kind, value, ends, fence, serial)
    SELECT name, whole, kind, {value value|token|us / 1000 + ttl}, us / 1000 + ttl, token, us
    FROM asked CROSS JOIN drawn
    WHERE before IS NULL AND NOT EXISTS (SELECT FROM {table} AS known WHERE known.name = asked.name)
    ORDER BY name
    ON CONFLICT (name) DO NOTHING
    RETURNING name, fence)
SELECT name, fence FROM taken UNION ALL SELECT name, fence FROM made";

/// Needs no disk: see `SOFTLY`.
const RELEASE: &str = "
WITH softly AS MATERIALIZED (SELECT {softly}),
asked AS MATERIALIZED (
    SELECT asked.* FROM softly, unnest($1::text[], $2::text[], $3::text[], $4::text[])
        AS asked (name, kind, value, message)),
mine AS MATERIALIZED (
    SELECT asked.name, message FROM {table} AS l JOIN asked ON l.name = asked.name
    WHERE l.version = '{version}' AND l.kind = asked.kind AND l.value = {value asked.value|l.fence|l.ends}
        AND l.ends >= {clock} / 1000
    ORDER BY l.name FOR UPDATE OF l SKIP LOCKED)
UPDATE {table} AS l SET kind = NULL, value = NULL, ends = 0, serial = l.serial + 1
FROM mine WHERE l.name = mine.name
RETURNING l.name, l.fence,
    CASE WHEN message <> '' AND l.awaited >= {clock} / 1000 THEN pg_notify($5, message) END";

/// A crash of the server may undo the transaction, which then cost at most a lease. Any later commit that waits
/// for the disk includes it.
const SOFTLY: &str = "set_config('synchronous_commit', 'off', true)";

const RENEW: &str = "
WITH asked AS MATERIALIZED (
    SELECT name, kind, value, {clock} / 1000 + ttl AS ends
    FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) AS asked (name, kind, value, ttl)),
mine AS MATERIALIZED (
    SELECT asked.* FROM {table} AS l JOIN asked ON l.name = asked.name
    WHERE l.version = '{version}' AND l.kind = asked.kind AND l.value = {value asked.value|l.fence|l.ends}
        AND l.ends >= {clock} / 1000
    ORDER BY l.name FOR NO KEY UPDATE OF l SKIP LOCKED)
UPDATE {table} AS l SET ends = greatest(l.ends, mine.ends), serial = l.serial + 1,
    value = {value mine.value|l.fence|greatest(l.ends, mine.ends)}
FROM mine WHERE l.name = mine.name
RETURNING l.name, l.fence";

const READ: &str = "
SELECT asked.name, l.version, l.kind, l.value, l.ends, coalesce(l.fence, lowest.fence, 0), l.serial, {clock}
FROM unnest($1::text[]) AS asked (name)
LEFT JOIN {table} AS l ON l.name = asked.name LEFT JOIN {table} AS lowest ON lowest.name = ''";

const READ_RECORDS: &str = "
SELECT asked.name, l.version, l.kind, l.value, l.ends, coalesce(l.fence, lowest.fence, 0), l.serial, {clock},
    l.record, l.record_at, l.record_ends
FROM unnest($1::text[]) AS asked (name)
LEFT JOIN {table} AS l ON l.name = asked.name LEFT JOIN {table} AS lowest ON lowest.name = ''";

/// A session holds the exclusive lock of its name. Only one that has ended lets this transaction share it.
const WRITE: &str = "
WITH looked AS MATERIALIZED (
    SELECT place.lock, place.client, l.whole AS session, place.lives,
        CASE WHEN l.whole = place.ended THEN true
            WHEN l.awaited >= {clock} / 1000 THEN pg_try_advisory_xact_lock_shared(hashtextextended(l.whole, 0))
            ELSE false END AS has_ended
    FROM unnest($16::text[], $17::text[], $18::text[], $19::bool[]) AS place (lock, client, ended, lives)
    LEFT JOIN {table} AS l ON l.name = place.client),
refused AS MATERIALIZED (SELECT DISTINCT lock FROM looked WHERE lives = has_ended),
softly AS MATERIALIZED (SELECT CASE WHEN $20 THEN {softly} END),
asked AS MATERIALIZED (
    SELECT asked.* FROM softly, unnest($1::text[], $2::text[], $3::bigint[], $4::bool[], $5::bigint[],
            $6::text[], $7::text[], $8::bigint[], $9::bigint[], $10::bool[], $11::bytea[], $12::bigint[],
            $13::bigint[], $14::text[])
        AS asked (name, whole, serial, ends_hold, until, kind, value, ends, fence, puts, record, record_at,
            record_ends, wake)
    WHERE until >= {clock} / 1000 AND name NOT IN (SELECT lock FROM refused)),
gently AS MATERIALIZED (
    SELECT asked.* FROM {table} AS l JOIN asked ON l.name = asked.name
    WHERE l.serial = asked.serial AND NOT asked.ends_hold ORDER BY l.name FOR NO KEY UPDATE OF l SKIP LOCKED),
wholly AS MATERIALIZED (
    SELECT asked.* FROM {table} AS l JOIN asked ON l.name = asked.name
    WHERE l.serial = asked.serial AND asked.ends_hold ORDER BY l.name FOR UPDATE OF l SKIP LOCKED),
locked AS MATERIALIZED (SELECT * FROM gently UNION ALL SELECT * FROM wholly),
changed AS (
    UPDATE {table} AS l SET kind = asked.kind, value = asked.value, ends = asked.ends, fence = asked.fence,
        serial = l.serial + 1,
        record = CASE WHEN asked.puts THEN asked.record ELSE l.record END,
        record_at = CASE WHEN asked.puts THEN asked.record_at ELSE l.record_at END,
        record_ends = CASE WHEN asked.puts THEN asked.record_ends ELSE l.record_ends END
    FROM locked AS asked WHERE l.name = asked.name
    RETURNING l.name, l.awaited, asked.wake),
made AS (
    INSERT INTO {table} (name, whole, kind, value, ends, fence, serial, record, record_at, record_ends)
    SELECT name, whole, kind, value, ends, fence, {clock}, record, record_at, record_ends
    FROM asked WHERE serial IS NULL ORDER BY name
    ON CONFLICT (name) DO NOTHING
    RETURNING name, awaited)
SELECT done.name, (
    SELECT count(pg_notify($15, message)) FROM unnest(string_to_array(done.wake, chr(10))) AS message
    WHERE message LIKE '!%' OR done.awaited >= {clock} / 1000), NULL, NULL
FROM (SELECT * FROM changed UNION ALL SELECT made.*, wake FROM made JOIN asked ON asked.name = made.name) AS done
UNION ALL
SELECT lock, 0, client, CASE WHEN has_ended THEN session END FROM looked WHERE lock IN (SELECT lock FROM refused)";

/// The mark lasts for five minutes; clients that listen longer renew it. Also tells which table it is now, because a
/// client listens to the messages of one.
const AWAIT: &str = "
INSERT INTO {table} AS l (name, whole, fence, serial, awaited)
SELECT asked.name, asked.whole, coalesce((SELECT fence FROM {table} WHERE name = ''), 0), {clock},
    {clock} / 1000 + 300000
FROM unnest($1::text[], $2::text[]) AS asked (name, whole)
WHERE NOT EXISTS (
    SELECT FROM {table} AS known WHERE known.name = asked.name AND known.awaited > {clock} / 1000 + 240000
        AND known.whole IS NOT DISTINCT FROM asked.whole)
ORDER BY asked.name
ON CONFLICT (name) DO UPDATE SET whole = excluded.whole, awaited = excluded.awaited, serial = l.serial + 1
RETURNING to_regclass('{quoted}')::oid::bigint";

const FORGET: &str = "
DELETE FROM {table} AS l USING unnest($1::text[], $2::text[]) AS ended (name, session)
WHERE l.name = ended.name AND l.whole = ended.session";

const LIST: &str = "
SELECT name, whole, version, kind, value, ends, {clock} FROM {table}
WHERE name >= $1 AND name > $2 AND name <= $1 || repeat(chr(1114111), 8) AND value IS NOT NULL
ORDER BY name LIMIT 500";

const RECORDS: &str = "
SELECT name, NULL::text, NULL::text, NULL::text, NULL::bigint, 0::bigint, NULL::bigint, {clock},
    record, record_at, record_ends, whole
FROM {table}
WHERE name >= $1 AND name > $2 AND name <= $1 || repeat(chr(1114111), 8) AND record IS NOT NULL
    AND record_ends >= {clock} / 1000
ORDER BY name LIMIT 250";

const SWEEP: &str = "
WITH part AS MATERIALIZED (SELECT name FROM {table} WHERE name > $1 ORDER BY name LIMIT 500),
lowest AS MATERIALIZED (SELECT name FROM {table} WHERE name = '' FOR NO KEY UPDATE SKIP LOCKED),
-- For the next sweep, after a TRUNCATE.
again AS (INSERT INTO {table} (name) VALUES ('') ON CONFLICT DO NOTHING),
old AS MATERIALIZED (
    SELECT l.name FROM {table} AS l JOIN part ON part.name = l.name CROSS JOIN lowest
    WHERE l.fence < {clock} - {hour} AND greatest(l.ends, l.awaited) < ({clock} - {hour}) / 1000
        AND (l.record IS NULL OR l.record_ends < {clock} / 1000)
    FOR UPDATE OF l SKIP LOCKED),
gone AS (DELETE FROM {table} AS l USING old WHERE l.name = old.name RETURNING l.fence),
raised AS (
    UPDATE {table} AS l SET fence = greatest(l.fence, (SELECT max(fence) FROM gone))
    WHERE l.name = '' AND EXISTS (SELECT FROM gone))
SELECT max(name) FROM part";

/// The SQL of the statements for one table.
#[derive(Debug)]
pub(super) struct Statements {
    table: String,
}

impl Statements {
    pub(super) fn new(target: &PostgresTarget) -> Self {
        Self { table: target.table() }
    }

    /// The table, as `to_regclass` reads it.
    pub(super) fn table(&self) -> &str {
        &self.table
    }

    pub(super) fn text(&self, which: Which) -> String {
        self.filled(match which {
            Which::Acquire if planted(Bug::RowsOutOfOrder) => {
                return self.filled(&ACQUIRE.replace("ORDER BY name", ""));
            }
            Which::Acquire => ACQUIRE,
            Which::Release => RELEASE,
            Which::Renew => RENEW,
            Which::Read => READ,
            Which::ReadRecords => READ_RECORDS,
            Which::Write => WRITE,
            Which::Await => AWAIT,
            Which::Forget => FORGET,
            Which::List => LIST,
            Which::Records => RECORDS,
            Which::Sweep => SWEEP,
            Which::Ping => "SELECT 1",
        })
    }

    /// The SQL that creates the table.
    pub(super) fn tables(&self) -> String {
        tables(&self.table)
    }

    fn filled(&self, text: &str) -> String {
        filled(text, &self.table)
    }
}

/// The statement of `tenure::postgres::check_sql`.
pub fn check(table: &str) -> String {
    one_line(&filled(CHECK, table))
}

/// Deletes unused rows among one page of rows; its parameter is the name after which the page begins.
pub fn sweep_sql(table: &str) -> String {
    filled(SWEEP, table)
}

/// The SQL that creates a table of this name; see `tenure::postgres::tables_sql`.
pub fn tables(table: &str) -> String {
    one_line(&filled(TABLES, table))
}

fn filled(text: &str, table: &str) -> String {
    let mut parts = text.split("{value ");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (value, rest) = part.split_once('}').expect("a value ends");
        let [of, token, end] = value.split('|').collect::<Vec<_>>()[..] else { panic!("a value: {value}") };
        text += &VALUE.replace("{text}", of).replace("{token}", token).replace("{end}", end);
        text += rest;
    }
    text.replace("{table}", table)
        .replace("{quoted}", &table.replace('\'', "''"))
        .replace("{softly}", SOFTLY)
        .replace("{clock}", CLOCK)
        .replace("{hour}", HOUR_US)
        .replace("{version}", VERSION)
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl Which {
    /// The parameter types.
    pub(super) fn types(self) -> &'static [Type] {
        match self {
            Self::Acquire => &[
                Type::TEXT_ARRAY,
                Type::TEXT_ARRAY,
                Type::TEXT_ARRAY,
                Type::TEXT_ARRAY,
                Type::INT8_ARRAY,
                Type::TEXT_ARRAY,
                Type::TEXT_ARRAY,
                Type::TEXT,
            ],
            Self::Release => {
                &[Type::TEXT_ARRAY, Type::TEXT_ARRAY, Type::TEXT_ARRAY, Type::TEXT_ARRAY, Type::TEXT]
            }
            Self::Renew => &[Type::TEXT_ARRAY, Type::TEXT_ARRAY, Type::TEXT_ARRAY, Type::INT8_ARRAY],
            Self::Read | Self::ReadRecords => &[Type::TEXT_ARRAY],
            Self::Write => &[
                Type::TEXT_ARRAY,
                Type::TEXT_ARRAY,
                Type::INT8_ARRAY,
                Type::BOOL_ARRAY,
                Type::INT8_ARRAY,
                Type::TEXT_ARRAY,
                Type::TEXT_ARRAY,
                Type::INT8_ARRAY,
                Type::INT8_ARRAY,
                Type::BOOL_ARRAY,
                Type::BYTEA_ARRAY,
                Type::INT8_ARRAY,
                Type::INT8_ARRAY,
                Type::TEXT_ARRAY,
                Type::TEXT,
                Type::TEXT_ARRAY,
                Type::TEXT_ARRAY,
                Type::TEXT_ARRAY,
                Type::BOOL_ARRAY,
                Type::BOOL,
            ],
            Self::Await | Self::Forget => &[Type::TEXT_ARRAY, Type::TEXT_ARRAY],
            Self::List | Self::Records => &[Type::TEXT, Type::TEXT],
            Self::Sweep => &[Type::TEXT],
            Self::Ping => &[],
        }
    }

    /// Whether the statement changes anything.
    pub(super) fn writes(self) -> bool {
        !matches!(self, Self::Read | Self::ReadRecords | Self::List | Self::Records | Self::Ping)
    }
}
