//! Reports of the library as dictionaries, which the package turns into data classes.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use tenure::bindings::Report;
use tenure::metrics::{Histogram, LockMetrics, Snapshot};

/// Seconds since 1970.
pub fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// A report in Python's types: times in seconds since 1970, durations in seconds.
pub fn report(py: Python<'_>, report: Report) -> PyResult<Py<PyAny>> {
    Ok(match report {
        Report::Null => py.None(),
        Report::Flag(flag) => flag.into_pyobject(py)?.to_owned().into_any().unbind(),
        Report::Number(number) => number.into_pyobject(py)?.into_any().unbind(),
        Report::Token(token) => token.into_pyobject(py)?.into_any().unbind(),
        Report::Text(text) => text.into_pyobject(py)?.into_any().unbind(),
        Report::Bytes(bytes) => PyBytes::new(py, &bytes).into_any().unbind(),
        Report::Duration(duration) => duration.as_secs_f64().into_pyobject(py)?.into_any().unbind(),
        Report::Time(time) => seconds(time).into_pyobject(py)?.into_any().unbind(),
        Report::List(values) => {
            let values = values.into_iter().map(|value| self::report(py, value));
            PyList::new(py, values.collect::<PyResult<Vec<_>>>()?)?.into_any().unbind()
        }
        Report::Object(fields) => {
            let all = PyDict::new(py);
            for (name, value) in fields {
                all.set_item(name, self::report(py, value)?)?;
            }
            all.into_any().unbind()
        }
    })
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
