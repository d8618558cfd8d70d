//! Grants of a mutex, as seen by the clients of a schedule.

use tenure_testkit::sim::clock::TrueTime;

/// A grant, and for how long its client relied on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) token: u64,
    pub(crate) asked: TrueTime,
    pub(crate) answered: TrueTime,
    pub(crate) given_back: TrueTime,
}

/// Checks that they exclude each other and that their tokens increase.
pub(crate) fn check(seed: u64, grants: &[Grant]) {
    for first in grants {
        for next in grants.iter().filter(|next| next.answered > first.answered) {
            assert!(next.answered >= first.given_back, "seed {seed}: {first:?} beside {next:?}");
            let is_later = next.asked >= first.answered;
            assert!(!is_later || next.token > first.token, "seed {seed}: {first:?}, then {next:?}");
        }
    }
}
