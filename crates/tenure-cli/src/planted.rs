//! Known bugs that a test can switch on, to show that the suite catches them: `TENURE_BUG` names one.
//!
//! They exist only in builds with `RUSTFLAGS="--cfg tenure_planted"`, which `scripts/test` sets.
//! In every other build each question below is the constant `false`, and the compiler removes it.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// The watchdog is not told by when the command must have ended.
    DeadlineKept,
    /// The deadline is counted on a clock that stops while the machine sleeps.
    ClockStops,
    /// The watchdog trusts the first deadline, and renewals do not move it.
    FirstDeadlineTrusted,
}

#[cfg(tenure_planted)]
pub(crate) fn planted(bug: Bug) -> bool {
    std::env::var("TENURE_BUG").is_ok_and(|name| name == format!("{bug:?}"))
}

#[cfg(not(tenure_planted))]
pub(crate) const fn planted(_: Bug) -> bool {
    false
}
