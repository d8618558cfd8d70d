//! The machine of a simulated server: its time, its chances, and the oracle that it reports to.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt;
use tenure::internals::{Moment, Runtime};

use super::clock::{Clock, MS, TrueTime};
use super::event::Event;
use super::executor::{ProcessId, Sim};
use super::network::Parting;
use super::oracle::Oracle;
use super::regime::Faults;

/// The end of a lease later than this is not worth aiming at: no request takes so long.
const NEAR: Duration = Duration::from_millis(1_200);

/// Reports to the oracle.
pub(super) struct Judge {
    pub(super) sim: Sim,
    pub(super) oracle: Oracle,
    /// The server's clock.
    pub(super) clock: Clock,
}

/// A server's machine; without a judge outside of a schedule.
pub(super) struct Host {
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) judge: Option<Judge>,
}

impl Host {
    pub(super) fn now(&self) -> Moment {
        self.runtime.now()
    }

    pub(super) fn below(&self, count: u64) -> u64 {
        self.runtime.random() % count.max(1)
    }

    /// A duration within these bounds in nanoseconds: short ones are as likely as long ones.
    pub(super) fn span(&self, low: u64, high: u64) -> Duration {
        let bits = u64::BITS - high.saturating_sub(low).leading_zeros();
        let most = 1_u64 << self.below(u64::from(bits) + 1).min(63);
        Duration::from_nanos((low + self.below(most)).min(high.max(low)))
    }

    pub(super) fn chance(&self, permille: u32) -> bool {
        permille > 0 && self.below(1_000) < u64::from(permille)
    }

    pub(super) fn count(&self, event: Event) {
        if let Some(judge) = &self.judge {
            judge.sim.count(event);
        }
    }

    pub(super) fn note(&self, what: impl FnOnce() -> String) {
        if let Some(judge) = &self.judge {
            judge.sim.note(what);
        }
    }

    /// Something goes wrong between a process and the server.
    pub(super) fn has_failed(&self, process: ProcessId, event: Event) {
        self.count(event);
        if let Some(judge) = &self.judge {
            judge.oracle.has_failed(process);
        }
    }

    /// Runs `what` at a time of the server's.
    pub(super) fn later(&self, at: Moment, what: impl FnOnce() + Send + 'static) {
        let wait = self.runtime.sleep_until(at);
        let task = async move {
            wait.await;
            what();
        };
        self.runtime.spawn(task.boxed());
    }

    /// The time a message of a process takes in one direction. `first` is the next end of a lease.
    pub(super) fn latency(&self, faults: &Faults, process: ProcessId, first: Option<Moment>) -> Duration {
        let Faults { latency: (low, high), late: (late, most), edge, exact, .. } = *faults;
        let now = self.now();
        let is_slow = |delay: Duration| {
            if let Some(judge) = self.judge.as_ref().filter(|_| delay.as_nanos() > u128::from(high)) {
                judge.oracle.has_failed(process);
            }
        };
        if let Some(end) = first.filter(|end| *end > now && end.since(now) < NEAR)
            && self.chance(edge)
        {
            self.count(Event::AtEdge);
            // At the end of a lease, or just beside it.
            let beside = if self.chance(exact) { 3 * MS } else { self.below(6 * MS) };
            let delay =
                (end.since(now) + Duration::from_nanos(beside)).saturating_sub(Duration::from_millis(3));
            is_slow(delay);
            return delay;
        }
        if self.chance(late) {
            let delay = self.span(high, most);
            self.count(Event::Late);
            is_slow(delay);
            return delay;
        }
        self.span(low, high)
    }

    /// A true time on the server's clock; 0 stays what it is.
    pub(super) fn shows(&self, at: u64) -> Moment {
        let clock = self.judge.as_ref().map(|judge| judge.clock);
        Moment(clock.filter(|_| at > 0).map_or(at, |clock| clock.shows(at)))
    }

    /// Draws a partition, whose times are those of the server's clock.
    pub(super) fn parting(&self, sim: &Sim, until: TrueTime) -> Parting {
        let Parting { requests, replies, messages, loses } = Parting::draw(sim, until);
        let [requests, replies, messages] = [requests, replies, messages].map(|at| self.shows(at).0);
        Parting { requests, replies, messages, loses }
    }
}
