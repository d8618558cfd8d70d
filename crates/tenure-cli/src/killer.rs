//! A process that kills the command when this program is killed.
//!
//! The kernel does that too, but it forgets it where the command changes its user (`setpriv`, `su`,
//! a daemon that gives up root). The killer keeps the user of this program and has another session.
//! Its standard input is a pipe whose other end only this program has, so it sees this program end.

use std::io::{self, BufRead, PipeWriter, Write};
use std::process::{Child, Stdio};

use rustix::process::{
    Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open, pidfd_send_signal, setsid,
};

use crate::launch;

#[derive(Debug)]
pub(crate) struct Killer {
    process: Child,
    pipe: PipeWriter,
}

impl Killer {
    pub(crate) fn start() -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        let mut stage = launch::again();
        stage.arg(launch::KILLER).stdin(reader).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self { process: stage.spawn()?, pipe: writer })
    }

    /// From here on the end of this program is the end of the command and its group.
    pub(crate) fn watch(&mut self, command: Pid) {
        // A killer that is gone cannot be told, and kills nothing.
        let _ = self.pipe.write_all(format!("{}\n", command.as_raw_nonzero()).as_bytes());
    }

    /// The command has ended, or did not start. Its number may be given to another process as soon
    /// as it is waited for.
    pub(crate) fn stand_down(&mut self) {
        // It may not even have started: it is not asked, and leaves no zombie.
        let _ = self.process.kill().and_then(|()| self.process.wait());
    }
}

/// The stage: reads the number of the command, and kills that when the pipe is closed.
pub(crate) fn stage() -> Option<u8> {
    // Neither the terminal nor what ends the group of this program reaches it.
    let _ = setsid();
    let mut lines = io::stdin().lock().lines();
    let pid = lines.next()?.ok()?.parse().ok().and_then(Pid::from_raw)?;
    // It names this process also when its number is given to another.
    let command = pidfd_open(pid, PidfdFlags::empty());
    if lines.next().is_none() {
        let _ = kill_process_group(pid, Signal::KILL);
        // It may have left its group.
        let _ = match command {
            Ok(command) => pidfd_send_signal(command, Signal::KILL),
            Err(_) => kill_process(pid, Signal::KILL),
        };
    }
    Some(0)
}
