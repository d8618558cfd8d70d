//! `tenure run`: take the lock, run the command, keep the lease until it has ended, release.
#![expect(
    clippy::disallowed_methods,
    reason = "a timer of this command's own; clocks of leases are the library's"
)]

use std::future::{Future, poll_fn};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::pin::Pin;
use std::process::ExitStatus;
use std::task::Poll;
use std::time::Duration;

use rustix::process::Signal;
use tenure::{Guard, Locks, Mutex, Options};
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::time::interval;

use crate::child::Child;
use crate::cli::Run;
use crate::exit::{self, Failure, of_exec, of_signal, of_status};
use crate::output::{Span, Voice, chain};
use crate::signals::{FORWARDED, Signals};
use crate::terminal::Terminal;
use crate::{clock, launch, status, store};

/// Runs a command under a lock; returns the code to exit with.
pub(crate) fn run(args: &Run) -> u8 {
    let voice = Voice { quiet: args.quiet, verbose: args.verbose };
    // All on this thread: the kernel kills the command when the *thread* that started it dies, and this one lives longest.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let code = match runtime {
        Ok(runtime) => runtime.block_on(under_lock(args, voice)),
        Err(error) => Err(Failure::own("cannot start", &error)),
    };
    code.unwrap_or_else(|failure| {
        voice.say(failure.message);
        failure.code
    })
}

async fn under_lock(args: &Run, voice: Voice) -> Result<u8, Failure> {
    let mut signals =
        Signals::catch(&FORWARDED).map_err(|error| Failure::own("cannot catch signals", &error))?;
    let locks = store::open(&args.store, options(args))?;
    let mutex = locks.mutex(&args.name)?;

    let taken = signals.or_end(take(args, &locks, &mutex, voice)).await;
    let code = match taken {
        Ok(Ok(Some(guard))) => hold(args, guard, &mut signals, voice).await,
        Ok(Ok(None)) => {
            voice.say(format_args!("lock {} is busy", shown(args)));
            Ok(args.busy_code)
        }
        Ok(Err(failure)) => Err(failure),
        Err(signal) => Ok(of_signal(signal)),
    };
    // What was granted to a wait that a signal ended is given back before we go, if the store answers.
    drop(mutex);
    let _ = locks.shutdown().await;
    code
}

fn options(args: &Run) -> Options {
    Options::new().ttl(args.ttl).grace(grace(args)).label(label(&args.name)).inherit_liveness(true)
}

fn grace(args: &Run) -> Duration {
    args.grace.unwrap_or_else(|| Duration::from_secs(5).min(args.ttl / 3))
}

/// The name, as far as the label of an owner can say it.
fn label(name: &str) -> String {
    let fits = |char: char| char.is_ascii_alphanumeric() || matches!(char, '.' | '_' | '-');
    name.chars().take(64).map(|char| if fits(char) { char } else { '-' }).collect()
}

fn shown(args: &Run) -> impl std::fmt::Display {
    tenure::LockName::new(&args.name).map_or_else(|_| args.name.clone(), |name| name.to_string())
}

/// Asks once, which also tells whether the store is there at all; then waits as long as was asked for.
async fn take(args: &Run, locks: &Locks, mutex: &Mutex, voice: Voice) -> Result<Option<Guard>, Failure> {
    let start = clock::now();
    let mut guard = mutex.try_lock().await?;
    if guard.is_none() && !args.no_wait && args.wait != Some(Duration::ZERO) {
        if voice.verbose {
            match locks.inspect(&args.name).await? {
                Some(status) => voice.detail(format_args!("waiting for {}", status::holders(&status))),
                None => voice.detail("waiting"),
            }
        }
        guard = match args.wait {
            Some(limit) => mutex.try_lock_for(limit.saturating_sub(clock::now() - start)).await?,
            None => Some(mutex.lock().await?),
        };
    }
    if let Some(guard) = &guard {
        let waited = Span(clock::now() - start);
        voice.detail(format_args!("lock {} is ours after {waited}, token {}", guard.name(), guard.fence()));
    }
    Ok(guard)
}

/// Runs the command under the lock, and releases that.
async fn hold(args: &Run, guard: Guard, signals: &mut Signals, voice: Voice) -> Result<u8, Failure> {
    let terminal = Terminal::open();
    let with_terminal = terminal.as_ref().is_some_and(Terminal::is_all_ours);
    let mut command = launch::command(&args.command, voice, with_terminal);
    command
        .env("TENURE_NAME", &args.name)
        .env("TENURE_OWNER", guard.owner().to_string())
        .env("TENURE_FENCE", guard.fence().to_string())
        .env("TENURE_TTL_MS", args.ttl.as_millis().to_string());

    // All that can fail comes before there is a command to look after.
    let own = |error| Failure::own("cannot catch signals", &error);
    if terminal.is_some() {
        signals.also(&[Signal::WINCH, Signal::TSTP]).map_err(own)?;
    }
    let changes = signal(SignalKind::child()).map_err(own)?;
    let child = match Child::start(&mut command) {
        Ok(child) => child,
        Err(error) => return refuse(guard, &error).await,
    };
    let grace = grace(args);
    let mut watch =
        Watch { child, changes, guard: &guard, signals, terminal, voice, grace, told_to_stop: false };
    let (status, lost) = watch
        .until_it_ends()
        .await
        .map_err(|error| Failure::own("cannot learn how the command ended", &error))?;
    if lost {
        return Ok(exit::LOST);
    }
    match guard.release().await {
        Ok(()) => Ok(of_status(status)),
        Err(error) if error.is_lost() => {
            voice.say(format_args!("{}; perhaps before the command ended", chain(&error)));
            Ok(exit::LOST)
        }
        Err(error) => {
            voice.say(format_args!("not released, so others wait until the lease ends: {}", chain(&error)));
            Ok(of_status(status))
        }
    }
}

/// The command did not even come to the stage that starts it.
async fn refuse(guard: Guard, error: &io::Error) -> Result<u8, Failure> {
    let _ = guard.release().await;
    let too_long = error.kind() == io::ErrorKind::ArgumentListTooLong;
    let code = if too_long { of_exec(error) } else { exit::OWN };
    Err(Failure { code, message: format!("cannot start a process: {error}") })
}

/// A command that runs under a lock, and everything that can happen to it.
struct Watch<'a> {
    child: Child,
    changes: unix::Signal,
    guard: &'a Guard,
    signals: &'a mut Signals,
    terminal: Option<Terminal>,
    voice: Voice,
    grace: Duration,
    /// The terminal told us to stop, and so all of our group.
    told_to_stop: bool,
}

enum Event {
    Lost(tenure::Error),
    Signal(Signal),
    /// Time to look after the child: it changed, or time has passed.
    Look,
}

impl Watch<'_> {
    /// Until the command has ended: how it did, and whether the lease was lost before. After a loss, until its group is gone.
    async fn until_it_ends(&mut self) -> io::Result<(ExitStatus, bool)> {
        let mut lost = Some(self.guard.lost());
        let mut ticks = interval(tick(self.guard.remaining()));
        // When the lease can be somebody else's, as last known; a machine that slept finds it in the past.
        let mut lease_end = Duration::MAX;
        let mut kill_at = None;

        loop {
            let event = poll_fn(|context| {
                if let Some(Poll::Ready(why)) = lost.as_mut().map(|lost| Pin::new(lost).poll(context)) {
                    return Poll::Ready(Event::Lost(why));
                }
                if let Poll::Ready(signal) = self.signals.poll(context) {
                    return Poll::Ready(Event::Signal(signal));
                }
                if self.changes.poll_recv(context).is_ready() || ticks.poll_tick(context).is_ready() {
                    return Poll::Ready(Event::Look);
                }
                Poll::Pending
            })
            .await;

            let now = clock::now();
            match event {
                Event::Lost(why) => {
                    lost = None;
                    self.voice.say(format_args!("{}; stopping the command", chain(&why)));
                    let end = lease_end.min(now + self.grace);
                    let at = end.saturating_sub(margin(self.grace));
                    if now < at {
                        self.child.signal(Signal::TERM);
                        self.child.signal(Signal::CONT);
                    }
                    kill_at = Some((at, end));
                    ticks = interval(Duration::from_millis(10));
                }
                Event::Signal(signal) => {
                    self.told_to_stop |= signal == Signal::TSTP;
                    self.child.signal(signal);
                }
                Event::Look if kill_at.is_none() => {
                    let remaining = self.guard.remaining();
                    if !remaining.is_zero() {
                        lease_end = now + remaining + self.grace;
                    }
                }
                Event::Look => {}
            }
            if let Some((at, _)) = kill_at
                && now >= at
            {
                self.child.signal(Signal::KILL);
            }
            if let Some(by) = self.child.stopped() {
                self.on_stop(by);
            }
            if self.child.has_ended() {
                let status = self.end()?;
                match kill_at {
                    None => return Ok((status, false)),
                    Some((_, end)) if self.child.group_is_empty() || now >= end => return Ok((status, true)),
                    Some(_) => {}
                }
            }
        }
    }

    /// The command has ended: the terminal is ours again.
    fn end(&mut self) -> io::Result<ExitStatus> {
        let group = self.child.group();
        let Some(terminal) = self.terminal.as_ref().filter(|terminal| terminal.is_with(group)) else {
            return self.child.status();
        };
        terminal.take_back(group);
        let status = self.child.status()?;
        // Ctrl-C went to the command alone: a script that runs us would not hear of it, and go on.
        if let Some(key) =
            [Signal::INT, Signal::QUIT].iter().find(|key| status.signal() == Some(key.as_raw()))
        {
            terminal.tell_ourselves(*key);
        }
        Ok(status)
    }

    /// The command was stopped. If the terminal did it, we do what a command without us would have done.
    fn on_stop(&mut self, by: Signal) {
        let Some(terminal) = &self.terminal else { return };
        let group = self.child.group();
        let told = std::mem::take(&mut self.told_to_stop);
        let wants_it = by == Signal::TTIN || by == Signal::TTOU;
        let by_key = told || terminal.is_with(group);
        if wants_it && terminal.is_ours() {
            terminal.give(group);
        } else if terminal.has_job_control() && (wants_it || by_key) {
            terminal.stop_ourselves(told);
            // Here we were woken. A lease that ran out meanwhile is found lost before anything else happens.
            if !self.guard.is_held() {
                return;
            }
            terminal.give(group);
        } else if !(by == Signal::TSTP && by_key) {
            return; // somebody did it on purpose
        } // else Ctrl-Z where nobody could wake us: it means nothing
        self.child.signal(Signal::CONT);
    }
}

/// How often to note where the lease ends: often enough for that to be known to a part of the grace.
fn tick(lease: Duration) -> Duration {
    (lease / 6).clamp(Duration::from_millis(5), Duration::from_secs(1))
}

/// How long before the end of the lease everything of the command's must have been told to die.
fn margin(grace: Duration) -> Duration {
    (grace / 4).min(Duration::from_millis(500))
}
