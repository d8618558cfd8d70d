//! The longer parts of the help text.

pub(crate) const STATUS_CODES: &str = "\
With --json, one object on one line: `name`, `store`, `held`, `kind`, `permits` (of a semaphore),
`holders`, `waiters` in the order of the queue, `unlisted` (how many more there are) and `waiting`
(how many wait: processes where there is no queue). Holders and waiters have `owner`, `foreign`
(what another program stored there, as \"a string of 36 bytes\"), `user`, `host`, `pid`, `label` (of
--label), `since_ms` (Unix time), `remaining_ms` (of its lease), `fence` (its token) and `weight`
(permits, or the number of holds; of a read-write lock, 1 reads).
`status` adds, of an election and a job of this name, `leader` (`owner`, `fence`, `payload`) and
`last_run` (`owner`, `host`, `fence`, `begun_ms`, `ended_ms`, `window_end_ms`, `outcome`: running,
done, failed or lost, `code` (the exit code), `error`, `remaining_ms` of its lease, `succeeded_ms`,
the end of its last success, and `is_open`, if its failure has opened the window again).
`uses_trouble` is why these two are unknown. They are not locks: if only they are in use, the lock is
free. Unknown values are null.

Exit status:
    0  held
    1  free
   64  usage: invalid flag, name or URL
   69  the store did not answer, refused, or is a directory that does not exist: neither held nor
       free
  125  tenure itself failed

Examples:
  tenure status nightly
  tenure status nightly --json | jq -r '.holders[].owner'";

pub(crate) const RELEASE_CODES: &str = "\
Exit status:
    0  the holds are ended
    1  with --force: it was free
   64  usage: invalid flag, name or URL, or neither --owner nor --force
   65  not a lock of tenure; nothing was changed
   69  the store did not answer or refused; without an answer it may have released the lock
   75  with --force: another holds it than the --token or --owner; nothing was changed
   79  with --owner alone: that owner no longer holds it; nothing was changed
  125  tenure itself failed

Examples:
  tenure release deploy --owner \"$T\"
  tenure release --force --token 1795731426056176 nightly";

pub(crate) const STOP_CODES: &str = "\
Exit status:
    0  the holders are gone, or with -w 0: they were asked
    1  it was free
   64  usage: invalid flag, name or URL, or a quorum, which keeps no requests
   65  not a lock of tenure
   69  the store did not answer, or refused
   75  a holder that was asked still holds it
  125  tenure itself failed

Examples:
  tenure stop nightly --reason 'maintenance at 18:00'
  tenure stop --election api -w 1m";

pub(crate) const LIST_CODES: &str = "\
Running jobs and leaders have the kinds `job` and `election`. Where no terminal shows it, each lock
is a line of name, kind, holders, waiters and permits, separated by tabs. Its texts are for people
and may change; scripts use --json.

Exit status:
    0  all held locks were listed
   64  usage: invalid flag or URL
   69  the store did not answer, or refused
  125  tenure itself failed

Examples:
  tenure list app: --sort age
  tenure list --filter waiting --filter host=web1
  tenure list --watch=5s --json";

pub(crate) const JOBS_CODES: &str = "\
A job is listed once it has run: until one period and at least a week after its last window, on etcd
and ZooKeeper until --forget. It is overdue from the end of that window until it runs again.

With --json, an object for each: `name`, `store`, `schedule` (null if unknown), `last_run` as of
`tenure status`, `next_ms` (Unix time), `overdue_ms` or null, and `runs`, newest first, at most ten,
each with `begun_ms`, `ended_ms`, `host`, `fence`, `outcome`, `code` (the exit code) and `error`.

Exit status:
    0  listed, or forgotten
    1  no run of NAME is recorded
   64  usage: invalid flag, name or URL
   69  the store did not answer, or refused
   75  --forget, and the job is running
  125  tenure itself failed

Examples:
  tenure jobs
  tenure jobs nightly
  tenure jobs --json | jq -r 'select(.overdue_ms > 600000).name'";

pub(crate) const DOCTOR_MANUAL: &str = "\
Checks:
  servers   eviction and memory, persistence, replicas, refused writes, idle connections, the clock,
            50 round trips against the lease, keys without an expiry under the namespace and prefix
            (of the first 10,000 keys), scripts, the rights of this user, proxies
  sentinels their number and quorum, whether they agree, the time until a failover
  clusters  coverage, replicas, the time until a failover; each master as a server
  quorums   their number, members that do not answer; each member as a server
  others    settings of PostgreSQL and MySQL; connection limits of these and of ZooKeeper; as a note,
            connections that are not encrypted, or whose server is not checked
  file:     network file systems, permissions of the directory, free space

Each finding has three lines: what it is, why it hurts a lock, and what to do. Then come notes,
which cost no lock, such as rights that this user lacks for other kinds of locks, and what could not
be checked. For a full answer run it as a user with the rights for CONFIG GET, INFO and SCAN.

With --json, one object: `store`, `servers` (what each reported), `findings` (each with `check`,
`at`, `what`, `why`, `fix`), and `notes` and `unchecked` (each with `check`, `at`, `what`).

Exit status:
    0  no findings
    1  findings
   64  usage: invalid flag, duration or URL
   69  the store is unreachable, or rejects the login
  125  tenure itself failed

Examples:
  tenure doctor --store redis://db1 --prefix app:
  tenure doctor --store redis-sentinel://s1,s2,s3/locks?acks=2 --ttl 30s --json";

pub(crate) const BENCH_MANUAL: &str = "\
Measures four operations, alternating with the bare commands that they replace: acquiring and
releasing a free lock, clients taking turns at one lock, the hand-over from one client to a waiter,
and the renewal of a lease. The bare commands are SET NX PX with a script that compares and deletes,
polled every 5 ms while the lock is busy, and PEXPIRE; on a quorum they go to all members at once.
On PostgreSQL and MySQL they insert and delete a row, and wait for pg_advisory_lock or GET_LOCK; on
etcd and ZooKeeper they create and delete a key or an ephemeral node, and poll; in a directory they
are flock and a file that is written and renamed. They wait for no replicas, detect no loss, and
have no token.

All clients are connections of this process. The bars of the histograms are logarithmic.

Exit status:
    0  measured
   64  usage: invalid flag, duration or URL
   69  the store did not answer, or refused
   75  the names are in use, or the store grants nothing
  125  tenure itself failed
  128 + N  signal N ended it; the results so far are printed

Examples:
  tenure bench --store redis://db1 --html locks.html
  tenure bench --store file:/var/lib/locks --for 5s --json";

pub(crate) const CONFIG_MANUAL: &str = "\
Flags override the environment, the environment overrides ~/.config/tenure.toml
($XDG_CONFIG_HOME), and that overrides /etc/tenure.toml. --config FILE replaces both files. An
unknown key is an error.

Top-level keys: store, store-file, prefix, ttl. The tables [run], [acquire], [renew], [elect],
[doctor] and [bench] take those of these that are flags of the verb: ttl, grace, on-lost,
kill-after, wait, busy-code, max-hold, splay, zone, acks, restart-grace and verbose.

  store = \"redis://locks@db1?password-file=/etc/tenure/password\"
  prefix = \"app:\"
  ttl = \"30s\"

  [run]
  wait = \"5m\"
  kill-after = \"10s\"

Environment:
  TENURE_STORE       the store's URL; CMD gets it without a password
  TENURE_STORE_FILE  a file that contains the store's URL

Exit status:
    0  printed
   64  usage: a file that is wrong or missing, with the line, or contradictory settings
  125  tenure itself failed

Examples:
  tenure config
  tenure config --config ./tenure.toml --json";

pub(crate) const TOP_MANUAL: &str = "\
A hand-over is counted when a lock has another holder than at the last refresh, so several between
two refreshes count once. A bar shows the time left, relative to the longest lease seen of this
holder. The history of a lock begins with the first refresh: its last ten minutes as a line, and its
holds.

On a server each refresh walks all keys with SCAN and asks about each lock. Refreshes take at most
2 % of the time, or come every ten --every: with 10,000 locks on a local Redis one took 0.5 s, every
20 s, and the server 0.5 % of a core. It never uses KEYS or PSUBSCRIBE. NO_COLOR=1 turns colours off.

Exit status:
    0  q was pressed
   64  usage: invalid flag or URL, or no terminal
   69  the store did not answer at the start, or refused; later it is retried
  125  tenure itself failed
  128 + N  signal N ended it

Examples:
  tenure top
  tenure top --store redis://db1 --every 5s app:";

#[cfg(feature = "serve")]
pub(crate) const SERVE_MANUAL: &str = "\
  /            a page: who holds and waits for what, and the last ten minutes of each lock
  /metrics     for Prometheus
  /locks.json  the data of the page

It is read-only and has no login. At a loopback address it answers only requests for localhost or
such an address. It sees nothing between two refreshes: times in a history are as exact as --every,
and several hand-overs between two refreshes count once. A lease counts as expired if it ran out
after a missed renewal; a forced end counts as a release.

Fields of /locks.json, with times in milliseconds since 1970 and unknown values as null:
  store prefix trouble       the store, and the error of the last refresh if it failed or is overdue
  flags lacks_login          the flags of the page's commands, and whether these lack a login
  started_ms looked_ms       the first and the last refresh
  now_ms                     the time of the response
  every_ms span_ms           the interval of refreshes, and the time that histories cover
  handovers_per_second       during the last 30 s
  locks elections            each with name, kind, permits (used, all), foreign, the numbers held and
                             waiting, up to 100 holders and waiters (who, owner, detail, token,
                             since_ms, left_ms, lease_ms), holds (who, token, from_ms, to_ms, end)
                             and waits (at_ms, waiting: the new number); free locks stay while holds
                             are known
  jobs                       each with name, schedule, overdue_ms, last (who, begun_ms, outcome:
                             running, done, failed or lost, why, succeeded_ms: its last success,
                             is_open: its window, after a failure, next_ms) and runs (begun_ms,
                             ended_ms, host, outcome, code, why)
  uses_trouble               why jobs and elections cannot be listed
With ?after=MS, an earlier looked_ms, holds and waits contain only what has changed since.

Exit status:
   64  usage: invalid flag or URL
   69  the store did not answer at the start, or refused; later it is retried
  125  tenure itself failed, or cannot listen there
  128 + N  signal N ended it

Examples:
  tenure serve --store redis://db1
  tenure serve --listen 0.0.0.0:9797 --every 15s app:";

pub(crate) const STRESS_MANUAL: &str = "\
Processes of this program take turns at a few locks in every way: they wait, try once, give up, drop
the request at any moment, and hold for less than a millisecond or longer than a lease. Their
histories must show that no two incompatible holds overlapped (readers, writers and permits are
counted), that tokens grew, that no lock stayed free for long while a task waited, and that nothing
is left at the end. The names are new with each run and begin with `stress-`; other locks of the
store are not touched.

Prints acquisitions and how they ended, failures, faults, the longest stall, what is left behind,
and each violation with the histories of both holders. Progress goes to standard error.

A violation means that the store lost what it had acknowledged, that its clock jumped, or that
tenure has a bug. Expect it if a server is emptied, is killed without persistence, fails over or
evicts keys. Times are those of one machine (CLOCK_BOOTTIME on Linux).

Exit status:
    0  no violation
    1  a violation
   64  usage: invalid flag, duration or URL, or a kind that the store does not support
   69  the store did not answer at the start or at the end, or refused everything
  125  no violation, but a --hook failed; or tenure itself failed

Examples:
  tenure stress --store redis://db1 --for 5m --kill --pause
  tenure stress --store redis://db1 --hook 'systemctl restart redis' --every 20s --stall 30s
  tenure stress --store redis://db1 --kind mutex,fair --names 1 --processes 8";

pub(crate) const RUN_MANUAL: &str = "\
Exit status:
  that of CMD; 128 + N if signal N ended it, or ended the wait for the lock
   64  usage: invalid flag, name, duration or URL
   65  the name is in use as another kind of lock, or with another number of permits
   69  the store did not answer, or refused
   75  busy (-E chooses another code): with -n, or until the end of -w, the lock was held or the
       server in its restart-grace; or a run above this one holds the lock; or the job of --once-per
       or --schedule is running, or has run, died or lost its lock in this window (see --again,
       --retry-lost), or has missed it (--missed)
   79  the lease was lost, or --max-hold was reached; CMD was stopped or not started, or may have
       ended after the loss
  125  tenure itself failed
  126  CMD cannot be executed
  127  CMD was not found

Environment of CMD:
  TENURE_NAME    the lock's name, as given here; with --also, this and the next two are about NAME
                 itself
  TENURE_OWNER   the owner that holds it
  TENURE_FENCE   the fencing token, which grows with each grant
  TENURE_TTL_MS  the lease in milliseconds
  TENURE_WINDOW  of a job: the beginning of its window, in seconds since 1970
  TENURE_LATE_MS of a job: how long after that the run began
  TENURE_HELD    the owners of all locks that CMD runs under, /ID if only the id differs from the one
                 before. A nested run that waits without -w for a lock of one of them exits with 75
                 (or -E)
  LISTEN_PID     CMD's process id, if it was this program's (systemd's sockets)
  TENURE_STORE, TENURE_STORE_FILE
                 the store that --store or --store-file named, without a password; a nested command
                 needs --prefix again
  With a `file:` store CMD inherits a descriptor for each lock, which keeps the lock held.

Signals:
  INT, TERM, HUP, QUIT, USR1, USR2 and WINCH are passed on once, to CMD's process group. The lease
  is renewed until CMD has ended, however long that takes. While waiting for the lock, INT, TERM,
  HUP and QUIT end the wait, and USR1 and USR2 are ignored. A signal that was ignored when this
  program started (nohup) stays ignored, here and in CMD; PIPE is reset to its default in CMD. A
  service manager that signals every process of a service reaches CMD twice: tell it to signal only
  the main one (systemd: KillMode=mixed). On a terminal CMD's group is the foreground group, so keys
  go to CMD alone; in a pipeline, once it reads from the terminal. Ctrl-Z stops CMD and this
  program, and nothing renews the lease: when it runs out, CMD is woken and ended. A CMD that was
  stopped in any other way keeps its lock, unless it has the terminal.

When the lease is lost:
  CMD's group gets TERM, and KILL shortly before the end of the grace, so that all of it is gone
  before another holder can get the lock. The lease is lost when no renewal is answered before the
  grace begins, with the defaults after 5 to 10 s without an answer, or when the store reports
  another holder (forced open, expired while the machine slept). In the latter case that holder
  may run beside CMD during the grace.

  --on-lost changes what CMD gets. --max-hold ends the hold in the same way, and with 79.

When CMD ends:
  The lock is released, with --min-hold when that is over. Processes that CMD left in the background
  run on without it.

When this program is killed or stops:
  Its watchdog, a second process, takes over. If this program is killed, the watchdog kills CMD and
  its process group, also a CMD that has changed its user or left its group, and then releases the
  lock. (In a `file:` store the lock is free when the last process that inherited it is gone.) If
  this program is stopped (SIGSTOP, a debugger), the watchdog ends CMD as above before the lease
  ends, and this program exits with 79 once it resumes. Processes that CMD started in another group
  or session escape, as does a setuid CMD that this user may not signal. CMD can run past the lease
  only if the watchdog is stopped too.

In a container:
  As process 1, or as a subreaper, this program reaps orphans, so no zombies are left.

On macOS and FreeBSD:
  After sleep, the watchdog notices within 250 ms that the lease has ended. If it is killed together
  with this program, CMD runs on; Linux kills it. Orphans are not reaped.

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
  tenure run --once-per 1d --again digest -- ./send-digest.sh   # by hand
  tenure run --schedule '0 2 * * *' --zone Europe/Berlin --forever digest -- ./send-digest.sh
  tenure run -n --splay 10s --min-hold 1m --max-hold 1h hourly -c 'make report && make mail'";

pub(crate) const ELECT_MANUAL: &str = "\
Exit status:
  that of CMD; 128 + N if signal N ended it, or ended the wait to lead
   64  usage: invalid flag, name, duration or URL, or a quorum, which keeps no elections
   69  the store did not answer, or refused
   79  the term was lost while CMD ran; CMD has been stopped
  125  tenure itself failed
  126  CMD cannot be executed
  127  CMD was not found

CMD has the environment of `tenure run`. TENURE_FENCE is the term, which grows from leader to
leader.

Examples:
  tenure elect scheduler -- ./schedule.sh
  while :; do tenure elect --payload \"$ADDRESS\" api ./serve; sleep 1; done";

pub(crate) const LEADER_CODES: &str = "\
With --json: `name`, `change` (elected, updated, resigned, missed or rewritten), and of a leader
`payload`, `fence` and `owner`; `missed` counts changes that are no longer known.

Exit status:
    0  there is a leader
    1  there is no leader
   64  usage: invalid flag, name or URL, or a quorum, which keeps no elections
   69  the store did not answer, or refused
  125  tenure itself failed

Examples:
  tenure leader api
  tenure leader --watch api";

pub(crate) const ACQUIRE_MANUAL: &str = "\
Exit status:
    0  acquired; the owner is on standard output
   64  usage: invalid flag, name, duration or URL
   65  the name is in use as another kind of lock, or with another number of permits
   69  the store did not answer, or refused
   75  busy: another holds the lock, or did to the end of -w (-E chooses another code)
   79  the lease ended before the owner could be printed
  125  tenure itself failed
  128 + N  signal N ended the wait

With --hold a background process renews the lock until it is released, even if the script has died:
pass the shell as --while-pid. If that process is killed, the lock is free when its lease ends, on
the `file:` store at once. If it loses the lock, it exits without telling the script: call `tenure
verify` before each step that needs the lock.

With --fd it releases the lock when the descriptor is closed: by `exec 9>&-`, at the end of the
subshell or script, or when that is killed.

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
    0  held, for the --ttl from now on
   64  usage: invalid flag, name, duration, owner or URL
   69  the store did not answer or refused; without an answer it may have been renewed
   79  that owner no longer holds it
  125  tenure itself failed

Examples:
  tenure renew deploy --owner \"$T\" --ttl 10m";

pub(crate) const VERIFY_CODES: &str = "\
Exit status:
    0  that owner holds it
   64  usage: invalid flag, name, owner or URL
   69  the store did not answer, or refused: neither held nor lost
   79  that owner no longer holds it
  125  tenure itself failed

Examples:
  tenure verify deploy --owner \"$T\" && ./install.sh";

pub(crate) const WAIT_CODES: &str = "\
Exit status:
    0  it is free, or was a moment ago
   64  usage: invalid flag, name, duration or URL
   69  the store did not answer, or refused
   75  it was held to the end of -w
  125  tenure itself failed

Examples:
  tenure wait -w 10m migrate && ./serve";

pub(crate) const FENCE_EXAMPLES: &str = "\
Examples:
  tenure fence sql --for postgres | psql -1 -v ON_ERROR_STOP=1
  tenure fence lua > write-fenced.lua";

pub(crate) const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  tenure completions bash > /etc/bash_completion.d/tenure";

pub(crate) const MAN_EXAMPLES: &str = "\
Examples:
  tenure man run | man -l -";
