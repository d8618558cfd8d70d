//! What a request does to the files, and what a look at them tells.

use super::bindings::Bindings;
use super::directory::{Directory, HolderState, Inside, Over};
use super::holders::Holders;
use super::names::{HolderId, RecordId};
use super::record::{FULL_BYTES, Record};
use crate::events::{event, text};
use crate::owner::Owner;
use crate::planted::{Bug, planted};
use crate::protocol::queue::Queue;
use crate::protocol::{
    self, Answer, Data, Liveness, LockSpec, Notification, Now, Op, ReleaseScope, State, Verb, parse_value,
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
    /// line.
    pub(super) calls: Vec<HolderId>,
    /// A place of this process is at the front of the line, so that this process has to watch those
    /// ahead of it.
    pub(super) is_near: bool,
}

impl Applied {
    /// Nothing has changed but what this owner has written beside its lock.
    pub(super) fn told(by: &Owner) -> Self {
        let wake = Some(Notification::Free { by: Some(by.clone()) });
        Self { answer: Answer::Free, wake, calls: Vec::new(), is_near: false }
    }
}

/// Runs one request against its record. Either all of it is written or nothing but a used-up token.
pub(super) fn apply(
    inside: &mut Inside<'_>,
    holders: &mut Holders,
    now: Now,
    runtime: &dyn Runtime,
    op: &Op,
) -> Result<Applied, Failure> {
    let id = RecordId::of(&op.name);
    let (before, text) = inside.load(id)?.unzip();
    if let Some(record) = before.as_ref().filter(|record| record.name != op.name) {
        return Err(inside.misplaced(id, record));
    }
    let front_before = before.as_ref().map_or([None; 2], |record| front(&record.lock.value));
    let mut is_bounded = false;
    let living = before.map(|record| living_for(inside, holders, record, op, &mut is_bounded));
    let (lock, mut bindings) = match living.transpose()?.flatten() {
        Some(record) => (Some(record.lock), record.bindings),
        None => (None, Bindings::default()),
    };
    let mut state = State { lock, ballot: None };
    let mut counter = inside.fence();
    let is_dead = |number| bindings.holder_of(number).is_some_and(|holder| is_dead(inside, holders, holder));
    let (answer, wake) = run(&mut state, &mut counter, now, op, is_dead);
    let answer = match answer {
        Answer::More(_) => answer,
        answer if is_bounded => answer.and_more(),
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
    let after = state.lock.map(|lock| {
        bindings.retain(|number| lock.value.has(number));
        Record { name: op.name.clone(), boot: inside.boot().to_owned(), bindings, lock }
    });
    let written = store(inside, id, text.as_deref(), after.as_ref(), counter, op);
    let removed = text.is_some() && after.is_none();
    let wake = wake.or(removed.then_some(Notification::Free { by: None }));
    if written.is_ok() {
        #[cfg(tenure_planted)]
        super::observe::applied(op, &answer, wake.as_ref(), after.as_ref().map(|record| &record.lock));
    }
    let (mut calls, mut is_near) = (Vec::new(), false);
    if let Some(record) = &after {
        let granted = match &wake {
            Some(Notification::Granted { tickets }) => tickets.as_slice(),
            _ => &[],
        };
        let front = front(&record.lock.value);
        let moved = front.iter().zip(front_before).filter(|(now, before)| *now != before);
        let numbers = granted.iter().copied().chain(moved.filter_map(|(now, _)| *now));
        calls.extend(numbers.filter_map(|number| record.bindings.holder_of(number)));
        calls.retain(|holder| !holders.is_mine(*holder));
        is_near = ahead_of_mine(record, holders).is_some();
    }
    // After a failure, what stood there before stands there still. What cannot be read may name any
    // holder.
    let kept = match &written {
        Ok(()) => Some(after.map(|record| record.bindings).unwrap_or_default()),
        Err(_) => inside.read(id).ok().map(|record| record.map(|record| record.bindings).unwrap_or_default()),
    };
    if let Some(kept) = kept {
        holders.settle(inside, &op.name, &kept);
    }
    written?;
    Ok(Applied { answer, wake, calls, is_near })
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

/// Writes what changed; the counter first, so that a token that was told is never given again.
fn store(
    inside: &mut Inside<'_>,
    id: RecordId,
    before: Option<&[u8]>,
    after: Option<&Record>,
    fence: u64,
    op: &Op,
) -> Result<(), Failure> {
    let text = after.map(Record::encode);
    if matches!(op.verb, Verb::Acquire { .. }) && text.as_ref().is_some_and(|text| text.len() > FULL_BYTES) {
        return Err(inside.full(id));
    }
    if fence != inside.fence() {
        inside.set_fence(fence)?;
    }
    match (before, text) {
        (None, None) => Ok(()),
        (Some(before), Some(text)) if text.as_bytes() == before => Ok(()),
        (Some(_), Some(text)) => inside.write(id, &text, Over::Record),
        (None, Some(text)) => inside.write(id, &text, Over::Nothing),
        (Some(_), None) => inside.remove(id),
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
    let record = of_this_boot(directory, holders, record)?;
    Ok(record.and_then(|record| record.without(|holder| is_dead(directory, holders, holder))))
}

fn of_this_boot(directory: &Directory, holders: &Holders, record: Record) -> Result<Option<Record>, Failure> {
    if record.boot == directory.boot() {
        return Ok(Some(record));
    }
    // A process outlives no boot, so with a living holder the boot id is what is wrong.
    let is_alive = |holder| holders.is_mine(holder) || directory.life(holder) == HolderState::Alive;
    if record.bindings.iter().any(|(_, holder)| is_alive(holder)) {
        return Err(directory.other_boot());
    }
    Ok(None)
}

/// What counts of a record for one request, which looks at no more than it decides about: of a
/// queue, at the first waiters until one is alive, and at the holders if they are few or the first
/// waiter asks. Otherwise the work of a queue would grow with the square of its waiters.
fn living_for(
    directory: &Directory,
    holders: &Holders,
    record: Record,
    op: &Op,
    is_bounded: &mut bool,
) -> Result<Option<Record>, Failure> {
    let (Data::Queue(_), false) = (&record.lock.value, sees_all(&op.verb)) else {
        return living(directory, holders, record);
    };
    let Some(record) = of_this_boot(directory, holders, record)? else { return Ok(None) };
    let is_dead = |record: &Record, number: &u64| {
        record.bindings.holder_of(*number).is_some_and(|holder| is_dead(directory, holders, holder))
    };
    let Data::Queue(queue) = &record.lock.value else { return Ok(Some(record)) };
    let waiting = queue.waiting().map(|(number, _)| number);
    let dead: Vec<u64> = waiting.take(DEAD).take_while(|number| is_dead(&record, number)).collect();
    *is_bounded = dead.len() == DEAD;
    let Some(record) = record.without_numbers(&dead) else { return Ok(None) };
    let Data::Queue(queue) = &record.lock.value else { return Ok(Some(record)) };
    let holding: Vec<u64> = queue.holding().collect();
    if holding.len() > FEW && !asks_first(queue, op) {
        return Ok(Some(record));
    }
    let dead: Vec<u64> = holding.into_iter().filter(|number| is_dead(&record, number)).collect();
    Ok(record.without_numbers(&dead))
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
    match directory.peek(id) {
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
    let Ok(Some(record)) = directory.peek(id) else {
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
    match record.filter(|record| !record.lock.is_over(now)).map(|record| &record.lock.value) {
        None => Some(Notification::Free { by: None }),
        // A process was taken out, and the process that asks first lets the next in.
        Some(Data::Queue(queue)) if queue.is_due() => Some(Notification::Reconnected),
        Some(Data::Queue(queue)) => Some(Notification::Granted { tickets: queue.holding().collect() }),
        Some(_) => None,
    }
}

/// A part of the listing, in the order of the files.
pub(super) fn page(directory: &Directory, now: Now, prefix: &str, from: &Cursor) -> Result<Page, Failure> {
    let (records, _) = directory.entries()?;
    let start = match from.0.parse::<RecordId>() {
        Ok(from) => records.partition_point(|id| *id <= from),
        Err(()) => 0,
    };
    let part = &records[start..records.len().min(start + PAGE)];
    let mut page = Page::default();
    for id in part {
        let record = match directory.peek(*id) {
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
