use std::time::Duration;

use super::{
    BOUNDS_US, Counters, Durations, KINDS, LossReason, Metrics, RequestResult, RequestVerb, Ungranted,
    UseResult,
};

/// What one [`Locks`](crate::Locks) and its clones have counted, at one moment: see
/// [`Locks::metrics`](crate::Locks::metrics).
///
/// Each number is exact, and none goes back. They are read one after the other, so two of them may
/// differ by what has happened between.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// The store's URL, without credentials.
    pub store: String,
    /// The numbers of each group and kind of which anything was counted, by group, then by kind.
    pub locks: Vec<LockMetrics>,
    /// The requests to the store, by verb and result. Those that never happened are left out.
    pub requests: Vec<RequestMetrics>,
    /// How often a connection to the store was lost and made again. For a directory: how often it
    /// was replaced. A node that leaves a cluster takes its count along.
    pub reconnects: u64,
}

/// The numbers of one kind of lock in one group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockMetrics {
    /// The group: see [`Groups`](super::Groups). Empty for locks without one.
    pub group: String,
    /// The kind: `mutex`, `reentrant mutex`, `fair mutex`, `read-write lock`, `semaphore`. For what
    /// rests on a lock: `cache`, `fill`, `once`, `election`. Empty in a sum of several.
    pub kind: &'static str,
    /// Acquisitions that were granted.
    pub acquired: u64,
    /// Acquisitions that asked once and found the lock busy.
    pub busy: u64,
    /// Acquisitions whose limit was over before the lock was free.
    pub timed_out: u64,
    /// Acquisitions whose future was dropped before its end.
    pub cancelled: u64,
    /// Acquisitions that ended with an error.
    pub failed: u64,
    /// Acquisitions under way now.
    pub waiting: u64,
    /// Acquisitions that were granted after waiting in a queue of this process, whoever held the lock before.
    pub handovers: u64,
    /// Holds in this process now: guards that are neither released nor lost.
    pub held: u64,
    /// Detached holds that were taken over by [`Locks::resume`](crate::Locks::resume).
    pub resumed: u64,
    /// Renewals in the background that were answered.
    pub renewals: u64,
    /// Renewals in the background that were not answered, or refused. Each is repeated.
    pub failed_renewals: u64,
    /// Holds that were lost, by reason: `expired`, `max_hold`, `taken`, `gone`, `unrenewed`. Each
    /// was counted before its guard said so.
    pub losses: Vec<(&'static str, u64)>,
    /// From the call to the grant, of acquisitions that were granted.
    pub wait: Histogram,
    /// From the grant to the end, of holds that were released, detached or lost.
    pub hold: Histogram,
    /// Outcomes of caches, jobs and elections. Those that never happened are left out.
    pub uses: Vec<UseMetrics>,
    /// How long it took to compute a value of a cache, also in vain.
    pub fill: Histogram,
}

/// How often a cache, a job that runs once, or an election had one outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UseMetrics {
    /// `cache_reads`, `cache_fills`, `once_runs`, `terms`.
    pub what: &'static str,
    /// Of a read `fresh`, `stale` (or due early), `absent` (known not to exist), `missing`. Of a
    /// fill `filled`; `refused` (computed for too long, or invalidated); `unkept` (too large, or
    /// the store did not take it); `alone` (without the lock); `failed`. Of a run `begun`, `done`,
    /// `failed`. Of a term `elected`, `updated`, `resigned`.
    pub result: &'static str,
    /// How often.
    pub count: u64,
}

/// Requests of one verb with one result.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestMetrics {
    /// What was asked: `acquire`, `renew`, `refresh` (places in a queue), `release`, `resize` (the permits of a
    /// semaphore), `inspect`; of a record `read`, `put`, `void`.
    pub verb: &'static str,
    /// What became of it: `answered`; `not_sent`, and never carried out; `unknown`, without an
    /// answer; `refused`.
    pub result: &'static str,
    /// How many. A request whose future is dropped is not counted.
    pub count: u64,
}

/// How long something took, each time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Histogram {
    /// How often.
    pub count: u64,
    /// In all.
    pub sum: Duration,
    /// How many took at most so long, from 100 µs to an hour. Each includes those before it.
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

    /// The sum over the kinds of one group; all zero for one that was never met.
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
    /// All holds that were lost, for whatever reason.
    ///
    /// ```
    /// assert_eq!(tenure::Locks::memory().metrics().total().lost(), 0);
    /// ```
    pub fn lost(&self) -> u64 {
        self.losses.iter().map(|(_, count)| count).sum()
    }

    fn add(&mut self, other: &Self) {
        let numbers = [
            (&mut self.acquired, other.acquired),
            (&mut self.busy, other.busy),
            (&mut self.timed_out, other.timed_out),
            (&mut self.cancelled, other.cancelled),
            (&mut self.failed, other.failed),
            (&mut self.waiting, other.waiting),
            (&mut self.handovers, other.handovers),
            (&mut self.held, other.held),
            (&mut self.resumed, other.resumed),
            (&mut self.renewals, other.renewals),
            (&mut self.failed_renewals, other.failed_renewals),
        ];
        numbers.into_iter().for_each(|(sum, number)| *sum += number);
        self.losses.iter_mut().zip(&other.losses).for_each(|(sum, number)| sum.1 += number.1);
        self.wait.add(&other.wait);
        self.hold.add(&other.hold);
        self.fill.add(&other.fill);
        for used in &other.uses {
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
        // What ends is read before what begins, so that a difference is never below zero.
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
    /// What was counted so far.
    pub(crate) fn snapshot(&self, reconnects: u64) -> Snapshot {
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
        Snapshot { store: self.store.to_string(), locks, requests, reconnects }
    }
}

/// The results of acquisitions with their numbers.
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
