//! What metrics and JSON are written with.

use std::fmt::Write;
use std::time::Duration;

/// The text that Prometheus scrapes.
#[derive(Default)]
pub(super) struct Metrics(pub(super) String);

impl Metrics {
    pub(super) fn add(&mut self, name: &str, kind: &str, help: &str, values: Vec<(String, f64)>) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(self.0, "{name}{labels} {value}");
        }
    }
}

pub(super) fn ms(time: Duration) -> u64 {
    time.as_millis() as u64
}

pub(super) fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}
