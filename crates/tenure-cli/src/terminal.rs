//! The terminal: who reads from it, and whom Ctrl-C and Ctrl-Z reach.
//!
//! The command leads a process group. While that is the terminal's foreground group, keys reach the
//! command and not us; otherwise they reach us, and we pass them on: once either way.
//!
//! Only a foreground process may move the terminal elsewhere without being stopped for it
//! (SIGTTOU), and to ignore that signal takes `unsafe`. So the terminal is always moved by a
//! process that is in the foreground: to the command by us, and back by a short-lived stage of this
//! program that is started inside the command's group.

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
    /// The terminal that controls this session, if there is one.
    pub(crate) fn open() -> Option<Self> {
        let tty = OpenOptions::new().read(true).write(true).open("/dev/tty").ok()?;
        Some(Self { tty, own: getpgrp() })
    }

    /// Whether the command should have the terminal from its start: it is ours to give, and no
    /// pipeline that may hold another program that needs it (`tenure run … | less`). In a pipeline
    /// the command gets it when it first asks.
    pub(crate) fn is_all_ours(&self) -> bool {
        self.is_with(self.own) && io::stdin().is_terminal() && io::stdout().is_terminal()
    }

    pub(crate) fn is_ours(&self) -> bool {
        self.is_with(self.own)
    }

    pub(crate) fn is_with(&self, group: Pid) -> bool {
        tcgetpgrp(&self.tty) == Ok(group)
    }

    /// Gives it to the command, if it is ours.
    pub(crate) fn give(&self, group: Pid) {
        if self.is_ours() {
            let _ = tcsetpgrp(&self.tty, group);
        }
    }

    /// Takes it back from the command, whose first process must not have been waited for yet: that
    /// keeps its group in being.
    pub(crate) fn take_back(&self, group: Pid) {
        // Ctrl-C at this moment ends the stage, so once is not always enough.
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

    /// Whether there is a shell that could wake us if we stopped: the group of the session's leader
    /// has none.
    pub(crate) fn has_job_control(&self) -> bool {
        getsid(None).is_ok_and(|session| session != self.own)
    }

    /// Stops this process as Ctrl-Z does; returns when it goes on. `told` is whether the terminal
    /// told our whole group, so that the rest of it (a script that runs us) needs no telling.
    pub(crate) fn stop_ourselves(&self, told: bool) {
        let _ = if told {
            kill_process(getpid(), Signal::STOP)
        } else {
            kill_process_group(self.own, Signal::STOP)
        };
    }

    /// Sends our group, us included, what a key would have sent it.
    pub(crate) fn tell_ourselves(&self, signal: Signal) {
        let _ = kill_process_group(self.own, signal);
    }
}

/// Waits until it has ended. Ctrl-Z at this moment stops it, and no other process would wake it.
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
