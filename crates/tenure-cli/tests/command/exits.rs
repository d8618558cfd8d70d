//! The exit status, and the environment of the command.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use crate::env::{TestEnv, UNTIL_END, random};

#[test]
fn the_code_of_the_command_is_passed_on() {
    let env = TestEnv::new();
    for code in [0, 1, 37, 64, 75, 79, 127, 128, 255] {
        env.tenure_run(["x", "--", "sh", "-c", &format!("exit {code}")]).exits_with(code).says_nothing();
    }
}

#[test]
fn a_command_that_a_signal_ended_exits_with_128_and_its_number() {
    let env = TestEnv::new();
    for (name, number) in [("HUP", 1), ("INT", 2), ("KILL", 9), ("USR1", 10), ("SEGV", 11), ("TERM", 15)] {
        let script = format!("ulimit -c 0; kill -{name} $$; exit 1");
        env.tenure_run(["x", "--", "sh", "-c", &script]).exits_with(128 + number).says_nothing();
    }
}

#[test]
fn a_busy_lock_is_told_at_once_or_at_the_end_of_the_wait() {
    let env = TestEnv::new();
    let holder = env.start_script(&[], "x", UNTIL_END);
    env.tenure_run(["-n", "x", "--", "touch", "ran"]).exits_with(75).says("busy");
    env.tenure_run(["-w", "0", "x", "--", "touch", "ran"]).exits_with(75).says("busy");
    env.tenure_run(["-q", "-n", "x", "--", "touch", "ran"]).exits_with(75).says_nothing();
    for code in [0, 1, 255] {
        env.tenure_run(["-nE", &code.to_string(), "x", "--", "touch", "ran"]).exits_with(code).says("busy");
    }
    let wait = || env.tenure_run(["-w", "0.5", "x", "--", "touch", "ran"]).exits_with(75).says("busy");
    let waited = env.within(Duration::from_millis(700), wait).took;
    assert!(waited >= Duration::from_millis(500), "{waited:?}");
    assert!(!holder.has_ended() && !env.path("ran").exists());
    env.tenure_run(["-n", "another", "--", "true"]).exits_with(0);

    env.end();
    env.tenure_run(["-w", "10", "x", "--", "true"]).exits_with(0);
    holder.wait().exits_with(0);
    env.tenure_run(["-n", "x", "--", "true"]).exits_with(0);
}

#[test]
fn what_cannot_be_run_is_told_as_a_shell_does() {
    let env = TestEnv::new();
    fs::write(env.path("plain"), "text").unwrap();
    fs::write(env.path("script"), "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(env.path("script"), fs::Permissions::from_mode(0o755)).unwrap();
    for (program, code, says) in [
        ("/no/such/program", 127, "command not found"),
        ("no-such-program", 127, "not found"),
        ("", 127, "not found"),
        ("./script", 127, "interpreter was not found"),
        ("./plain", 126, "ermission denied"),
        ("/", 126, "ermission denied"),
    ] {
        env.tenure_run(["x", "--", program]).exits_with(code).says(says);
        env.tenure_run(["-q", "x", "--", program]).exits_with(code).says_nothing();
    }
    let mut command = env.tenure_run_command(["x", "--", "script"]);
    command.env("PATH", env.path(""));
    env.run(command).exits_with(127).says("interpreter was not found");
    env.tenure_run(["-n", "x", "--", "true"]).exits_with(0);
}

#[test]
fn the_command_finds_the_lock_in_its_environment() {
    let env = TestEnv::new();
    let script = r#"printf '%s|%s|%s|%s' "$TENURE_NAME" "$TENURE_OWNER" "$TENURE_FENCE" "$TENURE_TTL_MS""#;
    let said =
        env.tenure_run(["--ttl", "1500ms", "--prefix", "p:", "two words", "sh", "-c", script]).exits_with(0);
    let parts: Vec<&str> = said.stdout.split('|').collect();
    assert_eq!((parts[0], parts[3]), ("two words", "1500"), "{said:?}");
    assert!(parts[1].starts_with("alice@") && parts[1].parse::<tenure::Owner>().is_ok(), "{said:?}");
    assert!(parts[2].parse::<u64>().unwrap() > 0, "{said:?}");
}

#[test]
fn descriptors_that_a_service_manager_passes_reach_the_command() {
    let env = TestEnv::new();
    fs::write(env.path("socket"), "what is behind it\n").unwrap();
    let inner = r#"echo "$LISTEN_PID $LISTEN_FDS $$"; cat <&3"#;
    let outer = format!("exec 3<socket; LISTEN_FDS=1 LISTEN_PID=PID exec \"$0\" run x -- sh -c '{inner}'");
    let found = |pid: &str| {
        let mut command = env.program("sh");
        command.args(["-c", &outer.replace("PID=PID", &format!("PID={pid}")), crate::env::BINARY]);
        env.run(command).exits_with(0).says_nothing().stdout
    };
    let said = found("$$");
    let words: Vec<&str> = said.split_whitespace().collect();
    assert_eq!((words[0], words[1]), (words[2], "1"), "{said}");
    assert!(said.ends_with("what is behind it\n"), "{said}");
    // Sockets of another process are left alone.
    assert!(found("1").starts_with("1 1 "));
}

#[test]
fn arguments_and_streams_reach_the_command_untouched() {
    let env = TestEnv::new();
    let odd = std::ffi::OsStr::from_bytes(b"\xff a\n'\"$HOME *");
    let mut command = env.tenure_run_command(["x", "printf", "%s|"]);
    command.args([odd, "".as_ref(), "-n".as_ref(), "--".as_ref()]);
    let said = env.run(command).exits_with(0).says_nothing();
    assert_eq!(said.stdout, String::from_utf8_lossy(b"\xff a\n'\"$HOME *||-n|--|"));

    fs::write(env.path("input"), "line\n".repeat(10_000)).unwrap();
    let mut command = env.tenure_run_command(["x", "--", "sh", "-c", "cat; echo to stderr >&2"]);
    command.stdin(fs::File::open(env.path("input")).unwrap());
    let said = env.run(command).exits_with(0);
    assert_eq!((said.stdout.len(), said.stderr.as_str()), (50_000, "to stderr\n"));
}

#[test]
fn the_command_inherits_nothing_of_ours_but_what_keeps_the_lock() {
    let env = TestEnv::new();
    let script = r#"ls -l /proc/$$/fd; exec grep -E "Sig(Blk|Ign)" /proc/self/status"#;
    let found = |said: crate::env::Outcome| {
        let last_words =
            said.stdout.lines().filter_map(|line| line.split_whitespace().last()).map(str::to_owned);
        let mut found: Vec<_> =
            last_words.filter(|word| !word.ends_with(".out") && !word.ends_with(".err")).collect();
        found.sort();
        found
    };
    let mut command = env.program("sh");
    command.args(["-c", script]);
    let without = found(env.run(command).exits_with(0));
    let mut with = found(env.tenure_run(["x", "--", "sh", "-c", script]).exits_with(0).says_nothing());
    let ours = with.iter().position(|word| word.contains("tenure/holder-")).expect("what keeps the lock");
    with.remove(ours);
    assert_eq!(with, without);
}

#[test]
fn a_record_that_cannot_be_read_is_told() {
    let env = TestEnv::new();
    let holder = env.start_script(&["--ttl", "1h"], "x", "READY; exec sleep 30");
    let files = fs::read_dir(env.store()).unwrap().map(|entry| entry.unwrap().path());
    let record = files.into_iter().find(|path| path.to_string_lossy().contains("lock-")).unwrap();
    fs::write(&record, "nonsense").unwrap();
    env.tenure_run(["x", "--", "touch", "ran"]).exits_with(69).says(&record.to_string_lossy());
    assert!(!env.path("ran").exists());
    drop(holder);
}

#[test]
fn what_the_command_left_in_the_background_does_not_keep_the_lock() {
    let env = TestEnv::new();
    let script = "sleep 30 & echo $! > left; exit 5";
    let took = env.tenure_run(["x", "--", "sh", "-c", script]).exits_with(5).took;
    assert!(took < Duration::from_secs(5));
    let left = env.pid("left");
    assert!(crate::env::is_alive(left), "it outlives the command");
    env.tenure_run(["-n", "x", "--", "true"]).exits_with(0);
    rustix::process::kill_process(left, rustix::process::Signal::KILL).unwrap();
}

#[test]
fn a_store_may_be_named_by_the_environment_or_a_flag() {
    let env = TestEnv::new();
    let (a, b) = (format!("file:{}", env.path("a").display()), format!("file:{}", env.path("b").display()));
    let name = format!("n{}", random(1000));
    let mut command = env.tenure_run_command([&name, "--", BUSY_ELSEWHERE[0], "-c", BUSY_ELSEWHERE[1]]);
    command.env("TENURE_STORE", &a).env("B", &b).env("BINARY", crate::env::BINARY).env("NAME", &name);
    let said = env.run(command).exits_with(0);
    assert_eq!(said.stdout, "75 0\n", "{said:?}");
    assert!(!env.store().exists(), "the default store was used");
}

/// Under the lock of the store in the environment: busy there, free in another.
const BUSY_ELSEWHERE: [&str; 2] =
    ["sh", r#""$BINARY" run -qn "$NAME" true; a=$?; "$BINARY" run -n --store "$B" "$NAME" true; echo $a $?"#];
