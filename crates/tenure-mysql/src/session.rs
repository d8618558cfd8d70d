//! Sends the statements of `statements`, one after the other, and reads their replies.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::FutureExt;
use tokio::sync::{mpsc, oneshot};

use super::statements;
use super::wire::{StatementReply, Values, WireError};
use tenure_core::rows::{
    LockKey, RecordColumns, Renewals, Row, RowChange, StatementError, StatementResult, StatementSession,
    WriteOutcome, unsigned,
};
use tenure_core::store::Failure;
use tenure_core::sync::Locked;

/// Maximum rows that are remembered.
const REMEMBERED: usize = 1_000;

/// A statement for the connection's task, and the sender of its reply.
pub(super) type StatementJob = (String, oneshot::Sender<Result<StatementReply, WireError>>);

/// A connection's statements.
#[derive(Debug)]
pub(super) struct MysqlSession {
    pub(super) jobs: mpsc::UnboundedSender<StatementJob>,
    /// Number of completed reads.
    pub(super) heard: Arc<AtomicU64>,
    /// The named lock that the connection holds for as long as it exists.
    pub(super) label: String,
    /// Maximum length of a statement.
    pub(super) longest: usize,
    /// Rows that exist, and whether another transaction had locked them at the last write. Those are probed
    /// first, because a server that waits for a row delays all statements behind this one.
    pub(super) rows: Locked<BTreeMap<String, bool>>,
}

impl MysqlSession {
    /// Runs a statement.
    pub(super) async fn run(&self, sql: String) -> Result<StatementReply, WireError> {
        // The command byte precedes the statement.
        if sql.len() >= self.longest {
            let (len, longest) = (sql.len(), self.longest);
            let text =
                format!("a statement of {len} bytes, expected less than {longest} (max_allowed_packet)");
            return Err(WireError::TooLong(text));
        }
        let (reply, received) = oneshot::channel();
        let _ = self.jobs.send((sql, reply));
        let closed =
            |_| WireError::Io(io::Error::new(io::ErrorKind::ConnectionAborted, "the connection was closed"));
        received.await.map_err(closed).flatten()
    }

    async fn query(&self, sql: String) -> Result<Vec<Values>, StatementError> {
        self.run(sql).await.map(|reply| reply.rows).map_err(|error| failed(error, false))
    }

    /// Changes one row. Returns the value of `LAST_INSERT_ID`, or `None` if the row was not changed, for example
    /// because another transaction has it.
    async fn change(&self, name: &str, sql: String) -> Result<Option<u64>, StatementError> {
        let is_contended = self.rows.lock().get(name) == Some(&true);
        if is_contended && self.query(statements::probe(name)).await?.is_empty() {
            return Ok(None);
        }
        let (known, changed) = match self.run(sql).await {
            Ok(StatementReply { changed: 1.., id, .. }) => (Some(false), Ok(Some(id))),
            Ok(_) => (None, Ok(None)),
            Err(WireError::Server(error)) if error.is_contended() => (Some(true), Ok(None)),
            Err(error) => (None, Err(failed(error, true))),
        };
        let mut rows = self.rows.lock();
        if rows.len() >= REMEMBERED {
            rows.clear();
        }
        match known {
            Some(is_contended) => drop(rows.insert(name.to_owned(), is_contended)),
            None => drop(rows.remove(name)),
        }
        changed
    }

    /// Changes rows one after the other, up to the first error. Returns those that were changed.
    async fn change_all(
        &self,
        changes: impl Iterator<Item = (&String, String)> + Send,
    ) -> Result<Vec<(String, u64)>, StatementError> {
        let mut changed = Vec::new();
        for (name, sql) in changes {
            match self.change(name, sql).await {
                Ok(id) => changed.extend(id.map(|id| (name.clone(), id))),
                Err(error) if changed.is_empty() => return Err(error),
                // The rest was not changed, and is read again.
                Err(error) if !error.ends_connection => break,
                Err(StatementError { failure, ends_connection }) => {
                    let failure = Failure::Unknown(Failure::cause(failure.to_string()));
                    return Err(StatementError { failure, ends_connection });
                }
            }
        }
        Ok(changed)
    }
}

fn failed(error: WireError, writes: bool) -> StatementError {
    let ends_connection = error.ends_connection();
    StatementError { failure: error.failure(writes), ends_connection }
}

impl StatementSession for MysqlSession {
    fn label(&self) -> &str {
        &self.label
    }

    fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    fn acquire<'a>(
        &'a self,
        key: &'a LockKey,
        owner: &'a str,
        ttl_ms: i64,
    ) -> StatementResult<'a, Option<i64>> {
        async move {
            let sql = match self.rows.lock().contains_key(&key.name) {
                true => statements::reacquire(&key.name, owner, ttl_ms),
                false => statements::acquire(key, owner, ttl_ms),
            };
            let token = self.change(&key.name, sql).await?;
            Ok(token.and_then(|token| token.try_into().ok()))
        }
        .boxed()
    }

    fn release<'a>(&'a self, name: &'a str, owner: &'a str, _message: &'a str) -> StatementResult<'a, bool> {
        async move { Ok(self.change(name, statements::release(name, owner)).await?.is_some()) }.boxed()
    }

    fn renew<'a>(&'a self, renewals: &'a Renewals) -> StatementResult<'a, Vec<(String, i64)>> {
        async move {
            let Renewals { names, owners, ttls_ms } = renewals;
            let each = names.iter().zip(owners).zip(ttls_ms);
            let each = each.map(|((name, owner), ttl_ms)| (name, statements::renew(name, owner, *ttl_ms)));
            let held = self.change_all(each).await?.into_iter();
            Ok(held.filter_map(|(name, token)| Some((name, token.try_into().ok()?))).collect())
        }
        .boxed()
    }

    fn read<'a>(&'a self, names: &'a [String], with_records: bool) -> StatementResult<'a, Vec<Row>> {
        async move {
            let sql = || statements::read(names, with_records);
            let reply = self.run(sql()).await;
            if let (Err(WireError::TooLong(_)), [_, _, ..]) = (&reply, names) {
                let (first, last) = names.split_at(names.len() / 2);
                let mut rows = self.read(first, with_records).await?;
                rows.extend(self.read(last, with_records).await?);
                return Ok(rows);
            }
            let mut rows = reply.map_err(|error| failed(error, false))?.rows;
            if !rows.iter().any(|row| RowFields(row).text(0).is_empty()) {
                self.query(statements::LOWEST.to_owned()).await?;
                rows = self.query(sql()).await?;
            }
            let mut rows: Vec<Row> = rows.iter().map(row).collect();
            let lowest = rows.iter().position(|row| row.name.is_empty()).map(|at| rows.swap_remove(at));
            let cause = || Failure::cause("the table lacks the row with an empty name");
            let lowest =
                lowest.ok_or_else(|| failed(WireError::Refused(Failure::NotSent(cause())), false))?;
            let known: BTreeSet<String> = rows.iter().map(|row| row.name.clone()).collect();
            let missing = names.iter().filter(|name| !known.contains(*name));
            rows.extend(missing.map(|name| Row {
                name: name.clone(),
                version: None,
                kind: None,
                value: None,
                serial: None,
                ..lowest.clone()
            }));
            Ok(rows)
        }
        .boxed()
    }

    fn write<'a>(&'a self, changes: &'a [(LockKey, RowChange)]) -> StatementResult<'a, WriteOutcome> {
        async move {
            let each = changes.iter().map(|(key, change)| (&key.name, statements::write(key, change)));
            let written = self.change_all(each).await?.into_iter().map(|(name, _)| name).collect();
            Ok(WriteOutcome { written, ..WriteOutcome::default() })
        }
        .boxed()
    }

    fn list<'a>(&'a self, prefix: &'a str, after: &'a str) -> StatementResult<'a, Vec<Row>> {
        async move { Ok(self.query(statements::list(prefix, after)).await?.iter().map(row).collect()) }
            .boxed()
    }

    fn sweep<'a>(&'a self, after: &'a str) -> StatementResult<'a, Option<String>> {
        async move {
            let rows = self.query(statements::page(after)).await?;
            let is_old = |row: &&Values| RowFields(row).number(2) == Some(1);
            let fences = rows.iter().filter(is_old).filter_map(|row| RowFields(row).number(1));
            let mut changes = Vec::new();
            if let Some(fence) = fences.max() {
                // First, so that no token is given again.
                changes.push(statements::raise(unsigned(fence)));
                let names = rows.iter().filter(is_old).filter_map(|row| row.first()?.as_deref());
                changes.extend(names.map(statements::delete));
            }
            for sql in changes {
                match self.run(sql).await {
                    Err(WireError::Server(error)) if error.is_contended() => {}
                    changed => drop(changed.map_err(|error| failed(error, true))?),
                }
            }
            Ok(rows.last().map(|row| RowFields(row).text(0)))
        }
        .boxed()
    }

    fn ping(&self) -> StatementResult<'_, ()> {
        async move { self.query("SELECT 1".to_owned()).await.map(drop) }.boxed()
    }
}

/// A row of `READ` or `LIST`.
fn row(values: &Values) -> Row {
    let row = RowFields(values);
    let record = row.bytes(9).map(|bytes| RecordColumns {
        bytes: bytes.to_vec(),
        at_us: row.number(10).unwrap_or(0),
        ends_ms: row.number(11),
    });
    Row {
        name: row.text(0),
        whole: row.optional(8),
        version: row.optional(1),
        kind: row.optional(2),
        value: row.optional(3),
        ends_ms: row.number(4),
        fence: row.number(5).unwrap_or(0),
        serial: row.number(6),
        clock_us: row.number(7).unwrap_or(0),
        record,
    }
}

/// The columns of a row.
pub(super) struct RowFields<'a>(pub(super) &'a Values);

impl RowFields<'_> {
    fn bytes(&self, at: usize) -> Option<&[u8]> {
        self.0.get(at)?.as_deref()
    }

    pub(super) fn optional(&self, at: usize) -> Option<String> {
        self.bytes(at).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    }

    pub(super) fn text(&self, at: usize) -> String {
        self.optional(at).unwrap_or_default()
    }

    pub(super) fn number(&self, at: usize) -> Option<i64> {
        self.optional(at)?.parse().ok()
    }
}
