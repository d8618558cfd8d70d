//! A lock on several servers: a client that has a majority of them has it, and is judged as if one
//! server had said so.
//!
//! A majority counts from what stands at the servers in true time, whichever client knows of it,
//! and lasts until so many of its leases are over that too few are left. What one server loses,
//! by starting again or by a step of its clock, is a *vote taken*: a guard may rightly believe in
//! it until its next renewal. It is excused for exactly that, and only if it would have its
//! majority with the votes that were taken. A client that was let in meanwhile is another matter: a
//! server that has started again does not vote, so exclusion is excused only for votes that a step
//! *ahead* of a clock has taken.

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

/// A client that is in no client's way asks each server once.
pub const ONE_TRIP: &str = "a majority is had in one trip";

impl ReferenceModel {
    /// One of several servers has run a request: writes down what that makes of the lock, and
    /// judges it.
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
        // A renewal shows the token of a hold, and keeps nothing.
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

    /// What stands at a server from now on.
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

    /// A request leaves alone what others have at a server.
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

    /// Something has become of a server.
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

    /// Who has a majority now. `ends`: whose own release has come to a server.
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

    /// An owner has a majority, until this moment.
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
            // Servers that have started again are asked now and then, and do not vote.
            if self.plan.node_faults.forget + self.plan.node_faults.rewind == 0 {
                self.check_room(at, name, owner, 1);
            }
        }
    }

    /// Whether this owner may believe in a majority that it does not have, because servers lost its
    /// votes.
    pub(super) fn is_robbed(&self, at: TrueTime, owner: &Owner) -> bool {
        self.members.as_ref().is_some_and(|members| members.lacks_only(at, owner, |votes| votes.taken))
    }

    /// Whether another client may be let in beside this owner, because clocks stepped.
    pub(super) fn is_stepped_over(&self, at: TrueTime, owner: &Owner) -> bool {
        self.members.as_ref().is_some_and(|members| members.lacks_only(at, owner, |votes| votes.stepped))
    }

    fn votes(&self, owner: &Owner) -> Option<&Votes> {
        self.members.as_ref().and_then(|members| members.owners.get(owner))
    }

    /// Whether any server has again what this owner gave back.
    pub(super) fn has_again(&self, owner: &Owner) -> bool {
        self.votes(owner).is_some_and(|votes| votes.again != 0)
    }

    /// Whether any server lost what this owner had.
    pub(super) fn was_robbed(&self, owner: &Owner) -> bool {
        self.votes(owner).is_some_and(|votes| votes.taken != 0)
    }

    /// Whether this owner had no majority for a while, and then one again.
    pub(super) fn was_interrupted(&self, owner: &Owner) -> bool {
        self.votes(owner).is_some_and(|votes| votes.is_interrupted)
    }

    /// A guard says now that it holds: then its owner has a majority.
    pub(super) fn check_majority(&mut self, at: TrueTime, owner: &Owner) {
        let Some(members) = &self.members else { return };
        let (has, of) = (members.of(at, owner), members.servers.len());
        if !members.is_majority(has) && !self.is_robbed(at, owner) {
            let has = has.count_ones();
            self.accuse(at, EXCLUSION, format!("{owner} says that it holds, with {has} of {of} servers"));
        }
    }

    /// The token of a guard is one that a majority has accepted from its owner; `None` for one
    /// server.
    pub(super) fn is_accepted(&self, owner: &Owner, token: u64) -> Option<bool> {
        let members = self.members.as_ref()?;
        let accepted = members.owners.get(owner).and_then(|votes| votes.accepted.get(&token));
        Some(accepted.is_some_and(|servers| members.is_majority(*servers)))
    }

    /// An owner was told that it has lost its lock, and not for the sake of that owner's clock:
    /// then it did not have a majority all the while since it asked. Or an earlier question had
    /// found that out, and it has one again.
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

    /// Whether no client is left who could have known of an earlier token when this owner's was
    /// accepted: those that accepted both have lost their ballots between. Then tokens rest on
    /// clocks, and those of a schedule differ.
    pub(super) fn is_unknown(&self, earlier: u64, owner: &Owner, token: u64) -> bool {
        let Some(members) = &self.members else { return false };
        let accepted = members.owners.get(owner).and_then(|votes| votes.accepted.get(&token));
        let kept = members.kept.get(&earlier);
        accepted.copied().unwrap_or(0) & kept.copied().unwrap_or(0) == 0
    }

    /// `try_lock` said that the lock is busy. A majority was not to be had: where nothing fails,
    /// others had, or wanted, so many servers that too few were left; contenders may have split the
    /// votes, so that no client got it. Where something fails, the servers that are not heard may
    /// have been any client's, and one that is disputed is enough; so it is where all is brief, as
    /// what others want, or give back, is mostly on its way.
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

    /// The first of all who asked has a guard, and no client was in its way: each server was asked
    /// once, where clocks are near each other and nothing fails.
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
    /// Everything has ended well and some time ago: whose hold still stands at a server, and at
    /// which, unless it was passed on to no client.
    pub fn left_at_members(&self, at: TrueTime) -> Option<(usize, Owner)> {
        let model = lock(&self.model);
        let stands = model.members.iter().flat_map(|members| members.servers.iter().enumerate());
        let mut left = stands.filter_map(|(index, server)| {
            let stand = server.stands.as_ref().filter(|stand| stand.lapses > at)?;
            Some((index, stand.owner.clone()))
        });
        left.find(|(_, owner)| model.owners.get(owner).is_none_or(|owned| owned.detached == 0))
    }

    /// The same judge, who looks at one of several servers.
    pub fn at(&self, member: usize) -> Self {
        Self { member: Some(member), ..self.clone() }
    }

    /// The lock of this name is on so many servers.
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

    /// Something has become of one of several servers, and this is what stands there now.
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
