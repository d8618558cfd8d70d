//! Bugs that a test can enable, to show that the suite catches them: `TENURE_BUG` names one. They exist only
//! in builds with `RUSTFLAGS="--cfg tenure_planted"`, which `scripts/test` sets.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// The watchdog is not given the deadline.
    DeadlineKept,
    /// The deadline is measured by a clock that stops while the machine is suspended.
    ClockStops,
    /// The watchdog keeps the first deadline, and renewals do not extend it.
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
