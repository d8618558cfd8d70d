//! Requests about one lock: read, run the machine, compare-and-swap.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::WriteState;
use super::backend::{Committed, Handle, Stored, Swap, ValueChange};
use super::bind::BatchMember;
use super::client::{CasClient, WriteInFlight, abandoned, not_sent, renewal_patience};
use super::leases::{About, ClientHold, KeptHandle, life, table_hold, usable};
use super::notes::number;
use super::parts::{Sizes, Written};
use super::records::RecordPart;
use super::snapshot::LockSnapshot;
use super::turns::Known;
use crate::name::{LockName, USE};
use crate::owner::Owner;
use crate::planted::{Bug, planted};
use crate::protocol::{self, Answer, Data, Fence, Liveness, LockSpec, Op, Place, ReleaseScope, Verb};
use crate::store::Failure;
use crate::store::observe::{self, Notes};

/// Maximum attempts of a request after write conflicts.
const ATTEMPTS: u32 = 100;
/// Maximum handles of other clients checked per request: those of holders and of the first waiters.
const LOOKED_AT: usize = 32;
/// Maximum parts of a queue changed by one write: etcd accepts at most 128 operations per transaction. Only a
/// very long queue of dead places needs more.
const PARTS: usize = 64;
/// Maximum holders notified by the write that ends their holds by force. The others are notified after it,
/// and their renewals succeed until then.
const VICTIMS: usize = 48;
/// An inspection reads parts of a queue until it has this many places.
const LISTED: u64 = 1_000;

impl CasClient {
    /// Carries out one request.
    pub(super) async fn call(self: &Arc<Self>, op: &Op, sent: &WriteState) -> Result<Answer, Failure> {
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
        if let Some(answer) = self.refreshed_here(op).await? {
            return Ok(answer);
        }
        self.touch(op);
        self.call_about(op, sent, About::Request, None).await
    }

    /// Like [`call`](Self::call), for a request about a place that it does not identify itself, or about the
    /// record beside the lock.
    pub(super) async fn call_about(
        self: &Arc<Self>,
        op: &Op,
        sent: &WriteState,
        about: About,
        beside: Option<RecordPart<'_>>,
    ) -> Result<Answer, Failure> {
        if matches!(op.verb, Verb::Refresh { .. } | Verb::Inspect) {
            return self.run((op, beside), sent, about, &mut Known::default()).await;
        }
        let mine = self.owner_turn(&op.name, &op.owner);
        let turn = self.turn(&op.name);
        let patience = match op.verb {
            Verb::Renew { ttl_ms, bind: None, weight: None, .. } => {
                Some(renewal_patience(Duration::from_millis(ttl_ms)))
            }
            _ => None,
        };
        let _mine = self.turn_within(&mine, patience).await;
        match (&op.verb, turn.try_lock()) {
            (_, Ok(mut known)) => self.run((op, beside), sent, about, &mut known).await,
            // Concurrent acquisitions are batched into one write.
            (Verb::Acquire { .. }, Err(_)) => self.together(op, sent).await,
            // Renewals and releases do not wait for the batch, so that a hold does not expire because of
            // newcomers.
            (_, Err(_)) => self.run((op, beside), sent, about, &mut Known::default()).await,
        }
    }

    /// Renews a hold by keeping its handle alive, if no client can have ended the hold meanwhile.
    async fn renewed_here(self: &Arc<Self>, op: &Op) -> Result<Option<Answer>, Failure> {
        let Verb::Renew { ttl_ms, hold, bind: None, weight: None } = op.verb else { return Ok(None) };
        let key = (op.owner.clone(), table_hold(op, hold));
        let known = self.table.lock().hold(&op.name, &key).cloned();
        let Some(ClientHold { handle, token: Some(_), end_ms, .. }) = known else { return Ok(None) };
        let life_of = self.table.lock().lease_of(handle).map(|lease| lease.life);
        let ttl = Duration::from_millis(ttl_ms);
        let is_short = |known| known < life(ttl) && !planted(Bug::CasShortLeaseUnderHold);
        if end_ms < self.now().ms || life_of.is_none_or(is_short) {
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
        drop(table);
        self.close_idle();
        let answer = Answer::Held { fence };
        observe::unwritten(op, &answer);
        Ok(Some(answer))
    }

    /// Refreshes places without reading the lock, as long as a watch reports each change that concerns them:
    /// their handle is kept alive, or lives by itself.
    async fn refreshed_here(self: &Arc<Self>, op: &Op) -> Result<Option<Answer>, Failure> {
        let Verb::Refresh { owners, wait_ms, .. } = &op.verb else { return Ok(None) };
        let wait = Duration::from_millis(*wait_ms);
        let waiting = || -> Option<Vec<(u64, KeptHandle)>> {
            let (mut table, now, now_ms) = (self.table.lock(), self.runtime.now(), self.now().ms);
            owners.iter().map(|owner| table.seen_waiting(&op.name, owner, now, now_ms)).collect()
        };
        let Some(places) = waiting() else { return Ok(None) };
        let mut lives: Vec<Duration> = places.iter().map(|(_, lease)| lease.life).collect();
        lives.dedup();
        if wait.is_zero() || lives.iter().any(|life| usable(*life) < wait) {
            return Ok(None);
        }
        if !self.backend.keeps_handles() && !planted(Bug::CasPlaceUnproven) {
            for life in lives {
                self.lease_of_life(life, wait, None).await?;
            }
        }
        self.touch(op);
        let Some(places) = waiting() else { return Ok(None) };
        self.close_idle();
        let places = places.into_iter().map(|(ticket, _)| Place::Waiting { ticket }).collect();
        Ok(Some(Answer::Places { places, retry_in_ms: None }))
    }

    async fn run(
        self: &Arc<Self>,
        (op, beside): (&Op, Option<RecordPart<'_>>),
        sent: &WriteState,
        about: About,
        known: &mut Known,
    ) -> Result<Answer, Failure> {
        let patience = match op.verb {
            Verb::Renew { ttl_ms, .. } => Some(renewal_patience(Duration::from_millis(ttl_ms))),
            _ => None,
        };
        self.write_barrier(patience).await?;
        let bind = self.bind(op).await?;
        let answers = self.carry_out(&[BatchMember { op, sent, bind, about, beside }], known).await?;
        answers.into_iter().next().flatten().ok_or_else(abandoned)
    }

    /// Carries out requests about one lock with one write. Requests abandoned meanwhile get no answer.
    pub(super) async fn carry_out(
        self: &Arc<Self>,
        members: &[BatchMember<'_>],
        known: &mut Known,
    ) -> Result<Vec<Option<Answer>>, Failure> {
        let Some(BatchMember { op: first, bind, .. }) = members.first() else { return Ok(Vec::new()) };
        let name = &first.name;
        let looks = matches!(first.verb, Verb::Inspect | Verb::Refresh { .. } | Verb::Renew { .. });
        let comes = matches!(first.verb, Verb::Acquire { .. });
        let (begun, mut place) = (self.runtime.now(), None);
        let (mut seen, mut is_fresh) = (known.stored.clone(), false);
        // The version of the guard's marker before the read: see `ClientHold::verified`.
        let mut proven = None;
        // An answer that nobody wrote did not stand. What confirms it is a write, even of the same text.
        let mut must_write = false;
        for attempt in 0..ATTEMPTS {
            // Acquires back off so that releases get through.
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
                seen = self.backend.read(name).await.map_err(not_sent)?;
                (is_fresh, proven) = (true, guard.map(|guard| guard.marker));
            }
            let MachineResult { snapshot, after, written, record, answers, living, notes, is_cleared } =
                match self.tried(members, &seen, known, &mut place).await? {
                    Some(tried) => tried,
                    // The lock has changed meanwhile.
                    None => {
                        is_fresh = false;
                        continue;
                    }
                };
            let asked = || {
                let answered = members.iter().zip(&answers);
                answered.filter_map(|(of, said)| Some((of, said.as_ref()?, of.bound(said.as_ref()?, place))))
            };
            let is_kept = written.parts.is_empty()
                && written.text.as_deref() == seen.as_ref().map(|stored| stored.text.as_str());
            let is_same = is_kept && record == ValueChange::Keep;
            if is_same && !must_write || matches!(first.verb, Verb::Inspect) {
                if !is_fresh {
                    continue;
                }
                let stand = asked().fold(true, |stand, (of, answer, bind)| {
                    self.settle(of.op, answer, bind, (proven, begun)) && stand
                });
                if !stand {
                    (is_fresh, must_write) = (false, !planted(Bug::CasLapsedUnwritten));
                    continue;
                }
                notes.unwritten();
                known.stored.clone_from(&seen);
                return Ok(answers);
            }
            let limit = self.backend.limit();
            if written.text.as_ref().is_some_and(|text| text.len() > limit) && comes {
                return Err(Failure::Refused(Failure::cause(format!(
                    "{} hold this lock, and its value would exceed the {limit} bytes that the server \
                     accepts: allow fewer holders, or use several locks",
                    after.bindings.len(),
                ))));
            }
            let guard = match guard {
                Some(guard) => guard,
                None => self.any_lease().await?,
            };
            let sents = asked().map(|(of, ..)| of.sent.clone()).collect();
            let Some(in_flight) = WriteInFlight::new(self, sents) else { continue };
            // Record possible grants before sending: if the answer is lost, they are removed in time.
            let former: Vec<_> =
                asked().map(|(of, answer, bind)| self.note_request(of.op, answer, bind)).collect();
            // Another task may have closed it as idle before this request was recorded.
            if place.is_some_and(|place| self.lease_of(place).is_none()) {
                in_flight.known();
                asked().zip(former).for_each(|((of, ..), former)| self.undo_note(of.op, former));
                (place, is_fresh) = (None, false);
                continue;
            }
            let owners: Vec<_> = asked().map(|(of, ..)| &of.op.owner).collect();
            let mut victims = victims(&snapshot, &after, &living, &owners);
            let untold = victims.split_off(VICTIMS.min(victims.len()));
            let moved_from = moved_from(&first.verb, &snapshot, &after, &living);
            let reads_record =
                name.as_str().starts_with(USE) && asked().any(|(of, answer, _)| is_grant(of.op, answer));
            let change = Swap {
                name: name.clone(),
                seen: seen.as_ref().map(|stored| stored.stamp),
                guard: (guard.handle, guard.marker),
                lock: if is_kept && !must_write {
                    ValueChange::Keep
                } else {
                    ValueChange::to(written.text.clone())
                },
                record,
                reads_record,
                parts: written.parts.clone(),
                victims,
                moved_from: moved_from.clone(),
                notes,
            };
            match self.backend.commit(change).await {
                Ok(Committed::Done { stamp, record }) => {
                    self.tell_ended(untold).await;
                    in_flight.known();
                    let added = if seen.is_none() { stamp.base } else { 0 };
                    let answers: Vec<_> = answers
                        .into_iter()
                        .map(|answer| answer.map(|answer| counted(answer, added)))
                        .collect();
                    for (of, answer) in members.iter().zip(&answers) {
                        if let Some(answer) = answer {
                            let bind = of.bound(answer, place);
                            self.settle(of.op, answer, bind, (Some(guard.marker), begun));
                            if is_grant(of.op, answer)
                                && let Some(hold) = self.table.lock().hold(name, &(of.op.owner.clone(), 0))
                            {
                                hold.record.clone_from(&record);
                            }
                        }
                    }
                    self.close_left(&snapshot, &after);
                    known.wrote(written, stamp);
                    if is_cleared {
                        is_fresh = false;
                        continue;
                    }
                    return Ok(answers);
                }
                Ok(Committed::Conflict { stored, marker }) => {
                    in_flight.known();
                    for ((of, ..), former) in asked().zip(former) {
                        self.undo_note(of.op, former);
                    }
                    if planted(Bug::CasUncompared) {
                        asked().for_each(|(of, answer, bind)| {
                            _ = self.settle(of.op, answer, bind, (marker, begun))
                        });
                        return Ok(answers);
                    }
                    if planted(Bug::CasConflictIsBusy) {
                        let busy = Answer::Busy { holder: String::new(), left_ms: Some(1) };
                        return Ok(vec![Some(busy); members.len()]);
                    }
                    let stamp = |stored: &Option<Stored>| stored.as_ref().map(|stored| stored.stamp);
                    if stamp(&stored) == stamp(&seen) && marker == Some(guard.marker) {
                        self.find_lost(moved_from).await?;
                    }
                    (seen, is_fresh, proven) = (stored, true, marker);
                    known.found(&seen);
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
                    asked().zip(former).for_each(|((of, ..), former)| self.undo_note(of.op, former));
                    return Err(failure);
                }
            }
        }
        let busy = format!("{ATTEMPTS} writes of other clients came first");
        Err(Failure::NotSent(Failure::cause(busy)))
    }

    /// Looks for lost handles among these.
    async fn find_lost(&self, handles: Vec<Handle>) -> Result<(), Failure> {
        if handles.is_empty() {
            return Ok(());
        }
        let living = self.backend.living(handles.clone()).await.map_err(not_sent)?;
        let lost = handles.into_iter().zip(living).filter(|(_, lives)| !lives);
        lost.for_each(|(handle, _)| self.lost(handle));
        Ok(())
    }

    /// Runs the machine on the stored value. `None` if the value has changed meanwhile.
    async fn tried(
        &self,
        members: &[BatchMember<'_>],
        seen: &Option<Stored>,
        known: &Known,
        place: &mut Option<Handle>,
    ) -> Result<Option<MachineResult>, Failure> {
        let Some(BatchMember { op: Op { name, verb, .. }, .. }) = members.first() else { return Ok(None) };
        let stamp = seen.as_ref().map(|stored| stored.stamp).unwrap_or_default();
        let base = stamp.base;
        let Some(mut snapshot) = LockSnapshot::read(seen.as_ref()) else {
            let what = "its key holds something other than a lock of this version of tenure";
            return Err(Failure::Refused(Failure::cause(what)));
        };
        let most = if matches!(verb, Verb::Inspect) { usize::MAX } else { LOOKED_AT };
        loop {
            self.look_at(name, &snapshot, most).await?;
            let now = self.now();
            let living = self.ends(name, &snapshot, now);
            let mut lacks: Vec<usize> =
                members.iter().flat_map(|of| self.lacks(&snapshot, of, &living)).collect();
            let mut tried = None;
            if lacks.is_empty() {
                let (mut state, mut last) = (snapshot.state(&living), snapshot.last);
                let (mut bound, mut notes) = (BTreeMap::new(), Notes::default());
                let mut record = ValueChange::Keep;
                let answers: Vec<Option<Answer>> = members
                    .iter()
                    .map(|of @ BatchMember { op, sent, beside, .. }| {
                        let here = !sent.is_abandoned();
                        if let Some(beside) = beside {
                            let (answer, change) = here.then(|| beside.apply(&mut state, self.dated(now)))?;
                            record = change;
                            return Some(answer);
                        }
                        let op = &*unbound(op, &snapshot, &living);
                        let (answer, wake) = here.then(|| protocol::apply(&mut state, &mut last, now, op))?;
                        let answer = self.further_back(&snapshot, op, answer);
                        notes.add(op, (&answer, &wake), &state);
                        let bind = of.bound(&answer, *place);
                        let number = bind.and_then(|bind| Some((number(op, &answer)?, bind.binding())));
                        bound.extend(number);
                        Some(answer)
                    })
                    .collect();
                let waits = |(of, answer): (&BatchMember<'_>, &Option<Answer>)| {
                    answer.as_ref().is_some_and(|answer| of.takes_place(answer))
                };
                if place.is_none() && members.iter().zip(&answers).any(waits) {
                    *place = Some(self.place_handle(members).await?);
                    continue;
                }
                if snapshot.is_enough(&state) || planted(Bug::CasFrontIsAll) {
                    let after = snapshot.after(state, last, &bound).keeping_count(stamp);
                    tried = Some((after, answers, notes, record));
                } else {
                    lacks.extend(snapshot.unread());
                }
            }
            if let Some((after, answers, notes, record)) = tried {
                let sizes = Sizes::new(self.backend.part());
                let unbound = || Failure::NotSent(Failure::cause("a place is bound to nothing"));
                let write =
                    |after: &LockSnapshot| after.clone().written(&snapshot, base, sizes).ok_or_else(unbound);
                let written = write(&after)?;
                let is_long = written.parts.len() > PARTS && !matches!(verb, Verb::Inspect);
                let cleared = is_long.then(|| snapshot.without_dead_parts(&living, PARTS / 2)).flatten();
                let is_cleared = cleared.is_some();
                let (after, written, answers, notes, record) = match cleared {
                    Some(after) => {
                        let written = write(&after)?;
                        (after, written, vec![None; members.len()], Notes::default(), ValueChange::Keep)
                    }
                    None => (after, written, answers, notes, record),
                };
                return Ok(Some(MachineResult {
                    snapshot,
                    after,
                    written,
                    record,
                    answers,
                    living,
                    notes,
                    is_cleared,
                }));
            }
            lacks.sort_unstable();
            lacks.dedup();
            if !self.read_parts(name, &mut snapshot, seen, lacks, known).await? {
                return Ok(None);
            }
        }
    }

    /// The unread parts of the queue that a request needs.
    fn lacks(
        &self,
        snapshot: &LockSnapshot,
        of: &BatchMember<'_>,
        living: &BTreeMap<u64, u64>,
    ) -> Vec<usize> {
        let (Some(first), Some(Data::Queue(queue))) = (snapshot.unread(), &snapshot.data) else {
            return Vec::new();
        };
        let begins = snapshot.parts[first].first;
        let mut waits = queue.waiting().take_while(|(number, _)| *number < begins);
        let unread = |at: &usize| !snapshot.parts[*at].is_read;
        if !waits.any(|(number, _)| living.contains_key(&number)) {
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
                let (mut table, now_ms) = (self.table.lock(), self.now().ms);
                let expired = owners.iter().filter_map(|owner| {
                    let hold = table.hold(&of.op.name, &(owner.clone(), 0))?;
                    hold.ticket.filter(|_| hold.end_ms < now_ms)
                });
                expired.filter_map(about).collect()
            }
            Verb::Resize => Vec::new(),
            Verb::Acquire { .. } | Verb::Renew { .. } | Verb::Release { .. } => {
                if queue.number(&of.op.owner).is_some() {
                    return Vec::new();
                }
                let key = (of.op.owner.clone(), 0);
                let ticket = self.table.lock().hold(&of.op.name, &key).map(|hold| hold.ticket);
                let sizes = Sizes::new(self.backend.part());
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

    /// Reads parts of the queue. False if the lock has changed meanwhile.
    async fn read_parts(
        &self,
        name: &LockName,
        snapshot: &mut LockSnapshot,
        seen: &Option<Stored>,
        lacks: Vec<usize>,
        known: &Known,
    ) -> Result<bool, Failure> {
        let base = seen.as_ref().map_or(0, |stored| stored.stamp.base);
        let mut asked = Vec::new();
        for at in lacks {
            let text = known.part(base, snapshot.parts[at].id(base));
            if text.is_none() || !snapshot.add(at, text, base) {
                asked.push(at);
            }
        }
        if asked.is_empty() {
            return Ok(true);
        }
        let ids = asked.iter().map(|at| snapshot.parts[*at].id(base)).collect();
        let texts = self.backend.parts(name, ids).await.map_err(not_sent)?;
        let found = asked.into_iter().zip(texts);
        let missed: Vec<(usize, bool)> = found
            .filter(|(at, text)| !snapshot.add(*at, text.as_deref(), base))
            .map(|(at, text)| (at, text.is_some()))
            .collect();
        if missed.is_empty() {
            return Ok(true);
        }
        let now = self.backend.read(name).await.map_err(not_sent)?;
        let is_same = now.as_ref().map(|stored| stored.stamp) == seen.as_ref().map(|stored| stored.stamp);
        if is_same {
            missed.into_iter().for_each(|(at, is_there)| snapshot.miss(at, is_there));
        }
        Ok(is_same)
    }

    /// Completes an answer with the places in unread parts. A place of this client exists as long as its
    /// handle is alive, because no other client removes it.
    fn further_back(&self, snapshot: &LockSnapshot, op: &Op, answer: Answer) -> Answer {
        let is_listing = matches!(op.verb, Verb::Inspect)
            || matches!(op.verb, Verb::Release { whose, .. } if whose.is_forced());
        match answer {
            _ if snapshot.unread().is_none() => answer,
            Answer::More(answer) => self.further_back(snapshot, op, *answer).and_more(),
            Answer::Found(mut found) if is_listing => {
                found.unlisted += snapshot.unread_places();
                Answer::Found(found)
            }
            Answer::Places { mut places, retry_in_ms } => {
                let Verb::Refresh { owners, .. } = &op.verb else {
                    return Answer::Places { places, retry_in_ms };
                };
                let now_ms = self.now().ms;
                let mut table = self.table.lock();
                for (place, owner) in
                    places.iter_mut().zip(owners.iter()).filter(|(place, _)| **place == Place::Gone)
                {
                    let hold = table
                        .hold(&op.name, &(owner.clone(), 0))
                        .map(|hold| (hold.handle, hold.ticket, hold.end_ms));
                    let Some((handle, Some(ticket), end_ms)) = hold else { continue };
                    let is_further = snapshot.part_of(ticket).is_some_and(|at| !snapshot.parts[at].is_read);
                    if is_further && end_ms >= now_ms && table.lease_of(handle).is_some() {
                        *place = Place::Waiting { ticket };
                    }
                }
                Answer::Places { places, retry_in_ms }
            }
            answer => answer,
        }
    }

    pub(super) fn lease_of(&self, handle: Handle) -> Option<KeptHandle> {
        self.table.lock().lease_of(handle).copied()
    }

    /// Any open handle, for a write that binds nothing to it.
    fn known_lease(&self) -> Option<KeptHandle> {
        self.table.lock().leases.values().next_back().copied()
    }

    /// Makes the renewals of holds that were ended by force read the lock.
    async fn tell_ended(&self, handles: Vec<Handle>) {
        const ROUNDS: u32 = 3;
        for _ in 0..ROUNDS {
            if handles.is_empty() || self.backend.bump(handles.clone()).await.is_ok() {
                return;
            }
        }
    }

    /// Closes the handles of detached holds that have ended.
    fn close_left(self: &Arc<Self>, before: &LockSnapshot, after: &LockSnapshot) {
        for binding in before.bindings.values().filter(|binding| binding.is_detached) {
            if !after.bindings.values().any(|left| left.handle == binding.handle) {
                self.close(binding.handle);
            }
        }
    }
}

/// The result of the machine, and the texts to write.
struct MachineResult {
    snapshot: LockSnapshot,
    after: LockSnapshot,
    written: Written,
    record: ValueChange,
    /// One per request; `None` for abandoned requests.
    answers: Vec<Option<Answer>>,
    /// Expiry of each living hold and place.
    living: BTreeMap<u64, u64>,
    notes: Notes,
    /// Only dead places were removed; the requests have not run yet.
    is_cleared: bool,
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

fn is_grant(op: &Op, answer: &Answer) -> bool {
    matches!((&op.verb, answer.plain()), (Verb::Acquire { .. }, Answer::Held { .. }))
}

/// The client's handle was lost while a request was in flight.
fn gone() -> Failure {
    Failure::NotSent(Failure::cause(
        "this client's lease at the server has expired: it was paused or cut off for too long",
    ))
}

/// Adds the creation of the key to the numbers in an answer.
fn counted(answer: Answer, added: u64) -> Answer {
    match answer {
        Answer::Held { fence } => Answer::Held { fence: fence + added },
        Answer::Waiting { ticket, retry_in_ms } => Answer::Waiting { ticket: ticket + added, retry_in_ms },
        Answer::More(answer) => counted(*answer, added).and_more(),
        answer => answer,
    }
}

/// The handles from which a request moves living holds and places to another.
fn moved_from(
    verb: &Verb,
    before: &LockSnapshot,
    after: &LockSnapshot,
    living: &BTreeMap<u64, u64>,
) -> Vec<Handle> {
    if !matches!(verb, Verb::Acquire { .. } | Verb::Renew { .. }) || planted(Bug::CasExpiredMoved) {
        return Vec::new();
    }
    let handle =
        |snapshot: &LockSnapshot, number: &u64| snapshot.bindings.get(number).map(|binding| binding.handle);
    // The detached holds of a reentrant owner share the number 0, and one of them may leave the others.
    let is_taken_over = match verb {
        Verb::Renew { hold, bind: Some(Liveness::Process | Liveness::Work), .. } => {
            !before.bindings.contains_key(hold) && after.bindings.contains_key(hold)
        }
        _ => false,
    };
    let moved = living
        .keys()
        .filter(|number| handle(before, number) != handle(after, number) || is_taken_over && **number == 0);
    let handles: BTreeSet<Handle> = moved.filter_map(|number| handle(before, number)).collect();
    handles.into_iter().collect()
}

/// The handles of living holds that these requests end but that belong to other owners.
fn victims(
    before: &LockSnapshot,
    after: &LockSnapshot,
    living: &BTreeMap<u64, u64>,
    owners: &[&Owner],
) -> Vec<Handle> {
    let left: Vec<u64> = after.entries().into_iter().map(|(number, _, _)| number).collect();
    let ended = before.entries().into_iter().filter(|(number, owner, _)| {
        let is_gone = left.binary_search(number).is_err();
        is_gone && living.contains_key(number) && !owners.contains(&owner)
    });
    let mut handles: Vec<Handle> = ended
        .filter_map(|(number, _, _)| before.bindings.get(&number))
        .map(|binding| binding.handle)
        .collect();
    handles.sort_unstable();
    handles.dedup();
    handles
}
