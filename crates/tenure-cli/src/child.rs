//! The command under the lock: a child process, and the group it leads.

use std::io;
use std::process::ExitStatus;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};

use crate::deadline::Deadline;
use crate::launch::Launch;
use crate::process_group::ProcessGroup;
use crate::reaper::Claim;
use crate::watchdog::{Brief, Watchdog};

#[derive(Debug)]
pub(crate) struct Child {
    process: std::process::Child,
    pub(crate) group: ProcessGroup,
    reaped: bool,
    pub(crate) watchdog: Watchdog,
    _claim: Claim,
}

impl Child {
    /// Starts the command, which waits until its watchdog runs.
    pub(crate) fn start(launch: Launch, brief: &Brief, deadline: Deadline) -> io::Result<Self> {
        let Launch { mut command, gate, leads } = launch;
        // Spawn the command first: by the time it waits for its input, the watchdog is running.
        let mut process = command.spawn()?;
        drop(command);
        let _claim = Claim::of(&process);
        let group = ProcessGroup::of(Pid::from_child(&process), leads);
        let started = Watchdog::start(brief, deadline, group.command(), leads)
            .and_then(|watchdog| gate.open().map(|()| watchdog));
        let watchdog = started.inspect_err(|_| {
            group.signal(Signal::KILL);
            let _ = process.wait();
        })?;
        Ok(Self { process, group, reaped: false, watchdog, _claim })
    }

    /// The signal that stopped it, reported once per stop.
    pub(crate) fn stopped(&self) -> Option<Signal> {
        let seen = waitid(WaitId::Pid(self.group.command()), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG);
        seen.ok().flatten()?.stopping_signal().and_then(Signal::from_named_raw)
    }

    /// Whether it has ended. It stays a zombie, so that the kernel reuses neither its pid nor its group id.
    pub(crate) fn has_ended(&self) -> bool {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        self.reaped || !matches!(waitid(WaitId::Pid(self.group.command()), look), Ok(None))
    }

    /// Reaps it and returns its exit status. A zombie counts as a member of its group, so the group is empty only
    /// after this.
    pub(crate) fn status(&mut self) -> io::Result<ExitStatus> {
        self.watchdog.stand_down();
        self.reaped = true;
        self.process.wait()
    }
}
