//! The effect of each request on the model.

use super::*;

impl ReferenceModel {
    /// Records and judges a request. Owners whose lease was set are added to `news`.
    pub(in crate::sim) fn note(
        &mut self,
        at: TrueTime,
        executed: &Executed<'_>,
        sim: &Sim,
        news: &mut Vec<Owner>,
    ) {
        let (name, owner) = (&executed.op.name, &executed.op.owner);
        executed.passed.iter().for_each(|passed| self.pass(at, name, passed));
        match (&executed.op.verb, executed.answer) {
            (Verb::Acquire { .. } | Verb::Renew { .. }, Answer::Held { fence }) => {
                self.held(at, executed, owner, *fence, sim, news);
                if let Verb::Renew { weight: Some(weight), .. } = executed.op.verb {
                    self.check_alone(at, name, owner, weight);
                }
            }
            // It holds as before, and waits for more.
            (Verb::Renew { .. }, Answer::Growing { fence, .. }) => {
                self.held(at, executed, owner, *fence, sim, news);
            }
            (Verb::Acquire { .. }, Answer::Waiting { ticket, retry_in_ms }) => {
                self.waiting(at, executed, owner, *ticket, news);
                self.told_when(name, std::slice::from_ref(owner), *retry_in_ms);
            }
            (Verb::Refresh { owners, .. }, Answer::Places { places, retry_in_ms }) => {
                for (owner, place) in owners.iter().zip(places) {
                    match place {
                        Told::Held { fence } => self.held(at, executed, owner, *fence, sim, news),
                        Told::Waiting { ticket } => self.waiting(at, executed, owner, *ticket, news),
                        Told::Gone => self.check_gone(at, executed, owner),
                    }
                }
                self.told_when(name, owners, *retry_in_ms);
            }
            (Verb::Release { whose: ReleaseScope::Own, .. }, Answer::Released { left }) => {
                self.released(at, executed, *left);
            }
            (Verb::Release { whose: ReleaseScope::Any, .. }, Answer::Found(_)) => {
                self.force(at, name, |place| place.holds);
            }
            (Verb::Resize, Answer::Resized) => self.resized(name, executed.op.spec),
            (Verb::Acquire { .. }, Answer::Busy { .. }) => self.check_refused(at, executed),
            (
                Verb::Renew { .. } | Verb::Release { whose: ReleaseScope::Own, .. },
                Answer::Free | Answer::Busy { .. },
            ) => {
                self.check_gone(at, executed, owner);
            }
            _ => {}
        }
        if let Some(Notification::Granted { tickets }) = executed.wake {
            tickets.iter().for_each(|ticket| self.let_in(at, executed, *ticket, sim, news));
        }
        // One request may admit several owners, reported in any order.
        let mut let_in = std::mem::take(&mut self.let_in);
        let_in.sort_unstable();
        for (number, owner) in let_in.drain(..) {
            self.check_granted(at, name, &owner, number);
        }
        self.let_in = let_in;
        if let Some(lock) = self.locks.get_mut(name) {
            lock.changed(at);
            // Inspections and requests of another kind sweep nothing.
            if !matches!(
                (&executed.op.verb, executed.answer),
                (Verb::Inspect, _) | (_, Answer::Mismatch { .. })
            ) {
                self.check_head(at, name);
            }
        }
    }

    /// The server reported that an owner holds.
    pub(super) fn held(
        &mut self,
        at: TrueTime,
        executed: &Executed<'_>,
        owner: &Owner,
        token: u64,
        sim: &Sim,
        news: &mut Vec<Owner>,
    ) {
        let Some((lapses, weight)) = self.check_end(at, executed, owner) else { return };
        let name = &executed.op.name;
        let Some(lock) = self.locks.get_mut(name) else { return };
        let known = lock.places.iter().position(|place| place.owner == *owner);
        let (is_new, held) = (known.is_none(), known.is_some_and(|known| lock.places[known].holds));
        let known = known.unwrap_or_else(|| lock.add(owner, token));
        let known_since = lock.known_since;
        let place = &mut lock.places[known];
        (place.process, place.lapses, place.holds) = (executed.process, lapses, true);
        if lock.sort == LockKind::Reentrant {
            place.count_in(&executed.op.verb, executed.process);
        } else {
            place.weight = weight;
        }
        place.bind(&executed.op.verb);
        lock.edge = lapses;
        if is_new {
            self.check_made(at, executed, owner);
        }
        let token = if held {
            self.check_kept(at, name, owner, token)
        } else {
            if let Some(owned) = self.owners.get_mut(owner) {
                owned.ticket = None;
            }
            if is_new {
                self.check_prompt(at, name, known_since, sim);
            }
            self.let_in.push((token, owner.clone()));
            token
        };
        self.check_count(at, executed, owner);
        let acquired = matches!(executed.op.verb, Verb::Acquire { .. });
        let renewed = matches!(executed.op.verb, Verb::Renew { .. });
        let owned = self.owned(at, executed, owner, token, lapses);
        if owned.waits || is_new {
            owned.granted_at = at;
        }
        owned.waits = false;
        if renewed {
            owned.told_at = Some(at);
        }
        owned.grants += u32::from(acquired);
        self.trust(at, executed, owner, token, is_new);
        news.push(owner.clone());
    }

    /// The server reported that an owner waits.
    pub(super) fn waiting(
        &mut self,
        at: TrueTime,
        executed: &Executed<'_>,
        owner: &Owner,
        number: u64,
        news: &mut Vec<Owner>,
    ) {
        let Some((lapses, weight)) = self.check_end(at, executed, owner) else { return };
        let name = &executed.op.name;
        let Some(lock) = self.locks.get_mut(name) else { return };
        let known = lock.places.iter().position(|place| place.owner == *owner);
        let is_new = known.is_none();
        let place = known.unwrap_or_else(|| lock.add(owner, number));
        let place = &mut lock.places[place];
        (place.process, place.lapses, place.weight) = (executed.process, lapses, weight);
        place.bind(&executed.op.verb);
        lock.edge = lapses;
        if is_new {
            self.check_made(at, executed, owner);
            self.check_numbered(at, name, number);
        } else {
            self.check_place_kept(at, name, owner, number);
        }
        if matches!(executed.op.verb, Verb::Refresh { listens: None, wait_ms: 1.., .. }) && self.plan.passes {
            self.check_short(at, name, owner, lapses);
        }
        let owned = self.owned(at, executed, owner, number, lapses);
        (owned.waits, owned.was_called) = (true, true);
        self.trust(at, executed, owner, number, is_new);
        news.push(owner.clone());
    }

    /// The first waiter was told when to retry, if it asked and the answer had a retry time.
    pub(super) fn told_when(&mut self, name: &LockName, owners: &[Owner], retry_in_ms: Option<u64>) {
        let lock = self.locks.get_mut(name).filter(|_| retry_in_ms.is_some());
        if let Some(head) = lock.and_then(|lock| lock.places.iter_mut().find(|place| !place.holds)) {
            head.knows |= owners.contains(&head.owner);
        }
    }

    /// A client's request admitted a waiting ticket.
    pub(super) fn let_in(
        &mut self,
        at: TrueTime,
        executed: &Executed<'_>,
        number: u64,
        sim: &Sim,
        news: &mut Vec<Owner>,
    ) {
        let name = &executed.op.name;
        let Some(lock) = self.locks.get_mut(name) else { return };
        let place = lock.places.iter_mut().find(|place| place.number == number && !place.holds);
        let Some(place) = place else { return self.check_told_number(at, name, number) };
        place.holds = true;
        let owner = place.owner.clone();
        let share = executed.after.and_then(|after| after.share(&owner));
        if let Some(lapses) = share.and_then(|share| share.lapses).filter(|_| self.plan.kept > 0) {
            place.lapses = lapses;
        }
        let lapses = place.lapses;
        self.let_in.push((number, owner.clone()));
        self.check_short(at, name, &owner, lapses);
        if let Some(owned) = self.owners.get_mut(&owner) {
            (owned.waits, owned.granted_at) = (false, at);
            if self.plan.kept > 0 {
                owned.lapses = lapses;
            }
            if at >= self.plan.strict_from && sim.runs(owned.process) {
                owned.let_in_at = Some(at);
            }
        }
        news.push(owner);
    }

    /// A waiter was removed because its client could not be notified.
    fn pass(&mut self, at: TrueTime, name: &LockName, passed: &Passed) {
        self.check_passed(at, name, passed);
        let Some(lock) = self.locks.get_mut(name) else { return };
        lock.places.retain(|place| place.owner != passed.owner);
        if let Some(owned) = self.owners.get_mut(&passed.owner) {
            owned.ended = Some((at, End::Forced));
        }
    }

    fn resized(&mut self, name: &LockName, spec: LockSpec) {
        if let (Some(lock), Some(capacity)) = (self.locks.get_mut(name), spec.capacity()) {
            lock.capacity = capacity;
        }
    }

    pub(super) fn released(&mut self, at: TrueTime, executed: &Executed<'_>, left: u32) {
        let (name, owner) = (&executed.op.name, &executed.op.owner);
        let Some(lock) = self.locks.get_mut(name) else { return };
        let Some(known) = lock.places.iter().position(|place| place.owner == *owner) else { return };
        if let (LockKind::Reentrant, Verb::Release { hold, .. }) = (lock.sort, &executed.op.verb) {
            let place = &mut lock.places[known];
            place.live.retain(|(live, _)| live != hold);
            let count = place.count();
            if let Some(owned) = self.owners.get_mut(owner) {
                owned.forgets(*hold);
            }
            self.check_left(at, name, owner, count, left);
            if left > 0 {
                return self.check_count(at, executed, owner);
            }
        }
        if let Some(lock) = self.locks.get_mut(name) {
            lock.places.remove(known);
        }
        if let Some(owned) = self.owners.get_mut(owner) {
            owned.ended = Some((at, End::Released));
        }
    }
}
