//! The report, for people and for programs.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};

use super::Missing;
use super::samples::{Bar, Sorted, limits};
use crate::cli::Bench;
use crate::output::Line;

/// One measurement, with that of the bare commands.
pub(super) struct Measured {
    pub(super) part: &'static str,
    pub(super) title: String,
    pub(super) own: Option<Sorted>,
    /// A description of the bare commands.
    pub(super) what: String,
    pub(super) bare: Result<Sorted, Missing>,
}

pub(super) struct Report {
    pub(super) store: String,
    pub(super) length: Duration,
    pub(super) clients: u32,
    pub(super) ttl: Duration,
    pub(super) parts: Vec<Measured>,
}

pub(super) const QUANTILES: [(&str, f64); 5] =
    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)];

/// Columns of a histogram's longest bar.
const BAR: f64 = 40.0;

impl Measured {
    /// Both sides, with their names and times.
    pub(super) fn sides(&self) -> impl Iterator<Item = (&'static str, &Sorted)> {
        let own = self.own.iter().map(|own| ("tenure", own));
        own.chain(self.bare.iter().map(|bare| ("bare", bare)))
    }

    /// The bars of both histograms, with the same limits.
    pub(super) fn histograms(&self) -> Vec<(&'static str, Vec<Bar>)> {
        let limits = limits(self.sides().map(|(_, times)| times));
        self.sides().map(|(side, times)| (side, times.histogram(&limits))).collect()
    }
}

impl Report {
    pub(super) fn new(store: &str, args: &Bench) -> Self {
        let (length, clients, ttl) = (args.length, args.clients, args.ttl);
        Self { store: store.to_owned(), length, clients, ttl, parts: Vec::new() }
    }

    pub(super) fn add(&mut self, part: Measured) {
        self.parts.push(part);
    }

    /// Tables and histograms.
    pub(super) fn text(&self) -> String {
        let mut text = format!("{}\n", Line(&self.store));
        for part in &self.parts {
            let _ = writeln!(text, "\n{}: {}", part.part, part.title);
            let _ = write!(text, "  {:8}{:>9}{:>10}", "", "count", "per s");
            for (name, _) in QUANTILES {
                let _ = write!(text, "{name:>11}");
            }
            text.push('\n');
            for (side, times) in part.sides() {
                let _ = write!(text, "  {side:8}{:>9}{:>10.0}", times.count, times.per_second);
                for (_, quantile) in QUANTILES {
                    let _ = write!(text, "{:>11}", Short(times.quantile(quantile)).to_string());
                }
                text.push('\n');
            }
            match &part.bare {
                Ok(_) => _ = writeln!(text, "  bare: {}", part.what),
                Err(why) => _ = writeln!(text, "  bare was not measured: {}", Line(why)),
            }
            text.push_str(&bars(&part.histograms()));
        }
        text
    }

    /// One object on one line. Fields may be added, but are never removed.
    pub(super) fn json(&self) -> String {
        let micros = |time: Duration| time.as_nanos() as f64 / 1_000.0;
        let side = |times: &Sorted, bars: Option<&Vec<Bar>>| -> Value {
            let quantiles = QUANTILES.iter().map(|(name, part)| {
                (format!("{}_us", name.replace('.', "_")), json!(micros(times.quantile(*part))))
            });
            let bars = bars.into_iter().flatten();
            let bars = bars.map(|bar| json!({ "up_to_us": micros(bar.up_to), "part": bar.part }));
            let mut object = json!({
                "count": times.count,
                "per_second": times.per_second,
                "histogram": bars.collect::<Vec<_>>(),
            });
            object.as_object_mut().into_iter().for_each(|object| object.extend(quantiles.clone()));
            object
        };
        let parts = self.parts.iter().map(|part| {
            let bars = part.histograms();
            let bars = |side: &str| bars.iter().find(|(name, _)| *name == side).map(|(_, bars)| bars);
            json!({
                "part": part.part,
                "title": part.title,
                "tenure": part.own.as_ref().map(|own| side(own, bars("tenure"))),
                "bare": part.bare.as_ref().ok().map(|bare| side(bare, bars("bare"))),
                "bare_is": part.what,
                "bare_missing": part.bare.as_ref().err(),
            })
        });
        let object = json!({
            "store": self.store,
            "for_ms": self.length.as_millis() as u64,
            "clients": self.clients,
            "ttl_ms": self.ttl.as_millis() as u64,
            "parts": parts.collect::<Vec<_>>(),
        });
        format!("{object}\n")
    }
}

/// Both histograms, one line per limit.
fn bars(histograms: &[(&str, Vec<Bar>)]) -> String {
    let mut text = String::new();
    let most = histograms.iter().flat_map(|(_, bars)| bars).map(|bar| bar.part).fold(0.01, f64::max);
    let Some((_, first)) = histograms.first() else { return text };
    for (row, Bar { up_to, .. }) in first.iter().enumerate() {
        let is_last = row + 1 == first.len();
        let limit = if is_last { "more".to_owned() } else { format!("to {}", Short(*up_to)) };
        for (at, (side, bars)) in histograms.iter().enumerate() {
            let part = bars[row].part;
            let length = (part / most * BAR).ceil() as usize;
            let shown = if at == 0 { limit.as_str() } else { "" };
            let fill = if at == 0 { "█" } else { "▒" };
            let line = format!("  {shown:>12}  {side:6} {:5.1} % {}", part * 100.0, fill.repeat(length));
            let _ = writeln!(text, "{}", line.trim_end());
        }
    }
    text
}

/// A time with three digits: `85.1µs`, `1.24ms`, `12.4ms`, `1.20s`.
pub(super) struct Short(pub(super) Duration);

impl std::fmt::Display for Short {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let nanos = self.0.as_nanos() as f64;
        let (value, unit) = match nanos {
            ..1e6 => (nanos / 1e3, "µs"),
            ..1e9 => (nanos / 1e6, "ms"),
            _ => (nanos / 1e9, "s"),
        };
        let digits = match value {
            ..10.0 => 2,
            ..100.0 => 1,
            _ => 0,
        };
        write!(f, "{value:.digits$}{unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_three_digits() {
        for (nanos, text) in [
            (1_234, "1.23µs"),
            (85_100, "85.1µs"),
            (850_000, "850µs"),
            (1_240_000, "1.24ms"),
            (1_200_000_000, "1.20s"),
        ] {
            assert_eq!(Short(Duration::from_nanos(nanos)).to_string(), text);
        }
    }
}
