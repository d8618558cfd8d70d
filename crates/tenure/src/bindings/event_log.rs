//! Events of `tracing`, for a listener in another language.
//!
//! The library calls a subscriber on a caller's thread or on one that only delivers events, never on the one that
//! renews leases. So a listener may wait.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

pub use tracing::Level;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};

/// Levels, least severe last.
const LEVELS: [LevelFilter; 6] = [
    LevelFilter::OFF,
    LevelFilter::ERROR,
    LevelFilter::WARN,
    LevelFilter::INFO,
    LevelFilter::DEBUG,
    LevelFilter::TRACE,
];

/// The last of `LEVELS` that is delivered.
static LEAST: AtomicUsize = AtomicUsize::new(2);

/// An event of the library.
#[derive(Clone, Debug)]
pub struct LogEvent {
    /// Its level.
    pub level: Level,
    /// The module that it concerns.
    pub target: &'static str,
    /// Text for people.
    pub message: String,
    /// The other fields, with the name of the event as `event`.
    pub fields: Vec<(&'static str, String)>,
}

impl LogEvent {
    fn set(&mut self, field: &Field, text: String) {
        if field.name() == "message" {
            self.message = text;
        } else {
            self.fields.push((field.name(), text));
        }
    }
}

impl Visit for LogEvent {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set(field, format!("{value:?}"));
    }
}

/// Calls this function with each event.
struct Deliver(fn(LogEvent));

fn is_ours(metadata: &Metadata<'_>) -> bool {
    metadata.is_event() && metadata.target().starts_with("tenure")
}

impl Subscriber for Deliver {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if is_ours(metadata) { Interest::sometimes() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        is_ours(metadata) && *metadata.level() <= LEVELS[LEAST.load(Ordering::Relaxed)]
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LEVELS[LEAST.load(Ordering::Relaxed)])
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let (message, fields) = (String::new(), Vec::new());
        let mut told = LogEvent { level: *metadata.level(), target: metadata.target(), message, fields };
        event.record(&mut told);
        (self.0)(told);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Has a function called with each event of the library, unless this process has another subscriber.
pub fn listen(listener: fn(LogEvent)) {
    let _ = tracing::subscriber::set_global_default(Deliver(listener));
}

/// Sets the least severe level of the events that are delivered: warnings at first; `None` for none.
pub fn set_level(level: Option<Level>) {
    let filter = level.map_or(LevelFilter::OFF, LevelFilter::from_level);
    let least = LEVELS.iter().position(|known| *known == filter).unwrap_or_default();
    if LEAST.swap(least, Ordering::Relaxed) != least {
        tracing::callsite::rebuild_interest_cache();
    }
}
