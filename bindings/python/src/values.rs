//! Reports of the library as dictionaries, which the package turns into data classes.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use tenure::metrics::{Histogram, LockMetrics, Snapshot};
use tenure::{
    ElectionStatus, ForcedRelease, Holder, JobStatus, LastRun, Leader, Outcome, Share, Status, StopRequest,
};

/// Converts a value, or returns `None`.
pub fn optional<T>(
    py: Python<'_>,
    value: Option<T>,
    into: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>>,
) -> PyResult<Py<PyAny>> {
    value.map_or_else(|| Ok(py.None()), |value| into(py, value))
}

/// Seconds since 1970.
pub fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn holder<'py>(py: Python<'py>, holder: &Holder) -> PyResult<Bound<'py, PyDict>> {
    let all = PyDict::new(py);
    all.set_item("owner", holder.owner.as_ref().map(|owner| owner.as_str()))?;
    all.set_item("user", holder.owner.as_ref().map(|owner| owner.user()))?;
    all.set_item("host", holder.owner.as_ref().map(|owner| owner.host()))?;
    all.set_item("pid", holder.owner.as_ref().map(|owner| owner.pid()))?;
    all.set_item("label", holder.owner.as_ref().map(|owner| owner.label()))?;
    all.set_item("value", PyBytes::new(py, &holder.value))?;
    all.set_item("fence", holder.fence)?;
    all.set_item("remaining", holder.remaining.map(|left| left.as_secs_f64()))?;
    all.set_item("since", holder.since().map(seconds))?;
    let (share, count) = match holder.share {
        Share::Whole => ("whole", 1),
        Share::Holds(count) => ("holds", count),
        Share::Reader => ("reader", 1),
        Share::Upgradeable => ("upgradeable", 1),
        Share::Writer => ("writer", 1),
        Share::Permits(count) => ("permits", count),
        _ => ("unknown", 1),
    };
    all.set_item("share", share)?;
    all.set_item("count", count)?;
    Ok(all)
}

pub fn status(py: Python<'_>, status: Status) -> PyResult<Py<PyAny>> {
    let all = PyDict::new(py);
    all.set_item("name", status.name.as_str())?;
    all.set_item("kind", status.kind.as_str())?;
    all.set_item("permits", status.permits)?;
    let holders = |all: &[Holder]| all.iter().map(|one| holder(py, one)).collect::<PyResult<Vec<_>>>();
    all.set_item("holders", holders(&status.holders)?)?;
    all.set_item("waiters", holders(&status.waiters)?)?;
    all.set_item("unlisted", status.unlisted)?;
    all.set_item("waiting", status.waiting)?;
    all.set_item("foreign", status.foreign())?;
    Ok(all.into_any().unbind())
}

pub fn stop_request(py: Python<'_>, request: StopRequest) -> PyResult<Py<PyAny>> {
    Ok((request.by.as_str(), request.reason).into_pyobject(py)?.into_any().unbind())
}

/// What a forced release found: `free`, `ended` or `other`, with the state of the lock.
pub fn forced(py: Python<'_>, forced: ForcedRelease) -> PyResult<Py<PyAny>> {
    let (what, found) = match forced {
        ForcedRelease::Ended(found) => ("ended", found),
        ForcedRelease::Other(found) => ("other", found),
        _ => return Ok(("free", py.None()).into_pyobject(py)?.into_any().unbind()),
    };
    Ok((what, status(py, found)?).into_pyobject(py)?.into_any().unbind())
}

pub fn leader(py: Python<'_>, leader: Leader) -> PyResult<Py<PyAny>> {
    let all = PyDict::new(py);
    all.set_item("payload", leader.payload)?;
    all.set_item("fence", leader.fence)?;
    all.set_item("owner", leader.owner.as_str())?;
    Ok(all.into_any().unbind())
}

pub fn run(py: Python<'_>, run: LastRun) -> PyResult<Py<PyAny>> {
    let all = PyDict::new(py);
    all.set_item("window", (seconds(run.window.start), seconds(run.window.end)))?;
    all.set_item("begun", seconds(run.begun))?;
    all.set_item("owner", run.owner.as_str())?;
    all.set_item("ended", run.ended.map(seconds))?;
    all.set_item("fence", run.fence)?;
    outcome(&all, run.outcome)?;
    all.set_item("remaining", run.remaining.map(|left| left.as_secs_f64()))?;
    all.set_item("code", run.code)?;
    all.set_item("succeeded", run.succeeded.map(seconds))?;
    all.set_item("is_open", run.is_open)?;
    Ok(all.into_any().unbind())
}

fn outcome(of: &Bound<'_, PyDict>, outcome: Outcome) -> PyResult<()> {
    let (outcome, why) = match outcome {
        Outcome::Running => ("running", None),
        Outcome::Done => ("done", None),
        Outcome::Failed(why) => ("failed", Some(why)),
        _ => ("lost", None),
    };
    of.set_item("outcome", outcome)?;
    of.set_item("why", why)
}

/// Jobs with their last runs.
pub fn jobs(py: Python<'_>, found: Vec<JobStatus>) -> PyResult<Py<PyAny>> {
    let all = PyList::empty(py);
    for job in found {
        let runs = PyList::empty(py);
        for run in job.runs {
            let of = PyDict::new(py);
            of.set_item("begun", seconds(run.begun))?;
            of.set_item("ended", run.ended.map(seconds))?;
            of.set_item("host", run.host)?;
            of.set_item("fence", run.fence)?;
            outcome(&of, run.outcome)?;
            of.set_item("code", run.code)?;
            runs.append(of)?;
        }
        let of = PyDict::new(py);
        of.set_item("name", job.name.as_str())?;
        of.set_item("schedule", job.schedule)?;
        of.set_item("last", self::run(py, job.last)?)?;
        of.set_item("runs", runs)?;
        of.set_item("next", seconds(job.next))?;
        of.set_item("overdue", job.overdue.map(|overdue| overdue.as_secs_f64()))?;
        all.append(of)?;
    }
    Ok(all.into_any().unbind())
}

pub fn elections(py: Python<'_>, found: Vec<ElectionStatus>) -> PyResult<Py<PyAny>> {
    let all = PyList::empty(py);
    for election in found {
        let of = PyDict::new(py);
        of.set_item("name", election.name.as_str())?;
        of.set_item("leader", optional(py, election.leader, leader)?)?;
        of.set_item("hold", election.hold.as_ref().map(|hold| holder(py, hold)).transpose()?)?;
        let candidates =
            election.candidates.iter().map(|one| holder(py, one)).collect::<PyResult<Vec<_>>>()?;
        of.set_item("candidates", candidates)?;
        of.set_item("unlisted", election.unlisted)?;
        all.append(of)?;
    }
    Ok(all.into_any().unbind())
}

fn histogram<'py>(py: Python<'py>, durations: &Histogram) -> PyResult<Bound<'py, PyDict>> {
    let all = PyDict::new(py);
    all.set_item("count", durations.count)?;
    all.set_item("sum", durations.sum.as_secs_f64())?;
    let bucket = |(most, count): &(Duration, u64)| (most.as_secs_f64(), *count);
    all.set_item("buckets", durations.buckets.iter().map(bucket).collect::<Vec<_>>())?;
    Ok(all)
}

fn of_lock<'py>(py: Python<'py>, locks: &LockMetrics) -> PyResult<Bound<'py, PyDict>> {
    let all = PyDict::new(py);
    all.set_item("group", &locks.group)?;
    all.set_item("kind", locks.kind)?;
    for (name, number) in [
        ("acquired", locks.acquired),
        ("busy", locks.busy),
        ("timed_out", locks.timed_out),
        ("cancelled", locks.cancelled),
        ("failed", locks.failed),
        ("waiting", locks.waiting),
        ("handovers", locks.handovers),
        ("held", locks.held),
        ("resumed", locks.resumed),
        ("renewals", locks.renewals),
        ("failed_renewals", locks.failed_renewals),
    ] {
        all.set_item(name, number)?;
    }
    let losses = PyDict::new(py);
    for (reason, count) in &locks.losses {
        losses.set_item(reason, count)?;
    }
    all.set_item("losses", losses)?;
    all.set_item("wait", histogram(py, &locks.wait)?)?;
    all.set_item("hold", histogram(py, &locks.hold)?)?;
    let uses = PyDict::new(py);
    for used in &locks.uses {
        uses.set_item((used.what, used.result), used.count)?;
    }
    all.set_item("uses", uses)?;
    all.set_item("fill", histogram(py, &locks.fill)?)?;
    Ok(all)
}

pub fn metrics<'py>(py: Python<'py>, snapshot: &Snapshot) -> PyResult<Bound<'py, PyDict>> {
    let all = PyDict::new(py);
    all.set_item("store", &snapshot.store)?;
    all.set_item("total", of_lock(py, &snapshot.total())?)?;
    let locks = snapshot.locks.iter().map(|locks| of_lock(py, locks)).collect::<PyResult<Vec<_>>>()?;
    all.set_item("locks", PyList::new(py, locks)?)?;
    let requests = PyDict::new(py);
    for request in &snapshot.requests {
        requests.set_item((request.verb, request.result), request.count)?;
    }
    all.set_item("requests", requests)?;
    all.set_item("reconnects", snapshot.reconnects)?;
    all.set_item("prometheus", snapshot.to_prometheus())?;
    Ok(all)
}
