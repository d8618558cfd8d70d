//! Decides which statements the worker sends, and processes their results.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt;

use super::execute::{Executed, PendingAnswer};
use super::gather::{LOCKS, RowBatch, StatementSort, VERBS};
use super::inbox::{PlainStatement, QueuedOp, QueuedRequest};
use super::lock_queue::QueueStep;
use super::names::LockKey;
use super::server::{ChangeOutcome, Row, SoleChange, StatementError, WriteOutcome};
use super::sessions::{EndedSessions, KnownSessions, LOOKS};
use super::sole::{sole, sole_answer};
use super::state::{SeenRow, unsigned};
use super::worker::{Done, SharedSession, StatementWorker, UnderWay};
use crate::moment::Moment;
use crate::net::share;
use crate::planted::{Bug, planted};
use crate::protocol::{Answer, LockSpec};
use crate::store::Failure;
use crate::txn::{Txn, Verdict, next_batch};

/// Maximum locks that are remembered as shared.
const SHARED: usize = 1_000;
/// Consecutive failed writes to an unchanged row after which an open transaction is assumed to have checked a
/// hold in.
const CHECK_IN_TRIES: u32 = 4;
/// Maximum delay of a grant's answer. After that, its token may no longer be the greatest.
const FRESH: Duration = Duration::from_secs(600);

impl StatementWorker {
    /// Sends everything that is ready.
    pub(super) fn send(&mut self, session: &SharedSession, under_way: &mut UnderWay) {
        let now = self.now();
        while let Some((until, _)) = self.resting.first()
            && *until <= now
            && let Some((_, name)) = self.resting.pop_first()
        {
            self.ready.insert(name);
        }
        while let Some(request) = self.waiting.pop_front() {
            if let QueuedOp::Plain { plain: what, .. } = &request.ask {
                self.sent.insert(request.number, (now, session.heard()));
                let (session, number, what) = (Arc::clone(session), request.number, what.clone());
                under_way.push(async move { Done::Plain(number, plain(session, what).await) }.boxed());
                self.plain.insert(request.number, request.ask);
            }
        }
        if now >= self.sweep.next_at() {
            let (session, after) = (Arc::clone(session), self.sweep.begin(now));
            under_way.push(async move { Done::Swept(session.sweep(&after).await) }.boxed());
        }
        let halves = mem::take(&mut self.gathered.halves);
        halves.into_iter().for_each(|half| self.send_batch(half, now, session, under_way));
        self.send_locks(now, session, under_way);
    }

    /// Sends what has gathered for each sort of statement of which none is in flight.
    fn send_locks(&mut self, now: Moment, session: &SharedSession, under_way: &mut UnderWay) {
        let mut names = self.gathered.names(now, |_| LOCKS);
        names.extend(mem::take(&mut self.ready));
        let mut ready = ReadyLocks::default();
        names.iter().for_each(|name| self.begin(name, now, session.heard(), &mut ready));
        // The last ones that were expected may have come.
        let names = self.gathered.names(now, |sort| LOCKS.saturating_sub(ready.len(sort)));
        names.iter().for_each(|name| self.begin(name, now, session.heard(), &mut ready));
        if !ready.read.is_empty() {
            self.gathered.sent(StatementSort::Read, now);
            let (session, with_records) = (Arc::clone(session), ready.with_records);
            let names = mem::take(&mut ready.read);
            let read = async move {
                let rows = session.read(&names, with_records).await;
                Done::Read(names, rows)
            };
            under_way.push(read.boxed());
        }
        let mut batches = Vec::from_iter(self.gathered.writes(false, now));
        for sort in VERBS.map(StatementSort::Change) {
            let changes = mem::take(&mut ready.changes[sort.index()]);
            batches.extend((!changes.is_empty()).then_some(RowBatch::Change(sort, changes)));
        }
        batches.extend(self.gathered.writes(true, now));
        batches.into_iter().for_each(|batch| self.send_batch(batch, now, session, under_way));
    }

    fn send_batch(
        &mut self,
        batch: RowBatch,
        now: Moment,
        session: &SharedSession,
        under_way: &mut UnderWay,
    ) {
        self.gathered.sent(batch.sort(), now);
        let session = Arc::clone(session);
        let asked = async move {
            match batch {
                RowBatch::Change(sort, changes) => {
                    let changed = session.change(&changes).await;
                    Done::Changed(sort, changes, changed)
                }
                RowBatch::Write(changes) => {
                    let written = session.write(&changes).await;
                    Done::Wrote(changes, written)
                }
            }
        };
        under_way.push(asked.boxed());
    }

    /// Adds a lock's next requests to the statement that carries them out, unless they have to wait for one in
    /// flight.
    fn begin(&mut self, name: &str, now: Moment, heard: u64, ready: &mut ReadyLocks) {
        let Some(lock) = self.locks.get_mut(name).filter(|lock| matches!(lock.step, QueueStep::Idle)) else {
            return;
        };
        let (dues, sent) = (&mut self.dues, &mut self.sent);
        lock.queue.retain(|request| {
            let is_left = request.ask.is_left();
            if is_left {
                dues.remove(&(request.due, request.number));
                sent.remove(&request.number);
            }
            !is_left
        });
        if lock.is_over() {
            self.locks.remove(name);
            return;
        }
        let is_new = lock.running.is_empty();
        if is_new {
            (lock.txn, lock.running) = (Txn::default(), next_batch(&mut lock.queue, |_| Some(())));
        }
        let mut txn = lock.txn;
        let must_read = txn.begin() || self.shared.contains(name);
        let change = sole(lock).filter(|_| !must_read);
        let soft = self.inbox.server.has_soft_releases();
        let of_change = |change: &SoleChange| StatementSort::of_change(change.verb, soft);
        let sort = change.as_ref().map_or(StatementSort::Read, of_change);
        let since = lock.running.iter().map(|request| (request.number, (now, heard)));
        if self.gathered.waits(sort, now) || ready.len(sort.index()) >= LOCKS {
            // They may be the only evidence that the connection is dead, if those in flight have timed out.
            since.for_each(|(number, since)| _ = sent.entry(number).or_insert(since));
            if is_new {
                let first = mem::take(&mut lock.running);
                first.into_iter().rev().for_each(|request| lock.queue.push_front(request));
            }
            return self.gathered.wait(sort, name.to_owned());
        }
        sent.extend(since);
        lock.txn = txn;
        match change {
            // One statement may do, if the lock is as the requests expect.
            Some(change) => {
                lock.step = QueueStep::Fast { sent: now };
                ready.changes[sort.index()].push(change);
            }
            // Several requests, a shared lock, or one statement that did not do.
            None => {
                lock.step = QueueStep::Reading { sent: now };
                let is_record = |request: &QueuedRequest| matches!(request.ask, QueuedOp::Record(..));
                ready.with_records |= lock.running.iter().any(is_record);
                ready.read.push(name.to_owned());
            }
        }
    }

    /// Processes the result of a statement. Returns whether the connection is still usable.
    pub(super) fn done(&mut self, done: Done) -> bool {
        let now = self.now();
        match done {
            Done::Changed(sort, changes, changed) => {
                self.gathered.done(sort, changes.len(), now);
                match changed {
                    Ok(ChangeOutcome { tokens, failed }) => {
                        for change in changes {
                            let name = &change.key.name;
                            match failed.get(name) {
                                Some(failure) => self.fail(name, failure),
                                // Without a token, the row was not as expected.
                                None => self.changed(&change, tokens.get(name).map(|fence| unsigned(*fence))),
                            }
                        }
                        true
                    }
                    // All of them, or the answer was lost.
                    Err(failed) => {
                        let name = |change: &SoleChange| change.key.name.clone();
                        self.failed(failed, changes, name, |half| RowBatch::Change(sort, half))
                    }
                }
            }
            Done::Read(names, read) => {
                self.gathered.done(StatementSort::Read, names.len(), now);
                let is_usable = !read.as_ref().is_err_and(|failed| failed.ends_connection);
                match read {
                    Ok(rows) => self.read(names, &rows),
                    // Nothing was written yet, so each request may be repeated.
                    Err(failed) => names.iter().for_each(|name| self.fail(name, &failed.failure)),
                }
                is_usable
            }
            Done::Wrote(changes, written) => {
                self.gathered.done(RowBatch::sort_of(&changes), changes.len(), now);
                match written {
                    Ok(WriteOutcome { written, mut refused, failed }) => {
                        for (LockKey { name, .. }, _) in changes {
                            match (failed.get(&name), refused.remove(&name)) {
                                (Some(failure), _) => self.fail(&name, failure),
                                // A waiter's session has ended, or lives again.
                                (None, Some(ended)) => self.refused(&name, ended),
                                // The row is written, or another client has changed it meanwhile.
                                (None, None) => self.wrote(&name, written.contains(&name)),
                            }
                        }
                        true
                    }
                    Err(failed) => self.failed(failed, changes, |(key, _)| key.name.clone(), RowBatch::Write),
                }
            }
            Done::Plain(number, said) => {
                self.forget(number);
                let is_usable = !said.as_ref().is_err_and(|failed| failed.ends_connection);
                match (self.plain.remove(&number), said) {
                    (Some(QueuedOp::Plain { reply, .. }), Ok(rows)) => drop(reply.send(Ok(rows))),
                    (Some(ask), Err(failed)) => ask.fail(failed.failure),
                    // It has timed out.
                    _ => {}
                }
                is_usable
            }
            Done::Swept(Ok(last)) => {
                self.sweep.read(last, now);
                true
            }
            Done::Swept(Err(failed)) => {
                self.sweep.failed(now);
                !failed.ends_connection
            }
        }
    }

    /// Processes the result of a change of a lock that has no holder or a single one.
    fn changed(&mut self, change: &SoleChange, fence: Option<u64>) {
        let name = &change.key.name;
        let Some(fence) = fence else {
            if change.spec != LockSpec::Mutex {
                if self.shared.len() >= SHARED {
                    self.shared.clear();
                }
                self.shared.insert(name.clone());
            }
            return self.again(name);
        };
        let Some(lock) = self.locks.get(name) else { return };
        let is_late = matches!(lock.step, QueueStep::Fast { sent } if self.now().since(sent) > FRESH);
        let said = |request: &QueuedRequest| match is_late {
            true => Err(Failure::Unknown(Failure::cause("the reply took too long"))),
            false => Ok(PendingAnswer::Lock(sole_answer(request, fence))),
        };
        let said = lock.running.iter().map(said).collect();
        self.answered(name, said);
    }

    /// Processes the failure of a batch. If it had no effect, each half is sent again, so that an error of one
    /// lock fails no other. Returns whether the connection is still usable.
    fn failed<T>(
        &mut self,
        StatementError { mut failure, ends_connection }: StatementError,
        mut batch: Vec<T>,
        name: impl Fn(&T) -> String,
        half: impl Fn(Vec<T>) -> RowBatch,
    ) -> bool {
        let is_unknown = matches!(failure, Failure::Unknown(_));
        if batch.len() > 1 && !is_unknown && !ends_connection {
            let last = batch.split_off(batch.len() / 2);
            self.gathered.halves.extend([batch, last].map(half));
            return true;
        }
        if is_unknown && batch.len() > 1 && planted(Bug::RowsBatchLossRefused) {
            failure = Failure::NotSent(Failure::cause("a lost reply is taken for an error"));
        }
        batch.iter().for_each(|change| self.fail(&name(change), &failure));
        !ends_connection
    }

    pub(super) fn fail(&mut self, name: &str, failure: &Failure) {
        let count = self.locks.get(name).map_or(0, |lock| lock.running.len());
        self.answered(name, (0..count).map(|_| Err(failure.clone())).collect());
    }

    fn forget(&mut self, number: u64) {
        self.sent.remove(&number);
        if self.doubt.is_some() && self.sent.is_empty() {
            self.doubt = None;
        }
    }

    /// Answers the running requests of a lock, which then continues with the next ones.
    fn answered(&mut self, name: &str, said: Vec<Result<PendingAnswer, Failure>>) {
        let Some(lock) = self.locks.get_mut(name) else { return };
        for (request, said) in mem::take(&mut lock.running).into_iter().zip(said) {
            self.dues.remove(&(request.due, request.number));
            self.sent.remove(&request.number);
            answer(request.ask, said);
        }
        (lock.step, lock.tries, lock.met) = (QueueStep::Idle, 0, None);
        lock.sessions = KnownSessions::default();
        self.ready.insert(name.to_owned());
    }

    /// Runs the requests again, on a row that is read.
    fn again(&mut self, name: &str) {
        let Some(lock) = self.locks.get_mut(name) else { return };
        lock.step = QueueStep::Idle;
        self.ready.insert(name.to_owned());
    }

    /// Runs the machines on the rows, and prepares the writes of what they change.
    fn read(&mut self, names: Vec<String>, rows: &[Row]) {
        let mut rows: BTreeMap<&str, &Row> = rows.iter().map(|row| (row.name.as_str(), row)).collect();
        for name in names {
            let Some(lock) = self.locks.get_mut(&name) else { continue };
            // All of its requests have timed out meanwhile.
            if lock.running.is_empty() {
                self.again(&name);
                continue;
            }
            let row = rows.remove(name.as_str());
            let seen = match row.map(|row| SeenRow::of(row, &lock.sessions.ended)) {
                Some(Ok(seen)) => seen,
                Some(Err(failure)) => {
                    self.fail(&name, &failure);
                    continue;
                }
                None => {
                    self.fail(&name, &Failure::NotSent(Failure::cause("the answer does not name the lock")));
                    continue;
                }
            };
            lock.txn.read();
            let serial = seen.serial;
            let is_checked_in = lock.tries >= CHECK_IN_TRIES && lock.met == serial;
            if lock.met != serial {
                (lock.tries, lock.met) = (lock.tries.min(CHECK_IN_TRIES - 1), serial);
            }
            let asks: Vec<&QueuedOp> = lock.running.iter().map(|request| &request.ask).collect();
            let executed = Executed::run(&lock.key, &seen, &asks, is_checked_in, &lock.sessions);
            let Executed { said, change, is_free } = executed;
            if is_free {
                self.shared.remove(&name);
            }
            let change = match (lock.txn.ran(change.is_some()), change) {
                (Verdict::Write, Some(change)) => change,
                // Nothing changes, and the answer is final.
                (Verdict::Answer, _) => {
                    self.answered(&name, said);
                    continue;
                }
                _ => {
                    self.again(&name);
                    continue;
                }
            };
            let QueueStep::Reading { sent } = lock.step else { continue };
            let until = sent + Duration::from_millis(change.until_ms.saturating_sub(seen.now.ms));
            lock.step = QueueStep::Writing { said, until };
            self.gathered.write(lock.key.clone(), change);
        }
    }

    /// Runs the requests again, which now pass the waiters whose session has ended.
    fn refused(&mut self, name: &str, ended: EndedSessions) {
        let Some(lock) = self.locks.get_mut(name) else { return };
        let [first, most] = LOOKS;
        let looks = (4 * lock.sessions.looks).clamp(first, most);
        lock.sessions = KnownSessions { ended, looks };
        self.again(name);
    }

    /// Processes the result of a write.
    fn wrote(&mut self, name: &str, is_written: bool) {
        let now = self.now();
        let Some(lock) = self.locks.get_mut(name) else { return };
        let QueueStep::Writing { said, until } = mem::replace(&mut lock.step, QueueStep::Idle) else {
            return;
        };
        if is_written {
            self.answered(name, said);
            return;
        }
        if planted(Bug::RowsConflictIsBusy) {
            let busy = || PendingAnswer::Lock(Answer::Busy { holder: String::new(), left_ms: Some(1) });
            let said = (0..lock.running.len()).map(|_| Ok(busy())).collect();
            return self.answered(name, said);
        }
        lock.tries += 1;
        if now > until && !planted(Bug::RowsLateTakenForCheckIn) {
            // The write may have been late, which says nothing about the row.
            lock.tries = lock.tries.min(CHECK_IN_TRIES - 1);
        }
        if lock.running.is_empty() || lock.tries == 1 {
            self.ready.insert(name.to_owned());
        } else {
            // The row is contended: back off with jitter.
            let most = Duration::from_millis(1) * lock.tries.min(8);
            let pause = most.mul_f64(share(self.inbox.runtime.random()));
            self.resting.insert((now + pause, name.to_owned()));
        }
    }
}

async fn plain(session: SharedSession, plain: PlainStatement) -> Result<Vec<Row>, StatementError> {
    match plain {
        PlainStatement::List { prefix, after } => session.list(&prefix, &after).await,
        PlainStatement::Records { prefix, after } => session.records(&prefix, &after).await,
        PlainStatement::Read { names } => session.read(&names, false).await,
        PlainStatement::ForgetSessions { keys } => session.forget_sessions(&keys).await.map(|()| Vec::new()),
        PlainStatement::Ping => session.ping().await.map(|()| Vec::new()),
    }
}

#[derive(Default)]
struct ReadyLocks {
    changes: [Vec<SoleChange>; 3],
    read: Vec<String>,
    with_records: bool,
}

impl ReadyLocks {
    fn len(&self, sort: usize) -> usize {
        self.changes.get(sort).map_or(self.read.len(), Vec::len)
    }
}

fn answer(ask: QueuedOp, said: Result<PendingAnswer, Failure>) {
    match (ask, said) {
        (QueuedOp::Lock(_, reply), Ok(PendingAnswer::Lock(answer))) => drop(reply.send(Ok(answer))),
        (QueuedOp::Record(_, reply), Ok(PendingAnswer::Record(answer))) => drop(reply.send(Ok(answer))),
        (ask, Err(failure)) => ask.fail(failure),
        (ask, Ok(_)) => ask.fail(Failure::Unknown(Failure::cause("a reply to another request"))),
    }
}
