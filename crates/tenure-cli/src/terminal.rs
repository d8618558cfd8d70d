//! The terminal: who reads from it, and whom Ctrl-C and Ctrl-Z reach.
//!
//! The command leads a process group. While that is the terminal's foreground group, keys reach the command
//! and not us; otherwise they reach us and we forward them. Either way, each key arrives once.
//!
//! Only a foreground process may change the terminal's foreground group without being stopped (SIGTTOU), and
//! ignoring that signal requires `unsafe`. Therefore the change is always made by a process in the
//! foreground: to the command by us, and back by a short-lived stage of this program that runs inside the
//! command's group.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal};
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpgrp, getpid, getsid, kill_process, kill_process_group, waitid,
};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

use crate::launch;

#[derive(Debug)]
pub(crate) struct Terminal {
    tty: File,
    own: Pid,
}

impl Terminal {
    /// The controlling terminal of this session, if there is one.
    pub(crate) fn open() -> Option<Self> {
        let tty = OpenOptions::new().read(true).write(true).open("/dev/tty").ok()?;
        Some(Self { tty, own: getpgrp() })
    }

    /// Whether to give the command the terminal from the start: it is ours to give, and there is no pipeline
    /// with another program that may need it (`tenure run … | less`). In a pipeline the command gets it when
    /// it first asks.
    pub(crate) fn is_all_ours(&self) -> bool {
        self.is_with(self.own) && io::stdin().is_terminal() && io::stdout().is_terminal()
    }

    pub(crate) fn is_ours(&self) -> bool {
        self.is_with(self.own)
    }

    pub(crate) fn is_with(&self, group: Pid) -> bool {
        tcgetpgrp(&self.tty) == Ok(group)
    }

    /// Gives the terminal to the command, if it is ours.
    pub(crate) fn give(&self, group: Pid) {
        if self.is_ours() {
            let _ = tcsetpgrp(&self.tty, group);
        }
    }

    /// Takes the terminal back from the command, whose first process must not have been reaped: its zombie
    /// keeps the group in existence.
    pub(crate) fn take_back(&self, group: Pid) {
        // Ctrl-C at this moment ends the stage, so one attempt may not be enough.
        for _ in 0..3 {
            if !self.is_with(group) {
                return;
            }
            let mut stage = launch::again();
            stage.arg(launch::FOREGROUND).arg(self.own.to_string());
            stage.stdin(Stdio::null()).stdout(Stdio::null()).process_group(group.as_raw_nonzero().get());
            if let Ok(mut stage) = stage.spawn() {
                see_through(&mut stage);
            }
        }
    }

    /// Whether a shell could resume us after a stop; there is none for the group of the session leader.
    pub(crate) fn has_job_control(&self) -> bool {
        getsid(None).is_ok_and(|session| session != self.own)
    }

    /// Stops this process like Ctrl-Z; returns when it is resumed. `told` is whether the terminal signalled
    /// our whole group, so that the rest of it (a script that runs us) needs no signal.
    pub(crate) fn stop_ourselves(&self, told: bool) {
        let _ = if told {
            kill_process(getpid(), Signal::STOP)
        } else {
            kill_process_group(self.own, Signal::STOP)
        };
    }

    /// Sends our group, including us, the signal that a key would have sent.
    pub(crate) fn tell_ourselves(&self, signal: Signal) {
        let _ = kill_process_group(self.own, signal);
    }
}

/// Waits until the stage has ended. Ctrl-Z at this moment stops it, and nobody else would resume it.
fn see_through(stage: &mut Child) {
    let pid =
        i32::try_from(stage.id()).ok().and_then(Pid::from_raw).expect("the system numbers processes so");
    let seen = |how| waitid(WaitId::Pid(pid), how).ok().flatten().is_some_and(|status| status.stopped());
    while seen(WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT) {
        seen(WaitIdOptions::STOPPED | WaitIdOptions::NOHANG);
        let _ = kill_process(pid, Signal::CONT);
    }
    let _ = stage.wait();
}

/// The stage inside the command's group: makes `group` the foreground group.
pub(crate) fn make_foreground(group: Pid) -> io::Result<()> {
    let tty = OpenOptions::new().read(true).write(true).open("/dev/tty")?;
    Ok(tcsetpgrp(tty, group)?)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_stage_that_is_stopped_is_seen_through() {
        for script in ["true", "kill -STOP $$; kill -STOP $$; exit 3"] {
            see_through(&mut Command::new("sh").args(["-c", script]).spawn().expect("a shell"));
        }
    }
}
