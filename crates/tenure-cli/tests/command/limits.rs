//! System limits on the resources of a process.

use std::process::Command;

use tenure_testkit::servers::Server;

use crate::env::{BINARY, TestEnv, random};

/// The command, with a limit on threads and processes.
fn with_threads(env: &TestEnv, count: u32, args: &[&str]) -> Command {
    // They are counted per user or user namespace, so use a new one.
    let limit = format!("--nproc={count}");
    let id = 100_000 + u32::try_from(random(1_000_000)).expect("it is small");
    let mut command = env.as_user(id, &["unshare", "--user", "prlimit", &limit]);
    command.args(args);
    command
}

#[test]
fn without_a_thread_for_the_locks_it_is_told_that_there_is_none() {
    let env = TestEnv::new();
    std::fs::create_dir(env.path("there")).unwrap();
    for args in [&["run", "x", "--", "touch", "ran"][..], &["status", "x"], &["list"]] {
        for store in ["file:there", "redis://localhost:1", "redis-quorum://localhost:1,localhost:2"] {
            let (verb, rest) = args.split_first().unwrap();
            let args = [&[verb, "--store", store][..], rest].concat();
            env.run(with_threads(&env, 1, &args)).exits_with(125).says("cannot start a thread");
        }
    }
    assert!(!env.path("ran").exists());
}

#[test]
fn a_warning_that_no_thread_can_be_had_for_ends_nothing() {
    let env = TestEnv::new();
    let servers = [Server::start(), Server::start()];
    let even = format!("redis-quorum://{},{}", servers[0].address(), servers[1].address());
    // Whichever of its threads fails to start, it reports that and does not crash.
    for count in 1..=3 {
        let args = ["run", "--ttl", "1s", "-w", "30", "--store", &even, "x", "--", "touch", "ran"];
        let said = env.run(with_threads(&env, count, &args)).exits_with(125);
        let last = said.stderr.lines().last().unwrap_or_default();
        assert!(
            last.contains("cannot start a thread") || last.contains("cannot start a process"),
            "{said:?}"
        );
        assert!(!said.stderr.contains("panic"), "{said:?}");
    }
    assert!(!env.path("ran").exists());
}

#[test]
fn a_file_that_may_not_grow_is_told_and_the_command_has_that_signal_as_ever() {
    let env = TestEnv::new();
    // The parent of the tests may ignore the signal.
    let bash = |script| {
        let mut command = env.program("env");
        command.args(["--default-signal=XFSZ", "bash", "-c", script, BINARY]);
        command
    };
    let script = r#"{ (ulimit -f 0; exec "$0" run x -- touch ran); echo "code $?"; } 2>&1 | cat"#;
    let command = bash(script);
    // Even if the output goes to a pipe.
    let said = env.run(command).exits_with(0).stdout;
    assert!(
        said.starts_with("tenure: ") && said.contains("too large") && said.ends_with("code 69\n"),
        "{said}"
    );
    assert!(!env.path("ran").exists());

    let script = r#"ulimit -f 16; exec "$0" run x -- head -c 1000000 /dev/zero"#;
    let command = bash(script);
    env.run(command).exits_with(128 + 25);
}

#[test]
fn what_cannot_be_printed_is_told_with_a_code_that_the_help_has() {
    let env = TestEnv::new();
    let holder = env.start_script(&[], "x", "READY; exec sleep 30");
    for command in ["status x", "list"] {
        let mut shell = env.program("sh");
        shell.args(["-c", &format!("\"$0\" {command} > /dev/full"), BINARY]);
        env.run(shell).exits_with(125).says("cannot print");
        let verb = command.split(' ').next().unwrap();
        let help = env.run(env.tenure([verb, "--help"])).exits_with(0).stdout;
        assert!(help.contains("125  tenure itself failed"), "{help}");
    }
    drop(holder);
}

#[test]
fn a_low_limit_of_open_files_is_one_line_and_no_panic() {
    let env = TestEnv::new();
    env.tenure_run(["x", "--", "true"]).exits_with(0);
    for verb in ["run -w 0.2 x", "status x", "list", "release --force x", "stress --for 1ms"] {
        let runs = verb.starts_with("run");
        for limit in (6..=30).step_by(if runs { 1 } else { 6 }) {
            let mut command = env.program("bash");
            let tail = if runs { " true" } else { "" };
            let script = format!("ulimit -n {limit}; exec \"$0\" {verb}{tail}");
            command.args(["-c", &script, BINARY]);
            let said = env.run(command);
            let lines = said.stderr.lines().count();
            let code = said.code().expect("an exit code");
            assert!([0, 1, 69, 125].contains(&code) && lines <= 1, "{verb} {limit}: {said:?}");
            assert!(!said.stderr.contains("defect"), "{verb} {limit}: {said:?}");
            if limit == 6 {
                said.exits_with(125).says("ulimit -n");
            }
        }
    }
}

#[test]
fn a_job_that_could_not_be_started_for_want_of_descriptors_may_run_again() {
    let (env, server, mut refused) = (TestEnv::new(), Server::start(), 0);
    let store = server.url();
    for limit in 12..=30 {
        let script =
            format!("ulimit -n {limit}; exec \"$0\" run --store {store} --once-per 1d job{limit} true");
        let mut command = env.program("bash");
        command.args(["-c", &script, BINARY]);
        if env.run(command).code() == Some(125) {
            refused += 1;
            let job = format!("job{limit}");
            env.tenure_run(["--store", &store, "--once-per", "1d", &job, "true"]).exits_with(0);
        }
    }
    assert!(refused > 3, "{refused}");
}

#[test]
fn six_hundred_locks_with_long_labels_fit_into_the_environment() {
    let env = TestEnv::new();
    let names: Vec<String> = (0..600).map(|number| format!("lock-{number}")).collect();
    let mut command = env.tenure_run_command(["--label", &"l".repeat(256)]);
    command.args(names.iter().flat_map(|name| ["--also", name])).args(["x", "--", "sh", "-c"]);
    let nested = format!("{BINARY} run lock-599 true; test $? = 75");
    command.arg(nested);
    let told = env.run(command).exits_with(0);
    assert!(told.stderr.contains("which would wait for itself"), "{told:?}");
}

#[test]
fn without_proc_a_run_says_what_it_needs() {
    if cfg!(tenure_portable) {
        return;
    }
    let (env, server) = (TestEnv::new(), Server::start());
    let script = "mount -t tmpfs none /proc && exec \"$0\" run --store \"$1\" x true";
    let mut command = env.program("unshare");
    command.args(["-rm", "sh", "-c", script, BINARY, &server.url()]);
    env.run(command).exits_with(125).says("/proc is not mounted");
}
