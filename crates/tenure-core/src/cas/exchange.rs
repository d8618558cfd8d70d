//! Carries out requests about one lock with one write: reads, runs the machine, compares and swaps.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt;
use tokio::sync::oneshot;

use super::backend::{Committed, Session, Stored, Swap, ValueChange};
use super::bind::{BatchMember, Bind};
use super::client::{CasClient, LOOKED_AT, WriteInFlight};
use super::known::Known;
use super::leases::KeptSession;
use super::lock_snapshot::LockSnapshot;
use super::machine::{Answers, Exchange, MachineResult, MachineStep, moved_from, victims};
use super::notes::Former;
use crate::name::USE;
use crate::planted::{Bug, planted};
use crate::protocol::{Answer, Op, Verb};
use crate::store::Failure;
use crate::txn::{Txn, Verdict};

/// Maximum attempts of a request after write conflicts.
const ATTEMPTS: u32 = 100;
/// Maximum holders notified by the write that ends their holds by force. The others are notified after it,
/// and their renewals succeed until then.
const VICTIMS: usize = 48;

impl CasClient {
    /// Carries out requests about one lock with one write.
    pub(super) async fn carry_out(
        self: &Arc<Self>,
        members: &[BatchMember<'_>],
        known: &mut Known,
    ) -> Result<Answers, Failure> {
        let Some(first) = members.first() else { return Ok(Vec::new()) };
        let looks = matches!(first.op.verb, Verb::Inspect | Verb::Refresh { .. } | Verb::Renew { .. });
        let mut exchange = Exchange {
            client: self,
            members,
            first,
            begun: self.runtime.now(),
            place: None,
            seen: known.stored.clone(),
            known,
            snapshot: LockSnapshot::default(),
            living: BTreeMap::new(),
            proven: None,
            txn: if looks { Txn::unread() } else { Txn::default() },
        };
        for attempt in 0..ATTEMPTS {
            exchange.pause(attempt).await;
            if let Some(answers) = exchange.attempt().await? {
                return Ok(answers);
            }
        }
        let busy = format!("{ATTEMPTS} writes of other clients came first");
        Err(Failure::NotSent(Failure::cause(busy)))
    }

    pub(super) fn lease_of(&self, session: Session) -> Option<KeptSession> {
        self.table.lock().lease_of(session).copied()
    }

    /// Looks for lost sessions among these.
    async fn find_lost(&self, sessions: Vec<Session>) -> Result<(), Failure> {
        if sessions.is_empty() {
            return Ok(());
        }
        let living = self.backend.living(sessions.clone()).await.map_err(Failure::not_sent)?;
        let lost = sessions.into_iter().zip(living).filter(|(_, lives)| !lives);
        lost.for_each(|(session, _)| self.lost(session));
        Ok(())
    }

    /// Makes the renewals of holds that were ended by force read the lock. Those renewals succeed until then, so
    /// this goes on until the store answers, even if the caller leaves.
    async fn tell_ended(self: &Arc<Self>, sessions: Vec<Session>) {
        const PAUSE: Duration = Duration::from_millis(200);
        if sessions.is_empty() {
            return;
        }
        let (client, (tell, told)) = (Arc::downgrade(self), oneshot::channel());
        let telling = async move {
            while let Some(client) = client.upgrade()
                && client.backend.bump(sessions.clone()).await.is_err()
            {
                client.runtime.sleep_until(client.runtime.now() + PAUSE).await;
            }
            let _ = tell.send(());
        };
        self.runtime.spawn(telling.boxed());
        let _ = told.await;
    }

    /// Closes the sessions of detached holds that have ended.
    fn close_left(self: &Arc<Self>, before: &LockSnapshot, after: &LockSnapshot) {
        for binding in before.bindings.values().filter(|binding| binding.is_detached) {
            if !after.bindings.values().any(|left| left.session == binding.session) {
                self.close(binding.session);
            }
        }
    }
}

/// The steps return `None` if another attempt is needed.
impl<'a> Exchange<'a> {
    /// Backs off after a failed attempt. Acquires do so at once, so that releases get through.
    async fn pause(&self, attempt: u32) {
        let is_acquire = matches!(self.first.op.verb, Verb::Acquire { .. });
        if attempt > if is_acquire { 0 } else { 10 } {
            let (runtime, most) = (&self.client.runtime, u64::from(attempt.min(10)) * 2_000_000);
            let pause = Duration::from_nanos(runtime.random() % most);
            runtime.sleep_until(runtime.now() + pause).await;
        }
    }

    async fn attempt(&mut self) -> Result<Option<Answers>, Failure> {
        let client = self.client;
        let guard = match self.first.bind.filter(|bind| !bind.is_detached) {
            Some(bind) => Some(client.lease_of(bind.session).ok_or_else(gone)?),
            // Any open one, because nothing is bound to it.
            None => client.table.lock().leases.values().next_back().copied(),
        };
        if self.txn.begin() {
            self.seen = client.backend.read(&self.first.op.name).await.map_err(Failure::not_sent)?;
            self.proven = guard.map(|guard| guard.marker);
            self.txn.read();
        }
        let Some(result) = self.run_machine().await? else {
            self.txn.outdated();
            return Ok(None);
        };
        let changes = !(self.keeps_value(&result) && result.record == ValueChange::Keep);
        match self.txn.ran(changes && !matches!(self.first.op.verb, Verb::Inspect)) {
            Verdict::Answer => Ok(self.answer(result)),
            Verdict::Write => self.write(result, guard).await,
            Verdict::Again => Ok(None),
        }
    }

    /// Reads what the machine needs, and runs it. `None` if the value has changed meanwhile.
    async fn run_machine(&mut self) -> Result<Option<MachineResult>, Failure> {
        let (client, Op { name, verb, .. }) = (self.client, self.first.op);
        self.snapshot = LockSnapshot::read(self.seen.as_ref()).ok_or_else(|| {
            let what = "its key holds something other than a lock of this version of tenure";
            Failure::Refused(Failure::cause(what))
        })?;
        let most = if matches!(verb, Verb::Inspect) { usize::MAX } else { LOOKED_AT };
        let mut has_looked = false;
        loop {
            client.look_at(name, &self.snapshot, most).await?;
            let now = client.now();
            self.living = client.ends(name, &self.snapshot, now);
            match self.step(now)? {
                MachineStep::Done(result) => {
                    let has_to_wait = |answer: &Answer| !matches!(answer.plain(), Answer::Held { .. });
                    if matches!(verb, Verb::Acquire { .. } | Verb::Refresh { .. })
                        && result.answers.iter().flatten().any(has_to_wait)
                        && !mem::replace(&mut has_looked, true)
                        && client.has_lost_holder(name, &self.snapshot, &self.living).await?
                    {
                        continue;
                    }
                    return Ok(Some(*result));
                }
                MachineStep::NeedsPlace => self.place = Some(client.place_session(self.members).await?),
                MachineStep::Lacks(parts) => {
                    if !self.read_parts(parts).await? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Reads parts of the queue. False if the lock has changed meanwhile.
    async fn read_parts(&mut self, lacks: Vec<usize>) -> Result<bool, Failure> {
        let Self { client, first, known, seen, snapshot, .. } = self;
        let name = &first.op.name;
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
        let texts = client.backend.parts(name, ids).await.map_err(Failure::not_sent)?;
        let found = asked.into_iter().zip(texts);
        let missed: Vec<(usize, bool)> = found
            .filter(|(at, text)| !snapshot.add(*at, text.as_deref(), base))
            .map(|(at, text)| (at, text.is_some()))
            .collect();
        if missed.is_empty() {
            return Ok(true);
        }
        let now = client.backend.read(name).await.map_err(Failure::not_sent)?;
        let is_same = now.as_ref().map(|stored| stored.stamp) == seen.as_ref().map(|stored| stored.stamp);
        if is_same {
            missed.into_iter().for_each(|(at, is_there)| snapshot.miss(at, is_there));
        }
        Ok(is_same)
    }

    /// The requests that are answered, with what binds their holds and places.
    fn asked<'b>(
        &'b self,
        answers: &'b [Option<Answer>],
    ) -> impl Iterator<Item = (&'b BatchMember<'a>, &'b Answer, Option<Bind>)> {
        let answered = self.members.iter().zip(answers);
        answered.filter_map(|(of, answer)| {
            let answer = answer.as_ref()?;
            Some((of, answer, of.bound(answer, self.place)))
        })
    }

    fn keeps_value(&self, MachineResult { written, .. }: &MachineResult) -> bool {
        let seen = self.seen.as_ref().map(|stored| stored.text.as_str());
        written.parts.is_empty() && written.text.as_deref() == seen
    }

    /// Answers without a write.
    fn answer(&mut self, MachineResult { answers, notes, .. }: MachineResult) -> Option<Answers> {
        let stand = self.asked(&answers).fold(true, |stand, (of, answer, bind)| {
            self.client.settle(of.op, answer, bind, (self.proven, self.begun)) && stand
        });
        if !stand {
            self.txn.unconfirmed();
            return None;
        }
        notes.unwritten();
        self.known.stored.clone_from(&self.seen);
        Some(answers)
    }

    async fn write(
        &mut self,
        mut result: MachineResult,
        guard: Option<KeptSession>,
    ) -> Result<Option<Answers>, Failure> {
        let (client, limit) = (self.client, self.client.backend.limit());
        let is_acquire = matches!(self.first.op.verb, Verb::Acquire { .. });
        // Only an acquisition lengthens the value, so that a value at its limit can still shrink.
        if is_acquire && result.written.text.as_ref().is_some_and(|text| text.len() > limit) {
            return Err(Failure::Refused(Failure::cause(format!(
                "{} hold this lock, and its value would exceed the {limit} bytes that the server accepts: \
                 allow fewer holders, or use several locks",
                result.after.bindings.len(),
            ))));
        }
        let guard = match guard {
            Some(guard) => guard,
            None => client.any_lease().await?,
        };
        let sents = self.asked(&result.answers).map(|(of, ..)| of.sent.clone()).collect();
        let Some(in_flight) = WriteInFlight::new(client, sents) else { return Ok(None) };
        // Record possible grants before sending: if the answer is lost, they are removed in time.
        let asked = self.asked(&result.answers);
        let former = asked.map(|(of, answer, bind)| client.note_request(of.op, answer, bind)).collect();
        // Another task may have closed it as idle before this request was recorded.
        if self.place.is_some_and(|place| client.lease_of(place).is_none()) {
            in_flight.known();
            self.undo(&result.answers, former);
            self.place = None;
            return Ok(None);
        }
        let (change, untold) = self.swap(&mut result, guard);
        let moved_from = change.moved_from.clone();
        match client.backend.commit(change).await {
            // The value was as it had been read.
            Ok(Committed::Done { stamp, record }) => {
                client.tell_ended(untold).await;
                in_flight.known();
                let added = if self.seen.is_none() { stamp.base } else { 0 };
                let answers = result.answers.into_iter();
                let answers: Answers = answers.map(|answer| Some(counted(answer?, added))).collect();
                for (of, answer, bind) in self.asked(&answers) {
                    client.settle(of.op, answer, bind, (Some(guard.marker), self.begun));
                    if is_grant(of.op, answer)
                        && let key = (of.op.owner.clone(), 0)
                        && let Some(hold) = client.table.lock().hold(&of.op.name, &key)
                    {
                        hold.record.clone_from(&record);
                    }
                }
                client.close_left(&self.snapshot, &result.after);
                self.known.wrote(result.written, stamp);
                Ok((!result.is_cleared).then_some(answers))
            }
            // Another client was first, or the session is gone. Nothing was written.
            Ok(Committed::Conflict { stored, marker }) => {
                in_flight.known();
                self.undo(&result.answers, former);
                self.conflicted(result, guard, moved_from, (stored, marker)).await
            }
            // Perhaps written: what was noted stays until a later write has settled it.
            Err(failure @ Failure::Unknown(_)) => Err(failure),
            Err(failure) => {
                in_flight.known();
                self.undo(&result.answers, former);
                Err(failure)
            }
        }
    }

    /// The compare-and-swap, and further sessions of ended holds that it does not notify.
    fn swap(&self, result: &mut MachineResult, guard: KeptSession) -> (Swap, Vec<Session>) {
        let Op { name, verb, .. } = self.first.op;
        let owners: Vec<_> = self.asked(&result.answers).map(|(of, ..)| &of.op.owner).collect();
        let mut victims = victims(&self.snapshot, &result.after, &self.living, &owners);
        let untold = victims.split_off(VICTIMS.min(victims.len()));
        let grants = || self.asked(&result.answers).any(|(of, answer, _)| is_grant(of.op, answer));
        let change = Swap {
            name: name.clone(),
            seen: self.seen.as_ref().map(|stored| stored.stamp),
            guard: (guard.session, guard.marker),
            lock: match self.keeps_value(result) && !self.txn.must_write() {
                true => ValueChange::Keep,
                false => ValueChange::to(result.written.text.clone()),
            },
            reads_record: name.as_str().starts_with(USE) && grants(),
            parts: result.written.parts.clone(),
            victims,
            moved_from: moved_from(verb, &self.snapshot, &result.after, &self.living),
            record: mem::take(&mut result.record),
            notes: mem::take(&mut result.notes),
        };
        (change, untold)
    }

    fn undo(&self, answers: &[Option<Answer>], former: Vec<Former>) {
        let asked = self.asked(answers).zip(former);
        asked.for_each(|((of, ..), former)| self.client.undo_note(of.op, former));
    }

    /// The value or the marker was not as expected: these are the current ones.
    async fn conflicted(
        &mut self,
        MachineResult { answers, .. }: MachineResult,
        guard: KeptSession,
        moved_from: Vec<Session>,
        (stored, marker): (Option<Stored>, Option<u64>),
    ) -> Result<Option<Answers>, Failure> {
        let client = self.client;
        if planted(Bug::CasUncompared) {
            let asked = self.asked(&answers);
            let seen = (marker, self.begun);
            asked.for_each(|(of, answer, bind)| _ = client.settle(of.op, answer, bind, seen));
            return Ok(Some(answers));
        }
        if planted(Bug::CasConflictIsBusy) {
            let busy = Answer::Busy { holder: String::new(), left_ms: Some(1) };
            return Ok(Some(vec![Some(busy); answers.len()]));
        }
        let stamp = |stored: &Option<Stored>| stored.as_ref().map(|stored| stored.stamp);
        if stamp(&stored) == stamp(&self.seen) && marker == Some(guard.marker) {
            client.find_lost(moved_from).await?;
        }
        (self.seen, self.proven) = (stored, marker);
        self.txn.read();
        self.known.found(&self.seen);
        match marker {
            Some(marker) => {
                if let Some(lease) = client.table.lock().lease_of(guard.session) {
                    // Answers may overtake each other.
                    lease.marker = lease.marker.max(marker);
                }
            }
            None => client.lost(guard.session),
        }
        Ok(None)
    }
}

fn is_grant(op: &Op, answer: &Answer) -> bool {
    matches!((&op.verb, answer.plain()), (Verb::Acquire { .. }, Answer::Held { .. }))
}

/// The client's session was lost while a request was in flight.
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
