//! What became of a schedule.

use super::clock::TrueTime;
use super::event::Events;
use super::oracle::Violation;
use super::regime::Plan;
use super::workload::Workload;

/// A schedule, after it.
#[derive(Clone, Debug)]
pub struct Report {
    /// Which it was.
    pub seed: u64,
    /// Its numbers.
    pub plan: Plan,
    /// How many servers there were; none where there was a directory.
    pub nodes: usize,
    /// What went wrong first.
    pub violation: Option<Violation>,
    /// What callers saw that must not be.
    pub seen_by_callers: Option<String>,
    /// Differs when anything that happened differs.
    pub hash: u64,
    /// Polls.
    pub steps: u64,
    /// Guards handed out.
    pub grants: u64,
    /// What happened in it.
    pub events: Events,
    /// How much time passed in it.
    pub lasted: TrueTime,
    /// What happened, if it was asked for.
    pub log: Vec<(TrueTime, String)>,
}

impl Report {
    /// What became of this workload on so many servers: what its judge has said, and what it did.
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

    /// The trace as a person reads it.
    pub fn trace(&self) -> String {
        self.log.iter().map(|(at, what)| format!("{:12.6}  {what}\n", *at as f64 / 1e9)).collect()
    }

    /// Whether this invariant was violated first.
    pub fn violates(&self, invariant: &str) -> bool {
        self.violation.as_ref().is_some_and(|violation| violation.invariant == invariant)
    }
}
