//! Which holder files the holds of one lock are bound to.

use std::collections::BTreeMap;

use super::names::HolderId;

/// What each hold ends with, by number: see [`protocol::end`](tenure_core::protocol::end). A hold that is
/// not here ends with its lease only. Many processes wait in one queue, and each request reads all
/// of this: so it is one list, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bindings(Vec<(u64, HolderId)>);

impl Bindings {
    /// Those that were written down; `None` if a hold is there twice.
    pub(super) fn new(mut bindings: Vec<(u64, HolderId)>) -> Option<Self> {
        bindings.sort_unstable();
        bindings.is_sorted_by(|(one, _), (next, _)| one < next).then_some(Self(bindings))
    }

    /// Binds a hold to this holder instead of what it is bound to, or to nothing.
    pub(super) fn bind(&mut self, number: u64, holder: Option<HolderId>) {
        match (self.find(number), holder) {
            (Ok(place), Some(holder)) => self.0[place].1 = holder,
            (Ok(place), None) => drop(self.0.remove(place)),
            (Err(place), Some(holder)) => self.0.insert(place, (number, holder)),
            (Err(_), None) => {}
        }
    }

    /// Forgets the holds that are no more.
    pub(super) fn retain(&mut self, is_there: impl Fn(u64) -> bool) {
        self.0.retain(|(number, _)| is_there(*number));
    }

    /// What a hold is bound to.
    pub(super) fn holder_of(&self, number: u64) -> Option<HolderId> {
        self.find(number).ok().map(|place| self.0[place].1)
    }

    /// Whether any hold is bound to this holder.
    pub(super) fn names(&self, holder: HolderId) -> bool {
        self.0.iter().any(|(_, named)| *named == holder)
    }

    /// Each hold, and what it is bound to.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, HolderId)> {
        self.0.iter().copied()
    }

    /// The holders in order, and what is bound to each.
    pub(super) fn by_holder(&self) -> BTreeMap<HolderId, Vec<u64>> {
        let mut holders = BTreeMap::<_, Vec<u64>>::new();
        for (number, holder) in self.iter() {
            holders.entry(holder).or_default().push(number);
        }
        holders
    }

    fn find(&self, number: u64) -> Result<usize, usize> {
        self.0.binary_search_by_key(&number, |(number, _)| *number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_is_bound_to_one_holder_at_most() {
        let (a, b) = (HolderId(1), HolderId(2));
        let mut bindings = Bindings::default();
        for (number, holder) in [(7, a), (8, a), (9, b)] {
            bindings.bind(number, Some(holder));
        }
        bindings.bind(7, Some(b));
        assert_eq!([7, 8, 9, 10].map(|number| bindings.holder_of(number)), [Some(b), Some(a), Some(b), None]);
        bindings.bind(8, None);
        assert!(!bindings.names(a) && bindings.names(b));
        bindings.retain(|number| number == 7);
        assert_eq!(bindings.by_holder().into_iter().collect::<Vec<_>>(), [(b, vec![7])]);
        assert_eq!(Bindings::new(vec![(7, b)]), Some(bindings));
        assert_eq!(Bindings::new(vec![(7, b), (7, a)]), None);
    }
}
