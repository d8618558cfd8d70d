//! `tenure run`: take the lock, run the command, keep the lease until it has ended, release.

use std::io;
use std::time::Duration;

use rustix::process::Signal;
use tenure::MultiGuard;
use tokio::signal::unix::{SignalKind, signal};

use crate::child::Child;
use crate::cli::Run;
use crate::exit::{self, Failure, of_exec, of_status};
use crate::output::{Voice, chain};
use crate::signals::{FORWARDED, Signals};
use crate::take::{self, Wanted};
use crate::terminal::Terminal;
use crate::watch::{End, Watch};
use crate::{ancestors, launch, printer, store};

/// Runs a command under a lock; returns the code to exit with.
pub(crate) fn run(args: &Run) -> u8 {
    let voice = Voice::of(&args.request);
    exit::with_timers(voice, under_lock(args, voice))
}

async fn under_lock(args: &Run, voice: Voice) -> Result<u8, Failure> {
    let own = |error| Failure::own("cannot catch signals", &error);
    let mut signals = Signals::catch(&FORWARDED).map_err(own)?;
    // A file of the store that may not grow is then an error (EFBIG), and does not end the process.
    // The command has the default again.
    let _too_large = Signals::catch(&[Signal::XFSZ]).map_err(own)?;
    let request = &args.request;
    let options = take::options(request).grace(grace(args)).inherit_liveness(true);
    let locks = store::open(&request.store, options)?;
    let wanted = Wanted { request, also: &args.also, locks: &locks, voice };
    match wanted.take(&mut signals).await? {
        Ok(guards) => hold(args, guards, &mut signals, voice).await,
        Err(code) => Ok(code),
    }
}

fn grace(args: &Run) -> Duration {
    args.grace.unwrap_or_else(|| Duration::from_secs(5).min(args.request.ttl / 3))
}

/// Runs the command under the lock, and releases that.
async fn hold(args: &Run, guards: MultiGuard, signals: &mut Signals, voice: Voice) -> Result<u8, Failure> {
    // The first is NAME itself: see kind::all.
    let [guard, ..] = &*guards else { unreachable!("a multi-lock has at least one lock") };
    let terminal = Terminal::open();
    let with_terminal = terminal.as_ref().is_some_and(Terminal::is_all_ours);
    let mut command = launch::command(&args.command, voice, with_terminal);
    command
        .env("TENURE_NAME", &args.request.name)
        .env("TENURE_OWNER", guard.owner().to_string())
        .env("TENURE_FENCE", guard.fence().to_string())
        .env("TENURE_TTL_MS", args.request.ttl.as_millis().to_string());
    let (held, owners) = ancestors::held(guards.iter().map(|guard| guard.owner()));
    command.env(held, owners);

    // All that can fail comes before there is a command to look after.
    let own = |error| Failure::own("cannot catch signals", &error);
    if terminal.is_some() {
        signals.also(&[Signal::WINCH, Signal::TSTP]).map_err(own)?;
    }
    let changes = signal(SignalKind::child()).map_err(own)?;
    // The command writes there too, and what was said before comes before.
    printer::catch_up(Duration::from_millis(100));
    if !guards.is_held() {
        let why = guards.lost().await;
        drop(guards);
        voice.say(format_args!("{why}; the command was not started"));
        return Ok(exit::LOST);
    }
    let child = match Child::start(&mut command) {
        Ok(child) => child,
        Err(error) => return refuse(guards, &error).await,
    };
    let mut watch =
        Watch { child, changes, signals, guards: &guards, grace: grace(args), terminal, told_to_stop: false };
    let ended = watch.until_it_ends().await;
    let status =
        match ended.map_err(|error| Failure::own("cannot read the exit status of the command", &error))? {
            End::Exited(status) => status,
            End::Lost(why) => {
                drop(guards);
                voice.say(format_args!("{}; the command was stopped", chain(&why)));
                return Ok(exit::LOST);
            }
        };
    match guards.release().await {
        Ok(()) => Ok(of_status(status)),
        Err(error) if error.is_lost() => {
            voice.say(format_args!("{}; the command may have ended without the lock", chain(&error)));
            Ok(exit::LOST)
        }
        Err(error) => {
            voice.say(format_args!("lock not released; others wait until its lease ends: {}", chain(&error)));
            Ok(of_status(status))
        }
    }
}

/// The command did not even come to the stage that starts it.
async fn refuse(guards: MultiGuard, error: &io::Error) -> Result<u8, Failure> {
    let _ = guards.release().await;
    let too_long = error.kind() == io::ErrorKind::ArgumentListTooLong;
    let code = if too_long { of_exec(error) } else { exit::OWN };
    Err(Failure { code, message: format!("cannot start a process: {error}") })
}
