//! Every kind of lock from the command line, in a directory.

use std::fs;

use rustix::process::Signal;
use tenure_testkit::servers::eventually;

use crate::env::{BINARY, LIMIT, Running, TestEnv, UNTIL_END, is_alive};

impl TestEnv {
    /// The lines of `status`.
    fn status(&self, name: &str) -> Vec<String> {
        let said = self.run(self.tenure(["status", name])).stdout;
        said.lines().filter(|line| !line.starts_with("store: ")).map(str::to_owned).collect()
    }

    /// Number of lines of `status` with this prefix.
    fn count(&self, name: &str, role: &str) -> usize {
        self.status(name).iter().filter(|line| line.starts_with(role)).count()
    }

    /// Starts a run that waits behind this many others.
    fn start_waiter(&self, options: &[&str], name: &str, script: &str, before: usize) -> Running {
        let mut command = self.tenure_run_command(options);
        command.args([name, "--", "sh", "-c", script]);
        let waiter = self.start(command);
        waiter.eventually("it waits", || self.count(name, "waiter") == before + 1);
        waiter
    }
}

#[test]
fn who_waits_for_a_fair_lock_is_served_in_the_order_of_coming() {
    let env = TestEnv::new();
    let holder = env.start_script(&["--fair"], "x", UNTIL_END);
    let waiters = [0, 1, 2, 3]
        .map(|number| env.start_waiter(&["--fair"], "x", &format!("echo {number} >> order"), number));
    env.tenure_run(["--fair", "-n", "x", "--", "touch", "ran"]).exits_with(75).says("busy");
    env.end();
    holder.wait().exits_with(0);
    waiters.into_iter().for_each(|waiter| drop(waiter.wait().exits_with(0).says_nothing()));
    assert_eq!(env.read("order"), "0\n1\n2\n3\n");
    assert!(!env.path("ran").exists());
}

#[test]
fn a_killed_waiter_and_a_killed_holder_are_passed_at_once() {
    let env = TestEnv::new();
    let holder = env.start_script(&["--fair", "--ttl", "1h"], "x", "READY; exec sleep 30");
    let command = env.pid("up");
    let waiters = [0, 1].map(|number| env.start_waiter(&["--fair", "--ttl", "1h"], "x", "exit 7", number));
    waiters[0].signal(Signal::KILL);
    waiters[1].eventually("its place is free", || env.count("x", "waiter") == 1);
    holder.signal(Signal::KILL);
    let [_, second] = waiters;
    second.wait().exits_with(7);
    assert!(!is_alive(command), "it was let in before the killed one's command had ended");
}

#[test]
fn readers_share_and_a_writer_is_alone() {
    let env = TestEnv::new();
    let reader = env.start_script(&["-s"], "x", UNTIL_END);
    env.tenure_run(["-ns", "x", "--", "true"]).exits_with(0);
    env.tenure_run(["-nx", "x", "--", "touch", "ran"]).exits_with(75).says("busy");
    let writer = env.start_waiter(&["-x"], "x", "ls end && echo written", 0);
    // Behind a waiting writer.
    env.tenure_run(["-ns", "x", "--", "touch", "ran"]).exits_with(75);
    env.end();
    assert!(writer.wait().exits_with(0).stdout.contains("written"));
    reader.wait().exits_with(0);
    fs::remove_file(env.path("end")).unwrap();
    let writer = env.start_script(&["-x"], "x", UNTIL_END);
    for options in ["-ns", "-nx"] {
        env.tenure_run([options, "x", "--", "touch", "ran"]).exits_with(75).says("busy");
    }
    env.end();
    writer.wait().exits_with(0);
    assert!(!env.path("ran").exists());
}

#[test]
fn slots_are_taken_as_many_as_asked_for() {
    let env = TestEnv::new();
    let holder = env.start_script(&["--slots", "3", "--take", "2"], "x", UNTIL_END);
    env.tenure_run(["-n", "--slots", "3", "--take", "2", "x", "--", "touch", "ran"])
        .exits_with(75)
        .says("busy");
    env.tenure_run(["-n", "--slots", "3", "x", "--", "true"]).exits_with(0);
    env.tenure_run(["-n", "--slots", "3", "--take", "4", "x", "--", "touch", "ran"])
        .exits_with(64)
        .says("expected 1 to 3");
    env.end();
    holder.wait().exits_with(0);
    env.tenure_run(["-n", "--slots", "3", "--take", "3", "x", "--", "true"]).exits_with(0);
    assert!(!env.path("ran").exists());
}

#[test]
fn a_reentrant_lock_is_entered_again_from_inside_a_run() {
    let env = TestEnv::new();
    let script = r#""$BINARY" run -n --reentrant --owner "$TENURE_OWNER" x -- sh -c '
            echo "$TENURE_OWNER $TENURE_FENCE"; "$BINARY" status x | grep "2 times" > twice' || exit 9
        "$BINARY" run -n --reentrant x -- touch ran; echo "$TENURE_OWNER $TENURE_FENCE $?""#;
    let mut command = env.tenure_run_command(["--reentrant", "x", "--", "sh", "-c", script]);
    command.env("BINARY", BINARY);
    let said = env.run(command).exits_with(0).says_among_others("busy");
    let lines: Vec<&str> = said.stdout.lines().collect();
    assert_eq!(format!("{} 75", lines[0]), lines[1], "one owner, one token: {said:?}");
    assert!(!env.read("twice").is_empty() && !env.path("ran").exists());
    assert_eq!(env.status("x"), ["free"]);
}

#[test]
fn of_two_runs_of_one_owner_the_killed_one_ends_its_own_hold() {
    let env = TestEnv::new();
    let owner = tenure::Owner::new("both").unwrap().to_string();
    let options = ["--reentrant", "--ttl", "1h", "--owner", &owner];
    let first = env.start_script(&options, "x", "READY; exec sleep 30");
    let second = env.start_script(&options, "x", UNTIL_END);
    assert!(env.status("x")[1].contains("2 times"));
    first.signal(Signal::KILL);
    second.eventually("one hold is left", || !env.status("x")[1].contains("2 times"));
    env.tenure_run(["-n", "--reentrant", "x", "--", "true"]).exits_with(75);
    env.end();
    second.wait().exits_with(0);
    env.tenure_run(["-n", "--reentrant", "x", "--", "true"]).exits_with(0);
}

#[test]
fn several_locks_are_held_all_or_none() {
    let env = TestEnv::new();
    let options = ["--fair", "--also", "c", "--also", "a"];
    let holder = env.start_script(&options, "b", UNTIL_END);
    for name in ["a", "b", "c"] {
        env.tenure_run(["--fair", "-n", name, "--", "true"]).exits_with(75);
        assert_eq!(env.count(name, "holder"), 1);
    }
    env.tenure_run(["--fair", "-n", "--also", "c", "0", "--", "touch", "ran"]).exits_with(75);
    assert_eq!(env.status("0"), ["free"]);
    let script = r#"echo "$TENURE_NAME""#;
    let waiter = env.start_waiter(&["--fair", "--also", "0"], "a", script, 0);
    assert_eq!(env.count("0", "holder"), 1, "in the order of their names");
    env.end();
    holder.wait().exits_with(0);
    assert_eq!(waiter.wait().exits_with(0).stdout, "a\n");
    for name in ["0", "a", "b", "c"] {
        assert_eq!(env.status(name), ["free"]);
    }
    assert!(!env.path("ran").exists());
}

#[test]
fn a_name_in_use_as_another_kind_is_told() {
    let env = TestEnv::new();
    let kinds: [(&[&str], &str); 6] = [
        (&[], "mutex"),
        (&["--fair"], "fair mutex"),
        (&["--reentrant"], "reentrant mutex"),
        (&["-s"], "read-write lock"),
        (&["--slots", "2"], "semaphore"),
        (&["--slots", "3"], "semaphore"),
    ];
    for (held, kind) in kinds {
        let holder = env.start_script(held, "x", UNTIL_END);
        for (asked, _) in kinds.iter().filter(|(asked, _)| *asked != held) {
            let said = env.tenure_run(asked.iter().chain(&["-n", "x", "--", "touch", "ran"]));
            let said = said.exits_with(65).says(kind);
            if let [_, slots] = held {
                assert!(said.stderr.contains(slots), "{said:?}");
            }
        }
        env.end();
        holder.wait().exits_with(0);
        fs::remove_file(env.path("end")).unwrap();
    }
    assert!(!env.path("ran").exists());
}

#[test]
fn what_is_no_kind_is_told_what_is_wrong() {
    let env = TestEnv::new();
    let owner = tenure::Owner::new("x").unwrap().to_string();
    let wrong: [(&[&str], &str); 17] = [
        (&["--take", "1"], "--slots"),
        (&["--slots", "0"], "permits"),
        (&["--slots", "1048577"], "permits"),
        (&["--slots", "-1"], "--slots"),
        (&["--slots", "2", "--take", "0"], "permits"),
        (&["--slots", "2", "--take", "3"], "permits"),
        (&["--owner", &owner], "--reentrant"),
        (&["--reentrant", "--owner", "me"], "user/label@host:pid"),
        (&["--fair", "-s"], "--shared"),
        (&["-s", "-x"], "--exclusive"),
        (&["--slots", "2", "--reentrant"], "--reentrant"),
        (&["--also", "x"], "twice"),
        (&["--unfenced", "--fair"], "--unfenced"),
        (&["--unfenced", "-s"], "--unfenced"),
        (&["--unfenced", "-x"], "--unfenced"),
        (&["--unfenced", "--slots", "2"], "--unfenced"),
        (&["--unfenced", "--reentrant"], "--unfenced"),
    ];
    for (options, says) in wrong {
        env.tenure_run(options.iter().chain(&["x", "--", "touch", "ran"])).exits_with(64).says(says);
    }
    env.tenure_run(["--also", "y", "--also", "y", "x", "--", "touch", "ran"]).exits_with(64).says("twice");
    assert!(!env.path("ran").exists());
}

#[test]
fn status_shows_the_kind_every_holder_and_the_waiters_in_order() {
    let env = TestEnv::new();
    let slots = |take| ["--slots", "5", "--take", take];
    let holders = ["2", "1"].map(|take| env.start_script(&slots(take), "x", UNTIL_END));
    let waiters = ["3", "1"].into_iter().enumerate();
    let waiters: Vec<_> =
        waiters.map(|(number, take)| env.start_waiter(&slots(take), "x", "true", number)).collect();
    let lines = env.status("x");
    let pid = |running: &Running| format!("pid {},", running.pid().as_raw_nonzero());
    let expected = [
        (String::new(), "held as a semaphore of 5"),
        (pid(&holders[0]), "holder: alice@"),
        (pid(&holders[1]), "holder: alice@"),
        (pid(&waiters[0]), "waiter: alice@"),
        (pid(&waiters[1]), "waiter: alice@"),
    ];
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    for ((pid, begin), line) in expected.iter().zip(&lines) {
        assert!(line.starts_with(begin) && line.contains(pid), "{lines:#?}");
    }
    for (line, permits) in lines[1..].iter().zip(["2 permits", "1 permit", "3 permits", "1 permit"]) {
        assert!(line.ends_with(permits), "{lines:#?}");
    }
    let list = env.run(env.tenure(["list"])).exits_with(0).stdout;
    assert!(list.starts_with("x\tsemaphore\t") && list.matches("pid").count() == 2, "{list}");
    env.end();
    for run in holders.into_iter().chain(waiters) {
        run.wait().exits_with(0);
    }
}

#[test]
fn status_tells_readers_from_writers() {
    let env = TestEnv::new();
    let reader = env.start_script(&["-s"], "x", UNTIL_END);
    let writer = env.start_waiter(&["-x"], "x", "true", 0);
    let lines = env.status("x");
    assert_eq!((lines.len(), lines[0].as_str()), (3, "held as a read-write lock"), "{lines:#?}");
    assert!(lines[1].starts_with("holder") && lines[1].ends_with(", to read"), "{lines:#?}");
    assert!(lines[2].starts_with("waiter") && lines[2].ends_with(", to write"), "{lines:#?}");
    env.end();
    reader.wait().exits_with(0);
    writer.wait().exits_with(0);
}

#[test]
fn an_owner_and_a_name_may_begin_with_a_hyphen() {
    let env = TestEnv::new();
    let script = r#"echo "$TENURE_OWNER"; exec "$BINARY" run -n --reentrant --owner "$TENURE_OWNER" "$TENURE_NAME" -- sh -c 'echo "$TENURE_OWNER"'"#;
    let mut command = env.tenure_run_command(["--reentrant", "/var/lock/x", "--", "sh", "-c", script]);
    command.env("BINARY", BINARY);
    let said = env.run(command).exits_with(0).says_nothing();
    let lines: Vec<&str> = said.stdout.lines().collect();
    assert!(lines.len() == 2 && lines[0] == lines[1] && lines[0].starts_with("alice@"), "{said:?}");

    let owner = format!("-{}", tenure::Owner::new("x").unwrap());
    env.tenure_run(["--reentrant", "--owner", &owner, "x", "--", "true"]).exits_with(0).says_nothing();
    env.tenure_run(["--also", "-y", "x", "--", "true"]).exits_with(0).says_nothing();
}

#[test]
fn of_several_locks_those_that_others_hold_are_named() {
    let env = TestEnv::new();
    let holder = env.start_script(&["--also", "d"], "b", UNTIL_END);
    let pid = format!("pid {}", holder.pid().as_raw_nonzero());
    let run = |options: &[&str]| {
        let args = [options, &["--also", "b", "--also", "c", "a", "--", "true"]].concat();
        env.tenure_run(&args)
    };
    run(&["-n"]).exits_with(75).says("lock `b` is busy");
    run(&["-n", "--also", "d"])
        .exits_with(75)
        .says("lock `d` is busy: alice@")
        .says("; and lock `b` is busy: alice@");
    // It holds `a` meanwhile, and does not count as waiting for itself.
    let said = run(&["-v", "-w", "0.5"]).exits_with(75);
    let lines: Vec<&str> = said.stderr.lines().collect();
    assert!(lines.len() == 2 && lines[1].contains("lock `b` is busy"), "{said:?}");
    assert!(lines[0].contains("waiting for lock `b`: alice@") && lines[0].contains(&pid), "{said:?}");
    env.end();
    holder.wait().exits_with(0);

    // Holds of others do not always block it.
    fs::remove_file(env.path("end")).unwrap();
    let reader = env.start_script(&["-s"], "r", UNTIL_END);
    let writer = env.start_script(&["-x"], "w", UNTIL_END);
    env.tenure_run(["-ns", "--also", "w", "r", "--", "true"]).exits_with(75).says("tenure: lock `w` is busy");
    env.end();
    [reader, writer].into_iter().for_each(|running| drop(running.wait().exits_with(0)));
}

#[test]
fn a_run_that_would_wait_for_itself_says_so() {
    let env = TestEnv::new();
    let nested = |outer: &[&str], inner: &[&str]| {
        let inner = [&[BINARY, "run"][..], inner, &["true"]].concat();
        env.tenure_run([outer, &["--"], &inner].concat())
    };
    let cases: [(&[&str], &[&str]); 6] = [
        (&["x"], &["x"]),
        (&["--also", "y", "x"], &["y"]),
        (&["y"], &["--also", "y", "x"]),
        (&["--fair", "x"], &["--fair", "x"]),
        (&["-s", "x"], &["-x", "x"]),
        (&["--slots", "2", "x"], &["--slots", "2", "--take", "2", "x"]),
    ];
    for (outer, inner) in cases {
        let said = nested(outer, inner).exits_with(75);
        assert!(said.stderr.lines().next().unwrap().contains("would wait for itself"), "{said:?}");
        let said = nested(outer, &[&["-E", "3", "-q"], inner].concat()).exits_with(3);
        assert_eq!(said.stderr, "", "{said:?}");
        let said = nested(outer, &[&["-w", "0.4"], inner].concat()).exits_with(75);
        assert!(said.stderr.lines().next().unwrap().contains("would wait for itself"), "{said:?}");
    }
    // Through another run in between.
    let deep = [BINARY, "run", "z", "--", BINARY, "run", "x", "true"];
    env.tenure_run([&["x", "--"][..], &deep].concat()).exits_with(75);
    // Compatible requests do not wait.
    let fits: [(&[&str], &[&str]); 3] =
        [(&["-s", "x"], &["-s", "x"]), (&["--slots", "2", "x"], &["--slots", "2", "x"]), (&["x"], &["y"])];
    for (outer, inner) in fits {
        nested(outer, inner).exits_with(0).says_nothing();
    }
    let script = r#""$0" run --reentrant --owner "$TENURE_OWNER" x -- true"#;
    env.tenure_run(["--reentrant", "x", "--", "sh", "-c", script, BINARY]).exits_with(0).says_nothing();
}

#[test]
fn what_outlives_its_run_waits_for_the_next_holder_as_any_other() {
    let env = TestEnv::new();
    let script =
        r#"(while [ ! -e go ]; do sleep 0.02; done; "$0" run -v x -- true 2> said; echo $? > code) & :"#;
    env.tenure_run(["x", "--", "sh", "-c", script, BINARY]).exits_with(0);
    let holder = env.start_script(&[], "x", UNTIL_END);
    fs::write(env.path("go"), "").unwrap();
    holder.eventually("it waits", || env.read("said").contains("waiting"));
    assert!(!env.path("code").exists(), "{}", env.read("said"));
    env.end();
    eventually("it ends", LIMIT, || !env.read("code").is_empty());
    assert_eq!(env.read("code"), "0\n");
    holder.wait().exits_with(0);
}
