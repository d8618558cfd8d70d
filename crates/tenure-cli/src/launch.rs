//! The stages in which this program executes itself, selected by hidden first arguments.
//!
//! `__launch GATE VOICE TERMINAL CMD [ARGS…]` becomes the command, in three steps that safe code cannot do
//! between fork and exec: it asks the kernel to kill it when the thread that started it ends; it waits until
//! its [`watchdog`](crate::watchdog) is running; it executes the command, which inherits the first setting.
//! (The kernel clears that on a change of user; the watchdog covers such commands.)

use std::env::{self, ArgsOs};
use std::ffi::{OsStr, OsString};
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, getpid, getppid, kill_process, set_parent_process_death_signal};

use crate::descriptor;
use crate::exit::{NOT_FOUND, OWN, of_exec};
use crate::output::{Voice, chain};

pub(crate) const LAUNCH: &str = "__launch";
pub(crate) const FOREGROUND: &str = "__foreground";
pub(crate) const WATCHDOG: &str = "__watchdog";
pub(crate) const STRESS: &str = "__stress";

/// Executes this program again, even if its file has been replaced.
pub(crate) fn again() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("tenure");
    command
}

/// A command ready to start through the launch stage.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) command: Command,
    /// The command runs only after a byte arrives here, and never if the pipe ends without one.
    pub(crate) gate: PipeReader,
    pub(crate) opener: PipeWriter,
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
        let (gate, opener) = io::pipe()?;
        fcntl_setfd(&gate, FdFlags::empty())?;
        let mut command = again();
        command.arg(LAUNCH).arg(gate.as_raw_fd().to_string());
        command.arg(if voice.quiet { "quiet" } else { "loud" });
        command.arg(if with_terminal { "foreground" } else { "background" });
        command.args(words);
        if leads {
            command.process_group(0);
        }
        Ok(Self { command, gate, opener, leads })
    }
}

/// The stage that becomes the command.
pub(crate) fn launch(mut args: ArgsOs) -> Option<u8> {
    let gate: RawFd = args.next()?.to_str()?.parse().ok()?;
    let voice = Voice { quiet: args.next()? == "quiet", verbose: false };
    let with_terminal = args.next()? == "foreground";
    let program = args.next()?;
    let parent = getppid();

    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        voice.say(format_args!("cannot set the parent death signal of the command: {error}"));
        return Some(OWN);
    }
    // If the parent died before that was set, the gate stays shut.
    if !descriptor::wait_for_a_byte(gate) {
        return Some(OWN);
    }
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
