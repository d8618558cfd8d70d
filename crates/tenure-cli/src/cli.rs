//! The command line: every flag once. The help text is the manual.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};
use tenure_history::line::Sort;

use crate::duration::{duration, seconds};
use crate::{exit, output};

/// Runs a program under a distributed lock, and shows locks and their holders.
#[derive(Debug, Parser)]
#[command(name = "tenure", version, after_help = "`tenure run --help` has the manual.")]
pub(crate) struct Cli {
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
    /// Shows the holders of a lock: exits with 0 if it is held and with 1 if it is free.
    Status(Status),
    /// Lists the locks that are held.
    List(List),
    /// Ends the holds of a lock by force: exits with 0 if it was held and with 1 if it was free.
    ///
    /// For a lock whose holder is gone or stuck, when its lease takes too long to end. The next
    /// waiter is let in. A holder of `tenure run` hears of it when it asks next, after a third of
    /// its ttl at most. Until then its CMD runs beside that of the next holder, and only fencing
    /// tokens distinguish the two. It prints what was ended, as `tenure status` does, and how long
    /// the old CMD may run.
    Release(Release),
    /// Tests a store: many processes use locks, some are killed, and the answers are judged.
    Stress(Stress),
}

/// The store of the locks.
#[derive(Args, Debug)]
pub(crate) struct Store {
    /// The store: `file:DIR` for the processes of one machine, or the URL of a server. Default: the
    /// directory `tenure` in $XDG_STATE_HOME, or else in $HOME/.local/state. An empty one is
    /// refused.
    #[arg(long = "store", value_name = "URL", env = "TENURE_STORE", hide_env_values = true)]
    pub(crate) url: Option<String>,

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
#[command(after_long_help = RUN_MANUAL, override_usage = "tenure run [OPTIONS] NAME [--] CMD [ARGS]...")]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) store: Store,

    /// The lease: how long the lock outlives a holder that is gone, 50ms to 8760h. Written as
    /// 1500ms, 30s, 5m or 2h. It is renewed every third of that, and at least once a minute.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) ttl: Duration,

    /// When the lease is lost: the time between TERM and KILL, taken from the end of the lease. At
    /// most a third of the ttl. Default: 5s, or a third of the ttl if that is less.
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) grace: Option<Duration>,

    /// Do not wait: if the lock is busy, exit with 75.
    #[arg(short = 'n', long = "no-wait", conflicts_with = "wait")]
    pub(crate) no_wait: bool,

    /// Wait at most this many seconds, which may have a fraction; 0 is -n. Without -n and -w: wait
    /// until it is granted. With it, a store that does not answer is asked to the end of the wait;
    /// without it, it is given up after 1s when it never answered, and after a minute of silence
    /// later.
    #[arg(short = 'w', long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true)]
    pub(crate) wait: Option<Duration>,

    /// Exit with this code instead of 75 when the lock is busy, or was to the end of the wait: 0 to
    /// 255.
    #[arg(short = 'E', long = "busy-code", value_name = "CODE", default_value_t = exit::BUSY, hide_default_value = true, allow_negative_numbers = true)]
    pub(crate) busy_code: u8,

    #[command(flatten)]
    pub(crate) kind: Kind,

    /// Require N replicas to confirm each grant and renewal. Short for `acks=N` in the store's URL:
    /// every client of the lock must use the same N. Not on a store without replicas.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    pub(crate) acks: Option<u32>,

    /// A server that was promoted, restarted or lost its data grants nothing for this long. Short
    /// for `restart-grace=DURATION` in the store's URL. Use the longest --ttl of all clients. One
    /// server or Sentinel only.
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) restart_grace: Option<Duration>,

    /// Do without a token where the server forbids scripts: only there TENURE_FENCE is 0. Only for
    /// the plain lock.
    #[arg(long, conflicts_with = "kind")]
    pub(crate) unfenced: bool,

    /// Hold this lock too, of the same kind: all or none. May be given several times; the order
    /// does not matter.
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    pub(crate) also: Vec<String>,

    /// Print no messages; only the exit code tells.
    #[arg(short, long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,

    /// Say who is waited for, how long it took, which token was granted, and in which store.
    #[arg(short, long)]
    pub(crate) verbose: bool,

    /// The lock's name: any text of 1 byte to 64 KiB.
    pub(crate) name: String,

    /// The command and its arguments. Options of this program end here, so `--` is needed only
    /// before a command that begins with a hyphen.
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true)]
    pub(crate) command: Vec<OsString>,
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

    /// A lock that its owner can hold several times: runs with the same --owner share it.
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
#[command(after_help = RELEASE_CODES)]
pub(crate) struct Release {
    #[command(flatten)]
    pub(crate) store: Store,

    /// Required: confirms that you take the lock from its holder.
    #[arg(long, required = true)]
    pub(crate) force: bool,

    /// Release only the hold with this token, as `tenure status` shows it; if another holds the
    /// lock, exit with 75.
    #[arg(long, value_name = "TOKEN", conflicts_with = "foreign")]
    pub(crate) token: Option<u64>,

    /// Also release the plain lock of another program: a string at the name that tenure did not
    /// write.
    #[arg(long)]
    pub(crate) foreign: bool,

    /// Print a JSON object, as `status --json` does.
    #[arg(long)]
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

    /// Only names that begin so. On a server every listing walks all keys; without a PREFIX, locks
    /// of other programs are left out.
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    pub(crate) names: String,
}

#[derive(Args, Debug)]
#[command(after_long_help = STRESS_MANUAL)]
pub(crate) struct Stress {
    #[command(flatten)]
    pub(crate) store: Store,

    /// How long: 1500ms, 30s, 5m or 2h. INT and TERM end it sooner, with the verdict so far.
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

/// One of the kinds that can be hammered.
fn kind() -> impl TypedValueParser<Value = Sort> {
    PossibleValuesParser::new(Sort::ALL.map(Sort::name))
        .map(|name| Sort::named(&name).expect("one of these names"))
}

/// A duration that is not zero.
fn some_time(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("must be more than 0".into()),
        time => Ok(time),
    }
}

const STATUS_CODES: &str = "\
With --json, one object on one line: `name`, `store`, `held`, `kind`, `permits` (of a semaphore),
`holders` and, in their order, `waiters`; each with `owner`, `foreign` (of another program: what
it keeps there, as \"a string of 36 bytes\"), `label`, `host`, `pid`, `since_ms` (Unix time),
`remaining_ms` (of its lease), `fence` (its token) and `weight` (permits, or how often it is held;
of a read-write lock, 1 reads). What is not known is null.

Exit status:
    0  it is held
    1  it is free
   64  usage: a flag, name or URL that cannot be right
   69  the store did not answer, refused, or is a directory that does not exist: neither held nor
       free
  125  tenure itself failed";

const RELEASE_CODES: &str = "\
Exit status:
    0  it was held, and those holds are ended
    1  it was free
   64  usage: a flag, name or URL that cannot be right, or no --force
   65  it is not a lock of tenure, and nothing was changed
   69  the store did not answer or refused; without an answer it may have released the lock
   75  it is not held with the --token, but by another, and nothing was changed
  125  tenure itself failed";

const LIST_CODES: &str = "\
Exit status:
    0  all that are held were listed
   64  usage: a flag or URL that cannot be right
   69  the store did not answer, or refused
  125  tenure itself failed";

const STRESS_MANUAL: &str = "\
Processes of this program take turns at a few locks, in every way: waiting, asking once, giving
up, dropping the request at any moment, holding for less than a millisecond or longer than a
lease. Each writes a history of answers and times. The histories must show that no two held at
once what excludes each other (readers, writers and permits are counted), that tokens grew, that
no lock stayed free for long while a task waited, and that nothing is left at the end. The names
are new with each run and begin with `stress-`; other locks of the store are not touched.

The verdict is printed at the end: how many acquisitions were checked, how they ended, what
failed, the faults, the longest stall, what is left behind, and each violation with the histories
of the two that met. Progress goes to standard error.

A violation means that the store lost what it had acknowledged, that its clock jumped, or a
defect of tenure. It is what must be expected of a server that is emptied, killed without
persistence, failed over or that evicts. Times are those of one machine: the clock that leases
count on (CLOCK_BOOTTIME).

Exit status:
    0  no violation was found
    1  a violation was found
   64  usage: a flag, duration or URL that cannot be right, or a kind that the store does not have
   69  the store did not answer at the start or at the end, or refused everything
  125  no violation, but a --hook failed; or tenure itself failed

Examples:
  tenure stress --store redis://db1 --for 5m --kill --pause
  tenure stress --store redis://db1 --hook 'systemctl restart redis' --every 20s --stall 30s
  tenure stress --store redis://db1 --kind mutex,fair --names 1 --processes 8";

const RUN_MANUAL: &str = "\
Exit status:
  CMD's own; 128 + N if signal N ended it, or ended the wait for the lock
   64  usage: a flag, name, duration or URL that cannot be right
   65  the name is in use as another kind of lock, or with another number of permits
   69  the store did not answer, or refused
   75  busy: another holds the lock, or did to the end of -w (-E chooses another code); or the run
       would wait for itself
   79  the lease was lost while CMD ran; CMD has been stopped
  125  tenure itself failed
  126  CMD cannot be executed
  127  CMD was not found

Environment of CMD:
  TENURE_NAME    the lock's name, as given here; with --also, this and the next two are about NAME
                 itself
  TENURE_OWNER   who holds it: this run, as text
  TENURE_FENCE   the fencing token: grows with each grant; a resource that keeps the largest it
                 has seen can refuse the rest
  TENURE_TTL_MS  the lease in milliseconds
  TENURE_HELD    the owners of all locks that CMD runs under. A run in CMD that waits without -w for a
                 lock which one of them keeps from it says so, and exits with 75 (or -E)
  LISTEN_PID     if it was this program's (systemd's sockets), it becomes CMD's, so that
                 LISTEN_FDS are CMD's
  With a `file:` store CMD inherits one descriptor for each lock besides its streams: it tells
  others that the work is still going on.

Signals:
  INT, TERM, HUP, QUIT, USR1 and USR2 are passed on to CMD, once, and so is WINCH. CMD leads a
  process group, and the whole group gets them. The lease is renewed until CMD has
  ended, however long that takes. While the lock is waited for, INT, TERM, HUP and QUIT end the
  wait, and USR1 and USR2 are ignored. A signal that was ignored when this program started (nohup)
  stays ignored, here and in CMD; PIPE is reset to its default in CMD. A service
  manager that signals every process of a service reaches CMD twice: tell it to signal only the
  main one (systemd: KillMode=mixed). On a terminal CMD's group is the foreground group: keys go
  to CMD alone. In a pipeline it becomes that once it reads from the terminal. Ctrl-Z stops CMD
  and this program; a lease is not renewed meanwhile, so `fg` after it has run out finds CMD
  killed. A CMD that was stopped in any other way keeps its lock, unless it is what the terminal
  shows.

When the lease is lost:
  CMD's group gets TERM, and KILL after the grace, less a little, so that all of it is gone before
  another holder can get the lock. The lease is lost when the store does not answer for most of a
  ttl. It is lost too when the store says that another holds the lock (forced open, expired while
  the machine slept): then that holder may run beside CMD during the grace.

When CMD ends:
  The lock is released, also if CMD left processes in the background: they run on without it.

When this program is killed:
  CMD and its process group are killed too (Linux), also a CMD that has changed its user or left its
  group: another process of this program waits for that. What CMD has started in another group or
  session escapes, as does a setuid CMD that this program's user may not signal. In a `file:` store
  the lock becomes free when the last process of CMD's that inherited it is gone, or when its lease
  ends; in the others when its lease ends. Nor can this program help while it is stopped by SIGSTOP:
  CMD then runs on past the lease.

Examples:
  tenure run nightly -- ./report.sh
  tenure run -n -E 0 hourly curl -fsS https://example.com/ping
  tenure run -w 0.5 --ttl 1m deploy -- sh -c 'make && make install'
  tenure run --slots 4 render -- ./render.sh
  tenure run -s config -- cp app.conf /tmp/ ; tenure run -x config -- ./rewrite.sh
  tenure run --also accounts ledger -- ./book.sh";

impl Cli {
    /// Reads the command line. What is wrong with it is said in one line, which is followed by the
    /// code to exit with.
    pub(crate) fn read() -> Result<Self, u8> {
        Self::try_parse().map_err(|error| match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                let text = error.render();
                let text =
                    if io::stdout().is_terminal() { text.ansi().to_string() } else { text.to_string() };
                let _ = output::print(wrapped(&text));
                0
            }
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                let _ = io::stderr().write_all(wrapped(&error.render().to_string()).as_bytes());
                exit::USAGE
            }
            _ => {
                output::complain(one_line(&error.to_string(), &std::env::args_os().collect::<Vec<_>>()));
                exit::USAGE
            }
        })
    }
}

/// Columns of the help.
const COLUMNS: usize = 100;

/// The help in lines of so many columns. A line that goes on is indented as its last column of
/// text.
fn wrapped(text: &str) -> String {
    let mut lines = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let mut at = 0;
        let indent = indent(line);
        for word in line.split_inclusive(' ') {
            let word_width = width(word.trim_end());
            if at > indent && word_width > 0 && at + word_width > COLUMNS {
                lines.truncate(lines.trim_end_matches(' ').len());
                lines.push('\n');
                lines.push_str(&" ".repeat(indent));
                at = indent;
            }
            lines.push_str(word);
            at += width(word.trim_end_matches('\n'));
        }
    }
    lines
}

/// Where the text of a line begins: behind its first gap, as in a list of options, or where it
/// starts.
fn indent(line: &str) -> usize {
    let margin = line.len() - line.trim_start_matches(' ').len();
    let gap = line[margin..].find("  ").filter(|_| margin > 0).map(|gap| margin + gap);
    let text = gap.map_or(margin, |gap| line.len() - line[gap..].trim_start_matches(' ').len());
    let indent = width(&line[..text]);
    if indent < COLUMNS / 2 { indent } else { margin }
}

/// How many columns a text takes, without the sequences that colour it.
fn width(text: &str) -> usize {
    let mut is_colour = false;
    let visible = text.chars().filter(|char| {
        let was_colour = is_colour;
        is_colour = *char == '\u{1b}' || is_colour && *char != 'm';
        !is_colour && !was_colour
    });
    visible.count()
}

/// The first paragraph of an error of clap's: what is wrong, without usage and tips.
fn one_line(error: &str, words_given: &[OsString]) -> String {
    let first = error.strip_prefix("error: ").unwrap_or(error);
    let words: Vec<&str> = first.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    // Of what was meant, if that is known.
    let command = Cli::command();
    let meant = words_given.get(1).and_then(|word| command.find_subcommand(word));
    let meant = meant.map_or_else(String::new, |command| format!(" {}", command.get_name()));
    format!("{}; `tenure{meant} --help` says more", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(words: &[&str]) -> Result<Run, String> {
        let words: Vec<OsString> = ["tenure", "run"].iter().chain(words).map(OsString::from).collect();
        match Cli::try_parse_from(&words) {
            Ok(Cli { command: Command::Run(run) }) => Ok(run),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(one_line(&error.to_string(), &words)),
        }
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_is_wrapped_at_a_hundred_columns_behind_the_gap() {
        let text = format!("  -x, --long  {}\n", "word ".repeat(40).trim_end());
        let lines = wrapped(&text);
        assert!(lines.lines().all(|line| line.len() <= COLUMNS), "{lines}");
        assert!(lines.lines().skip(1).all(|line| line.starts_with("              word")), "{lines}");
        assert_eq!(lines.split_whitespace().collect::<Vec<_>>(), text.split_whitespace().collect::<Vec<_>>());
        assert_eq!(width("\u{1b}[1mbold\u{1b}[0m"), 4);
        assert_eq!(wrapped("short\n\n  two\n"), "short\n\n  two\n");
    }

    #[test]
    fn options_end_at_the_command() {
        let args = run(&["--ttl", "5m", "nightly", "-w", "0.5", "ls", "-n", "--ttl", "x", "--", "-q"])
            .expect("a run");
        assert_eq!((args.name.as_str(), args.ttl.as_secs()), ("nightly", 300));
        assert_eq!(args.wait, Some(Duration::from_millis(500)));
        assert_eq!(args.command, ["ls", "-n", "--ttl", "x", "--", "-q"]);
        assert!(!args.no_wait && !args.quiet);
    }

    #[test]
    fn two_hyphens_before_the_command_are_not_part_of_it() {
        assert_eq!(run(&["x", "--", "ls", "-l"]).expect("a run").command, ["ls", "-l"]);
        assert_eq!(run(&["x", "--", "-odd"]).expect("a run").command, ["-odd"]);
        assert_eq!(run(&["--", "-x", "ls", "-l"]).expect("a run").command, ["ls", "-l"]);
    }

    #[test]
    fn what_is_wrong_is_said_in_one_line() {
        let wrong: [(&[&str], &str); 14] = [
            (&[], "<NAME>"),
            (&["x"], "<CMD>"),
            (&["--ttl", "0", "x", "ls"], "30s"),
            (&["--ttl", "-1", "x", "ls"], "30s"),
            (&["--ttl", "NaN", "x", "ls"], "30s"),
            (&["--ttl", "9e99s", "x", "ls"], "30s"),
            (&["--grace", "-5s", "x", "ls"], "30s"),
            (&["-w", "-1", "x", "ls"], "seconds"),
            (&["-w", "NaN", "x", "ls"], "seconds"),
            (&["-E", "256", "x", "ls"], "255"),
            (&["-E", "-1", "x", "ls"], "-1"),
            (&["-n", "-w", "1", "x", "ls"], "--no-wait"),
            (&["--frobnicate", "x", "ls"], "--frobnicate"),
            (&["x", "-odd"], "-o"),
        ];
        for (words, said) in wrong {
            let line = run(words).expect_err("no run");
            assert!(line.contains(said) && !line.contains('\n'), "{words:?}: {line}");
            assert!(line.ends_with("; `tenure run --help` says more"), "{line}");
        }
    }
}
