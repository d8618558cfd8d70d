//! A pass: the work done per acquisition of the directory's guard.

use std::sync::Arc;
use std::time::Duration;

use super::{DirectoryWorker, Job, JobRequest, Promise, looks};
use crate::apply::{Applied, apply};
use crate::beside::{self, apply_to_record};
use crate::directory::{Directory, Entered, HeldGuard};
use crate::look::page;
use crate::names::RecordId;
use crate::shared::Core;
use crate::waits::rest;
use crate::watch::WatchMode;
use tenure_core::moment::Moment;
use tenure_core::protocol::record::{RecordAnswer, RecordOp, RecordVerb};
use tenure_core::protocol::{Answer, Now, Op, Verb, lease};
use tenure_core::store::{Cursor, Failure, Page, RecordPage};

/// Maximum requests per guard acquisition, for fairness between processes.
const BATCH: usize = 32;

/// The result of a request that was executed.
enum Answered {
    Call(Promise<Answer>, Result<Answer, Failure>),
    Record(Promise<RecordAnswer>, Result<RecordAnswer, Failure>),
}

impl Answered {
    // The caller may have dropped its future, so a failed send is ignored.
    fn send(self) {
        match self {
            Self::Call(promise, reply) => drop(promise.send(reply)),
            Self::Record(promise, answer) => drop(promise.send(answer)),
        }
    }
}

/// The work of one pass.
#[derive(Default)]
struct PassWork {
    requests: usize,
    applied: Vec<(RecordId, Applied)>,
    replies: Vec<Answered>,
    listing: Option<ListingJob>,
}

/// A listing, which needs no guard: it takes long, and each file is consistent on its own.
enum ListingJob {
    Locks(String, Cursor, Promise<Page>),
    Records(String, Cursor, Promise<RecordPage>),
}

impl ListingJob {
    fn carry_out(self, directory: &Directory, now: Now) {
        match self {
            Self::Locks(prefix, from, promise) => drop(promise.send(page(directory, now, &prefix, &from))),
            Self::Records(prefix, from, promise) => {
                drop(promise.send(beside::page(directory, now, &prefix, &from)))
            }
        }
    }
}

/// Outcome of a pass.
pub(super) enum PassOutcome {
    Done,
    Locked,
    Replaced,
}

/// Adds to a grant when it began, if the request waited for the guard for so long that the grant would have
/// to be requested again.
fn timed(op: &Op, answer: Answer, sent: Moment, began: Moment) -> Answer {
    match (&op.verb, answer) {
        (Verb::Acquire { ttl_ms, .. }, answer @ Answer::Held { .. })
            if lease::is_stale(sent, began, Duration::from_millis(*ttl_ms)) =>
        {
            Answer::Late(began, Box::new(answer))
        }
        (_, answer) => answer,
    }
}

impl DirectoryWorker {
    /// Answers the first queued request without a directory if it only reads, because reading is no reason to
    /// create one.
    fn sees_nothing(&mut self) -> bool {
        let Some(job) = self.queue.pop_front() else { return false };
        match job.ask {
            JobRequest::Call(Op { verb: Verb::Inspect, .. }, promise) => {
                let _ = promise.send(Ok(Answer::Free));
            }
            JobRequest::Record(RecordOp { verb: RecordVerb::Read, .. }, promise) => {
                let now_us = self.now().unix_us;
                let _ = promise.send(Ok(RecordAnswer::Read { record: None, now_us }));
            }
            JobRequest::List { promise, .. } => {
                let _ = promise.send(Ok(Page { locks: Vec::new(), next: None }));
            }
            JobRequest::ListRecords { promise, .. } => {
                let _ = promise.send(Ok(RecordPage::default()));
            }
            JobRequest::Rest(_) => {}
            ask => {
                self.queue.push_front(Job { ask, ..job });
                return false;
            }
        }
        true
    }

    /// Enters once and executes up to a batch of queued requests.
    pub(super) fn pass(&mut self, locked: Option<HeldGuard>) -> Result<PassOutcome, Failure> {
        let shared = Arc::clone(&self.shared);
        let mut core = shared.core();
        let (begun, mut done) = (self.runtime.now(), PassWork::default());
        let outcome = self.enter(&mut core, locked, &mut done);
        if let (Ok(PassOutcome::Done), None) = (&outcome, &done.listing) {
            shared.took(self.runtime.now().since(begun), done.requests);
        }
        // After the guard is released, so that woken processes do not wait for it, and before the answers,
        // because a process may exit right after its release.
        if let Some(directory) = &core.directory {
            for (id, applied) in &done.applied {
                applied.calls.iter().for_each(|holder| directory.call(*holder, *id));
            }
        }
        if let (Some(listing), Some(directory)) = (done.listing, &core.directory) {
            listing.carry_out(directory, self.now());
        }
        // A caller may send its next request as soon as it has the answer.
        drop(core);
        done.replies.into_iter().for_each(Answered::send);
        if !self.listeners.is_empty() && matches!(outcome, Ok(PassOutcome::Done)) {
            self.hear(done.applied);
        }
        outcome
    }

    fn enter(
        &mut self,
        core: &mut Core,
        locked: Option<HeldGuard>,
        done: &mut PassWork,
    ) -> Result<PassOutcome, Failure> {
        let directory = match core.directory.take() {
            Some(directory) => directory,
            None if matches!(self.path.try_exists(), Ok(false)) && self.sees_nothing() => {
                return Ok(PassOutcome::Done);
            }
            None => Directory::open(&self.path)?,
        };
        let Core { directory: open, holders, swept } = core;
        let directory = &*open.insert(directory);
        let cannot_be_called = holders.cannot_be_called();
        let watches = |job: &Job| match &job.ask {
            JobRequest::Listen { hears, .. } => cannot_be_called || *hears == WatchMode::All,
            JobRequest::ListenWhileHeld(..) => cannot_be_called,
            _ => false,
        };
        if self.listeners.any_watches() || self.queue.iter().take(BATCH).any(watches) {
            // Before entering, because the time it takes to add a watch grows with the number of files.
            looks::listen(&mut self.watch, directory);
        }
        let mut inside = match directory.enter(locked)? {
            Entered::Inside(inside) => inside,
            Entered::Locked => return Ok(PassOutcome::Locked),
            Entered::Replaced => return Ok(PassOutcome::Replaced),
        };
        self.begin_sweep(&inside, holders, swept);
        for _ in 0..BATCH {
            let Some(Job { ask, sent, _handed, .. }) = self.queue.pop_front() else { break };
            done.requests += 1;
            match ask {
                JobRequest::Call(op, promise) => {
                    let (began, now) = (self.runtime.now(), self.now());
                    let applied = apply(&mut inside, holders, now, &*self.runtime, &op);
                    let reply = applied.map(|applied| {
                        let answer = timed(&op, applied.answer.clone(), sent, began);
                        done.applied.push((RecordId::of(&op.name), applied));
                        answer
                    });
                    done.replies.push(Answered::Call(promise, reply));
                }
                JobRequest::Record(op, promise) => {
                    let now = self.now();
                    let answer = apply_to_record(&mut inside, holders, now, &*self.runtime, &op);
                    let answer = answer.map(|(answer, applied)| {
                        done.applied.extend(applied.map(|applied| (RecordId::of(&op.lock), applied)));
                        answer
                    });
                    done.replies.push(Answered::Record(promise, answer));
                }
                JobRequest::Listen { name, hears, promise } => {
                    let listener = self.add_listener(&inside, holders, RecordId::of(&name), hears);
                    let _ = promise.send(Ok(listener));
                }
                JobRequest::ListenWhileHeld(name, promise) => {
                    let _ = promise.send(Ok(self.add_holder_listener(&inside, holders, RecordId::of(&name))));
                }
                JobRequest::Rest(id) => {
                    let calls = rest(&inside, holders, self.now(), id);
                    let applied =
                        Applied { answer: Answer::Free, wake: None, calls, is_forced: false, is_near: false };
                    done.applied.push((id, applied));
                }
                JobRequest::Ready(promise) => {
                    let _ = promise.send(inside.probe());
                }
                JobRequest::List { prefix, from, promise } => {
                    done.listing = Some(ListingJob::Locks(prefix, from, promise));
                    break;
                }
                JobRequest::ListRecords { prefix, from, promise } => {
                    done.listing = Some(ListingJob::Records(prefix, from, promise));
                    break;
                }
                JobRequest::Heard(_) => {}
            }
        }
        Ok(PassOutcome::Done)
    }
}
