//! The stages in which this program runs itself: hidden first arguments, not for people.
//!
//! `__launch PARENT VOICE TERMINAL CMD [ARGS…]` becomes the command, in three steps that safe code
//! cannot do between fork and exec. It asks the kernel to kill it when the thread that started it
//! dies; it makes sure that this has not already happened; it executes the command, which keeps the
//! first setting. (The kernel clears it where the user changes; the `killer` kills those.)

use std::env::{self, ArgsOs};
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, Signal, getpid, getppid, kill_process, set_parent_process_death_signal};

use crate::exit::{NOT_FOUND, OWN, of_exec};
use crate::output::{Voice, chain};

pub(crate) const LAUNCH: &str = "__launch";
pub(crate) const FOREGROUND: &str = "__foreground";
pub(crate) const KILLER: &str = "__killer";
pub(crate) const STRESS: &str = "__stress";

/// This program once more, even if its file has been replaced meanwhile.
pub(crate) fn again() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("tenure");
    command
}

/// The command, by way of the first stage. It `leads` a new process group, or shares ours. Must be
/// spawned from a thread that lives as long as the command may.
pub(crate) fn command(words: &[OsString], voice: Voice, with_terminal: bool, leads: bool) -> Command {
    let mut command = again();
    command.arg(LAUNCH).arg(getpid().to_string());
    command.arg(if voice.quiet { "quiet" } else { "loud" });
    command.arg(if with_terminal { "foreground" } else { "background" });
    command.args(words);
    if leads {
        command.process_group(0);
    }
    command
}

/// The stage that becomes the command.
pub(crate) fn launch(mut args: ArgsOs) -> Option<u8> {
    let parent = pid(&args.next()?)?;
    let voice = Voice { quiet: args.next()? == "quiet", verbose: false };
    let with_terminal = args.next()? == "foreground";
    let program = args.next()?;

    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        voice.say(format_args!("cannot set the parent death signal of the command: {error}"));
        return Some(OWN);
    }
    // It may have died before we asked. (It is never in another pid namespace: there it could not
    // have started its thread.)
    if getppid() != Some(parent) {
        return Some(OWN);
    }
    if with_terminal {
        // Stopped as if we had read from the terminal, until the wrapper has given it to us.
        let _ = kill_process(getpid(), Signal::TTIN);
    }

    let mut command = Command::new(&program);
    // Sockets that a service manager opened are meant for CMD: it must find its own number there.
    if env::var("LISTEN_PID").is_ok_and(|pid| pid == parent.as_raw_nonzero().to_string()) {
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

/// Whether this is the path of a file, which is not looked for elsewhere, or the name of one where
/// commands are looked for.
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
