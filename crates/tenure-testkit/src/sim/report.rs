//! The outcome of a schedule.

use super::clock::TrueTime;
use super::event::Events;
use super::oracle::Violation;
use super::regime::Plan;
use super::workload::Workload;

/// The outcome of a schedule.
#[derive(Clone, Debug)]
pub struct Report {
    /// Its seed.
    pub seed: u64,
    /// Its plan.
    pub plan: Plan,
    /// Number of servers; 0 for a directory.
    pub nodes: usize,
    /// The first violation.
    pub violation: Option<Violation>,
    /// The first violation that callers could observe.
    pub seen_by_callers: Option<String>,
    /// A hash of everything that happened.
    pub hash: u64,
    /// Number of polls.
    pub steps: u64,
    /// Number of guards handed out.
    pub grants: u64,
    /// Events that occurred.
    pub events: Events,
    /// Its length in true time.
    pub lasted: TrueTime,
    /// The log, if one was kept.
    pub log: Vec<(TrueTime, String)>,
}

impl Report {
    /// The outcome of this workload on `nodes` servers, with the verdict of its oracle.
    pub(super) fn of(
        seed: u64,
        nodes: usize,
        workload: &Workload,
        (violation, seen_by_callers): (Option<Violation>, Option<String>),
    ) -> Self {
        let Workload { sim, oracle, plan, .. } = workload;
        Self {
            seed,
            plan: *plan,
            nodes,
            violation,
            seen_by_callers,
            hash: sim.hash(),
            steps: sim.steps(),
            grants: oracle.grants(),
            events: sim.events(),
            lasted: sim.now(),
            log: sim.log(),
        }
    }

    /// The log as text.
    pub fn trace(&self) -> String {
        self.log.iter().map(|(at, what)| format!("{:12.6}  {what}\n", *at as f64 / 1e9)).collect()
    }

    /// Whether the first violation is of this invariant.
    pub fn violates(&self, invariant: &str) -> bool {
        self.violation.as_ref().is_some_and(|violation| violation.invariant == invariant)
    }
}
