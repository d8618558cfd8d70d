//! Events of `tracing`, for the module `logging`.
//!
//! The library calls a subscriber on a caller's thread or on one that only delivers events, never on the one
//! that renews leases. So a subscriber may wait for the GIL.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};

use crate::process::Process;

/// The levels of `logging`, least severe first.
const LEVELS: [(LevelFilter, u8); 5] = [
    (LevelFilter::TRACE, 5),
    (LevelFilter::DEBUG, 10),
    (LevelFilter::INFO, 20),
    (LevelFilter::WARN, 30),
    (LevelFilter::ERROR, 40),
];

/// Minimum level of the events that are delivered.
static LEAST: AtomicU8 = AtomicU8::new(30);
/// `tenure._log.emit(level, message, fields)`.
static EMIT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

fn number(level: &Level) -> u8 {
    LEVELS.iter().find(|(filter, _)| filter == level).map_or(50, |(_, number)| *number)
}

struct ToLogging;

#[derive(Default)]
struct Fields {
    message: String,
    others: Vec<(&'static str, String)>,
}

impl Fields {
    fn set(&mut self, field: &Field, text: String) {
        if field.name() == "message" {
            self.message = text;
        } else {
            self.others.push((field.name(), text));
        }
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set(field, format!("{value:?}"));
    }
}

impl Subscriber for ToLogging {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if metadata.is_event() && metadata.target().starts_with("tenure") {
            Interest::sometimes()
        } else {
            Interest::never()
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && metadata.target().starts_with("tenure")
            && number(metadata.level()) >= LEAST.load(Ordering::Relaxed)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let least = LEAST.load(Ordering::Relaxed);
        Some(LEVELS.iter().find(|(_, number)| *number >= least).map_or(LevelFilter::OFF, |(level, _)| *level))
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        // A thread that waits for the GIL while the interpreter ends is torn down with its stack.
        if Process::current().is_closing() {
            return;
        }
        let mut fields = Fields::default();
        event.record(&mut fields);
        let metadata = event.metadata();
        let _ = Python::try_attach(|py| {
            let emit =
                EMIT.get_or_try_init(py, || py.import("tenure._log")?.getattr("emit").map(Bound::unbind));
            let told = emit.and_then(|emit| {
                let Fields { message, others } = fields;
                emit.call1(py, (metadata.target(), number(metadata.level()), message, others))
            });
            if let Err(error) = told {
                error.write_unraisable(py, None);
            }
        });
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Sets the minimum level of the events that are delivered, as a number of `logging`.
#[pyfunction]
pub fn set_log_level(level: u8) {
    if LEAST.swap(level, Ordering::Relaxed) != level {
        tracing::callsite::rebuild_interest_cache();
    }
}

pub fn install() {
    // An error means that an earlier import of this module has installed it.
    let _ = tracing::subscriber::set_global_default(ToLogging);
}
