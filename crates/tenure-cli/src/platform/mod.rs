//! What the command needs of an operating system beyond POSIX: other processes, a timer that two processes
//! share, inherited descriptors.
//!
//! On Linux each has a call of its own. Other systems share one portable variant, which
//! `--cfg tenure_portable` selects on Linux too, so that what runs there is tested here. No other module of
//! the command names an operating system.

#[cfg_attr(all(target_os = "linux", not(tenure_portable)), path = "linux.rs")]
#[cfg_attr(not(all(target_os = "linux", not(tenure_portable))), path = "portable.rs")]
mod system;

pub(crate) use system::{
    Alarm, Handle, Timer, die_with_parent, ended_children, gets_orphans, group_has_ended, ignored_signals,
    inherited, open_descriptors, own_program,
};

/// Why a watchdog was woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// Its program says something, or has ended.
    Input,
    /// The timer has expired, as often as this since the last time.
    Expired(u64),
}
