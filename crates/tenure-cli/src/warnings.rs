//! What the library warns of, said as this program says things.
#![expect(
    clippy::disallowed_methods,
    reason = "a thread that may block for ever, which no thread of the library may"
)]

use std::fmt::{Debug, Write};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::output::complain;

/// From here on its warnings go to standard error, a line each: those about what somebody should change, or all. What happens to
/// the lock meanwhile is told by whoever works under it.
///
/// A thread of their own writes them, because whoever reads there may have stopped reading: neither renewals nor the command may
/// wait for that.
pub(crate) fn say(all: bool) -> Printer {
    let hand = |line| drop(LINES.get_or_init(print).send(Said::Line(line)));
    // There is no other: nobody has been here before.
    let _ = tracing::subscriber::set_global_default(Warnings { all, hand });
    Printer
}

/// To the thread that prints, which begins with the first.
static LINES: OnceLock<Sender<Said>> = OnceLock::new();

enum Said {
    Line(String),
    /// Nothing more.
    All(Sender<()>),
}

fn print() -> Sender<Said> {
    let (lines, printed) = channel();
    thread::spawn(move || {
        for said in printed {
            match said {
                Said::Line(line) => complain(line),
                Said::All(told) => drop(told.send(())),
            }
        }
    });
    lines
}

/// Waits for a moment, when dropped, for what is still to be printed.
#[must_use = "what is still to be printed when it is dropped may not be"]
pub(crate) struct Printer;

impl Drop for Printer {
    fn drop(&mut self) {
        let Some(lines) = LINES.get() else { return };
        let (told, all) = channel();
        if lines.send(Said::All(told)).is_ok() {
            let _ = all.recv_timeout(Duration::from_millis(500));
        }
    }
}

/// Hands on each line.
struct Warnings<F> {
    all: bool,
    hand: F,
}

impl<F: Fn(String) + 'static> Subscriber for Warnings<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let target = metadata.target();
        let is_ours = target == "tenure::setup" || self.all && target == "tenure";
        metadata.is_event() && *metadata.level() <= Level::WARN && is_ours
    }

    fn event(&self, event: &Event<'_>) {
        let mut words = Words::default();
        event.record(&mut words);
        (self.hand)(words.line());
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// What an event says.
#[derive(Default)]
struct Words {
    message: String,
    rest: String,
}

impl Words {
    fn line(&self) -> String {
        if self.rest.is_empty() {
            format!("warning: {}", self.message)
        } else {
            format!("warning: {} ({})", self.message, self.rest)
        }
    }
}

impl Visit for Words {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => {
                let comma = if self.rest.is_empty() { "" } else { ", " };
                write!(self.rest, "{comma}{name} {value:?}")
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn a_warning_is_a_line_with_all_that_it_says_and_nothing_else_is_one() {
        let said = |all| {
            let lines = Arc::<Mutex<Vec<String>>>::default();
            let kept = Arc::clone(&lines);
            let hand = move |line| kept.lock().expect("no panic").push(line);
            tracing::subscriber::with_default(Warnings { all, hand }, warn);
            let lines = lines.lock().expect("no panic");
            lines.clone()
        };
        let (setup, rest) = ("warning: even (members 2, store redis://a, why because)", "warning: alone");
        assert_eq!(
            (said(false), said(true)),
            (vec![setup.to_owned()], vec![setup.to_owned(), rest.to_owned()])
        );
    }

    fn warn() {
        tracing::warn!(target: "tenure::setup", members = 2, store = %"redis://a", why = "because", "even");
        tracing::warn!(target: "tenure", "alone");
        tracing::info!(target: "tenure", "no warning");
        tracing::warn!(target: "another", "not ours");
    }
}
