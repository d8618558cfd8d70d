//! Groups of locks, which bound the number of time series.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::{Arc, PoisonError, RwLock};

use crate::name::LockName;

/// Maximum groups with their own counters; further ones share [`OTHER`].
pub(super) const MOST: usize = 100;
/// The groups of the rule, [`UNGROUPED`] and [`OTHER`].
pub(super) const SLOTS: usize = MOST + 2;

/// The group of locks that the rule assigns to none.
const UNGROUPED: &str = "";
/// The group of all groups beyond [`MOST`].
const OTHER: &str = "other";
/// Maximum length of a group's name in bytes; longer ones are cut.
const LONGEST: usize = 128;

type Rule = dyn for<'a> Fn(&'a str) -> Option<&'a str> + Send + Sync;

/// Maps locks to the groups whose counters [`Locks::metrics`](crate::Locks::metrics) keeps apart. The rule
/// gets the name of a lock without the prefix.
///
/// Without a rule all locks are in one group with an empty name. With one, the first 100 groups have their
/// own counters and all further ones share the group `other`, so that a rule with too many groups does no
/// harm. Names of groups are cut after 128 bytes.
/// ```
/// use tenure::Locks;
/// use tenure::metrics::Groups;
///
/// # tenure::block_on(async {
/// let locks = Locks::memory().with(|options| options.groups(Groups::by_prefix(':')))?;
/// locks.mutex("orders:42")?.lock().await?.release().await?;
/// locks.mutex("orders:43")?.lock().await?.release().await?;
/// assert_eq!(locks.metrics().group("orders").acquired, 2);
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Default)]
pub struct Groups(Option<Arc<Rule>>);

impl UnwindSafe for Groups {}
impl RefUnwindSafe for Groups {}

impl Groups {
    /// One group for all locks: the default.
    ///
    /// ```
    /// assert_eq!(tenure::Options::new().groups, tenure::metrics::Groups::none());
    /// ```
    pub fn none() -> Self {
        Self::default()
    }

    /// Groups locks by the part of the name before the first `separator`. A name without it has no group.
    ///
    /// ```
    /// # use tenure::metrics::Groups;
    /// let locks = tenure::Locks::memory().with(|options| options.groups(Groups::by_prefix('/')))?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn by_prefix(separator: char) -> Self {
        Self::by(move |name| name.split_once(separator).map(|(group, _)| group))
    }

    /// Groups locks by this function, which runs at each acquisition, on the caller's thread.
    ///
    /// ```
    /// # use tenure::metrics::Groups;
    /// let groups = Groups::by(|name| name.starts_with("report-").then_some("reports"));
    /// let locks = tenure::Locks::memory().with(|options| options.groups(groups))?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn by(spec: impl for<'a> Fn(&'a str) -> Option<&'a str> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(spec)))
    }
}

/// Equal if one is a clone of the other.
impl PartialEq for Groups {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(spec), Some(other)) => Arc::ptr_eq(spec, other),
            (spec, other) => spec.is_none() && other.is_none(),
        }
    }
}

impl Eq for Groups {}

impl fmt::Debug for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Groups::by(..)" } else { "Groups::none()" })
    }
}

/// The groups seen so far.
#[derive(Default)]
pub(super) struct Names(RwLock<BTreeMap<String, u8>>);

impl Names {
    /// The slot of a lock's group: 0 for [`UNGROUPED`], the last for [`OTHER`].
    pub(super) fn slot(&self, groups: &Groups, name: &LockName) -> u8 {
        let Some(group) = groups.0.as_ref().and_then(|spec| spec(name.as_str())) else { return 0 };
        let end = (0..=LONGEST.min(group.len())).rev().find(|at| group.is_char_boundary(*at));
        let group = &group[..end.unwrap_or(0)];
        match group {
            UNGROUPED => return 0,
            OTHER => return LAST,
            _ => {}
        }
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        match known.get(group) {
            Some(slot) => return *slot,
            None if known.len() == MOST => return LAST,
            None => drop(known),
        }
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let next = known.len();
        if next == MOST && !known.contains_key(group) {
            return LAST;
        }
        *known.entry(group.to_owned()).or_insert(next as u8 + 1)
    }

    pub(super) fn all(&self) -> Vec<(usize, String)> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let named = known.iter().map(|(name, slot)| (usize::from(*slot), name.clone()));
        let mut all = vec![(0, UNGROUPED.to_owned())];
        all.extend(named);
        all.push((usize::from(LAST), OTHER.to_owned()));
        all
    }

    #[cfg(feature = "metrics")]
    pub(super) fn of(&self, slot: u8) -> String {
        let all = self.all().into_iter();
        all.filter(|(at, _)| *at == usize::from(slot)).map(|(_, name)| name).next().unwrap_or_default()
    }
}

const LAST: u8 = (SLOTS - 1) as u8;

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(names: &Names, groups: &Groups, name: &str) -> u8 {
        names.slot(groups, &LockName::new(name).expect("a name"))
    }

    #[test]
    fn a_hundred_groups_have_a_slot_and_further_ones_share_one() {
        let (names, groups) = (Names::default(), Groups::by_prefix(':'));
        for number in 0..100 {
            assert_eq!(slot(&names, &groups, &format!("{number}:x")), number + 1);
        }
        assert_eq!(slot(&names, &groups, "100:x"), LAST);
        assert_eq!(slot(&names, &groups, "7:y"), 8);
        assert_eq!((slot(&names, &groups, "other:x"), slot(&names, &groups, "x")), (LAST, 0));
        assert_eq!((names.all().len(), slot(&names, &Groups::none(), "7:y")), (102, 0));
    }

    #[test]
    fn the_name_of_a_group_is_cut_off_between_characters() {
        let (names, groups) = (Names::default(), Groups::by_prefix(':'));
        slot(&names, &groups, &format!("{}:x", "é".repeat(100)));
        assert_eq!(names.all()[1].1, "é".repeat(64));
    }
}
