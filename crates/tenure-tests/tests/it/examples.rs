//! Runs the examples as their first lines say: as processes, some of which are killed.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "these tests run other programs in real time"
)]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tenure::{Locks, block_on};
use tenure_testkit::servers::{Postgres, Server, eventually};

const LIMIT: Duration = Duration::from_secs(40);

/// The directory of the examples, built with these flags.
fn examples() -> &'static PathBuf {
    static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
        let test = std::env::current_exe().expect("this program");
        let profile = test.ancestors().nth(2).expect("target/PROFILE/deps/it").to_owned();
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        build.args(["build", "--quiet", "--workspace", "--examples"]);
        // Cargo's variables about this package would make build scripts run again.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
                build.env_remove(name);
            }
        }
        build.args((!cfg!(debug_assertions)).then_some("--release"));
        build.arg("--target-dir").arg(profile.parent().expect("target"));
        assert!(build.current_dir(env!("CARGO_MANIFEST_DIR")).status().expect("cargo").success());
        profile.join("examples")
    });
    &BUILT
}

#[test]
fn the_page_on_writing_a_store_shows_the_whole_program() {
    let page = include_str!("../../../../book/contribute/writing-a-store.md");
    let blocks =
        page.split("```rust\n").skip(1).filter_map(|rest| rest.split_once("```").map(|(code, _)| code));
    let shown: Vec<&str> = blocks.flat_map(str::lines).filter(|line| !line.is_empty()).collect();
    let program = include_str!("map_store.rs").lines().filter(|line| !line.is_empty());
    assert_eq!(shown, program.collect::<Vec<_>>());
}

/// Processes of one example that write to one file, so that their lines are in the actual order.
struct Crowd {
    dir: TempDir,
    processes: Vec<Child>,
}

impl Crowd {
    fn start(count: usize, example: &str, arguments: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut crowd = Self { dir, processes: Vec::new() };
        for _ in 0..count {
            crowd.add(example, arguments);
        }
        crowd
    }

    fn add(&mut self, example: &str, arguments: &[&str]) {
        let file = |name: &str| {
            File::options().create(true).append(true).open(self.dir.path().join(name)).expect("a file")
        };
        let mut command = Command::new(examples().join(example));
        command.args(arguments).stdin(Stdio::null()).stdout(file("said")).stderr(file("errors"));
        self.processes.push(command.spawn().expect("an example"));
    }

    fn said(&self) -> String {
        fs::read_to_string(self.dir.path().join("said")).unwrap_or_default()
    }

    fn count(&self, what: &str) -> usize {
        self.said().matches(what).count()
    }

    #[track_caller]
    fn eventually_says(&self, what: &str, times: usize) {
        let errors = || fs::read_to_string(self.dir.path().join("errors")).unwrap_or_default();
        let until = std::time::Instant::now() + LIMIT;
        while self.count(what) < times {
            let late = std::time::Instant::now() > until;
            assert!(!late, "{what}: not {times} times in:\n{}{}", self.said(), errors());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The address of a service.
    fn address(&self) -> String {
        self.eventually_says("listening on ", 1);
        let said = self.said();
        said.lines().next().and_then(|line| line.rsplit(' ').next()).expect("an address").to_owned()
    }

    fn signal(&self, at: usize, signal: Signal) {
        kill_process(Pid::from_child(&self.processes[at]), signal).expect("it was not waited for");
    }

    /// Waits until all have exited successfully.
    #[track_caller]
    fn end(&mut self) -> String {
        eventually("all have ended", LIMIT, || {
            self.processes.iter_mut().all(|process| process.try_wait().expect("a child").is_some())
        });
        let well = self.processes.iter_mut().all(|process| process.wait().expect("a child").success());
        let errors = fs::read_to_string(self.dir.path().join("errors")).unwrap_or_default();
        assert!(well && errors.is_empty(), "{}{errors}", self.said());
        self.said()
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn file_store() -> (TempDir, String) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let url = format!("file:{}", dir.path().display());
    (dir, url)
}

fn query(server: &Postgres, sql: &str) -> String {
    let output = server.psql().args(["-c", sql]).output().expect("psql");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn a_lottery_draws_ten_winners_though_its_first_two_drawers_are_killed() {
    let (_dir, store) = file_store();
    let postgres = Postgres::start();
    let config = postgres.config();
    examples();
    let at = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs() + 2;
    let noon = format!("{:02}:{:02}:{:02}", at / 3_600 % 24, at / 60 % 60, at % 60);
    // One process per crowd, to know which of them drew.
    let mut crowds: Vec<_> = (0..4).map(|_| Crowd::start(1, "lottery", &[&store, &config, &noon])).collect();
    for place in ["place 4 is drawn", "place 10 is drawn"] {
        let mut at = None;
        eventually("one draws", LIMIT, || {
            at = crowds.iter().position(|crowd| crowd.count(place) > 0);
            at.is_some()
        });
        let drawer = crowds.remove(at.expect("found"));
        drawer.signal(0, Signal::KILL);
    }
    // Whether or not the second could commit, nothing is drawn twice.
    eventually("the run is told of as done", LIMIT, || {
        let job = Locks::open(&store).and_then(|locks| {
            locks.once_per("example:lottery", tenure::Period::daily(Duration::from_secs(at % 86_400)))
        });
        let last = block_on(job.expect("a job").last()).expect("an answer").expect("it ran");
        last.outcome == tenure::Outcome::Done
    });
    let winners = "SELECT count(*) || ' on ' || count(DISTINCT day) FROM winners";
    assert_eq!(query(&postgres, winners), "10 on 1");
}

#[test]
fn a_paused_holders_late_write_is_refused_and_lands_without_its_token() {
    let (server, postgres) = (Server::start(), Postgres::start());
    let (store, config) = (server.url(), postgres.config());
    let author = "SELECT author FROM report";
    let paused = Crowd::start(1, "fenced_write", &[&store, &config, "unfenced"]);
    paused.eventually_says("computing", 1);
    paused.signal(0, Signal::STOP);
    let mut next = Crowd::start(1, "fenced_write", &[&store, &config]);
    assert!(next.end().contains("\nwritten\n"));
    let written = query(&postgres, author);
    assert_eq!(written, format!("process {}", next.processes[0].id()));
    paused.signal(0, Signal::CONT);
    paused.eventually_says("refused: ERROR: tenure: old token", 1);
    paused.eventually_says("written without the token", 1);
    assert_eq!(query(&postgres, author), format!("process {}", paused.processes[0].id()));
    paused.eventually_says("is lost", 1);
}

#[test]
fn three_jobs_at_most_run_at_once_in_all_worker_processes() {
    let server = Server::start();
    let said = Crowd::start(4, "workers", &[&server.url()]).end();
    let (mut running, mut most) = (0, 0);
    for line in said.lines() {
        running += if line.ends_with("begins") { 1 } else { -1 };
        most = most.max(running);
    }
    assert_eq!((said.lines().count(), running, most), (40, 0, 3), "{said}");
}

#[test]
fn transfers_in_both_directions_end_and_lose_nothing() {
    let (dir, store) = file_store();
    let accounts = dir.path().join("accounts");
    let said = Crowd::start(4, "transfer", &[&store, accounts.to_str().expect("UTF-8")]).end();
    assert_eq!(said.lines().count(), 4, "{said}");
    let balance = |name| -> i64 {
        fs::read_to_string(accounts.join(name)).expect("an account").parse().expect("a number")
    };
    // Each process moves 1 + 3 + … + 49 one way and 2 + 4 + … + 50 the other.
    assert_eq!((balance("alice"), balance("bob")), (900, 1_100));
}

/// Sends a request; the reply ends with the connection.
fn request(address: &str, line: &str) -> TcpStream {
    let mut connection = TcpStream::connect(address).expect("it listens");
    connection.set_read_timeout(Some(LIMIT)).expect("a limit");
    write!(connection, "{line} HTTP/1.1\r\nHost: example\r\nConnection: close\r\n\r\n").expect("it reads");
    connection
}

fn answer(mut connection: TcpStream) -> String {
    let mut answer = String::new();
    connection.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn a_service_computes_once_refuses_a_second_job_and_ends_with_its_requests_done() {
    let server = Server::start();
    let mut services = [0, 1].map(|_| Crowd::start(1, "axum", &[&server.url()]));
    let addresses = services.each_ref().map(Crowd::address);
    let reports = [0, 1, 0, 1].map(|at: usize| request(&addresses[at], "GET /report"));
    for report in reports.map(answer) {
        assert!(report.starts_with("HTTP/1.1 200") && report.ends_with("42 orders\n"), "{report}");
    }
    let computed: usize = services.iter().map(|service| service.count("computing")).sum();
    assert_eq!(computed, 1);

    let rebuild = request(&addresses[0], "POST /rebuild");
    services[0].eventually_says("rebuilding", 1);
    let refused = answer(request(&addresses[1], "POST /rebuild"));
    assert!(refused.starts_with("HTTP/1.1 409") && refused.contains("retry-after: 1"), "{refused}");
    services[0].signal(0, Signal::TERM);
    let rebuilt = answer(rebuild);
    assert!(rebuilt.starts_with("HTTP/1.1 200") && rebuilt.ends_with("rebuilt\n"), "{rebuilt}");
    assert!(services[0].end().ends_with("all locks are given back\n"));
    let locks = Locks::open(&server.url()).expect("a store");
    assert!(block_on(locks.inspect("example:rebuild")).expect("an answer").is_none());
}

/// The first service is paused for longer than its lease, once during a transaction and once before it.
#[test]
fn a_paused_sqlx_service_commits_before_the_next_holder_or_not_at_all() {
    let postgres = Postgres::start();
    let url = format!("postgres://postgres@{}/postgres", postgres.place());
    let services = [0, 1].map(|_| Crowd::start(1, "sqlx", &[&url]));
    let [paused, other] = services.each_ref().map(Crowd::address);
    let lapsed = || {
        // The lock `example:close` or `example:report`, whose lease has expired by the server's clock.
        let ends = "SELECT bool_and(ends < extract(epoch FROM clock_timestamp()) * 1000)";
        eventually("its lease is over", LIMIT, || {
            query(&postgres, &format!("{ends} FROM tenure_lock WHERE name LIKE 'example:%'")) == "t"
        });
    };

    let closing = request(&paused, "POST /close");
    services[0].eventually_says("closing", 1);
    services[0].signal(0, Signal::STOP);
    lapsed();
    let refused = answer(request(&other, "POST /close"));
    assert!(refused.starts_with("HTTP/1.1 409"), "{refused}");
    services[0].signal(0, Signal::CONT);
    // It commits what it checked in, and may learn afterwards that its lease had expired.
    let closed = answer(closing);
    assert_eq!(query(&postgres, "SELECT closed FROM day"), "1", "{closed}");

    let computing = request(&paused, "POST /report");
    services[0].eventually_says("computing", 1);
    services[0].signal(0, Signal::STOP);
    lapsed();
    let written = answer(request(&other, "POST /report"));
    assert!(written.starts_with("HTTP/1.1 200"), "{written}");
    let report = query(&postgres, "SELECT report FROM day");
    services[0].signal(0, Signal::CONT);
    let refused = answer(computing);
    assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("tenure: old token"), "{refused}");
    assert_eq!(query(&postgres, "SELECT report FROM day"), report);
}

#[test]
fn one_process_computes_at_each_expiry_and_without_the_guard_a_thousand_readers_do() {
    let (server, _built) = (Server::start(), examples());
    let [(guarded, took), (unguarded, _)] = ["guarded", "unguarded"].map(|mode| {
        let started = Instant::now();
        let said = Crowd::start(4, "stampede", &[&server.url(), mode]).end();
        let queries = |line: &str| line.split(' ').nth(2).and_then(|count| count.parse::<u64>().ok());
        (said.lines().map(|line| queries(line).expect("a count")).sum::<u64>(), started.elapsed())
    });
    // All read for four seconds, and one at a time computes for half a second.
    let most = took.as_secs() * 2 + 1;
    assert!((3..=most).contains(&guarded), "{guarded} queries in {took:?}");
    assert!(unguarded >= 1_000, "{unguarded} queries");
}

#[test]
fn a_scheduled_job_runs_once_in_each_window_on_three_processes() {
    let server = Server::start();
    let crowd = Crowd::start(3, "scheduler", &[&server.url()]);
    crowd.eventually_says("this host runs it", 2);
    let said = crowd.said();
    let windows: BTreeSet<_> = said.lines().filter_map(|line| line.split_once(": this host")).collect();
    assert_eq!(windows.len(), said.lines().count(), "{said}");
}

#[test]
fn each_process_leads_in_its_turn() {
    let (_dir, store) = file_store();
    let crowd = Crowd::start(2, "leader", &[&store]);
    for process in &crowd.processes {
        // Both observers report it.
        crowd.eventually_says(&format!("process {} leads", process.id()), 2);
    }
    crowd.eventually_says("has resigned", 2);
}
