//! Runs the machine on what was read of a lock.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::backend::{Session, Stored, ValueChange};
use super::bind::BatchMember;
use super::client::CasClient;
use super::known::Known;
use super::leases::About;
use super::lock_snapshot::LockSnapshot;
use super::notes::number;
use super::parts::{Sizes, Written};
use crate::moment::Moment;
use crate::owner::Owner;
use crate::planted::{Bug, planted};
use crate::protocol::{self, Answer, Data, Liveness, LockSpec, Now, Op, Place, ReleaseScope, Verb};
use crate::store::Failure;
use crate::store::observe::Notes;
use crate::txn::Txn;

/// Maximum parts of a queue changed by one write: etcd accepts at most 128 operations per transaction. Only a
/// very long queue of dead places needs more.
const PARTS: usize = 64;
/// An inspection reads parts of a queue until it has this many places.
const LISTED: u64 = 1_000;

/// One per request; `None` for requests abandoned meanwhile.
pub(super) type Answers = Vec<Option<Answer>>;

/// Requests about one lock, while they are carried out.
pub(super) struct Exchange<'a> {
    pub(super) client: &'a Arc<CasClient>,
    pub(super) members: &'a [BatchMember<'a>],
    pub(super) first: &'a BatchMember<'a>,
    pub(super) known: &'a mut Known,
    pub(super) begun: Moment,
    /// The session for places, once one is needed.
    pub(super) place: Option<Session>,
    pub(super) seen: Option<Stored>,
    pub(super) snapshot: LockSnapshot,
    /// Expiry of each living hold and place.
    pub(super) living: BTreeMap<u64, u64>,
    /// The version of the guard's marker before the read: see `ClientHold::verified`.
    pub(super) proven: Option<u64>,
    pub(super) txn: Txn,
}

pub(super) enum MachineStep {
    Done(Box<MachineResult>),
    /// A request takes a place, which needs a session.
    NeedsPlace,
    /// These parts of the queue have to be read first.
    Lacks(Vec<usize>),
}

/// The result of the machine, and the texts to write.
pub(super) struct MachineResult {
    pub(super) after: LockSnapshot,
    pub(super) written: Written,
    pub(super) record: ValueChange,
    pub(super) answers: Answers,
    pub(super) notes: Notes,
    /// Only dead places were removed; the requests have not run yet.
    pub(super) is_cleared: bool,
}

impl Exchange<'_> {
    pub(super) fn step(&self, now: Now) -> Result<MachineStep, Failure> {
        let (snapshot, members) = (&self.snapshot, self.members);
        let mut lacks: Vec<usize> = members.iter().flat_map(|of| self.lacks(of)).collect();
        if lacks.is_empty() {
            let (mut state, mut last) = (snapshot.state(&self.living), snapshot.last);
            let (mut bound, mut record, mut notes) = (BTreeMap::new(), ValueChange::Keep, Notes::default());
            let run = |of: &BatchMember<'_>| {
                // Its caller has left the batch.
                if of.sent.is_abandoned() {
                    return None;
                }
                // About the record beside the lock.
                if let Some(beside) = of.beside {
                    let (answer, change) = beside.apply(&mut state, self.client.dated(now));
                    record = change;
                    return Some(answer);
                }
                let op = &*unbound(of.op, snapshot, &self.living);
                let (answer, wake) = protocol::apply(&mut state, &mut last, now, op);
                let answer = self.further_back(op, answer);
                notes.add(op, (&answer, &wake), &state);
                let bind = of.bound(&answer, self.place);
                bound.extend(bind.and_then(|bind| Some((number(op, &answer)?, bind.binding()))));
                Some(answer)
            };
            let answers: Answers = members.iter().map(run).collect();
            let mut answered =
                members.iter().zip(&answers).filter_map(|(of, said)| Some((of, said.as_ref()?)));
            // A newcomer has to wait, and has no session for its place yet.
            if self.place.is_none() && answered.any(|(of, answer)| of.takes_place(answer)) {
                return Ok(MachineStep::NeedsPlace);
            }
            // The machine has not reached the end of what was read, so the unread rest would change nothing.
            if snapshot.is_enough(&state) || planted(Bug::CasFrontIsAll) {
                let stamp = self.seen.as_ref().map(|stored| stored.stamp).unwrap_or_default();
                let after = snapshot.after(state, last, &bound).keeping_count(stamp);
                let written = self.texts(&after)?;
                let result = MachineResult { after, written, record, answers, notes, is_cleared: false };
                return Ok(MachineStep::Done(Box::new(self.cleared(result)?)));
            }
            lacks.extend(snapshot.unread());
        }
        lacks.sort_unstable();
        lacks.dedup();
        Ok(MachineStep::Lacks(lacks))
    }

    fn texts(&self, after: &LockSnapshot) -> Result<Written, Failure> {
        let base = self.seen.as_ref().map_or(0, |stored| stored.stamp.base);
        let written = after.clone().written(&self.snapshot, base, Sizes::new(self.client.backend.part()));
        written.ok_or_else(|| Failure::NotSent(Failure::cause("a place is bound to nothing")))
    }

    /// If too many parts change, a write that first removes some without a living place.
    fn cleared(&self, result: MachineResult) -> Result<MachineResult, Failure> {
        let is_long = result.written.parts.len() > PARTS && !matches!(self.first.op.verb, Verb::Inspect);
        let after = is_long.then(|| self.snapshot.without_dead_parts(&self.living, PARTS / 2)).flatten();
        let Some(after) = after else { return Ok(result) };
        Ok(MachineResult {
            written: self.texts(&after)?,
            after,
            record: ValueChange::Keep,
            answers: vec![None; self.members.len()],
            notes: Notes::default(),
            is_cleared: true,
        })
    }

    /// The unread parts of the queue that a request needs.
    fn lacks(&self, of: &BatchMember<'_>) -> Vec<usize> {
        let (client, snapshot) = (self.client, &self.snapshot);
        let (Some(first), Some(Data::Queue(queue))) = (snapshot.unread(), &snapshot.data) else {
            return Vec::new();
        };
        let begins = snapshot.parts[first].first;
        let mut waits = queue.waiting().take_while(|(number, _)| *number < begins);
        let unread = |at: &usize| !snapshot.parts[*at].is_read;
        if !waits.any(|(number, _)| self.living.contains_key(&number)) {
            // The more parts turned out dead so far, the more are read at once.
            let dead = snapshot.parts.iter().filter(|part| part.is_read).count();
            return (first..snapshot.parts.len()).filter(unread).take(dead.clamp(1, PARTS)).collect();
        }
        let all = || (first..snapshot.parts.len()).filter(unread).collect::<Vec<_>>();
        let about = |number| snapshot.part_of(number).filter(unread);
        match of.about {
            About::Request => {}
            About::Place(number) => return about(number).into_iter().collect(),
            About::Unknown if planted(Bug::CasLostPlaceUnread) => {}
            About::Unknown => return all(),
        }
        match of.op.verb {
            // Shows or ends several: as many parts as an answer lists.
            Verb::Inspect | Verb::Release { whose: ReleaseScope::Any | ReleaseScope::Foreign, .. } => {
                let mut places = snapshot.bindings.len() as u64;
                let is_listed = |at: &usize| {
                    let is_listed = places < LISTED;
                    places += snapshot.parts[*at].count;
                    is_listed
                };
                all().into_iter().take_while(is_listed).collect()
            }
            // Places that have expired go with the answer.
            Verb::Refresh { ref owners, .. } => {
                let (mut table, now_ms) = (client.table.lock(), client.now().ms);
                let expired = owners.iter().filter_map(|owner| {
                    let hold = table.hold(&of.op.name, &(owner.clone(), 0))?;
                    hold.ticket.filter(|_| hold.end_ms < now_ms)
                });
                expired.filter_map(about).collect()
            }
            // Concerns the holders, which are always read.
            Verb::Resize => Vec::new(),
            Verb::Acquire { .. } | Verb::Renew { .. } | Verb::Release { .. } => {
                // Its hold or place is in what was read.
                if queue.number(&of.op.owner).is_some() {
                    return Vec::new();
                }
                let key = (of.op.owner.clone(), 0);
                let ticket = client.table.lock().hold(&of.op.name, &key).map(|hold| hold.ticket);
                let sizes = Sizes::new(client.backend.part());
                match ticket {
                    // Requested earlier, with unknown outcome.
                    Some(None) => all(),
                    Some(Some(number)) if about(number).is_some() => about(number).into_iter().collect(),
                    // Newcomers are added to the last part.
                    _ if matches!(of.op.verb, Verb::Acquire { .. }) => {
                        let last = snapshot.parts.len() - 1;
                        Some(last)
                            .filter(unread)
                            .filter(|at| sizes.takes_more(&snapshot.parts[*at]))
                            .into_iter()
                            .collect()
                    }
                    _ => Vec::new(),
                }
            }
        }
    }

    /// Completes an answer with the places in unread parts. A place of this client exists as long as its
    /// session is alive, because no other client removes it.
    fn further_back(&self, op: &Op, answer: Answer) -> Answer {
        let (client, snapshot) = (self.client, &self.snapshot);
        let is_listing = matches!(op.verb, Verb::Inspect)
            || matches!(op.verb, Verb::Release { whose, .. } if whose.is_forced());
        match answer {
            _ if snapshot.unread().is_none() => answer,
            Answer::More(answer) => self.further_back(op, *answer).and_more(),
            Answer::Found(mut found) if is_listing => {
                found.unlisted += snapshot.unread_places();
                Answer::Found(found)
            }
            Answer::Places { mut places, retry_in_ms } => {
                let Verb::Refresh { owners, .. } = &op.verb else {
                    return Answer::Places { places, retry_in_ms };
                };
                let now_ms = client.now().ms;
                let mut table = client.table.lock();
                for (place, owner) in
                    places.iter_mut().zip(owners.iter()).filter(|(place, _)| **place == Place::Gone)
                {
                    let hold = table
                        .hold(&op.name, &(owner.clone(), 0))
                        .map(|hold| (hold.session, hold.ticket, hold.end_ms));
                    let Some((session, Some(ticket), end_ms)) = hold else { continue };
                    let is_further = snapshot.part_of(ticket).is_some_and(|at| !snapshot.parts[at].is_read);
                    if is_further && end_ms >= now_ms && table.lease_of(session).is_some() {
                        *place = Place::Waiting { ticket };
                    }
                }
                Answer::Places { places, retry_in_ms }
            }
            answer => answer,
        }
    }
}

/// A request to take over a detached hold, without the takeover if the hold was not detached but has expired:
/// it would take another detached hold of the same owner.
fn unbound<'a>(op: &'a Op, snapshot: &LockSnapshot, living: &BTreeMap<u64, u64>) -> Cow<'a, Op> {
    let Verb::Renew { ttl_ms, hold, bind: Some(Liveness::Process | Liveness::Work), weight } = op.verb else {
        return Cow::Borrowed(op);
    };
    let is_there = op.spec == LockSpec::Reentrant && snapshot.bindings.contains_key(&hold);
    match is_there && !living.contains_key(&hold) && !planted(Bug::CasExpiredTakesDetached) {
        true => Cow::Owned(Op { verb: Verb::Renew { ttl_ms, hold, bind: None, weight }, ..op.clone() }),
        false => Cow::Borrowed(op),
    }
}

/// The sessions from which a request moves living holds and places to another.
pub(super) fn moved_from(
    verb: &Verb,
    before: &LockSnapshot,
    after: &LockSnapshot,
    living: &BTreeMap<u64, u64>,
) -> Vec<Session> {
    if !matches!(verb, Verb::Acquire { .. } | Verb::Renew { .. }) || planted(Bug::CasExpiredMoved) {
        return Vec::new();
    }
    let session =
        |snapshot: &LockSnapshot, number: &u64| snapshot.bindings.get(number).map(|binding| binding.session);
    // The detached holds of a reentrant owner share the number 0, and one of them may leave the others.
    let is_taken_over = match verb {
        Verb::Renew { hold, bind: Some(Liveness::Process | Liveness::Work), .. } => {
            !before.bindings.contains_key(hold) && after.bindings.contains_key(hold)
        }
        _ => false,
    };
    let moved = living
        .keys()
        .filter(|number| session(before, number) != session(after, number) || is_taken_over && **number == 0);
    let sessions: BTreeSet<Session> = moved.filter_map(|number| session(before, number)).collect();
    sessions.into_iter().collect()
}

/// The sessions of living holds that these requests end but that belong to other owners.
pub(super) fn victims(
    before: &LockSnapshot,
    after: &LockSnapshot,
    living: &BTreeMap<u64, u64>,
    owners: &[&Owner],
) -> Vec<Session> {
    let left: Vec<u64> = after.entries().into_iter().map(|(number, _, _)| number).collect();
    let ended = before.entries().into_iter().filter(|(number, owner, _)| {
        let is_gone = left.binary_search(number).is_err();
        is_gone && living.contains_key(number) && !owners.contains(&owner)
    });
    let mut sessions: Vec<Session> = ended
        .filter_map(|(number, _, _)| before.bindings.get(&number))
        .map(|binding| binding.session)
        .collect();
    sessions.sort_unstable();
    sessions.dedup();
    sessions
}
