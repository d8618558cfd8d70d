//! The flags of the verbs about a store and about this program.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};
use tenure_history::line::Sort;

use super::Store;
use crate::duration::{duration, some_time};
use crate::manual::*;

#[derive(Args, Debug)]
#[command(after_long_help = DOCTOR_MANUAL)]
pub(crate) struct Doctor {
    /// Lease of the locks, with which latency and failovers are compared
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration)]
    pub(crate) ttl: Duration,

    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) store: Store,
}

#[derive(Args, Debug)]
#[command(after_long_help = BENCH_MANUAL)]
pub(crate) struct Bench {
    /// Total time
    ///
    /// INT and TERM end it sooner, with what was measured so far.
    #[arg(long = "for", value_name = "DURATION", default_value = "10s", value_parser = some_time)]
    pub(crate) length: Duration,

    /// Clients that take turns, each with its own connection; with 1, a pair and a renewal are measured
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) clients: u32,

    /// The lease of each lock
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration)]
    pub(crate) ttl: Duration,

    /// Prefix of the locks' names
    ///
    /// A name in use, or one that a quorum remembers, is refused. Default: a new random name.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,

    /// Also write a page with plots to this file
    ///
    /// It needs no network.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) store: Store,
}

#[derive(Args, Debug)]
#[command(after_long_help = STRESS_MANUAL)]
pub(crate) struct Stress {
    /// Total time
    ///
    /// INT and TERM end it sooner, with the verdict so far.
    #[arg(long = "for", value_name = "DURATION", default_value = "30s", value_parser = some_time)]
    pub(crate) length: Duration,

    /// Kinds of locks [default: all that the store has]
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = kind())]
    pub(crate) kind: Vec<Sort>,

    /// Locks of each kind
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) names: u32,

    /// Processes
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) processes: u32,

    /// Tasks in each process
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) tasks: u32,

    /// The lease of each hold
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = duration)]
    pub(crate) ttl: Duration,

    /// The longest usual hold
    ///
    /// One in a thousand is longer, up to a lease and a half.
    #[arg(long, value_name = "DURATION", default_value = "20ms", value_parser = duration)]
    pub(crate) hold: Duration,

    /// Kill a process now and then (SIGKILL) and start another
    ///
    /// Also while it holds or waits.
    #[arg(long)]
    pub(crate) kill: bool,

    /// Stop a process now and then (SIGSTOP), for up to two leases
    #[arg(long)]
    pub(crate) pause: bool,

    /// Let every second process run this program, another version of tenure
    ///
    /// With --kill, each process is replaced by one of the other version, as in a rolling upgrade
    /// and the way back.
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) with: Option<PathBuf>,

    /// Run this with `sh -c` now and then
    ///
    /// To stop, cut off, restart or fail over the servers.
    #[arg(long, value_name = "CMD")]
    pub(crate) hook: Option<String>,

    /// Time between two kills, stops or hooks: half to one and a half times this
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = some_time)]
    pub(crate) every: Duration,

    /// A violation if a lock stays free this long while a task waits for it
    ///
    /// Must exceed a lease and the longest fault.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = some_time)]
    pub(crate) stall: Duration,

    #[command(flatten)]
    pub(crate) store: Store,
}

/// One of the kinds that can be hammered.
fn kind() -> impl TypedValueParser<Value = Sort> {
    PossibleValuesParser::new(Sort::ALL.map(Sort::name))
        .map(|name| Sort::named(&name).expect("one of these names"))
}

#[derive(Args, Debug)]
#[command(after_help = FENCE_EXAMPLES)]
pub(crate) struct Fence {
    #[command(subcommand)]
    pub(crate) text: FenceText,
}

#[derive(Clone, Copy, Debug, Subcommand)]
pub(crate) enum FenceText {
    /// Prints SQL: a table, and `tenure_pass`, which refuses old tokens.
    Sql {
        /// The database that runs it. For MariaDB: mysql.
        #[arg(long = "for", value_name = "DATABASE")]
        database: Database,
    },
    /// Prints a Lua script for Redis and Valkey, which writes a hash unless the token is old.
    Lua,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Database {
    Postgres,
    #[value(alias = "mariadb")]
    Mysql,
    Sqlite,
}

#[derive(Args, Debug)]
#[command(after_long_help = CONFIG_MANUAL)]
pub(crate) struct Config {
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(after_help = COMPLETIONS_EXAMPLES)]
pub(crate) struct Completions {
    /// The shell to complete for
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Args, Debug)]
#[command(after_help = MAN_EXAMPLES)]
pub(crate) struct Man {
    /// The verb, such as run [default: the page of tenure itself]
    pub(crate) verb: Option<String>,
}
