//! Errors of the library as exceptions of the package.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use tenure::bindings::message;

/// `tenure._errors.make(kind, message, lock, store)`.
static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

fn make(kind: &str, message: &str, lock: Option<&str>, store: Option<&str>) -> PyErr {
    Python::attach(|py| {
        let make =
            MAKE.get_or_try_init(py, || py.import("tenure._errors")?.getattr("make").map(Bound::unbind));
        match make.and_then(|make| make.bind(py).call1((kind, message, lock, store))) {
            Ok(error) => PyErr::from_value(error),
            Err(error) => error,
        }
    })
}

/// The exception of an error, with the messages of its causes.
pub fn of(error: &tenure::Error) -> PyErr {
    make(error.kind().as_str(), &message(error), error.lock().map(|name| name.as_str()), error.store())
}

pub fn invalid(message: &str) -> PyErr {
    make("invalid", message, None, None)
}

pub fn unsupported(message: &str) -> PyErr {
    make("unsupported", message, None, None)
}

pub fn forked() -> PyErr {
    make("forked", "the guard belongs to the parent process: a fork does not share locks", None, None)
}

pub fn closing() -> PyErr {
    make("closed", "the interpreter is shutting down", None, None)
}

pub fn released() -> PyErr {
    make("released", "the guard is released", None, None)
}

/// A duration from seconds.
pub fn seconds(what: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| invalid(&format!("{what}: got {seconds}, expected seconds from 0")))
}
