//! What a request does to the files, and what a look at them tells.

use super::bonds::Bonds;
use super::directory::{Directory, Inside, Life, Over};
use super::holders::Holders;
use super::record::{FULL_BYTES, Record, RecordId};
use crate::planted::{Bug, applied, planted};
use crate::protocol::{self, Answer, Bind, Data, Entry, Now, Op, Rule, State, Verb, Wake, ours};
use crate::runtime::Runtime;
use crate::store::{Cursor, Failure, Page};

/// So many records are in one page of a listing.
const PAGE: usize = 1_000;

/// Both clocks.
pub(super) fn now(runtime: &dyn Runtime) -> Now {
    Now { ms: runtime.now().millis(), unix_us: runtime.unix_micros() }
}

/// Runs one request against its record. Either all of it is written or nothing but a used-up token.
pub(super) fn apply(
    inside: &mut Inside<'_>,
    holders: &mut Holders,
    runtime: &dyn Runtime,
    op: &Op,
) -> Result<(Answer, Option<Wake>), Failure> {
    let id = RecordId::of(&op.name);
    let (before, text) = inside.load(id)?.unzip();
    if let Some(record) = before.as_ref().filter(|record| record.name != op.name) {
        return Err(inside.misplaced(id, record));
    }
    let named = before.as_ref().map(|record| record.bonds.clone()).unwrap_or_default();
    let (lock, mut bonds) = match before.map(|record| living(inside, holders, record)).transpose()?.flatten()
    {
        Some(record) => (Some(record.lock), record.bonds),
        None => (None, Bonds::default()),
    };
    let fence =
        Some(inside.fence()).filter(|fence| *fence > 0).map(|value| Entry { value, expires_ms: None });
    let mut state = State { lock, fence };
    let (answer, wake) = protocol::apply(&mut state, now(runtime), op);

    if let Some(bond) = bond(op, &answer) {
        holders.bind(inside, runtime, &op.name, bond, &mut bonds)?;
    }
    let after = state.lock.map(|lock| {
        bonds.retain(|number| lock.value.has(number));
        Record { name: op.name.clone(), boot: inside.boot().to_owned(), bonds, lock }
    });
    let fence = state.fence.map_or(0, |fence| fence.value);
    let written = store(inside, id, text.as_deref(), after.as_ref(), fence, op);
    let removed = text.is_some() && after.is_none();
    let wake = wake.or(removed.then_some(Wake::Free { by: None }));
    if written.is_ok() {
        applied(op, &answer, wake.as_ref(), after.as_ref().map(|record| &record.lock));
    }
    let kept = match written {
        Ok(()) => after.map(|record| record.bonds).unwrap_or_default(),
        Err(_) => named,
    };
    holders.settle(inside, &op.name, &kept);
    written?;
    Ok((answer, wake))
}

/// The hold or place that this answer is about, and what it is to be bound to from now on.
fn bond(op: &Op, answer: &Answer) -> Option<(u64, Bind)> {
    let (hold, bind) = match op.verb {
        Verb::Acquire { hold, bind, .. } => (hold, bind),
        Verb::Renew { hold, bind, .. } => (hold, bind?),
        _ => return None,
    };
    match *answer {
        Answer::Held { .. } if op.rule == Rule::Reentrant => Some((hold, bind)),
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

/// What still counts of a record: it is of this boot, and some of those who have a part in it have not crashed.
fn living(directory: &Directory, holders: &Holders, record: Record) -> Result<Option<Record>, Failure> {
    let life = |holder| if holders.is_mine(holder) { Life::Alive } else { directory.life(holder) };
    if record.boot == directory.boot() {
        return Ok(record.without(|holder| life(holder) == Life::Dead && !planted(Bug::DeathIgnored)));
    }
    // A process outlives no boot, so with a living holder the boot id is what is wrong.
    let is_alive = record.bonds.iter().any(|(holder, _)| life(holder) == Life::Alive);
    if is_alive { Err(directory.other_boot()) } else { Ok(None) }
}

/// What to tell those who listen to a lock whose record has changed, whoever changed it.
pub(super) fn changed(directory: &Directory, now: Now, id: RecordId) -> Option<Wake> {
    match directory.peek(id) {
        Ok(record) => news(record.as_ref(), now),
        // The next look decides: it may have been read while its file was used again.
        Err(_) => None,
    }
}

/// What to tell those who listen to a lock now and then: also of crashes.
pub(super) fn looked(directory: &Directory, holders: &Holders, now: Now, id: RecordId) -> Option<Wake> {
    let Ok(Some(record)) = directory.peek(id) else {
        // Gone; or unreadable, which whoever asks must hear.
        return Some(Wake::Free { by: None });
    };
    let by = match &record.lock.value {
        Data::Text(value) => ours(value).map(|(owner, _)| owner),
        _ => None,
    };
    match news(living(directory, holders, record).unwrap_or(None).as_ref(), now) {
        Some(Wake::Free { .. }) => Some(Wake::Free { by }),
        wake => wake,
    }
}

/// What a record says to those who listen.
fn news(record: Option<&Record>, now: Now) -> Option<Wake> {
    match record.filter(|record| !record.lock.is_over(now)).map(|record| &record.lock.value) {
        None => Some(Wake::Free { by: None }),
        // Somebody was taken out, and whoever asks first lets the next in.
        Some(Data::Queue(queue)) if queue.is_due() => Some(Wake::Reconnected),
        Some(Data::Queue(queue)) => Some(Wake::Granted { tickets: queue.holding().collect() }),
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
        // Gone since the directory was read.
        let Some(record) = directory.peek(*id)? else { continue };
        if !record.name.as_str().starts_with(prefix) {
            continue;
        }
        let Some(record) = living(directory, &Holders::default(), record)? else { continue };
        let state = State { lock: Some(record.lock), fence: None };
        page.locks.extend(protocol::found(&state, now).map(|found| (record.name, found)));
    }
    if start + PAGE < records.len() {
        page.next = part.last().map(|id| Cursor(id.to_string()));
    }
    Ok(page)
}
