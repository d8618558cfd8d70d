//! This program's own output: whole lines, each in a single write.

use std::fmt::{self, Display};
use std::io::{self, Write};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fstat, stat};
use rustix::io::Errno;
use tenure::diagnosis::is_control;
use tokio::sync::oneshot;

use crate::exit::Failure;
use crate::printer;

/// How much a run prints on standard error, where the command under the lock writes, too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Voice {
    pub(crate) quiet: bool,
    pub(crate) verbose: bool,
}

impl Voice {
    /// Neither -q nor -v.
    pub(crate) const LOUD: Self = Self { quiet: false, verbose: false };

    /// Reports why something did not happen.
    pub(crate) fn say(self, message: impl Display) {
        if !self.quiet {
            complain(message);
        }
    }

    /// Reports progress, with -v.
    pub(crate) fn detail(self, message: impl Display) {
        if self.verbose {
            self.say(message);
        }
    }
}

/// Prints one line on standard error, through the printer thread if it is running.
pub(crate) fn complain(message: impl Display) {
    printer::line(format!("tenure: {}\n", Line(&message.to_string())));
}

/// Prints lines on standard output. A closed pipe is not an error.
pub(crate) fn print(lines: impl Display) -> Result<(), Failure> {
    unless_closed(print_all(lines))
}

/// The failure to print, unless nobody reads any more.
pub(crate) fn unless_closed(printed: io::Result<()>) -> Result<(), Failure> {
    match printed {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        printed => printed.map_err(|error| Failure::own("cannot print", &error)),
    }
}

/// Prints lines, and returns whether anybody still reads them.
pub(crate) async fn print_while_read(lines: String) -> Result<bool, Failure> {
    match print_aside(lines).await {
        _ if is_unread() => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        printed => unless_closed(printed).map(|()| true),
    }
}

/// Whether the other end of a pipe is closed, also while there is nothing to print.
fn is_unread() -> bool {
    let out = io::stdout();
    let mut polled = [PollFd::new(&out, PollFlags::empty())];
    poll(&mut polled, Some(&Timespec::default())).is_ok_and(|_| polled[0].revents().contains(PollFlags::ERR))
}

/// Whether standard output was closed, so that output is lost: before `main`, closed descriptors are opened
/// as `/dev/null` for reading and writing.
pub(crate) fn is_closed() -> bool {
    let out = io::stdout();
    let is_null = || Ok::<_, Errno>(fstat(&out)?.st_rdev == stat("/dev/null")?.st_rdev);
    let is_for_both = || Ok(fcntl_getfl(&out)? & OFlags::RWMODE == OFlags::RDWR);
    is_null().and_then(|is_null| Ok(is_null && is_for_both()?)).unwrap_or(true)
}

/// Prints lines that must be read: a closed pipe is an error.
pub(crate) fn print_all(lines: impl Display) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(lines.to_string().as_bytes()).and_then(|()| out.flush())
}

/// The same on a thread of its own. Where nobody reads, it takes for ever, and signals have to be heard meanwhile.
pub(crate) async fn print_aside(lines: String) -> io::Result<()> {
    let (tell, told) = oneshot::channel();
    let print = move || drop(tell.send(print_all(lines)));
    thread::Builder::new().name("output".into()).spawn(print)?;
    told.await.unwrap_or_else(|_| Err(io::Error::other("the thread that prints has ended")))
}

/// External text on one line, with characters escaped that a terminal would obey.
pub(crate) struct Line<'a>(pub(crate) &'a str);

impl Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for char in self.0.chars() {
            match char {
                char if is_control(char) => write!(f, "{}", char.escape_default())?,
                char => write!(f, "{char}")?,
            }
        }
        Ok(())
    }
}

/// A count with its noun: `1 task`, `2 tasks`.
pub(crate) fn plural(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// A duration for display: `0.8s`, `42s`, `3m 20s`, `2h 5m`, `1d 2h`.
pub(crate) struct Span(pub(crate) Duration);

impl Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        match seconds {
            0..10 => write!(f, "{:.1}s", self.0.as_secs_f64()),
            10..60 => write!(f, "{seconds}s"),
            60..3600 => write!(f, "{}m {}s", seconds / 60, seconds % 60),
            3600..86_400 => write!(f, "{}h {}m", seconds / 3600, seconds / 60 % 60),
            _ => write!(f, "{}d {}h", seconds / 86_400, seconds / 3600 % 24),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_stays_one_line() {
        assert_eq!(Line("a\r\nb\u{1b}[2Jc ✓").to_string(), "a\\r\\nb\\u{1b}[2Jc ✓");
    }

    #[test]
    fn a_span_is_short_and_reads_well() {
        for (ms, text) in [
            (0, "0.0s"),
            (840, "0.8s"),
            (42_000, "42s"),
            (200_000, "3m 20s"),
            (7_500_000, "2h 5m"),
            (93_900_000, "1d 2h"),
        ] {
            assert_eq!(Span(Duration::from_millis(ms)).to_string(), text);
        }
    }
}
