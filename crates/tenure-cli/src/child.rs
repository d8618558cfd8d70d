//! The command under the lock: one process that we started, and the group it leads.

use std::io;
use std::process::{Command, ExitStatus};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpgid, kill_process, kill_process_group, test_kill_process_group,
    waitid,
};

use crate::killer::Killer;

#[derive(Debug)]
pub(crate) struct Child {
    process: std::process::Child,
    group: Pid,
    reaped: bool,
    killer: Killer,
    /// Whether it leads a process group.
    leads: bool,
}

impl Child {
    /// Starts the command. `leads` is whether it asks for a new process group.
    pub(crate) fn start(command: &mut Command, leads: bool) -> io::Result<Self> {
        // The command first, which begins meanwhile. Until its program runs, the system kills it
        // with this one.
        let mut process = command.spawn()?;
        let group = Pid::from_child(&process);
        let mut killer = Killer::start().inspect_err(|_| {
            if leads {
                let _ = kill_process_group(group, Signal::KILL);
            }
            let _ = process.kill().and_then(|()| process.wait());
        })?;
        killer.watch(group);
        Ok(Self { process, group, reaped: false, killer, leads })
    }

    pub(crate) fn group(&self) -> Pid {
        self.group
    }

    /// Sends a signal to the whole group, and to the command itself if it has left that.
    pub(crate) fn signal(&self, signal: Signal) {
        let told = self.leads && kill_process_group(self.group, signal).is_ok();
        let is_in_group = told && getpgid(Some(self.group)) == Ok(self.group);
        if !is_in_group && !self.reaped {
            let _ = kill_process(self.group, signal);
        }
    }

    /// The signal that stopped it, told once for each stop.
    pub(crate) fn stopped(&self) -> Option<Signal> {
        let seen = waitid(WaitId::Pid(self.group), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG);
        seen.ok().flatten()?.stopping_signal().and_then(Signal::from_named_raw)
    }

    /// Whether it has ended. It stays a zombie, so that the system gives neither its number nor its
    /// group's to another process.
    pub(crate) fn has_ended(&self) -> bool {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        self.reaped || !matches!(waitid(WaitId::Pid(self.group), look), Ok(None))
    }

    /// How it ended.
    pub(crate) fn status(&mut self) -> io::Result<ExitStatus> {
        self.killer.stand_down();
        self.reaped = true;
        self.process.wait()
    }

    /// Whether its group is empty. Only after [`status`](Self::status): a zombie counts.
    pub(crate) fn group_is_empty(&self) -> bool {
        !self.leads || test_kill_process_group(self.group) == Err(Errno::SRCH)
    }
}
