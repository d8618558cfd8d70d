//! Formats a snapshot for Prometheus.

use std::fmt::{Display, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use super::snapshot::{Histogram, LockMetrics, Snapshot, results};
use super::{ElectionMetrics, JobMetrics};

type Labelled = fn(&LockMetrics) -> Vec<(&'static str, u64)>;

const LABELLED: [(&str, &str, &str, Labelled); 3] = [
    ("tenure_acquisitions_total", "result", "Acquisitions that have ended, by result.", |locks| {
        results(locks).to_vec()
    }),
    ("tenure_renewals_total", "result", "Renewals in the background, by result.", |locks| {
        vec![("answered", locks.renewals), ("failed", locks.failed_renewals)]
    }),
    ("tenure_losses_total", "reason", "Holds that were lost, by reason.", |locks| locks.losses.clone()),
];

type Number = fn(&LockMetrics) -> u64;

const NUMBERS: [(&str, &str, &str, Number); 4] = [
    ("tenure_handovers_total", "counter", "Grants after a wait in a queue.", |locks| locks.handovers),
    ("tenure_resumed_total", "counter", "Detached holds that were taken over.", |locks| locks.resumed),
    ("tenure_waiting", "gauge", "Acquisitions under way now.", |locks| locks.waiting),
    ("tenure_held", "gauge", "Holds in this process now.", |locks| locks.held),
];

/// Outcomes of caches, jobs and elections, by their name in a snapshot.
const USES: [(&str, &str); 4] = [
    ("cache_reads", "Reads of caches, by what was found."),
    ("cache_fills", "Values that were computed for caches, by result."),
    ("once_runs", "Jobs that run once in a period, by result."),
    ("terms", "Terms of leaders, by event."),
];

pub(super) type OfJob = fn(&JobMetrics) -> Option<f64>;

/// Metrics of a job, by the end of the name.
pub(super) const JOBS: [(&str, &str, OfJob); 4] = [
    ("last_success_timestamp_seconds", "When a job last succeeded.", |job| Some(unix(job.succeeded?))),
    ("last_run_timestamp_seconds", "When the last run of a job began.", |job| Some(unix(job.begun))),
    ("last_duration_seconds", "How long the last run of a job took.", |job| {
        Some(job.ended?.duration_since(job.begun).ok()?.as_secs_f64())
    }),
    ("overdue_seconds", "How long ago the window of a job began in which it has not run.", |job| {
        Some(job.overdue.as_secs_f64())
    }),
];

/// Values of the label `outcome`.
pub(super) const OUTCOMES: [&str; 3] = ["begun", "done", "failed"];

type Took = fn(&LockMetrics) -> &Histogram;

const HISTOGRAMS: [(&str, &str, Took); 2] = [
    ("tenure_wait_seconds", "From the call to the grant.", |locks| &locks.wait),
    ("tenure_hold_seconds", "From the grant to the end of the hold.", |locks| &locks.hold),
];

impl Snapshot {
    /// The text that Prometheus scrapes (text format 0.0.4; content type
    /// `text/plain; version=0.0.4`).
    ///
    /// `book/operate/monitoring.md` lists the names and labels. Only a breaking version renames or removes
    /// any.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// let locks = tenure::Locks::memory();
    /// locks.mutex("nightly")?.lock().await?.release().await?;
    /// let text = locks.metrics().to_prometheus();
    /// let labels = r#"store="memory:",group="",kind="mutex",result="acquired""#;
    /// assert!(text.contains(&format!("tenure_acquisitions_total{{{labels}}} 1\n")));
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn to_prometheus(&self) -> String {
        let mut text = String::new();
        let store = escaped(&self.store);
        let labels = |locks: &LockMetrics| {
            format!("store=\"{store}\",group=\"{}\",kind=\"{}\"", escaped(&locks.group), locks.kind)
        };
        for (name, label, help, numbers) in LABELLED {
            head(&mut text, name, "counter", help);
            for locks in &self.locks {
                for (value, number) in numbers(locks) {
                    let labels = format!("{},{label}=\"{value}\"", labels(locks));
                    line(&mut text, name, &labels, number);
                }
            }
        }
        for (name, kind, help, number) in NUMBERS {
            head(&mut text, name, kind, help);
            self.locks.iter().for_each(|locks| line(&mut text, name, &labels(locks), number(locks)));
        }
        for (what, help) in USES {
            let name = format!("tenure_{what}_total");
            head(&mut text, &name, "counter", help);
            for locks in &self.locks {
                for used in locks.uses.iter().filter(|used| used.what == what) {
                    let labels = format!("{},result=\"{}\"", labels(locks), used.result);
                    line(&mut text, &name, &labels, used.count);
                }
            }
        }
        for (name, help, took) in HISTOGRAMS {
            head(&mut text, name, "histogram", help);
            for locks in &self.locks {
                histogram(&mut text, name, &labels(locks), took(locks));
            }
        }
        let name = "tenure_fill_seconds";
        head(&mut text, name, "histogram", "To compute a value of a cache.");
        for locks in self.locks.iter().filter(|locks| locks.fill.count > 0) {
            histogram(&mut text, name, &labels(locks), &locks.fill);
        }
        head(&mut text, "tenure_requests_total", "counter", "Requests to the store, by result.");
        for request in &self.requests {
            let labels = format!("store=\"{store}\",verb=\"{}\",result=\"{}\"", request.verb, request.result);
            line(&mut text, "tenure_requests_total", &labels, request.count);
        }
        let of_job = |job: &JobMetrics| format!("store=\"{store}\",name=\"{}\"", escaped(&job.name));
        for (what, help, number) in JOBS {
            let name = format!("tenure_job_{what}");
            head(&mut text, &name, "gauge", help);
            for (job, number) in self.jobs.iter().filter_map(|job| Some((job, number(job)?))) {
                line(&mut text, &name, &of_job(job), number);
            }
        }
        let name = "tenure_job_last_outcome";
        head(&mut text, name, "gauge", "1 for the outcome of the last run of a job.");
        for job in &self.jobs {
            for outcome in OUTCOMES {
                let labels = format!("{},outcome=\"{outcome}\"", of_job(job));
                line(&mut text, name, &labels, u8::from(job.outcome == outcome));
            }
        }
        let of_election =
            |one: &ElectionMetrics| format!("store=\"{store}\",election=\"{}\"", escaped(&one.name));
        let name = "tenure_election_has_leader";
        head(&mut text, name, "gauge", "Whether a candidate of this process leads.");
        for one in &self.elections {
            line(&mut text, name, &of_election(one), u8::from(one.leads));
        }
        let name = "tenure_election_leader";
        head(&mut text, name, "gauge", "The same, with the candidate that led last.");
        for (one, holder) in self.elections.iter().filter_map(|one| Some((one, one.holder.as_ref()?))) {
            let labels = format!("{},holder=\"{}\"", of_election(one), escaped(holder));
            line(&mut text, name, &labels, u8::from(one.leads));
        }
        let name = "tenure_reconnects_total";
        head(&mut text, name, "counter", "Connections to the store that were lost and made again.");
        line(&mut text, name, &format!("store=\"{store}\""), self.reconnects);
        text
    }
}

fn unix(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn line(text: &mut String, name: &str, labels: &str, number: impl Display) {
    _ = writeln!(text, "{name}{{{labels}}} {number}");
}

fn histogram(text: &mut String, name: &str, labels: &str, took: &Histogram) {
    for (bound, count) in &took.buckets {
        let labels = format!("{labels},le=\"{}\"", bound.as_secs_f64());
        line(text, &format!("{name}_bucket"), &labels, count);
    }
    line(text, &format!("{name}_bucket"), &format!("{labels},le=\"+Inf\""), took.count);
    line(text, &format!("{name}_sum"), labels, took.sum.as_secs_f64());
    line(text, &format!("{name}_count"), labels, took.count);
}

fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', "\\n")
}
