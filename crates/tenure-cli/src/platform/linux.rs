//! Calls of Linux alone, and `/proc`.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{
    Pid, PidfdFlags, RawPid, Signal, child_subreaper, getpid, pidfd_open, pidfd_send_signal,
    set_parent_process_death_signal,
};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::{Process, Woken};
use crate::planted::{Bug, planted};

/// A timerfd on the clock of leases. It wakes the process that has its [`Alarm`], even if this one is
/// stopped.
#[derive(Debug)]
pub(crate) struct Timer(OwnedFd);

impl Timer {
    pub(crate) fn new() -> io::Result<Self> {
        let clock = match planted(Bug::ClockStops) {
            true => TimerfdClockId::Monotonic,
            false => TimerfdClockId::Boottime,
        };
        Ok(Self(timerfd_create(clock, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?))
    }

    /// Expires at `at`, and then at each interval unless it is zero.
    pub(crate) fn set(&self, at: Duration, interval: Duration) {
        // Zero would disarm it.
        let timespec = |time: Duration| Timespec::try_from(time).ok();
        let Some(it_value) = timespec(at.max(Duration::from_nanos(1))) else { return };
        let Some(it_interval) = timespec(interval) else { return };
        let time = Itimerspec { it_interval, it_value };
        let _ = timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &time);
    }

    /// A descriptor for the process that it wakes.
    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }
}

/// A [`Timer`] in the process that it wakes.
#[derive(Debug)]
pub(crate) struct Alarm<T>(T);

impl<T: AsFd> Alarm<T> {
    pub(crate) fn new(timer: T) -> Self {
        Self(timer)
    }

    /// Waits for input and, if `is_set`, for the timer. Input comes first.
    pub(crate) fn wait(&mut self, input: &impl AsFd, is_set: bool) -> Result<Woken, Errno> {
        loop {
            let mut fds = [PollFd::new(input, PollFlags::IN), PollFd::new(&self.0, PollFlags::IN)];
            let watched = if is_set { 2 } else { 1 };
            retry_on_intr(|| poll(&mut fds[..watched], None))?;
            if !fds[0].revents().is_empty() {
                return Ok(Woken::Input);
            }
            let mut count = [0; 8];
            if rustix::io::read(&self.0, &mut count) == Ok(count.len()) {
                return Ok(Woken::Expired(u64::from_ne_bytes(count)));
            }
            // A renewal has just moved it.
        }
    }
}

/// A process, safe against reuse of its pid.
#[derive(Debug)]
pub(crate) struct Handle(OwnedFd);

impl Handle {
    pub(crate) fn open(process: Pid) -> Result<Self, Errno> {
        pidfd_open(process, PidfdFlags::empty()).map(Self)
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<(), Errno> {
        pidfd_send_signal(&self.0, signal)
    }

    /// Whether it has ended, also if its parent has not waited for it yet.
    pub(crate) fn has_ended(&self) -> bool {
        poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&Timespec::default()))
            .is_ok_and(|ended| ended > 0)
    }

    /// Waits until it has ended.
    pub(crate) fn wait(&self) -> Result<(), Errno> {
        retry_on_intr(|| poll(&mut [PollFd::new(&self.0, PollFlags::IN)], None)).map(drop)
    }
}

/// The kernel kills this process, and what it executes, when the thread that started it ends.
pub(crate) fn die_with_parent() -> Result<(), Errno> {
    set_parent_process_death_signal(Some(Signal::KILL))
}

/// This program, even if its file has been replaced.
pub(crate) fn own_program() -> Command {
    Command::new("/proc/self/exe")
}

/// What keeps this program from starting itself.
pub(crate) fn unable_to_start() -> Option<&'static str> {
    let is_there = Path::new("/proc/self/exe").exists();
    (!is_there).then_some("/proc is not mounted, and this program needs it to start a part of itself")
}

/// A path that opens the file of an inherited descriptor once more.
pub(crate) fn inherited(number: RawFd) -> Option<String> {
    Some(format!("/proc/self/fd/{number}"))
}

/// The descriptors of this process.
pub(crate) fn open_descriptors() -> impl Iterator<Item = RawFd> {
    let open = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers: Vec<_> = open.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    // The directory's own is closed already.
    numbers.into_iter()
}

/// The mask of signals that this process ignores.
pub(crate) fn ignored_signals() -> u64 {
    ignored(&fs::read_to_string("/proc/self/status").unwrap_or_default())
}

fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Whether this process becomes the parent of those whose parents have ended.
pub(crate) fn gets_orphans() -> bool {
    getpid().is_init() || child_subreaper().is_ok_and(|set| set.is_some())
}

/// All that this process may see.
pub(crate) fn processes() -> impl Iterator<Item = Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw)?;
        parse(pid, &fs::read_to_string(entry.path().join("stat")).ok()?)
    })
}

fn parse(pid: Pid, stat: &str) -> Option<Process> {
    // The name before may have spaces and parentheses.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    let mut pid_of = || fields.next()?.parse::<RawPid>().ok().map(Pid::from_raw);
    let (parent, group) = (pid_of()?, pid_of()?);
    Some(Process { pid, has_ended: matches!(state, "Z" | "X"), parent, group })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_is_no_state() {
        let one = Pid::from_raw(1).expect("it is above 0");
        let found = parse(one, "1 (a) Z (b) S 0 7 7 0 -1").expect("a process");
        assert!(!found.has_ended && found.parent.is_none() && found.group.map(Pid::as_raw_pid) == Some(7));
    }

    #[test]
    fn ignored_signals_are_read_from_the_status() {
        let status = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000440\n";
        assert_eq!(ignored(status), 0x1001);
        assert_eq!(ignored(""), 0);
    }
}
