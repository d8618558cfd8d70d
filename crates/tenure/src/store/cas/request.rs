//! One request: read, run the machine, compare and swap.

use std::sync::Arc;
use std::time::Duration;

use super::Sent;
use super::backend::{Change, Committed, Handle, Stored};
use super::client::{Client, InFlight, not_sent};
use super::leases::{Hold, Key, Lease, life};
use super::view::{Binding, View};
use crate::planted::{Bug, planted};
use crate::protocol::lease::millis;
use crate::protocol::{self, Answer, Fence, Liveness, LockSpec, Op, Place, ReleaseScope, Verb};
use crate::store::Failure;

/// So often a request is begun again because something else was written meanwhile.
const ATTEMPTS: u32 = 100;
/// A request looks at the handles of so many others: of those that hold, and of the first in line.
const LOOKED_AT: usize = 32;

/// A hold is not taken out for so long after its release was asked for.
const RELEASE_MS: u64 = 2_000;

/// What a request binds a hold or place to.
#[derive(Clone, Copy)]
struct Bind {
    handle: Handle,
    ttl: Duration,
    is_detached: bool,
}

impl Bind {
    fn to(lease: &Lease, ttl: Duration) -> Self {
        Self { handle: lease.handle, ttl, is_detached: false }
    }

    fn binding(self) -> Binding {
        let Self { handle, ttl, is_detached } = self;
        Binding { handle, ttl_ms: millis(ttl), is_detached }
    }
}

impl Client {
    /// Carries out one request.
    pub(super) async fn call(self: &Arc<Self>, op: &Op, sent: &Sent) -> Result<Answer, Failure> {
        let is_ballot = |fence: Fence| matches!(fence, Fence::Ballot(_));
        let has_ballot = match op.verb {
            Verb::Acquire { fence, .. } | Verb::Release { fence, .. } => is_ballot(fence),
            _ => false,
        };
        if has_ballot {
            return Err(Failure::impossible("this server can be no member of a quorum"));
        }
        if let Some(answer) = self.renewed_here(op).await? {
            return Ok(answer);
        }
        self.touch(op);
        if matches!(op.verb, Verb::Refresh { .. } | Verb::Inspect) {
            return self.run(op, sent, &mut None).await;
        }
        let mine = self.owner_turn(&op.name, &op.owner);
        let turn = self.turn(&op.name);
        let answer = {
            let _mine = mine.lock().await;
            match (&op.verb, turn.try_lock()) {
                (_, Ok(mut known)) => self.run(op, sent, &mut known).await,
                (Verb::Acquire { .. }, Err(_)) => self.run(op, sent, &mut *turn.lock().await).await,
                // A hold must not end because others come.
                (_, Err(_)) => self.run(op, sent, &mut None).await,
            }
        };
        self.end_turn(&op.name, turn);
        self.end_owner_turn(&op.name, &op.owner, mine);
        answer
    }

    /// What has not lapsed when a request about it is sent does not lapse while that is under way:
    /// no other client takes it out as long as its handle lives.
    fn touch(&self, op: &Op) {
        let now_ms = self.now().ms;
        let mut table = self.table.lock();
        let mut until = |key: &Key, end_ms: u64| {
            if let Some(hold) = table.hold(&op.name, key).filter(|hold| hold.end_ms >= now_ms) {
                hold.end_ms = hold.end_ms.max(now_ms.saturating_add(end_ms));
            }
        };
        match &op.verb {
            Verb::Renew { ttl_ms, .. } => until(&key(op, false), *ttl_ms),
            Verb::Release { whose: ReleaseScope::Own, .. } => until(&key(op, false), RELEASE_MS),
            Verb::Refresh { owners, wait_ms, .. } => {
                owners.iter().for_each(|owner| until(&(owner.clone(), 0), *wait_ms));
            }
            _ => {}
        }
    }

    /// Renews a hold by keeping its handle, if no client can have ended it meanwhile.
    async fn renewed_here(self: &Arc<Self>, op: &Op) -> Result<Option<Answer>, Failure> {
        let Verb::Renew { ttl_ms, hold, bind: None, weight: None } = op.verb else { return Ok(None) };
        let key = (op.owner.clone(), table_hold(op, hold));
        let known = self.table.lock().hold(&op.name, &key).cloned();
        let Some(Hold { handle, token: Some(_), end_ms, .. }) = known else { return Ok(None) };
        let life_of = self.table.lock().lease_of(handle).map(|lease| lease.life);
        let ttl = Duration::from_millis(ttl_ms);
        if end_ms < self.now().ms || life_of.is_none_or(|known| known < life(ttl)) {
            return Ok(None);
        }
        let Some(class) = life_of else { return Ok(None) };
        let lease = self.kept(class, ttl).await?;
        let now_ms = self.now().ms;
        let mut table = self.table.lock();
        let Some(known) = table.hold(&op.name, &key) else { return Ok(None) };
        let Some(fence) = known.token else { return Ok(None) };
        let stands = known.handle == lease.handle && known.verified == lease.marker;
        if !stands || known.end_ms < now_ms {
            return Ok(None);
        }
        known.end_ms = known.end_ms.max(now_ms.saturating_add(ttl_ms));
        Ok(Some(Answer::Held { fence }))
    }

    async fn run(
        self: &Arc<Self>,
        op: &Op,
        sent: &Sent,
        known: &mut Option<Stored>,
    ) -> Result<Answer, Failure> {
        self.fence().await?;
        let looks = matches!(op.verb, Verb::Inspect | Verb::Refresh { .. } | Verb::Renew { .. });
        let (mut seen, mut is_fresh) = (known.clone(), false);
        let bind = self.bind(op).await?;
        // The version of the guard's marker before the read: see `Hold::verified`.
        let mut proven = None;
        for attempt in 0..ATTEMPTS {
            // Who comes makes way for who goes: a queue must not hold up its own releases.
            let comes = matches!(op.verb, Verb::Acquire { .. });
            if attempt > if comes { 0 } else { 10 } {
                let most = u64::from(attempt.min(10)) * 2_000_000;
                let pause = Duration::from_nanos(self.runtime.random() % most);
                self.runtime.sleep_until(self.runtime.now() + pause).await;
            }
            let guard = match bind.filter(|bind| !bind.is_detached) {
                Some(bind) => Some(self.lease_of(bind.handle).ok_or_else(gone)?),
                None => self.known_lease(),
            };
            if !is_fresh && (looks || attempt > 0) {
                seen = self.backend.read(&op.name).await.map_err(not_sent)?;
                (is_fresh, proven) = (true, guard.map(|guard| guard.marker));
            }
            let base = seen.as_ref().map_or(0, |stored| stored.stamp.base);
            let Some(view) = View::read(seen.as_ref()) else {
                let what = "its key has something other than a lock of this version of tenure";
                return Err(Failure::Refused(Failure::cause(what)));
            };
            let most = if matches!(op.verb, Verb::Inspect) { usize::MAX } else { LOOKED_AT };
            self.look_at(&view, most).await?;
            let now = self.now();
            let ends = self.ends(&op.name, &view, now);
            let (mut state, mut last) = (view.state(&ends), view.last);
            let (answer, _) = protocol::apply(&mut state, &mut last, now, op);
            let bound = bind.and_then(|bind| Some((number(op, &answer)?, bind.binding())));
            let after = view.after(state, last, bound);
            let text = after.text(base);
            let is_same = text.as_deref() == seen.as_ref().map(|stored| stored.text.as_str());
            if is_same || matches!(op.verb, Verb::Inspect) {
                if !is_fresh {
                    continue;
                }
                self.settle(op, &answer, bind, proven);
                known.clone_from(&seen);
                return Ok(answer);
            }
            if text.as_ref().is_some_and(|text| text.len() > self.backend.limit())
                && matches!(op.verb, Verb::Acquire { .. })
            {
                return Err(Failure::Refused(Failure::cause(format!(
                    "{} hold this lock or wait for it, and its value would have more than the {} bytes that the server takes: let fewer wait, or use several locks",
                    after.bindings.len(),
                    self.backend.limit()
                ))));
            }
            let guard = match guard {
                Some(guard) => guard,
                None => self.any_lease().await?,
            };
            // What may be granted is entered first: if the answer is lost, it is taken out in time.
            let key = bind.map(|bind| self::key(op, bind.is_detached));
            let former = key.as_ref().map(|key| self.table.lock().hold(&op.name, key).cloned());
            self.enter(op, &answer, bind);
            let change = Change {
                name: op.name.clone(),
                seen: seen.as_ref().map(|stored| stored.stamp),
                guard: (guard.handle, guard.marker),
                text: text.clone(),
                victims: victims(&view, &after, op, |number| ends.contains_key(&number)),
            };
            let in_flight = InFlight::new(self, sent);
            match self.backend.commit(change).await {
                Ok(Committed::Done(stamp)) => {
                    in_flight.known();
                    let added = if seen.is_none() { stamp.base } else { 0 };
                    let answer = counted(answer, added);
                    self.settle(op, &answer, bind, Some(guard.marker));
                    self.close_left(&view, &after);
                    *known = text.map(|text| Stored { text, stamp });
                    return Ok(answer);
                }
                Ok(Committed::Conflict { stored, marker }) => {
                    in_flight.known();
                    if let (Some(key), Some(former)) = (key, former) {
                        self.restore(op, &key, former);
                    }
                    if planted(Bug::CasUncompared) {
                        self.settle(op, &answer, bind, marker);
                        return Ok(answer);
                    }
                    if planted(Bug::CasConflictIsBusy) {
                        return Ok(Answer::Busy { holder: String::new(), left_ms: Some(1) });
                    }
                    (seen, is_fresh, proven) = (stored, true, marker);
                    known.clone_from(&seen);
                    match marker {
                        Some(marker) => {
                            if let Some(lease) = self.table.lock().lease_of(guard.handle) {
                                lease.marker = marker;
                            }
                        }
                        None => self.lost(guard.handle),
                    }
                }
                Err(failure @ Failure::Unknown(_)) => return Err(failure),
                Err(failure) => {
                    in_flight.known();
                    return Err(failure);
                }
            }
        }
        let busy = format!("{ATTEMPTS} writes of others came first");
        Err(Failure::NotSent(Failure::cause(busy)))
    }

    fn lease_of(&self, handle: Handle) -> Option<Lease> {
        self.table.lock().lease_of(handle).copied()
    }

    /// Any handle that is open, for a write that binds nothing to it.
    fn known_lease(&self) -> Option<Lease> {
        self.table.lock().leases.values().next_back().copied()
    }

    /// What the hold or place of this request is to be bound to, kept for long enough.
    async fn bind(self: &Arc<Self>, op: &Op) -> Result<Option<Bind>, Failure> {
        match op.verb {
            Verb::Acquire { ttl_ms, wait_ms, bind, .. } => {
                let need = Duration::from_millis(ttl_ms.max(wait_ms.unwrap_or(0)));
                self.bind_to(bind, Duration::from_millis(ttl_ms), need).await.map(Some)
            }
            Verb::Renew { ttl_ms, bind: Some(bind), .. } => {
                // No request shortens a lease: a handle that it is bound to anew serves what is
                // left.
                let stored = self.backend.read(&op.name).await.map_err(not_sent)?;
                let view = View::read(stored.as_ref()).unwrap_or_default();
                let now = self.now();
                let ends = self.ends(&op.name, &view, now);
                let own = view.entries().into_iter().filter(|(_, owner, _)| *owner == op.owner);
                let left_ms =
                    own.filter_map(|(number, _, _)| ends.get(&number)).map(|end| end - now.ms).max();
                let ttl = Duration::from_millis(left_ms.unwrap_or(0).max(ttl_ms));
                self.bind_to(bind, ttl, ttl).await.map(Some)
            }
            Verb::Renew { ttl_ms, hold, .. } => {
                let ttl = Duration::from_millis(ttl_ms);
                let key = (op.owner.clone(), table_hold(op, hold));
                let handle = self.table.lock().hold(&op.name, &key).map(|hold| hold.handle);
                let Some(handle) = handle else { return Ok(None) };
                let Some(known) = self.lease_of(handle) else { return Ok(None) };
                let lease = match known.life >= life(ttl) {
                    true => self.kept(known.life, ttl).await?,
                    false => self.lease(ttl, ttl, None).await?,
                };
                Ok(Some(Bind::to(&lease, ttl)))
            }
            Verb::Refresh { ref owners, wait_ms, .. } => {
                let wait = Duration::from_millis(wait_ms);
                let lives: Vec<Duration> = {
                    let mut table = self.table.lock();
                    let mut lives = Vec::new();
                    for owner in owners.iter() {
                        let Some(hold) = table.hold(&op.name, &(owner.clone(), 0)).cloned() else { continue };
                        if let Some(lease) = table.lease_of(hold.handle)
                            && !lives.contains(&lease.life)
                        {
                            lives.push(lease.life);
                        }
                    }
                    lives
                };
                for life in lives {
                    self.kept(life, wait).await?;
                }
                Ok(None)
            }
            Verb::Release { .. } | Verb::Resize | Verb::Inspect => Ok(None),
        }
    }

    async fn bind_to(self: &Arc<Self>, to: Liveness, ttl: Duration, need: Duration) -> Result<Bind, Failure> {
        match to {
            Liveness::Process | Liveness::Work => Ok(Bind::to(&self.lease(ttl, need, None).await?, ttl)),
            Liveness::Lease => {
                let (handle, _) = self.backend.open(life(ttl), false).await.map_err(not_sent)?;
                Ok(Bind { handle, ttl, is_detached: true })
            }
        }
    }

    /// The handle of this life, kept lately: so a renewal reads its marker.
    async fn kept(&self, class: Duration, need: Duration) -> Result<Lease, Failure> {
        self.lease_of_life(class, need, Some(need / 6)).await
    }

    /// Notes what this request may have been granted, or told to keep.
    fn enter(self: &Arc<Self>, op: &Op, answer: &Answer, bind: Option<Bind>) {
        let now_ms = self.now().ms;
        let mut table = self.table.lock();
        match (&op.verb, plain(answer)) {
            (
                Verb::Acquire { ttl_ms, hold, wait_ms, .. },
                answer @ (Answer::Held { .. } | Answer::Waiting { .. }),
            ) => {
                let Some(bind) = bind else { return };
                let is_held = matches!(answer, Answer::Held { .. });
                let lasts = if is_held { *ttl_ms } else { wait_ms.unwrap_or(*ttl_ms) };
                let key = (op.owner.clone(), bound_hold(op, *hold, bind.is_detached));
                enter(&mut table, op, key, bind.handle, now_ms.saturating_add(lasts));
            }
            (Verb::Renew { ttl_ms, hold, .. }, Answer::Held { .. } | Answer::Growing { .. }) => {
                let Some(bind) = bind else { return };
                let key = (op.owner.clone(), bound_hold(op, *hold, bind.is_detached));
                // What is bound to something else keeps what is left of its lease.
                let lasts = if matches!(op.verb, Verb::Renew { bind: Some(_), .. }) {
                    millis(bind.ttl)
                } else {
                    *ttl_ms
                };
                enter(&mut table, op, key, bind.handle, now_ms.saturating_add(lasts));
            }
            (Verb::Refresh { owners, wait_ms, .. }, Answer::Places { places, .. }) => {
                for (owner, place) in owners.iter().zip(places) {
                    let Some(hold) = table.hold(&op.name, &(owner.clone(), 0)) else { continue };
                    if *place != Place::Gone {
                        hold.end_ms = hold.end_ms.max(now_ms.saturating_add(*wait_ms));
                    }
                }
            }
            _ => return,
        }
        drop(table);
        self.sweep();
    }

    /// Undoes what was noted of a request that was not carried out.
    fn restore(&self, op: &Op, key: &Key, former: Option<Hold>) {
        let mut table = self.table.lock();
        match former {
            Some(former) => {
                if let Some(hold) = table.hold(&op.name, key) {
                    (hold.handle, hold.end_ms) = (former.handle, former.end_ms);
                }
            }
            None => table.forget(&op.name, key),
        }
    }

    /// Notes what the answer says about this client's holds.
    fn settle(self: &Arc<Self>, op: &Op, answer: &Answer, bind: Option<Bind>, marker: Option<u64>) {
        self.enter(op, answer, bind);
        let mut table = self.table.lock();
        let (hold, is_bound) = match op.verb {
            Verb::Acquire { hold, .. } => (hold, true),
            Verb::Renew { hold, .. } => (hold, bind.is_some()),
            Verb::Release { hold, whose: ReleaseScope::Own, .. } => (hold, true),
            _ => return,
        };
        let is_detached = bind.is_some_and(|bind| bind.is_detached);
        let key: Key = (op.owner.clone(), bound_hold(op, hold, is_detached));
        match plain(answer) {
            Answer::Held { fence } | Answer::Growing { fence, .. } if is_bound => {
                if let Some(hold) = table.hold(&op.name, &key) {
                    hold.token = Some(*fence);
                    hold.verified = marker.unwrap_or(0);
                }
                // A hold that was detached, or is resumed, has another key from now on.
                if op.rule == LockSpec::Reentrant
                    && let Verb::Renew { bind: Some(_), hold, .. } = op.verb
                {
                    let other = if is_detached { hold } else { 0 };
                    table.forget(&op.name, &(op.owner.clone(), other));
                }
            }
            Answer::Held { .. } | Answer::Growing { .. } | Answer::Waiting { .. } => {}
            _ => table.forget(&op.name, &key),
        }
    }

    /// Ends the handles of detached holds that have none any more.
    fn close_left(self: &Arc<Self>, before: &View, after: &View) {
        for binding in before.bindings.values().filter(|binding| binding.is_detached) {
            if !after.bindings.values().any(|left| left.handle == binding.handle) {
                self.close(binding.handle);
            }
        }
    }
}

/// The handle of this client was lost while a request was under way.
fn gone() -> Failure {
    Failure::NotSent(Failure::cause(
        "this client's handle is gone: the server did not hear of it for too long",
    ))
}

fn enter(table: &mut super::leases::Table, op: &Op, key: Key, handle: Handle, end_ms: u64) {
    let holds = table.holds.entry(op.name.clone()).or_default();
    let fresh = Hold { rule: op.rule, handle, end_ms, token: None, verified: 0, is_ending: false };
    let hold = holds.entry(key).or_insert(fresh);
    hold.handle = handle;
    hold.end_ms = hold.end_ms.max(end_ms);
}

/// The hold by which the table knows it: only an owner of a reentrant mutex has several.
fn table_hold(op: &Op, hold: u64) -> u64 {
    if op.rule == LockSpec::Reentrant { hold } else { 0 }
}

/// The same once it is bound: a detached hold has lost its number.
fn bound_hold(op: &Op, hold: u64, is_detached: bool) -> u64 {
    if is_detached { 0 } else { table_hold(op, hold) }
}

/// By what the table knows the hold or place of this request.
fn key(op: &Op, is_detached: bool) -> Key {
    let hold = match op.verb {
        Verb::Acquire { hold, .. } | Verb::Renew { hold, .. } | Verb::Release { hold, .. } => hold,
        Verb::Refresh { .. } | Verb::Resize | Verb::Inspect => 0,
    };
    (op.owner.clone(), bound_hold(op, hold, is_detached))
}

/// The number of the hold or place that this answer is about.
fn number(op: &Op, answer: &Answer) -> Option<u64> {
    let (hold, detaches) = match op.verb {
        Verb::Acquire { hold, bind, .. } => (hold, bind == Liveness::Lease),
        Verb::Renew { hold, bind, .. } => (hold, bind == Some(Liveness::Lease)),
        _ => return None,
    };
    match *plain(answer) {
        Answer::Held { .. } if op.rule == LockSpec::Reentrant => Some(bound_hold(op, hold, detaches)),
        Answer::Held { fence: number }
        | Answer::Growing { fence: number, .. }
        | Answer::Waiting { ticket: number, .. } => Some(number),
        _ => None,
    }
}

fn plain(answer: &Answer) -> &Answer {
    if let Answer::More(answer) = answer { answer } else { answer }
}

/// The answer with its numbers counted on from the creation of the key.
fn counted(answer: Answer, added: u64) -> Answer {
    match answer {
        Answer::Held { fence } => Answer::Held { fence: fence + added },
        Answer::Waiting { ticket, retry_in_ms } => Answer::Waiting { ticket: ticket + added, retry_in_ms },
        Answer::More(answer) => counted(*answer, added).and_more(),
        answer => answer,
    }
}

/// The handles of living holds of others that a request ends.
fn victims(before: &View, after: &View, op: &Op, lives: impl Fn(u64) -> bool) -> Vec<Handle> {
    let left: Vec<u64> = after.entries().into_iter().map(|(number, _, _)| number).collect();
    let ended = before.entries().into_iter().filter(|(number, owner, _)| {
        lives(*number) && *owner != op.owner && left.binary_search(number).is_err()
    });
    let mut handles: Vec<Handle> = ended
        .filter_map(|(number, _, _)| before.bindings.get(&number))
        .map(|binding| binding.handle)
        .collect();
    handles.sort_unstable();
    handles.dedup();
    handles
}
