//! Prints the library's warnings in this program's format.

use std::fmt::{Debug, Write};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::output::complain;
use crate::printer::{self, Printer};

/// Prints the library's warnings on standard error from here on, one line each: all of them, or only those
/// about the setup. What happens to its lock is reported by the run itself.
///
/// They are emitted on the library's own thread, where nothing may fail or block, so the printer thread is
/// started first.
pub(crate) fn say(all: bool) -> Printer {
    let printer = printer::start();
    // No other subscriber is set in this process.
    let _ = tracing::subscriber::set_global_default(Warnings { all, hand: complain });
    printer
}

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

/// The text of an event.
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
            "event" => Ok(()), // name for programs
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
        tracing::warn!(target: "tenure", event = "alone", "alone");
        tracing::info!(target: "tenure", "no warning");
        tracing::warn!(target: "another", "not ours");
    }
}
