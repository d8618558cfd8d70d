//! The command line: every flag once. The help text is the manual.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use rustix::process::Signal;
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
#[command(name = "tenure", version, after_help = "`tenure run --help` has the manual.")]
pub(crate) struct Cli {
    /// Read this configuration file in place of ~/.config/tenure.toml and /etc/tenure.toml.
    #[arg(long, value_name = "FILE", global = true, display_order = 900)]
    pub(crate) config: Option<PathBuf>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs a command while holding a lock, and exits as it does.
    ///
    /// Waits for the lock NAME, runs CMD directly (without a shell), keeps the lease alive until
    /// CMD has ended, and releases it. Standard input, output and error are CMD's. What this
    /// program says itself goes to standard error, a line each, beginning with `tenure: `.
    Run(Run),
    /// Takes a lock, prints the owner, and ends: for a script whose steps are processes.
    ///
    /// The lock stays taken until `tenure release NAME --owner OWNER`, or until its lease ends. The
    /// lease is not renewed: choose a --ttl that is long enough, call `tenure renew` in time, or
    /// use --hold. Where one command can do the work, `tenure run` is safer: it stops the command
    /// when the lock is lost.
    Acquire(Acquire),
    /// Extends the lease of a lock that was acquired, from now on.
    Renew(Renew),
    /// Exits with 0 if this owner holds the lock and with 79 if not. It changes nothing.
    Verify(Verify),
    /// Runs a command while this host leads, and exits as it does.
    ///
    /// Candidates lead one at a time, in the order in which they came. When CMD ends, this host
    /// resigns and the next leads at once; when this host is gone, the next leads after the lease.
    /// CMD is stopped before another can lead.
    Elect(Elect),
    /// Prints who leads: what it says of itself, its token and its owner.
    ///
    /// Exits with 0 if one leads and with 1 if not.
    Leader(Leader),
    /// Waits until a lock is free, and does not take it.
    ///
    /// Another may have taken it by the time this ends. To work under a lock use `tenure run`.
    Wait(Wait),
    /// Shows the holders of a lock: exits with 0 if it is held and with 1 if it is free.
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
    /// The next waiter is let in. A holder of `tenure run` is told by a message, mostly at once;
    /// without one it hears of it at its next renewal, after a third of its ttl at most. Until then
    /// its CMD runs beside that of the next holder, and only fencing tokens distinguish the two. It
    /// prints what was ended, as `tenure status` does, and how long the old CMD may run.
    Release(Release),
    /// Asks the commands that run under a lock to end, and waits until they have.
    ///
    /// Each CMD of `tenure run` and `tenure elect` gets TERM within 2s, and its lock is released
    /// when it has ended. A command that ignores it runs on, and keeps the lock: then `tenure
    /// release --force` is left. What `tenure acquire --hold` keeps is released. Other holders are
    /// asked too, and may not listen.
    Stop(Stop),
    #[command(name = KEEP, hide = true)]
    Keep(Keep),
    /// Looks for what would cost locks in the set-up of a store, and says what to do about it.
    ///
    /// It asks each server for its settings, state, clock and latency, tries the rights of this
    /// user, and takes and releases one lock with a new random name. It changes nothing else.
    Doctor(Doctor),
    /// Measures what locks cost on a store, beside the bare commands in the same run.
    ///
    /// It takes and releases locks with a new random name, alone, against each other, and from hand
    /// to hand, and extends a lease. What it leaves on the store is deleted at the end.
    Bench(Bench),
    /// Shows the locks of a store by HTTP, to read only: metrics, JSON and a page.
    #[cfg(feature = "serve")]
    Serve(Serve),
    /// Tests a store: many processes use locks, some are killed, and the answers are judged.
    Stress(Stress),
    /// Prints what a database needs to refuse the writes of a lock's former holders.
    ///
    /// Install the text once, as a migration. Then each transaction that writes under a lock first
    /// passes with the lock's token: the variable TENURE_FENCE of CMD, or `Guard::fence` in Rust.
    /// book/use/fencing.md has the details.
    Fence(Fence),
    /// Prints what the configuration files and the environment set, and where each value is from.
    ///
    /// A password is never printed. `tenure config --help` has the keys of a file.
    Config(Config),
    /// Prints what completes this command's words in a shell.
    ///
    /// Example: tenure completions bash > /etc/bash_completion.d/tenure
    Completions(Completions),
    /// Prints the manual page of this command, or of one of its verbs.
    ///
    /// Example: tenure man run | man -l -
    Man(Man),
}

/// The store of the locks.
#[derive(Args, Debug, Default)]
pub(crate) struct Store {
    /// The store: `file:DIR` for the processes of one machine, or the URL of a server. Default:
    /// $TENURE_STORE, then a configuration file, then the directory `tenure` in $XDG_STATE_HOME, or
    /// else in $HOME/.local/state. An empty one is refused. A store that does not answer is asked
    /// for 20s, because where a thousand commands start at once the last are answered after
    /// seconds; a refused connection fails at once, and -w of `run` and `acquire` sets another limit.
    #[arg(long = "store", value_name = "URL", conflicts_with = "file")]
    pub(crate) url: Option<String>,

    /// A file that has the store's URL, so that neither arguments nor the environment show a
    /// password. Default: $TENURE_STORE_FILE.
    #[arg(id = "file", long = "store-file", value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// Put before each name to make the store's key.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true,
        allow_hyphen_values = true
    )]
    pub(crate) prefix: String,
}

#[derive(Args, Debug)]
#[command(after_long_help = RUN_MANUAL, override_usage = "tenure run [OPTIONS] NAME [--] CMD [ARGS]...\n       tenure run [OPTIONS] NAME -c STRING")]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) request: Request,

    /// Hold the lock for at least so long, also when CMD ends sooner: a short job then runs once
    /// though the clocks of its hosts differ. INT, TERM, HUP or QUIT end that wait.
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) min_hold: Option<Duration>,

    /// Hold the lock for at most so long: then CMD is stopped as when the lease is lost.
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) max_hold: Option<Duration>,

    /// Wait for a random time of up to this before the lock is asked for.
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) splay: Option<Duration>,

    /// Hold this lock too, of the same kind: all or none. May be given several times; the order
    /// does not matter.
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    pub(crate) also: Vec<String>,

    /// Run CMD at most once in each period of this length, counted from 1970, on whichever host
    /// asks first: 1h is once in each hour, UTC. A CMD that failed may run again in its window. Not
    /// on a quorum, etcd and ZooKeeper; -n is meant. NAME is that of a job then, and not of a lock:
    /// `tenure stop --job` finds it, and `status` does not.
    #[arg(long, value_name = "PERIOD", value_parser = duration, allow_hyphen_values = true, conflicts_with_all = ["kind", "also", "wait", "unfenced", "min_hold"])]
    pub(crate) once_per: Option<Duration>,

    /// When the lock is lost and CMD was stopped for it: wait for the lock again, each time as long
    /// as -w says, and run CMD again. Not after a signal that asked for the end. With --once-per,
    /// CMD may also run again in its window after a run that died or lost its lock, on any host.
    #[arg(long, conflicts_with = "max_hold")]
    pub(crate) retry_lost: bool,

    #[command(flatten)]
    pub(crate) job: Job,
}

/// The command, and how it is ended.
#[derive(Args, Debug)]
pub(crate) struct Job {
    /// When the lease is lost: the time between TERM and KILL, taken from the end of the lease. At
    /// most a third of the ttl. Default: 5s, or a third of the ttl if that is less.
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) grace: Option<Duration>,

    /// What happens to CMD when the lease is lost: `term` (TERM, and KILL after the grace), `kill`
    /// at once, `signal:NAME` in place of TERM, as in signal:INT, or `ignore`: then CMD runs on
    /// beside the next holder, and its own exit status is passed on.
    #[arg(long, value_name = "HOW", default_value = "term", value_parser = on_lost)]
    pub(crate) on_lost: OnLost,

    /// Send KILL to CMD's group when it has not ended so long after INT, TERM, HUP or QUIT was
    /// passed on to it.
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) kill_after: Option<Duration>,

    /// Leave CMD in the process group of this program, as `timeout --foreground` does: it reads
    /// from the terminal and gets its keys itself. Signals then go to CMD alone, and what it
    /// started may outlive it and the lease. INT and QUIT that come while the group has the
    /// terminal are taken for keys, and are not passed on.
    #[arg(long)]
    pub(crate) foreground: bool,

    /// Run this by `sh -c` in place of CMD.
    #[arg(short = 'c', value_name = "STRING", conflicts_with = "command", allow_hyphen_values = true)]
    pub(crate) script: Option<String>,

    /// The command and its arguments. Options of this program end here, so `--` is needed only
    /// before a command that begins with a hyphen.
    #[arg(value_name = "CMD", required_unless_present = "script", trailing_var_arg = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug)]
#[command(after_help = ELECT_MANUAL, override_usage = "tenure elect [OPTIONS] NAME [--] CMD [ARGS]...\n       tenure elect [OPTIONS] NAME -c STRING")]
pub(crate) struct Elect {
    #[command(flatten)]
    pub(crate) store: Store,

    /// The lease of a leader: how long it takes until another leads when this host is gone, 50ms to
    /// 365d.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) ttl: Duration,

    /// What `tenure leader` tells of this candidate, as an address: at most 4 KiB. Default:
    /// HOST:PID.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) payload: Option<String>,

    /// What people read of this leader in `tenure leader`, beside its user, host and process, such
    /// as the URL of a job: at most 256 bytes. Who sees the election sees it.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true,
        allow_hyphen_values = true
    )]
    pub(crate) label: String,

    /// Print who leads on standard error, on every change: a line each, as `tenure leader --watch`
    /// prints them on standard output.
    #[arg(long, conflicts_with = "quiet")]
    pub(crate) print: bool,

    /// Print no messages; only the exit code tells.
    #[arg(short, long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,

    /// Say when this host is a candidate and when it leads.
    #[arg(short, long)]
    pub(crate) verbose: bool,

    /// The election's name: any text of 1 byte to 64 KiB. It is not the name of a lock.
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) job: Job,
}

#[derive(Args, Debug)]
#[command(after_help = LEADER_CODES)]
pub(crate) struct Leader {
    #[command(flatten)]
    pub(crate) store: Store,

    /// Go on: print a line for each change, until a signal ends it.
    #[arg(long)]
    pub(crate) watch: bool,

    /// Print JSON objects, one a line.
    #[arg(long)]
    pub(crate) json: bool,

    /// The election's name.
    pub(crate) name: String,
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
            format!("write term, kill, ignore or signal:NAME, where NAME is {}", names.join(", "))
        }),
    }
}

/// Those by which a program can be told that its lock is lost.
const SIGNALS: [(&str, Signal); 7] = [
    ("TERM", Signal::TERM),
    ("INT", Signal::INT),
    ("HUP", Signal::HUP),
    ("QUIT", Signal::QUIT),
    ("USR1", Signal::USR1),
    ("USR2", Signal::USR2),
    ("ABRT", Signal::ABORT),
];

/// Which lock is asked for, on which terms, and how long it is waited for.
#[derive(Args, Debug)]
pub(crate) struct Request {
    #[command(flatten)]
    pub(crate) store: Store,

    /// The lease: how long the lock outlives a holder that is gone, 50ms to 365d. A process that
    /// holds the lock renews it every third of that, and at least once a minute.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) ttl: Duration,

    /// Do not wait: if the lock is busy, exit with 75.
    #[arg(short = 'n', long = "no-wait", conflicts_with = "wait")]
    pub(crate) no_wait: bool,

    /// Wait at most this long; 0 is -n. Without -n and -w: wait until it is granted. With it, a
    /// store that does not answer is asked to the end of the wait; without it, it is given up after
    /// 20s when it never answered, and after a minute of silence later.
    #[arg(short = 'w', long, value_name = "DURATION", value_parser = duration, allow_negative_numbers = true)]
    pub(crate) wait: Option<Duration>,

    /// Exit with this code instead of 75 when the lock is busy, or was to the end of the wait: 0 to
    /// 255.
    #[arg(short = 'E', long = "busy-code", value_name = "CODE", default_value_t = exit::BUSY, hide_default_value = true, allow_negative_numbers = true)]
    pub(crate) busy_code: u8,

    #[command(flatten)]
    pub(crate) kind: Kind,

    #[command(flatten)]
    pub(crate) acks: Acks,

    /// A server that was promoted, restarted or lost its data grants nothing for this long. Short
    /// for `restart-grace=DURATION` in the store's URL. Use the longest --ttl of all clients. One
    /// server or Sentinel only.
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) restart_grace: Option<Duration>,

    /// Do without a token where the server forbids scripts: only there it is 0. Only for
    /// the plain lock.
    #[arg(long, conflicts_with = "kind")]
    pub(crate) unfenced: bool,

    /// What people read of this holder in `status`, `list` and `top`, beside its user, host and
    /// process, such as the URL of a job: at most 256 bytes. Who sees the lock sees it.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true,
        allow_hyphen_values = true
    )]
    pub(crate) label: String,

    /// Print no messages; only the exit code tells.
    #[arg(short, long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,

    /// Say who is waited for, how long it took, which token was granted, and in which store.
    #[arg(short, long)]
    pub(crate) verbose: bool,

    /// The lock's name: any text of 1 byte to 64 KiB.
    pub(crate) name: String,
}

impl Request {
    /// How much is said, by -q and -v.
    pub(crate) fn voice(&self) -> Voice {
        Voice { quiet: self.quiet, verbose: self.verbose }
    }
}

/// Whose confirmation counts.
#[derive(Args, Debug)]
pub(crate) struct Acks {
    /// Require N replicas to confirm each grant and renewal. Short for `acks=N` in the store's URL:
    /// every client of the lock must use the same N. Not on a store without replicas.
    #[arg(long = "acks", value_name = "N", value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    pub(crate) replicas: Option<u32>,
}

/// Which kind of lock. All clients of a name must use the same kind.
#[derive(Args, Debug)]
pub(crate) struct Kind {
    /// First come, first served.
    #[arg(long, group = "kind")]
    pub(crate) fair: bool,

    /// A read-write lock, to read: shared with other readers, without a writer.
    #[arg(short = 's', long, group = "kind")]
    pub(crate) shared: bool,

    /// A read-write lock, to write: alone.
    #[arg(short = 'x', long, group = "kind")]
    pub(crate) exclusive: bool,

    /// A semaphore with this many permits.
    #[arg(long, value_name = "N", group = "kind", allow_negative_numbers = true)]
    pub(crate) slots: Option<u32>,

    /// How many of the permits to hold. Default: 1.
    #[arg(long, value_name = "K", requires = "slots", allow_negative_numbers = true)]
    pub(crate) take: Option<u32>,

    /// A lock that its owner can hold several times: runs with the same --owner share it. Only
    /// `tenure run` takes one.
    #[arg(long, group = "kind")]
    pub(crate) reentrant: bool,

    /// The owner of a --reentrant lock: TENURE_OWNER of the run that holds it. Default: a new
    /// owner.
    #[arg(long, value_name = "ID", requires = "reentrant", allow_hyphen_values = true)]
    pub(crate) owner: Option<String>,
}

#[derive(Args, Debug)]
#[command(after_help = STATUS_CODES)]
pub(crate) struct Status {
    #[command(flatten)]
    pub(crate) store: Store,

    /// Print a JSON object.
    #[arg(long)]
    pub(crate) json: bool,

    /// The lock's name.
    pub(crate) name: String,
}

#[derive(Args, Debug)]
#[command(after_long_help = ACQUIRE_MANUAL)]
pub(crate) struct Acquire {
    #[command(flatten)]
    pub(crate) request: Request,

    /// Print a JSON object instead: `name`, `owner`, `token`, and `deadline_ms`, the Unix time
    /// until which the lock is held for certain.
    #[arg(long)]
    pub(crate) json: bool,

    /// Leave a process in the background that renews the lease until the lock is released.
    #[arg(long)]
    pub(crate) hold: bool,

    /// With --hold: that process also ends, and releases the lock, when this process ends. `$$` is
    /// the shell's own.
    #[arg(long, value_name = "PID", requires = "hold", allow_negative_numbers = true)]
    pub(crate) while_pid: Option<i32>,

    /// As --hold, until this descriptor of the shell is closed, as with `flock N`: after
    /// `exec 9>FILE`, write --fd 9. Nothing is printed, except with --json. What inherits the
    /// descriptor keeps the lock too. Give each lock a separate FILE, on a local disk.
    #[arg(long, value_name = "N", conflicts_with = "while_pid", value_parser = clap::value_parser!(i32).range(0..), allow_negative_numbers = true)]
    pub(crate) fd: Option<i32>,
}

#[derive(Args, Debug)]
#[command(after_help = RENEW_CODES)]
pub(crate) struct Renew {
    #[command(flatten)]
    pub(crate) store: Store,

    /// The owner, as `tenure acquire` printed it.
    #[arg(long, value_name = "OWNER")]
    pub(crate) owner: String,

    /// The lease from now on: 50ms to 365d. It is never shortened.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) ttl: Duration,

    #[command(flatten)]
    pub(crate) acks: Acks,

    /// Print a JSON object: `name`, `owner`, and `deadline_ms`, the Unix time until which the lock
    /// is held for certain.
    #[arg(long)]
    pub(crate) json: bool,

    /// The lock's name.
    pub(crate) name: String,
}

#[derive(Args, Debug)]
#[command(after_help = VERIFY_CODES)]
pub(crate) struct Verify {
    #[command(flatten)]
    pub(crate) store: Store,

    /// Who should hold it, as `tenure acquire` printed it.
    #[arg(long, value_name = "OWNER")]
    pub(crate) owner: String,

    /// The lock's name.
    pub(crate) name: String,
}

#[derive(Args, Debug)]
#[command(after_help = WAIT_CODES)]
pub(crate) struct Wait {
    #[command(flatten)]
    pub(crate) store: Store,

    /// Wait at most this long. Without it: until the lock is free.
    #[arg(short = 'w', long, value_name = "DURATION", value_parser = duration, allow_negative_numbers = true)]
    pub(crate) wait: Option<Duration>,

    /// The lock's name.
    pub(crate) name: String,
}

#[derive(Args, Debug)]
#[command(after_help = STOP_CODES)]
pub(crate) struct Stop {
    #[command(flatten)]
    pub(crate) store: Store,

    /// Wait at most this long until those who hold the lock hold it no more; 0 only asks.
    #[arg(short = 'w', long, value_name = "DURATION", default_value = "30s", value_parser = duration, allow_negative_numbers = true)]
    pub(crate) wait: Duration,

    /// NAME is an election: ask its leader.
    #[arg(long, conflicts_with = "job")]
    pub(crate) election: bool,

    /// NAME is a job of --once-per: ask the run that is under way.
    #[arg(long)]
    pub(crate) job: bool,

    /// Why, for people: `tenure run` prints it when its command has ended. At most 256 bytes.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true,
        allow_hyphen_values = true
    )]
    pub(crate) reason: String,

    /// The name of the lock, the election or the job.
    pub(crate) name: String,
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
    #[command(flatten)]
    pub(crate) store: Store,

    /// Release what this owner holds, as `tenure acquire` printed it. With --force, and if another
    /// holds the lock: exit with 75 instead of 79.
    #[arg(long, value_name = "OWNER", conflicts_with_all = ["token", "foreign"])]
    pub(crate) owner: Option<String>,

    /// Confirms that you take the lock from its holder. Required without --owner.
    #[arg(long)]
    pub(crate) force: bool,

    /// Release only the hold with this token, as `tenure status` shows it; if another holds the
    /// lock, exit with 75.
    #[arg(long, value_name = "TOKEN", conflicts_with = "foreign", requires = "force")]
    pub(crate) token: Option<u64>,

    /// Also release the plain lock of another program: a string at the name that tenure did not
    /// write.
    #[arg(long, requires = "force")]
    pub(crate) foreign: bool,

    /// With --force: print a JSON object, as `status --json` does.
    #[arg(long, requires = "force")]
    pub(crate) json: bool,

    /// The lock's name.
    pub(crate) name: String,
}

#[derive(Args, Debug)]
#[command(after_help = LIST_CODES)]
pub(crate) struct List {
    #[command(flatten)]
    pub(crate) store: Store,

    /// Print a JSON object a line, one for each lock, as `status --json` does.
    #[arg(long)]
    pub(crate) json: bool,

    /// Sort the lines: by name, kind, waiters (most first), age (longest first) or left (the lease
    /// that ends first). Default: as they are found.
    #[arg(long, value_name = "KEY", hide_possible_values = true)]
    pub(crate) sort: Option<Sorting>,

    /// Only locks with this: name=TEXT, kind=KIND, user=TEXT, label=TEXT, host=TEXT or pid=N (a
    /// holder or waiter), waiting (locks that are waited for), foreign (of another program). TEXT
    /// may be a part. Several must all be so.
    #[arg(long, value_name = "WHAT", value_parser = Filter::read)]
    pub(crate) filter: Vec<Filter>,

    /// Go on until a signal: on a terminal, show the list anew every so often (2s), elsewhere print
    /// a line for each lock that changed hands, and `free` for one that became free. A store that
    /// takes longer to list is asked less often: listing takes 2 % of the time at most.
    #[arg(long, value_name = "EVERY", value_parser = some_time, num_args = 0..=1, require_equals = true, default_missing_value = "2s")]
    pub(crate) watch: Option<Duration>,

    /// Only names that begin so. On a server every listing walks all keys; without a PREFIX, locks
    /// of other programs are left out.
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    pub(crate) names: String,
}

#[derive(Args, Debug)]
#[command(after_long_help = TOP_MANUAL)]
pub(crate) struct Top {
    #[command(flatten)]
    pub(crate) store: Store,

    /// How often the store is asked. A store that takes longer to list is asked less often: listing
    /// takes 2 % of the time at most.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = some_time)]
    pub(crate) every: Duration,

    /// Only names that begin so.
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    pub(crate) names: String,
}

#[cfg(feature = "serve")]
#[derive(Args, Debug)]
#[command(after_long_help = SERVE_MANUAL)]
pub(crate) struct Serve {
    #[command(flatten)]
    pub(crate) store: Store,

    /// The address and the port. Names of locks and holders are for all who can connect.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9797")]
    pub(crate) listen: std::net::SocketAddr,

    /// How often the store is asked. A store that takes longer to list is asked less often: listing
    /// takes 2 % of the time at most.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = some_time)]
    pub(crate) every: Duration,

    /// How many locks have metrics of their own.
    #[arg(long, value_name = "N", default_value_t = 500)]
    pub(crate) series: usize,

    /// Only names that begin so.
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    pub(crate) names: String,
}

#[derive(Args, Debug)]
#[command(after_long_help = DOCTOR_MANUAL)]
pub(crate) struct Doctor {
    #[command(flatten)]
    pub(crate) store: Store,

    /// The lease that the locks will have: latency and failovers are judged by it.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) ttl: Duration,

    /// Print a JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(after_long_help = BENCH_MANUAL)]
pub(crate) struct Bench {
    #[command(flatten)]
    pub(crate) store: Store,

    /// How long all of it takes. INT and TERM end it sooner, with what was measured so far.
    #[arg(long = "for", value_name = "DURATION", default_value = "10s", value_parser = some_time, allow_hyphen_values = true)]
    pub(crate) length: Duration,

    /// How many clients take turns. Each has a connection of its own.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=64), allow_negative_numbers = true)]
    pub(crate) clients: u32,

    /// The lease of each lock.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) ttl: Duration,

    /// What the names of the locks begin with. A name that is in use, or that a quorum knows from
    /// before, is refused. Default: a new random name.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// Print a JSON object.
    #[arg(long)]
    pub(crate) json: bool,

    /// Also write a page with plots to this file. It needs no network.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[command(after_long_help = STRESS_MANUAL)]
pub(crate) struct Stress {
    #[command(flatten)]
    pub(crate) store: Store,

    /// How long. INT and TERM end it sooner, with the verdict so far.
    #[arg(long = "for", value_name = "DURATION", default_value = "30s", value_parser = some_time, allow_hyphen_values = true)]
    pub(crate) length: Duration,

    /// The kinds of locks. Default: all that the store has.
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = kind())]
    pub(crate) kind: Vec<Sort>,

    /// How many locks of each kind.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1_000), allow_negative_numbers = true)]
    pub(crate) names: u32,

    /// How many processes.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1_000), allow_negative_numbers = true)]
    pub(crate) processes: u32,

    /// How many tasks in each of them.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000), allow_negative_numbers = true)]
    pub(crate) tasks: u32,

    /// The lease of each hold.
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) ttl: Duration,

    /// The longest of the usual holds. One in a thousand is longer, up to a lease and a half.
    #[arg(long, value_name = "DURATION", default_value = "20ms", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) hold: Duration,

    /// Kill one of the processes now and then (SIGKILL), also while it holds or waits, and start
    /// another.
    #[arg(long)]
    pub(crate) kill: bool,

    /// Stop one of the processes now and then (SIGSTOP), for up to two leases.
    #[arg(long)]
    pub(crate) pause: bool,

    /// Run this command now and then, by `sh -c`: to stop, cut off, restart or fail over what the
    /// locks are on.
    #[arg(long, value_name = "CMD")]
    pub(crate) hook: Option<String>,

    /// The time between two kills, two stops, and two runs of the hook: half to one and a half
    /// times this.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = some_time, allow_hyphen_values = true)]
    pub(crate) every: Duration,

    /// A lock that stays free for this long while a task waits for it is a violation. Must be more
    /// than a lease and the longest fault.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = some_time, allow_hyphen_values = true)]
    pub(crate) stall: Duration,
}

#[derive(Args, Debug)]
pub(crate) struct Fence {
    #[command(subcommand)]
    pub(crate) text: FenceText,
}

#[derive(Clone, Copy, Debug, Subcommand)]
pub(crate) enum FenceText {
    /// Prints SQL: a table, and `tenure_pass`, which refuses old tokens.
    ///
    /// Example: tenure fence sql --for postgres | psql -1 -v ON_ERROR_STOP=1
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
    /// Print a JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Completions {
    /// The shell that reads them.
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Args, Debug)]
pub(crate) struct Man {
    /// The verb, as `run`. Without it: the page of `tenure` itself.
    pub(crate) verb: Option<String>,
}

/// One of the kinds that can be hammered.
fn kind() -> impl TypedValueParser<Value = Sort> {
    PossibleValuesParser::new(Sort::ALL.map(Sort::name))
        .map(|name| Sort::named(&name).expect("one of these names"))
}
