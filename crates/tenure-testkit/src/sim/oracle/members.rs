//! A lock on several servers: a client with a majority of them has the lock, and is judged as if a single
//! server had granted it.
//!
//! A majority is determined by the servers' state in true time, whether or not a client knows of it, and
//! lasts until too few leases are left. What a server loses by a restart or a clock step is a *taken vote*: a
//! guard may rightly believe in it until its next renewal. It is excused for exactly that, and only if it
//! would still have a majority with its taken votes. A client that was granted the lock meanwhile is another
//! matter: a restarted server does not vote, so violations of exclusion are excused only for votes that were
//! taken by a *forward* clock step.

use tenure::internals::protocol::{Answer, ReleaseScope, Verb};
use tenure::{LockName, Owner};

use super::exclusion::{EXCLUSION, UNTOUCHED};
use super::leftovers::ENDLESS;
use super::reference_model::{End, Owned, Place, ReferenceModel};
use super::reporting::REPORTING;
use super::votes::{Members, Past, Stand, Trouble, Votes};
use super::{Executed, Oracle};
use crate::sim::clock::TrueTime;
use crate::sim::executor::{Sim, lock};
use crate::sim::server::LockView;

/// Invariant: an uncontended client asks each server once.
pub const ONE_TRIP: &str = "a majority is had in one trip";

impl ReferenceModel {
    /// One of several servers has run a request: updates and judges the lock.
    pub(super) fn vote(
        &mut self,
        at: TrueTime,
        member: usize,
        executed: &Executed<'_>,
        sim: &Sim,
        news: &mut Vec<Owner>,
    ) {
        let (owner, verb) = (&executed.op.owner, &executed.op.verb);
        self.stands_at(at, member, executed.after.as_ref(), Some(owner));
        self.check_spared(at, member, executed);
        let Some(members) = &mut self.members else { return };
        members.owners.entry(owner.clone()).or_default().hears(member, executed);
        // A renewal reports the token of a hold, but does not store it.
        if let (Verb::Acquire { .. }, Answer::Held { fence }) = (verb, executed.answer) {
            *members.kept.entry(*fence).or_default() |= 1 << member;
        }
        let ends = matches!(verb, Verb::Release { whose: ReleaseScope::Own, .. }).then_some(owner);
        self.weigh(at, ends, sim, news);
        let Some(owned) = self.owners.get_mut(owner) else { return };
        if !matches!(verb, Verb::Inspect) {
            owned.process = executed.process;
            owned.processes |= 1 << executed.process;
        }
        let Some(members) = &self.members else { return };
        let rounds = members.owners[owner].granted.values().filter(|servers| members.is_majority(**servers));
        owned.grants = rounds.count() as u32;
    }

    /// Updates what a server holds.
    fn stands_at(&mut self, at: TrueTime, member: usize, view: Option<&LockView<'_>>, by: Option<&Owner>) {
        let holder = view.and_then(|view| Some((view.holder()?, view.lapses)));
        if let Some((owner, None)) = &holder {
            self.accuse(at, ENDLESS, format!("{owner} has server {member} without an end"));
        }
        let Some(server) = self.members.as_mut().map(|members| &mut members.servers[member]) else { return };
        let stands = holder.and_then(|(owner, lapses)| Some(Stand { owner, lapses: lapses? }));
        let before = std::mem::replace(&mut server.stands, stands);
        server.past.push(Past { at, by: by.cloned(), before });
    }

    /// A request does not touch other owners' holds on a server.
    fn check_spared(&mut self, at: TrueTime, member: usize, executed: &Executed<'_>) {
        let Some(server) = self.members.as_ref().map(|members| &members.servers[member]) else { return };
        let is_forced = matches!(executed.op.verb, Verb::Release { whose, .. } if whose.is_forced());
        let before = server.past.last().and_then(|past| past.before.as_ref());
        let others = before.filter(|stand| stand.owner != executed.op.owner && stand.lapses > at);
        if !is_forced && others.is_some() && server.stands.as_ref() != others {
            let (by, verb) = (&executed.op.owner, &executed.op.verb);
            let what = format!("a request of {by} changed what another has at server {member}: {verb:?}");
            self.accuse(at, UNTOUCHED, what);
        }
    }

    /// A server suffered a fault.
    fn suffer(
        &mut self,
        at: TrueTime,
        member: usize,
        trouble: Trouble,
        view: Option<&LockView<'_>>,
        sim: &Sim,
        news: &mut Vec<Owner>,
    ) {
        self.stands_at(at, member, view, None);
        if trouble != Trouble::SteppedBack {
            self.history.ends_here(at);
        }
        let Some(members) = &mut self.members else { return };
        if matches!(trouble, Trouble::StartedAnew | Trouble::Evicted) {
            members.kept.values_mut().for_each(|servers| *servers &= !(1 << member));
        }
        let server = &members.servers[member];
        let before = server.past.last().and_then(|past| past.before.clone());
        let after = server.stands.as_ref().map(|stand| stand.owner.clone());
        let loses = matches!(trouble, Trouble::StartedAnew | Trouble::SteppedAhead);
        let again = after.filter(|after| before.as_ref().is_none_or(|before| before.owner != *after));
        if let Some(votes) = again.and_then(|owner| members.owners.get_mut(&owner)) {
            votes.again |= 1 << member;
        }
        let robbed = before.filter(|stand| stand.lapses > at && loses);
        if let Some(votes) = robbed.and_then(|stand| members.owners.get_mut(&stand.owner)) {
            votes.taken |= 1 << member;
            if trouble == Trouble::SteppedAhead {
                votes.stepped |= 1 << member;
            }
        }
        self.weigh(at, None, sim, news);
    }

    /// Determines the current majority. `ends` is an owner whose own release arrived at a server.
    fn weigh(&mut self, at: TrueTime, ends: Option<&Owner>, sim: &Sim, news: &mut Vec<Owner>) {
        let Some(members) = &self.members else { return };
        let name = members.name.clone();
        let stands = members.servers.iter().filter_map(|server| server.stands.as_ref());
        let winner = stands.map(|stand| &stand.owner).find_map(|owner| {
            let lapses = members.lapses(at, owner)?;
            Some((owner.clone(), lapses))
        });
        let Some(lock) = self.locks.get_mut(&name) else { return };
        lock.edge = winner.as_ref().map_or(lock.edge, |(_, lapses)| *lapses);
        let had = lock.places.first().map(|place| place.owner.clone());
        let has = winner.as_ref().map(|(owner, _)| owner);
        if had.as_ref() != has
            && let Some(owner) = had
        {
            lock.places.clear();
            lock.changed(at);
            let how = if ends == Some(&owner) { End::Released } else { End::Forced };
            if let Some(owned) = self.owners.get_mut(&owner) {
                owned.ended = Some((at, how));
            }
        }
        if let Some((owner, lapses)) = winner {
            self.has_majority(at, &name, &owner, lapses, sim, news);
        }
    }

    /// An owner has a majority until `lapses`.
    fn has_majority(
        &mut self,
        at: TrueTime,
        name: &LockName,
        owner: &Owner,
        lapses: TrueTime,
        sim: &Sim,
        news: &mut Vec<Owner>,
    ) {
        let Some(lock) = self.locks.get_mut(name) else { return };
        let free_since = lock.free_since;
        let is_new = lock.places.is_empty();
        if is_new {
            lock.places.push(Place::of(owner, lapses));
            lock.changed(at);
        }
        lock.places[0].lapses = lapses;
        let had_one = self.owners.contains_key(owner);
        let votes = self.members.as_mut().and_then(|members| members.owners.get_mut(owner));
        if let Some(votes) = votes.filter(|_| is_new && had_one) {
            votes.is_interrupted = true;
        }
        let owned = self.owners.entry(owner.clone()).or_insert_with(|| Owned::new(at));
        let is_moved = is_new || owned.lapses != lapses;
        (owned.lapses, owned.set_at, owned.ended) = (lapses, at, None);
        if is_new {
            owned.granted_at = at;
        }
        if is_moved {
            news.push(owner.clone());
        }
        if is_new {
            self.check_prompt(at, name, free_since, sim);
            // Restarted servers are probed only now and then, and do not vote.
            if self.plan.node_faults.forget + self.plan.node_faults.rewind == 0 {
                self.check_room(at, name, owner, 1);
            }
        }
    }

    /// Whether this owner may believe in a majority that it lost because servers lost its votes.
    pub(super) fn is_robbed(&self, at: TrueTime, owner: &Owner) -> bool {
        self.members.as_ref().is_some_and(|members| members.lacks_only(at, owner, |votes| votes.taken))
    }

    /// Whether another client may be granted beside this owner because clocks stepped.
    pub(super) fn is_stepped_over(&self, at: TrueTime, owner: &Owner) -> bool {
        self.members.as_ref().is_some_and(|members| members.lacks_only(at, owner, |votes| votes.stepped))
    }

    fn votes(&self, owner: &Owner) -> Option<&Votes> {
        self.members.as_ref().and_then(|members| members.owners.get(owner))
    }

    /// Whether any server has this owner's hold again after its release.
    pub(super) fn has_again(&self, owner: &Owner) -> bool {
        self.votes(owner).is_some_and(|votes| votes.again != 0)
    }

    /// Whether any server lost this owner's hold.
    pub(super) fn was_robbed(&self, owner: &Owner) -> bool {
        self.votes(owner).is_some_and(|votes| votes.taken != 0)
    }

    /// Whether this owner lost its majority for a while and then regained it.
    pub(super) fn was_interrupted(&self, owner: &Owner) -> bool {
        self.votes(owner).is_some_and(|votes| votes.is_interrupted)
    }

    /// A guard reports that it holds: its owner must have a majority.
    pub(super) fn check_majority(&mut self, at: TrueTime, owner: &Owner) {
        let Some(members) = &self.members else { return };
        let (has, of) = (members.of(at, owner), members.servers.len());
        if !members.is_majority(has) && !self.is_robbed(at, owner) {
            let has = has.count_ones();
            self.accuse(at, EXCLUSION, format!("{owner} says that it holds, with {has} of {of} servers"));
        }
    }

    /// Whether a majority has accepted a guard's token from its owner; `None` with one server.
    pub(super) fn is_accepted(&self, owner: &Owner, token: u64) -> Option<bool> {
        let members = self.members.as_ref()?;
        let accepted = members.owners.get(owner).and_then(|votes| votes.accepted.get(&token));
        Some(accepted.is_some_and(|servers| members.is_majority(*servers)))
    }

    /// An owner was told that its lock is lost, for reasons other than its clock: it must have lacked a
    /// majority at some time since it asked. An earlier request may also have found that out, with the
    /// majority regained since.
    pub(super) fn check_not_had(&mut self, at: TrueTime, owner: &Owner, since: TrueTime) {
        let Some(owned) = self.owners.get(owner) else { return };
        if self.members.is_none() || self.was_interrupted(owner) {
            return;
        }
        if owned.granted_at <= since && owned.ended.is_none() && owned.lapses > at {
            self.accuse(
                at,
                REPORTING,
                format!("{owner} was told that it is lost, and had a majority all the while"),
            );
        }
    }

    /// Whether no server remembered an earlier token when this owner's was accepted: those that accepted both
    /// lost their ballots in between. Tokens then depend on clocks, which differ in a schedule.
    pub(super) fn is_unknown(&self, earlier: u64, owner: &Owner, token: u64) -> bool {
        let Some(members) = &self.members else { return false };
        let accepted = members.owners.get(owner).and_then(|votes| votes.accepted.get(&token));
        let kept = members.kept.get(&earlier);
        accepted.copied().unwrap_or(0) & kept.copied().unwrap_or(0) == 0
    }

    /// `try_lock` reported that the lock is busy, so a majority was not available. When nothing fails, others
    /// must have held or requested so many servers that too few were left (contenders may have split the
    /// votes, so that nobody won). When something fails, unreachable servers may have belonged to anyone, so
    /// one disputed server suffices. The same applies to schedules in which everything is brief, because
    /// other clients' requests and releases are mostly in flight.
    pub(super) fn check_busy_members(&mut self, at: TrueTime, label: &str, since: TrueTime) {
        let Some(members) = &self.members else { return };
        let (disputed, of) = (members.disputed(label, since), members.servers.len());
        let is_strict = since >= self.plan.strict_from && self.plan.brief.is_none();
        let least = if is_strict { of - members.majority() + 1 } else { 1 };
        if disputed < least {
            let what = format!("it was called busy, and others were at {disputed} of {of} servers");
            self.accuse(at, REPORTING, what);
        }
    }

    /// The first of all callers has a guard, uncontended: with clocks close together and no faults, each
    /// server was asked once.
    pub(super) fn check_one_trip(&mut self, at: TrueTime, owner: &Owner) {
        let Some(members) = &self.members else { return };
        let Some(votes) = members.owners.get(owner) else { return };
        let is_easy = self.plan.regime.is_calm() && self.plan.is_near;
        let again = votes.asked.values().any(|(_, again)| *again != 0);
        if is_easy && again && members.disputed(&owner.label(), 0) == 0 {
            let what = format!("{owner} had to ask with a second ballot, and no client was in its way");
            self.accuse(at, ONE_TRIP, what);
        }
    }
}

impl Oracle {
    /// Everything ended well some time ago: the first hold that is still on a server and was not detached,
    /// with the server's index.
    pub fn left_at_members(&self, at: TrueTime) -> Option<(usize, Owner)> {
        let model = lock(&self.model);
        let stands = model.members.iter().flat_map(|members| members.servers.iter().enumerate());
        let mut left = stands.filter_map(|(index, server)| {
            let stand = server.stands.as_ref().filter(|stand| stand.lapses > at)?;
            Some((index, stand.owner.clone()))
        });
        left.find(|(_, owner)| model.owners.get(owner).is_none_or(|owned| owned.detached == 0))
    }

    /// The same oracle, observing one of several servers.
    pub fn at(&self, member: usize) -> Self {
        Self { member: Some(member), ..self.clone() }
    }

    /// Declares that the lock of this name is on `count` servers.
    pub fn has_members(&self, name: &LockName, count: usize) {
        lock(&self.model).members = Some(Members::new(name.clone(), count));
    }

    pub(super) fn executed_at(&self, member: usize, executed: &Executed<'_>) {
        let at = self.sim.now();
        let mut model = lock(&self.model);
        model.settle(at, &executed.op.name, &self.sim);
        let mut news = Vec::new();
        model.vote(at, member, executed, &self.sim, &mut news);
        drop(model);
        news.into_iter().for_each(|owner| self.watch(owner));
    }

    /// One of several servers suffered a fault; `view` is its state now.
    pub fn shows<'a>(&self, trouble: Trouble, view: impl Fn(&LockName) -> Option<LockView<'a>>) {
        let (Some(member), at) = (self.member, self.sim.now()) else { return };
        let mut model = lock(&self.model);
        let Some(name) = model.members.as_ref().map(|members| members.name.clone()) else { return };
        model.settle(at, &name, &self.sim);
        let mut news = Vec::new();
        model.suffer(at, member, trouble, view(&name).as_ref(), &self.sim, &mut news);
        drop(model);
        news.into_iter().for_each(|owner| self.watch(owner));
    }
}
