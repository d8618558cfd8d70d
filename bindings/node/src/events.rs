//! Events of `tracing`, for the thread of JavaScript that loaded the package first.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once, Weak};

use napi_derive::napi;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};

use crate::channel::Thread;
use crate::engine::lock;
use crate::error::{Result, invalid};
use crate::value::Value;

/// Names of levels, most severe first.
const LEVELS: [(&str, LevelFilter); 6] = [
    ("off", LevelFilter::OFF),
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
];

/// The last of `LEVELS` that is delivered.
static LEAST: AtomicUsize = AtomicUsize::new(2);
static LISTENER: Mutex<Weak<Thread>> = Mutex::new(Weak::new());

fn least() -> LevelFilter {
    LEVELS[LEAST.load(Ordering::Relaxed)].1
}

fn is_ours(metadata: &Metadata<'_>) -> bool {
    metadata.is_event() && metadata.target().starts_with("tenure")
}

struct Fields(Vec<(&'static str, Value)>);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.push((field.name(), value.into()));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.push((field.name(), format!("{value:?}").into()));
    }
}

struct ToThread;

impl Subscriber for ToThread {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if is_ours(metadata) { Interest::sometimes() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        is_ours(metadata) && *metadata.level() <= least()
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(least())
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let listener = lock(&LISTENER).upgrade();
        let Some(thread) = listener.filter(|thread| !thread.is_over()) else { return };
        let level = LEVELS.iter().find(|(_, filter)| filter == event.metadata().level());
        let mut fields = Fields(vec![("level", level.map(|(name, _)| *name).into())]);
        event.record(&mut fields);
        thread.tell(Value::Object(fields.0));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Lets a thread hear the events unless another one does.
pub fn listen(thread: &Arc<Thread>) {
    static INSTALL: Once = Once::new();
    let mut listener = lock(&LISTENER);
    if listener.upgrade().is_none_or(|thread| thread.is_over()) {
        *listener = Arc::downgrade(thread);
    }
    drop(listener);
    // An error means that something else in this process has a subscriber.
    INSTALL.call_once(|| drop(tracing::subscriber::set_global_default(ToThread)));
}

/// Sets the least severe level of the events that are delivered; `off` for none.
#[napi]
pub fn set_log_level(level: String) -> Result<()> {
    let Some(at) = LEVELS.iter().position(|(name, _)| *name == level) else {
        return Err(invalid(format!(
            "level: got {level:?}, expected off, error, warn, info, debug or trace"
        )));
    };
    LEAST.store(at, Ordering::Relaxed);
    tracing::callsite::rebuild_interest_cache();
    Ok(())
}
