//! Sends the statements of `statements` to a real server.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{FutureExt, join};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};

use super::failure;
use super::statements::Which;
use super::url::quoted;
use tenure_core::moment::Moment;
use tenure_core::rows::{
    ChangeOutcome, ExpectedSession, LockKey, RecordColumns, Row, RowChange, SessionCheck, SoleChange,
    SoleVerb, StatementError, StatementResult, StatementSession, WriteOutcome, signed,
};
use tenure_core::runtime::Runtime;
use tenure_core::store::Failure;
use tenure_core::sync::Locked;

/// A connection's statements.
pub(super) struct PostgresSession {
    pub(super) client: Client,
    pub(super) statements: Vec<String>,
    /// Prepared once, unless a pooler shares the server's connection.
    pub(super) prepared: Vec<Statement>,
    /// Number of completed reads.
    pub(super) heard: Arc<AtomicU64>,
    /// The connection's `application_name`.
    pub(super) label: String,
    /// The NOTIFY channel of this table's locks.
    pub(super) channel: String,
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) plan_times: Locked<PlanTimes>,
}

/// How long a plan is kept: one for a small table may read all of it, also once it has grown.
const REPLAN: Duration = Duration::from_secs(1);

/// Statements within [`REPLAN`] from which on plans are kept.
const BUSY: u32 = 8;

/// When the plans were last discarded, and the statements since a time.
#[derive(Default)]
pub(super) struct PlanTimes {
    discarded: Moment,
    since: Moment,
    statements: u32,
}

/// The plan of a statement.
enum PlanChoice {
    Kept,
    /// The plans are discarded ahead of it.
    New,
    /// For it alone, which takes no more statements than a kept one.
    Single,
}

impl PostgresSession {
    /// Sends a statement and waits for its rows.
    async fn ask(
        &self,
        which: Which,
        arguments: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<tokio_postgres::Row>, StatementError> {
        let prepared = self.prepared.get(which as usize).map(|statement| (statement, self.plan()));
        let rows = match prepared {
            Some((statement, PlanChoice::Kept)) => self.client.query(statement, arguments).await,
            Some((statement, PlanChoice::New)) => {
                let discards = self.client.batch_execute("DISCARD PLANS");
                join(discards, self.client.query(statement, arguments)).await.1
            }
            Some((_, PlanChoice::Single)) | None => {
                let typed = arguments.iter().zip(which.types());
                let typed: Vec<_> = typed.map(|(argument, kind)| (*argument, kind.clone())).collect();
                self.client.query_typed(&self.statements[which as usize], &typed).await
            }
        };
        rows.map_err(|error| failed(error, which))
    }

    fn plan(&self) -> PlanChoice {
        let (now, mut times) = (self.runtime.now(), self.plan_times.lock());
        if now.since(times.since) >= REPLAN {
            (times.since, times.statements) = (now, 0);
        }
        times.statements += 1;
        match now.since(times.discarded) >= REPLAN {
            false => PlanChoice::Kept,
            true if times.statements < BUSY => PlanChoice::Single,
            true => {
                times.discarded = now;
                PlanChoice::New
            }
        }
    }

    /// Runs a query that returns pairs of texts, for a diagnosis.
    pub(super) async fn look_up(&self, sql: &str) -> Result<Vec<(String, String)>, Failure> {
        let rows = self.client.query_typed(sql, &[]).await;
        let rows = rows.map_err(|error| failure::of(error, Which::Ping))?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }
}

impl fmt::Debug for PostgresSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PostgresSession").field(&self.label).finish()
    }
}

/// The NOTIFY channel of the locks in a table.
pub(super) fn channel_of(table: i64) -> String {
    format!("tenure_{table}")
}

fn failed(error: tokio_postgres::Error, which: Which) -> StatementError {
    let ends_connection = failure::ends_connection(&error);
    StatementError { failure: failure::of(error, which), ends_connection }
}

impl StatementSession for PostgresSession {
    fn label(&self) -> &str {
        &self.label
    }

    fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    fn change<'a>(&'a self, changes: &'a [SoleChange]) -> StatementResult<'a, ChangeOutcome> {
        async move {
            let Some(SoleChange { verb, .. }) = changes.first() else { return Ok(ChangeOutcome::default()) };
            let names: Vec<&str> = changes.iter().map(|change| &*change.key.name).collect();
            let kinds: Vec<&str> = changes.iter().map(|change| change.spec.kind().as_str()).collect();
            let values: Vec<String> = changes.iter().map(SoleChange::value).collect();
            let ttls_ms: Vec<i64> = changes.iter().map(|change| change.ttl_ms).collect();
            let messages: Vec<&str> = changes.iter().map(|change| &*change.message).collect();
            let rows = match verb {
                SoleVerb::Acquire => {
                    let wholes: Vec<_> = changes.iter().map(|change| change.key.whole.as_deref()).collect();
                    let before: Vec<_> = changes.iter().map(SoleChange::value_before).collect();
                    let arguments: [&(dyn ToSql + Sync); 8] =
                        [&names, &wholes, &kinds, &values, &ttls_ms, &before, &messages, &self.channel];
                    self.ask(Which::Acquire, &arguments).await?
                }
                SoleVerb::Release => {
                    let arguments: [&(dyn ToSql + Sync); 5] =
                        [&names, &kinds, &values, &messages, &self.channel];
                    self.ask(Which::Release, &arguments).await?
                }
                SoleVerb::Renew => self.ask(Which::Renew, &[&names, &kinds, &values, &ttls_ms]).await?,
            };
            let tokens = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
            Ok(ChangeOutcome { tokens, ..ChangeOutcome::default() })
        }
        .boxed()
    }

    fn read<'a>(&'a self, names: &'a [String], with_records: bool) -> StatementResult<'a, Vec<Row>> {
        async move {
            let which = if with_records { Which::ReadRecords } else { Which::Read };
            let rows = self.ask(which, &[&names]).await?;
            Ok(rows.iter().map(|row| read(row, with_records)).collect())
        }
        .boxed()
    }

    fn write<'a>(&'a self, changes: &'a [(LockKey, RowChange)]) -> StatementResult<'a, WriteOutcome> {
        async move {
            let columns = Columns::of(changes);
            let softly = !changes.iter().any(|(_, change)| change.durable);
            let arguments: [&(dyn ToSql + Sync); 20] = [
                &columns.names,
                &columns.wholes,
                &columns.serials,
                &columns.ends_hold,
                &columns.until,
                &columns.kinds,
                &columns.values,
                &columns.ends,
                &columns.fences,
                &columns.puts,
                &columns.records,
                &columns.record_at,
                &columns.record_ends,
                &columns.wakes,
                &self.channel,
                &columns.locks,
                &columns.clients,
                &columns.ended,
                &columns.lives,
                &softly,
            ];
            let rows = self.ask(Which::Write, &arguments).await?;
            let mut outcome = WriteOutcome::default();
            for row in rows {
                let (client, session): (Option<String>, Option<String>) = (row.get(2), row.get(3));
                match client {
                    None => _ = outcome.written.insert(row.get(0)),
                    Some(client) => {
                        let ended = outcome.refused.entry(row.get(0)).or_default();
                        ended.extend(session.map(|session| (client, session)));
                    }
                }
            }
            Ok(outcome)
        }
        .boxed()
    }

    fn note_listeners<'a>(&'a self, keys: &'a [LockKey]) -> StatementResult<'a, ()> {
        async move {
            let (names, wholes): (Vec<_>, Vec<_>) = keys.iter().map(|key| (&key.name, &key.whole)).unzip();
            let noted = self.ask(Which::Await, &[&names, &wholes]).await?;
            let is_this = |table: Option<i64>| table.is_none_or(|table| channel_of(table) == self.channel);
            match noted.iter().all(|row| is_this(row.get(0))) {
                true => Ok(()),
                false => {
                    let failure = Failure::NotSent(Failure::cause("the table was dropped and created again"));
                    Err(StatementError { failure, ends_connection: true })
                }
            }
        }
        .boxed()
    }

    fn forget_sessions<'a>(&'a self, keys: &'a [LockKey]) -> StatementResult<'a, ()> {
        async move {
            let (names, sessions): (Vec<_>, Vec<_>) = keys.iter().map(|key| (&key.name, &key.whole)).unzip();
            self.ask(Which::Forget, &[&names, &sessions]).await.map(drop)
        }
        .boxed()
    }

    fn listen(&self) -> StatementResult<'_, ()> {
        async move {
            let (channel, label) = (quoted(&self.channel), &self.label);
            let sql = format!("LISTEN {channel}; SELECT pg_advisory_lock(hashtextextended('{label}', 0))");
            let listening = self.client.batch_execute(&sql).await;
            listening.map_err(|error| failed(error, Which::Ping))
        }
        .boxed()
    }

    fn list<'a>(&'a self, prefix: &'a str, after: &'a str) -> StatementResult<'a, Vec<Row>> {
        async move {
            let rows = self.ask(Which::List, &[&prefix, &after]).await?;
            Ok(rows.iter().map(listed).collect())
        }
        .boxed()
    }

    fn records<'a>(&'a self, prefix: &'a str, after: &'a str) -> StatementResult<'a, Vec<Row>> {
        async move {
            let rows = self.ask(Which::Records, &[&prefix, &after]).await?;
            Ok(rows.iter().map(|row| Row { whole: row.get(11), ..read(row, true) }).collect())
        }
        .boxed()
    }

    fn sweep<'a>(&'a self, after: &'a str) -> StatementResult<'a, Option<String>> {
        async move {
            let rows = self.ask(Which::Sweep, &[&after]).await?;
            Ok(rows.first().and_then(|row| row.get(0)))
        }
        .boxed()
    }

    fn ping(&self) -> StatementResult<'_, ()> {
        async move {
            if self.prepared.is_empty() {
                // A pooler might answer by itself.
                return self.ask(Which::Ping, &[]).await.map(drop);
            }
            // A message of the protocol that the server's process answers: no statement and no transaction.
            self.client.check_connection().await.map_err(|error| failed(error, Which::Ping))
        }
        .boxed()
    }
}

/// A row of `Read`, `ReadRecords` or `Records`.
fn read(row: &tokio_postgres::Row, with_record: bool) -> Row {
    let bytes: Option<Vec<u8>> = with_record.then(|| row.get(8)).flatten();
    let record = bytes.map(|bytes| RecordColumns {
        bytes,
        at_us: row.get::<_, Option<i64>>(9).unwrap_or(0),
        ends_ms: row.get(10),
    });
    Row {
        name: row.get(0),
        whole: None,
        version: row.get(1),
        kind: row.get(2),
        value: row.get(3),
        ends_ms: row.get(4),
        fence: row.get(5),
        serial: row.get(6),
        clock_us: row.get(7),
        record,
    }
}

/// A row of `List`.
fn listed(row: &tokio_postgres::Row) -> Row {
    Row {
        name: row.get(0),
        whole: row.get(1),
        version: row.get(2),
        kind: row.get(3),
        value: row.get(4),
        ends_ms: row.get(5),
        fence: 0,
        serial: None,
        clock_us: row.get(6),
        record: None,
    }
}

/// Changes as columns, one per parameter of the `Write` statement.
#[derive(Default)]
struct Columns<'a> {
    names: Vec<&'a str>,
    wholes: Vec<Option<&'a str>>,
    serials: Vec<Option<i64>>,
    ends_hold: Vec<bool>,
    until: Vec<i64>,
    kinds: Vec<Option<&'static str>>,
    values: Vec<Option<&'a str>>,
    ends: Vec<i64>,
    fences: Vec<i64>,
    puts: Vec<bool>,
    records: Vec<Option<&'a [u8]>>,
    record_at: Vec<Option<i64>>,
    record_ends: Vec<Option<i64>>,
    wakes: Vec<&'a str>,
    /// The sessions that the changes depend on: the row to change, that of the client, the session if it is
    /// one that has ended, and whether it must live or must have ended.
    locks: Vec<&'a str>,
    clients: Vec<&'a str>,
    ended: Vec<Option<&'a str>>,
    lives: Vec<Option<bool>>,
}

impl<'a> Columns<'a> {
    fn of(changes: &'a [(LockKey, RowChange)]) -> Self {
        let mut columns = Self::default();
        for (LockKey { name, whole }, change) in changes {
            let (kind, value) = change.lock.as_ref().map(|(kind, value)| (*kind, value.as_str())).unzip();
            let record = change.record.as_ref().and_then(Option::as_ref);
            columns.names.push(name);
            columns.wholes.push(whole.as_deref());
            columns.serials.push(change.serial);
            columns.ends_hold.push(change.ends_hold);
            columns.until.push(signed(change.until_ms));
            columns.kinds.push(kind);
            columns.values.push(value);
            columns.ends.push(signed(change.ends_ms));
            columns.fences.push(signed(change.fence));
            columns.puts.push(change.record.is_some());
            columns.record_at.push(record.map(|record| signed(record.value.at_us)));
            columns.record_ends.push(record.and_then(|record| record.expires_ms).map(signed));
            columns.records.push(record.map(|record| &*record.value.value));
            columns.wakes.push(&change.wake);
            for SessionCheck { client, expects } in &change.sessions {
                let (ended, lives) = match expects {
                    ExpectedSession::Lives => (None, Some(true)),
                    ExpectedSession::Ended(session) => (Some(&**session), Some(false)),
                    ExpectedSession::Any => (None, None),
                };
                columns.locks.push(name);
                columns.clients.push(client);
                columns.ended.push(ended);
                columns.lives.push(lives);
            }
        }
        columns
    }
}
