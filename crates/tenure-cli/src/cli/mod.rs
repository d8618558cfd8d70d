//! The command line: every flag once. The help text is the manual.
//!
//! | module | flags of the verbs |
//! |---|---|
//! | `lock` | for one lock, from `acquire` to `stop` |
//! | `run` | that run a command |
//! | `show` | that show locks |
//! | `tools` | about a store and about this program |

mod lock;
mod run;
mod show;
mod tools;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use tenure::diagnosis::Namespace;

use crate::output::Voice;
use crate::version;

pub(crate) use lock::*;
pub(crate) use run::*;
pub(crate) use show::*;
pub(crate) use tools::*;

/// Runs a program under a distributed lock, and shows locks and their holders.
#[derive(Debug, Parser)]
#[command(name = "tenure", version = version::own(), after_help = "`tenure run --help` has the manual.", mut_subcommands = common)]
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
    /// Without a store (--store), the lock is in a directory of this user, and no other host takes part.
    ///
    /// Waits for the lock NAME, runs CMD directly (without a shell), keeps the lease alive until
    /// CMD has ended, and releases it. Standard input, output and error are CMD's. Messages of
    /// this program go to standard error, a line each, beginning with `tenure: `.
    Run(Box<Run>),
    /// Takes a lock, prints the owner, and ends: for a script whose steps are processes.
    ///
    /// Without a store (--store), the lock is in a directory of this user, and no other host takes part.
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
    /// Lists the locks that are held, running jobs and leaders.
    List(List),
    /// Lists the jobs of --once-per: the last run and success, and when each is due.
    ///
    /// With NAME, one job and its last ten runs: exits with 1 if no run is recorded.
    Jobs(Jobs),
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
    /// Default: $TENURE_STORE, then a configuration file. Without these, `elect`, `leader`, `serve`,
    /// --once-per, --job and --election end with 64, and the others use the directory `tenure` in
    /// $XDG_STATE_HOME or $HOME/.local/state.
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

fn namespace(text: &str) -> Result<String, String> {
    Namespace::checked(text).map(|_| text.to_owned()).ok_or_else(|| format!("expected {}", Namespace::FORM))
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
