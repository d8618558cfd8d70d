//! Which holder files the holds of one lock are bound to.

use std::collections::{BTreeMap, BTreeSet};

use super::record::HolderId;

/// For each holder, the holds that end with it, by number: see [`protocol::end`](crate::protocol::end). A hold that is not
/// here ends with its lease only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bonds(BTreeMap<HolderId, BTreeSet<u64>>);

impl Bonds {
    /// Binds a hold to this holder instead of what it is bound to, or to nothing.
    pub(super) fn bind(&mut self, number: u64, holder: Option<HolderId>) {
        let named = self.holder_of(number);
        if named == holder {
            return;
        }
        if let Some(numbers) = named.and_then(|named| self.0.get_mut(&named)) {
            numbers.remove(&number);
        }
        self.0.retain(|_, numbers| !numbers.is_empty());
        if let Some(holder) = holder {
            self.0.entry(holder).or_default().insert(number);
        }
    }

    /// All that is bound to one holder, as it was written down.
    pub(super) fn insert(&mut self, holder: HolderId, numbers: BTreeSet<u64>) {
        self.0.insert(holder, numbers);
    }

    /// Forgets the holds that are no more.
    pub(super) fn retain(&mut self, is_there: impl Fn(u64) -> bool) {
        self.0.retain(|_, numbers| {
            numbers.retain(|number| is_there(*number));
            !numbers.is_empty()
        });
    }

    /// What a hold is bound to.
    pub(super) fn holder_of(&self, number: u64) -> Option<HolderId> {
        self.0.iter().find(|(_, numbers)| numbers.contains(&number)).map(|(holder, _)| *holder)
    }

    /// Whether any hold is bound to this holder.
    pub(super) fn names(&self, holder: HolderId) -> bool {
        self.0.contains_key(&holder)
    }

    /// The holders, and what is bound to each.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = (HolderId, &BTreeSet<u64>)> {
        self.0.iter().map(|(holder, numbers)| (*holder, numbers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_is_bound_to_one_holder_at_most() {
        let (a, b) = (HolderId(1), HolderId(2));
        let mut bonds = Bonds::default();
        for (number, holder) in [(7, a), (8, a), (9, b)] {
            bonds.bind(number, Some(holder));
        }
        bonds.bind(7, Some(b));
        assert_eq!([7, 8, 9, 10].map(|number| bonds.holder_of(number)), [Some(b), Some(a), Some(b), None]);
        bonds.bind(8, None);
        assert!(!bonds.names(a) && bonds.names(b));
        bonds.retain(|number| number == 7);
        assert_eq!(bonds.iter().collect::<Vec<_>>(), [(b, &BTreeSet::from([7]))]);
    }
}
