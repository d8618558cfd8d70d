//! A subscriber of the events with the target `tenure`.
#![allow(dead_code, reason = "each test file takes what it needs")]

use std::collections::BTreeMap;
use std::fmt::Debug;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// One event.
pub(crate) struct Said {
    pub(crate) level: Level,
    pub(crate) message: String,
    pub(crate) fields: BTreeMap<&'static str, String>,
}

/// Calls a function with each event.
pub(crate) struct Hears<F>(pub(crate) F);

#[derive(Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl<F: Fn(Said) + Send + Sync + 'static> Subscriber for Hears<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "tenure"
    }

    /// Reports a span as an event of its name, with all fields that it can have.
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let metadata = span.metadata();
        let mut fields: BTreeMap<_, _> =
            metadata.fields().iter().map(|field| (field.name(), String::new())).collect();
        fields.insert("event", metadata.name().to_owned());
        (self.0)(Said { level: *metadata.level(), message: String::new(), fields });
        Id::from_u64(1)
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let message = fields.0.remove("message").unwrap_or_default();
        (self.0)(Said { level: *event.metadata().level(), message, fields: fields.0 });
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
