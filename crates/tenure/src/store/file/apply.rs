//! What a request does to the files, and what a look at them tells.

use std::sync::Arc;

use super::bindings::Bindings;
use super::directory::{Directory, HolderState, Inside};
use super::holders::{Holders, MyPlace};
use super::line::{Span, Standing};
use super::lock::{Lock, store};
use super::names::{HolderId, RecordId};
use super::record::Record;
use crate::events::{event, text};
use crate::owner::Owner;
use crate::planted::{Bug, planted};
use crate::protocol::queue::{BOUND, Queue};
use crate::protocol::{
    self, Answer, Data, Entry, Liveness, LockSpec, Notification, Now, Op, Place, ReleaseScope, State, Verb,
    parse_value,
};
use crate::runtime::Runtime;
use crate::store::{Cursor, Failure, Page, SETUP};

/// So many records are in one page of a listing.
const PAGE: usize = 1_000;
/// So many dead waiters are taken out by one request. It says if there may be more, and is repeated
/// then.
const DEAD: usize = 500;
/// So few holders are looked at by every request of a queue, and not only by that of the first
/// waiter.
const FEW: usize = 8;

/// Both clocks. A directory's times are those of the machine's boot clock, which is ahead of this
/// process's by a negative offset.
pub(super) fn now(runtime: &dyn Runtime, offset_ms: i64) -> Now {
    Now {
        ms: runtime.now().millis().saturating_add_signed(offset_ms.saturating_neg()),
        unix_us: runtime.unix_micros(),
    }
}

/// What a request did.
pub(super) struct Applied {
    pub(super) answer: Answer,
    pub(super) wake: Option<Notification>,
    /// The holders of other processes whose places were let in, or have come to the front of the
    /// line, and those whose holds were ended.
    pub(super) calls: Vec<HolderId>,
    /// It has ended a hold of another client.
    pub(super) is_forced: bool,
    /// A place of this process is at the front of the line, so that this process has to watch those
    /// ahead of it.
    pub(super) is_near: bool,
}

impl Applied {
    /// Nothing has changed but what this owner has written beside its lock.
    pub(super) fn told(by: &Owner) -> Self {
        let wake = Some(Notification::Free { by: Some(by.clone()) });
        Self { answer: Answer::Free, wake, calls: Vec::new(), is_forced: false, is_near: false }
    }
}

/// Runs one request against its record. Either all of it is written or nothing but a used-up token,
/// places that were refreshed, and one that was left.
pub(super) fn apply(
    inside: &mut Inside<'_>,
    holders: &mut Holders,
    now: Now,
    runtime: &dyn Runtime,
    op: &Op,
) -> Result<Applied, Failure> {
    let id = RecordId::of(&op.name);
    let mut before = Lock::load(inside, id)?;
    if let Some(lock) = before.as_ref().filter(|lock| lock.record.name != op.name) {
        return Err(inside.misplaced(id, &lock.record));
    }
    let mut budget = DEAD;
    let mut living = match &mut before {
        Some(lock) => seen(inside, holders, lock, id, now, op, &mut budget)?,
        None => Living::default(),
    };
    let (asked, later) = (asked(op), std::mem::take(&mut living.later));
    let later = match &before {
        Some(lock) => keep(inside, id, lock, now, op, later, &mut living.span)?,
        None => later,
    };
    let mut counter = inside.fence();
    let Living { lock, mut bindings, span, .. } = living;
    let releases = matches!(op.verb, Verb::Release { .. });
    let bound: Vec<_> = bindings.iter().filter(|_| releases).collect();
    let mut state = State { lock, ballot: None };
    let mut run =
        Run { inside, holders, id, now, state: &mut state, bindings: &mut bindings, counter: &mut counter };
    let line = before.as_mut().filter(|_| span.count > 0 || !span.is_empty());
    let Ran { answer, wake, is_bounded } = run.all(op, asked, line, &mut budget)?;
    let answer = further_back(op, answer, &later, &state);
    let answer = match answer {
        Answer::More(_) => answer,
        answer if is_bounded || budget == 0 => answer.and_more(),
        answer => answer,
    };

    if let Some(binding) = binding(op, &answer) {
        let holder = holders.bind(inside, runtime, &op.name, binding, &mut bindings)?;
        // A place that waits has to be called.
        if let Some(holder) = holder.filter(|_| !matches!(answer, Answer::Held { .. })) {
            holders.listen(inside, holder);
        }
    }
    // So has a reader that waits to become the writer.
    let told = if let Answer::More(answer) = &answer { answer } else { &answer };
    if let Answer::Growing { fence, .. } = told
        && let Some(holder) = bindings.holder_of(*fence)
    {
        holders.listen(inside, holder);
    }
    let mut after = state.lock.map(|lock| {
        bindings.retain(|number| lock.value.has(number));
        Record { name: op.name.clone(), boot: inside.boot().to_owned(), bindings, lock, span }
    });
    // The counter first, so that a token that was told is never given again.
    let may_grow = matches!(op.verb, Verb::Acquire { .. });
    let written = match counter == inside.fence() {
        true => Ok(()),
        false => inside.set_fence(counter),
    };
    let written = written.and_then(|()| store(inside, id, before.as_ref(), after.as_mut(), may_grow));
    let removed = before.is_some() && after.is_none();
    let wake = wake.or(removed.then_some(Notification::Free { by: None }));
    #[cfg(tenure_planted)]
    if written.is_ok() {
        super::observe::applied(op, &answer, wake.as_ref(), || {
            Lock::peek_whole(inside, id).ok().flatten().map(|record| record.lock)
        });
    }
    let is_bound = |(number, _): &(u64, HolderId)| {
        after.as_ref().is_some_and(|record| record.bindings.holder_of(*number).is_some())
    };
    let ended = bound.into_iter().filter(|bound| !is_bound(bound)).map(|(_, holder)| holder);
    let mut calls: Vec<_> = ended.filter(|holder| !holders.is_mine(*holder)).collect();
    let is_forced = matches!(op.verb, Verb::Release { whose, .. } if whose != ReleaseScope::Own);
    let mut is_near = false;
    if let Some(record) = &after {
        let granted = match &wake {
            Some(Notification::Granted { tickets }) => tickets.as_slice(),
            _ => &[],
        };
        let front = front(&record.lock.value);
        let front_before = before.as_ref().map_or([None; 2], Lock::first_two);
        let moved = front.iter().zip(front_before).filter(|(now, before)| *now != before);
        let numbers = granted.iter().copied().chain(moved.filter_map(|(now, _)| *now));
        calls.extend(numbers.filter_map(|number| record.bindings.holder_of(number)));
        calls.retain(|holder| !holders.is_mine(*holder));
        is_near = ahead_of_mine(record, holders).is_some();
    }
    note_places(
        holders,
        id,
        op,
        told,
        before.as_ref(),
        &later,
        written.as_ref().ok().copied().flatten(),
        after.as_ref(),
    );
    // After a failure, what stood there before stands there still. What cannot be read may name any
    // holder.
    let kept = match &written {
        Ok(_) => Some(after.map(|record| record.bindings).unwrap_or_default()),
        Err(_) => Lock::peek_whole(inside, id)
            .ok()
            .map(|record| record.map(|record| record.bindings).unwrap_or_default()),
    };
    if let Some(kept) = kept {
        holders.settle(inside, &op.name, id, &kept);
    }
    written?;
    Ok(Applied { answer, wake, calls, is_forced, is_near })
}

/// What counts of a lock for one request.
#[derive(Default)]
struct Living {
    lock: Option<Entry<Data>>,
    bindings: Bindings,
    span: Span,
    /// The places of the owners that ask which are further back in line than what was read.
    later: Vec<Standing>,
}

/// The owners whose places a request is about.
fn asked(op: &Op) -> &[Owner] {
    match &op.verb {
        Verb::Refresh { owners, .. } => owners,
        _ => std::slice::from_ref(&op.owner),
    }
}

/// What counts of a lock for one request, which reads and looks at no more than it decides about.
/// Of a queue that is the first waiters until one is alive, and the holders if they are few or the
/// first waiter asks. Otherwise the work of a queue would grow with the square of its waiters.
fn seen(
    inside: &Inside<'_>,
    holders: &Holders,
    lock: &mut Lock,
    id: RecordId,
    now: Now,
    op: &Op,
    budget: &mut usize,
) -> Result<Living, Failure> {
    let has_file = lock.record.span;
    if lock.record.boot != inside.boot() {
        lock.read_all(inside, id)?;
    }
    if !is_of_this_boot(inside, holders, &lock.record)? {
        return Ok(Living { span: Span { from: has_file.to, count: 0, ..has_file }, ..Living::default() });
    }
    let mut later = Vec::new();
    if sees_all(&op.verb) || matches!(op.verb, Verb::Resize) {
        lock.read_all(inside, id)?;
    } else if !lock.is_whole() {
        let is_far = matches!(op.verb, Verb::Refresh { .. }) && is_far(inside, lock, id, now, op)?;
        if !is_far {
            fill(inside, holders, lock, id, now, budget)?;
        }
        later = match further(lock, holders, id, op) {
            Some(later)
                if later.is_empty() || matches!(op.verb, Verb::Refresh { .. } | Verb::Release { .. }) =>
            {
                later
            }
            _ => {
                lock.read_all(inside, id)?;
                Vec::new()
            }
        };
    }
    let dead: Vec<u64> = match &lock.record.lock.value {
        Data::Queue(queue) if !sees_all(&op.verb) => {
            let holding: Vec<u64> = queue.holding().collect();
            let looks = holding.len() <= FEW || asks_first(queue, op);
            let bindings = &lock.record.bindings;
            let is_dead = |number: &u64| {
                bindings.holder_of(*number).is_some_and(|holder| is_dead(inside, holders, holder))
            };
            holding.into_iter().filter(|number| looks && is_dead(number)).collect()
        }
        _ => lock.record.bound_to(|holder| is_dead(inside, holders, holder)),
    };
    let record = lock.take_or_clone().without_numbers(&dead);
    let (lock, bindings) =
        record.map_or((None, Bindings::default()), |record| (Some(record.lock), record.bindings));
    Ok(Living { lock, bindings, span: has_file, later })
}

/// Reads on until two wait, for a refresh. False if it is one of these two that asks: then the line
/// is as it was before.
fn is_far(inside: &Inside<'_>, lock: &mut Lock, id: RecordId, now: Now, op: &Op) -> Result<bool, Failure> {
    lock.fill(inside, id, 2, |standing| now.ms > standing.ticket.deadline_ms)?;
    let is_near = lock
        .queue()
        .is_some_and(|queue| queue.waiting().take(2).any(|(_, ticket)| asked(op).contains(&ticket.owner)));
    if is_near && let Some(anew) = Lock::load(inside, id)? {
        *lock = anew;
    }
    Ok(!is_near)
}

/// Reads on until two wait. Those at the front that have lapsed or crashed are passed over.
fn fill(
    directory: &Directory,
    holders: &Holders,
    lock: &mut Lock,
    id: RecordId,
    now: Now,
    budget: &mut usize,
) -> Result<(), Failure> {
    lock.fill(directory, id, 2, |standing| {
        if now.ms > standing.ticket.deadline_ms {
            return true;
        }
        let looks = *budget > 0;
        *budget = budget.saturating_sub(1);
        let is_over = looks && standing.holder.is_some_and(|holder| is_dead(directory, holders, holder));
        if !is_over && looks {
            *budget += 1;
        }
        is_over
    })
}

/// The places further back of the owners that ask; `None` if one is there, and not where this store
/// has written it.
fn further(lock: &Lock, holders: &Holders, id: RecordId, op: &Op) -> Option<Vec<Standing>> {
    let queue = lock.queue()?;
    let mut later = Vec::new();
    for owner in asked(op).iter().filter(|owner| queue.number(owner).is_none()) {
        match holders.place_of(id, owner).and_then(|at| lock.standing_at(at, owner)) {
            Some(standing) => later.push(standing),
            None if lock.names_further_back(owner) => return None,
            None => {}
        }
    }
    Some(later)
}

/// Refreshes places that are further back, or leaves one. Returns those that are there still.
fn keep(
    inside: &Inside<'_>,
    id: RecordId,
    lock: &Lock,
    now: Now,
    op: &Op,
    later: Vec<Standing>,
    span: &mut Span,
) -> Result<Vec<Standing>, Failure> {
    let mut kept = Vec::new();
    for mut standing in later {
        match op.verb {
            Verb::Refresh { wait_ms, .. } if now.ms <= standing.ticket.deadline_ms => {
                let deadline_ms = now.ms.saturating_add(wait_ms);
                if deadline_ms > standing.ticket.deadline_ms {
                    standing.ticket.deadline_ms = deadline_ms;
                    lock.refresh(inside, id, &standing)?;
                }
                kept.push(standing);
            }
            _ => {
                lock.leave(inside, id, &standing)?;
                span.count = span.count.saturating_sub(1);
                if now.ms <= standing.ticket.deadline_ms {
                    kept.push(standing);
                }
            }
        }
    }
    Ok(kept)
}

/// The answer, with what it says of places that the machine did not see.
fn further_back(op: &Op, answer: Answer, later: &[Standing], state: &State) -> Answer {
    if later.is_empty() {
        return answer;
    }
    match (answer, &op.verb) {
        (Answer::More(answer), _) => further_back(op, *answer, later, state).and_more(),
        (Answer::Free, Verb::Release { .. }) => Answer::Released { left: 0 },
        (Answer::Places { mut places, retry_in_ms }, Verb::Refresh { owners, .. }) => {
            for (place, owner) in places.iter_mut().zip(owners.iter()) {
                let Some(standing) = later.iter().find(|standing| standing.ticket.owner == *owner) else {
                    continue;
                };
                let number = standing.number;
                // It may have been read, and let in, since the machine was asked.
                let holds = matches!(&state.lock, Some(Entry { value: Data::Queue(queue), .. })
                    if queue.ticket(number).is_some() && number <= queue.mark);
                *place =
                    if holds { Place::Held { fence: number } } else { Place::Waiting { ticket: number } };
            }
            Answer::Places { places, retry_in_ms }
        }
        (answer, _) => answer,
    }
}

/// Remembers where this store's own places are written.
#[expect(clippy::too_many_arguments, reason = "all that is known of a request that was carried out")]
fn note_places(
    holders: &mut Holders,
    id: RecordId,
    op: &Op,
    answer: &Answer,
    before: Option<&Lock>,
    later: &[Standing],
    new: Option<u64>,
    after: Option<&Record>,
) {
    let Some(Record { lock: Entry { value: Data::Queue(queue), .. }, .. }) = after else {
        return holders.forget_places(id);
    };
    if let Answer::Released { .. } | Answer::Free = answer {
        return holders.forget_place(id, &op.owner);
    }
    for owner in asked(op) {
        match queue.number(owner) {
            Some(number) if number > queue.mark => {
                let at = before.and_then(|lock| lock.place_of(number)).or(new);
                let holder = after.and_then(|record| record.bindings.holder_of(number));
                if let Some(at) = at {
                    holders.note_place(id, owner, MyPlace { number, at, holder });
                }
            }
            Some(_) => holders.forget_place(id, owner),
            None if later.iter().any(|standing| standing.ticket.owner == *owner) => {}
            None => holders.forget_place(id, owner),
        }
    }
}

/// One request under way.
struct Run<'a, 'b> {
    inside: &'a Inside<'b>,
    holders: &'a Holders,
    id: RecordId,
    now: Now,
    state: &'a mut State,
    bindings: &'a mut Bindings,
    counter: &'a mut u64,
}

/// What came of it.
struct Ran {
    answer: Answer,
    wake: Option<Notification>,
    is_bounded: bool,
}

impl Run<'_, '_> {
    /// Runs the machine. `line`: where more who wait can be read.
    fn all(
        &mut self,
        op: &Op,
        asked: &[Owner],
        line: Option<&mut Lock>,
        budget: &mut usize,
    ) -> Result<Ran, Failure> {
        let Some(line) = line.filter(|line| !line.is_whole()) else {
            let (answer, wake) = self.alive(op);
            return Ok(Ran { answer, wake, is_bounded: false });
        };
        let (verb, name) =
            (Verb::Refresh { owners: Arc::new([]), wait_ms: 0, listens: None }, op.name.clone());
        let settles = Op { name, rule: op.rule, owner: op.owner.clone(), request: op.request, verb };
        let (mut let_in, mut is_bounded) = (Vec::new(), false);
        let is_new = matches!(op.verb, Verb::Acquire { .. });
        if is_new {
            *self.counter = (*self.counter).max(line.last_number().unwrap_or(0));
        }
        // Those whose turn it is come before the asker.
        self.settle(&settles, is_new, line, budget, &mut let_in, &mut is_bounded)?;
        let (answer, wake) = self.alive(op);
        if let Some(Notification::Granted { tickets }) = wake {
            let_in.extend(tickets);
        }
        if self.is_short(line) {
            self.settle(&settles, false, line, budget, &mut let_in, &mut is_bounded)?;
        }
        let mine = |queue: &Queue| asked.iter().filter_map(|owner| queue.number(owner)).collect::<Vec<_>>();
        let mine = self.queue().map(mine).unwrap_or_default();
        let_in.retain(|number| !mine.contains(number));
        let wake = (!let_in.is_empty()).then_some(Notification::Granted { tickets: let_in });
        Ok(Ran { answer, wake, is_bounded })
    }

    /// Lets in those whose turn it is, and reads on where more may be. `all`: however many they
    /// are, because a newcomer must not pass them.
    fn settle(
        &mut self,
        op: &Op,
        all: bool,
        line: &mut Lock,
        budget: &mut usize,
        let_in: &mut Vec<u64>,
        is_bounded: &mut bool,
    ) -> Result<(), Failure> {
        loop {
            let (answer, wake) = self.alive(op);
            if let Some(Notification::Granted { tickets }) = wake {
                let_in.extend(tickets);
            }
            let is_more = matches!(answer, Answer::More(_));
            match self.is_short(line) {
                true if all || self.queue().is_none() || (let_in.len() < BOUND && *budget > 0) => {
                    let read = self.read_on(line)?;
                    *budget = budget.saturating_sub(read);
                }
                false if is_more && all => {}
                is_short => {
                    *is_bounded |= is_more || is_short;
                    return Ok(());
                }
            }
        }
    }

    fn queue(&self) -> Option<&Queue> {
        match &self.state.lock {
            Some(Entry { value: Data::Queue(queue), .. }) => Some(queue),
            _ => None,
        }
    }

    /// Whether too few are known to wait, and more are in line.
    fn is_short(&self, line: &Lock) -> bool {
        !line.is_whole() && self.queue().is_none_or(|queue| queue.waiting().nth(1).is_none())
    }

    /// Brings in those who wait behind what was read, and says how many.
    fn read_on(&mut self, line: &mut Lock) -> Result<usize, Failure> {
        let waiting = |line: &Lock| line.queue().map_or(0, |queue| queue.waiting().count());
        let known = waiting(line);
        let last = line.queue().and_then(|queue| queue.tickets().next_back()).map_or(0, |(last, _)| last);
        line.fill(self.inside, self.id, known + 1, |_| false)?;
        let Some(read) = line.queue() else { return Ok(0) };
        // All that was known of it may be gone.
        let Some(lock) = self.state.lock.take().or_else(|| line.shell()) else { return Ok(0) };
        let (lock, bindings) = (self.state.lock.insert(lock), &line.record.bindings);
        let Data::Queue(queue) = &mut lock.value else { return Ok(0) };
        for (number, ticket) in read.waiting().filter(|(number, _)| *number > last) {
            queue.insert(number, ticket.clone());
            self.bindings.bind(number, bindings.holder_of(number));
        }
        Ok(waiting(line) - known)
    }

    /// Runs the machine for one request. A place that it lets in although its process is dead is
    /// taken out, and so is one that has come to the front and keeps out those behind it: then the
    /// next is let in.
    fn alive(&mut self, op: &Op) -> (Answer, Option<Notification>) {
        let Self { inside, holders, now, state, bindings, counter, .. } = self;
        let is_dead =
            |number| bindings.holder_of(number).is_some_and(|holder| is_dead(inside, holders, holder));
        run(state, counter, *now, op, is_dead)
    }
}

/// Runs the machine. A place that it lets in although its process is dead is taken out, and so is
/// one that has come to the front and keeps out those behind it: then the next is let in.
fn run(
    state: &mut State,
    counter: &mut u64,
    now: Now,
    op: &Op,
    is_dead: impl Fn(u64) -> bool,
) -> (Answer, Option<Notification>) {
    let first = |state: &State| state.lock.as_ref().and_then(|lock| front(&lock.value)[0]);
    let mut alive = first(state);
    let (mut answer, mut wake) = protocol::apply(state, counter, now, op);
    let mut granted = Vec::new();
    for _ in 0..DEAD {
        let mut dead = Vec::new();
        if let Some(Notification::Granted { tickets }) = &wake {
            for number in tickets {
                if is_dead(*number) { &mut dead } else { &mut granted }.push(*number);
            }
        }
        match first(state) {
            Some(number) if Some(number) != alive && !sees_all(&op.verb) => match is_dead(number) {
                true => dead.push(number),
                false => alive = Some(number),
            },
            _ => {}
        }
        if dead.is_empty() {
            break;
        }
        dead.iter().for_each(|number| protocol::end(state, *number));
        // The same request again changes nothing but who is let in.
        let (again, next) = protocol::apply(state, counter, now, op);
        if !matches!(op.verb, Verb::Release { .. }) {
            answer = again;
        }
        wake = next;
    }
    match wake {
        Some(Notification::Granted { .. }) | None => {
            (answer, (!granted.is_empty()).then_some(Notification::Granted { tickets: granted }))
        }
        wake => (answer, wake),
    }
}

/// The hold or place that this answer is about, and what it is to be bound to from now on.
fn binding(op: &Op, answer: &Answer) -> Option<(u64, Liveness)> {
    let (hold, bind) = match op.verb {
        Verb::Acquire { hold, bind, .. } => (hold, bind),
        Verb::Renew { hold, bind, .. } => (hold, bind?),
        _ => return None,
    };
    let answer = if let Answer::More(answer) = answer { answer } else { answer };
    match *answer {
        Answer::Held { .. } if op.rule == LockSpec::Reentrant => Some((hold, bind)),
        Answer::Held { fence: number } | Answer::Waiting { ticket: number, .. } => Some((number, bind)),
        _ => None,
    }
}

fn is_dead(directory: &Directory, holders: &Holders, holder: HolderId) -> bool {
    !holders.is_mine(holder) && directory.life(holder) == HolderState::Dead && !planted(Bug::DeathIgnored)
}

/// What still counts of a record: it is of this boot, and some of those who have a part in it have
/// not crashed.
pub(super) fn living(
    directory: &Directory,
    holders: &Holders,
    record: Record,
) -> Result<Option<Record>, Failure> {
    if !is_of_this_boot(directory, holders, &record)? {
        return Ok(None);
    }
    Ok(record.without(|holder| is_dead(directory, holders, holder)))
}

fn is_of_this_boot(directory: &Directory, holders: &Holders, record: &Record) -> Result<bool, Failure> {
    if record.boot == directory.boot() {
        return Ok(true);
    }
    // A process outlives no boot, so with a living holder the boot id is what is wrong.
    let is_alive = |holder| holders.is_mine(holder) || directory.life(holder) == HolderState::Alive;
    if record.bindings.iter().any(|(_, holder)| is_alive(holder)) {
        return Err(directory.other_boot());
    }
    Ok(false)
}

/// Whether a request is about all that stands there.
fn sees_all(verb: &Verb) -> bool {
    matches!(verb, Verb::Inspect | Verb::Release { whose: ReleaseScope::Any, .. })
}

/// Whether no waiter is ahead of this request's.
fn asks_first(queue: &Queue, op: &Op) -> bool {
    let Some((_, first)) = queue.waiting().next() else { return true };
    match &op.verb {
        Verb::Refresh { owners, .. } => owners.contains(&first.owner),
        _ => first.owner == op.owner,
    }
}

/// The first two places in line. Their processes watch those ahead of them: the first the holders,
/// the second the first.
fn front(data: &Data) -> [Option<u64>; 2] {
    let Data::Queue(queue) = data else { return [None; 2] };
    let mut waiting = queue.waiting().map(|(number, _)| number);
    [waiting.next(), waiting.next()]
}

/// Whose crashes this process has to notice, if its own place is at the front of the line.
fn ahead_of_mine(record: &Record, holders: &Holders) -> Option<Vec<HolderId>> {
    let holder_of = |number: Option<u64>| number.and_then(|number| record.bindings.holder_of(number));
    let [first, second] = front(&record.lock.value).map(holder_of);
    let is_mine = |holder: Option<HolderId>| holder.is_some_and(|holder| holders.is_mine(holder));
    let mut ahead: Vec<HolderId> = match &record.lock.value {
        Data::Queue(queue) if is_mine(first) => {
            queue.holding().filter_map(|number| record.bindings.holder_of(number)).collect()
        }
        Data::Queue(_) if is_mine(second) => first.into_iter().collect(),
        _ => return None,
    };
    ahead.sort_unstable();
    ahead.dedup();
    Some(ahead)
}

/// What to tell those who listen to a lock whose record has changed, whichever process changed it.
pub(super) fn changed(directory: &Directory, now: Now, id: RecordId) -> Option<Notification> {
    match Lock::peek(directory, id) {
        Ok(record) => news(record.as_ref(), now),
        // The next look decides: it may have been read while its file was used again.
        Err(_) => None,
    }
}

/// What a look at a lock has seen.
pub(super) struct Looked {
    /// What to tell those who listen.
    pub(super) wake: Option<Notification>,
    /// Who is ahead of a place of this process that is at the front of the line: it has to notice
    /// by itself that they crash.
    pub(super) ahead: Option<Vec<HolderId>>,
}

/// Looks at a lock. Of a queue in which processes wait it looks at those only that are ahead of a
/// place of this process at the front of the line: each other waiter is told when it comes there.
pub(super) fn looked(directory: &Directory, holders: &Holders, now: Now, id: RecordId) -> Looked {
    let Ok(Some(record)) = Lock::peek(directory, id) else {
        // Gone; or unreadable, which the next request reports.
        return Looked { wake: Some(Notification::Free { by: None }), ahead: None };
    };
    let by = match &record.lock.value {
        Data::Text(value) => parse_value(value).map(|(owner, _)| owner),
        _ => None,
    };
    if front(&record.lock.value)[0].is_some() {
        let ahead = ahead_of_mine(&record, holders);
        let crashed = |ahead: &Vec<HolderId>| ahead.iter().any(|holder| is_dead(directory, holders, *holder));
        let wake = match ahead.as_ref().is_some_and(crashed) {
            true => Some(Notification::Reconnected),
            false => news(Some(&record), now),
        };
        return Looked { wake, ahead };
    }
    let wake = match news(living(directory, holders, record).unwrap_or(None).as_ref(), now) {
        Some(Notification::Free { .. }) => Some(Notification::Free { by }),
        wake => wake,
    };
    Looked { wake, ahead: None }
}

/// What a record says to those who listen.
fn news(record: Option<&Record>, now: Now) -> Option<Notification> {
    match record.filter(|record| !record.is_over(now)).map(|record| &record.lock.value) {
        None => Some(Notification::Free { by: None }),
        // A process was taken out, and the process that asks first lets the next in.
        Some(Data::Queue(queue)) if queue.is_due() => Some(Notification::Reconnected),
        Some(Data::Queue(queue)) => Some(Notification::Granted { tickets: queue.holding().collect() }),
        Some(_) => None,
    }
}

/// A part of the listing, in the order of the files.
pub(super) fn page(directory: &Directory, now: Now, prefix: &str, from: &Cursor) -> Result<Page, Failure> {
    let records = directory.entries()?.records;
    let start = match from.0.parse::<RecordId>() {
        Ok(from) => records.partition_point(|id| *id <= from),
        Err(()) => 0,
    };
    let part = &records[start..records.len().min(start + PAGE)];
    let mut page = Page::default();
    for id in part {
        let record = match Lock::peek_whole(directory, *id) {
            Ok(Some(record)) => record,
            // Gone since the directory was read.
            Ok(None) => continue,
            Err(failure) => {
                // The other locks are listed all the same.
                event!(WARN, target: SETUP, "lock_not_listed", "a lock is not listed", failure = text(failure));
                continue;
            }
        };
        if !record.name.as_str().starts_with(prefix) {
            continue;
        }
        let Some(record) = living(directory, &Holders::default(), record)? else { continue };
        let state = State { lock: Some(record.lock), ballot: None };
        page.locks.extend(protocol::found(&state, now).map(|found| (record.name, found)));
    }
    if start + PAGE < records.len() {
        page.next = part.last().map(|id| Cursor(id.to_string()));
    }
    Ok(page)
}
