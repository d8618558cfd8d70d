//! A second process that ends the command when this program cannot: a dead man's switch.
//!
//! - This program is stopped (SIGSTOP, swap, a debugger) and its lease is about to end: the watchdog does
//!   what this program would have done, at the time set by [`Deadline`].
//! - This program is killed: the watchdog kills the command and then releases the locks. Linux kills the
//!   command too (parent death signal), but not if it has changed its user (`setpriv`, `su`, a daemon that
//!   drops root).
//!
//! The watchdog runs as this program's user, in a session of its own. Its standard input is a socket whose
//! other end only this program has, so it notices when this program ends. It gets its instructions over that
//! socket, because others can read a command line and an environment.
#![expect(clippy::disallowed_methods, reason = "a process of its own, in which nothing else happens")]

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::thread::{self, sleep};
use std::time::Duration;

use futures_util::future::join_all;
use rustix::fd::OwnedFd;
use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, setsid};
use serde_json::{Value, json};
use tenure::{HoldId, Locks};

use crate::deadline::Deadline;
use crate::platform::{Alarm, Woken};
use crate::process_group::ProcessGroup;
use crate::reaper::Claim;
use crate::signals::{FORWARDED, block};
use crate::{clock, descriptor, launch};

/// The watchdog's instructions.
#[derive(Debug)]
pub(crate) struct Brief {
    /// Signal to send before KILL when the lease is about to end; `None` sends KILL only.
    pub(crate) signal: Option<Signal>,
    /// Holds to release once the command is gone.
    pub(crate) holds: Vec<HoldId>,
    pub(crate) url: String,
    /// Upper bound on the leases once this program is gone.
    pub(crate) ttl: Duration,
}

/// This program is ending the command; the watchdog only kills what is left of it.
const ENDING: &[u8] = b"e";
/// The watchdog has told the command to end.
const TOLD: &[u8] = b"t";

#[derive(Debug)]
pub(crate) struct Watchdog {
    process: Child,
    socket: UnixStream,
    deadline: Deadline,
    _claim: Claim,
    has_told: bool,
}

impl Watchdog {
    /// Starts the watchdog of a command that does not run yet.
    pub(crate) fn start(brief: &Brief, deadline: Deadline, command: Pid, leads: bool) -> io::Result<Self> {
        let (mut socket, theirs) = UnixStream::pair()?;
        let mut stage = launch::again();
        stage.arg(launch::WATCHDOG).stdin(OwnedFd::from(theirs)).stdout(deadline.descriptor()?);
        let process = stage.stderr(Stdio::null()).spawn()?;
        // The stage keeps its end of the socket open.
        drop(stage);
        let _claim = Claim::of(&process);
        let briefed = socket.write_all(brief.line(command, leads).as_bytes());
        let mut watchdog = Self { process, socket, deadline, _claim, has_told: false };
        briefed
            .and_then(|()| watchdog.socket.set_nonblocking(true))
            .inspect_err(|_| watchdog.stand_down())?;
        Ok(watchdog)
    }

    /// Whether the watchdog has told the command to end.
    pub(crate) fn has_told(&mut self) -> bool {
        self.has_told |= matches!(self.socket.read(&mut [0; 1]), Ok(1));
        self.has_told
    }

    /// This program tells the command to end now, and kills it at this time; the watchdog does if this program
    /// cannot.
    pub(crate) fn kill_at(&mut self, at: Duration) {
        // Fails if the watchdog is gone.
        let _ = self.socket.write_all(ENDING);
        self.deadline.kill_at(at);
    }

    /// The command has ended or did not start. Call it before the command is reaped, because its pid may then
    /// be reused.
    pub(crate) fn stand_down(&mut self) {
        // It may still be starting, so kill it instead of sending a message, and reap it.
        let _ = self.process.kill().and_then(|()| self.process.wait());
    }
}

impl Brief {
    fn line(&self, command: Pid, leads: bool) -> String {
        let holds: Vec<String> = self.holds.iter().map(HoldId::to_string).collect();
        let brief = json!({
            "command": command.as_raw_nonzero().get(),
            "leads": leads,
            "signal": self.signal.map(Signal::as_raw),
            "holds": holds,
            "url": self.url,
            "ttl_ms": u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX),
        });
        format!("{brief}\n")
    }

    fn read(line: &[u8]) -> Option<(Self, ProcessGroup)> {
        let brief: Value = serde_json::from_slice(line).ok()?;
        let number = |key: &str| i32::try_from(brief[key].as_i64()?).ok();
        let command = number("command").and_then(Pid::from_raw)?;
        let holds = brief["holds"].as_array()?.iter().map(|hold| hold.as_str()?.parse().ok());
        let read = Self {
            signal: number("signal").and_then(Signal::from_named_raw),
            holds: holds.collect::<Option<_>>()?,
            url: brief["url"].as_str()?.to_owned(),
            ttl: Duration::from_millis(brief["ttl_ms"].as_u64()?),
        };
        Some((read, ProcessGroup::of(command, brief["leads"].as_bool()?)))
    }
}

/// The stage: ends the command when the timer on its standard output expires, or when its standard input is
/// closed.
pub(crate) fn stage() -> Option<u8> {
    // Keys and signals for this program's group must not reach it, nor those that a service manager sends to every
    // process of a unit.
    let _ = setsid();
    block(&FORWARDED);
    // It may outlive its program by a moment, and must not keep a script's descriptors open.
    descriptor::close_inherited(None);
    let mut told = Vec::new();
    while !told.contains(&b'\n') {
        if !hear(&mut told) {
            return None;
        }
    }
    let (line, rest) = told.split_at(told.iter().position(|byte| *byte == b'\n')?);
    let (brief, group) = Brief::read(line)?;
    Duty { brief, group, is_ending: rest.len() > 1, expiries: 0 }.until_over();
    Some(0)
}

/// Waits for messages of this program; returns whether it is still running.
fn hear(told: &mut Vec<u8>) -> bool {
    let mut bytes = [0; 4096];
    let Ok(count @ 1..) = retry_on_intr(|| rustix::io::read(io::stdin(), &mut bytes)) else { return false };
    told.extend_from_slice(&bytes[..count]);
    true
}

struct Duty {
    brief: Brief,
    group: ProcessGroup,
    /// Its program is ending the command itself.
    is_ending: bool,
    expiries: u64,
}

impl Duty {
    /// Returns when its program has ended and everything is cleaned up.
    fn until_over(mut self) {
        let mut alarm = Alarm::new(io::stdout());
        let mut has_killed = false;
        loop {
            match alarm.wait(&io::stdin(), !has_killed) {
                Ok(Woken::Input) if !hear(&mut Vec::new()) => return self.after_its_program(),
                Ok(Woken::Input) => self.is_ending = true,
                Ok(Woken::Expired(count)) => has_killed = self.on_expiry(count),
                Err(_) => return,
            }
        }
    }

    /// Tells the command to end, or kills it; returns whether it was killed.
    fn on_expiry(&mut self, count: u64) -> bool {
        let is_first = self.expiries == 0;
        self.expiries = self.expiries.saturating_add(count);
        if is_first && !self.is_ending {
            let _ = rustix::io::write(io::stdin(), TOLD);
        }
        match self.brief.signal {
            Some(signal) if self.expiries == 1 && !self.is_ending => {
                self.group.signal(signal);
                self.group.signal(Signal::CONT);
                false
            }
            _ => {
                self.group.signal(Signal::KILL);
                true
            }
        }
    }

    /// Its program was killed, so the lease is no longer renewed.
    fn after_its_program(self) {
        let until = clock::now() + self.brief.ttl;
        self.group.signal(Signal::KILL);
        if self.brief.holds.is_empty() {
            return;
        }
        let mut pause = Duration::from_millis(1);
        while !self.group.has_ended() {
            if clock::now() >= until {
                return;
            }
            sleep(pause);
            pause = (2 * pause).min(Duration::from_millis(20));
        }
        let left = until.saturating_sub(clock::now());
        // On a thread of its own, because this process must not outlive the leases, whatever the store does.
        let (done, over) = mpsc::channel();
        thread::spawn(move || {
            release(&self.brief, left);
            let _ = done.send(());
        });
        let _ = over.recv_timeout(left);
    }
}

/// Holds whose release fails end with their leases.
fn release(Brief { holds, url, .. }: &Brief, within: Duration) {
    let Ok(locks) = Locks::open(url) else { return };
    let Ok(locks) = locks.with(|options| options.op_timeout(within)) else { return };
    tenure::block_on(join_all(holds.iter().map(|hold| locks.release_hold(hold))));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_brief_reads_back() {
        let hold: HoldId =
            "mutex 1 ff ada@host:7/0123456789abcdef0123456789abcdef a name".parse().expect("an id");
        let brief = Brief {
            signal: Some(Signal::TERM),
            holds: vec![hold],
            url: "redis://:\"secret\"@host".into(),
            ttl: Duration::from_millis(1_500),
        };
        let line = brief.line(Pid::from_raw(7).expect("it is above 0"), true);
        let (read, group) = Brief::read(line.trim_end().as_bytes()).expect("a brief");
        assert_eq!(
            (read.signal, &read.holds, &read.url, read.ttl),
            (brief.signal, &brief.holds, &brief.url, brief.ttl)
        );
        assert_eq!(group.command().as_raw_pid(), 7);
        assert!(Brief::read(b"{}").is_none());
    }
}
