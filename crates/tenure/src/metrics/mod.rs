//! Counters of one `Locks`: acquisitions, holds, renewals, losses, requests, and the outcomes of caches, jobs
//! and elections. They are atomics that count whether or not a program reads them as a [`Snapshot`]; with the
//! feature `metrics`, each change also goes to the crate of that name. [`Groups`] bounds their number.

mod candidates;
#[cfg(feature = "metrics")]
mod facade;
mod groups;
mod job_runs;
mod prometheus;
mod snapshot;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::name::{LockName, USE};
use crate::owner::Owner;
use crate::protocol::record::RecordVerb;
use crate::protocol::{LockSpec, Verb};

use candidates::Candidates;
use groups::Names;
use job_runs::JobRuns;

pub use candidates::ElectionMetrics;
pub use groups::Groups;
pub use job_runs::JobMetrics;
pub(crate) use job_runs::JobRun;
pub use snapshot::{Histogram, LockMetrics, RequestMetrics, Snapshot, UseMetrics};

/// Values of the label `kind`: the kind of a lock, or its use.
const KINDS: [&str; 9] = [
    "mutex",
    "reentrant mutex",
    "fair mutex",
    "read-write lock",
    "semaphore",
    "cache",
    "fill",
    "once",
    "election",
];

/// Upper bounds of the histogram buckets, in microseconds.
const BOUNDS_US: [u64; 14] = [
    100,
    1_000,
    5_000,
    10_000,
    50_000,
    100_000,
    500_000,
    1_000_000,
    5_000_000,
    10_000_000,
    30_000_000,
    60_000_000,
    300_000_000,
    3_600_000_000,
];

/// Where an acquisition and its hold are counted: an index into [`Metrics::counters`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meter {
    group: u8,
    /// An index into [`KINDS`].
    kind: u8,
}

impl Meter {
    pub(crate) fn kind(self) -> &'static str {
        KINDS[usize::from(self.kind)]
    }
}

/// How an acquisition ended without a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ungranted {
    Busy,
    TimedOut,
    Cancelled,
    Failed,
}

impl Ungranted {
    const NAMES: [&'static str; 4] = ["busy", "timed_out", "cancelled", "failed"];

    pub(crate) fn as_str(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LossReason {
    /// The lease expired before it could be renewed.
    Expired,
    /// It was held for `max_hold`.
    MaxHold,
    /// Another client holds it.
    Taken,
    /// The store no longer has it.
    Gone,
    /// The renewer ended, with the runtime or by a panic.
    Unrenewed,
}

impl LossReason {
    const NAMES: [&'static str; 5] = ["expired", "max_hold", "taken", "gone", "unrenewed"];

    pub(crate) fn as_str(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestVerb {
    Acquire,
    Renew,
    Refresh,
    Release,
    Resize,
    Inspect,
    Read,
    Put,
    Void,
}

impl RequestVerb {
    const NAMES: [&'static str; 9] =
        ["acquire", "renew", "refresh", "release", "resize", "inspect", "read", "put", "void"];

    pub(crate) fn of(verb: &Verb) -> Self {
        match verb {
            Verb::Acquire { .. } => Self::Acquire,
            Verb::Renew { .. } => Self::Renew,
            Verb::Refresh { .. } => Self::Refresh,
            Verb::Release { .. } => Self::Release,
            Verb::Resize => Self::Resize,
            Verb::Inspect => Self::Inspect,
        }
    }

    pub(crate) fn of_record(verb: &RecordVerb) -> Self {
        match verb {
            RecordVerb::Read => Self::Read,
            RecordVerb::Put(_) => Self::Put,
            RecordVerb::Void => Self::Void,
        }
    }

    #[cfg(feature = "testing")]
    pub(crate) fn as_str(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestResult {
    Answered,
    NotSent,
    Unknown,
    Refused,
}

impl RequestResult {
    const NAMES: [&'static str; 4] = ["answered", "not_sent", "unknown", "refused"];
}

/// Outcomes of caches, jobs and elections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UseResult {
    ReadFresh,
    ReadStale,
    ReadAbsent,
    ReadMissing,
    Filled,
    Refused,
    Unkept,
    FilledAlone,
    FillFailed,
    Begun,
    Done,
    Failed,
    Elected,
    Updated,
    Resigned,
}

impl UseResult {
    /// The counter's name and its label `result`.
    const NAMES: [(&'static str, &'static str); 15] = [
        ("cache_reads", "fresh"),
        ("cache_reads", "stale"),
        ("cache_reads", "absent"),
        ("cache_reads", "missing"),
        ("cache_fills", "filled"),
        ("cache_fills", "refused"),
        ("cache_fills", "unkept"),
        ("cache_fills", "alone"),
        ("cache_fills", "failed"),
        ("once_runs", "begun"),
        ("once_runs", "done"),
        ("once_runs", "failed"),
        ("terms", "elected"),
        ("terms", "updated"),
        ("terms", "resigned"),
    ];
}

/// Acquire and Release, so that a snapshot that reads ends before beginnings has no more of them.
#[derive(Default)]
struct Count(AtomicU64);

impl Count {
    fn add(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// A histogram.
#[derive(Default)]
struct Durations {
    buckets: [Count; BOUNDS_US.len() + 1],
    sum_us: AtomicU64,
}

impl Durations {
    fn add(&self, duration: Duration) {
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.buckets[BOUNDS_US.partition_point(|bound| *bound < us)].add();
        self.sum_us.fetch_add(us, Ordering::Relaxed);
    }
}

/// The counters of one kind in one group.
#[derive(Default)]
struct Counters {
    begun: Count,
    /// From the call to the grant. Also counts the granted acquisitions.
    waits: Durations,
    ungranted: [Count; Ungranted::NAMES.len()],
    handovers: Count,
    resumed: Count,
    renewals: Count,
    failed_renewals: Count,
    losses: [Count; LossReason::NAMES.len()],
    /// Also counts the ended holds.
    holds: Durations,
    uses: [Count; UseResult::NAMES.len()],
    fills: Durations,
    #[cfg(feature = "metrics")]
    facade: OnceLock<facade::LockCounters>,
}

/// All counters of one `Locks` and its clones, bounded in number.
pub(crate) struct Metrics {
    store: Arc<str>,
    names: Names,
    /// By group and kind, created on first use.
    counters: Box<[[OnceLock<Box<Counters>>; KINDS.len()]]>,
    requests: [[Count; RequestResult::NAMES.len()]; RequestVerb::NAMES.len()],
    jobs: JobRuns,
    elections: Candidates,
    #[cfg(feature = "metrics")]
    facade: OnceLock<facade::StoreCounters>,
}

impl Metrics {
    pub(crate) fn new(store: &Arc<str>) -> Self {
        Self {
            store: Arc::clone(store),
            names: Names::default(),
            counters: (0..groups::SLOTS).map(|_| Default::default()).collect(),
            requests: Default::default(),
            jobs: JobRuns::default(),
            elections: Candidates::default(),
            #[cfg(feature = "metrics")]
            facade: OnceLock::new(),
        }
    }

    /// The counters of a lock: `name` is what the caller passed, `full` the name in the store.
    pub(crate) fn meter(&self, groups: &Groups, name: &LockName, full: &LockName, spec: LockSpec) -> Meter {
        let label = match full.as_str().strip_prefix(USE).and_then(|rest| rest.split_once(':')) {
            Some((label @ ("cache" | "fill" | "once"), _)) => label,
            Some(("elect", _)) => "election",
            _ => spec.kind().as_str(),
        };
        let kind = KINDS.iter().position(|kind| *kind == label).expect("each kind has its label");
        Meter { group: self.names.slot(groups, name), kind: kind as u8 }
    }

    fn of(&self, meter: Meter) -> &Counters {
        let slot = &self.counters[usize::from(meter.group)][usize::from(meter.kind)];
        slot.get_or_init(Box::default)
    }

    pub(crate) fn begun(&self, meter: Meter) {
        self.of(meter).begun.add();
        #[cfg(feature = "metrics")]
        self.facade_of(meter).waiting.increment(1.0);
    }

    /// `handed_over`: granted after waiting in a queue of this process.
    pub(crate) fn granted(&self, meter: Meter, waited: Duration, handed_over: bool) {
        let counters = self.of(meter);
        counters.waits.add(waited);
        if handed_over {
            counters.handovers.add();
        }
        #[cfg(feature = "metrics")]
        self.facade_of(meter).granted(waited, handed_over);
    }

    pub(crate) fn ungranted(&self, meter: Meter, how: Ungranted) {
        self.of(meter).ungranted[how as usize].add();
        #[cfg(feature = "metrics")]
        self.facade_of(meter).ungranted(how);
    }

    pub(crate) fn resumed(&self, meter: Meter) {
        self.of(meter).resumed.add();
        #[cfg(feature = "metrics")]
        self.facade_of(meter).resumed();
    }

    /// A hold has ended: released, detached or lost.
    pub(crate) fn ended(&self, meter: Meter, held: Duration) {
        self.of(meter).holds.add(held);
        #[cfg(feature = "metrics")]
        self.facade_of(meter).ended(held);
    }

    /// A hold was lost, or was found lost by its release.
    pub(crate) fn lost(&self, meter: Meter, reason: LossReason) {
        self.of(meter).losses[reason as usize].add();
        #[cfg(feature = "metrics")]
        self.facade_of(meter).losses[reason as usize].increment(1);
    }

    pub(crate) fn renewed(&self, meter: Meter, is_answered: bool) {
        let counters = self.of(meter);
        let count = if is_answered { &counters.renewals } else { &counters.failed_renewals };
        count.add();
        #[cfg(feature = "metrics")]
        self.facade_of(meter).renewals[usize::from(!is_answered)].increment(1);
    }

    pub(crate) fn used(&self, meter: Meter, result: UseResult) {
        self.of(meter).uses[result as usize].add();
        #[cfg(feature = "metrics")]
        self.facade_of(meter).used(result);
    }

    /// The record of a job was read or written.
    pub(crate) fn saw_job(&self, name: &LockName, run: JobRun) {
        self.jobs.saw(name, run);
        self.job_goes_on(name, run.seen_here);
    }

    /// Time has passed for a job, by this process's clock. Only the crate `metrics` has to be told.
    pub(crate) fn job_goes_on(&self, name: &LockName, now_us: u64) {
        #[cfg(feature = "metrics")]
        self.facade_job(name, now_us);
        #[cfg(not(feature = "metrics"))]
        let _ = (name, now_us);
    }

    /// This process is a candidate, for now without a term.
    pub(crate) fn campaigns(&self, name: &LockName) {
        self.elections.campaigns(name);
        self.election_goes_on(name);
    }

    /// This process leads while `leads` is true.
    pub(crate) fn elected(
        &self,
        name: &LockName,
        owner: &Owner,
        leads: impl Fn() -> bool + Send + Sync + 'static,
    ) {
        self.elections.elected(name, owner, leads);
        self.election_goes_on(name);
    }

    /// A term has begun or ended. Only the crate `metrics` has to be told.
    pub(crate) fn election_goes_on(&self, name: &LockName) {
        #[cfg(feature = "metrics")]
        self.facade_election(name);
        #[cfg(not(feature = "metrics"))]
        let _ = name;
    }

    pub(crate) fn filled(&self, meter: Meter, took: Duration, result: UseResult) {
        self.of(meter).fills.add(took);
        #[cfg(feature = "metrics")]
        self.facade_of(meter).filled(took);
        self.used(meter, result);
    }

    /// `interruptions` is the number of reconnects.
    pub(crate) fn request(
        &self,
        verb: RequestVerb,
        result: RequestResult,
        interruptions: impl FnOnce() -> u64,
    ) {
        self.requests[verb as usize][result as usize].add();
        #[cfg(feature = "metrics")]
        self.facade().request(verb, result, interruptions());
        #[cfg(not(feature = "metrics"))]
        drop(interruptions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::QueueSpec;
    use crate::protocol::record::lock_name;

    #[test]
    fn a_lock_is_counted_as_its_kind_or_as_what_it_is_for() {
        let (metrics, groups) = (Metrics::new(&"memory:".into()), Groups::none());
        let name = LockName::new("x").expect("a name");
        let queues = [QueueSpec::FAIR, QueueSpec::WRITER, QueueSpec::permits(5, 1)].map(LockSpec::Queue);
        for spec in [LockSpec::Mutex, LockSpec::Reentrant].into_iter().chain(queues) {
            assert_eq!(metrics.meter(&groups, &name, &name, spec).kind(), spec.kind().as_str());
        }
        for (kind, shown) in [("cache", "cache"), ("fill", "fill"), ("once", "once"), ("elect", "election")] {
            let full = lock_name(kind, &name);
            assert_eq!(metrics.meter(&groups, &name, &full, LockSpec::Mutex).kind(), shown);
        }
    }

    #[test]
    fn a_duration_is_in_the_bucket_whose_bound_it_does_not_exceed() {
        let durations = Durations::default();
        for us in [0, 100, 101, 3_600_000_000, 3_600_000_001] {
            durations.add(Duration::from_micros(us));
        }
        let histogram = Histogram::from(&durations);
        let counts: Vec<_> = histogram.buckets.iter().map(|(_, count)| *count).collect();
        assert_eq!((counts[0], counts[1], counts[13], histogram.count), (2, 3, 4, 5));
    }
}
