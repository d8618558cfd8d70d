use std::time::Duration;

use super::{
    BOUNDS_US, Counters, Durations, ElectionMetrics, JobMetrics, KINDS, LossReason, Metrics, RequestResult,
    RequestVerb, Ungranted, UseResult,
};

/// The metrics of a [`Locks`](crate::Locks) and its clones at one moment: see
/// [`Locks::metrics`](crate::Locks::metrics). Each is exact, and only the gauges `waiting` and `held` can
/// decrease. They are read one after the other, so two of them may differ by what happened in between.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// The store's URL, without credentials.
    pub store: String,
    /// The counters of each group and kind that has any, ordered by group, then by kind.
    pub locks: Vec<LockMetrics>,
    /// The jobs for which this process asks, by name.
    pub jobs: Vec<JobMetrics>,
    /// The elections of which this process is or was a candidate, by name.
    pub elections: Vec<ElectionMetrics>,
    /// The requests to the store, by verb and result, without those that never occurred.
    pub requests: Vec<RequestMetrics>,
    /// Number of reconnects after a lost connection; for a directory, how often it was replaced. A node that
    /// leaves a cluster takes its count with it.
    pub reconnects: u64,
}

/// The metrics of one kind of lock in one group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockMetrics {
    /// The group: see [`Groups`](super::Groups). Empty for locks without one.
    pub group: String,
    /// The kind: `mutex`, `reentrant mutex`, `fair mutex`, `read-write lock`, `semaphore`, or for locks of
    /// other uses `cache`, `fill`, `once`, `election`. Empty in a sum of several.
    pub kind: &'static str,
    /// Granted acquisitions.
    pub acquired: u64,
    /// Acquisitions that tried once and found the lock busy.
    pub busy: u64,
    /// Acquisitions whose wait reached its limit while the lock was busy.
    pub timed_out: u64,
    /// Acquisitions whose future was dropped, whether or not they had to wait.
    pub cancelled: u64,
    /// Acquisitions that ended with an error, also because the store was silent at the limit.
    pub failed: u64,
    /// Acquisitions in progress, whether or not they wait.
    pub waiting: u64,
    /// Acquisitions that were granted after waiting in a queue of this process, whoever held the lock before.
    pub handovers: u64,
    /// Current holds in this process: guards that are neither released nor lost.
    pub held: u64,
    /// Detached holds taken over by [`Locks::resume`](crate::Locks::resume).
    pub resumed: u64,
    /// Background renewals that the store answered, also if the hold was gone.
    pub renewals: u64,
    /// Attempts at background renewals that the store rejected or did not answer. Each is repeated while the
    /// lease lasts.
    pub failed_renewals: u64,
    /// Lost holds, by reason: `expired`, `max_hold`, `taken`, `gone`, `unrenewed`. Counted before the guard
    /// reports the loss.
    pub losses: Vec<(&'static str, u64)>,
    /// Time from the call to the grant, of granted acquisitions.
    pub wait: Histogram,
    /// Time from the grant to the end, of holds that were released, detached or lost.
    pub hold: Histogram,
    /// Outcomes of caches, jobs and elections, without those that never occurred.
    pub uses: Vec<UseMetrics>,
    /// Time to compute a value of a cache, also of failed computations.
    pub fill: Histogram,
}

/// Count of one outcome of caches, once-per-period jobs or elections.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UseMetrics {
    /// `cache_reads`, `cache_fills`, `once_runs`, `terms`.
    pub what: &'static str,
    /// For a read `fresh`, `stale` (or due early), `absent` (known not to exist), `missing`. For a fill
    /// `filled`; `refused` (meanwhile, the lock was lost or the value invalidated); `unkept` (too large, or
    /// not accepted by the store); `alone` (without the lock); `failed`. For a run `begun`, `done`, `failed`.
    /// For a term `elected`, `updated`, `resigned`.
    pub result: &'static str,
    /// How often it occurred.
    pub count: u64,
}

/// Count of one kind of request with one result.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestMetrics {
    /// `acquire`, `renew`, `refresh` (places in a queue), `release`, `resize` (the permits of a semaphore),
    /// `inspect`; for a record `read`, `put`, `void`.
    pub verb: &'static str,
    /// `answered`; `not_sent`: never carried out; `unknown`: no answer; `refused`.
    pub result: &'static str,
    /// Number of requests, without those whose future was dropped.
    pub count: u64,
}

/// A histogram of durations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Histogram {
    /// Number of durations.
    pub count: u64,
    /// Their sum.
    pub sum: Duration,
    /// Cumulative buckets: the number of durations up to each bound, from 100 µs to an hour.
    pub buckets: Vec<(Duration, u64)>,
}

impl Snapshot {
    /// The sum over all groups and kinds.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// let locks = tenure::Locks::memory();
    /// let guard = locks.mutex("nightly")?.lock().await?;
    /// assert_eq!((locks.metrics().total().acquired, locks.metrics().total().held), (1, 1));
    /// # drop(guard);
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn total(&self) -> LockMetrics {
        self.sum("", |_| true)
    }

    /// The sum over the kinds of one group; all zero for an unknown group.
    ///
    /// ```
    /// assert_eq!(tenure::Locks::memory().metrics().group("reports").acquired, 0);
    /// ```
    pub fn group(&self, group: &str) -> LockMetrics {
        self.sum(group, |locks| locks.group == group)
    }

    fn sum(&self, group: &str, is_in: impl Fn(&LockMetrics) -> bool) -> LockMetrics {
        let first = LockMetrics { group: group.to_owned(), ..LockMetrics::from(&Counters::default()) };
        self.locks.iter().filter(|locks| is_in(locks)).fold(first, |mut sum, locks| {
            sum.add(locks);
            sum
        })
    }
}

impl LockMetrics {
    /// All lost holds.
    ///
    /// ```
    /// assert_eq!(tenure::Locks::memory().metrics().total().lost(), 0);
    /// ```
    pub fn lost(&self) -> u64 {
        self.losses.iter().map(|(_, count)| count).sum()
    }

    fn add(&mut self, other: &Self) {
        // Without `..`, so that no new number is forgotten.
        let Self {
            group: _,
            kind: _,
            acquired,
            busy,
            timed_out,
            cancelled,
            failed,
            waiting,
            handovers,
            held,
            resumed,
            renewals,
            failed_renewals,
            losses,
            wait,
            hold,
            fill,
            uses,
        } = other;
        self.acquired += acquired;
        self.busy += busy;
        self.timed_out += timed_out;
        self.cancelled += cancelled;
        self.failed += failed;
        self.waiting += waiting;
        self.handovers += handovers;
        self.held += held;
        self.resumed += resumed;
        self.renewals += renewals;
        self.failed_renewals += failed_renewals;
        self.losses.iter_mut().zip(losses).for_each(|(sum, number)| sum.1 += number.1);
        self.wait.add(wait);
        self.hold.add(hold);
        self.fill.add(fill);
        for used in uses {
            let is_same = |known: &&mut UseMetrics| (known.what, known.result) == (used.what, used.result);
            match self.uses.iter_mut().find(is_same) {
                Some(known) => known.count += used.count,
                None => self.uses.push(used.clone()),
            }
        }
    }
}

impl Histogram {
    fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.sum = self.sum.saturating_add(other.sum);
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(sum, number)| sum.1 += number.1);
    }
}

impl From<&Durations> for Histogram {
    fn from(durations: &Durations) -> Self {
        let mut count = 0;
        let mut counts = durations.buckets.iter().map(|bucket| {
            count += bucket.get();
            count
        });
        let bounds = BOUNDS_US.map(Duration::from_micros);
        let buckets = bounds.into_iter().zip(&mut counts).collect();
        let count = counts.last().unwrap_or_default();
        let sum = durations.sum_us.load(std::sync::atomic::Ordering::Relaxed);
        Self { count, sum: Duration::from_micros(sum), buckets }
    }
}

impl From<&Counters> for LockMetrics {
    fn from(counters: &Counters) -> Self {
        // Read ends before beginnings, so that no difference is negative.
        let hold = Histogram::from(&counters.holds);
        let [busy, timed_out, cancelled, failed] = counters.ungranted.each_ref().map(super::Count::get);
        let wait = Histogram::from(&counters.waits);
        let (acquired, resumed, begun) = (wait.count, counters.resumed.get(), counters.begun.get());
        let losses = LossReason::NAMES.into_iter().zip(counters.losses.iter().map(super::Count::get));
        let uses = UseResult::NAMES.into_iter().zip(counters.uses.iter().map(super::Count::get));
        let uses = uses.filter(|(_, count)| *count > 0);
        let uses = uses.map(|((what, result), count)| UseMetrics { what, result, count });
        Self {
            group: String::new(),
            kind: "",
            acquired,
            busy,
            timed_out,
            cancelled,
            failed,
            waiting: begun.saturating_sub(acquired + busy + timed_out + cancelled + failed),
            handovers: counters.handovers.get(),
            held: (acquired + resumed).saturating_sub(hold.count),
            resumed,
            renewals: counters.renewals.get(),
            failed_renewals: counters.failed_renewals.get(),
            losses: losses.collect(),
            wait,
            hold,
            uses: uses.collect(),
            fill: Histogram::from(&counters.fills),
        }
    }
}

impl Metrics {
    pub(crate) fn snapshot(&self, reconnects: u64, now_us: u64) -> Snapshot {
        let mut locks = Vec::new();
        for (slot, group) in self.names.all() {
            for (kind, counters) in KINDS.into_iter().zip(&self.counters[slot]) {
                if let Some(counters) = counters.get() {
                    locks.push(LockMetrics { group: group.clone(), kind, ..LockMetrics::from(&**counters) });
                }
            }
        }
        let mut requests = Vec::new();
        for (verb, results) in RequestVerb::NAMES.into_iter().zip(&self.requests) {
            for (result, count) in RequestResult::NAMES.into_iter().zip(results) {
                let count = count.get();
                if count > 0 {
                    requests.push(RequestMetrics { verb, result, count });
                }
            }
        }
        let (jobs, elections) = (self.jobs.all(now_us), self.elections.all());
        Snapshot { store: self.store.to_string(), locks, jobs, elections, requests, reconnects }
    }
}

pub(super) fn results(locks: &LockMetrics) -> [(&'static str, u64); 5] {
    let [busy, timed_out, cancelled, failed] = Ungranted::NAMES;
    [
        ("acquired", locks.acquired),
        (busy, locks.busy),
        (timed_out, locks.timed_out),
        (cancelled, locks.cancelled),
        (failed, locks.failed),
    ]
}
