//! Events of the library, for the module `logging`.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use tenure::bindings::event_log::{self, Level, LogEvent};

use crate::process::Process;

/// The levels of `logging`, most severe first.
const LEVELS: [(Level, u8); 5] =
    [(Level::ERROR, 40), (Level::WARN, 30), (Level::INFO, 20), (Level::DEBUG, 10), (Level::TRACE, 5)];

/// `tenure._log.emit(target, level, message, fields)`.
static EMIT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

fn emit(event: LogEvent) {
    // A thread that waits for the GIL while the interpreter ends is torn down with its stack.
    if Process::current().is_closing() {
        return;
    }
    let level = LEVELS.iter().find(|(level, _)| *level == event.level).map_or(50, |(_, number)| *number);
    let _ = Python::try_attach(|py| {
        let emit = EMIT.get_or_try_init(py, || py.import("tenure._log")?.getattr("emit").map(Bound::unbind));
        let told = emit.and_then(|emit| emit.call1(py, (event.target, level, event.message, event.fields)));
        if let Err(error) = told {
            error.write_unraisable(py, None);
        }
    });
}

/// Sets the minimum level of the events that are delivered, as a number of `logging`.
#[pyfunction]
pub fn set_log_level(level: u8) {
    event_log::set_level(LEVELS.iter().rev().find(|(_, number)| *number >= level).map(|(level, _)| *level));
}

pub fn install() {
    event_log::listen(emit);
}
