//! A thread that writes this program's output to standard error. It may block forever, which no thread of the
//! library may.

use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use rustix::process::getpgrp;
use rustix::termios::{tcgetpgrp, tcgetwinsize};

/// Starts the thread, so that renewals, signals and the command do not wait for a reader of standard error
/// that may have stopped reading. If the thread cannot be started, callers write their own lines.
pub(crate) fn start() -> Printer {
    let (lines, printed) = channel();
    let thread = thread::Builder::new().name("printer".into()).spawn(move || {
        for said in printed {
            match said {
                Said::Text { text, is_live } => {
                    write(&text, is_live);
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
    say(line, false);
}

fn say(text: String, is_live: bool) {
    match LINES.get() {
        Some(lines) => {
            UNPRINTED.fetch_add(1, Ordering::Relaxed);
            let _ = lines.send(Said::Text { text, is_live });
        }
        None => write(&text, is_live),
    }
}

/// Whether a live line can be shown: standard error is a terminal, and this process is in its foreground.
pub(crate) fn has_live_line() -> bool {
    io::stderr().is_terminal() && tcgetpgrp(io::stderr()) == Ok(getpgrp())
}

/// A line at the bottom of the terminal that is overwritten, and removed on drop. Other output appears above
/// it.
pub(crate) struct LiveLine;

impl LiveLine {
    /// Shows this text, which must fit the width.
    pub(crate) fn show(&self, text: &str) {
        say(text.to_owned(), true);
    }
}

pub(crate) fn columns() -> usize {
    // Some terminals, such as those of CI runners, report 0.
    tcgetwinsize(io::stderr())
        .ok()
        .map(|size| usize::from(size.ws_col))
        .filter(|columns| *columns > 0)
        .unwrap_or(80)
}

impl Drop for LiveLine {
    fn drop(&mut self) {
        line(String::new());
    }
}

/// Waits until everything is written, up to `limit`.
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

/// On drop, waits briefly for pending output.
#[must_use = "what is still to be printed when it is dropped may not be"]
pub(crate) struct Printer;

impl Drop for Printer {
    fn drop(&mut self) {
        catch_up(Duration::from_millis(500));
    }
}

enum Said {
    Text {
        text: String,
        is_live: bool,
    },
    /// A caller that waits for all lines before this.
    All(Sender<()>),
}

/// The channel to the thread, if it was started.
static LINES: OnceLock<Sender<Said>> = OnceLock::new();
static UNPRINTED: AtomicUsize = AtomicUsize::new(0);
/// Whether the cursor is behind a live line.
static IS_LIVE: AtomicBool = AtomicBool::new(false);

/// `\r` and `ESC [ K` erase the live line.
fn write(text: &str, is_live: bool) {
    let erase = if IS_LIVE.swap(is_live, Ordering::Relaxed) { "\r\u{1b}[K" } else { "" };
    let _ = io::stderr().write_all(format!("{erase}{text}").as_bytes());
}
