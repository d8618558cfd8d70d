//! Executes requests about one lock together: the answers, and the change to write.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::mem;
use std::sync::Arc;

use super::inbox::QueuedOp;
use super::names::LockKey;
use super::server::RowChange;
use super::sessions::{KnownSessions, checks};
use super::state::{SeenRow, messages};
use crate::owner::Owner;
use crate::planted::{Bug, planted};
use crate::protocol::places::PlaceRequest;
use crate::protocol::record::{self, Record, RecordAnswer, RecordVerb, Then};
use crate::protocol::{
    self, Answer, ExpiringValue, Listening, Notification, Op, ReleaseScope, State, Verb, codec,
};
use crate::store::Failure;
use crate::store::observe::Notes;

/// An answer.
pub(super) enum PendingAnswer {
    Lock(Answer),
    Record(RecordAnswer),
}

/// The answers of requests about one lock, valid once its change is written.
pub(super) struct Executed {
    /// In request order.
    pub(super) said: Vec<Result<PendingAnswer, Failure>>,
    /// `None` if nothing changes.
    pub(super) change: Option<RowChange>,
    /// Whether the lock is free afterwards.
    pub(super) is_free: bool,
}

/// A lock and its record while requests are executed.
#[derive(Clone)]
struct WorkingLock {
    state: State,
    record: Option<ExpiringValue<Record>>,
    counter: u64,
    wake: Vec<String>,
    notes: Notes,
    /// The owners of waiting tickets that were removed because their session has ended.
    passed: Vec<Owner>,
}

impl Executed {
    /// Runs the machines on a row. `is_checked_in` means that an open transaction has checked a hold in, so
    /// that no other client may end a hold of the lock, not even an expired one.
    pub(super) fn run(
        key: &LockKey,
        seen: &SeenRow,
        asks: &[&QueuedOp],
        is_checked_in: bool,
        sessions: &KnownSessions,
    ) -> Self {
        let state = if is_checked_in { seen.spared() } else { seen.state.clone() };
        let (record, counter, wake, notes) =
            (seen.record.clone(), seen.counter, Vec::new(), Notes::default());
        let passed = seen.passed.clone();
        let mut now = WorkingLock { state, record, counter, wake, notes, passed };
        let asking: BTreeSet<&Owner> = asks.iter().filter_map(|ask| releases(ask)).collect();
        let mut all = now.clone();
        let mut said: Vec<_> = asks.iter().map(|ask| Ok(all.apply(key, seen, ask))).collect();
        let extending: BTreeSet<&str> = match planted(Bug::RowsExtendedUnwritten) {
            true => BTreeSet::new(),
            false => asks.iter().flat_map(|ask| extends(ask)).map(Owner::as_str).collect(),
        };
        let ends = |now: &WorkingLock| seen.ends_hold(&now.state, &asking);
        if !is_checked_in || !ends(&all) {
            now = all;
        } else {
            said.clear();
            for ask in asks {
                let mut next = now.clone();
                let answer = next.apply(key, seen, ask);
                if ends(&next) {
                    let cause = "a transaction that has checked in a hold of this lock is still open";
                    said.push(Err(Failure::NotSent(Failure::cause(cause))));
                    continue;
                }
                now = next;
                said.push(Ok(answer));
            }
        }
        now.tell_first(key, seen);
        let own = asks.iter().filter_map(|ask| asker(ask)).map(Owner::client).collect();
        let passed = mem::take(&mut now.passed);
        let states = [&seen.state, &now.state];
        let sessions = checks(states, &passed, &own, sessions);
        let is_free = now.state.lock.is_none();
        let is_release = asks.iter().all(|ask| matches!(ask, QueuedOp::Lock(..)) && releases(ask).is_some());
        let durable = !is_release || seen.grants(&now.state) && !planted(Bug::RowsGrantNotDurable);
        let change = now.change(seen, is_checked_in.then_some(&extending), &asking);
        Self { said, change: change.map(|change| RowChange { sessions, durable, ..change }), is_free }
    }
}

impl WorkingLock {
    fn apply(&mut self, key: &LockKey, seen: &SeenRow, ask: &QueuedOp) -> PendingAnswer {
        let (said, wake) = match ask {
            QueuedOp::Lock(op, _) => {
                // The first request notes the waiters that were passed over.
                let before = if self.notes.is_empty() { 0 } else { self.passed.len() };
                let (answer, wake) = self.apply_whole(seen, op);
                let forced = protocol::forced(op, &answer);
                self.wake.extend(forced.iter().flat_map(|wake| messages(key, wake)));
                self.notes.add(op, (&answer, &wake), &self.state);
                self.notes.pass(&self.passed[before..]);
                (PendingAnswer::Lock(answer), wake)
            }
            QueuedOp::Record(op, _) => {
                let (answer, wake) = record::apply(&mut self.state, &mut self.record, seen.now, op);
                (PendingAnswer::Record(answer), wake)
            }
            QueuedOp::Plain { .. } => unreachable!("a plain statement stands in no queue"),
        };
        self.wake.extend(wake.iter().flat_map(|wake| messages(key, wake)));
        said
    }

    /// Runs a request without the limit of its work, which is for servers that others wait for meanwhile. A
    /// caller whose own answer may change repeats its request itself.
    fn apply_whole(&mut self, seen: &SeenRow, op: &Op) -> (Answer, Option<Notification>) {
        let place = PlaceRequest::new(&self.state, op);
        let op = &place.op;
        let passed = RefCell::new(mem::take(&mut self.passed));
        // Only the waiters whose session has ended are marked as listening.
        let lives = |listens: Option<Listening>, owner: &Owner| {
            if listens.is_some() {
                passed.borrow_mut().push(owner.clone());
            }
            listens.is_none()
        };
        let (state, counter) = (&mut self.state, &mut self.counter);
        let (answer, mut wake) = protocol::apply_calling(state, counter, seen.now, op, &lives);
        let is_final = |answer: &Answer| !matches!(answer, Answer::Busy { .. } | Answer::Found(_));
        let answer = match answer {
            Answer::More(answer) if is_final(&answer) => {
                let rest = Verb::Refresh { owners: Arc::new([]), wait_ms: 0, listens: None };
                let rest = Op { verb: rest, ..op.clone() };
                loop {
                    let (more, next) = protocol::apply_calling(state, counter, seen.now, &rest, &lives);
                    match (&mut wake, next) {
                        (
                            Some(Notification::Granted { tickets }),
                            Some(Notification::Granted { tickets: next }),
                        ) => {
                            tickets.extend(next);
                        }
                        (wake, next) => *wake = next.or(wake.take()),
                    }
                    if !matches!(more, Answer::More(_)) {
                        break *answer;
                    }
                }
            }
            answer => answer,
        };
        self.passed = passed.into_inner();
        (place.finish(&mut self.state, seen.now, answer), wake)
    }

    /// Tells a waiter that it has become the first, because it may not have asked for long.
    fn tell_first(&mut self, key: &LockKey, seen: &SeenRow) {
        let first = |state: &State| Some(state.queue()?.waiting().next()?.0);
        if let (Some(before), Some(ticket)) = (first(&seen.state), first(&self.state))
            && ticket > before
            && !planted(Bug::RowsFirstUntold)
        {
            self.wake.extend(messages(key, &Notification::First { ticket }));
        }
    }

    /// The change to write. `spared`, set if a hold is checked in, are the owners whose holds the requests
    /// extend; `asking` are those that release their own.
    fn change(
        self,
        seen: &SeenRow,
        spared: Option<&BTreeSet<&str>>,
        asking: &BTreeSet<&Owner>,
    ) -> Option<RowChange> {
        let state = match spared {
            Some(extending) => seen.unspared(self.state, extending),
            None => self.state,
        };
        let has_new_record = self.record != seen.record;
        // The removal of an expired lock need not be written.
        let is_same = state.lock == seen.state.lock || state.lock.is_none() && seen.state.is_over(seen.now);
        if is_same && !has_new_record && self.counter == seen.counter && self.wake.is_empty() {
            self.notes.unwritten();
            return None;
        }
        let lock =
            state.lock.as_ref().map(|lock| (codec::kind(&lock.value).as_str(), codec::encode(&lock.value)));
        Some(RowChange {
            serial: seen.serial,
            ends_hold: seen.ends_hold(&state, asking) && !planted(Bug::RowsCheckInForgotten),
            durable: true,
            until_ms: seen.is_steady_until(match planted(Bug::RowsDeadGrantWritten) {
                true => &seen.state,
                false => &state,
            }),
            lock,
            ends_ms: state.lock.as_ref().and_then(|lock| lock.expires_ms).unwrap_or(0),
            fence: self.counter,
            record: has_new_record.then_some(self.record),
            wake: self.wake.join("\n"),
            sessions: Vec::new(),
            notes: self.notes,
        })
    }
}

/// The owners whose hold or ticket a request extends.
fn extends(ask: &QueuedOp) -> &[Owner] {
    match ask {
        QueuedOp::Lock(Op { verb: Verb::Refresh { owners, .. }, .. }, _) => owners,
        QueuedOp::Lock(Op { owner, verb: Verb::Acquire { .. } | Verb::Renew { .. }, .. }, _) => {
            std::slice::from_ref(owner)
        }
        _ => &[],
    }
}

/// The owner whose client sends a request, if it is known to be its own.
fn asker(ask: &QueuedOp) -> Option<&Owner> {
    match ask {
        QueuedOp::Lock(Op { verb: Verb::Release { whose: ReleaseScope::Named, .. }, .. }, _) => None,
        QueuedOp::Lock(op, _) => Some(&op.owner),
        _ => releases(ask),
    }
}

/// The owner whose own hold a request ends.
fn releases(ask: &QueuedOp) -> Option<&Owner> {
    match ask {
        QueuedOp::Lock(Op { owner, verb: Verb::Release { whose: ReleaseScope::Own, .. }, .. }, _) => {
            Some(owner)
        }
        QueuedOp::Record(op, _) => match &op.verb {
            RecordVerb::Put(put) if put.then == Then::Release => Some(&put.owner),
            _ => None,
        },
        _ => None,
    }
}
