//! The command line: every flag once. The help text is the manual.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use rustix::process::Signal;
use tenure::diagnosis::Namespace;
use tenure_history::line::Sort;

use crate::duration::{duration, some_time};
use crate::exit;
use crate::manual::*;
use crate::output::Voice;
use crate::table::{Filter, Sort as Sorting};

/// The verb that `acquire --hold` starts.
pub(crate) const KEEP: &str = "__keep";

/// Runs a program under a distributed lock, and shows locks and their holders.
#[derive(Debug, Parser)]
#[command(name = "tenure", version, after_help = "`tenure run --help` has the manual.", mut_subcommands = common)]
pub(crate) struct Cli {
    /// Read this configuration file in place of ~/.config/tenure.toml and /etc/tenure.toml.
    #[arg(long, value_name = "FILE", global = true, display_order = 900)]
    pub(crate) config: Option<PathBuf>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What holds for the flags of every verb: as with getopt(3), one that takes a value takes the next word. An
/// empty default is not shown.
fn common(verb: clap::Command) -> clap::Command {
    verb.mut_args(|arg| {
        let takes_next = !arg.is_positional() && arg.get_action().takes_values();
        let arg = arg.allow_hyphen_values(takes_next);
        let has_empty_default = matches!(arg.get_default_values(), [default] if default.is_empty());
        if has_empty_default { arg.hide_default_value(true) } else { arg }
    })
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs a command while holding a lock, and exits as it does.
    ///
    /// Waits for the lock NAME, runs CMD directly (without a shell), keeps the lease alive until
    /// CMD has ended, and releases it. Standard input, output and error are CMD's. Messages of
    /// this program go to standard error, a line each, beginning with `tenure: `.
    Run(Run),
    /// Takes a lock, prints the owner, and ends: for a script whose steps are processes.
    ///
    /// The lock stays taken until `tenure release NAME --owner OWNER`, or until its lease ends. The
    /// lease is not renewed: choose a --ttl that is long enough, call `tenure renew` in time, or
    /// use --hold. Where one command can do the work, `tenure run` is safer: it stops the command
    /// when the lock is lost.
    Acquire(Acquire),
    /// Extends the lease of an acquired lock, counted from now.
    Renew(Renew),
    /// Exits with 0 if this owner holds the lock and with 79 if not. It changes nothing.
    Verify(Verify),
    /// Runs a command while this host leads, and exits as it does.
    ///
    /// Candidates lead one at a time, in order of arrival. When CMD ends, this host resigns and the
    /// next candidate leads at once. If this host dies, the next one leads once the lease has ended.
    /// CMD is stopped before another host can lead.
    Elect(Elect),
    /// Prints the leader: its payload, token and owner.
    ///
    /// Exits with 0 if there is a leader and with 1 if not.
    Leader(Leader),
    /// Waits until a lock is free, and does not take it.
    ///
    /// Another may have taken it by the time this ends. To work under a lock use `tenure run`.
    Wait(Wait),
    /// Shows the holders of a lock: exits with 0 if it is held and with 1 if it is free.
    ///
    /// Also shows the leader and the last run of an election and a --once-per job of that name.
    Status(Status),
    /// Lists the locks that are held.
    List(List),
    /// Shows the locks of a store on a full screen, as they change hands.
    ///
    /// Keys: q quits, the arrows select, Enter shows one lock with its history, s sorts, / filters
    /// by name, space pauses, f ends the holds of a lock after it has asked twice.
    Top(Top),
    /// Releases a lock that was acquired, by its --owner; or ends the holds of a lock by --force.
    ///
    /// Exits with 0 if it was held. With --owner alone it prints nothing.
    ///
    /// --force is for a lock whose holder is gone or stuck, when its lease takes too long to end.
    /// The next waiter gets the lock. The old `tenure run` learns of it by a message, usually at
    /// once, or at its next renewal, after at most a third of its ttl; if it cannot reach the store,
    /// when its lease would have ended. Until then its CMD runs beside that of the next holder, and
    /// only fencing tokens distinguish them. Prints what was ended, as `tenure status` does, and
    /// the latest end of the old CMD.
    Release(Release),
    /// Asks the commands that run under a lock to end, and waits until they have.
    ///
    /// Each CMD of `tenure run` and `tenure elect` gets TERM within 2s, and its lock is released
    /// when it has ended. A CMD that ignores TERM keeps the lock: KILL its `tenure run`, whose
    /// watchdog ends CMD too, or give the run --kill-after. A lock of `tenure acquire --hold` is
    /// released. Other holders may ignore the request.
    Stop(Stop),
    #[command(name = KEEP, hide = true)]
    Keep(Keep),
    /// Checks the set-up of a store for anything that would cost locks, and prints what to do.
    ///
    /// Reads the settings, state, clock and latency of each server, tries the rights of this user,
    /// and acquires and releases one lock with a new random name. It changes nothing else.
    Doctor(Doctor),
    /// Measures what locks cost on a store, beside the bare commands in the same run.
    ///
    /// Uses locks with a new random name, and deletes what it leaves on the store.
    Bench(Bench),
    /// Serves the locks of a store by HTTP, read-only: metrics, JSON and a page.
    #[cfg(feature = "serve")]
    Serve(Serve),
    /// Tests a store: many processes use locks, some are killed, and their histories are checked.
    Stress(Stress),
    /// Prints what a database needs to refuse the writes of a lock's former holders.
    ///
    /// Install the text once, as a migration. Then each transaction that writes under a lock first
    /// passes the lock's token: TENURE_FENCE of CMD, or `Guard::fence` in Rust. See
    /// book/use/fencing.md.
    Fence(Fence),
    /// Prints the settings of the configuration files and the environment, and their sources.
    ///
    /// A password is never printed.
    Config(Config),
    /// Prints the completions for a shell.
    Completions(Completions),
    /// Prints the manual page of this command, or of one of its verbs.
    Man(Man),
}

/// The store of the locks.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Store")]
pub(crate) struct Store {
    /// URL of the store, or file:DIR for the processes of this machine
    ///
    /// Default: $TENURE_STORE, then a configuration file, then the directory `tenure` in
    /// $XDG_STATE_HOME or $HOME/.local/state. An empty value is refused.
    ///
    /// Gives up on a silent store after 20s, and on a refused connection at once. `-w` of `run` and
    /// `acquire` sets another limit.
    #[arg(long = "store", value_name = "URL", conflicts_with = "file")]
    pub(crate) url: Option<String>,

    /// File with the store's URL
    ///
    /// Keeps a password out of the arguments and the environment. Default: $TENURE_STORE_FILE.
    #[arg(id = "file", long = "store-file", value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// Namespace that this client shares with the store's other clients, such as app:
    ///
    /// Short for `namespace=TEXT` in the store's URL. Every key, counter and message lies under it; clients
    /// with different namespaces do not exclude each other. Not for file:DIR.
    #[arg(long, value_name = "TEXT", value_parser = namespace)]
    pub(crate) namespace: Option<String>,

    /// Text put before each name to make the store's key
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) prefix: String,
}

/// A lock by its name.
#[derive(Args, Debug)]
pub(crate) struct Target {
    /// The lock's name
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) store: Store,
}

/// The locks of a store whose names begin alike.
#[derive(Args, Debug)]
pub(crate) struct Listed {
    /// Only names that begin with this
    ///
    /// A server scans all its keys either way. Without PREFIX, locks of other programs are not
    /// listed.
    #[arg(value_name = "PREFIX", default_value = "")]
    pub(crate) names: String,

    #[command(flatten)]
    pub(crate) store: Store,
}

/// How much a verb reports.
#[derive(Args, Debug)]
#[command(next_help_heading = "Output")]
pub(crate) struct Verbosity {
    /// Print no messages
    #[arg(short, long, conflicts_with = "verbose")]
    quiet: bool,

    /// Report progress: the holder or leader, the wait, the token or term, the store
    #[arg(short, long)]
    verbose: bool,
}

impl Verbosity {
    pub(crate) fn voice(&self) -> Voice {
        Voice { quiet: self.quiet, verbose: self.verbose }
    }
}

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
    /// Periods count from 1970: 1h is once in each hour, UTC. A CMD that failed may run again in
    /// its window. Implies -n, so it takes no -w. Not on a quorum. On etcd and ZooKeeper the clock of
    /// this host decides which period it is: where clocks differ, CMD runs early or late by the
    /// difference, but no more often.
    ///
    /// NAME is then the name of a job and not of a lock: `tenure status` prints its last run, and
    /// `tenure stop --job` stops it.
    #[arg(long, value_name = "PERIOD", value_parser = duration, conflicts_with_all = ["kind", "also", "wait", "unfenced", "min_hold"], help_heading = "Lock")]
    pub(crate) once_per: Option<Duration>,

    /// Run CMD although the job of --once-per has run in its window, died or lost its lock
    ///
    /// For a run by hand. It never runs beside another run: while one runs, the exit code is 75. It
    /// counts for the present window or, if a clock was wrong, for that of the last run up to two
    /// windows ahead; a closed window stays closed if it fails. It replaces a record that lies further
    /// ahead, or that cannot be read.
    #[arg(long, requires = "once_per", help_heading = "Lock")]
    pub(crate) again: bool,

    /// Wait for the lock again and rerun CMD after the lock was lost
    ///
    /// Any number of times. Each wait lasts as long as -w says, and without -w survives a minute
    /// without the store. If the lock is busy at its end, or at once with -n or --once-per, the exit
    /// code is 75. A signal that asked CMD to end ends the retries. With --once-per, CMD may also run
    /// again in its window after a run that died or lost its lock, on any host.
    #[arg(long, conflicts_with = "max_hold", help_heading = "Waiting")]
    pub(crate) retry_lost: bool,

    #[command(flatten)]
    pub(crate) job: Job,

    #[command(flatten)]
    pub(crate) output: Verbosity,

    #[command(flatten)]
    pub(crate) store: Store,
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

/// What happens to the command when the lease is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnLost {
    /// It gets this signal, and KILL after the grace.
    Signal(Signal),
    Kill,
    Ignore,
}

fn namespace(text: &str) -> Result<String, String> {
    Namespace::checked(text).map(|_| text.to_owned()).ok_or_else(|| format!("expected {}", Namespace::FORM))
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
#[command(after_help = STATUS_CODES)]
pub(crate) struct Status {
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) target: Target,
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

/// What `acquire --hold` starts in the background.
#[derive(Args, Debug)]
pub(crate) struct Keep {
    #[command(flatten)]
    pub(crate) store: Store,
    #[arg(long, value_parser = duration)]
    pub(crate) ttl: Duration,
    #[arg(long)]
    pub(crate) owner: String,
    #[arg(long)]
    pub(crate) while_pid: Option<i32>,
    #[arg(long)]
    pub(crate) fd: Option<i32>,
    pub(crate) name: String,
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
#[command(after_help = LIST_CODES)]
pub(crate) struct List {
    /// Print JSON, one object per lock and line, as `status --json` does
    #[arg(long)]
    pub(crate) json: bool,

    /// Sort by name, kind, waiters, age or left
    ///
    /// Most waiters first, longest held first, soonest end of lease first. Default: as found.
    #[arg(long, value_name = "KEY", hide_possible_values = true)]
    pub(crate) sort: Option<Sorting>,

    /// Only matching locks; repeatable, all must match
    ///
    /// name=TEXT, kind=KIND, user=TEXT, label=TEXT, host=TEXT or pid=N (of a holder or waiter),
    /// waiting (someone waits), foreign (of another program). TEXT may be a part.
    #[arg(long, value_name = "WHAT", value_parser = Filter::read)]
    pub(crate) filter: Vec<Filter>,

    /// Repeat until a signal arrives, every 2s or this often
    ///
    /// On a terminal the list is redrawn. Elsewhere, prints a line for each lock that changed
    /// hands, and `free` for one that became free. A store that is slow to list is asked less
    /// often: listing takes at most 2 % of the time.
    #[arg(long, value_name = "EVERY", value_parser = some_time, num_args = 0..=1, require_equals = true, default_missing_value = "2s")]
    pub(crate) watch: Option<Duration>,

    #[command(flatten)]
    pub(crate) locks: Listed,
}

#[derive(Args, Debug)]
#[command(after_long_help = TOP_MANUAL)]
pub(crate) struct Top {
    /// Refresh interval
    ///
    /// A slow store is listed less often: listing takes at most 2 % of the time.
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
    /// A slow store is listed less often: listing takes at most 2 % of the time.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = some_time)]
    pub(crate) every: Duration,

    /// Number of locks that have metrics of their own
    #[arg(long, value_name = "N", default_value_t = 500)]
    pub(crate) series: usize,

    /// Election whose leader the page shows; repeatable
    #[arg(long, value_name = "NAME")]
    pub(crate) election: Vec<String>,

    /// Job of --once-per whose last run and next window the page shows; repeatable
    #[arg(long, value_name = "NAME")]
    pub(crate) job: Vec<String>,

    #[command(flatten)]
    pub(crate) locks: Listed,
}

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

    /// Clients that take turns, each with its own connection
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=64))]
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

/// One of the kinds that can be hammered.
fn kind() -> impl TypedValueParser<Value = Sort> {
    PossibleValuesParser::new(Sort::ALL.map(Sort::name))
        .map(|name| Sort::named(&name).expect("one of these names"))
}
