//! The flags of the verbs that show locks.

use std::time::Duration;

use clap::Args;

use super::{Listed, Store, Target};
use crate::duration::some_time;
use crate::manual::*;
use crate::table::{Filter, Sort};

#[derive(Args, Debug)]
#[command(after_help = STATUS_CODES)]
pub(crate) struct Status {
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Args, Debug)]
#[command(after_help = LIST_CODES)]
pub(crate) struct List {
    /// Print JSON, one object per lock and line, as `status --json` does
    #[arg(long)]
    pub(crate) json: bool,

    /// Sort by name, kind, waiters, age or left
    ///
    /// Most waiters first, longest held first, soonest end of lease first. Default: as found.
    #[arg(long, value_name = "KEY", hide_possible_values = true)]
    pub(crate) sort: Option<Sort>,

    /// Only matching locks; repeatable, all must match
    ///
    /// name=TEXT, kind=KIND, user=TEXT, label=TEXT, host=TEXT or pid=N (of a holder or waiter),
    /// waiting (someone waits), foreign (of another program). TEXT may be a part.
    #[arg(long, value_name = "WHAT", value_parser = Filter::read)]
    pub(crate) filter: Vec<Filter>,

    /// Repeat until a signal arrives, every 2s or this often
    ///
    /// On a terminal the list is redrawn. Elsewhere, prints a line for each lock that changed
    /// hands, and `free` for one that became free. Listing takes at most 2 % of the time: where
    /// it costs more, pauses are up to ten times as long.
    #[arg(long, value_name = "EVERY", value_parser = some_time, num_args = 0..=1, require_equals = true, default_missing_value = "2s")]
    pub(crate) watch: Option<Duration>,

    #[command(flatten)]
    pub(crate) locks: Listed,
}

#[derive(Args, Debug)]
#[command(after_help = JOBS_CODES)]
pub(crate) struct Jobs {
    /// Print JSON, one object per job and line
    #[arg(long)]
    pub(crate) json: bool,

    /// Forget the runs of NAME, which may then run again in its window
    #[arg(long, requires = "name", conflicts_with = "json")]
    pub(crate) forget: bool,

    /// One job, with its last runs
    pub(crate) name: Option<String>,

    #[command(flatten)]
    pub(crate) store: Store,
}

#[derive(Args, Debug)]
#[command(after_long_help = TOP_MANUAL)]
pub(crate) struct Top {
    /// Refresh interval
    ///
    /// Listing takes at most 2 % of the time: where it costs more, pauses are up to ten times as long.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = some_time)]
    pub(crate) every: Duration,

    #[command(flatten)]
    pub(crate) locks: Listed,
}

#[cfg(feature = "serve")]
#[derive(Args, Debug)]
#[command(after_long_help = SERVE_MANUAL)]
pub(crate) struct Serve {
    /// Address and port to listen on
    ///
    /// Whoever can connect sees the names of locks and holders.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9797")]
    pub(crate) listen: std::net::SocketAddr,

    /// Refresh interval
    ///
    /// Listing takes at most 2 % of the time: where it costs more, pauses are up to ten times as long.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = some_time)]
    pub(crate) every: Duration,

    /// Number of locks, of jobs and of elections that have metrics of their own
    #[arg(long, value_name = "N", default_value_t = 500)]
    pub(crate) series: usize,

    /// File that keeps the histories while this program does not run
    #[arg(long, value_name = "FILE")]
    pub(crate) state: Option<std::path::PathBuf>,

    /// Election that has metrics, and that the page shows, although it never had a leader; repeatable
    #[arg(long, value_name = "NAME")]
    pub(crate) election: Vec<String>,

    /// Job of --once-per that has metrics, and that the page shows, although it never ran; repeatable
    #[arg(long, value_name = "NAME")]
    pub(crate) job: Vec<String>,

    #[command(flatten)]
    pub(crate) locks: Listed,
}

#[derive(Args, Debug)]
#[command(after_help = LEADER_CODES)]
pub(crate) struct Leader {
    /// Print a line for each change until a signal arrives
    #[arg(long)]
    pub(crate) watch: bool,

    /// Print JSON, one object per line
    #[arg(long)]
    pub(crate) json: bool,

    /// The election's name
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) store: Store,
}
