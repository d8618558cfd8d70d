//! A turn: what is done in the directory while this process has its guard.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Worker;
use super::job::{Job, Promise, Request};
use super::looks::{self, LOOK, do_piece, not_swept, rare};
use crate::apply::{Applied, apply, now};
use crate::beside::apply_to_record;
use crate::bindings::Bindings;
use crate::called::rest;
use crate::directory::{Directory, Entered, Locked};
use crate::lock::Lock;
use crate::look::page;
use crate::names::RecordId;
use crate::shared::{Core, SWEEP};
use crate::sweep::Sweep;
use crate::watch::Hears;
use tenure_core::protocol::record::{RecordAnswer, RecordOp, RecordVerb};
use tenure_core::protocol::{Answer, Op, Verb};
use tenure_core::store::{Cursor, Failure, Listener, Page};

/// So many requests are answered before the guard is given back, so that other processes have their
/// turn.
const BATCH: usize = 32;

/// A request that was carried out, and its answer.
enum Answered {
    Call(Promise<Answer>, Result<Answer, Failure>),
    Record(Promise<RecordAnswer>, Result<RecordAnswer, Failure>),
}

impl Answered {
    // The process that asked may be gone: no process is left to tell then.
    fn send(self) {
        match self {
            Self::Call(promise, reply) => drop(promise.send(reply)),
            Self::Record(promise, answer) => drop(promise.send(answer)),
        }
    }
}

/// What was done in one turn.
#[derive(Default)]
struct Done {
    requests: usize,
    applied: Vec<(RecordId, Applied)>,
    replies: Vec<Answered>,
    listing: Option<(String, Cursor, Promise<Page>)>,
}

/// What came of one turn under the guard.
pub(super) enum Turn {
    Done,
    Locked,
    Replaced,
}

impl Worker {
    /// Answers the first in the queue without a directory, if it only wants to see the holders:
    /// that is no reason to make one.
    fn sees_nothing(&mut self) -> bool {
        let Some(job) = self.queue.pop_front() else { return false };
        match job.ask {
            Request::Call(Op { verb: Verb::Inspect, .. }, promise) => {
                let _ = promise.send(Ok(Answer::Free));
            }
            Request::Record(RecordOp { verb: RecordVerb::Read, .. }, promise) => {
                let now_us = self.now().unix_us;
                let _ = promise.send(Ok(RecordAnswer::Read { record: None, now_us }));
            }
            Request::List { promise, .. } => {
                let _ = promise.send(Ok(Page { locks: Vec::new(), next: None }));
            }
            Request::Rest(_) => {}
            ask => {
                self.queue.push_front(Job { ask, ..job });
                return false;
            }
        }
        true
    }

    /// Enters once and answers what is in the queue, as far as a batch reaches.
    pub(super) fn turn(&mut self, locked: Option<Locked>) -> Result<Turn, Failure> {
        let shared = Arc::clone(&self.shared);
        let mut core = shared.core();
        let (begun, mut done) = (self.runtime.now(), Done::default());
        let turn = self.enter(&mut core, locked, &mut done);
        if let (Ok(Turn::Done), None) = (&turn, &done.listing) {
            shared.took(self.runtime.now().since(begun), done.requests);
        }
        // Outside the guard, so that a process that is called does not wait for it; and before the
        // answers, because a process that has released its lock may end at once.
        if let Some(directory) = &core.directory {
            for (id, applied) in &done.applied {
                applied.calls.iter().for_each(|holder| directory.call(*holder, *id));
            }
        }
        if let (Some((prefix, from, promise)), Some(directory)) = (done.listing, &core.directory) {
            // Long, and each record is whole in itself: no reason to keep others out meanwhile.
            let _ = promise.send(page(directory, self.now(), &prefix, &from));
        }
        // Who is answered may ask again at once.
        drop(core);
        done.replies.into_iter().for_each(Answered::send);
        if !self.listeners.is_empty() && matches!(turn, Ok(Turn::Done)) {
            self.hear(done.applied);
        }
        turn
    }

    fn enter(&mut self, core: &mut Core, locked: Option<Locked>, done: &mut Done) -> Result<Turn, Failure> {
        let directory = match core.directory.take() {
            Some(directory) => directory,
            None if matches!(self.path.try_exists(), Ok(false)) && self.sees_nothing() => {
                return Ok(Turn::Done);
            }
            None => Directory::open(&self.path)?,
        };
        let Core { directory: open, holders, swept } = core;
        let directory = &*open.insert(directory);
        let cannot_be_called = holders.cannot_be_called();
        let watches = |job: &Job| match &job.ask {
            Request::Listen { hears, .. } => cannot_be_called || *hears == Hears::All,
            Request::ListenWhileHeld(..) => cannot_be_called,
            _ => false,
        };
        if self.listeners.any_watches() || self.queue.iter().take(BATCH).any(watches) {
            // Outside the guard: beginning to watch takes the longer the more files there are.
            looks::listen(&mut self.watch, directory);
        }
        let mut inside = match directory.enter(locked)? {
            Entered::Inside(inside) => inside,
            Entered::Locked => return Ok(Turn::Locked),
            Entered::Replaced => return Ok(Turn::Replaced),
        };
        let (runtime, offset_ms) = (&*self.runtime, self.shared.offset_ms);
        if self.sweep.is_none() && swept.is_none_or(|swept| runtime.now().since(swept) >= SWEEP) {
            *swept = Some(runtime.now());
            match Sweep::new(&inside, runtime.random()) {
                Ok(sweep) => self.sweep = Some(sweep),
                Err(failure) => not_swept(&failure),
            }
            self.sweep_at = do_piece(&mut self.sweep, &inside, holders, runtime, offset_ms);
        }
        for _ in 0..BATCH {
            let Some(Job { ask, _handed, .. }) = self.queue.pop_front() else { break };
            done.requests += 1;
            match ask {
                Request::Call(op, promise) => {
                    let now = now(runtime, offset_ms);
                    let applied = apply(&mut inside, holders, now, runtime, &op);
                    let reply = applied.map(|applied| {
                        let answer = applied.answer.clone();
                        done.applied.push((RecordId::of(&op.name), applied));
                        answer
                    });
                    done.replies.push(Answered::Call(promise, reply));
                }
                Request::Record(op, promise) => {
                    let now = now(runtime, offset_ms);
                    let answer = apply_to_record(&mut inside, holders, now, runtime, &op);
                    let answer = answer.map(|(answer, applied)| {
                        done.applied.extend(applied.map(|applied| (RecordId::of(&op.lock), applied)));
                        answer
                    });
                    done.replies.push(Answered::Record(promise, answer));
                }
                Request::Listen { name, hears, promise } => {
                    let id = RecordId::of(&name);
                    let hears = match hears {
                        _ if cannot_be_called => Hears::All,
                        Hears::Calls => match holders.begin_to_ask(&inside, runtime, id) {
                            Ok(true) => hears,
                            // Not watched from the first moment on: the look finds what is missed.
                            Ok(false) | Err(_) => Hears::All,
                        },
                        hears => hears,
                    };
                    let listener = Listener::new(|sender| {
                        self.listeners.add(id, sender, hears);
                        Box::new(())
                    });
                    // Before the guard is given back: every later change is heard.
                    self.shared.listens.store(true, Ordering::Release);
                    match hears {
                        Hears::Turns => {
                            // Whether its place is at the front of the line.
                            if self.looking.is_empty() {
                                self.looking_since = runtime.now();
                            }
                            self.looking.push(id);
                            self.look = Some(runtime.sleep_until(runtime.now()));
                        }
                        Hears::Calls if self.look.is_some() => {}
                        Hears::Calls => {
                            self.rare_at = runtime.now() + rare(runtime);
                            self.look = Some(runtime.sleep_until(self.rare_at));
                        }
                        Hears::All => {
                            self.look.get_or_insert_with(|| runtime.sleep_until(runtime.now() + LOOK));
                        }
                    }
                    let _ = promise.send(Ok(listener));
                }
                Request::ListenWhileHeld(name, promise) => {
                    let id = RecordId::of(&name);
                    let bindings = Lock::peek(&inside, id).ok().flatten().map(|record| record.bindings);
                    for (_, holder) in bindings.iter().flat_map(Bindings::iter) {
                        holders.listen(&inside, holder);
                    }
                    let is_called = !holders.cannot_be_called();
                    let listener = Listener::new(|sender| {
                        self.listeners.add_holder(id, sender, is_called);
                        Box::new(())
                    });
                    self.shared.listens.store(true, Ordering::Release);
                    if !is_called {
                        self.look.get_or_insert_with(|| runtime.sleep_until(runtime.now() + LOOK));
                    }
                    let _ = promise.send(Ok(listener));
                }
                Request::Rest(id) => {
                    let calls = rest(&inside, holders, now(runtime, offset_ms), id);
                    let applied =
                        Applied { answer: Answer::Free, wake: None, calls, is_forced: false, is_near: false };
                    done.applied.push((id, applied));
                }
                Request::Ready(promise) => {
                    let _ = promise.send(inside.probe());
                }
                Request::List { prefix, from, promise } => {
                    done.listing = Some((prefix, from, promise));
                    break;
                }
                Request::Heard(_) => {}
            }
        }
        Ok(Turn::Done)
    }
}
