//! A long line of waiters, most of which is not kept in the lock's own value, but in parts.
//!
//! The lock has those that hold and the first that wait. Behind them stand parts of some places
//! each, in order. So a change writes the lock and at most the part that it is about, however many
//! wait. The lock's first line names the parts: `FIRST:SERIAL:COUNT`, from which number on places
//! stand in it, which writing of it is meant, and how many places it has. Of the text of a part the
//! first line says its serial, and the rest is as in a lock.
//!
//! A part is written in one step with its lock, and never alone. `FIRST` and `SERIAL` together name
//! one text, which is never another, so a part that was read once need not be read again.
//!
//! The machine is given what was read: those that hold, the first that wait, and parts that the
//! request is about. It lets in from the front. So that is enough while one that waits before the
//! first unread part still does so afterwards. Otherwise that part is read too.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use super::backend::PartChange;
use super::view::{Body, Part, View};
use crate::protocol::codec::{self, number};
use crate::protocol::queue::Queue;
use crate::protocol::{Data, State};

/// How many places are where.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// In one part.
    part: usize,
}

impl Sizes {
    pub(super) fn new(part: usize) -> Self {
        Self { part: part.max(1) }
    }

    /// So many that wait stand in the lock itself when a line is first divided, and when the first
    /// part moves up.
    fn front(self) -> usize {
        (self.part / 4).max(1)
    }

    /// A line that is longer is divided.
    fn undivided(self) -> usize {
        (self.part / 2).max(1)
    }

    /// Whether newcomers fit into this part.
    pub(super) fn takes_more(self, part: &Part) -> bool {
        (part.count as usize) < self.part
    }
}

/// What is written of a lock.
pub(super) struct Written {
    /// The lock; `None` removes it.
    pub(super) text: Option<String>,
    pub(super) parts: Vec<PartChange>,
}

impl View {
    /// The first part that was not read.
    pub(super) fn unread(&self) -> Option<usize> {
        self.parts.iter().position(|part| !part.is_read)
    }

    /// The part in which the place of this number stands if it is not in the lock itself.
    pub(super) fn part_of(&self, number: u64) -> Option<usize> {
        self.parts.partition_point(|part| part.first <= number).checked_sub(1)
    }

    /// How many places are in parts that were not read.
    pub(super) fn unread_places(&self) -> u64 {
        self.parts.iter().filter(|part| !part.is_read).map(|part| part.count).sum()
    }

    /// Adds what was read of a part. False if it is not the part that the lock names.
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

    /// A part that the lock names is not there, or something else is.
    pub(super) fn miss(&mut self, at: usize, is_there: bool) {
        let part = &mut self.parts[at];
        (part.is_read, part.is_missing, part.count) = (true, !is_there, 0);
    }

    /// The numbers that may stand in a part.
    fn range(&self, at: usize) -> Range<u64> {
        self.parts[at].first..self.parts.get(at + 1).map_or(u64::MAX, |next| next.first)
    }

    /// Whether what the machine said of the parts that were read holds for all: one that waits in
    /// front of the others does so still.
    pub(super) fn is_enough(&self, state: &State) -> bool {
        let Some(unread) = self.unread() else { return true };
        let first = self.parts[unread].first;
        match state.lock.as_ref().map(|lock| &lock.value) {
            Some(Data::Queue(queue)) => queue.waiting().next().is_some_and(|(number, _)| number < first),
            _ => false,
        }
    }

    /// The same without the last parts in which no place is alive, so many at most; `None` if each
    /// part has a living place.
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

    /// Divides the line, and says what is written. `before`: the same before the request.
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
            let Some(places) = places else {
                head = format!("{head} {}", part.word(base));
                continue;
            };
            let was_there = !is_made && !part.is_missing;
            // What has moved up is before it, so a part of which some have has another number.
            let first = if is_made || is_moved { places.first().copied() } else { Some(part.first) };
            if was_there && (is_moved || places.is_empty()) {
                changes.push(removal(&part, base));
            }
            let Some(first) = first.filter(|_| !places.is_empty()) else { continue };
            let is_same = was_there && !is_moved && {
                let was = before.bindings.range(before.range_of(&part));
                was.eq(places.iter().filter_map(|place| bindings.get_key_value(place)))
            };
            let (serial, count) = (part.serial + u64::from(!is_same), places.len() as u64);
            let part = Part { first, serial, count, is_read: true, is_missing: false };
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

    /// The numbers that may stand in this part.
    fn range_of(&self, part: &Part) -> Range<u64> {
        let next = self.parts.iter().find(|other| other.first > part.first);
        part.first..next.map_or(u64::MAX, |next| next.first)
    }
}

fn removal(part: &Part, base: u64) -> PartChange {
    PartChange { id: part.id(base), is_new: false, text: None }
}

/// A part as it is to be, by the numbers of its places; `None` for one that was not read.
struct Stretch {
    part: Part,
    places: Option<Vec<u64>>,
    /// It was not there before.
    is_made: bool,
    /// Its first places have moved up.
    is_moved: bool,
}

/// Those that wait in the lock itself, and those in each part.
fn divided(queue: &Queue, before: &View, parts: &[Part], sizes: Sizes) -> (Vec<u64>, VecDeque<Stretch>) {
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
            _ if number > before.last => newcomers.push(number),
            Some(places) => places.push(number),
            None => front.push(number),
        }
    }
    let mut behind = match stretches.back_mut() {
        Some(last) => {
            let places = last.places.as_mut();
            let fit = places.as_ref().map_or(0, |places| sizes.part.saturating_sub(places.len()));
            let behind = newcomers.split_off(fit.min(newcomers.len()));
            if let Some(places) = places {
                places.append(&mut newcomers);
            }
            behind
        }
        None => {
            front.append(&mut newcomers);
            if front.len() > sizes.undivided() { front.split_off(sizes.front()) } else { Vec::new() }
        }
    };
    while !behind.is_empty() {
        let rest = behind.split_off(sizes.part.min(behind.len()));
        let part = Part { first: behind[0], serial: 0, count: 0, is_read: true, is_missing: false };
        stretches.push_back(Stretch { part, places: Some(behind), is_made: true, is_moved: false });
        behind = rest;
    }
    // Where none waits before them, the first of the first part move up.
    for stretch in &mut stretches {
        let Some(places) = stretch.places.as_mut().filter(|_| front.is_empty()) else { break };
        front.extend(places.drain(..sizes.front().min(places.len())));
        stretch.is_moved = !front.is_empty();
    }
    (front, stretches)
}
