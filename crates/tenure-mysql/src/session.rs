//! Sends the statements of `statements`, one after the other, and reads their replies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{io, mem};

use futures_util::future::FutureExt;
use tokio::sync::{mpsc, oneshot};

use super::statements;
use super::wire::{StatementReply, Values, WireError};
use tenure_core::rows::{
    ChangeOutcome, LockKey, RecordColumns, Row, RowChange, SoleChange, SoleVerb, StatementError,
    StatementResult, StatementSession, WriteOutcome, unsigned,
};
use tenure_core::store::Failure;
use tenure_core::sync::Locked;

/// Maximum rows that are remembered.
const REMEMBERED: usize = 10_000;
/// Maximum changes for which a statement each costs MariaDB less than one statement for all.
const FEW: usize = 8;

/// Statements for the connection's task, and the sender of their replies.
pub(super) type StatementJob = (Vec<String>, oneshot::Sender<io::Result<StatementReplies>>);
/// The replies to the statements of one round trip.
type StatementReplies = Vec<Result<StatementReply, WireError>>;

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
    /// Whether a row that another transaction has ends the transaction that meets it.
    pub(super) rolls_back: bool,
    /// Statements before and after a transaction of several changes, if any.
    pub(super) around: Option<[&'static str; 2]>,
    /// Rows that exist, and whether another transaction had locked them at the last write. Those are probed
    /// first, because a server that waits for a row delays all statements behind this one.
    pub(super) rows: Locked<BTreeMap<String, bool>>,
    /// The number of the next batch, which no other connection uses.
    pub(super) batch: AtomicU64,
}

impl MysqlSession {
    /// Runs a statement.
    pub(super) async fn run(&self, sql: String) -> Result<StatementReply, WireError> {
        let mut replies = self.run_all(vec![sql]).await?;
        replies.pop().unwrap_or_else(|| Ok(StatementReply::default()))
    }

    /// Runs statements in one round trip.
    async fn run_all(&self, all: Vec<String>) -> Result<StatementReplies, WireError> {
        // The command byte precedes the statement.
        if let Some(sql) = all.iter().find(|sql| sql.len() >= self.longest) {
            let (len, longest) = (sql.len(), self.longest);
            let text =
                format!("a statement of {len} bytes, expected less than {longest} (max_allowed_packet)");
            return Err(WireError::TooLong(text));
        }
        let (reply, received) = oneshot::channel();
        let _ = self.jobs.send((all, reply));
        let closed = |_| io::Error::new(io::ErrorKind::ConnectionAborted, "the connection was closed");
        Ok(received.await.map_err(closed).flatten()?)
    }

    async fn query(&self, sql: String) -> Result<Vec<Values>, StatementError> {
        self.run(sql).await.map(|reply| reply.rows).map_err(|error| failed(error, false))
    }

    /// The rows that another transaction has, of those that one had at the last change.
    async fn locked(&self, names: &[&str]) -> Result<BTreeSet<String>, StatementError> {
        let contended: Vec<&str> = {
            let rows = self.rows.lock();
            names.iter().copied().filter(|name| rows.get(*name) == Some(&true)).collect()
        };
        if contended.is_empty() {
            return Ok(BTreeSet::new());
        }
        let probes = contended.iter().map(|name| statements::probe(name)).collect();
        let probed = self.run_all(probes).await.map_err(|error| failed(error, false))?;
        let mut locked = BTreeSet::new();
        for (name, probed) in contended.into_iter().zip(probed) {
            if probed.map_err(|error| failed(error, false))?.rows.is_empty() {
                locked.insert(name.to_owned());
            }
        }
        Ok(locked)
    }

    /// Changes rows by one statement, in the order of their names. Rows that another transaction has are left as they
    /// are. `None` if others keep coming: nothing has changed then.
    async fn change_together(&self, changes: &[SoleChange]) -> Result<Option<ChangeOutcome>, StatementError> {
        let mut changes: Vec<&SoleChange> = changes.iter().collect();
        changes.sort_unstable_by_key(|change| &change.key.name);
        // Again where another transaction has one of the rows, without those that are locked then.
        for _ in 0..2 {
            let names: Vec<&str> = changes.iter().map(|change| &*change.key.name).collect();
            let locked = self.locked(&names).await?;
            changes.retain(|change| !locked.contains(&change.key.name));
            if changes.is_empty() {
                return Ok(Some(ChangeOutcome::default()));
            }
            let all = statements::change_all(&changes, self.batch.fetch_add(1, Ordering::Relaxed));
            let mut replies = self.transaction(all.into()).await?.into_iter();
            match replies.next().unwrap_or_else(|| Ok(StatementReply::default())) {
                Err(WireError::Server(error)) if error.is_contended() => {
                    self.remember(changes.iter().map(|change| (&*change.key.name, Some(true))));
                    continue;
                }
                changed => drop(changed.map_err(|error| failed(error, true))?),
            }
            let changed = replies.next().unwrap_or_else(|| Ok(StatementReply::default()));
            // Without this answer, they may have changed.
            let changed = changed.map_err(|error| unknown(failed(error, true)))?;
            let token = |row| (RowFields(row).text(0), RowFields(row).number(1).unwrap_or(0));
            let tokens: BTreeMap<String, i64> = changed.rows.iter().map(token).collect();
            let known = |name| tokens.contains_key(name).then_some(false);
            self.remember(changes.iter().map(|change| (&*change.key.name, known(&change.key.name))));
            return Ok(Some(ChangeOutcome { tokens, ..ChangeOutcome::default() }));
        }
        Ok(None)
    }

    /// Remembers that rows exist, and whether another transaction has them, or forgets them.
    fn remember<'a>(&self, known: impl Iterator<Item = (&'a str, Option<bool>)>) {
        let mut rows = self.rows.lock();
        for (name, known) in known {
            if rows.len() >= REMEMBERED {
                rows.clear();
            }
            match known {
                Some(is_contended) => drop(rows.insert(name.to_owned(), is_contended)),
                None => drop(rows.remove(name)),
            }
        }
    }

    /// The replies to the statements of a transaction.
    async fn transaction(&self, mut all: Vec<String>) -> Result<StatementReplies, StatementError> {
        all.insert(0, "BEGIN".to_owned());
        all.push("COMMIT".to_owned());
        if let Some([before, after]) = self.around {
            all.insert(0, before.to_owned());
            all.push(after.to_owned());
        }
        let mut replies = self.run_all(all).await.map_err(|error| failed(error, true))?;
        // An error of the statements around it says nothing about the transaction.
        if self.around.is_some() {
            drop((replies.remove(0), replies.pop()));
        }
        if let Err(error) = replies.remove(0) {
            let error = failed(error, true);
            // Without a transaction, each of the others was one of its own.
            let may_have_run = replies.iter().any(Result::is_ok);
            return Err(if may_have_run { unknown(error) } else { error });
        }
        let committed = replies.pop().unwrap_or_else(|| Ok(StatementReply::default()));
        committed.map_err(|error| failed(error, true))?;
        Ok(replies)
    }

    /// Changes rows in one transaction, in the order of their names. Rows that are not as expected, or that
    /// another transaction has, are left as they are. A token is the value of `LAST_INSERT_ID`.
    async fn change_all(&self, mut changes: Vec<(&str, String)>) -> Result<ChangeOutcome, StatementError> {
        changes.sort_unstable_by_key(|(name, _)| *name);
        let names: Vec<&str> = changes.iter().map(|(name, _)| *name).collect();
        let locked = self.locked(&names).await?;
        changes.retain(|(name, _)| !locked.contains(*name));
        let (names, all): (Vec<&str>, Vec<String>) = changes.into_iter().unzip();
        let is_many = all.len() > 1;
        let mut replies = match is_many {
            true => self.transaction(all).await?,
            false => self.run_all(all).await.map_err(|error| failed(error, true))?,
        };
        // A proxy that has lost the server in the middle may have rolled back what was answered before.
        let is_over = |reply: &Result<_, WireError>| reply.as_ref().is_err_and(WireError::ends_connection);
        if replies.iter().any(Result::is_ok)
            && let Some(over) = replies.iter().position(is_over)
            && let Err(error) = replies.swap_remove(over)
        {
            return Err(unknown(failed(error, true)));
        }
        let (mut outcome, mut is_open) = (ChangeOutcome::default(), is_many);
        for (name, reply) in names.into_iter().zip(replies) {
            if let Err(WireError::Server(error)) = &reply
                && error.ends_transaction(self.rolls_back)
                && mem::take(&mut is_open)
            {
                // The statements after it were transactions of their own.
                outcome.tokens.clear();
            }
            let known = match reply {
                Ok(StatementReply { changed: 1.., id, .. }) => {
                    outcome.tokens.insert(name.to_owned(), id.try_into().unwrap_or(0));
                    Some(false)
                }
                Ok(_) => None,
                Err(WireError::Server(error)) if error.is_contended() => Some(true),
                Err(error) if is_many => {
                    outcome.failed.insert(name.to_owned(), error.failure(true));
                    None
                }
                Err(error) => return Err(failed(error, true)),
            };
            self.remember([(name, known)].into_iter());
        }
        Ok(outcome)
    }
}

fn failed(error: WireError, writes: bool) -> StatementError {
    let ends_connection = error.ends_connection();
    StatementError { failure: error.failure(writes), ends_connection }
}

/// The same, of a statement that may have been carried out.
fn unknown(StatementError { failure, ends_connection }: StatementError) -> StatementError {
    StatementError { failure: Failure::Unknown(Failure::cause(failure.to_string())), ends_connection }
}

impl StatementSession for MysqlSession {
    fn label(&self) -> &str {
        &self.label
    }

    fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    fn change<'a>(&'a self, changes: &'a [SoleChange]) -> StatementResult<'a, ChangeOutcome> {
        async move {
            // Each statement of MySQL waits for a second if another transaction has its row.
            let few = if self.around.is_some() { 1 } else { FEW };
            if changes.len() > few
                && changes.iter().all(statements::is_short)
                && let Some(outcome) = self.change_together(changes).await?
            {
                return Ok(outcome);
            }
            let sql = |change: &'a SoleChange| {
                let name = &*change.key.name;
                let is_known = change.before.is_some() || self.rows.lock().contains_key(name);
                let sql = match change.verb {
                    SoleVerb::Acquire if is_known => statements::reacquire(change),
                    SoleVerb::Acquire => statements::acquire(change),
                    SoleVerb::Release => statements::release(change),
                    SoleVerb::Renew => statements::renew(change),
                };
                (name, sql)
            };
            self.change_all(changes.iter().map(sql).collect()).await
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
            let sql = |(key, change): &'a (LockKey, RowChange)| (&*key.name, statements::write(key, change));
            let ChangeOutcome { tokens, failed } = self.change_all(changes.iter().map(sql).collect()).await?;
            Ok(WriteOutcome { written: tokens.into_keys().collect(), failed, ..WriteOutcome::default() })
        }
        .boxed()
    }

    fn list<'a>(&'a self, prefix: &'a str, after: &'a str) -> StatementResult<'a, Vec<Row>> {
        async move { Ok(self.query(statements::list(prefix, after)).await?.iter().map(row).collect()) }
            .boxed()
    }

    fn records<'a>(&'a self, prefix: &'a str, after: &'a str) -> StatementResult<'a, Vec<Row>> {
        async move { Ok(self.query(statements::records(prefix, after)).await?.iter().map(row).collect()) }
            .boxed()
    }

    fn sweep<'a>(&'a self, after: &'a str) -> StatementResult<'a, Option<String>> {
        async move {
            let rows = self.query(statements::page(after)).await?;
            let is_old = |row: &&Values| RowFields(row).number(2) == Some(1);
            let fences = rows.iter().filter(is_old).filter_map(|row| RowFields(row).number(1));
            let names = rows.iter().filter(is_old).filter_map(|row| row.first()?.as_deref());
            let deletes = names.map(statements::delete);
            let changes =
                fences.max().map(|fence| statements::raise(unsigned(fence))).into_iter().chain(deletes);
            for (at, sql) in changes.enumerate() {
                match self.run(sql).await {
                    // Without the tokens of these rows in the lowest, one could be given again.
                    Err(WireError::Server(error)) if error.is_contended() && at == 0 => break,
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

/// A row of `READ`, `LIST` or `RECORDS`.
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
