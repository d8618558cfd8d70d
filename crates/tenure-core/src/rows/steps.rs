//! Decides which statements the worker sends, and processes their results.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use super::asking::{Done, acquire, plain, read_rows, release, renew, sweep, write};
use super::group::{Group, GroupAnswer};
use super::inbox::{QueuedOp, QueuedRequest};
use super::known::{KnownRow, RowSource, is_renewal};
use super::lock_queue::QueueStep;
use super::names::LockKey;
use super::server::{Renewals, Row, RowChange, StatementError, StatementSession, WriteOutcome};
use super::sessions::{EndedSessions, KnownSessions, LOOKS};
use super::state::{SeenRow, messages, signed, unsigned};
use super::worker::{SWEEP, StatementWorker, UnderWay, share};
use crate::moment::Moment;
use crate::planted::{Bug, planted};
use crate::protocol::{Answer, Fence, LockSpec, Notification, ReleaseScope, Verb};
use crate::store::Failure;

/// Maximum requests about one lock that are executed together.
const TOGETHER: usize = 256;
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
    pub(super) fn send(&mut self, session: &Arc<dyn StatementSession>, under_way: &mut UnderWay) {
        let now = self.now();
        while let Some((until, _)) = self.resting.first()
            && *until <= now
            && let Some((_, name)) = self.resting.pop_first()
        {
            self.ready.insert(name);
        }
        while let Some(request) = self.waiting.pop_front() {
            if let QueuedOp::Plain { plain: what, .. } = &request.ask {
                under_way.push(plain(Arc::clone(session), request.number, what.clone()));
                self.sent.insert(request.number, (now, session.heard()));
                self.plain.insert(request.number, request.ask);
            }
        }
        if now >= self.sweeps_at {
            self.sweeps_at = Moment(u64::MAX);
            under_way.push(sweep(Arc::clone(session), self.swept.clone()));
        }
        while !self.ready.is_empty() {
            self.send_locks(now, session, under_way);
        }
        let writes = self.writes.drain(..).map(|changes| write(Arc::clone(session), changes));
        under_way.extend(writes);
    }

    fn send_locks(&mut self, now: Moment, session: &Arc<dyn StatementSession>, under_way: &mut UnderWay) {
        let (mut read, mut with_records, mut renewals) = (Vec::new(), false, Renewals::default());
        let (mut recalled, mut rows) = (Vec::new(), Vec::new());
        while read.len() < LOCKS
            && renewals.names.len() < LOCKS
            && let Some(name) = self.ready.pop_first()
        {
            let Some(lock) = self.locks.get_mut(&name).filter(|lock| matches!(lock.step, QueueStep::Idle))
            else {
                continue;
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
            let is_again = !lock.running.is_empty();
            if lock.is_over() {
                self.locks.remove(&name);
                continue;
            }
            if !is_again {
                let count = lock.queue.len().min(TOGETHER);
                lock.running.extend(lock.queue.drain(..count));
            }
            let heard = session.heard();
            for request in &lock.running {
                self.sent.insert(request.number, (now, heard));
            }
            if let ([QueuedRequest { ask: QueuedOp::Lock(op, _), .. }], false) = (&lock.running[..], is_again)
                && op.spec == LockSpec::Mutex
            {
                let (session, key, owner) = (Arc::clone(session), lock.key.clone(), op.owner.to_string());
                match op.verb {
                    Verb::Acquire { ttl_ms, fence: Fence::Assign | Fence::Optional, .. } => {
                        lock.step = QueueStep::Fast { sent: now };
                        under_way.push(acquire(session, key, owner, signed(ttl_ms)));
                        continue;
                    }
                    Verb::Release {
                        whose: ReleaseScope::Own,
                        fence: Fence::Assign | Fence::Optional,
                        ..
                    } => {
                        lock.step = QueueStep::Fast { sent: now };
                        let wake = Notification::Free { by: Some(op.owner.clone()) };
                        let message = messages(&key, &wake).concat();
                        under_way.push(release(session, name, owner, message));
                        continue;
                    }
                    // Rebinding a hold changes nothing in this store, whose holds end only with their lease.
                    Verb::Renew { ttl_ms, .. } => {
                        lock.step = QueueStep::Fast { sent: now };
                        renewals.names.push(name);
                        renewals.owners.push(owner);
                        renewals.ttls_ms.push(signed(ttl_ms));
                        continue;
                    }
                    _ => {}
                }
            }
            let known = self.known.remove(&name).filter(|_| !is_again);
            if let Some((row, source)) = known.and_then(|known| known.recall(now, &lock.running)) {
                lock.step = QueueStep::Reading { source };
                recalled.push(name);
                rows.push(row);
                continue;
            }
            lock.step = QueueStep::Reading { source: RowSource::Read(now) };
            with_records |= lock.running.iter().any(|request| matches!(request.ask, QueuedOp::Record(..)));
            read.push(name);
        }
        if !renewals.names.is_empty() {
            under_way.push(renew(Arc::clone(session), renewals));
        }
        if !read.is_empty() {
            under_way.push(read_rows(Arc::clone(session), read, with_records));
        }
        self.read(recalled, &rows);
    }

    /// Processes the result of a statement. Returns whether the connection is still usable.
    pub(super) fn done(&mut self, done: Done) -> bool {
        let now = self.now();
        match done {
            Done::Acquired(name, Ok(Some(fence))) => {
                let since = match self.locks.get(&name).map(|lock| &lock.step) {
                    Some(QueueStep::Fast { sent }) => now.since(*sent),
                    _ => Duration::ZERO,
                };
                let answer = match since > FRESH {
                    true => Err(Failure::Unknown(Failure::cause("the reply took too long"))),
                    false => Ok(Answer::Held { fence: unsigned(fence) }),
                };
                self.answered(&name, vec![answer.map(GroupAnswer::Lock)]);
                true
            }
            Done::Acquired(name, Ok(None)) | Done::Released(name, Ok(false)) => {
                self.again(&name);
                true
            }
            Done::Released(name, Ok(true)) => {
                self.answered(&name, vec![Ok(GroupAnswer::Lock(Answer::Released { left: 0 }))]);
                true
            }
            Done::Renewed(names, Ok(held)) => {
                let held: BTreeMap<String, i64> = held.into_iter().collect();
                for name in names {
                    match held.get(&name) {
                        Some(fence) => {
                            let answer = Answer::Held { fence: unsigned(*fence) };
                            self.answered(&name, vec![Ok(GroupAnswer::Lock(answer))]);
                        }
                        None => self.again(&name),
                    }
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
            Done::Acquired(name, Err(failed)) | Done::Released(name, Err(failed)) => {
                self.failed([name], &failed)
            }
            Done::Renewed(names, Err(failed))
            | Done::Read(names, Err(failed))
            | Done::Wrote(names, Err(failed)) => self.failed(names, &failed),
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

    /// Fails the requests of a failed statement. Returns whether the connection is still usable.
    fn failed(&mut self, names: impl IntoIterator<Item = String>, failed: &StatementError) -> bool {
        for name in names {
            self.fail(&name, &failed.failure);
        }
        !failed.ends_connection
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
        if lock.is_over() {
            self.locks.remove(name);
        } else {
            self.ready.insert(name.to_owned());
        }
    }

    /// The single statement did not apply, so the row has to be read.
    fn again(&mut self, name: &str) {
        let Some(lock) = self.locks.get_mut(name) else { return };
        lock.step = QueueStep::Idle;
        if lock.is_over() {
            self.locks.remove(name);
        } else {
            self.ready.insert(name.to_owned());
        }
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
            let serial = seen.serial;
            let is_checked_in = lock.tries >= CHECK_IN_TRIES && lock.met == serial;
            if lock.met != serial {
                (lock.tries, lock.met) = (lock.tries.min(CHECK_IN_TRIES - 1), serial);
            }
            let asks: Vec<&QueuedOp> = lock.running.iter().map(|request| &request.ask).collect();
            let group = Group::run(&lock.key, &seen, &asks, is_checked_in, &lock.sessions, has_notifications);
            match group {
                // Only a write shows that the row is still as it was.
                Group { change: None, .. }
                    if matches!(lock.step, QueueStep::Reading { source: RowSource::Memory(..) })
                        && !planted(Bug::RowsMemoryAnswers) =>
                {
                    self.again(&name)
                }
                Group { change: None, said, .. } => self.answered(&name, said),
                mut group => {
                    let mut change = group.change.take().expect("it was just looked at");
                    let (mut until, mut next) = (now, None);
                    if let QueueStep::Reading { source } = lock.step {
                        match source {
                            RowSource::Read(sent) => {
                                until =
                                    sent + Duration::from_millis(change.until_ms.saturating_sub(seen.now.ms));
                            }
                            RowSource::Memory(..) if planted(Bug::RowsMemoryOfClock) => {}
                            RowSource::Memory(..) => change.until_ms = change.until_ms.min(seen.now.ms),
                        }
                        let may_recall = group.is_quiet && has_notifications && is_renewal(&lock.running);
                        let row = row.filter(|_| may_recall);
                        next = row.and_then(|row| KnownRow::after(row, &change, source, now));
                    }
                    lock.step =
                        QueueStep::Writing { group: Box::new(group), until, next: next.map(Box::new) };
                    changes.push((lock.key.clone(), change));
                }
            }
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
        let QueueStep::Writing { group, until, next } = mem::replace(&mut lock.step, QueueStep::Idle) else {
            return;
        };
        if is_written {
            self.known.extend(next.map(|next| (name.to_owned(), *next)));
            self.answered(name, group.said);
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
        if lock.is_over() {
            self.locks.remove(name);
        } else if lock.running.is_empty() || lock.tries == 1 {
            self.ready.insert(name.to_owned());
        } else {
            // The row is contended: back off with jitter.
            let most = Duration::from_millis(1) * lock.tries.min(8);
            let pause = most.mul_f64(share(self.inbox.runtime.random()));
            self.resting.insert((now + pause, name.to_owned()));
        }
    }
}

fn answer(ask: QueuedOp, said: Result<GroupAnswer, Failure>) {
    match (ask, said) {
        (QueuedOp::Lock(_, reply), Ok(GroupAnswer::Lock(answer))) => drop(reply.send(Ok(answer))),
        (QueuedOp::Record(_, reply), Ok(GroupAnswer::Record(answer))) => drop(reply.send(Ok(answer))),
        (ask, Err(failure)) => ask.fail(failure),
        (ask, Ok(_)) => ask.fail(Failure::Unknown(Failure::cause("a reply to another request"))),
    }
}
