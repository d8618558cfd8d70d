//! The elections of which a process is a candidate.

use std::collections::BTreeMap;

use crate::name::LockName;
use crate::owner::Owner;
use crate::sync::Locked;

/// Maximum number of elections with metrics of their own: the first of which a process is a candidate.
const ELECTIONS: usize = 100;

/// An election of which this process is or was a candidate, and whether it leads: of the first 100.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ElectionMetrics {
    /// The election's name, without the prefix.
    pub name: String,
    /// User, host, process and label of the candidate that led last, as `tenure serve` shows a leader. `None` if
    /// none of this process has led.
    pub holder: Option<String>,
    /// Whether it leads now.
    pub leads: bool,
}

/// The last term of this process, if there was one.
type LastTerm = Option<(String, Box<dyn Fn() -> bool + Send + Sync>)>;

#[derive(Default)]
pub(super) struct Candidates(Locked<BTreeMap<LockName, LastTerm>>);

impl Candidates {
    /// A candidate waits for its term.
    pub(super) fn campaigns(&self, name: &LockName) {
        let mut all = self.0.lock();
        if all.len() < ELECTIONS && !all.contains_key(name) {
            all.insert(name.clone(), None);
        }
    }

    /// A term has begun, which lasts while `leads` is true.
    pub(super) fn elected(
        &self,
        name: &LockName,
        owner: &Owner,
        leads: impl Fn() -> bool + Send + Sync + 'static,
    ) {
        if let Some(term) = self.0.lock().get_mut(name) {
            *term = Some((holder(owner), Box::new(leads)));
        }
    }

    #[cfg(feature = "metrics")]
    pub(super) fn of(&self, name: &LockName) -> Option<ElectionMetrics> {
        self.0.lock().get(name).map(|term| metrics(name, term))
    }

    pub(super) fn all(&self) -> Vec<ElectionMetrics> {
        self.0.lock().iter().map(|(name, term)| metrics(name, term)).collect()
    }
}

fn metrics(name: &LockName, term: &LastTerm) -> ElectionMetrics {
    let (holder, leads) = match term {
        Some((holder, leads)) => (Some(holder.clone()), leads()),
        None => (None, false),
    };
    ElectionMetrics { name: name.as_str().to_owned(), holder, leads }
}

fn holder(owner: &Owner) -> String {
    let label = owner.label();
    let label = if label.is_empty() { String::new() } else { format!(" \"{label}\"") };
    format!("{}@{} pid {}{label}", owner.user(), owner.host(), owner.pid())
}
