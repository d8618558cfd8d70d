//! What the command needs of an operating system beyond POSIX: other processes, a timer that two processes
//! share, inherited descriptors.
//!
//! Linux has a call for each. Other systems share one portable variant, which
//! `--cfg tenure_portable` selects on Linux too, so that what runs there is tested here. No other module of
//! the command names an operating system.

#[cfg_attr(all(target_os = "linux", not(tenure_portable)), path = "linux.rs")]
#[cfg_attr(not(all(target_os = "linux", not(tenure_portable))), path = "portable.rs")]
mod system;

use rustix::process::{Pid, getpid};

pub(crate) use system::{
    Alarm, Handle, Timer, die_with_parent, gets_orphans, ignored_signals, inherited, open_descriptors,
    own_program, unable_to_start,
};

/// Why a watchdog was woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// Its program has sent a message, or has ended.
    Input,
    /// The timer has expired this many times.
    Expired(u64),
}

/// A process, or what is left of it until its parent has waited for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    pid: Pid,
    has_ended: bool,
    parent: Option<Pid>,
    group: Option<Pid>,
}

/// Children that have ended, and that nobody has waited for.
pub(crate) fn ended_children() -> Vec<Pid> {
    let own = Some(getpid());
    let ended = system::processes().filter(|process| process.has_ended && process.parent == own);
    ended.map(|process| process.pid).collect()
}

/// Whether a command, and the group that it leads, have ended. A zombie has ended, because its parent may never
/// wait for it.
pub(crate) fn group_has_ended(command: Pid, leads: bool, is_empty: bool) -> bool {
    let is_part = |process: &Process| process.pid == command || leads && process.group == Some(command);
    let mut parts = system::processes().filter(is_part).peekable();
    // A group that exists but shows no process is hidden from this user.
    (is_empty || parts.peek().is_some()) && parts.all(|process| process.has_ended)
}

#[cfg(test)]
mod tests {
    use rustix::process::{getpgrp, getppid};

    use super::*;

    #[test]
    fn this_process_is_found_with_its_parent_and_its_group() {
        let own = system::processes().find(|process| process.pid == getpid());
        let expected = Process { pid: getpid(), has_ended: false, parent: getppid(), group: Some(getpgrp()) };
        assert_eq!(own, Some(expected));
    }
}
