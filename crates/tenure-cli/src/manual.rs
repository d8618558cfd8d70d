//! The longer parts of the help text.

pub(crate) const STATUS_CODES: &str = "\
With --json, one object on one line: `name`, `store`, `held`, `kind`, `permits` (of a semaphore),
`holders` and, in their order, `waiters`; each with `owner`, `foreign` (of another program: what
it keeps there, as \"a string of 36 bytes\"), `user`, `host`, `pid`, `label` (of --label),
`since_ms` (Unix time), `remaining_ms` (of its lease), `fence` (its token) and `weight` (permits, or
how often it is held; of a read-write lock, 1 reads). What is not known is null.

Exit status:
    0  it is held
    1  it is free
   64  usage: a flag, name or URL that cannot be right
   69  the store did not answer, refused, or is a directory that does not exist: neither held nor
       free
  125  tenure itself failed";

pub(crate) const RELEASE_CODES: &str = "\
Exit status:
    0  it was held, and those holds are ended
    1  with --force: it was free
   64  usage: a flag, name or URL that cannot be right, or neither --owner nor --force
   65  it is not a lock of tenure, and nothing was changed
   69  the store did not answer or refused; without an answer it may have released the lock
   75  with --force: it is not held with the --token or by the --owner, but by another, and nothing
       was changed
   79  with --owner alone: it is not held by that owner any more, and nothing was changed
  125  tenure itself failed";

pub(crate) const STOP_CODES: &str = "\
Exit status:
    0  those who held it hold it no more, or with -w 0: they were asked
    1  it was free
   64  usage: a flag, name or URL that cannot be right, or a store that keeps no requests: a
       quorum, etcd or ZooKeeper
   65  it is not a lock of tenure
   69  the store did not answer, or refused
   75  it is still held by one that was asked
  125  tenure itself failed";

pub(crate) const LIST_CODES: &str = "\
Exit status:
    0  all that are held were listed
   64  usage: a flag or URL that cannot be right
   69  the store did not answer, or refused
  125  tenure itself failed";

pub(crate) const DOCTOR_MANUAL: &str = "\
What is looked at:
  servers   eviction and memory, persistence, replicas, writes that are refused, idle connections,
            the clock, 50 round trips against the lease, keys without an end under the prefix (of
            the first 10,000 keys), whether scripts are allowed, the rights of this user, proxies
  sentinels whether they agree, their number and quorum, the time until a failover
  clusters  coverage, replicas, the time until a failover; each master as a server
  quorums   their number, members that do not answer; each member as a server
  file:     network file systems, rights of the directory, free space

Each finding has three lines: what it is, why it hurts a lock, and what to do. Then come the rights
that this user lacks for other kinds of locks, and what this user may not ask. For a full answer
run it as a user who may CONFIG GET, INFO and SCAN.

With --json, one object: `store`, `servers` (what was seen of each), `findings` (each with `check`,
`at`, `what`, `why`, `fix`), and `notes` and `unchecked` (each with `check`, `at`, `what`).

Exit status:
    0  no finding
    1  there are findings
   64  usage: a flag, duration or URL that cannot be right
   69  the store cannot be reached, or refuses the login
  125  tenure itself failed

Examples:
  tenure doctor --store redis://db1 --prefix app:
  tenure doctor --store redis-sentinel://s1,s2,s3/locks?acks=2 --ttl 30s --json";

pub(crate) const BENCH_MANUAL: &str = "\
It measures four things, each in turn with the bare commands that one would write without tenure:
a free lock that is taken and released, clients that take turns at one lock, the hand-over from one
client to one that waits, and the renewal of a lease. The bare commands are SET NX PX with a script
that compares and deletes, asked again every 5 ms where the lock is busy, and PEXPIRE; on a quorum
they go to all members at once; on a directory they are flock and a file that is written and
renamed. They wait for no replicas, see no loss, and have no token.

The clients are connections of this one process. The bars of the histograms are logarithmic.

Exit status:
    0  it was measured
   64  usage: a flag, duration or URL that cannot be right
   69  the store did not answer, or refused
   75  the names are in use, or the store grants nothing
  125  tenure itself failed
  128 + N  signal N ended it; what was measured so far is printed

Examples:
  tenure bench --store redis://db1 --html locks.html
  tenure bench --store file:/var/lib/locks --for 5s --json";

pub(crate) const CONFIG_MANUAL: &str = "\
A flag wins over the environment, the environment over ~/.config/tenure.toml ($XDG_CONFIG_HOME),
and that over /etc/tenure.toml. --config FILE is read in place of both. A key that is not known is
an error.

Before the tables: store, store-file, prefix, ttl. In the tables [run], [acquire], [renew],
[elect], [doctor] and [bench]: those of ttl, grace, on-lost, kill-after, wait, busy-code, max-hold,
splay, acks, restart-grace and verbose that are flags of the verb.

  store = \"redis://locks@db1?password-file=/etc/tenure/password\"
  prefix = \"app:\"
  ttl = \"30s\"

  [run]
  wait = \"5m\"
  kill-after = \"10s\"

Environment:
  TENURE_STORE       the store's URL; CMD gets it without a password
  TENURE_STORE_FILE  a file that has the store's URL

Exit status:
    0  it was printed
   64  usage: a file that is wrong or missing, with the line, or an environment that contradicts
  125  tenure itself failed";

pub(crate) const TOP_MANUAL: &str = "\
A hand-off is counted when a lock has another holder than at the last look, so several between two
looks count once. A bar shows what is left of the longest lease that this holder was seen with. The
history of a lock begins with the first look.

On a server each look walks over all keys with SCAN and asks about each lock. A look that takes long
comes seldom, so that looks take 2 % of the time: with 10,000 locks on a local Redis one took 0.5 s,
every 24 s, and the server 0.4 % of a core. It never uses KEYS or PSUBSCRIBE. Without colours: NO_COLOR=1.

Exit status:
    0  q was pressed
   64  usage: a flag or URL that cannot be right, or no terminal
   69  the store did not answer at the start, or refused; later it is asked again
  125  tenure itself failed
  128 + N  signal N ended it";

#[cfg(feature = "serve")]
pub(crate) const SERVE_MANUAL: &str = "\
  /            a page with a table of the locks and the history of one
  /metrics     for Prometheus
  /locks.json  what the page shows

Nothing can be changed by it, and it has no login. At a loopback address it answers only requests
for localhost or such an address. A hand-off is counted when a lock has another holder than at the
last look, so several between two looks count once.

Exit status:
   64  usage: a flag or URL that cannot be right
   69  the store did not answer at the start, or refused; later it is asked again
  125  tenure itself failed, or cannot listen there
  128 + N  signal N ended it";

pub(crate) const STRESS_MANUAL: &str = "\
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

pub(crate) const RUN_MANUAL: &str = "\
Exit status:
  CMD's own; 128 + N if signal N ended it, or ended the wait for the lock
   64  usage: a flag, name, duration or URL that cannot be right
   65  the name is in use as another kind of lock, or with another number of permits
   69  the store did not answer, or refused
   75  busy: another holds the lock, or did to the end of -w (-E chooses another code); or the run
       would wait for itself; or the job has run in this window of --once-per
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
  and this program; a lease is not renewed meanwhile, so CMD is woken and ended when it runs out, as
  when the lease is lost. A CMD that was stopped in any other way keeps its lock, unless it is what
  the terminal shows.

When the lease is lost:
  CMD's group gets TERM, and KILL after the grace, less a little, so that all of it is gone before
  another holder can get the lock. The lease is lost when the store does not answer for most of a
  ttl. It is lost too when the store says that another holds the lock (forced open, expired while
  the machine slept): then that holder may run beside CMD during the grace.

  --on-lost changes what CMD gets. --max-hold ends the hold in the same way, and with 79.

When CMD ends:
  The lock is released, with --min-hold when that is over, also if CMD left processes in the background: they run on without it.

When this program is killed or stands still:
  Another process of this program, its watchdog, waits for that. If this program is killed, the
  watchdog kills CMD and its process group, also a CMD that has changed its user or left its group,
  and then releases the lock. (In a `file:` store the lock is free when the last process of CMD's that
  inherited it is gone.) If this program is stopped (SIGSTOP, a debugger), the watchdog ends CMD as
  above before the lease ends, and this program exits with 79 once it goes on. What CMD has started in
  another group or session escapes, as does a setuid CMD that this program's user may not signal.
  Only if the watchdog stands still too, CMD can run on past the lease.

In a container:
  As its first process, or as a subreaper, this program waits for the orphans that it inherits, so no
  zombies are left.

Durations:
  90, 0.5 (seconds), 1500ms, 30s, 5m, 1h30m, 1d: the same everywhere.

Examples:
  tenure run nightly -- ./report.sh
  tenure run -n -E 0 hourly curl -fsS https://example.com/ping
  tenure run -w 0.5 --ttl 1m deploy -- sh -c 'make && make install'
  tenure run --slots 4 render -- ./render.sh
  tenure run -s config -- cp app.conf /tmp/ ; tenure run -x config -- ./rewrite.sh
  tenure run --also accounts ledger -- ./book.sh
  tenure run --once-per 1d -E 0 digest -- ./send-digest.sh
  tenure run -n --splay 10s --min-hold 1m --max-hold 1h hourly -c 'make report && make mail'";

pub(crate) const ELECT_MANUAL: &str = "\
Exit status:
  CMD's own; 128 + N if signal N ended it, or ended the wait to lead
   64  usage: a flag, name, duration or URL that cannot be right, or a store that keeps no
       elections: a quorum, etcd or ZooKeeper
   69  the store did not answer, or refused
   79  the term was lost while CMD ran; CMD has been stopped
  125  tenure itself failed
  126  CMD cannot be executed
  127  CMD was not found

CMD has the environment of `tenure run`; TENURE_FENCE is the term, which grows from leader to leader.

Examples:
  tenure elect scheduler -- ./schedule.sh
  while :; do tenure elect --payload \"$ADDRESS\" api ./serve; sleep 1; done
  tenure leader --watch api";

pub(crate) const LEADER_CODES: &str = "\
With --json: `name`, `change` (elected, updated, resigned, missed or rewritten), and of a leader
`payload`, `fence` and `owner`; `missed` counts changes that are not known any more.

Exit status:
    0  one leads
    1  none leads
   64  usage: a flag, name or URL that cannot be right, or a store that keeps no elections: a
       quorum, etcd or ZooKeeper
   69  the store did not answer, or refused
  125  tenure itself failed";

pub(crate) const ACQUIRE_MANUAL: &str = "\
Exit status:
    0  the lock is taken; its owner is on standard output
   64  usage: a flag, name, duration or URL that cannot be right
   65  the name is in use as another kind of lock, or with another number of permits
   69  the store did not answer, or refused
   75  busy: another holds the lock, or did to the end of -w (-E chooses another code)
   79  the lease was over before it could be printed
  125  tenure itself failed
  128 + N  signal N ended the wait

With --hold the lock is renewed until it is released, also if the script is gone: give it the shell
as --while-pid. If the process in the background is killed, the lock is free when its lease ends; on
the `file:` store at once. When it loses the lock it ends, and the script is not told: ask with
`tenure verify` before each step that must not run without the lock.

With --fd the same process keeps the lock, and releases it when the descriptor is closed: by
`exec 9>&-`, at the end of the subshell or the script, and when that is killed. It works on every
store.

Examples:
  T=$(tenure acquire deploy --ttl 10m -w 5m) || exit
  ./build.sh && tenure renew deploy --owner \"$T\" --ttl 10m && ./install.sh
  tenure release deploy --owner \"$T\"

  T=$(tenure acquire --hold --while-pid $$ deploy) || exit
  ./build.sh && tenure verify deploy --owner \"$T\" && ./install.sh
  tenure release deploy --owner \"$T\"

  (
      tenure acquire --fd 9 -n deploy || exit 75
      ./build.sh
  ) 9>/run/lock/deploy.fd";

pub(crate) const RENEW_CODES: &str = "\
Exit status:
    0  it is held, for the --ttl from now on
   64  usage: a flag, name, duration, owner or URL that cannot be right
   69  the store did not answer or refused; without an answer it may have been renewed
   79  it is not held by that owner any more
  125  tenure itself failed";

pub(crate) const VERIFY_CODES: &str = "\
Exit status:
    0  it is held by that owner
   64  usage: a flag, name, owner or URL that cannot be right
   69  the store did not answer, or refused: neither held nor lost
   79  it is not held by that owner any more
  125  tenure itself failed";

pub(crate) const WAIT_CODES: &str = "\
Exit status:
    0  it is free, or was a moment ago
   64  usage: a flag, name, duration or URL that cannot be right
   69  the store did not answer, or refused
   75  it was held to the end of -w
  125  tenure itself failed";
