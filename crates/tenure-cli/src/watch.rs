//! A command that runs under a lock, and everything that can happen to it until it has ended.
#![expect(
    clippy::disallowed_methods,
    reason = "a timer of this command's own; the clock of leases is the library's"
)]

use std::future::{Future, poll_fn};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::pin::{Pin, pin};
use std::process::ExitStatus;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{FusedFuture, FutureExt};
use rustix::process::Signal;
use tenure::{Error, HoldEnd, Lost, StopRequest};
use tokio::signal::unix;
use tokio::time::{Interval, interval};

use crate::child::Child;
use crate::cli::OnLost;
use crate::clock;
use crate::deadline::margin;
use crate::exit::chain;
use crate::held::Held;
use crate::signals::{END_THE_WAIT, Signals};
use crate::terminal::Terminal;

pub(crate) struct Watch<'a> {
    pub(crate) child: Child,
    /// SIGCHLD: a child changed state.
    pub(crate) changes: unix::Signal,
    pub(crate) signals: &'a mut Signals,
    pub(crate) held: &'a Held,
    pub(crate) grace: Duration,
    pub(crate) on_lost: OnLost,
    /// How long after a stop request to kill the command.
    pub(crate) kill_after: Option<Duration>,
    pub(crate) terminal: Option<Terminal>,
    /// The terminal of a command that shares our group: keys reach the command without us.
    pub(crate) keys: Option<Terminal>,
    /// The terminal stopped us, and so our whole group.
    pub(crate) told_to_stop: bool,
    /// A signal that asks the command to end arrived.
    pub(crate) signalled: bool,
    /// The stop request, if one arrived.
    pub(crate) stopped_by: Option<StopRequest>,
}

pub(crate) enum End {
    Exited(ExitStatus),
    /// The lease was lost before, but the command was not stopped for it.
    Ignored(ExitStatus, String),
    /// The lease was lost for this reason. The command's whole group is gone.
    Lost(String),
}

enum Event {
    Lost(Error),
    Signal(Signal),
    Asked(StopRequest),
    /// Check the child: it changed state, or time has passed.
    Look,
}

/// The command is being stopped because the lease was lost.
struct Stopping {
    why: String,
    kill_at: Duration,
    /// From here on, another client can get the lock.
    lease_end: Duration,
}

impl Watch<'_> {
    /// Forwards signals until the command has ended, or stops it when the lease is lost.
    ///
    /// Prints nothing meanwhile, because a blocked standard error must not delay the kill.
    pub(crate) async fn until_it_ends(
        &mut self,
        requested: impl Future<Output = StopRequest>,
    ) -> io::Result<End> {
        let mut lost = Some(self.held.lost());
        let mut requested = pin!(requested.fuse());
        let mut ticks = interval(tick(self.held.remaining()));
        // The last known value, so that it is in the past after a suspend.
        let mut lease_end = Duration::MAX;
        let mut stopping: Option<Stopping> = None;
        let (mut kill_at, mut ignored, mut reason) = (None, None, None);
        loop {
            let event = self.event(&mut lost, requested.as_mut(), &mut ticks).await;
            let now = clock::now();
            match event {
                Event::Lost(why) if self.on_lost == OnLost::Ignore => ignored = Some(chain(&why)),
                Event::Lost(why) => reason = Some(chain(&why)),
                Event::Signal(signal) => {
                    self.forward(signal);
                    if END_THE_WAIT.contains(&signal) {
                        self.signalled = true;
                        self.kill_later(now, &mut kill_at, &mut ticks);
                    }
                }
                Event::Asked(request) => {
                    self.child.group.signal(Signal::TERM);
                    self.stopped_by = Some(request);
                    self.kill_later(now, &mut kill_at, &mut ticks);
                }
                Event::Look => {
                    let remaining = self.held.remaining();
                    if !remaining.is_zero() {
                        lease_end = now + remaining + self.grace;
                    }
                }
            }
            if reason.is_none() && stopping.is_none() && self.child.watchdog.has_told() {
                reason = Some(self.not_renewed());
            }
            if let Some(why) = reason.take()
                && stopping.is_none()
            {
                let lease_end = lease_end.min(now + self.grace);
                stopping = Some(self.stop(why, now, lease_end));
                ticks = interval(Duration::from_millis(10));
            }
            if kill_at.is_some_and(|kill_at| now >= kill_at) {
                self.child.group.signal(Signal::KILL);
            }
            match stopping {
                None => {
                    if let Some(by) = self.child.stopped() {
                        self.on_stop(by);
                    }
                    // This process may have been stopped meanwhile; then the next check finds the loss.
                    if self.child.has_ended() && !self.child.watchdog.has_told() {
                        let status = self.reap()?;
                        return Ok(match ignored {
                            Some(why) => End::Ignored(status, why),
                            None => End::Exited(status),
                        });
                    }
                }
                Some(Stopping { why, kill_at, lease_end }) => {
                    if now >= kill_at {
                        self.child.group.signal(Signal::KILL);
                    }
                    if self.child.has_ended() {
                        self.reap()?;
                        // Zombies that nobody reaps still count, so do not wait for them forever.
                        if self.child.group.is_empty() || now >= lease_end {
                            return Ok(End::Lost(why));
                        }
                    }
                    stopping = Some(Stopping { why, kill_at, lease_end });
                }
            }
        }
    }

    /// Passes a signal on, unless the command gets it from the terminal as a key.
    fn forward(&mut self, signal: Signal) {
        self.told_to_stop |= signal == Signal::TSTP;
        let is_key = [Signal::INT, Signal::QUIT].contains(&signal)
            && self.keys.as_ref().is_some_and(Terminal::is_ours);
        if !is_key {
            self.child.group.signal(signal);
        }
    }

    /// The loss if a renewal was answered, but the answer was processed too late.
    fn not_renewed(&self) -> String {
        let name = self.held.guards().first().map(|guard| guard.name().as_str());
        format!("lock {:?} is lost: it was not renewed in time", name.unwrap_or_default())
    }

    /// Starts the time limit of a command that was asked to end.
    fn kill_later(&self, now: Duration, kill_at: &mut Option<Duration>, ticks: &mut Interval) {
        if let Some(after) = self.kill_after {
            kill_at.get_or_insert(now + after);
            *ticks = interval(Duration::from_millis(10));
        }
    }

    /// The next event; a loss takes precedence.
    async fn event(
        &mut self,
        lost: &mut Option<Lost>,
        mut requested: Pin<&mut impl FusedFuture<Output = StopRequest>>,
        ticks: &mut Interval,
    ) -> Event {
        poll_fn(|context| {
            if let Some(Poll::Ready(end)) = lost.as_mut().map(|lost| Pin::new(lost).poll(context)) {
                *lost = None;
                if let HoldEnd::Lost(why) = end {
                    return Poll::Ready(Event::Lost(why));
                }
            }
            if let Poll::Ready(signal) = self.signals.poll(context) {
                return Poll::Ready(Event::Signal(signal));
            }
            if !requested.is_terminated()
                && let Poll::Ready(request) = requested.as_mut().poll(context)
            {
                return Poll::Ready(Event::Asked(request));
            }
            if self.changes.poll_recv(context).is_ready() || ticks.poll_tick(context).is_ready() {
                return Poll::Ready(Event::Look);
            }
            Poll::Pending
        })
        .await
    }

    /// Tells the command to end, unless the watchdog has done so or it is too late for that.
    fn stop(&mut self, why: String, now: Duration, lease_end: Duration) -> Stopping {
        let kill_at = match self.on_lost {
            OnLost::Kill => now,
            _ => lease_end.saturating_sub(margin(self.grace)),
        };
        let was_told = self.child.watchdog.has_told();
        self.child.watchdog.kill_at(kill_at);
        if let OnLost::Signal(signal) = self.on_lost
            && now < kill_at
            && !was_told
        {
            self.child.group.signal(signal);
            self.child.group.signal(Signal::CONT);
        }
        Stopping { why, kill_at, lease_end }
    }

    /// The command has ended: takes the terminal back.
    fn reap(&mut self) -> io::Result<ExitStatus> {
        let group = self.child.group.command();
        let Some(terminal) = self.terminal.as_ref().filter(|terminal| terminal.is_with(group)) else {
            return self.child.status();
        };
        terminal.take_back(group);
        let status = self.child.status()?;
        // Ctrl-C reached the command only: a script that runs us would not notice, and continue.
        let key = [Signal::INT, Signal::QUIT].into_iter().find(|key| status.signal() == Some(key.as_raw()));
        key.into_iter().for_each(|key| terminal.tell_ourselves(key));
        Ok(status)
    }

    /// The command was stopped. If the terminal did it, behave as the command would have without us.
    fn on_stop(&mut self, by: Signal) {
        let Some(terminal) = &self.terminal else { return };
        let group = self.child.group.command();
        let told = std::mem::take(&mut self.told_to_stop);
        let by_key = told || terminal.is_with(group);
        let wants_it = by == Signal::TTIN || by == Signal::TTOU;
        if wants_it && terminal.is_ours() {
            terminal.give(group);
            self.child.group.signal(Signal::CONT);
        } else if terminal.has_job_control() && (wants_it || by_key) {
            terminal.stop_ourselves(told);
            // Resumed. If the lease expired meanwhile, the command stays stopped: the loss is found before
            // anything else happens.
            if self.held.is_held() || self.on_lost == OnLost::Ignore {
                terminal.give(group);
                self.child.group.signal(Signal::CONT);
            }
        } else if by == Signal::TSTP && by_key {
            // No shell could resume us, so Ctrl-Z has no effect.
            self.child.group.signal(Signal::CONT);
        }
        // Any other stop was intended.
    }
}

/// How often to record when the lease ends: precise to a fraction of the grace.
fn tick(lease: Duration) -> Duration {
    (lease / 6).clamp(Duration::from_millis(5), Duration::from_secs(1))
}
