//! Decides which statements the worker sends, and processes their results.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt;

use super::asking::{Done, Session, acquire, plain, read_rows, release, renew, sweep, write};
use super::group::{Group, GroupAnswer};
use super::inbox::{QueuedOp, QueuedRequest};
use super::known::{KnownRow, RowSource, is_renewal};
use super::lock_queue::{LockQueue, QueueStep};
use super::names::LockKey;
use super::server::{Renewals, Row, RowChange, WriteOutcome};
use super::sessions::{EndedSessions, KnownSessions, LOOKS};
use super::state::{SeenRow, messages, signed};
use super::worker::{SWEEP, StatementWorker, UnderWay};
use crate::moment::Moment;
use crate::net::share;
use crate::planted::{Bug, planted};
use crate::protocol::{Answer, Fence, LockSpec, Notification, ReleaseScope, Verb};
use crate::store::Failure;
use crate::txn::{Txn, Verdict, next_group};

/// Maximum locks per statement; a few megabytes with the longest names.
pub(super) const LOCKS: usize = 2_000;
/// Consecutive failed writes to an unchanged row after which an open transaction is assumed to have checked a
/// hold in.
const CHECK_IN_TRIES: u32 = 4;
/// Interval between pages of a sweep.
const SWEEP_PAUSE: Duration = Duration::from_millis(500);
/// Maximum delay of a grant's answer. After that, its token may no longer be the greatest.
const FRESH: Duration = Duration::from_secs(600);

impl StatementWorker {
    /// Sends everything that is ready.
    pub(super) fn send(&mut self, session: &Session, under_way: &mut UnderWay) {
        let now = self.now();
        while let Some((until, _)) = self.resting.first()
            && *until <= now
            && let Some((_, name)) = self.resting.pop_first()
        {
            self.ready.insert(name);
        }
        while let Some(request) = self.waiting.pop_front() {
            if let QueuedOp::Plain { plain: what, .. } = &request.ask {
                under_way.push(plain(Arc::clone(session), request.number, what.clone()).boxed());
                self.sent.insert(request.number, (now, session.heard()));
                self.plain.insert(request.number, request.ask);
            }
        }
        if now >= self.sweeps_at {
            self.sweeps_at = Moment(u64::MAX);
            under_way.push(sweep(Arc::clone(session), self.swept.clone()).boxed());
        }
        while !self.ready.is_empty() {
            self.send_locks(now, session, under_way);
        }
        let writes = self.writes.drain(..).map(|changes| write(Arc::clone(session), changes).boxed());
        under_way.extend(writes);
    }

    fn send_locks(&mut self, now: Moment, session: &Session, under_way: &mut UnderWay) {
        let (mut read, mut with_records, mut renewals) = (Vec::new(), false, Renewals::default());
        let (mut recalled, mut rows) = (Vec::new(), Vec::new());
        while read.len() < LOCKS
            && renewals.names.len() < LOCKS
            && let Some(name) = self.ready.pop_first()
        {
            let Some(must_read) = self.begin(&name, now, session.heard()) else { continue };
            let Some(lock) = self.locks.get_mut(&name) else { continue };
            if !must_read && send_single(lock, session, under_way, &mut renewals) {
                lock.step = QueueStep::Fast { sent: now };
                continue;
            }
            let known = self.known.remove(&name).filter(|_| !must_read);
            if let Some((row, source)) = known.and_then(|known| known.recall(now, &lock.running)) {
                lock.step = QueueStep::Reading { source };
                recalled.push(name);
                rows.push(row);
            } else {
                lock.step = QueueStep::Reading { source: RowSource::Read(now) };
                with_records |=
                    lock.running.iter().any(|request| matches!(request.ask, QueuedOp::Record(..)));
                read.push(name);
            }
        }
        if !renewals.names.is_empty() {
            under_way.push(renew(Arc::clone(session), renewals).boxed());
        }
        if !read.is_empty() {
            under_way.push(read_rows(Arc::clone(session), read, with_records).boxed());
        }
        self.read(recalled, &rows);
    }

    /// Begins a run of a lock's next requests, if there are any and none is in progress. Returns whether its
    /// row has to be read.
    fn begin(&mut self, name: &str, now: Moment, heard: u64) -> Option<bool> {
        let lock = self.locks.get_mut(name).filter(|lock| matches!(lock.step, QueueStep::Idle))?;
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
            return None;
        }
        if lock.running.is_empty() {
            (lock.txn, lock.running) = (Txn::default(), next_group(&mut lock.queue, |_| Some(())));
        }
        sent.extend(lock.running.iter().map(|request| (request.number, (now, heard))));
        Some(lock.txn.begin())
    }

    /// Processes the result of a statement. Returns whether the connection is still usable.
    pub(super) fn done(&mut self, done: Done) -> bool {
        let now = self.now();
        match done {
            Done::Single(names, Ok(answers)) => {
                let mut answers: BTreeMap<String, Answer> = answers.into_iter().collect();
                for name in names {
                    let Some(answer) = answers.remove(&name) else {
                        self.again(&name);
                        continue;
                    };
                    let sent = self.locks.get(&name).and_then(|lock| match lock.step {
                        QueueStep::Fast { sent } => Some(sent),
                        _ => None,
                    });
                    let answer = match sent.is_some_and(|sent| now.since(sent) > FRESH) {
                        true => Err(Failure::Unknown(Failure::cause("the reply took too long"))),
                        false => Ok(GroupAnswer::Lock(answer)),
                    };
                    self.answered(&name, vec![answer]);
                }
                true
            }
            Done::Read(names, Ok(rows)) => {
                self.read(names, &rows);
                true
            }
            Done::Wrote(names, Ok(WriteOutcome { written, mut refused })) => {
                for name in names {
                    match refused.remove(&name) {
                        Some(ended) => self.refused(&name, ended),
                        None => self.wrote(&name, written.contains(&name)),
                    }
                }
                true
            }
            Done::Plain(number, Ok(rows)) => {
                self.forget(number);
                if let Some(QueuedOp::Plain { reply, .. }) = self.plain.remove(&number) {
                    let _ = reply.send(Ok(rows));
                }
                true
            }
            Done::Swept(Ok(last)) => {
                self.sweeps_at = now + if last.is_some() { SWEEP_PAUSE } else { SWEEP };
                self.swept = last.unwrap_or_default();
                true
            }
            Done::Single(names, Err(failed))
            | Done::Read(names, Err(failed))
            | Done::Wrote(names, Err(failed)) => {
                names.iter().for_each(|name| self.fail(name, &failed.failure));
                !failed.ends_connection
            }
            Done::Plain(number, Err(failed)) => {
                self.forget(number);
                if let Some(ask) = self.plain.remove(&number) {
                    ask.fail(failed.failure);
                }
                !failed.ends_connection
            }
            Done::Swept(Err(failed)) => {
                self.sweeps_at = now + SWEEP;
                !failed.ends_connection
            }
        }
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
    fn answered(&mut self, name: &str, said: Vec<Result<GroupAnswer, Failure>>) {
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
        let mut changes: Vec<(LockKey, RowChange)> = Vec::new();
        let (now, has_notifications) = (self.now(), self.inbox.server.has_notifications());
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
            if let QueueStep::Reading { source: RowSource::Read(_) } = lock.step {
                lock.txn.read();
            }
            let serial = seen.serial;
            let is_checked_in = lock.tries >= CHECK_IN_TRIES && lock.met == serial;
            if lock.met != serial {
                (lock.tries, lock.met) = (lock.tries.min(CHECK_IN_TRIES - 1), serial);
            }
            let asks: Vec<&QueuedOp> = lock.running.iter().map(|request| &request.ask).collect();
            let group = Group::run(&lock.key, &seen, &asks, is_checked_in, &lock.sessions, has_notifications);
            let Group { said, change, is_quiet } = group;
            let mut change = match (lock.txn.ran(change.is_some()), change) {
                (Verdict::Write, Some(change)) => change,
                (Verdict::Answer, _) => {
                    self.answered(&name, said);
                    continue;
                }
                _ => {
                    self.again(&name);
                    continue;
                }
            };
            let (mut until, mut next) = (now, None);
            if let QueueStep::Reading { source } = lock.step {
                match source {
                    RowSource::Read(sent) => {
                        until = sent + Duration::from_millis(change.until_ms.saturating_sub(seen.now.ms));
                    }
                    RowSource::Memory(..) if planted(Bug::RowsMemoryOfClock) => {}
                    RowSource::Memory(..) => change.until_ms = change.until_ms.min(seen.now.ms),
                }
                let may_recall = is_quiet && has_notifications && is_renewal(&lock.running);
                let row = row.filter(|_| may_recall);
                next = row.and_then(|row| KnownRow::after(row, &change, source, now));
            }
            lock.step = QueueStep::Writing { said, until, next: next.map(Box::new) };
            changes.push((lock.key.clone(), change));
        }
        if !changes.is_empty() {
            self.writes.push(changes);
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
        let QueueStep::Writing { said, until, next } = mem::replace(&mut lock.step, QueueStep::Idle) else {
            return;
        };
        if is_written {
            self.known.extend(next.map(|next| (name.to_owned(), *next)));
            self.answered(name, said);
            return;
        }
        if planted(Bug::RowsConflictIsBusy) {
            let busy = || GroupAnswer::Lock(Answer::Busy { holder: String::new(), left_ms: Some(1) });
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

/// Sends the single statement that may complete the only request about a lock, if there is one.
fn send_single(
    lock: &LockQueue,
    session: &Session,
    under_way: &mut UnderWay,
    renewals: &mut Renewals,
) -> bool {
    let [QueuedRequest { ask: QueuedOp::Lock(op, _), .. }] = &lock.running[..] else { return false };
    let (session, key, owner) = (Arc::clone(session), lock.key.clone(), op.owner.to_string());
    match op.verb {
        _ if op.spec != LockSpec::Mutex => return false,
        Verb::Acquire { ttl_ms, fence: Fence::Assign | Fence::Optional, .. } => {
            under_way.push(acquire(session, key, owner, signed(ttl_ms)).boxed());
        }
        Verb::Release { whose: ReleaseScope::Own, fence: Fence::Assign | Fence::Optional, .. } => {
            let message = messages(&key, &Notification::Free { by: Some(op.owner.clone()) }).concat();
            under_way.push(release(session, key.name, owner, message).boxed());
        }
        // Rebinding a hold changes nothing in this store, whose holds end only with their lease.
        Verb::Renew { ttl_ms, .. } => {
            renewals.names.push(key.name);
            renewals.owners.push(owner);
            renewals.ttls_ms.push(signed(ttl_ms));
        }
        _ => return false,
    }
    true
}

fn answer(ask: QueuedOp, said: Result<GroupAnswer, Failure>) {
    match (ask, said) {
        (QueuedOp::Lock(_, reply), Ok(GroupAnswer::Lock(answer))) => drop(reply.send(Ok(answer))),
        (QueuedOp::Record(_, reply), Ok(GroupAnswer::Record(answer))) => drop(reply.send(Ok(answer))),
        (ask, Err(failure)) => ask.fail(failure),
        (ask, Ok(_)) => ask.fail(Failure::Unknown(Failure::cause("a reply to another request"))),
    }
}
