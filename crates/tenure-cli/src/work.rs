//! Runs a command while something is held, and releases it when the command has ended.
#![expect(
    clippy::disallowed_methods,
    reason = "a timer of this command's own; the clock of leases is the library's"
)]

use std::borrow::Cow;
use std::ffi::OsString;
use std::io;
use std::pin::pin;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use futures_util::future::{Either, select};
use rustix::process::Signal;
use tenure::{Guard, Locks, StopRequest};
use tokio::signal::unix::{self, SignalKind};
use tokio::time::{sleep, timeout};

use crate::child::Child;
use crate::cli::{Job, OnLost};
use crate::deadline::Deadline;
use crate::exit::{self, Failure, chain, of_exec, of_status};
use crate::held::Held;
use crate::launch::{Launch, unstarted};
use crate::output::Voice;
use crate::signals::{self, FORWARDED, Signals};
use crate::terminal::Terminal;
use crate::watch::{End, Watch};
use crate::watchdog::Brief;
use crate::{ancestors, clock, printer, table};

/// How long a release may still take once a signal has asked to end.
const LAST: Duration = Duration::from_secs(1);

/// What to run, and for what.
pub(crate) struct Work<'a> {
    pub(crate) locks: &'a Locks,
    /// The store's URL, with its passwords.
    pub(crate) url: &'a str,
    /// See [`variables`](crate::store::variables).
    pub(crate) variables: &'a [(&'static str, Option<OsString>)],
    pub(crate) name: &'a str,
    pub(crate) ttl: Duration,
    pub(crate) grace: Duration,
    pub(crate) min_hold: Option<Duration>,
    pub(crate) job: &'a Job,
    pub(crate) voice: Voice,
}

/// Catches the signals that are forwarded to a command. Catching XFSZ turns a store file that cannot grow
/// into an error (EFBIG) instead of ending this process; the command gets the default back.
pub(crate) fn signals() -> Result<(Signals, Signals), Failure> {
    Ok((Signals::catch(&FORWARDED)?, Signals::catch(&[Signal::XFSZ])?))
}

/// The time between TERM and KILL.
pub(crate) fn grace(job: &Job, lease: Duration) -> Duration {
    job.grace.unwrap_or_else(|| Duration::from_secs(5).min(lease / 3))
}

/// What to run: CMD, or a shell script.
fn words(job: &Job) -> Cow<'_, [OsString]> {
    match &job.script {
        Some(script) => Cow::Owned(vec!["sh".into(), "-c".into(), "--".into(), script.into()]),
        None => Cow::Borrowed(&job.command),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Code(u8),
    /// After a signal to end, which was passed on.
    Told(u8),
    /// The lease was lost, and the command was stopped or not started.
    Lost,
}

impl Ended {
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Code(code) | Self::Told(code) => code,
            Self::Lost => exit::LOST,
        }
    }
}

impl Work<'_> {
    /// Runs the command and releases what is held; returns the exit code.
    pub(crate) async fn under(&self, held: Held, signals: &mut Signals) -> Result<u8, Failure> {
        self.once(held, signals).await.map(Ended::code)
    }

    /// Like `under`, but distinguishes a loss from a command that exits with the same code.
    pub(crate) async fn once(&self, held: Held, signals: &mut Signals) -> Result<Ended, Failure> {
        let (granted, job, voice) = (clock::now(), self.job, self.voice);
        let leads = !job.foreground;
        let (terminal, keys) = if leads { (Terminal::open(), None) } else { (None, Terminal::open()) };
        let (launch, deadline, changes) = match self.prepare(&held, terminal.as_ref(), leads, signals) {
            Ok(prepared) => prepared,
            Err(failure) => return refuse(held, failure).await,
        };
        // The command writes there, too; earlier output should come first.
        printer::catch_up(Duration::from_millis(100));
        if !held.is_held() {
            let why = held.lost().await;
            drop(held);
            voice.say(format_args!("{why}; the command was not started"));
            return Ok(Ended::Lost);
        }
        let child = match Child::start(launch, &self.brief(&held), deadline) {
            Ok(child) => child,
            Err(error) => {
                let code = match error.kind() {
                    io::ErrorKind::ArgumentListTooLong => of_exec(&error),
                    _ => exit::OWN,
                };
                let what = unstarted("cannot start a process", &error);
                return refuse(held, Failure::new(code, what)).await;
            }
        };
        let mut watch = Watch {
            child,
            changes,
            signals,
            held: &held,
            grace: self.grace,
            on_lost: job.on_lost,
            kill_after: job.kill_after,
            terminal,
            keys,
            told_to_stop: false,
            signalled: false,
            stopped_by: None,
        };
        let ended = watch.until_it_ends(held.stop_requested(self.locks)).await;
        let signalled = watch.signalled;
        let told_to_end = signalled || watch.stopped_by.is_some();
        if let Some(request) = watch.stopped_by.take() {
            self.say_who_stops(&request);
        }
        let status = match ended
            .map_err(|error| Failure::own("cannot read the exit status of the command", &error))?
        {
            End::Exited(status) => status,
            End::Ignored(status, why) => {
                drop(held);
                voice.say(format_args!("{why}; the command ran on without the lock"));
                return Ok(Ended::Code(of_status(status)));
            }
            End::Lost(why) => {
                drop(held);
                voice.say(format_args!("{why}; the command was stopped"));
                // After a signal to end, do not start over.
                return Ok(match (signalled, told_to_end) {
                    (true, _) => Ended::Told(exit::LOST),
                    (false, true) => Ended::Code(exit::LOST),
                    (false, false) => Ended::Lost,
                });
            }
        };
        let least = self.min_hold.filter(|_| !told_to_end).unwrap_or_default();
        let ended = self.release(held, status, least.saturating_sub(clock::now() - granted), signals).await;
        Ok(if signalled { Ended::Told(ended.code()) } else { ended })
    }

    fn say_who_stops(&self, StopRequest { by, reason, .. }: &StopRequest) {
        let separator = if reason.is_empty() { "" } else { ": " };
        self.voice.say(format_args!("asked to stop by {}{separator}{reason}", table::who(by)));
    }

    /// Does everything that can fail before there is a command to look after.
    fn prepare(
        &self,
        held: &Held,
        terminal: Option<&Terminal>,
        leads: bool,
        signals: &mut Signals,
    ) -> Result<(Launch, Deadline, unix::Signal), Failure> {
        let own = |error| Failure::own("cannot start a process", &error);
        let with_terminal = terminal.is_some_and(Terminal::is_all_ours);
        let mut launch = Launch::new(&words(self.job), self.voice, with_terminal, leads).map_err(own)?;
        self.describe(held, &mut launch.command);
        let deadline = match self.job.on_lost {
            OnLost::Ignore => Deadline::never(),
            OnLost::Signal(_) | OnLost::Kill => Deadline::following(held.guards(), self.grace),
        };
        if terminal.is_some() {
            signals.also(&[Signal::WINCH, Signal::TSTP])?;
        }
        Ok((launch, deadline.map_err(own)?, signals::stream(SignalKind::child())?))
    }

    /// Sets the environment of the command.
    fn describe(&self, held: &Held, command: &mut Command) {
        let [guard, ..] = held.guards() else { unreachable!("something is held") };
        command
            .env("TENURE_NAME", self.name)
            .env("TENURE_OWNER", guard.owner().to_string())
            .env("TENURE_FENCE", guard.fence().to_string())
            .env("TENURE_TTL_MS", self.ttl.as_millis().to_string());
        if let Held::Turn(turn) = held {
            let window = clock::since_1970(turn.window().start).as_secs();
            command
                .env("TENURE_WINDOW", window.to_string())
                .env("TENURE_LATE_MS", turn.late_by().as_millis().to_string());
        }
        for (name, value) in self.variables {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let (above, owners) = ancestors::held(held.guards().iter().map(Guard::owner));
        command.env(above, owners);
    }

    /// Releases what is held after the rest of its time, for a command that has ended.
    async fn release(&self, held: Held, status: ExitStatus, rest: Duration, signals: &mut Signals) -> Ended {
        let (voice, mut code, mut signalled) = (self.voice, of_status(status), false);
        if !rest.is_zero() {
            let waited = {
                let (over, asked) = (pin!(sleep(rest)), pin!(held.stop_requested(self.locks)));
                signals.or_end(select(held.lost(), select(over, asked))).await.map(|waited| match waited {
                    Either::Left((end, _)) => Either::Left(end),
                    Either::Right((Either::Left(_), _)) => Either::Right(None),
                    Either::Right((Either::Right((request, _)), _)) => Either::Right(Some(request)),
                })
            };
            match waited {
                Ok(Either::Left(end)) => {
                    drop(held);
                    if let Some(why) = end.into_error() {
                        voice.say(format_args!("{}; the command had ended before", chain(&why)));
                    }
                    return Ended::Code(code);
                }
                Ok(Either::Right(request)) => request.iter().for_each(|request| self.say_who_stops(request)),
                Err(_) => signalled = true,
            }
        }
        let if_not_ended = held.if_not_ended();
        let mut ending = pin!(held.end(status));
        let ended = match signals.or_end(ending.as_mut()).await {
            Ok(ended) => Some(ended),
            // The store may be away for as long as the lease.
            Err(_) => {
                signalled = true;
                timeout(LAST, ending).await.ok()
            }
        };
        match ended {
            Some(Ok(())) => {}
            Some(Err(error)) if error.is_lost() => {
                voice.say(format_args!("{}; the command may have ended without the lock", chain(&error)));
                code = exit::LOST;
            }
            Some(Err(error)) => voice.say(format_args!("{if_not_ended}: {}", chain(&error))),
            None => {
                voice.say(format_args!("{if_not_ended}: a signal to end came before the store's answer"));
            }
        }
        if signalled { Ended::Told(code) } else { Ended::Code(code) }
    }

    /// What the watchdog needs to know.
    fn brief(&self, held: &Held) -> Brief {
        let signal = match self.job.on_lost {
            OnLost::Signal(signal) if !self.grace.is_zero() => Some(signal),
            _ => None,
        };
        // In a directory, locks are freed when the last process of the work has ended.
        let is_freed = self.url.starts_with("file:");
        let guards = held.guards().iter().filter(|_| !is_freed);
        let (holds, url) = (guards.map(Guard::hold_id).collect(), self.url.to_owned());
        Brief { signal, holds, url, ttl: self.ttl }
    }
}

/// The command did not even reach the stage that starts it.
async fn refuse(held: Held, failure: Failure) -> Result<Ended, Failure> {
    let _ = held.give_back("it could not be started").await;
    Err(failure)
}
