//! `tenure list` with a header, sorted, filtered and watched.

use rustix::process::Signal;
use serde_json::Value;
use tenure_testkit::servers::{Postgres, Server};

use crate::env::{BINARY, Running, TestEnv};
use crate::tmux::Tmux;

fn hold(env: &TestEnv, options: &[&str], name: &str) -> Running {
    env.start_script(options, name, "READY; exec sleep 100")
}

/// The listed names, in order.
fn names(env: &TestEnv, args: &[&str]) -> Vec<String> {
    let said = env.run(env.tenure([&["list"], args].concat())).exits_with(0).says_nothing();
    said.stdout.lines().map(|line| line.split('\t').next().expect("a name").to_owned()).collect()
}

#[test]
fn a_list_is_sorted_and_filtered() {
    let env = TestEnv::new();
    let held = [
        hold(&env, &["--fair", "--ttl", "1h"], "b:queue"),
        hold(&env, &["--slots", "3", "--take", "2", "--ttl", "3h"], "a:render"),
        hold(&env, &["--ttl", "2h", "--label", "https://ci/job/7"], "c:deploy"),
    ];
    let waiter = env.start(env.tenure_run_command(["--fair", "b:queue", "--", "true"]));
    waiter.eventually("it waits", || names(&env, &["--filter", "waiting"]) == ["b:queue"]);
    for (args, expected) in [
        (&["--sort", "name"][..], &["a:render", "b:queue", "c:deploy"][..]),
        (&["--sort", "waiters"], &["b:queue", "a:render", "c:deploy"]),
        (&["--sort", "age"], &["b:queue", "a:render", "c:deploy"]),
        (&["--sort", "left"], &["b:queue", "c:deploy", "a:render"]),
        (&["--filter", "kind=semaphore"], &["a:render"]),
        (&["--filter", "kind=fair"], &["b:queue"]),
        (&["--sort", "name", "--filter", "kind=mutex"], &["b:queue", "c:deploy"]),
        (&["--filter", "name=:q"], &["b:queue"]),
        (&["--filter", "label=//ci/"], &["c:deploy"]),
        (&["--filter", "user=alice", "--filter", "kind=semaphore"], &["a:render"]),
        (&["--filter", "user=bob"], &[]),
        (&["--filter", "foreign"], &[]),
        (&["--filter", "host=no-such-host"], &[]),
    ] {
        assert_eq!(names(&env, args), expected, "{args:?}");
    }
    let pid = format!("pid={}", held[1].pid().as_raw_nonzero());
    let host = format!("host={}", rustix::system::uname().nodename().to_string_lossy());
    assert_eq!(names(&env, &["--filter", &pid, "--filter", &host, "--filter", "name=a"]), ["a:render"]);
    let said = env.run(env.tenure(["list", "a:"])).exits_with(0).stdout;
    assert!(said.ends_with("\t0\t2/3\n"), "{said}");
    let help = env.run(env.tenure(["list", "--help"])).exits_with(0).stdout;
    let columns = help.split_once("a line of ").and_then(|(_, rest)| rest.split_once("separated by"));
    let columns = columns.expect("the columns").0.replace(" and", ",");
    assert_eq!(columns.matches(',').count(), said.split('\t').count(), "{columns}");
    for wrong in ["", "held", "pid=x", "owner=1"] {
        env.run(env.tenure(["list", "--filter", wrong])).exits_with(64).says("host=TEXT");
    }
    env.run(env.tenure(["list", "--sort", "nmae"])).exits_with(64).says("did you mean 'name'?");
}

#[test]
fn a_list_on_a_terminal_has_a_header_and_no_line_is_wrapped() {
    let env = TestEnv::new();
    let _held = [hold(&env, &[], "deploy"), hold(&env, &[], &"long".repeat(60))];
    let terminal = Tmux::start(&env, 80, 24, "$TENURE list --sort name; echo end");
    let screen = terminal.expect("end");
    assert!(
        screen[0].starts_with("NAME  ") && screen[0].ends_with("KIND             PERMITS  WAIT  HOLDERS")
    );
    assert!(screen[1].starts_with("deploy  ") && screen[2].starts_with("longlong"), "{screen:?}");
    assert_eq!(screen[3], "end", "{screen:?}");
    drop(terminal);
    let terminal = Tmux::start(&env, 80, 24, "trap : INT; $TENURE list --watch=100ms; echo code $?");
    let two = terminal.expect("2 locks held in file:");
    assert!(two[0].starts_with("2 locks"), "{two:?}");
    let more = hold(&env, &[], "more");
    terminal.expect("3 locks held");
    drop(more);
    terminal.expect("2 locks held");
    terminal.keys(&["C-c"]);
    terminal.expect("code 130");
}

#[test]
fn a_watched_list_tells_what_changes_hands_and_what_becomes_free() {
    let env = TestEnv::new();
    let _other = hold(&env, &[], "other");
    let lines = env.start(env.tenure(["list", "--watch=50ms", "x"]));
    let objects = env.start(env.tenure(["list", "--watch=50ms", "--json", "x"]));
    for turn in 1..=2 {
        let held = hold(&env, &[], "x");
        lines.eventually("it is told", || lines.stdout().matches("x\tmutex\t").count() == turn);
        objects.eventually("it is told", || objects.stdout().matches("\"held\":true").count() == turn);
        held.signal(Signal::TERM);
        held.wait().exits_with(143);
        lines.eventually("its end is told", || lines.stdout().matches("x\tfree\n").count() == turn);
        objects.eventually("its end is told", || objects.stdout().matches("\"held\":false").count() == turn);
    }
    assert!(!lines.stdout().contains("other"));
    for running in [lines, objects] {
        running.signal(Signal::INT);
        let said = running.wait().exits_with(130).says_nothing();
        assert_eq!(said.stdout.lines().count(), 4, "{said:?}");
        let is_json = said.stdout.starts_with('{');
        assert!(!is_json || said.stdout.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()));
    }
}

#[test]
fn a_watched_list_ends_when_nobody_reads_it_any_more() {
    let env = TestEnv::new();
    let _held = hold(&env, &[], "x");
    let mut watched = env.program("bash");
    watched.args(["-c", "\"$0\" list --watch=50ms | head -n 1", BINARY]);
    let said = env.run(watched).exits_with(0);
    assert!(said.stdout.starts_with("x\tmutex\t"), "{said:?}");
}

#[test]
fn a_watched_list_tells_that_its_store_hangs_and_goes_on_soon() {
    let (env, server) = (TestEnv::new(), Server::start());
    let url = server.url();
    let list = env.start(env.tenure(["list", "--store", &url, "--watch=100ms"]));
    let store = ["--store", url.as_str()];
    let first = hold(&env, &store, "x");
    list.eventually("it is told", || list.stdout().contains("x\tmutex\t"));
    server.stop();
    list.eventually("it says so", || list.stderr().contains("no answer from the store for "));
    std::thread::sleep(std::time::Duration::from_secs(3));
    server.cont();
    first.signal(Signal::TERM);
    first.wait().exits_with(143);
    // Within a second, and not after fifty times the silence.
    list.eventually("it goes on", || list.stdout().contains("x\tfree\n"));
    list.signal(Signal::INT);
    list.wait().exits_with(130);
}

#[test]
fn processes_that_wait_for_a_mutex_are_counted_or_unknown() {
    let (env, redis, postgres) = (TestEnv::new(), Server::start(), Postgres::start());
    for (url, expected) in [(env.url(), "1"), (redis.url(), "1"), (postgres.url("waits"), "-")] {
        let store = ["--store", url.as_str()];
        let held = hold(&env, &store, "x");
        let waiter = env.start(env.tenure_run_command([&store[..], &["-v", "x", "--", "true"]].concat()));
        waiter.eventually("it waits", || waiter.stderr().contains("waiting for"));
        let listed = || env.run(env.tenure([&["list"], &store[..]].concat())).exits_with(0).stdout;
        waiter.eventually("it is counted", || listed().ends_with(&format!("\t{expected}\t-\n")));
        let said = env.run(env.tenure([&["list", "--json"], &store[..]].concat())).exits_with(0).stdout;
        let lock: Value = serde_json::from_str(&said).expect("JSON");
        assert_eq!(lock["waiting"], expected.parse::<u64>().map_or(Value::Null, Value::from), "{lock}");
        let status = env.run(env.tenure([&["status"], &store[..], &["x"]].concat())).exits_with(0).stdout;
        assert_eq!(status.contains("\nwaiting: 1\n"), expected == "1", "{status}");
        held.signal(Signal::TERM);
        held.wait().exits_with(143);
        waiter.wait().exits_with(0);
    }
}

#[test]
fn characters_that_reorder_text_are_escaped() {
    let env = TestEnv::new();
    let _held = hold(&env, &["--label", "l\u{2066}"], "a\u{202e}b\u{200f}");
    let said = env.run(env.tenure(["list"])).exits_with(0).stdout;
    assert!(said.starts_with("a\\u{202e}b\\u{200f}\t") && said.contains("l\\u{2066}"), "{said:?}");
    let busy = env.tenure_run(["-n", "a\u{202e}b\u{200f}", "true"]).exits_with(75);
    assert!(!busy.stderr.contains('\u{202e}') && busy.stderr.contains("\\u{202e}"), "{busy:?}");
}
