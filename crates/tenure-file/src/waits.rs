//! The file of a lock without a queue that lists waiting processes, in the order in which they are woken when
//! it becomes free; how a request changes it, and what a waiting process finds there.
//!
//! ```text
//! called HOLDER MS
//! - HOLDER
//! ```
//!
//! The list is a hint: the first process to retry gets the lock, woken or not, and a process that misses its
//! wake-up looks periodically. Unreadable entries are skipped, and losing the file costs latency, not
//! correctness.
//!
//! A process joins when it finds the lock busy, and is removed when it is woken, gets the lock or stops
//! waiting. A process that was woken and finds the lock busy rejoins at the head. The first two are notified
//! (`+` instead of `-`) and watch for crashes: the first watches the holders, the second watches the first,
//! which may be about to take the lock.

use std::collections::VecDeque;
use std::fmt::Write;

use rustix::fs::ftruncate;
use rustix::io::{Errno, pwrite};

use super::directory::{Directory, HolderState, Inside};
use super::holders::HolderFiles;
use super::lock::read_at;
use super::names::{HolderId, RecordId};
use super::record::FileRecord;
use tenure_core::planted::{Bug, crash_point, planted};
use tenure_core::protocol::{Answer, Now, Op, Verb};
use tenure_core::runtime::Runtime;

/// Maximum length of the list. Further processes poll, and join when there is space.
const MOST: usize = 4_096;
/// How long a woken process has to retry before the next one may be woken.
const ASKS_WITHIN_MS: u64 = 50;
/// Number of processes at the head of the list that watch for crashes.
const NEAR: usize = 2;
/// Maximum processes ahead of this one whose flock is tested in one look.
const IN_FRONT: usize = 8;

/// The processes waiting for one lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Waits {
    /// The process woken last, until it retries, and the time of its wake-up.
    called: Option<(HolderId, u64)>,
    waiting: VecDeque<WaitEntry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WaitEntry {
    holder: HolderId,
    /// Whether it was notified that it is one of the first.
    is_told: bool,
}

impl Waits {
    /// Reads the list; `None` without a file.
    fn load(inside: &Inside<'_>, id: RecordId) -> Option<Self> {
        let file = inside.open_waiters(&id.waits(), false).ok()?;
        Some(Self::decode(&read_at(&file, 0, MOST * 32).ok()?))
    }

    /// Reads the list without the guard.
    pub(super) fn peek(directory: &Directory, id: RecordId) -> Self {
        directory.read_file(&id.waits()).ok().flatten().map_or_else(Self::default, |text| Self::decode(&text))
    }

    /// Writes the list if it has changed. Returns false if that failed: on a full disk every process polls.
    fn store(&self, before: &Self, inside: &Inside<'_>, id: RecordId) -> bool {
        if self == before {
            return true;
        }
        let text = self.encode();
        let write = || {
            let file = inside.open_waiters(&id.waits(), true)?;
            let mut written = 0;
            while written < text.len() {
                written += pwrite(&file, &text.as_bytes()[written..], written as u64)?;
            }
            crash_point();
            ftruncate(&file, text.len() as u64)?;
            crash_point();
            Ok::<(), Errno>(())
        };
        write().is_ok()
    }

    /// Whether no process is waiting, or was woken and has yet to retry.
    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.called.is_none()
    }

    /// All listed processes, including the woken one.
    pub(super) fn holders(&self) -> impl Iterator<Item = HolderId> {
        let called = self.called.iter().map(|(holder, _)| *holder);
        called.chain(self.waiting.iter().map(|waiting| waiting.holder))
    }

    /// The processes ahead of this one, if it is listed.
    fn before(&self, holder: HolderId) -> Option<impl Iterator<Item = HolderId>> {
        let place = self.waiting.iter().position(|waiting| waiting.holder == holder)?;
        Some(self.waiting.iter().take(place).map(|waiting| waiting.holder))
    }

    /// A process found the lock busy. `again`: it was listed before.
    fn join(&mut self, holder: HolderId, again: bool) {
        let was_called = self.asked(holder);
        if self.before(holder).is_some() || self.waiting.len() >= MOST {
            return;
        }
        let waiting = WaitEntry { holder, is_told: false };
        match was_called || again {
            true => self.waiting.push_front(waiting),
            false => self.waiting.push_back(waiting),
        }
    }

    /// A process got the lock or stopped waiting.
    fn leave(&mut self, holder: HolderId) {
        self.asked(holder);
        self.waiting.retain(|waiting| waiting.holder != holder);
    }

    /// A process retried. Returns whether it was the one woken last.
    fn asked(&mut self, holder: HolderId) -> bool {
        self.called.take_if(|(called, _)| *called == holder).is_some()
    }

    /// The lock became free: removes and returns the process to wake.
    fn call(&mut self, now_ms: u64, is_dead: impl Fn(HolderId) -> bool) -> Option<HolderId> {
        // A timestamp in the future was not written by this machine's clock.
        let is_lately = |at| now_ms.checked_sub(at).is_some_and(|since| since < ASKS_WITHIN_MS);
        let is_soon = |(called, at): (HolderId, u64)| is_lately(at) && !is_dead(called);
        if self.called.is_some_and(is_soon) {
            return None;
        }
        self.called = None;
        // Skips all dead processes at once, 4,096 at most; otherwise the next live one would not be woken
        // before its own look.
        let WaitEntry { holder, .. } =
            std::iter::from_fn(|| self.waiting.pop_front()).find(|waiting| !is_dead(waiting.holder))?;
        self.called = Some((holder, now_ms));
        Some(holder)
    }

    /// The lock is held: returns the processes at the head that were not notified yet.
    fn newly_near(&mut self) -> Vec<HolderId> {
        let near = self.waiting.iter_mut().take(NEAR).filter(|waiting| !waiting.is_told);
        near.map(|waiting| {
            waiting.is_told = true;
            waiting.holder
        })
        .collect()
    }

    fn encode(&self) -> String {
        let mut text = String::with_capacity(24 * (self.waiting.len() + 1));
        if let Some((HolderId(holder), at)) = self.called {
            let _ = writeln!(text, "called {holder:016x} {at}");
        }
        for WaitEntry { holder: HolderId(holder), is_told } in &self.waiting {
            let _ = writeln!(text, "{} {holder:016x}", if *is_told { '+' } else { '-' });
        }
        text
    }

    fn decode(text: &[u8]) -> Self {
        let holder = |digits: &str| {
            let is_one = digits.len() == 16;
            is_one.then(|| u64::from_str_radix(digits, 16).ok().map(HolderId)).flatten()
        };
        let mut waits = Self::default();
        for line in String::from_utf8_lossy(text).lines() {
            let Some((sign, rest)) = line.split_once(' ') else { continue };
            match sign {
                "called" => {
                    let called = rest.split_once(' ');
                    waits.called = called.and_then(|(digits, at)| Some((holder(digits)?, at.parse().ok()?)));
                }
                "+" | "-" => {
                    let waiting = holder(rest).map(|holder| WaitEntry { holder, is_told: sign == "+" });
                    waits.waiting.extend(waiting);
                }
                _ => {}
            }
        }
        waits
    }
}

/// Updates the list of waiting processes after a request. Returns the processes to wake, and whether this
/// process is now at the front and has to watch others.
///
/// Errors are ignored: they cost a wake-up, and waiting processes also look periodically.
pub(super) fn after(
    inside: &Inside<'_>,
    holders: &mut HolderFiles,
    now: Now,
    runtime: &dyn Runtime,
    op: &Op,
    answer: &Answer,
    is_free: bool,
) -> (Vec<HolderId>, bool) {
    let id = RecordId::of(&op.name);
    let asks = matches!(op.verb, Verb::Acquire { .. });
    match answer {
        Answer::Held { .. } if asks => held(inside, holders, id),
        Answer::Busy { .. } if asks && holders.asks(id) => busy(inside, holders, runtime, id),
        _ if is_free => (freed(inside, holders, now, id).into_iter().collect(), false),
        _ => (Vec::new(), false),
    }
}

/// This process got the lock and no longer waits.
fn held(inside: &Inside<'_>, holders: &mut HolderFiles, id: RecordId) -> (Vec<HolderId>, bool) {
    let Some(before) = Waits::load(inside, id) else { return (Vec::new(), false) };
    let mut waits = before.clone();
    if let Some(mine) = holders.of_process() {
        waits.leave(mine);
    }
    holders.note_come_in(id, false);
    let near = near(holders, &mut waits);
    waits.store(&before, inside, id);
    near
}

/// The lock is busy, so this process joins the list, or rejoins it. If the list cannot be written, the
/// process does not count as being at the front; otherwise it would find itself missing and retry without a
/// pause.
fn busy(
    inside: &Inside<'_>,
    holders: &mut HolderFiles,
    runtime: &dyn Runtime,
    id: RecordId,
) -> (Vec<HolderId>, bool) {
    let Ok(Some(mine)) = holders.callee(inside, runtime) else { return (Vec::new(), false) };
    let before = Waits::load(inside, id).unwrap_or_default();
    let mut waits = before.clone();
    let again = holders.has_come_in(id);
    if !again || !planted(Bug::CalledInVainLeft) {
        waits.join(mine, again);
    }
    holders.note_come_in(id, true);
    let (calls, _) = near(holders, &mut waits);
    if !waits.store(&before, inside, id) {
        return (Vec::new(), false);
    }
    let is_near = !planted(Bug::NearUntold) && waits.before(mine).is_some_and(|before| before.count() < NEAR);
    (calls, is_near)
}

/// The lock is free: wakes one process.
fn freed(inside: &Inside<'_>, holders: &HolderFiles, now: Now, id: RecordId) -> Option<HolderId> {
    let before = Waits::load(inside, id)?;
    if before.is_empty() {
        let _ = inside.remove_file(&id.waits());
        return None;
    }
    let mut waits = before.clone();
    let called = waits.call(now.ms, |holder| cannot_ask(inside, holders, holder));
    waits.store(&before, inside, id);
    called.filter(|holder| !holders.is_mine(*holder))
}

/// This process stops waiting; pass its wake-up on.
pub(super) fn rest(inside: &Inside<'_>, holders: &mut HolderFiles, now: Now, id: RecordId) -> Vec<HolderId> {
    holders.note_come_in(id, false);
    let (Some(mine), Some(before)) = (holders.of_process(), Waits::load(inside, id)) else {
        return Vec::new();
    };
    let mut waits = before.clone();
    waits.leave(mine);
    if inside.has(id) {
        let (calls, _) = near(holders, &mut waits);
        waits.store(&before, inside, id);
        return calls;
    }
    waits.store(&before, inside, id);
    freed(inside, holders, now, id).into_iter().collect()
}

/// The processes that moved to the front and have to be told, and whether this process is one of them.
fn near(holders: &HolderFiles, waits: &mut Waits) -> (Vec<HolderId>, bool) {
    let mut calls = waits.newly_near();
    let all = calls.len();
    calls.retain(|holder| !holders.is_mine(*holder));
    let is_near = calls.len() < all;
    if planted(Bug::NearUntold) { (Vec::new(), false) } else { (calls, is_near) }
}

/// Whether the holder is dead, or its file is gone because it has left.
fn cannot_ask(directory: &Directory, holders: &HolderFiles, holder: HolderId) -> bool {
    let has_ended = || matches!(directory.life(holder), HolderState::Dead | HolderState::Gone);
    !holders.is_mine(holder) && has_ended() && !planted(Bug::DeathIgnored)
}

/// Number of live processes that wait for a lock without a queue.
pub(super) fn count(directory: &Directory, holders: &HolderFiles, id: RecordId) -> u64 {
    let lives = |holder: &HolderId| !cannot_ask(directory, holders, *holder);
    Waits::peek(directory, id).holders().filter(lives).count() as u64
}

/// What a process that waits for a lock without a queue finds in the list.
pub(super) enum CallState {
    /// It is not listed: it was woken or never joined, and has to retry.
    NotThere,
    /// The live processes ahead of it, two at most.
    InLine(Vec<HolderId>),
}

/// Finds this process in the list, and the processes ahead of it.
pub(super) fn seen(directory: &Directory, holders: &HolderFiles, id: RecordId) -> CallState {
    let waits = Waits::peek(directory, id);
    let Some(before) = holders.of_process().and_then(|mine| waits.before(mine)) else {
        return CallState::NotThere;
    };
    let mut others = Vec::new();
    for (place, holder) in before.enumerate() {
        // Behind two live processes there is nothing to watch.
        if others.len() >= NEAR {
            break;
        }
        if place >= IN_FRONT || !cannot_ask(directory, holders, holder) {
            others.push(holder);
        }
    }
    CallState::InLine(others)
}

/// The holders this process watches, given the processes ahead of it: the first watches the holders of the
/// lock, the second watches the first.
pub(super) fn ahead(
    record: &FileRecord,
    holders: &HolderFiles,
    before: &[HolderId],
) -> Option<Vec<HolderId>> {
    let mut ahead = match before {
        [] => record.bindings.iter().map(|(_, holder)| holder).collect(),
        [first] => vec![*first],
        _ => return None,
    };
    ahead.retain(|holder| !holders.is_mine(*holder));
    ahead.sort_unstable();
    ahead.dedup();
    Some(ahead)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALIVE: fn(HolderId) -> bool = |_| false;

    fn three() -> (Waits, [HolderId; 3]) {
        let (mut waits, all) = (Waits::default(), [HolderId(1), HolderId(2), HolderId(3)]);
        all.iter().for_each(|holder| waits.join(*holder, false));
        (waits, all)
    }

    #[test]
    fn what_was_written_reads_back_and_what_is_damaged_is_left_out() {
        let (mut waits, [a, b, c]) = three();
        assert_eq!(waits.newly_near(), [a, b]);
        assert_eq!(waits.call(7, ALIVE), Some(a));
        let text = waits.encode();
        assert_eq!(Waits::decode(text.as_bytes()), waits);
        assert_eq!(Waits::decode(b""), Waits::default());
        let cut = Waits::decode(&text.as_bytes()[..text.len() - 3]);
        assert_eq!((cut.called, cut.waiting.len()), (waits.called, 1));
        assert!(Waits::decode(b"x\ncalled x 3\n- 7\n\xff").is_empty());
        assert_eq!(waits.holders().collect::<Vec<_>>(), [a, b, c]);
    }

    #[test]
    fn one_is_called_and_comes_back_in_front_if_it_was_in_vain() {
        let (mut waits, [a, b, c]) = three();
        assert_eq!(waits.call(100, ALIVE), Some(a));
        assert_eq!(waits.call(100 + ASKS_WITHIN_MS - 1, ALIVE), None, "it is about to ask");
        waits.join(a, true);
        assert_eq!(waits.before(a).map(Iterator::count), Some(0));
        assert_eq!(waits.call(110, ALIVE), Some(a));
        // It retried and holds the lock.
        waits.leave(a);
        assert_eq!(waits.call(120, ALIVE), Some(b));
        // The woken process is stopped, and another has taken the lock meanwhile.
        assert_eq!(waits.call(120 + ASKS_WITHIN_MS, ALIVE), Some(c));
        assert_eq!(waits.call(1_000, ALIVE), None);
        assert!(waits.is_empty());
    }

    #[test]
    fn a_time_that_is_damaged_keeps_no_other_from_being_called() {
        for at in [u64::MAX, 1_000_000] {
            let mut waits = Waits::decode(format!("called {:016x} {at}\n- {:016x}\n", 1, 2).as_bytes());
            assert_eq!(waits.call(100, ALIVE), Some(HolderId(2)), "{at}");
        }
    }

    #[test]
    fn the_dead_are_passed_over_and_no_time_is_given_to_them() {
        let (mut waits, [a, b, c]) = three();
        assert_eq!(waits.call(100, |holder| holder == a), Some(b));
        assert_eq!(waits.call(101, |holder| holder == b), Some(c));
    }

    #[test]
    fn any_number_of_dead_is_passed_over_at_once() {
        let mut waits = Waits::default();
        (0..MOST as u64).for_each(|holder| waits.join(HolderId(holder), false));
        let last = HolderId(MOST as u64 - 1);
        assert_eq!(waits.call(100, |holder| holder != last), Some(last));
        (0..200).for_each(|holder| waits.join(HolderId(holder), false));
        assert_eq!(waits.call(200, |_| true), None);
        assert!(waits.is_empty());
    }

    #[test]
    fn each_is_told_once_that_it_is_near() {
        let (mut waits, [a, b, c]) = three();
        assert_eq!((waits.newly_near(), waits.newly_near()), (vec![a, b], vec![]));
        assert_eq!(waits.call(100, ALIVE), Some(a));
        waits.leave(a);
        assert_eq!(waits.newly_near(), [c]);
        waits.join(a, false);
        assert_eq!(waits.newly_near(), []);
        waits.leave(b);
        assert_eq!(waits.newly_near(), [a]);
    }
}
