//! The output: `-q`, `-v`, `--help`, `status` and `list`.

use std::fs;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::env::{LIMIT, TestEnv, UNTIL_END, full_pipe, now};

#[test]
fn help_and_version_go_to_standard_output() {
    let env = TestEnv::new();
    for args in [
        &["--help"][..],
        &["run", "--help"],
        &["status", "-h"],
        &["list", "--help"],
        &["release", "--help"],
        &["acquire", "--help"],
        &["--version"],
        &["help", "run"],
    ] {
        let said = env.run(env.tenure(args)).exits_with(0).says_nothing();
        assert!(said.stdout.contains("tenure"), "{said:?}");
    }
    let manual = env.run(env.tenure(["run", "--help"])).stdout;
    for word in ["--ttl", "-w", "79", "TENURE_FENCE", "USR1", "setuid", "Ctrl-Z"] {
        assert!(manual.contains(word), "{word}");
    }
    assert!(!manual.contains("__launch"));
    assert!(!env.run(env.tenure(["--help"])).stdout.contains("__keep"));
}

#[test]
fn the_long_help_has_the_manual_and_the_short_one_a_line_for_each_option() {
    let env = TestEnv::new();
    let said = |args: &[&str]| env.run(env.tenure(args)).exits_with(0).says_nothing().stdout;
    for (verb, long) in [("run", "runs CMD directly"), ("release", "whose holder is gone or stuck")] {
        let (full, short) = (said(&[verb, "--help"]), said(&[verb, "-h"]));
        let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(one_line(&full).contains(long), "{full}");
        assert!(!one_line(&short).contains(long) && short.len() < full.len(), "{short}");
        assert_eq!(said(&["help", verb]), full);
    }
    let short = said(&["run", "-h"]);
    let groups = ["Lock", "Waiting", "Command", "Output", "Store"];
    let places = groups.map(|group| short.find(&format!("\n{group}:\n")).expect(group));
    assert!(places.is_sorted(), "{short}");
    for code in ["64", "65", "69", "75", "79", "125", "126", "127"] {
        let line = said(&["run", "--help"]).lines().any(|line| line.trim_start().starts_with(code));
        assert!(line, "{code}");
    }
    for verb in ["run", "acquire", "renew", "verify", "release", "wait", "status", "list", "doctor", "stress"]
    {
        for help in ["-h", "--help"] {
            let text = said(&[verb, help]);
            let long = text.lines().find(|line| line.chars().count() > 100);
            assert!(long.is_none(), "{verb} {help}: {long:?}");
        }
    }
}

#[test]
fn verbose_says_who_is_waited_for_how_long_and_the_token() {
    let env = TestEnv::new();
    let holder = env.start_script(
        &[],
        "night job",
        "echo $TENURE_FENCE > fence; READY; while [ ! -e end ]; do sleep 0.02; done",
    );
    let waiter =
        env.start(env.tenure_run_command(["-v", "night job", "--", "sh", "-c", "echo $TENURE_FENCE"]));
    waiter.eventually("it says so", || waiter.stderr().ends_with('\n'));
    env.end();
    let said = waiter.wait().exits_with(0);
    let lines: Vec<&str> = said.stderr.lines().collect();
    let held_by = format!("pid {}", holder.pid().as_raw_nonzero());
    assert!(lines.len() == 2 && lines.iter().all(|line| line.starts_with("tenure: ")), "{said:?}");
    for word in ["waiting", "alice@", &held_by, "left", env.read("fence").trim(), &env.url()] {
        assert!(lines[0].contains(word), "{word}: {said:?}");
    }
    assert!(lines[1].contains(&env.url()), "{said:?}");
    assert!(lines[1].contains("`night job`") && lines[1].contains(said.stdout.trim()), "{said:?}");
    holder.wait().exits_with(0);
}

#[test]
fn status_tells_held_from_free() {
    let env = TestEnv::new();
    let free = format!("free\nstore: {}\n", env.url());
    assert_eq!(env.run(env.tenure(["status", "x"])).exits_with(1).says_nothing().stdout, free);
    let script = "echo $TENURE_FENCE > fence; READY; while [ ! -e end ]; do sleep 0.02; done";
    let holder = env.start_script(&["--ttl", "1h"], "x", script);
    let said = env.run(env.tenure(["status", "x"])).exits_with(0).says_nothing();
    let pid = format!("pid {}", holder.pid().as_raw_nonzero());
    let store = format!("\nstore: {}\n", env.url());
    for word in
        ["mutex", "holder: alice@", &pid, ", for 0.", "59m ", "left", env.read("fence").trim(), &store]
    {
        assert!(said.stdout.contains(word), "{word}: {said:?}");
    }
    env.end();
    holder.wait().exits_with(0);
    env.run(env.tenure(["status", "x"])).exits_with(1);
    env.run(env.tenure(["status", ""])).exits_with(64).says("name");
    env.run(env.tenure(["status"])).exits_with(64).says("<NAME>");
}

#[test]
fn list_has_a_line_for_each_lock_that_is_held() {
    let env = TestEnv::new();
    assert_eq!(env.run(env.tenure(["list"])).exits_with(0).says_nothing().stdout, "");
    let mut holders = Vec::new();
    for name in ["app:a", "app:b c\nd", "other"] {
        holders.push(env.start_script(&["--prefix", "p:"], name, "READY; exec sleep 30"));
    }
    let names = |args: &[&str]| {
        let said = env.run(env.tenure(["list"].iter().chain(args))).exits_with(0).says_nothing().stdout;
        let mut names: Vec<String> =
            said.lines().map(|line| line.split('\t').next().unwrap().into()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&[]), ["p:app:a", "p:app:b c\\nd", "p:other"]);
    assert_eq!(names(&["--prefix", "p:"]), ["app:a", "app:b c\\nd", "other"]);
    assert_eq!(names(&["--prefix", "p:", "app:"]), ["app:a", "app:b c\\nd"]);
    assert_eq!(names(&["nothing"]), [""; 0]);
    for holder in holders {
        holder.signal(Signal::TERM);
        holder.wait().exits_with(143);
    }
    assert_eq!(names(&[]), [""; 0]);
}

/// The lines of `--json`.
fn json(env: &TestEnv, code: i32, args: &[&str]) -> Vec<Value> {
    let said = env.run(env.tenure(args)).exits_with(code).says_nothing();
    said.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn json_has_all_that_is_said_of_a_lock() {
    let env = TestEnv::new();
    let free = json!({ "name": "x", "store": env.url(), "held": false, "kind": null, "permits": null, "holders": [], "waiters": [], "unlisted": 0, "waiting": 0, "leader": null, "last_run": null, "uses_trouble": null });
    assert_eq!(json(&env, 1, &["status", "--json", "x"]), [free]);
    let script = "echo $TENURE_FENCE > fence; echo $TENURE_OWNER > owner; READY; exec sleep 30";
    let holder = env.start_script(&["--ttl", "1h", "--slots", "3", "--take", "2"], "x", script);
    let waiter = env.start(env.tenure_run_command(["--slots", "3", "--take", "3", "x", "--", "true"]));
    waiter.eventually("it waits", || {
        json(&env, 0, &["status", "--json", "x"])[0]["waiters"].as_array().expect("a list").len() == 1
    });
    let [lock] = &json(&env, 0, &["status", "--json", "x"])[..] else { panic!("one line") };
    assert_eq!(
        (&lock["name"], &lock["kind"], &lock["permits"]),
        (&json!("x"), &json!("semaphore"), &json!(3))
    );
    let one = &lock["holders"][0];
    let (fence, owner) = (env.read("fence"), env.read("owner"));
    assert_eq!(one["fence"].to_string(), fence.trim());
    assert_eq!((&one["owner"], &one["weight"]), (&json!(owner.trim()), &json!(2)));
    assert_eq!((&one["foreign"], &one["pid"]), (&json!(null), &json!(holder.pid().as_raw_nonzero().get())));
    let since = one["since_ms"].as_u64().expect("a time");
    assert!((since * 1_000).abs_diff(fence.trim().parse().expect("a token")) < 1_000);
    assert!((3_500_000..=3_600_000).contains(&one["remaining_ms"].as_u64().expect("a lease")), "{one}");
    assert_eq!(lock["waiters"][0]["weight"], json!(3));
    assert_eq!(json(&env, 0, &["list", "--json"])[0]["holders"][0]["owner"], one["owner"]);
    for running in [waiter, holder] {
        running.signal(Signal::TERM);
        running.wait().exits_with(143);
    }
}

#[test]
fn a_forced_release_says_whose_it_was_and_lets_the_next_in() {
    let env = TestEnv::new();
    env.run(env.tenure(["release", "x"])).exits_with(64).says("--force");
    let free = format!("free\nstore: {}\n", env.url());
    assert_eq!(env.run(env.tenure(["release", "--force", "x"])).exits_with(1).says_nothing().stdout, free);
    let holder = env.start_script(&["--ttl", "1s"], "x", "READY; exec sleep 30");
    let said = env.run(env.tenure(["release", "--force", "x"])).exits_with(0).says_nothing().stdout;
    let pid = format!("pid {}", holder.pid().as_raw_nonzero());
    assert!(said.starts_with("was held as a mutex\nholder: alice@") && said.contains(&pid), "{said}");
    env.tenure_run(["-n", "x", "--", "true"]).exits_with(0);
    holder.wait().exits_with(79).says("lost");
    let holder = env.start_script(&["--fair", "--ttl", "1s"], "x", "READY; exec sleep 30");
    let waiter = env.start(env.tenure_run_command(["--fair", "x", "--", "sh", "-c", "exit 7"]));
    waiter.eventually("it waits", || json(&env, 0, &["status", "--json", "x"])[0]["waiters"] != json!([]));
    assert_eq!(json(&env, 0, &["release", "--force", "--json", "x"])[0]["kind"], json!("fair mutex"));
    waiter.wait().exits_with(7);
    holder.wait().exits_with(79);
}

#[test]
fn a_holder_is_told_by_user_host_process_and_label() {
    let env = TestEnv::new();
    let label = "https://ci/job/7?a=b#c d";
    let holder = env.start_script(&["--fair", "--label", label], "x", "READY; exec sleep 30");
    let pid = holder.pid().as_raw_nonzero().get();
    let who =
        format!("@{} pid {pid} \"{label}\", for ", rustix::system::uname().nodename().to_string_lossy());
    env.tenure_run(["-n", "--fair", "x", "true"]).exits_with(75).says("lock `x` is busy: alice@").says(&who);
    let waiter = env.start(env.tenure_run_command(["-v", "--fair", "x", "true"]));
    waiter.eventually("it waits", || json(&env, 0, &["status", "--json", "x"])[0]["waiters"] != json!([]));
    let told = &json(&env, 0, &["status", "--json", "x"])[0]["holders"][0];
    assert_eq!((&told["user"], &told["label"], &told["pid"]), (&json!("alice"), &json!(label), &json!(pid)));
    holder.signal(Signal::TERM);
    holder.wait().exits_with(143);
    waiter.wait().exits_with(0);
    // The command line of the run appears nowhere.
    let holder = env.start_script(&[], "x", ": secret; READY; exec sleep 30");
    let told = env.run(env.tenure(["status", "--json", "x"])).exits_with(0).stdout;
    assert!(!told.contains("secret") && told.contains(r#""label":"""#), "{told}");
    drop(holder);
    let long = "x".repeat(257);
    env.tenure_run(["--label", &long, "x", "true"]).exits_with(64).says("256 bytes");
}

#[test]
fn standard_error_may_be_closed() {
    let env = TestEnv::new();
    let mut command = env.program("sh");
    command.args([
        "-c",
        r#""$0" run -v x -- sh -c 'exit 3' 2>&- | cat; "$0" run -v x -- sh -c 'exit 4' 2>&-"#,
        crate::env::BINARY,
    ]);
    let said = env.run(command).exits_with(4);
    assert!(said.took < Duration::from_secs(5));
}

/// Runs a command whose standard error is full and not read; returns its code. `meanwhile` gets its pid.
fn unread(mut command: Command, mut meanwhile: impl FnMut(Pid) -> bool) -> Option<i32> {
    let (_reader, writer) = full_pipe();
    let mut child = command.stdout(Stdio::null()).stderr(writer).spawn().expect("a process");
    let (end, mut is_done) = (now() + LIMIT, false);
    loop {
        if let Some(status) = child.try_wait().expect("a status") {
            return status.code();
        }
        is_done = is_done || meanwhile(Pid::from_child(&child));
        if now() > end {
            child.kill().and_then(|()| child.wait()).expect("it was ours to kill");
            return None;
        }
        sleep(Duration::from_millis(2));
    }
}

#[test]
fn output_that_is_not_read_blocks_no_run() {
    let env = TestEnv::new();
    let run = |args: &[&str]| env.tenure_run_command(args);
    assert_eq!(unread(run(&["-v", "x", "--", "sh", "-c", "exit 3"]), |_| false), Some(3));

    let holder = env.start_script(&[], "x", UNTIL_END);
    assert_eq!(unread(run(&["-n", "x", "--", "true"]), |_| false), Some(75));
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let waiter = run(&["--fair", "-v", "y", "--", "touch", "ran"]);
        let held = env.start_script(&["--fair"], "y", UNTIL_END);
        let ended = unread(waiter, |pid| {
            let waits = env.run(env.tenure(["status", "y"])).stdout.contains("waiter");
            waits && kill_process(pid, signal).is_ok()
        });
        assert_eq!(ended, Some(code));
        drop(held);
    }
    env.end();
    holder.wait().exits_with(0);
    assert!(!env.path("ran").exists());
}

#[test]
fn a_release_with_a_token_never_ends_the_hold_of_a_successor() {
    let env = TestEnv::new();
    let script = "echo $TENURE_FENCE > fence; READY; while [ ! -e end ]; do sleep 0.02; done";
    let kinds: [&[&str]; 4] = [&[], &["--fair"], &["--reentrant"], &["--slots", "2"]];
    for kind in kinds {
        let start = || env.start_script(&[kind, &["--ttl", "1h"]].concat(), "x", script);
        let first = start();
        let old = env.read("fence").trim().to_owned();
        let forced = |token: &str| env.run(env.tenure(["release", "--force", "--token", token, "x"]));
        let said = forced(&old).exits_with(0).says_nothing();
        assert!(said.stdout.starts_with("was held as a ") && said.stdout.contains(&old), "{said:?}");
        assert!(said.stdout.contains("its holder may go on for up to 59m "), "{said:?}");
        let second = start();
        let said = forced(&old).exits_with(75).says(&format!("is not held with token {old}"));
        let pid = format!("pid {}", second.pid().as_raw_nonzero());
        assert!(said.stderr.contains(&pid) && said.stdout.is_empty(), "{said:?}");
        let held = env.run(env.tenure(["status", "x"])).exits_with(0).stdout;
        assert!(held.contains(&pid), "{held}");
        env.end();
        first.wait().exits_with(79);
        second.wait().exits_with(0);
        fs::remove_file(env.path("end")).unwrap();
        assert!(forced(&old).exits_with(1).says_nothing().stdout.starts_with("free\n"));
    }
    let release = |args: &[&str]| env.run(env.tenure([&["release"][..], args].concat()));
    release(&["--token", "1", "x"]).exits_with(64).says("--force");
    release(&["--force", "--token", "x", "x"]).exits_with(64).says("--token");
    release(&["--force", "--foreign", "--token", "1", "x"]).exits_with(64).says("--foreign");
}
