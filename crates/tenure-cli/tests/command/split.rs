//! A lock that outlives the processes that acquire it: `acquire`, `renew`, `verify`, `release` and `wait`.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tenure_testkit::servers::{Server, eventually};

use crate::env::{BINARY, LIMIT, Outcome, TestEnv, full_pipe, until_gone};

impl TestEnv {
    fn verb(&self, verb: &str, args: &[&str]) -> Outcome {
        self.run(self.tenure([&[verb][..], args].concat()))
    }

    /// Acquires a lock, and returns its owner.
    fn acquire(&self, args: &[&str]) -> String {
        let said = self.verb("acquire", args).exits_with(0).says_nothing();
        said.stdout.trim_end().to_owned()
    }

    /// The background process that renews the lock of this owner.
    fn renewing(&self, owner: &str) -> Pid {
        let owner = format!("--owner={owner}");
        let is_keeper = |pid: &i32| {
            let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words: Vec<&[u8]> = words.split(|byte| *byte == 0).collect();
            words.get(1) == Some(&&b"__keep"[..]) && words.contains(&owner.as_bytes())
        };
        let all = std::fs::read_dir("/proc").unwrap();
        let mut pids = all.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
        Pid::from_raw(pids.find(is_keeper).expect("the lock is kept")).unwrap()
    }
}

/// The whole life of a hold, on any store and of any kind.
fn lives(env: &TestEnv, store: &[&str], kind: &[&str]) {
    // Members of a quorum vote once they have been up for a lease.
    let (ttl, renewed_to) = ("10s", "20s");
    let verb = |verb: &str, args: &[&str]| env.verb(verb, &[store, args].concat());
    let owner = env.acquire(&[store, kind, &["x", "--ttl", ttl, "-w", "20"]].concat());
    let by_owner = ["x", "--owner", &owner];
    verb("verify", &by_owner).exits_with(0).says_nothing();
    verb("status", &["x"]).exits_with(0);
    verb("renew", &[&by_owner[..], &["--ttl", renewed_to]].concat()).exits_with(0).says_nothing();
    // The request to the last member of a quorum may still be in flight.
    eventually("its lease is longer", LIMIT, || {
        let left = verb("status", &["--json", "x"]).exits_with(0).stdout;
        let left: Value = serde_json::from_str(&left).expect("JSON");
        left["holders"][0]["remaining_ms"].as_u64().expect("a lease") > 10_000
    });
    let said = verb("release", &by_owner).exits_with(0).says_nothing();
    assert_eq!(said.stdout, "");
    verb("status", &["x"]).exits_with(1);
    for after in ["verify", "renew", "release"] {
        verb(after, &by_owner).exits_with(79).says("any more");
    }
    verb("status", &["x"]).exits_with(1);
}

#[test]
fn a_hold_is_acquired_renewed_verified_and_released_by_four_processes() {
    let env = TestEnv::new();
    for kind in [&[][..], &["--fair"], &["-s"], &["-x"], &["--slots", "3", "--take", "2"]] {
        lives(&env, &[], kind);
    }
}

#[test]
fn the_same_on_a_server_and_on_a_quorum() {
    let env = TestEnv::new();
    let servers: [Server; 3] = Server::several();
    for kind in [&[][..], &["--fair"], &["-x"], &["--slots", "2"]] {
        lives(&env, &["--store", &servers[0].url()], kind);
    }
    let hosts: Vec<String> = servers.iter().map(|server| server.address().to_string()).collect();
    lives(&env, &["--store", &format!("redis-quorum://{}", hosts.join(","))], &[]);
}

#[test]
fn others_are_excluded_until_the_release_or_the_end_of_the_lease() {
    let env = TestEnv::new();
    let owner = env.acquire(&["x"]);
    env.verb("acquire", &["-n", "x"]).exits_with(75).says("busy");
    env.verb("acquire", &["-n", "-E", "9", "x"]).exits_with(9).says("busy");
    env.tenure_run(["-n", "x", "--", "touch", "ran"]).exits_with(75);
    env.verb("release", &["x", "--owner", &owner]).exits_with(0);
    env.tenure_run(["-n", "x", "--", "true"]).exits_with(0);
    // Not renewed.
    let owner = env.acquire(&["x", "--ttl", "300ms"]);
    env.tenure_run(["-w", "5", "x", "--", "true"]).exits_with(0);
    env.verb("renew", &["x", "--owner", &owner]).exits_with(79).says("not held");
    assert!(!env.path("ran").exists());
}

#[test]
fn json_tells_the_owner_the_token_and_the_deadline() {
    let env = TestEnv::new();
    let read = |said: Outcome| -> Value { serde_json::from_str(&said.exits_with(0).stdout).expect("JSON") };
    let unix_ms = || std::time::SystemTime::UNIX_EPOCH.elapsed().expect("a time").as_millis() as u64;
    let lease = |deadline: &Value, ms: u64| {
        let left = deadline.as_u64().expect("a time") - unix_ms();
        assert!((ms * 9 / 10..ms).contains(&left), "{left} of {ms}");
    };
    let acquired = read(env.verb("acquire", &["--json", "--ttl", "10m", "x"]));
    lease(&acquired["deadline_ms"], 600_000);
    let status = read(env.verb("status", &["--json", "x"]));
    let holder = &status["holders"][0];
    assert_eq!((&acquired["owner"], &acquired["token"]), (&holder["owner"], &holder["fence"]));
    assert_eq!(acquired["name"], "x");
    let owner = acquired["owner"].as_str().expect("an owner");
    let renewed = read(env.verb("renew", &["--json", "--ttl", "1h", "--owner", owner, "x"]));
    lease(&renewed["deadline_ms"], 3_600_000);
    assert_eq!(renewed["owner"], owner);
}

#[test]
fn a_lock_is_kept_until_it_is_released() {
    let env = TestEnv::new();
    let server = Server::start();
    for store in [env.url(), server.url()] {
        let store = ["--store", &store];
        let owner = env.acquire(&[&store[..], &["--hold", "--ttl", "400ms", "x"]].concat());
        let renewing = env.renewing(&owner);
        // After several leases, a waiter still finds it held.
        env.verb("wait", &[&store[..], &["-w", "1.5", "x"]].concat()).exits_with(75).says("is held by");
        env.verb("verify", &[&store[..], &["x", "--owner", &owner]].concat()).exits_with(0);
        env.verb("release", &[&store[..], &["x", "--owner", &owner]].concat()).exits_with(0);
        until_gone(renewing);
        env.verb("status", &[&store[..], &["x"]].concat()).exits_with(1);
    }
}

#[test]
fn a_lock_is_kept_until_the_script_ends_in_whatever_way() {
    let env = TestEnv::new();
    let script = r#"T=$("$0" acquire --hold --ttl 1h --while-pid $$ x) || exit 9
        echo "$T" > owner.new; mv owner.new owner; exec sleep 60"#;
    let mut command = env.program("sh");
    command.args(["-c", script, BINARY]);
    let running = env.start(command);
    running.eventually("the lock is taken", || env.path("owner").exists());
    let owner = env.read("owner").trim().to_owned();
    let renewing = env.renewing(&owner);
    env.verb("verify", &["x", "--owner", &owner]).exits_with(0);
    running.signal(Signal::KILL);
    let _ = running.wait();
    env.tenure_run(["-w", "10", "x", "--", "true"]).exits_with(0);
    until_gone(renewing);
}

#[test]
fn a_keeper_that_is_killed_frees_the_lock_of_a_directory_at_once() {
    let env = TestEnv::new();
    let owner = env.acquire(&["--hold", "--ttl", "1h", "x"]);
    kill_process(env.renewing(&owner), Signal::KILL).unwrap();
    env.tenure_run(["-w", "10", "x", "--", "true"]).exits_with(0);
    env.verb("verify", &["x", "--owner", &owner]).exits_with(79);
}

/// As a service manager does, which sends it to every process of a unit.
#[test]
fn a_keeper_that_is_asked_to_end_releases_and_one_of_a_script_lasts_as_long_as_that() {
    let env = TestEnv::new();
    let owner = env.acquire(&["--hold", "--ttl", "1h", "x"]);
    kill_process(env.renewing(&owner), Signal::TERM).unwrap();
    env.tenure_run(["-w", "20", "x", "--", "true"]).exits_with(0);
    let script = env.start_script(&[], "other", "READY; exec sleep 60");
    let pid = env.pid("up").as_raw_nonzero().to_string();
    let owner = env.acquire(&["--hold", "--while-pid", &pid, "--ttl", "1h", "x"]);
    let keeper = env.renewing(&owner);
    for signal in [Signal::TERM, Signal::HUP, Signal::INT, Signal::USR1] {
        kill_process(keeper, signal).unwrap();
    }
    env.verb("verify", &["x", "--owner", &owner]).exits_with(0);
    script.signal(Signal::TERM);
    script.wait();
    env.tenure_run(["-w", "20", "x", "--", "true"]).exits_with(0);
    until_gone(keeper);
}

#[test]
fn a_signal_before_the_owner_is_printed_gives_the_lock_back() {
    let env = TestEnv::new();
    let was_in_time = |_| {
        let running = env.start(env.tenure(["acquire", "--hold", "--ttl", "1h", "x"]));
        let children = format!("/proc/{0}/task/{0}/children", running.pid().as_raw_nonzero());
        let keeper = || std::fs::read_to_string(&children).unwrap_or_default().trim().parse().ok();
        running.eventually("it starts a process that keeps the lock", || keeper().is_some());
        let keeper = keeper().and_then(Pid::from_raw).filter(|pid| kill_process(*pid, Signal::STOP).is_ok());
        running.signal(Signal::INT);
        let _ = keeper.map(|pid| kill_process(pid, Signal::CONT));
        let said = running.wait();
        match said.code() {
            Some(130) => {
                assert_eq!(said.says_nothing().stdout, "");
                env.verb("status", &["x"]).exits_with(1);
                true
            }
            // It was too late for that.
            _ => {
                let owner = said.exits_with(0).stdout;
                env.verb("release", &["x", "--owner", owner.trim_end()]).exits_with(0);
                false
            }
        }
    };
    assert!((0..20).any(was_in_time));
}

#[test]
fn a_forced_release_of_an_owner_ends_no_other_hold() {
    let env = TestEnv::new();
    let old = env.acquire(&["x"]);
    let said = env.verb("release", &["--force", "--owner", &old, "x"]).exits_with(0).says_nothing();
    assert!(said.stdout.starts_with("was held as a mutex\n"), "{said:?}");
    env.verb("release", &["--force", "--owner", &old, "x"]).exits_with(1);
    let new = env.acquire(&["x"]);
    env.verb("release", &["--force", "--owner", &old, "x"]).exits_with(75).says("is not held by");
    env.verb("verify", &["x", "--owner", &new]).exits_with(0);
    // Of several holders, only that one.
    let readers = [(); 2].map(|()| env.acquire(&["-s", "y"]));
    env.verb("release", &["y", "--owner", &readers[0]]).exits_with(0);
    env.verb("verify", &["y", "--owner", &readers[1]]).exits_with(0);
}

#[test]
fn wait_and_a_watch_of_a_leader_outlast_a_server_that_is_stopped() {
    let env = TestEnv::new();
    let server = Server::start();
    let store = ["--store", &server.url()];
    let owner = env.acquire(&[&store[..], &["--ttl", "5m", "x"]].concat());
    let waiter = env.start(env.tenure([&["wait"], &store[..], &["x"]].concat()));
    let polls = || server.info_commandstats().get("pttl").copied().unwrap_or(0);
    let before = polls();
    waiter.eventually("it has an answer", || polls() > before + 4);
    let watch = env.start(env.tenure([&["leader", "--watch"], &store[..], &["api"]].concat()));
    env.elect_until_watched(&watch, &server.url(), "one");
    server.stop();
    waiter.eventually("it says so", || waiter.stderr().contains("still waiting"));
    watch.eventually("it says so", || watch.stderr().contains("still watching"));
    server.cont();
    env.elect(&server.url(), "two");
    watch.eventually("it goes on", || watch.stdout().contains("resigned: two"));
    assert!(!waiter.has_ended());
    env.verb("release", &[&store[..], &["--owner", &owner, "x"]].concat()).exits_with(0);
    waiter.wait().exits_with(0);
    watch.signal(Signal::INT);
    watch.wait().exits_with(130);
}

#[test]
fn a_wait_for_what_a_run_above_holds_is_refused() {
    let env = TestEnv::shared();
    let nested = format!("{} wait x; test $? = 75", BINARY);
    env.tenure_run(["x", "-c", &nested]).exits_with(0).says("which would wait for itself");
    let nested = format!("{} elect api true; test $? = 75", BINARY);
    env.run(env.tenure(["elect", "api", "-c", &nested])).exits_with(0).says("which would wait for itself");
}

#[test]
fn wait_ends_when_the_lock_is_free_and_takes_nothing() {
    let env = TestEnv::new();
    env.verb("wait", &["--store", &env.url(), "x"]).exits_with(69).says("does not exist");
    let owner = env.acquire(&["x"]);
    env.verb("wait", &["-w", "0", "x"]).exits_with(75).says("is held by");
    let waiter = env.start(env.tenure(["wait", "x"]));
    assert!(!waiter.has_ended());
    env.verb("release", &["x", "--owner", &owner]).exits_with(0);
    waiter.wait().exits_with(0).says_nothing();
    env.verb("wait", &["-w", "0", "x"]).exits_with(0).says_nothing();
    env.verb("status", &["x"]).exits_with(1);
}

#[test]
fn an_owner_that_no_one_gets_leaves_no_lock() {
    let env = TestEnv::new();
    let mut command = env.program("sh");
    command.args(["-c", r#""$0" acquire --ttl 1h x > /dev/full"#, BINARY]);
    env.run(command).exits_with(125).says("the lock was released");
    env.verb("status", &["x"]).exits_with(1);
    // A wait that was ended by a signal has taken nothing either.
    let owner = env.acquire(&["--fair", "x"]);
    let waiter = env.start(env.tenure(["acquire", "--fair", "x"]));
    waiter.eventually("it waits", || env.verb("status", &["x"]).stdout.contains("waiter"));
    waiter.signal(Signal::TERM);
    assert_eq!(waiter.wait().exits_with(143).stdout, "");
    env.verb("release", &["x", "--owner", &owner]).exits_with(0);
    env.verb("status", &["x"]).exits_with(1);
}

#[test]
fn a_closed_standard_output_takes_no_lock() {
    let env = TestEnv::new();
    let shell = |line: &str| {
        let mut command = env.program("sh");
        command.args(["-c", line, BINARY]);
        env.run(command)
    };
    for options in ["", "--json", "--hold"] {
        shell(&format!(r#""$0" acquire --ttl 1h {options} x >&-"#)).exits_with(125).says("is closed");
        env.verb("status", &["x"]).exits_with(1);
    }
    // Nobody needs the owner, because the end of the shell releases the lock.
    shell(r#""$0" acquire --hold --while-pid $$ x >&-; "$0" status x"#).exits_with(0);
    let owner = env.acquire(&["y"]);
    for full in [">&-", "> /dev/full"] {
        shell(&format!(r#""$0" renew --json --owner {owner} y {full}"#)).exits_with(125).says("cannot print");
    }
}

#[test]
fn a_reader_that_does_not_read_keeps_no_lock_and_no_command() {
    let env = TestEnv::new();
    let start = |args: &[&str]| {
        let (reader, writer) = full_pipe();
        let mut command = env.tenure(args);
        command.stdout(writer);
        (command.spawn().expect("a process"), reader)
    };
    for hold in [&[][..], &["--hold"]] {
        let (mut acquires, _reader) = start(&[&["acquire"], hold, &["--ttl", "1h", "x"]].concat());
        eventually("it has the lock", LIMIT, || env.verb("status", &["x"]).code() == Some(0));
        // It is granted before the keeper keeps it, and before the owner is printed.
        for _ in 0..2 {
            let _ = kill_process(Pid::from_child(&acquires), Signal::TERM);
        }
        assert_eq!(acquires.wait().expect("an end").code(), Some(143));
        env.verb("status", &["x"]).exits_with(1);
    }
    let (mut acquires, mut reader) = start(&["acquire", "--ttl", "300ms", "x"]);
    eventually("it has the lock", LIMIT, || env.verb("status", &["x"]).code() == Some(0));
    eventually("its lease is over", LIMIT, || env.verb("status", &["x"]).code() == Some(1));
    let reads = std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
    assert_eq!(acquires.wait().expect("an end").code(), Some(79));
    reads.join().expect("no panic").expect("all is read");

    let url = env.url();
    let _held = env.acquire(&["--store", &url, "--ttl", "1h", "y"]);
    env.run(env.tenure(["elect", "--store", &url, "e", "true"])).exits_with(0);
    for watch in [&["list", "--watch=0.1", "--json"][..], &["leader", "--watch", "e"], &["serve"]] {
        let listen: &[&str] = if watch == ["serve"] { &["--listen", "127.0.0.1:0"] } else { &[] };
        let (mut watches, _reader) = start(&[watch, listen, &["--store", &url]].concat());
        let pid = Pid::from_child(&watches);
        eventually("it catches signals", LIMIT, || {
            let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()));
            let caught = status.unwrap_or_default();
            let caught = caught.lines().find_map(|line| line.strip_prefix("SigCgt:\t"));
            let caught = caught.and_then(|mask| u64::from_str_radix(mask, 16).ok());
            caught.is_some_and(|mask| mask & 1 << (Signal::TERM.as_raw() - 1) != 0)
        });
        kill_process(pid, Signal::TERM).expect("it runs");
        assert_eq!(watches.wait().expect("an end").code(), Some(143), "{watch:?}");
    }
}

#[test]
fn what_cannot_be_right_is_refused_with_the_reason() {
    let env = TestEnv::new();
    env.verb("acquire", &["--reentrant", "x"]).exits_with(64).says("tenure run --reentrant");
    env.verb("acquire", &["--while-pid", "1", "x"]).exits_with(64).says("--hold");
    env.verb("acquire", &["--hold", "--while-pid", "-1", "x"]).exits_with(64).says("--while-pid");
    env.verb("acquire", &["--hold", "--while-pid", "999999999", "x"]).exits_with(64).says("no such process");
    #[cfg(tenure_portable)]
    env.verb("acquire", &["--fd", "0", "x"]).exits_with(64).says("use --hold --while-pid $$");
    env.verb("status", &["x"]).exits_with(1);
    for verb in ["renew", "verify", "release"] {
        env.verb(verb, &["x"]).exits_with(64).says("--owner");
        env.verb(verb, &["x", "--owner", "me"]).exits_with(64).says("user/label@host:pid/");
    }
    let owner = env.acquire(&["x"]);
    env.verb("renew", &["x", "--owner", &owner, "--ttl", "0"]).exits_with(64).says("50ms");
    env.verb("release", &["x", "--owner", &owner, "--json"]).exits_with(64).says("--force");
    let gone = ["--store", "redis://127.0.0.1:1"];
    for args in [
        &["acquire", "x"][..],
        &["renew", "x", "--owner", &owner],
        &["verify", "x", "--owner", &owner],
        &["release", "x", "--owner", &owner],
        &["wait", "x"],
    ] {
        let run = || env.run(env.tenure([args, &gone].concat())).exits_with(69);
        let said = env.within(Duration::from_millis(1_500), run);
        assert!(said.stdout.is_empty() && said.stderr.lines().count() == 1, "{said:?}");
    }
}
