//! Keys, their types and their expiry.

use std::collections::{BTreeMap, BTreeSet};

/// All state of a server.
#[derive(Default)]
pub(super) struct Database {
    pub(super) keys: BTreeMap<Vec<u8>, Entry>,
    pub(super) now_us: u64,
    pub(super) published: Vec<(String, String)>,
    /// Channel suffixes whose messages reach no subscriber.
    pub(super) unheard: BTreeSet<String>,
    pub(super) run_id: String,
}

pub(super) struct Entry {
    pub(super) data: Data,
    /// The last millisecond in which the key exists.
    pub(super) expires_ms: Option<u64>,
}

pub(super) enum Data {
    Text(Vec<u8>),
    Hash(BTreeMap<Vec<u8>, Vec<u8>>),
    Sorted(Sorted),
}

impl Data {
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Text(_) => false,
            Self::Hash(hash) => hash.is_empty(),
            Self::Sorted(sorted) => sorted.scores.is_empty(),
        }
    }
}

/// A score, in numeric order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Score(pub(super) f64);

impl Eq for Score {}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Members by score, and by bytes among equal scores.
#[derive(Default)]
pub(super) struct Sorted {
    scores: BTreeMap<Vec<u8>, Score>,
    order: BTreeSet<(Score, Vec<u8>)>,
}

impl Sorted {
    pub(super) fn len(&self) -> usize {
        self.scores.len()
    }

    pub(super) fn score(&self, member: &[u8]) -> Option<f64> {
        self.scores.get(member).map(|score| score.0)
    }

    /// Returns whether the member is new.
    pub(super) fn put(&mut self, member: &[u8], score: f64) -> bool {
        // Normalizes -0.
        let score = Score(score + 0.0);
        let old = self.scores.insert(member.to_vec(), score);
        if let Some(old) = old {
            self.order.remove(&(old, member.to_vec()));
        }
        self.order.insert((score, member.to_vec()));
        old.is_none()
    }

    pub(super) fn remove(&mut self, member: &[u8]) -> bool {
        let Some(score) = self.scores.remove(member) else { return false };
        self.order.remove(&(score, member.to_vec()))
    }

    pub(super) fn in_order(&self) -> impl DoubleEndedIterator<Item = (&[u8], f64)> {
        self.order.iter().map(|(score, member)| (&member[..], score.0))
    }
}

impl Database {
    pub(super) fn now_ms(&self) -> u64 {
        self.now_us / 1_000
    }

    /// The entry at a key, unless it has expired.
    pub(super) fn entry(&mut self, key: &[u8]) -> Option<&mut Entry> {
        let now = self.now_ms();
        if self.keys.get(key)?.expires_ms.is_some_and(|end| now > end) {
            self.keys.remove(key);
        }
        self.keys.get_mut(key)
    }

    /// The entry at a key, inserted if missing.
    pub(super) fn entry_or(&mut self, key: &[u8], data: Data) -> &mut Entry {
        if self.entry(key).is_none() {
            self.keys.insert(key.to_vec(), Entry { data, expires_ms: None });
        }
        self.keys.get_mut(key).expect("it was just put there")
    }

    /// Removes a hash or set that has become empty.
    pub(super) fn tidy(&mut self, key: &[u8]) {
        if self.keys.get(key).is_some_and(|entry| entry.data.is_empty()) {
            self.keys.remove(key);
        }
    }
}
