//! What each Unix has: pipes, `poll`, `kill` and `ps`.
#![expect(clippy::disallowed_methods, reason = "a thread that waits for another process")]

use std::env;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::thread::sleep;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::{Errno, read, retry_on_intr, write};
use rustix::process::{Pid, RawPid, Resource, Signal, getrlimit, kill_process, test_kill_process};

use super::{Process, Woken};
use crate::clock;
use crate::planted::{Bug, planted};

/// Polling interval for what the system does not report. It also limits `poll`, whose timeout does not count
/// time spent asleep.
const LOOK: Duration = Duration::from_millis(250);
/// Upper bound of the descriptors that are closed.
const DESCRIPTORS: u64 = 1 << 16;

/// Sends settings to the [`Alarm`] of another process. The last one counts: if the pipe is full because that
/// process is stopped, older ones are drained.
#[derive(Debug)]
pub(crate) struct Timer {
    sender: PipeWriter,
    receiver: PipeReader,
}

/// A moment and an interval, in nanoseconds.
type Setting = [u8; 16];

impl Timer {
    pub(crate) fn new() -> io::Result<Self> {
        let (receiver, sender) = io::pipe()?;
        fcntl_setfl(&sender, OFlags::NONBLOCK)?;
        fcntl_setfl(&receiver, OFlags::NONBLOCK)?;
        Ok(Self { sender, receiver })
    }

    /// Expires at `at`, and then at each interval unless it is zero.
    pub(crate) fn set(&self, at: Duration, interval: Duration) {
        let [at, interval] = [at, interval].map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        let setting = (u128::from(interval) << 64 | u128::from(at)).to_ne_bytes();
        if retry_on_intr(|| write(&self.sender, &setting)) == Err(Errno::AGAIN) {
            let _ = last(&self.receiver);
            let _ = retry_on_intr(|| write(&self.sender, &setting));
        }
    }

    /// A descriptor for the process that waits.
    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.receiver.as_fd().try_clone_to_owned()
    }
}

/// The last setting in a pipe, which is empty afterwards.
fn last(pipe: &impl AsFd) -> Option<Setting> {
    let (mut last, mut settings) = (None, [Setting::default(); 256]);
    // Each was written at once, so none is read in parts.
    while let Ok(length @ 1..) = retry_on_intr(|| read(pipe, settings.as_flattened_mut())) {
        last = Some(settings[length / size_of::<Setting>() - 1]);
    }
    last
}

/// A [`Timer`] in the process that waits.
#[derive(Debug)]
pub(crate) struct Alarm<T> {
    settings: T,
    at: Option<Duration>,
    interval: Duration,
}

impl<T: AsFd> Alarm<T> {
    pub(crate) fn new(settings: T) -> Self {
        Self { settings, at: None, interval: Duration::ZERO }
    }

    /// Waits for input and, if `is_set`, for the timer. Input comes first.
    pub(crate) fn wait(&mut self, input: &impl AsFd, is_set: bool) -> Result<Woken, Errno> {
        loop {
            let left = self.left().min(LOOK);
            let left = is_set.then(|| Timespec::try_from(left).expect("it is short"));
            let mut fds = [PollFd::new(input, PollFlags::IN)];
            if retry_on_intr(|| poll(&mut fds, left.as_ref()))? > 0 {
                return Ok(Woken::Input);
            }
            if let Some(count) = self.expiries() {
                return Ok(Woken::Expired(count));
            }
        }
    }

    /// How long until the timer expires, as it is set now.
    fn left(&mut self) -> Duration {
        if let Some(setting) = last(&self.settings) {
            let setting = u128::from_ne_bytes(setting);
            self.at = Some(Duration::from_nanos(setting as u64));
            self.interval = Duration::from_nanos((setting >> 64) as u64);
        }
        self.at.map_or(Duration::MAX, |at| at.saturating_sub(now()))
    }

    /// Number of expiries since the last call, if any.
    fn expiries(&mut self) -> Option<u64> {
        if !self.left().is_zero() {
            return None;
        }
        let at = self.at.take()?;
        let missed = (now() - at).as_nanos().checked_div(self.interval.as_nanos());
        let count = missed.map_or(1, |missed| u32::try_from(missed).unwrap_or(u32::MAX).saturating_add(1));
        self.at = missed.map(|_| at.saturating_add(self.interval.saturating_mul(count)));
        Some(count.into())
    }
}

fn now() -> Duration {
    if planted(Bug::ClockStops) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        return Duration::try_from(now).expect("it counts from 0");
    }
    clock::now()
}

/// A process by its pid. A process that reuses the pid is mistaken for it.
#[derive(Debug)]
pub(crate) struct Handle(Pid);

impl Handle {
    pub(crate) fn open(process: Pid) -> Result<Self, Errno> {
        match test_kill_process(process) {
            Err(Errno::SRCH) => Err(Errno::SRCH),
            _ => Ok(Self(process)),
        }
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<(), Errno> {
        kill_process(self.0, signal)
    }

    /// Whether it has ended, and its parent has waited for it.
    pub(crate) fn has_ended(&self) -> bool {
        Self::open(self.0).is_err()
    }

    /// Waits until it has ended, and its parent has waited for it.
    pub(crate) fn wait(&self) -> Result<(), Errno> {
        while !self.has_ended() {
            sleep(LOOK);
        }
        Ok(())
    }
}

/// Nothing: the [`watchdog`](crate::watchdog) kills the command.
pub(crate) fn die_with_parent() -> Result<(), Errno> {
    Ok(())
}

/// The file that this program was started from.
pub(crate) fn own_program() -> Command {
    Command::new(env::current_exe().unwrap_or_else(|_| "tenure".into()))
}

/// `None`: nothing is known to keep this program from starting itself.
pub(crate) fn unable_to_start() -> Option<&'static str> {
    None
}

/// `None`: opening `/dev/fd/N` duplicates the descriptor on these systems.
pub(crate) fn inherited(_: RawFd) -> Option<String> {
    None
}

/// The descriptors that this process may have.
pub(crate) fn open_descriptors() -> impl Iterator<Item = RawFd> {
    let most = getrlimit(Resource::Nofile).current.unwrap_or(DESCRIPTORS).min(DESCRIPTORS);
    0..most as RawFd
}

/// The mask of signals that this process ignores.
pub(crate) fn ignored_signals() -> u64 {
    // Read before any handler is installed.
    static IGNORED: LazyLock<u64> = LazyLock::new(|| {
        let mask = ps(&["-o", "ignored=", "-p", &std::process::id().to_string()]);
        u64::from_str_radix(mask.trim(), 16).unwrap_or(0)
    });
    *IGNORED
}

/// Whether this process becomes the parent of those whose parents have ended: the system's first process does.
pub(crate) fn gets_orphans() -> bool {
    false
}

/// All processes, from `ps`.
pub(crate) fn processes() -> impl Iterator<Item = Process> {
    let text = ps(&["-A", "-o", "pid=", "-o", "ppid=", "-o", "pgid=", "-o", "stat="]);
    let found: Vec<_> = text.lines().filter_map(parse).collect();
    found.into_iter()
}

fn parse(line: &str) -> Option<Process> {
    let mut words = line.split_whitespace();
    let mut pid_of = || words.next()?.parse::<RawPid>().ok().map(Pid::from_raw);
    let (pid, parent, group) = (pid_of()??, pid_of()?, pid_of()?);
    Some(Process { pid, has_ended: words.next()?.starts_with('Z'), parent, group })
}

fn ps(args: &[&str]) -> String {
    let output = Command::new("/bin/ps").args(args).stdin(Stdio::null()).stderr(Stdio::null()).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_setting_counts_and_a_full_pipe_keeps_it() {
        let timer = Timer::new().expect("a pipe");
        let mut alarm = Alarm::new(timer.descriptor().expect("a descriptor"));
        let (input, end) = io::pipe().expect("a pipe");
        let far = now() + Duration::from_secs(3_600);
        for number in 0..10_000 {
            timer.set(far + Duration::from_secs(number), Duration::ZERO);
        }
        assert!(alarm.left() > Duration::from_secs(3_600 + 9_900));
        let late = now() - Duration::from_millis(2_500);
        timer.set(late, Duration::from_secs(1));
        assert_eq!(alarm.wait(&input, true), Ok(Woken::Expired(3)));
        assert_eq!(alarm.wait(&input, true), Ok(Woken::Expired(1)));
        timer.set(late, Duration::ZERO);
        drop(end);
        assert_eq!(alarm.wait(&input, true), Ok(Woken::Input), "input comes first");
        assert_eq!((alarm.expiries(), alarm.expiries()), (Some(1), None));
    }

    #[test]
    fn a_process_exists_until_it_is_reaped() {
        let mut child = Command::new("true").spawn().expect("a process");
        let process = Pid::from_child(&child);
        let handle = Handle::open(process).expect("it is there");
        child.wait().expect("a status");
        assert_eq!(handle.wait(), Ok(()));
        assert_eq!(Handle::open(process).map(drop), Err(Errno::SRCH));
    }
}
