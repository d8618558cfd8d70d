//! Reports the counters through the facade `metrics`. A handle is requested from the program's recorder when
//! its counter is first used.

use std::sync::OnceLock;
use std::time::Duration;

use ::metrics::{Counter, Gauge, Histogram, Label, counter, gauge, histogram};

use super::prometheus::{JOBS, OUTCOMES};
use super::{LossReason, Meter, Metrics, RequestResult, RequestVerb, Ungranted, UseResult};
use crate::name::LockName;

pub(super) struct LockCounters {
    acquired: Counter,
    ungranted: [Counter; Ungranted::NAMES.len()],
    pub(super) waiting: Gauge,
    handovers: Counter,
    held: Gauge,
    resumed: Counter,
    pub(super) renewals: [Counter; 2],
    pub(super) losses: [Counter; LossReason::NAMES.len()],
    wait: Histogram,
    hold: Histogram,
    labels: Vec<Label>,
    /// Lazy, because most locks belong to no cache, job or election.
    uses: OnceLock<[Counter; UseResult::NAMES.len()]>,
    fill: OnceLock<Histogram>,
}

impl LockCounters {
    fn new(labels: &[Label]) -> Self {
        let with = |name, value: &'static str| {
            let mut labels = labels.to_vec();
            labels.push(Label::from_static_parts(name, value));
            labels
        };
        let ended = |result| counter!("tenure_acquisitions_total", with("result", result));
        let renewals = |result| counter!("tenure_renewals_total", with("result", result));
        let lost = |reason| counter!("tenure_losses_total", with("reason", reason));
        let labels = || labels.to_vec();
        Self {
            acquired: ended("acquired"),
            ungranted: Ungranted::NAMES.map(ended),
            waiting: gauge!("tenure_waiting", labels()),
            handovers: counter!("tenure_handovers_total", labels()),
            held: gauge!("tenure_held", labels()),
            resumed: counter!("tenure_resumed_total", labels()),
            renewals: ["answered", "failed"].map(renewals),
            losses: LossReason::NAMES.map(lost),
            wait: histogram!("tenure_wait_seconds", labels()),
            hold: histogram!("tenure_hold_seconds", labels()),
            labels: labels(),
            uses: OnceLock::new(),
            fill: OnceLock::new(),
        }
    }

    pub(super) fn granted(&self, waited: Duration, handed_over: bool) {
        self.acquired.increment(1);
        self.waiting.decrement(1.0);
        self.held.increment(1.0);
        self.wait.record(waited);
        if handed_over {
            self.handovers.increment(1);
        }
    }

    pub(super) fn ungranted(&self, how: Ungranted) {
        self.ungranted[how as usize].increment(1);
        self.waiting.decrement(1.0);
    }

    pub(super) fn resumed(&self) {
        self.resumed.increment(1);
        self.held.increment(1.0);
    }

    pub(super) fn used(&self, result: UseResult) {
        let counters = self.uses.get_or_init(|| {
            UseResult::NAMES.map(|(what, result)| {
                let mut labels = self.labels.clone();
                labels.push(Label::from_static_parts("result", result));
                counter!(format!("tenure_{what}_total"), labels)
            })
        });
        counters[result as usize].increment(1);
    }

    pub(super) fn filled(&self, took: Duration) {
        self.fill.get_or_init(|| histogram!("tenure_fill_seconds", self.labels.clone())).record(took);
    }

    pub(super) fn ended(&self, held: Duration) {
        self.held.decrement(1.0);
        self.hold.record(held);
    }
}

pub(super) struct StoreCounters {
    requests: [[Counter; RequestResult::NAMES.len()]; RequestVerb::NAMES.len()],
    reconnects: Counter,
}

impl StoreCounters {
    pub(super) fn request(&self, verb: RequestVerb, result: RequestResult, reconnects: u64) {
        self.requests[verb as usize][result as usize].increment(1);
        self.reconnects.absolute(reconnects);
    }
}

impl Metrics {
    pub(super) fn facade_of(&self, meter: Meter) -> &LockCounters {
        self.of(meter).facade.get_or_init(|| {
            LockCounters::new(&[
                Label::new("store", self.store.to_string()),
                Label::new("group", self.names.of(meter.group)),
                Label::from_static_parts("kind", meter.kind()),
            ])
        })
    }

    pub(super) fn facade_job(&self, name: &LockName, now_us: u64) {
        let Some(job) = self.jobs.of(name, now_us) else { return };
        let labels =
            || vec![Label::new("store", self.store.to_string()), Label::new("name", job.name.clone())];
        for (what, _, number) in JOBS {
            if let Some(number) = number(&job) {
                gauge!(format!("tenure_job_{what}"), labels()).set(number);
            }
        }
        for outcome in OUTCOMES {
            let mut labels = labels();
            labels.push(Label::from_static_parts("outcome", outcome));
            gauge!("tenure_job_last_outcome", labels).set(f64::from(job.outcome == outcome));
        }
    }

    pub(super) fn facade_election(&self, name: &LockName) {
        let Some(election) = self.elections.of(name) else { return };
        let mut labels =
            vec![Label::new("store", self.store.to_string()), Label::new("election", election.name)];
        gauge!("tenure_election_has_leader", labels.clone()).set(f64::from(election.leads));
        if let Some(holder) = election.holder {
            labels.push(Label::new("holder", holder));
            gauge!("tenure_election_leader", labels).set(f64::from(election.leads));
        }
    }

    pub(super) fn facade(&self) -> &StoreCounters {
        self.facade.get_or_init(|| {
            let store = || Label::new("store", self.store.to_string());
            let requests = RequestVerb::NAMES.map(|verb| {
                RequestResult::NAMES.map(|result| {
                    let verb = Label::from_static_parts("verb", verb);
                    let result = Label::from_static_parts("result", result);
                    counter!("tenure_requests_total", vec![store(), verb, result])
                })
            });
            StoreCounters { requests, reconnects: counter!("tenure_reconnects_total", vec![store()]) }
        })
    }
}
