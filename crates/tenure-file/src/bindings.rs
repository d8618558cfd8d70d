//! Which holder file each hold is bound to.

use std::collections::BTreeMap;

use super::names::HolderId;

/// The holder file of each hold, by number; see [`protocol::end`](tenure_core::protocol::end). A hold that is
/// not listed ends only with its lease. A sorted vector, because every request on a queue reads all of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bindings(Vec<(u64, HolderId)>);

impl Bindings {
    /// Bindings as read from a record; `None` if a hold is listed twice.
    pub(super) fn new(mut bindings: Vec<(u64, HolderId)>) -> Option<Self> {
        bindings.sort_unstable();
        bindings.is_sorted_by(|(one, _), (next, _)| one < next).then_some(Self(bindings))
    }

    /// Binds a hold to this holder, or to none, replacing its previous binding.
    pub(super) fn bind(&mut self, number: u64, holder: Option<HolderId>) {
        match (self.find(number), holder) {
            (Ok(place), Some(holder)) => self.0[place].1 = holder,
            (Ok(place), None) => drop(self.0.remove(place)),
            (Err(place), Some(holder)) => self.0.insert(place, (number, holder)),
            (Err(_), None) => {}
        }
    }

    /// Removes the bindings of ended holds.
    pub(super) fn retain(&mut self, is_there: impl Fn(u64) -> bool) {
        self.0.retain(|(number, _)| is_there(*number));
    }

    pub(super) fn holder_of(&self, number: u64) -> Option<HolderId> {
        self.find(number).ok().map(|place| self.0[place].1)
    }

    pub(super) fn names(&self, holder: HolderId) -> bool {
        self.0.iter().any(|(_, named)| *named == holder)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, HolderId)> {
        self.0.iter().copied()
    }

    /// The holders in order, each with the numbers bound to it.
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
