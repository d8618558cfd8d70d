//! Sends statements, each as a future that says what has come of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row};

use super::connection::Line;
use super::group::Change;
use super::names::Key;
use super::state::signed;
use super::statements::Which;

/// What has come of a statement.
pub(super) enum Done {
    Acquired(String, Result<Option<i64>, Error>),
    Released(String, Result<bool, Error>),
    Renewed(Vec<String>, Result<Vec<(String, i64)>, Error>),
    Read(Vec<String>, bool, Result<Vec<Row>, Error>),
    Wrote(Vec<String>, Result<BTreeSet<String>, Error>),
    Plain(u64, Which, Result<Vec<Row>, Error>),
    Swept(Result<Option<String>, Error>),
}

/// Leases that are extended by one statement.
#[derive(Default)]
pub(super) struct Renewals {
    pub(super) names: Vec<String>,
    owners: Vec<String>,
    ttls: Vec<i64>,
}

impl Renewals {
    pub(super) fn push(&mut self, name: String, owner: String, ttl_ms: i64) {
        self.names.push(name);
        self.owners.push(owner);
        self.ttls.push(ttl_ms);
    }
}

pub(super) fn acquire(line: Arc<Line>, key: Key, owner: String, ttl_ms: i64) -> BoxFuture<'static, Done> {
    async move {
        let rows = line.ask(Which::Acquire, &[&key.name, &key.whole, &owner, &ttl_ms]).await;
        Done::Acquired(key.name, rows.map(|rows| rows.first().map(|row| row.get(0))))
    }
    .boxed()
}

pub(super) fn release(
    line: Arc<Line>,
    name: String,
    owner: String,
    message: String,
) -> BoxFuture<'static, Done> {
    async move {
        let rows = line.ask(Which::Release, &[&name, &owner, &line.channel, &message]).await;
        Done::Released(name, rows.map(|rows| !rows.is_empty()))
    }
    .boxed()
}

pub(super) fn renew(line: Arc<Line>, renewals: Renewals) -> BoxFuture<'static, Done> {
    async move {
        let Renewals { names, owners, ttls } = renewals;
        let rows = line.ask(Which::Renew, &[&names, &owners, &ttls]).await;
        Done::Renewed(names, rows.map(|rows| rows.iter().map(|row| (row.get(0), row.get(1))).collect()))
    }
    .boxed()
}

pub(super) fn read_rows(line: Arc<Line>, names: Vec<String>, with_records: bool) -> BoxFuture<'static, Done> {
    async move {
        let which = if with_records { Which::ReadRecords } else { Which::Read };
        let rows = line.ask(which, &[&names]).await;
        Done::Read(names, with_records, rows)
    }
    .boxed()
}

pub(super) fn plain(
    line: Arc<Line>,
    number: u64,
    which: Which,
    arguments: Vec<String>,
) -> BoxFuture<'static, Done> {
    async move {
        let arguments: Vec<_> = arguments.iter().map(|text| text as &(dyn ToSql + Sync)).collect();
        Done::Plain(number, which, line.ask(which, &arguments).await)
    }
    .boxed()
}

pub(super) fn sweep(line: Arc<Line>, after: String) -> BoxFuture<'static, Done> {
    async move {
        let rows = line.ask(Which::Sweep, &[&after]).await;
        Done::Swept(rows.map(|rows| rows.first().and_then(|row| row.get(0))))
    }
    .boxed()
}

pub(super) fn write(line: Arc<Line>, changes: Vec<(Key, Change)>) -> BoxFuture<'static, Done> {
    async move {
        let columns = Columns::of(changes);
        let rows = columns.write(&line).await;
        Done::Wrote(columns.names, rows)
    }
    .boxed()
}

/// Changes by the columns of what is written.
#[derive(Default)]
struct Columns {
    names: Vec<String>,
    wholes: Vec<Option<String>>,
    serials: Vec<Option<i64>>,
    ends_hold: Vec<bool>,
    until: Vec<i64>,
    kinds: Vec<Option<&'static str>>,
    values: Vec<Option<String>>,
    ends: Vec<i64>,
    fences: Vec<i64>,
    puts: Vec<bool>,
    records: Vec<Option<Vec<u8>>>,
    record_at: Vec<Option<i64>>,
    record_ends: Vec<Option<i64>>,
    wakes: Vec<String>,
}

impl Columns {
    fn of(changes: Vec<(Key, Change)>) -> Self {
        let mut columns = Self::default();
        for (Key { name, whole }, change) in changes {
            let (kind, value) = change.lock.unzip();
            let puts = change.record.is_some();
            let record = change.record.flatten();
            columns.names.push(name);
            columns.wholes.push(whole);
            columns.serials.push(change.serial);
            columns.ends_hold.push(change.ends_hold);
            columns.until.push(signed(change.until_ms));
            columns.kinds.push(kind);
            columns.values.push(value);
            columns.ends.push(signed(change.ends_ms));
            columns.fences.push(signed(change.fence));
            columns.puts.push(puts);
            columns.record_at.push(record.as_ref().map(|record| signed(record.value.at_us)));
            columns.record_ends.push(record.as_ref().and_then(|record| record.expires_ms).map(signed));
            columns.records.push(record.map(|record| record.value.value.to_vec()));
            columns.wakes.push(change.wake);
        }
        columns
    }

    async fn write(&self, line: &Line) -> Result<BTreeSet<String>, Error> {
        let arguments: [&(dyn ToSql + Sync); 15] = [
            &self.names,
            &self.wholes,
            &self.serials,
            &self.ends_hold,
            &self.until,
            &self.kinds,
            &self.values,
            &self.ends,
            &self.fences,
            &self.puts,
            &self.records,
            &self.record_at,
            &self.record_ends,
            &self.wakes,
            &line.channel,
        ];
        let rows = line.ask(Which::Write, &arguments).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }
}
