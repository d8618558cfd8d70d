//! `tenure run`: take the lock, run the command, keep the lease until it has ended, release.
#![expect(
    clippy::disallowed_methods,
    reason = "a timer of this command's own; the clock of leases is the library's"
)]

use std::borrow::Cow;
use std::ffi::OsString;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use rustix::process::Signal;
use tenure::MultiGuard;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use crate::child::Child;
use crate::cli::Run;
use crate::exit::{self, Failure, of_exec, of_signal, of_status};
use crate::output::{Voice, chain};
use crate::signals::{FORWARDED, Signals};
use crate::terminal::Terminal;
use crate::wanted::Wanted;
use crate::watch::{End, Watch};
use crate::{ancestors, asked, clock, launch, printer, store, take};

/// Runs a command under a lock; returns the code to exit with.
pub(crate) fn run(args: &Run) -> u8 {
    let voice = args.request.voice();
    asked::with_timers(voice, under_lock(args, voice))
}

async fn under_lock(args: &Run, voice: Voice) -> Result<u8, Failure> {
    let own = |error| Failure::own("cannot catch signals", &error);
    let mut signals = Signals::catch(&FORWARDED).map_err(own)?;
    // A file of the store that may not grow is then an error (EFBIG), and does not end the process.
    // The command has the default again.
    let _too_large = Signals::catch(&[Signal::XFSZ]).map_err(own)?;
    let request = &args.request;
    check_holds(args)?;
    let locks = store::open(&request.store, take::terms(request), |options| {
        let options = take::options(request, options).grace(grace(args)).inherit_liveness(true);
        match args.max_hold {
            Some(most) => options.max_hold(most),
            None => options,
        }
    })?;
    if let Some(splay) = args.splay
        && let Err(signal) = signals.or_end(sleep(random_part(splay))).await
    {
        return Ok(of_signal(signal));
    }
    let wanted = Wanted { request, also: &args.also, locks: &locks, voice };
    match wanted.take(&mut signals).await? {
        Ok(guards) => hold(args, guards, &mut signals, voice).await,
        Err(code) => Ok(code),
    }
}

fn grace(args: &Run) -> Duration {
    let lease = args.max_hold.map_or(args.request.ttl, |most| most.min(args.request.ttl));
    args.grace.unwrap_or_else(|| Duration::from_secs(5).min(lease / 3))
}

fn check_holds(args: &Run) -> Result<(), Failure> {
    match (args.min_hold, args.max_hold) {
        (Some(least), Some(most)) if least >= most => {
            let message = "--min-hold must be shorter than --max-hold".into();
            Err(Failure { code: exit::USAGE, message })
        }
        _ => Ok(()),
    }
}

/// A random part of a time, the same for no two processes.
fn random_part(time: Duration) -> Duration {
    let random = RandomState::new().hash_one(0) >> 11;
    time.mul_f64(random as f64 / (1_u64 << 53) as f64)
}

/// What is to be run: CMD, or a script of a shell.
fn words(args: &Run) -> Cow<'_, [OsString]> {
    match &args.script {
        Some(script) => Cow::Owned(vec!["sh".into(), "-c".into(), "--".into(), script.into()]),
        None => Cow::Borrowed(&args.command),
    }
}

/// Runs the command under the lock, and releases that.
async fn hold(args: &Run, guards: MultiGuard, signals: &mut Signals, voice: Voice) -> Result<u8, Failure> {
    let granted = clock::now();
    // The first is NAME itself: see kind::all.
    let [guard, ..] = &*guards else { unreachable!("a multi-lock has at least one lock") };
    let terminal = Terminal::open();
    let with_terminal = terminal.as_ref().is_some_and(Terminal::is_all_ours);
    let mut command = launch::command(&words(args), voice, with_terminal);
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
    let mut watch = Watch {
        child,
        changes,
        signals,
        guards: &guards,
        grace: grace(args),
        on_lost: args.on_lost,
        kill_after: args.kill_after,
        terminal,
        told_to_stop: false,
        told_to_end: false,
    };
    let ended = watch.until_it_ends().await;
    let status =
        match ended.map_err(|error| Failure::own("cannot read the exit status of the command", &error))? {
            End::Exited(status) => status,
            End::Ignored(status, why) => {
                drop(guards);
                voice.say(format_args!("{}; the command ran on without the lock", chain(&why)));
                return Ok(of_status(status));
            }
            End::Lost(why) => {
                drop(guards);
                voice.say(format_args!("{}; the command was stopped", chain(&why)));
                return Ok(exit::LOST);
            }
        };
    let told_to_end = watch.told_to_end;
    let least = args.min_hold.filter(|_| !told_to_end).unwrap_or_default();
    let rest = least.saturating_sub(clock::now() - granted);
    if !rest.is_zero() {
        let over = pin!(sleep(rest));
        let waited = signals.or_end(select(guards.lost(), over)).await;
        if let Ok(Either::Left((end, _))) = waited {
            drop(guards);
            if let Some(why) = end.into_error() {
                voice.say(format_args!("{}; the command had ended before", chain(&why)));
            }
            return Ok(of_status(status));
        }
    }
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
