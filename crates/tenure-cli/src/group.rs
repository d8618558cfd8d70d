//! The processes that a signal for the command reaches: its process group, and the command itself if
//! it has left that.

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, getpgid, kill_process, kill_process_group, pidfd_open, pidfd_send_signal,
    test_kill_process_group,
};

use crate::processes::{self, Process};

#[derive(Debug)]
pub(crate) struct Group {
    command: Pid,
    /// Names the command also after its number was given to another process; `None` where the
    /// system has no such descriptors.
    descriptor: Option<OwnedFd>,
    /// Whether the command leads a process group.
    leads: bool,
}

impl Group {
    /// That of a command which has not been waited for yet.
    pub(crate) fn of(command: Pid, leads: bool) -> Self {
        Self { command, descriptor: pidfd_open(command, PidfdFlags::empty()).ok(), leads }
    }

    pub(crate) fn command(&self) -> Pid {
        self.command
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let is_told = self.leads && kill_process_group(self.command, signal).is_ok();
        if is_told && getpgid(Some(self.command)) == Ok(self.command) {
            return;
        }
        let _ = match &self.descriptor {
            Some(command) => pidfd_send_signal(command, signal),
            None => kill_process(self.command, signal),
        };
    }

    /// Whether no process is in the group any more. One that has ended counts until its parent has
    /// waited for it.
    pub(crate) fn is_empty(&self) -> bool {
        !self.leads || test_kill_process_group(self.command) == Err(Errno::SRCH)
    }

    /// Whether no process of it runs. One that has ended does not count, because its parent may never
    /// wait for it.
    pub(crate) fn has_ended(&self) -> bool {
        let is_part = |process: &Process| {
            process.pid == self.command || self.leads && process.group == Some(self.command)
        };
        let is_empty = self.is_empty();
        let mut parts = processes::all().filter(is_part).peekable();
        // This user may not see the processes of a group that is there and not found.
        (is_empty || parts.peek().is_some()) && parts.all(|process| process.has_ended)
    }
}
