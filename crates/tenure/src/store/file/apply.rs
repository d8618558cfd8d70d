//! What a request does to the files, and what a look at them tells.

use super::directory::{Directory, Inside, Life, Over};
use super::holders::Holders;
use super::record::{Record, RecordId};
use crate::protocol::{self, Answer, Data, Entry, Now, Op, State, Verb, Wake, ours};
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
    let before = inside.read(id)?;
    if let Some(record) = before.as_ref().filter(|record| record.name != op.name) {
        return Err(inside.misplaced(id, record));
    }
    let mut named = before.as_ref().and_then(|record| record.holder);
    let mut state = State {
        lock: match &before {
            Some(record) if is_live(inside, holders, record)? => Some(record.lock.clone()),
            _ => None,
        },
        fence: Some(inside.fence()).filter(|fence| *fence > 0).map(|value| Entry { value, expires_ms: None }),
    };
    let (answer, wake) = protocol::apply(&mut state, now(runtime), op);

    let bind = match (&answer, &op.verb) {
        (Answer::Held { .. }, Verb::Acquire { bind, .. }) => Some(*bind),
        (Answer::Held { .. }, Verb::Renew { bind, .. }) => *bind,
        _ => None,
    };
    if let Some(bind) = bind {
        named = holders.bind(inside, runtime, &op.name, bind, named)?;
    }
    let after = state.lock.map(|lock| Record {
        name: op.name.clone(),
        boot: inside.boot().to_owned(),
        holder: named,
        lock,
    });
    let stored = state.fence.map_or(0, |fence| fence.value);
    let written = store(inside, id, before.as_ref(), after.as_ref(), stored);
    let kept = if written.is_ok() { &after } else { &before };
    holders.settle(inside, &op.name, kept.as_ref().and_then(|record| record.holder));
    written?;
    let removed = before.is_some() && after.is_none();
    Ok((answer, wake.or(removed.then_some(Wake::Free { by: None }))))
}

/// Writes what changed; the counter first, so that a token that was told is never given again.
fn store(
    inside: &mut Inside<'_>,
    id: RecordId,
    before: Option<&Record>,
    after: Option<&Record>,
    fence: u64,
) -> Result<(), Failure> {
    if fence != inside.fence() {
        inside.set_fence(fence)?;
    }
    match after {
        _ if after == before => Ok(()),
        Some(record) => inside.write(id, record, if before.is_some() { Over::Record } else { Over::Nothing }),
        None => inside.remove(id),
    }
}

/// Whether a record still counts: it is of this boot, and its holder has not crashed.
fn is_live(directory: &Directory, holders: &Holders, record: &Record) -> Result<bool, Failure> {
    let life = match record.holder {
        Some(holder) if holders.is_mine(holder) => Life::Alive,
        Some(holder) => directory.life(holder),
        None => Life::Unknown,
    };
    if record.boot == directory.boot() {
        return Ok(life != Life::Dead);
    }
    // A process outlives no boot, so with a living holder the boot id is what is wrong.
    if life == Life::Alive { Err(directory.other_boot()) } else { Ok(false) }
}

/// What to tell those who listen to a lock, if it may be free.
pub(super) fn freed(directory: &Directory, holders: &Holders, now: Now, id: RecordId) -> Option<Wake> {
    let Ok(Some(record)) = directory.peek(id) else {
        // Gone; or unreadable, which whoever asks must hear.
        return Some(Wake::Free { by: None });
    };
    let by = match &record.lock.value {
        Data::Text(value) => ours(value).map(|(owner, _)| owner),
        _ => None,
    };
    let is_live = is_live(directory, holders, &record).unwrap_or(false);
    let is_over = State { lock: Some(record.lock), fence: None }.is_over(now);
    (is_over || !is_live).then_some(Wake::Free { by })
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
        if !record.name.as_str().starts_with(prefix) || !is_live(directory, &Holders::default(), &record)? {
            continue;
        }
        let state = State { lock: Some(record.lock), fence: None };
        page.locks.extend(protocol::found(&state, now).map(|found| (record.name, found)));
    }
    if start + PAGE < records.len() {
        page.next = part.last().map(|id| Cursor(id.to_string()));
    }
    Ok(page)
}
