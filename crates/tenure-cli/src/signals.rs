//! Signals that reach this process but are meant for the command.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll};

use nix::sys::signal::SigSet;
use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

use crate::exit::Failure;
use crate::platform::ignored_signals;

/// Signals forwarded to the command.
pub(crate) const FORWARDED: [Signal; 6] =
    [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

/// Signals that end a wait for the lock; others are ignored until the command runs.
pub(crate) const END_THE_WAIT: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];

/// A set of signals, caught from construction on.
#[derive(Debug)]
pub(crate) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// Catches these signals, except those ignored at startup: `nohup` and shells without job control rely on
    /// that, and the command inherits it.
    pub(crate) fn catch(which: &[Signal]) -> Result<Self, Failure> {
        let ignored = ignored_signals();
        let wanted = which.iter().filter(|signal| ignored & bit(**signal) == 0);
        let caught = wanted.map(|signal| Ok((*signal, stream(SignalKind::from_raw(signal.as_raw()))?)));
        caught.collect::<Result<_, _>>().map(Self)
    }

    pub(crate) fn also(&mut self, which: &[Signal]) -> Result<(), Failure> {
        self.0.extend(Self::catch(which)?.0);
        Ok(())
    }

    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Signal> {
        for (signal, stream) in &mut self.0 {
            if stream.poll_recv(context).is_ready() {
                return Poll::Ready(*signal);
            }
        }
        Poll::Pending
    }

    /// The result of `work`, or the signal that ended it.
    pub(crate) async fn or_end<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Signal> {
        let mut work = pin!(work);
        poll_fn(|context| {
            while let Poll::Ready(signal) = self.poll(context) {
                if END_THE_WAIT.contains(&signal) {
                    return Poll::Ready(Err(signal));
                }
            }
            work.as_mut().poll(context).map(Ok)
        })
        .await
    }
}

/// Keeps these signals from this process. To be called before it has other threads.
pub(crate) fn block(which: &[Signal]) {
    let known = which.iter().filter_map(|signal| nix::sys::signal::Signal::try_from(signal.as_raw()).ok());
    let _ = known.collect::<SigSet>().thread_block();
}

/// Catches a signal, even if it was ignored.
pub(crate) fn stream(kind: SignalKind) -> Result<unix::Signal, Failure> {
    unix::signal(kind).map_err(|error| Failure::own("cannot catch signals", &error))
}

fn bit(signal: Signal) -> u64 {
    1 << (signal.as_raw() - 1)
}
