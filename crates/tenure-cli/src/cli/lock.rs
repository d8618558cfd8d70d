//! The flags of the verbs for one lock, from `acquire` to `stop`.

use std::time::Duration;

use clap::Args;

use super::{Store, Target, Verbosity};
use crate::duration::duration;
use crate::exit;
use crate::manual::*;

/// The lock to acquire, its options, and the limit of the wait.
#[derive(Args, Debug)]
pub(crate) struct Request {
    /// The lock's name: 1 byte to 64 KiB
    pub(crate) name: String,

    /// The lease: how long the lock outlives a holder that is gone, 50ms to 365d
    ///
    /// The holding process renews it every third of that, and at least once a minute.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration, help_heading = "Lock")]
    pub(crate) ttl: Duration,

    #[command(flatten)]
    pub(crate) kind: Kind,

    #[command(flatten, next_help_heading = "Lock")]
    pub(crate) acks: Acks,

    /// Grant nothing for this long on a server that was promoted, restarted or lost its data
    ///
    /// As `restart-grace=DURATION` in the store's URL. Use the longest --ttl of all clients. One
    /// server or Sentinel only.
    #[arg(long, value_name = "DURATION", value_parser = duration, help_heading = "Lock")]
    pub(crate) restart_grace: Option<Duration>,

    /// Accept a lock without a token from a server that forbids scripts
    ///
    /// Only for the plain lock. Where scripts are allowed, the lock has a token anyway.
    #[arg(long, conflicts_with = "kind", help_heading = "Lock")]
    pub(crate) unfenced: bool,

    /// Text shown beside the holder's user, host and process, such as a URL: up to 256 bytes
    ///
    /// Visible to everyone who can see the lock, in `status`, `list` and `top`.
    #[arg(long, value_name = "TEXT", default_value = "", help_heading = "Lock")]
    pub(crate) label: String,

    /// Exit with 75 if the lock is busy
    #[arg(short = 'n', long = "no-wait", conflicts_with = "wait", help_heading = "Waiting")]
    pub(crate) no_wait: bool,

    /// Wait at most this long; 0 is -n
    ///
    /// Without -n and -w: wait until granted. An unreachable store is retried to the end of -w.
    /// Without -w, a refused connection fails at once and a silent store after 20s, or after a
    /// minute during a wait.
    #[arg(short = 'w', long, value_name = "DURATION", value_parser = duration, help_heading = "Waiting")]
    pub(crate) wait: Option<Duration>,

    /// Exit code for a busy lock instead of 75: 0 to 255
    ///
    /// Also when the lock was busy until the wait ended.
    #[arg(short = 'E', long = "busy-code", value_name = "CODE", default_value_t = exit::BUSY, hide_default_value = true, help_heading = "Waiting")]
    pub(crate) busy_code: u8,
}

#[derive(Args, Debug)]
pub(crate) struct Acks {
    /// Replicas that must confirm each grant and renewal
    ///
    /// As `acks=N` in the store's URL: all clients of a lock must use the same N. Only on stores
    /// with replicas.
    #[arg(long = "acks", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) replicas: Option<u32>,
}

/// Which kind of lock. All clients of a name must use the same kind.
#[derive(Args, Debug)]
#[command(next_help_heading = "Lock")]
pub(crate) struct Kind {
    /// First come, first served
    #[arg(long, group = "kind")]
    pub(crate) fair: bool,

    /// Read lock: shared with other readers, excludes writers
    #[arg(short = 's', long, group = "kind")]
    pub(crate) shared: bool,

    /// Write lock: excludes readers and writers
    #[arg(short = 'x', long, group = "kind")]
    pub(crate) exclusive: bool,

    /// Semaphore with this many permits
    #[arg(long, value_name = "N", group = "kind")]
    pub(crate) slots: Option<u32>,

    /// Permits to hold, with --slots [default: 1]
    #[arg(long, value_name = "K", requires = "slots")]
    pub(crate) take: Option<u32>,

    /// Lock that its owner can hold several times
    ///
    /// Runs with the same --owner share it. Only `tenure run` takes one.
    #[arg(long, group = "kind")]
    pub(crate) reentrant: bool,

    /// Owner of a --reentrant lock
    ///
    /// TENURE_OWNER of the run that holds it. Default: a new owner.
    #[arg(long, value_name = "ID", requires = "reentrant")]
    pub(crate) owner: Option<String>,
}

#[derive(Args, Debug)]
#[command(after_long_help = ACQUIRE_MANUAL)]
pub(crate) struct Acquire {
    #[command(flatten)]
    pub(crate) request: Request,

    /// Print JSON: `name`, `owner`, `token` and `deadline_ms`
    ///
    /// `deadline_ms` is the Unix time until which the lock is certainly held.
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,

    /// Leave a background process that renews the lease until the lock is released
    #[arg(long, help_heading = "Lock")]
    pub(crate) hold: bool,

    /// With --hold: release the lock when this process ends
    ///
    /// `$$` is the shell's PID. On macOS and FreeBSD the exit is noticed within 250 ms, unless another
    /// process reuses the PID.
    #[arg(long, value_name = "PID", requires = "hold", help_heading = "Lock")]
    pub(crate) while_pid: Option<i32>,

    /// Like --hold, until this file descriptor of the shell is closed
    ///
    /// Linux only. Like `flock N`: after `exec 9>FILE`, pass --fd 9. Prints nothing, except with --json.
    /// Whatever inherits the descriptor keeps the lock too. Give each lock a FILE of its own, on a
    /// local disk.
    #[arg(long, value_name = "N", conflicts_with = "while_pid", value_parser = clap::value_parser!(i32).range(0..), help_heading = "Lock")]
    pub(crate) fd: Option<i32>,

    #[command(flatten)]
    pub(crate) output: Verbosity,

    #[command(flatten)]
    pub(crate) store: Store,
}

#[derive(Args, Debug)]
#[command(after_help = RENEW_CODES)]
pub(crate) struct Renew {
    /// The owner, as `tenure acquire` printed it
    #[arg(long, value_name = "OWNER")]
    pub(crate) owner: String,

    /// The lease from now on, 50ms to 365d; never shortened
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration)]
    pub(crate) ttl: Duration,

    #[command(flatten)]
    pub(crate) acks: Acks,

    /// Print JSON: `name`, `owner` and `deadline_ms`
    ///
    /// `deadline_ms` is the Unix time until which the lock is certainly held.
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Args, Debug)]
#[command(after_help = VERIFY_CODES)]
pub(crate) struct Verify {
    /// The expected holder, as `tenure acquire` printed it
    #[arg(long, value_name = "OWNER")]
    pub(crate) owner: String,

    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Args, Debug)]
#[command(after_help = WAIT_CODES)]
pub(crate) struct Wait {
    /// Wait at most this long; without it, until the lock is free
    #[arg(short = 'w', long, value_name = "DURATION", value_parser = duration)]
    pub(crate) wait: Option<Duration>,

    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Args, Debug)]
#[command(after_help = RELEASE_CODES)]
pub(crate) struct Release {
    /// Release what this owner holds, as `tenure acquire` printed it
    ///
    /// With --force, if another owner holds the lock: exit with 75 instead of 79.
    #[arg(long, value_name = "OWNER", conflicts_with_all = ["token", "foreign"])]
    pub(crate) owner: Option<String>,

    /// Take the lock from its holder; required without --owner
    #[arg(long)]
    pub(crate) force: bool,

    /// Release only the hold with this token, as `tenure status` shows it
    ///
    /// If another holds the lock, exit with 75.
    #[arg(long, value_name = "TOKEN", conflicts_with = "foreign", requires = "force")]
    pub(crate) token: Option<u64>,

    /// Also release the plain lock of another program
    ///
    /// That is a string at the name that tenure did not write.
    #[arg(long, requires = "force")]
    pub(crate) foreign: bool,

    /// With --force: print a JSON object, as `status --json` does
    #[arg(long, requires = "force")]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Args, Debug)]
#[command(after_help = STOP_CODES)]
pub(crate) struct Stop {
    /// Wait at most this long for the holders to be gone; 0 only asks
    #[arg(short = 'w', long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    pub(crate) wait: Duration,

    /// NAME is an election: ask its leader
    #[arg(long, conflicts_with = "job")]
    pub(crate) election: bool,

    /// NAME is a job of --once-per: ask the run in progress
    #[arg(long)]
    pub(crate) job: bool,

    /// The reason, for people: up to 256 bytes
    ///
    /// `tenure run` prints it when its command has ended.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) reason: String,

    /// The name of the lock, election or job
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) store: Store,
}
