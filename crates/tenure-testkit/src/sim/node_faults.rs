//! Faults of whole processes, connections and servers.

use super::clock::{MS, SECOND, TrueTime};
use super::executor::{ProcessId, Sim};
use super::network::Parting;
use super::regime::NodeFaults;

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeFault {
    /// A process pauses for a while.
    Pause,
    /// A process dies.
    Kill,
    /// The connection for requests is cut.
    Cut,
    /// The connection for messages is cut.
    DelayMessages,
    /// The server stalls for a while.
    Stall,
    /// The server restarts without its data.
    Forget,
    /// A lock's key is deleted, by an operator or by eviction.
    Delete,
    /// A process is partitioned from the server for a while.
    Part,
    /// The server returns to an earlier state.
    Rewind,
    /// The token counter is evicted.
    Evict,
    /// The server's clock is stepped.
    Step,
}

impl NodeFaults {
    /// Draws a fault.
    pub fn draw(&self, sim: &Sim) -> Option<NodeFault> {
        let weights = [
            (self.pause, NodeFault::Pause),
            (self.kill, NodeFault::Kill),
            (self.cut, NodeFault::Cut),
            (self.delay_messages, NodeFault::DelayMessages),
            (self.stall, NodeFault::Stall),
            (self.forget, NodeFault::Forget),
            (self.delete, NodeFault::Delete),
            (self.part, NodeFault::Part),
            (self.rewind, NodeFault::Rewind),
            (self.evict, NodeFault::Evict),
            (self.step, NodeFault::Step),
        ];
        let all: u32 = weights.iter().map(|(weight, _)| weight).sum();
        let mut chosen = sim.choose(all.max(1));
        for (weight, fault) in weights {
            if chosen < weight {
                return Some(fault);
            }
            chosen -= weight;
        }
        None
    }

    /// Draws a time within the bounds.
    pub fn span(&self, sim: &Sim, low: TrueTime, high: TrueTime) -> TrueTime {
        match self.evenly {
            true => low + high.saturating_sub(low) * TrueTime::from(sim.choose(1_000)) / 1_000,
            false => sim.between(low, high),
        }
    }

    /// Calls `strike` at random moments; returns when everything is to heal.
    pub async fn deal(&self, sim: &Sim, heals_at: TrueTime, strike: impl Fn()) {
        let count = if self.most == 0 { 0 } else { 1 + sim.choose(self.most as u32) };
        let mut times: Vec<_> = (0..count).map(|_| self.span(sim, 0, heals_at)).collect();
        times.sort_unstable();
        for at in times {
            sim.sleep_until(at).await;
            strike();
        }
        sim.sleep_until(heals_at).await;
        sim.note(|| "healed".into());
    }
}

/// Pauses a process until then.
pub(super) fn pause(sim: &Sim, process: ProcessId, until: TrueTime) {
    sim.note(|| format!("p{process}: stands still until {:.6}", until as f64 / 1e9));
    sim.pause(process);
    let sleeper = sim.clone();
    sim.at(until, move || {
        sleeper.note(|| format!("p{process}: goes on"));
        sleeper.resume(process);
    });
}

impl Parting {
    /// Draws a partition that ends at `until`: of requests, replies or both, and possibly of messages.
    pub fn draw(sim: &Sim, until: TrueTime) -> Self {
        let way = sim.choose(4);
        let (requests, replies) = (way != 1, way != 0);
        let (messages, loses) = (sim.chance(700), sim.chance(300));
        let until = |is_parted| if is_parted { until } else { 0 };
        Self { requests: until(requests), replies: until(replies), messages: until(messages), loses }
    }
}

/// A clock that is stepped now and then.
#[derive(Clone, Copy, Debug)]
pub struct Stepper {
    /// Its offset while it is off, in nanoseconds.
    pub off: i64,
    /// Whether it is never corrected.
    pub is_final: bool,
}

impl Stepper {
    /// Draws a stepper: back and forth by `most`; or for good, back by `most` or ahead by up to ten hours.
    pub fn draw(sim: &Sim, most: TrueTime) -> Self {
        let most = most as i64;
        match sim.choose(10) {
            0 | 1 => Self { off: sim.between(SECOND, 36_000 * SECOND) as i64, is_final: true },
            2 | 3 => Self { off: -most, is_final: true },
            4..7 => Self { off: most, is_final: false },
            _ => Self { off: -most, is_final: false },
        }
    }

    /// The clock's offset after the next step.
    pub fn next(self, off: i64) -> i64 {
        if off != 0 && !self.is_final { 0 } else { self.off }
    }

    /// Steps a server's clock once, or several times in a row.
    pub fn strike(self, sim: &Sim, until: TrueTime, step: impl Fn() + Clone + Send + 'static) {
        let turns = if self.is_final || sim.chance(600) { 1 } else { 2 + sim.choose(12) };
        let mut at = sim.now();
        for _ in 0..turns {
            sim.at(at.min(until), step.clone());
            at += sim.between(MS, 500 * MS);
        }
    }
}
