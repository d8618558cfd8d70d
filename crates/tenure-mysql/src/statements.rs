//! The SQL statements. Each is a transaction of its own, so that no row stays locked during a round trip.
//!
//! Texts are hexadecimal literals, which no character set and no SQL mode changes.

use std::fmt::Write;

use tenure_core::protocol::codec::{self, VERSION};
use tenure_core::rows::{LockKey, RowChange, SoleChange, SoleVerb, signed};

/// Creates the table.
const TABLE: &str = include_str!("tables.sql");
/// The row with an empty name, which keeps the greatest token of the deleted rows.
pub(super) const LOWEST: &str = "INSERT IGNORE INTO tenure_lock (name) VALUES (X'')";
/// For a table of a version before 0.1.0.
pub(super) const BATCH: &str = "ALTER TABLE tenure_lock ADD COLUMN batch bigint NOT NULL DEFAULT 0";
/// Checks a hold in.
const CHECK: &str = include_str!("check.sql");

/// The weight, deadline and owner of a ticket, in the state of a queue.
const LINE: &str = "SUBSTRING_INDEX(SUBSTRING_INDEX(value, CONCAT(X'0a', {fence}, ' '), -1), X'0a', 1)";

/// The server's clock at the beginning of the statement, in microseconds since 1970.
pub(super) const CLOCK: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// Rows are deleted an hour after their last use, because no statement that read the clock before then can
/// still be running.
const HOUR_US: &str = "3600000000";

/// `LAST_INSERT_ID(expr)` returns the token, and one or two changed rows mean that it was granted. The row
/// decides in `UPDATE`, whose assignments see those before them.
const ACQUIRE: &str = "
INSERT INTO tenure_lock (name, whole, kind, value, ends, fence, serial)
SELECT {name}, {whole}, {kind}, {made}, us DIV 1000 + {ttl}, LAST_INSERT_ID(token), us
FROM (SELECT us, GREATEST(us, COALESCE((SELECT fence + 1 FROM tenure_lock WHERE name = X''), 0)) AS token
      FROM (SELECT {clock} AS us) AS clock) AS drawn
WHERE NOT EXISTS (SELECT 1 FROM tenure_lock AS known WHERE known.name = {name} AND known.value IS NOT NULL)
ON DUPLICATE KEY UPDATE
    fence = IF({free}, LAST_INSERT_ID(GREATEST(tenure_lock.fence + 1, VALUES(fence))), tenure_lock.fence),
    kind = IF({free}, VALUES(kind), tenure_lock.kind), ends = IF({free}, VALUES(ends), tenure_lock.ends),
    serial = IF({free}, tenure_lock.serial + 1, tenure_lock.serial),
    value = IF({free}, {value}, tenure_lock.value)";
const FREE: &str = "tenure_lock.value IS NULL AND tenure_lock.version = '{version}'";

/// The same where the row exists: the server takes half the time. Its holder may hand the lock over.
const REACQUIRE: &str = "
UPDATE tenure_lock SET fence = LAST_INSERT_ID(GREATEST(fence + 1, {clock})), kind = {kind},
    ends = {clock} DIV 1000 + {ttl}, value = {value}, serial = serial + 1
WHERE name = {name} AND version = '{version}' AND {before}";

const HELD: &str = "name = {name} AND version = '{version}' AND kind = {kind} AND value = {value}
    AND ends >= {clock} DIV 1000";
const RELEASE: &str = "
UPDATE tenure_lock SET kind = NULL, value = NULL, ends = 0, serial = serial + 1 WHERE {held}";
const RENEW: &str = "
UPDATE tenure_lock SET ends = GREATEST(ends, {clock} DIV 1000 + {ttl}), value = {value}, serial = serial + 1,
    fence = LAST_INSERT_ID(fence) WHERE {held}";

/// Changes several rows by one statement, which is cheaper than one for each, and marks those that it changes with
/// the number of the batch. `held` is the value that a row must have; without one, the lock must be free. `made` is its
/// new value, `NULL` for a release. Rows that cannot be changed are left out by a read, which locks none; those that
/// are locked decide. One that a sweep deletes meanwhile comes back as a free one. The assignments see those before
/// them.
const CHANGE_ALL: &str = "
INSERT INTO tenure_lock (name, kind, value, ends, fence, serial, batch)
SELECT name, IF(held IS NULL, given.kind, NULL), IF(held IS NULL, {value made|token|us DIV 1000 + ttl}, NULL),
    IF(held IS NULL, us DIV 1000 + ttl, 0), token, us, IF(held IS NULL, {batch}, 0)
FROM ({given}) AS given
    JOIN (SELECT us, GREATEST(us, COALESCE((SELECT fence + 1 FROM tenure_lock WHERE name = X''), 0)) AS token
          FROM (SELECT {clock} AS us) AS clock) AS drawn
WHERE IF(held IS NULL,
    NOT EXISTS (SELECT 1 FROM tenure_lock AS known WHERE known.name = given.name AND known.value IS NOT NULL),
    EXISTS (SELECT 1 FROM tenure_lock AS known WHERE known.name = given.name AND known.kind = given.kind
        AND known.value = {value held|known.fence|known.ends}))
ON DUPLICATE KEY UPDATE
    batch = IF(tenure_lock.version = '{version}' AND IF(held IS NULL, tenure_lock.value IS NULL,
        tenure_lock.kind = given.kind AND tenure_lock.value = {value held|tenure_lock.fence|tenure_lock.ends}
        AND tenure_lock.ends >= us DIV 1000), {batch}, tenure_lock.batch),
    fence = IF(tenure_lock.batch = {batch} AND draws, GREATEST(tenure_lock.fence + 1, token), tenure_lock.fence),
    ends = IF(tenure_lock.batch = {batch},
        IF(made IS NULL, 0, GREATEST(IF(draws, 0, tenure_lock.ends), us DIV 1000 + ttl)), tenure_lock.ends),
    kind = IF(tenure_lock.batch = {batch}, IF(made IS NULL, NULL, given.kind), tenure_lock.kind),
    serial = IF(tenure_lock.batch = {batch}, tenure_lock.serial + 1, tenure_lock.serial),
    value = IF(tenure_lock.batch = {batch}, {value made|tenure_lock.fence|tenure_lock.ends}, tenure_lock.value)";
/// The rows that it has changed.
const CHANGED: &str = "SELECT name, fence FROM tenure_lock WHERE name IN ({names}) AND batch = {batch}";
const GIVEN: [&str; 6] = ["name", "kind", "held", "made", "ttl", "draws"];

const PROBE: &str = "
SELECT name FROM tenure_lock
WHERE name = IF(EXISTS (SELECT 1 FROM tenure_lock AS known WHERE known.name = {name}), {name}, X'') FOR UPDATE SKIP LOCKED";

const READ: &str = "
SELECT name, version, kind, value, ends, fence, serial, {clock}, NULL{record} FROM tenure_lock WHERE name IN (X''{names})";

const INSERT: &str = "
INSERT INTO tenure_lock (name, whole, kind, value, ends, fence, serial, record, record_at, record_ends)
SELECT {name}, {whole}, {kind}, {value}, {ends}, {fence}, us, {record}
FROM (SELECT {clock} AS us) AS clock WHERE {until} >= us DIV 1000";
const UPDATE: &str = "
UPDATE tenure_lock SET kind = {kind}, value = {value}, ends = {ends}, fence = {fence}, serial = serial + 1{record}
WHERE name = {name} AND serial = {serial} AND {until} >= {clock} DIV 1000";

/// Names are UTF-8, in which no byte is FF.
const LIST: &str = "
SELECT name, version, kind, value, ends, NULL, NULL, {clock}, whole FROM tenure_lock
WHERE name >= {prefix} AND name > {after} AND name < CONCAT({prefix}, X'FF') AND value IS NOT NULL
ORDER BY name LIMIT 500";

const RECORDS: &str = "
SELECT name, NULL, NULL, NULL, NULL, NULL, NULL, {clock}, whole, record, record_at, record_ends FROM tenure_lock
WHERE name >= {prefix} AND name > {after} AND name < CONCAT({prefix}, X'FF') AND record IS NOT NULL
    AND record_ends >= {clock} DIV 1000
ORDER BY name LIMIT 250";

const PAGE: &str = "
SELECT name, fence, {old} FROM tenure_lock WHERE name > {after} ORDER BY name LIMIT 500";
const OLD: &str = "fence < {clock} - {hour} AND ends < ({clock} - {hour}) DIV 1000
    AND (record IS NULL OR record_ends < {clock} DIV 1000)";

pub(super) fn acquire(change: &SoleChange) -> String {
    let made = value(&hex(change.value()), "token", &format!("us DIV 1000 + {}", change.ttl_ms));
    filled(ACQUIRE, &[&sole(change)[..], &[("whole", whole(&change.key)), ("made", made)]].concat())
}

pub(super) fn reacquire(change: &SoleChange) -> String {
    let before = change.value_before().map_or_else(
        || "value IS NULL".to_owned(),
        |before| {
            let kind = hex(change.spec.kind().as_str());
            format!("kind = {kind} AND value = {} AND ends >= {CLOCK} DIV 1000", current(&before))
        },
    );
    filled(REACQUIRE, &[&sole(change)[..], &[("before", before)]].concat())
}

pub(super) fn release(change: &SoleChange) -> String {
    filled(RELEASE, &sole(change))
}

pub(super) fn renew(change: &SoleChange) -> String {
    filled(RENEW, &sole(change))
}

/// Whether [`change_all`] may have this change: MariaDB keeps longer texts of a derived table as BLOB, and then
/// forgets columns of a row that exists.
pub(super) fn is_short(change: &SoleChange) -> bool {
    const LONGEST: usize = 500;
    let texts = [Some(change.value()), change.value_before()];
    let is_short = |text: &String| text.len() <= LONGEST;
    change.key.whole.is_none() && is_short(&change.key.name) && texts.iter().flatten().all(is_short)
}

/// Changes several rows by one statement, in this order, and asks which it has changed.
pub(super) fn change_all(changes: &[&SoleChange], batch: u64) -> [String; 2] {
    let given = |(at, change): (usize, &&SoleChange)| {
        let draws = change.verb == SoleVerb::Acquire;
        let values = [
            hex(&change.key.name),
            hex(change.spec.kind().as_str()),
            null((if draws { change.value_before() } else { Some(change.value()) }).map(hex)),
            null((change.verb != SoleVerb::Release).then(|| hex(change.value()))),
            change.ttl_ms.to_string(),
            u8::from(draws).to_string(),
        ];
        let names = GIVEN.map(|name| if at == 0 { format!(" AS {name}") } else { String::new() });
        let columns: Vec<_> = values.into_iter().zip(names).map(|(value, name)| value + &name).collect();
        format!("SELECT {}", columns.join(", "))
    };
    let given: Vec<_> = changes.iter().enumerate().map(given).collect();
    let names: Vec<_> = changes.iter().map(|change| hex(&change.key.name)).collect();
    let batch = ("batch", batch.to_string());
    [
        filled(CHANGE_ALL, &[("given", given.join(" UNION ALL ")), batch.clone()]),
        filled(CHANGED, &[("names", names.join(", ")), batch]),
    ]
}

fn sole(change: &SoleChange) -> [(&'static str, String); 4] {
    [
        ("name", hex(&change.key.name)),
        ("kind", hex(change.spec.kind().as_str())),
        ("value", current(&change.value())),
        ("ttl", change.ttl_ms.to_string()),
    ]
}

/// A value with a single holder, from its text and the columns.
fn current(text: &str) -> String {
    value(&hex(text), "tenure_lock.fence", "tenure_lock.ends")
}

/// The same, from the token and the end of the lease: see `codec::sole`.
fn value(text: &str, token: &str, end: &str) -> String {
    let [token_mark, end_mark] = [codec::TOKEN, codec::END].map(|mark| hex(mark.to_string()));
    format!("REPLACE(REPLACE({text}, {token_mark}, {token}), {end_mark}, {end})")
}

pub(super) fn read(names: &[String], with_records: bool) -> String {
    let names: String = names.iter().map(|name| format!(", {}", hex(name))).collect();
    let record = if with_records { ", record, record_at, record_ends" } else { "" };
    filled(READ, &[("record", record.to_owned()), ("names", names)])
}

pub(super) fn write(key: &LockKey, change: &RowChange) -> String {
    let (kind, value) = change.lock.as_ref().map(|(kind, value)| (*kind, value.as_str())).unzip();
    let record = change.record.as_ref().map(|record| {
        let ends = record.as_ref().and_then(|record| record.expires_ms);
        let (bytes, at) = record.as_ref().map(|record| (&*record.value.value, record.value.at_us)).unzip();
        [null(bytes.map(hex)), null(at.map(signed)), null(ends.map(signed))]
    });
    let parts = [
        ("name", hex(&key.name)),
        ("kind", null(kind.map(hex))),
        ("value", null(value.map(hex))),
        ("ends", signed(change.ends_ms).to_string()),
        ("fence", signed(change.fence).to_string()),
        ("until", signed(change.until_ms).to_string()),
    ];
    match change.serial {
        None => {
            let record = record.map_or_else(|| "NULL, NULL, NULL".to_owned(), |record| record.join(", "));
            filled(INSERT, &[&parts[..], &[("whole", whole(key)), ("record", record)]].concat())
        }
        Some(serial) => {
            let record = record.map_or_else(String::new, |[bytes, at, ends]| {
                format!(", record = {bytes}, record_at = {at}, record_ends = {ends}")
            });
            filled(UPDATE, &[&parts[..], &[("serial", serial.to_string()), ("record", record)]].concat())
        }
    }
}

/// Asks whether another transaction has locked the row. A row without a name stands for one that does not exist.
pub(super) fn probe(name: &str) -> String {
    filled(PROBE, &[("name", hex(name))])
}

pub(super) fn list(prefix: &str, after: &str) -> String {
    filled(LIST, &[("prefix", hex(prefix)), ("after", hex(after))])
}

pub(super) fn records(prefix: &str, after: &str) -> String {
    filled(RECORDS, &[("prefix", hex(prefix)), ("after", hex(after))])
}

/// A page of rows: the name, the token, and whether the row is unused.
pub(super) fn page(after: &str) -> String {
    filled(PAGE, &[("after", hex(after))])
}

/// Keeps the greatest token of rows that are about to be deleted.
pub(super) fn raise(fence: u64) -> String {
    format!(
        "INSERT INTO tenure_lock (name, fence) VALUES (X'', {fence})
         ON DUPLICATE KEY UPDATE fence = GREATEST(tenure_lock.fence, {fence})"
    )
}

/// Deletes a row if it is still unused.
pub(super) fn delete(name: &[u8]) -> String {
    filled("DELETE FROM tenure_lock WHERE name = {name} AND {old}", &[("name", hex(name))])
}

/// The statement that checks a hold in: see `tenure::mysql::check_sql`.
#[must_use]
pub fn check(database: &str, key: &LockKey, owner: &str, fence: u64) -> String {
    let parts = [
        ("table", format!("{}.tenure_lock", quoted(database))),
        ("name", hex(&key.name)),
        ("owner", hex(owner)),
        ("fence", fence.to_string()),
    ];
    filled(&one_line(CHECK), &parts)
}

/// The SQL that creates the table; see `tenure::mysql::tables_sql`.
#[must_use]
pub fn tables() -> String {
    format!("{}; {LOWEST}", table())
}

pub(super) fn table() -> String {
    one_line(&filled(TABLE, &[]))
}

/// A quoted SQL identifier.
fn quoted(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

fn whole(key: &LockKey) -> String {
    null(key.whole.as_ref().map(hex))
}

/// A literal of bytes.
pub(super) fn hex(bytes: impl AsRef<[u8]>) -> String {
    let bytes = bytes.as_ref();
    let mut literal = String::with_capacity(bytes.len() * 2 + 3);
    literal.push_str("X'");
    for byte in bytes {
        let _ = write!(literal, "{byte:02x}");
    }
    literal.push('\'');
    literal
}

fn null(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "NULL".to_owned(), |value| value.to_string())
}

/// The statement with its parts, which are not searched for further parts: a database may be named `{owner}`.
fn filled(text: &str, parts: &[(&str, String)]) -> String {
    let mut filled = String::with_capacity(2 * text.len());
    fill(&mut filled, text, parts);
    filled
}

fn fill(filled: &mut String, mut text: &str, parts: &[(&str, String)]) {
    while let Some((before, after)) = text.split_once('{') {
        let (name, after) = after.split_once('}').expect("a part ends");
        filled.push_str(before);
        match name {
            "free" => fill(filled, FREE, parts),
            "held" => fill(filled, HELD, parts),
            "old" => fill(filled, OLD, parts),
            "line" => fill(filled, LINE, parts),
            "clock" => filled.push_str(CLOCK),
            "hour" => filled.push_str(HOUR_US),
            "version" => filled.push_str(VERSION),
            _ => {
                match name.strip_prefix("value ").map(|value| value.split('|').collect::<Vec<_>>()).as_deref()
                {
                    Some([text, token, end]) => filled.push_str(&value(text, token, end)),
                    _ => filled.push_str(&parts.iter().find(|(part, _)| *part == name).expect("a value").1),
                }
            }
        }
        text = after;
    }
    filled.push_str(text);
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
