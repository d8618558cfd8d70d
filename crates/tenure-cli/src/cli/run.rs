//! The flags of the verbs that run a command.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use rustix::process::Signal;
use tenure::Period;

use super::{Request, Store, Verbosity};
use crate::duration::{duration, some_time};
use crate::manual::*;

#[derive(Args, Debug)]
#[command(after_long_help = RUN_MANUAL, override_usage = "tenure run [OPTIONS] NAME [--] CMD [ARGS]...\n       tenure run [OPTIONS] NAME -c STRING")]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) request: Request,

    /// Hold the lock at least this long, even if CMD ends sooner
    ///
    /// A short job then runs once although the clocks of its hosts differ. INT, TERM, HUP or QUIT
    /// end the wait.
    #[arg(long, value_name = "DURATION", value_parser = duration, help_heading = "Lock")]
    pub(crate) min_hold: Option<Duration>,

    /// Hold the lock at most this long, then stop CMD as if the lease were lost
    ///
    /// Not with --retry-lost, which would rerun it.
    #[arg(long, value_name = "DURATION", value_parser = duration, help_heading = "Lock")]
    pub(crate) max_hold: Option<Duration>,

    /// Wait a random time, at most this long, before requesting the lock
    #[arg(long, value_name = "DURATION", value_parser = duration, help_heading = "Waiting")]
    pub(crate) splay: Option<Duration>,

    /// Hold this lock too, of the same kind; repeatable
    ///
    /// All or none are held. The order does not matter.
    #[arg(long, value_name = "NAME", help_heading = "Lock")]
    pub(crate) also: Vec<String>,

    /// Run CMD at most once per period, on whichever host asks first
    ///
    /// Periods count from 1970: 1h is once in each hour, UTC. 1w begins on Monday and 1mo on the first of
    /// the month. A CMD that failed may run again in its window. Implies -n, so it takes no -w. Not on a
    /// quorum. On etcd and ZooKeeper the clock of this host decides which period it is: where clocks
    /// differ, CMD runs early or late by the difference, but no more often.
    ///
    /// NAME is then the name of a job and not of a lock: `tenure status` prints its last run, and
    /// `tenure stop --job` stops it.
    #[arg(long, value_name = "PERIOD", value_parser = period, group = "window", conflicts_with_all = ["kind", "also", "wait", "unfenced", "min_hold"], help_heading = "Lock")]
    pub(crate) once_per: Option<Period>,

    /// As --once-per, with a window that begins at each time of a cron line, as in "0 2 * * MON-FRI"
    ///
    /// Five fields with names, L for the last day of the month, @hourly, @daily, @weekly, @monthly or
    /// @yearly. Times are UTC without --zone.
    #[arg(long, value_name = "CRON", value_parser = cron, group = "window", conflicts_with_all = ["kind", "also", "wait", "unfenced", "min_hold"], help_heading = "Lock")]
    pub(crate) schedule: Option<Period>,

    /// The time zone of --schedule, or of --once-per 1d, 1w or 1mo, such as Europe/Berlin
    ///
    /// A time that is skipped when the clocks are set runs at that moment, and one that comes twice runs
    /// once. A schedule of every hour counts the hours that pass instead.
    #[arg(long, value_name = "ZONE", value_parser = zone, requires = "window", help_heading = "Lock")]
    pub(crate) zone: Option<String>,

    /// Whether to run CMD late in a window in which it has not run: run, skip, or a time
    ///
    /// `run`: as long as the window lasts. `skip`: only in its first minute. A DURATION: only in this time
    /// after its beginning. This also limits when a CMD that failed runs again.
    #[arg(long, value_name = "WHAT", default_value = "run", value_parser = missed, requires = "window", help_heading = "Lock")]
    pub(crate) missed: Missed,

    /// Stay in the foreground and run CMD in each window: the scheduler, on as many hosts as you like
    ///
    /// A CMD that failed, or that `tenure stop` ended, runs again 10s after its window began, and then after
    /// pauses that double up to 5m; each is at most a tenth of the window. INT, TERM, HUP and QUIT end the wait for a window;
    /// while CMD runs they are passed on to it, and end the scheduler with it. An absent store is waited for.
    #[arg(long, requires = "window", conflicts_with = "again", help_heading = "Lock")]
    pub(crate) forever: bool,

    /// Run CMD although the job has run in its window, died or lost its lock
    ///
    /// For a run by hand. It never runs beside another run: while one runs, the exit code is 75. It
    /// counts for the present window or, if a clock was wrong, for that of the last run up to two
    /// windows ahead; a closed window stays closed if it fails. It replaces a record that lies further
    /// ahead, or that cannot be read.
    #[arg(long, requires = "window", help_heading = "Lock")]
    pub(crate) again: bool,

    /// Wait for the lock again and rerun CMD after the lock was lost
    ///
    /// Any number of times. Each wait lasts as long as -w says, and without -w survives a minute
    /// without the store; with --once-per there is none. If the lock is busy at its end, or at once
    /// with -n or --once-per, the exit code is 75. A signal that asked CMD to end ends the retries.
    /// With --once-per, CMD may also run again in its window after a run that died or lost its lock,
    /// on any host.
    #[arg(long, conflicts_with = "max_hold", help_heading = "Waiting")]
    pub(crate) retry_lost: bool,

    #[command(flatten)]
    pub(crate) job: Job,

    #[command(flatten)]
    pub(crate) output: Verbosity,

    #[command(flatten)]
    pub(crate) store: Store,
}

/// How late CMD may run in its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missed {
    Run,
    Within(Duration),
}

fn missed(text: &str) -> Result<Missed, String> {
    match text {
        "run" => Ok(Missed::Run),
        "skip" => Ok(Missed::Within(Duration::from_secs(60))),
        _ => some_time(text)
            .map(Missed::Within)
            .map_err(|_| "expected run, skip, or a duration such as 10m".to_owned()),
    }
}

/// Reads a period: a duration, a week or a month.
fn period(text: &str) -> Result<Period, String> {
    match text {
        "1w" => Ok(Period::weekly(Duration::ZERO)),
        "1mo" => Period::monthly(Duration::ZERO).map_err(|error| error.to_string()),
        _ => duration(text).map(Period::every).map_err(|error| format!("{error}, or 1w or 1mo")),
    }
}

fn cron(text: &str) -> Result<Period, String> {
    Period::cron(text).map_err(|error| error.to_string())
}

fn zone(text: &str) -> Result<String, String> {
    let zoned = Period::daily(Duration::ZERO).in_zone(text);
    zoned.map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// The command, and how it is ended.
#[derive(Args, Debug)]
#[command(next_help_heading = "Command")]
pub(crate) struct Job {
    /// The command and its arguments
    ///
    /// tenure's own options end here, so `--` is needed only before a command that begins with a
    /// hyphen.
    #[arg(value_name = "CMD", required_unless_present = "script", trailing_var_arg = true)]
    pub(crate) command: Vec<OsString>,

    /// Run this with `sh -c` instead of CMD
    #[arg(short = 'c', value_name = "STRING", conflicts_with = "command")]
    pub(crate) script: Option<String>,

    /// Time between TERM and KILL when the lease is lost
    ///
    /// Taken from the end of the lease, at most a third of the ttl. Default: 5s, or a third of the
    /// ttl if that is less.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) grace: Option<Duration>,

    /// What happens to CMD when the lease is lost: term, kill, signal:NAME or ignore
    ///
    /// `term`: TERM, then KILL after the grace. `kill`: KILL at once. `signal:NAME`: that signal
    /// instead of TERM, as in signal:INT. `ignore`: CMD runs on beside the next holder, and its
    /// exit status is passed on.
    #[arg(long, value_name = "HOW", default_value = "term", value_parser = on_lost)]
    pub(crate) on_lost: OnLost,

    /// Send KILL this long after INT, TERM, HUP or QUIT was passed on to CMD
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) kill_after: Option<Duration>,

    /// Leave CMD in this process group, as `timeout --foreground` does
    ///
    /// CMD then reads from the terminal and gets its keys itself. Signals go to CMD alone, and
    /// what it started may outlive it and the lease. INT and QUIT that arrive while the group has
    /// the terminal are taken for keys and not passed on.
    #[arg(long)]
    pub(crate) foreground: bool,
}

/// What happens to the command when the lease is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnLost {
    /// It gets this signal, and KILL after the grace.
    Signal(Signal),
    Kill,
    Ignore,
}

fn on_lost(text: &str) -> Result<OnLost, String> {
    let named = |name: &str| SIGNALS.iter().find(|(known, _)| *known == name).map(|(_, signal)| *signal);
    match text {
        "term" => Ok(OnLost::Signal(Signal::TERM)),
        "kill" => Ok(OnLost::Kill),
        "ignore" => Ok(OnLost::Ignore),
        _ => text.strip_prefix("signal:").and_then(named).map(OnLost::Signal).ok_or_else(|| {
            let names: Vec<_> = SIGNALS.iter().map(|(name, _)| *name).collect();
            format!("expected term, kill, ignore or signal:NAME, where NAME is {}", names.join(", "))
        }),
    }
}

/// Signals accepted by `--on-lost signal:NAME`.
const SIGNALS: [(&str, Signal); 7] = [
    ("TERM", Signal::TERM),
    ("INT", Signal::INT),
    ("HUP", Signal::HUP),
    ("QUIT", Signal::QUIT),
    ("USR1", Signal::USR1),
    ("USR2", Signal::USR2),
    ("ABRT", Signal::ABORT),
];

#[derive(Args, Debug)]
#[command(after_help = ELECT_MANUAL, override_usage = "tenure elect [OPTIONS] NAME [--] CMD [ARGS]...\n       tenure elect [OPTIONS] NAME -c STRING")]
pub(crate) struct Elect {
    /// The election's name: 1 byte to 64 KiB
    ///
    /// Elections and locks do not share names.
    pub(crate) name: String,

    /// The lease: how long until another leads when this host is gone, 50ms to 365d
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration, help_heading = "Election")]
    pub(crate) ttl: Duration,

    /// What `tenure leader` shows of this candidate, such as an address: up to 4 KiB
    ///
    /// Default: HOST:PID.
    #[arg(long, value_name = "TEXT", help_heading = "Election")]
    pub(crate) payload: Option<String>,

    /// Text shown beside the leader's user, host and process, such as a URL: up to 256 bytes
    ///
    /// Visible to everyone who can see the election.
    #[arg(long, value_name = "TEXT", default_value = "", help_heading = "Election")]
    pub(crate) label: String,

    /// Print each change of leader on standard error
    ///
    /// One line per change, as `tenure leader --watch` prints them on standard output.
    #[arg(long, conflicts_with = "quiet", help_heading = "Output")]
    pub(crate) print: bool,

    #[command(flatten)]
    pub(crate) job: Job,

    #[command(flatten)]
    pub(crate) output: Verbosity,

    #[command(flatten)]
    pub(crate) store: Store,
}
