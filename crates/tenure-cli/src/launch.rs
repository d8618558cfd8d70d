//! The stages in which this program executes itself, selected by hidden first arguments.
//!
//! `__launch VOICE TERMINAL CMD [ARGS…]` becomes the command, in three steps that safe code cannot do
//! between fork and exec: it asks Linux to kill it when the thread that started it ends; it waits until its
//! [`watchdog`](crate::watchdog) is running; it executes the command, which inherits the first setting.
//! (Linux clears that on a change of user, and other systems have no such setting; the watchdog covers both.)

use std::env::{self, ArgsOs};
use std::ffi::{OsStr, OsString};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::cmsg_space;
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Pid, Signal, getpid, getppid, kill_process};
use rustix::stdio::dup2_stdin;

use crate::exit::{NOT_FOUND, OWN, chain, of_exec};
use crate::output::Voice;
use crate::platform::{die_with_parent, own_program, unable_to_start};

pub(crate) const LAUNCH: &str = "__launch";
pub(crate) const FOREGROUND: &str = "__foreground";
pub(crate) const KEEP: &str = "__keep";
pub(crate) const WATCHDOG: &str = "__watchdog";
pub(crate) const STRESS: &str = "__stress";

/// Executes this program again.
pub(crate) fn again() -> Command {
    let mut command = own_program();
    command.arg0("tenure");
    command
}

/// The message of an error that kept such a process from starting.
pub(crate) fn unstarted(what: &str, error: &io::Error) -> String {
    match (error.kind(), unable_to_start()) {
        (io::ErrorKind::NotFound, Some(why)) => format!("{what}: {why}"),
        (io::ErrorKind::ArgumentListTooLong, _) => {
            format!("{what}: the arguments and the environment of the command are too long for the system")
        }
        _ => format!("{what}: {error}"),
    }
}

/// A command ready to start through the launch stage.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) command: Command,
    pub(crate) gate: Gate,
    /// Whether it leads a new process group or shares ours.
    pub(crate) leads: bool,
}

impl Launch {
    /// Must be spawned from a thread that lives as long as the command may.
    pub(crate) fn new(
        words: &[OsString],
        voice: Voice,
        with_terminal: bool,
        leads: bool,
    ) -> io::Result<Self> {
        let (gate, theirs) = UnixStream::pair()?;
        let mut command = again();
        command.arg(LAUNCH).stdin(OwnedFd::from(theirs));
        command.arg(if voice.quiet { "quiet" } else { "loud" });
        command.arg(if with_terminal { "foreground" } else { "background" });
        command.args(words);
        if leads {
            command.process_group(0);
        }
        Ok(Self { command, gate: Gate(gate), leads })
    }
}

/// What a command waits for, as its standard input.
#[derive(Debug)]
pub(crate) struct Gate(UnixStream);

impl Gate {
    /// Lets the command run, with the standard input of this process.
    pub(crate) fn open(&self) -> io::Result<()> {
        let (input, mut space) = (io::stdin(), [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))]);
        let (inputs, mut ancillary) = ([input.as_fd()], SendAncillaryBuffer::new(&mut space));
        ancillary.push(SendAncillaryMessage::ScmRights(&inputs));
        retry_on_intr(|| sendmsg(&self.0, &[IoSlice::new(b".")], &mut ancillary, SendFlags::empty()))?;
        Ok(())
    }
}

/// The stage that becomes the command.
pub(crate) fn launch(mut args: ArgsOs) -> Option<u8> {
    let voice = Voice { quiet: args.next()? == "quiet", verbose: false };
    let with_terminal = args.next()? == "foreground";
    let program = args.next()?;
    let parent = getppid();

    if let Err(error) = die_with_parent() {
        voice.say(format_args!("cannot set the parent death signal of the command: {error}"));
        return Some(OWN);
    }
    // If the parent died before that was set, the gate stays shut.
    let Some(input) = wait_for_input() else { return Some(OWN) };
    if let Err(error) = dup2_stdin(&input) {
        voice.say(format_args!("cannot pass standard input on to the command: {error}"));
        return Some(OWN);
    }
    drop(input);
    if with_terminal {
        // Stop, as after a read from the terminal, until the wrapper has given us the terminal.
        let _ = kill_process(getpid(), Signal::TTIN);
    }

    let mut command = Command::new(&program);
    // Sockets passed by a service manager are meant for CMD, which must find its own pid there.
    if env::var("LISTEN_PID").is_ok_and(|pid| parent.is_some_and(|parent| pid == parent.to_string())) {
        command.env("LISTEN_PID", getpid().to_string()).env_remove("LISTEN_PIDFDID");
    }
    let error = command.args(args).exec();
    let code = of_exec(&error);
    let shown = program.to_string_lossy();
    if code == NOT_FOUND && is_there(&program) {
        voice.say(format_args!("{shown}: cannot be run: its interpreter was not found"));
    } else if code == NOT_FOUND {
        voice.say(format_args!("{shown}: command not found"));
    } else {
        voice.say(format_args!("{shown}: cannot be run: {}", chain(&error)));
    }
    Some(code)
}

/// The standard input of the command, once it may run; `None` if the wrapper has ended.
fn wait_for_input() -> Option<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut bytes = [IoSliceMut::new(&mut byte)];
    retry_on_intr(|| recvmsg(io::stdin(), &mut bytes, &mut ancillary, RecvFlags::empty())).ok()?;
    let messages = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    messages.flatten().next()
}

/// Whether this is the path of a file, or the name of one on the search path.
fn is_there(program: &OsStr) -> bool {
    if program.is_empty() {
        return false;
    }
    if program.as_encoded_bytes().contains(&b'/') {
        return Path::new(program).is_file();
    }
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

pub(crate) fn pid(text: &OsStr) -> Option<Pid> {
    text.to_str()?.parse().ok().and_then(Pid::from_raw)
}
