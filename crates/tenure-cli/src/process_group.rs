//! The processes that get a signal for the command: its process group, and the command itself if it has left
//! the group.

use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpgid, kill_process, kill_process_group, test_kill_process_group};

use crate::platform::{Handle, group_has_ended};

#[derive(Debug)]
pub(crate) struct ProcessGroup {
    command: Pid,
    /// `None` if it could not be opened.
    handle: Option<Handle>,
    /// Whether the command leads a process group.
    leads: bool,
}

impl ProcessGroup {
    /// The group of a command that has not been reaped yet.
    pub(crate) fn of(command: Pid, leads: bool) -> Self {
        Self { command, handle: Handle::open(command).ok(), leads }
    }

    pub(crate) fn command(&self) -> Pid {
        self.command
    }

    /// Signals the whole group, and the command itself if it has left the group.
    pub(crate) fn signal(&self, signal: Signal) {
        let is_told = self.leads && kill_process_group(self.command, signal).is_ok();
        if is_told && getpgid(Some(self.command)) == Ok(self.command) {
            return;
        }
        let _ = match &self.handle {
            Some(command) => command.signal(signal),
            None => kill_process(self.command, signal),
        };
    }

    /// Whether the group is empty. A zombie counts as a member.
    pub(crate) fn is_empty(&self) -> bool {
        !self.leads || test_kill_process_group(self.command) == Err(Errno::SRCH)
    }

    /// Whether all its processes have ended.
    pub(crate) fn has_ended(&self) -> bool {
        group_has_ended(self.command, self.leads, self.is_empty())
    }
}
