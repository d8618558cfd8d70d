//! The thread that writes to standard error what this program says: one that may block for ever,
//! which no thread of the library may.

use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

/// Starts the thread. From here on renewals, signals and the command do not wait for the reader of
/// standard error, which may have stopped reading. Without the thread, callers write their lines.
pub(crate) fn start() -> Printer {
    let (lines, printed) = channel();
    let thread = thread::Builder::new().name("printer".into()).spawn(move || {
        for said in printed {
            match said {
                Said::Line(line) => {
                    write(&line);
                    UNPRINTED.fetch_sub(1, Ordering::Release);
                }
                Said::All(told) => drop(told.send(())),
            }
        }
    });
    if thread.is_ok() {
        let _ = LINES.set(lines);
    }
    Printer
}

/// Writes a line, or hands it to the thread, which keeps the order.
pub(crate) fn line(line: String) {
    match LINES.get() {
        Some(lines) => {
            UNPRINTED.fetch_add(1, Ordering::Relaxed);
            let _ = lines.send(Said::Line(line));
        }
        None => write(&line),
    }
}

/// Waits until all that was said is written, but not longer than this.
pub(crate) fn catch_up(limit: Duration) {
    let Some(lines) = LINES.get() else { return };
    if UNPRINTED.load(Ordering::Acquire) == 0 {
        return;
    }
    let (told, all) = channel();
    if lines.send(Said::All(told)).is_ok() {
        let _ = all.recv_timeout(limit);
    }
}

/// Waits for a moment, when dropped, for what is still to be printed.
#[must_use = "what is still to be printed when it is dropped may not be"]
pub(crate) struct Printer;

impl Drop for Printer {
    fn drop(&mut self) {
        catch_up(Duration::from_millis(500));
    }
}

enum Said {
    Line(String),
    /// A caller that waits for the lines before this.
    All(Sender<()>),
}

/// To the thread, if there is one.
static LINES: OnceLock<Sender<Said>> = OnceLock::new();
static UNPRINTED: AtomicUsize = AtomicUsize::new(0);

fn write(line: &str) {
    let _ = io::stderr().write_all(line.as_bytes());
}
