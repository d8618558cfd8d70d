//! Long queues, most of which are kept in parts outside the lock's own value.
//!
//! The lock's value has the holders and the first waiters. Behind them come parts with some places each, in
//! order, so a change writes the lock and at most the part concerned, however long the queue is. The lock's
//! first line lists the parts as `FIRST:SERIAL:COUNT`: the lowest number in the part, its revision, and its
//! number of places. The first line of a part's text has its serial; the rest is formatted as in a lock.
//!
//! A part is always written in one step with its lock. `FIRST` and `SERIAL` together identify one text for
//! good, so a part that was read need not be read again.
//!
//! The machine works on what was read: the holders, the first waiters, and the parts that the request
//! concerns. Because it admits from the head, this is enough as long as a waiter before the first unread part
//! still waits afterwards. Otherwise that part is read as well.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use super::backend::PartChange;
use super::lock_snapshot::{Body, LockSnapshot, QueuePart};
use crate::protocol::codec::{self, number};
use crate::protocol::queue::Queue;
use crate::protocol::{Data, State};

/// Sizes of the lock's front and of the parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Maximum places in one part.
    part: usize,
}

impl Sizes {
    pub(super) fn new(part: usize) -> Self {
        Self { part: part.max(1) }
    }

    /// Waiters kept in the lock itself when a queue is first split, and when places move up from the first
    /// part.
    fn front(self) -> usize {
        (self.part / 4).max(1)
    }

    /// A longer queue is split into parts.
    fn undivided(self) -> usize {
        (self.part / 2).max(1)
    }

    /// Whether this part has room for newcomers.
    pub(super) fn takes_more(self, part: &QueuePart) -> bool {
        (part.count as usize) < self.part
    }
}

/// The texts to write for a lock.
pub(super) struct Written {
    /// The lock; `None` removes it.
    pub(super) text: Option<String>,
    pub(super) parts: Vec<PartChange>,
}

impl LockSnapshot {
    /// The first unread part.
    pub(super) fn unread(&self) -> Option<usize> {
        self.parts.iter().position(|part| !part.is_read)
    }

    /// The part that has the place of this number, if it is not in the lock itself.
    pub(super) fn part_of(&self, number: u64) -> Option<usize> {
        self.parts.partition_point(|part| part.first <= number).checked_sub(1)
    }

    /// Number of places in unread parts.
    pub(super) fn unread_places(&self) -> u64 {
        self.parts.iter().filter(|part| !part.is_read).map(|part| part.count).sum()
    }

    /// Adds the text of a part. False if it is not the part listed in the lock.
    pub(super) fn add(&mut self, at: usize, text: Option<&str>, base: u64) -> bool {
        let range = self.range(at);
        let Some(text) = text else { return false };
        let Some((serial, Body { data: Data::Queue(read), bindings })) =
            Body::read(text, base, codec::decode_part)
        else {
            return false;
        };
        let part = &mut self.parts[at];
        let Some(Data::Queue(queue)) = &mut self.data else { return false };
        let is_it = number::<u64>(serial) == Some(part.serial)
            && read.kind == queue.kind
            && bindings.len() as u64 == part.count
            && bindings.keys().all(|number| range.contains(number) && *number > queue.mark);
        if is_it {
            for (number, ticket) in read.tickets() {
                queue.insert(number, ticket.clone());
            }
            self.bindings.extend(bindings);
            part.is_read = true;
        }
        is_it
    }

    /// Records that a part listed in the lock is missing or has another text.
    pub(super) fn miss(&mut self, at: usize, is_there: bool) {
        let part = &mut self.parts[at];
        (part.is_read, part.is_missing, part.count) = (true, !is_there, 0);
    }

    /// The range of numbers of a part.
    fn range(&self, at: usize) -> Range<u64> {
        self.parts[at].first..self.parts.get(at + 1).map_or(u64::MAX, |next| next.first)
    }

    /// Whether the machine's result for the parts read so far is valid for the whole queue: a waiter before
    /// the first unread part still waits.
    pub(super) fn is_enough(&self, state: &State) -> bool {
        let Some(unread) = self.unread() else { return true };
        let first = self.parts[unread].first;
        match state.lock.as_ref().map(|lock| &lock.value) {
            Some(Data::Queue(queue)) => queue.waiting().next().is_some_and(|(number, _)| number < first),
            _ => false,
        }
    }

    /// The snapshot without the last parts that have no living place, at most `most` of them; `None` if there is
    /// no such part.
    pub(super) fn without_dead_parts(&self, living: &BTreeMap<u64, u64>, most: usize) -> Option<Self> {
        let Some(Data::Queue(queue)) = &self.data else { return None };
        let is_dead = |range: &Range<u64>| living.range(range.clone()).next().is_none();
        let read = self.parts.iter().rev().filter(|part| part.is_read && !part.is_missing);
        let dead: Vec<_> = read.map(|part| self.range_of(part)).filter(is_dead).take(most).collect();
        let stays = |number: u64| !dead.iter().any(|range| range.contains(&number));
        let mut left = queue.without_tickets();
        for (number, ticket) in queue.tickets().filter(|(number, _)| stays(*number)) {
            left.insert(number, ticket.clone());
        }
        let mut after = Self { data: Some(Data::Queue(left)), ..self.clone() };
        after.bindings.retain(|number, _| stays(*number));
        (!dead.is_empty()).then_some(after)
    }

    /// Splits the queue and returns the texts to write. `before` is the snapshot before the request.
    pub(super) fn written(self, before: &Self, base: u64, sizes: Sizes) -> Option<Written> {
        let Self { data, bindings, last, parts } = self;
        let Some(Data::Queue(queue)) = &data else {
            let removed = parts.iter().filter(|part| !part.is_missing).map(|part| removal(part, base));
            let parts = removed.collect();
            let text = match data {
                Some(data) => {
                    Some(Body { data, bindings }.text(base, &last.saturating_sub(base).to_string())?)
                }
                None => None,
            };
            return Some(Written { text, parts });
        };
        let (front, stretches) = divided(queue, before, &parts, sizes);
        let of = |numbers: &mut dyn Iterator<Item = u64>, mark: u64| -> Option<Body> {
            let mut some = queue.without_tickets();
            some.mark = mark;
            let mut bound = BTreeMap::new();
            for number in numbers {
                some.insert(number, queue.ticket(number)?.clone());
                bound.insert(number, *bindings.get(&number)?);
            }
            Some(Body { data: Data::Queue(some), bindings: bound })
        };
        let (mut head, mut changes) = (last.saturating_sub(base).to_string(), Vec::new());
        for Stretch { part, places, is_made, is_moved } in stretches {
            // An unread part stays as it is.
            let Some(places) = places else {
                head = format!("{head} {}", part.word(base));
                continue;
            };
            let was_there = !is_made && !part.is_missing;
            // Places that moved up are no longer in the part, so its first number has changed.
            let first = if is_made || is_moved { places.first().copied() } else { Some(part.first) };
            if was_there && (is_moved || places.is_empty()) {
                changes.push(removal(&part, base));
            }
            // Nobody is left in it.
            let Some(first) = first.filter(|_| !places.is_empty()) else { continue };
            let is_same = was_there && !is_moved && {
                let was = before.bindings.range(before.range_of(&part));
                was.eq(places.iter().filter_map(|place| bindings.get_key_value(place)))
            };
            let (serial, count) = (part.serial + u64::from(!is_same), places.len() as u64);
            let part = QueuePart { first, serial, count, is_read: true, is_missing: false };
            head = format!("{head} {}", part.word(base));
            if !is_same {
                let text = of(&mut places.iter().copied(), base)?.text(base, &serial.to_string())?;
                let is_new = !was_there || is_moved;
                changes.push(PartChange { id: part.id(base), is_new, text: Some(text) });
            }
        }
        let lock = of(&mut queue.holding().chain(front), queue.mark)?;
        Some(Written { text: Some(lock.text(base, &head)?), parts: changes })
    }

    /// The range of numbers of this part.
    fn range_of(&self, part: &QueuePart) -> Range<u64> {
        let next = self.parts.iter().find(|other| other.first > part.first);
        part.first..next.map_or(u64::MAX, |next| next.first)
    }
}

fn removal(part: &QueuePart, base: u64) -> PartChange {
    PartChange { id: part.id(base), is_new: false, text: None }
}

/// The new content of a part, by the numbers of its places; `None` for an unread part.
struct Stretch {
    part: QueuePart,
    places: Option<Vec<u64>>,
    /// The part is new.
    is_made: bool,
    /// Its first places have moved into the lock.
    is_moved: bool,
}

/// The waiters in the lock itself and those in each part.
fn divided(
    queue: &Queue,
    before: &LockSnapshot,
    parts: &[QueuePart],
    sizes: Sizes,
) -> (Vec<u64>, VecDeque<Stretch>) {
    let mut front: Vec<u64> = Vec::new();
    let mut stretches: VecDeque<Stretch> = parts
        .iter()
        .map(|part| Stretch {
            part: *part,
            places: part.is_read.then(Vec::new),
            is_made: false,
            is_moved: false,
        })
        .collect();
    let mut newcomers = Vec::new();
    for (number, _) in queue.waiting() {
        let at = parts.partition_point(|part| part.first <= number);
        match at.checked_sub(1).and_then(|at| stretches[at].places.as_mut()) {
            // It has come with this request.
            _ if number > before.last => newcomers.push(number),
            // It stands in a part that was read.
            Some(places) => places.push(number),
            // It stands in the lock itself.
            None => front.push(number),
        }
    }
    let mut behind = match stretches.back_mut() {
        // Newcomers fill the last part, if it was read.
        Some(last) => {
            let places = last.places.as_mut();
            let fit = places.as_ref().map_or(0, |places| sizes.part.saturating_sub(places.len()));
            let behind = newcomers.split_off(fit.min(newcomers.len()));
            if let Some(places) = places {
                places.append(&mut newcomers);
            }
            behind
        }
        // The queue is undivided so far, and stays so while it is short.
        None => {
            front.append(&mut newcomers);
            if front.len() > sizes.undivided() { front.split_off(sizes.front()) } else { Vec::new() }
        }
    };
    while !behind.is_empty() {
        let rest = behind.split_off(sizes.part.min(behind.len()));
        let part = QueuePart { first: behind[0], serial: 0, count: 0, is_read: true, is_missing: false };
        stretches.push_back(Stretch { part, places: Some(behind), is_made: true, is_moved: false });
        behind = rest;
    }
    // If no waiter is left in the lock, the first ones of the first part move up.
    for stretch in &mut stretches {
        let Some(places) = stretch.places.as_mut().filter(|_| front.is_empty()) else { break };
        front.extend(places.drain(..sizes.front().min(places.len())));
        stretch.is_moved = !front.is_empty();
    }
    (front, stretches)
}
