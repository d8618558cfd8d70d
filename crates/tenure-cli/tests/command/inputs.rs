//! Names, durations and directories: each works, or gets a one-line error and a documented code.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::env::{BINARY, TestEnv, UNTIL_END};

#[test]
fn a_name_is_any_text_of_1_byte_to_64_kib() {
    let env = TestEnv::new();
    let long = "x".repeat(64 * 1024);
    let names = [
        "x",
        "a b",
        "a\r\nb",
        "\n",
        "/",
        "a/b",
        "..",
        "../../etc",
        ".",
        "naïve ✓ 錠",
        "-x",
        "--",
        "$HOME",
        "guard",
        &long,
    ];
    for name in names {
        let said = env.tenure_run(["-n", "--", name, "sh", "-c", r#"printf %s "$TENURE_NAME""#]);
        assert_eq!(said.exits_with(0).says_nothing().stdout, name);
    }
    // Their files are in the store.
    let mut found: Vec<_> = fs::read_dir(env.store().parent().unwrap())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    found.retain(|file| !file.as_bytes().ends_with(b".out") && !file.as_bytes().ends_with(b".err"));
    assert_eq!(found, ["tenure"]);
}

#[test]
fn what_is_no_name_is_told_what_one_is() {
    let env = TestEnv::new();
    env.tenure_run(["", "--", "touch", "ran"]).exits_with(64).says("must not be empty");
    env.tenure_run(["x".repeat(64 * 1024 + 1).as_str(), "--", "touch", "ran"])
        .exits_with(64)
        .says("65536 bytes");
    env.tenure_run(["tenure:x", "--", "touch", "ran"]).exits_with(64).says("tenure:");
    let mut command = env.tenure_run_command([std::ffi::OsStr::from_bytes(b"\xff")]);
    command.args(["touch", "ran"]);
    env.run(command).exits_with(64).says("UTF-8");
    assert!(!env.path("ran").exists());
}

#[test]
fn two_names_that_look_alike_are_two_locks() {
    let env = TestEnv::new();
    let holder = env.start_script(&[], "a", UNTIL_END);
    for name in ["A", "a ", " a", "a\n", "./a", "a/"] {
        env.tenure_run(["-n", name, "--", "true"]).exits_with(0);
    }
    env.tenure_run(["-n", "a", "--", "true"]).exits_with(75);
    env.end();
    holder.wait().exits_with(0);
}

#[test]
fn what_is_no_lease_is_told_what_one_is() {
    let env = TestEnv::new();
    for (options, says) in [
        (&["--ttl", "0"][..], "50ms"),
        (&["--ttl", "15w"], "30s"),
        (&["--ttl", "-1"], "30s"),
        (&["--ttl", "NaN"], "30s"),
        (&["--ttl", "9e99s"], "30s"),
        (&["--ttl", ""], "30s"),
        (&["--ttl", "0s"], "50ms"),
        (&["--ttl", "1ms"], "50ms"),
        (&["--ttl", "8761h"], "365d"),
        (&["--ttl", "99999999999999999999h"], "365d"),
        (&["--grace", "6s"], "third"),
        (&["--ttl", "1s", "--grace", "334ms"], "third"),
        (&["--grace", "-1s"], "30s"),
        (&["-w", "-1"], "0.5"),
        (&["-w", "NaN"], "0.5"),
        (&["-w", "soon"], "0.5"),
        (&["-w", "9e99"], "0.5"),
        (&["-E", "256"], "255"),
        (&["-E", "-1"], "-1"),
        (&["-n", "-w", "1"], "--wait"),
        (&["-q", "-v"], "--verbose"),
        (&["--prefix", "tenure:"], "tenure:"),
        (&["--store", "nonsense"], "file:DIR"),
        (&["--store", "ftp://host"], "file:DIR"),
        (&["--store", "redis+clutser://host"], "did you mean `redis-cluster:`?"),
        (&["--store", "sentinels://host/main"], "did you mean `redis-sentinel:`?"),
        (&["--store", "zookeper://host"], "did you mean `zookeeper:`?"),
        (&["--store", "/tmp/locks"], "`file:/tmp/locks`"),
        (&["--store", "file://var/lib/locks"], "file:///"),
        (&["--store", "memory:"], "not shared between processes"),
        (&["--store", "file: "], "space"),
        (&["--store", "file:a\nredis://b"], "control character"),
        (&["--retry-lost", "--max-hold", "1s"], "--max-hold"),
        (&["--acks", "-1"], "-1"),
        (
            &["--acks", "1"],
            "--acks is for Redis and Valkey servers with replicas, and the store's URL begins with `file:`",
        ),
        (&["--restart-grace", "5x"], "30s"),
        (&["--restart-grace", "5s"], "restart"),
        (&["--acks", "0"], "--acks"),
        (&["--store", "redis://127.0.0.1:1?acks=1", "--acks", "2"], "--acks 2 differs from `acks=1`"),
        (
            &["--store", "redis://127.0.0.1:1?restart-grace=1m", "--restart-grace", "30s"],
            "--restart-grace 30s differs from `restart-grace=1m`",
        ),
        (&["--store", "redis-cluster://127.0.0.1:1", "--restart-grace", "30s"], "slot"),
        (&["--store", "redis://127.0.0.1:1?restart-grace=5s", "--ttl", "6s"], "restart-grace"),
        (&["--on-lost", "stop"], "signal:NAME"),
        (&["--on-lost", "signal:KILLER"], "USR1"),
        (&["--kill-after", "soon"], "30s"),
        (&["--splay", "-1"], "30s"),
        (&["--max-hold", "1ms"], "50ms"),
        (&["--min-hold", "2s", "--max-hold", "2s"], "--min-hold must be shorter"),
        (&["-c", "touch ran"], "-c <STRING>"),
    ] {
        let said = env.tenure_run(options.iter().chain(&["x", "--", "touch", "ran"]));
        said.exits_with(64).says(says);
    }
    assert!(!env.path("ran").exists());
    for options in [
        &["--ttl", "1h30m"][..],
        &["--ttl", "90"],
        &["--ttl", "365d"],
        &["-w", "1d"],
        &["--ttl", "8760h"],
        &["--grace", "0s"],
        &["--ttl", "3s", "--grace", "1s"],
        &["-w", "4294967295"],
    ] {
        env.tenure_run(options.iter().chain(&["x", "--", "true"])).exits_with(0).says_nothing();
    }
    // The shortest; a busy machine may be too slow for it.
    let shortest = env.tenure_run(["--ttl", "50ms", "x", "--", "true"]);
    assert!(matches!(shortest.code(), Some(0 | 69 | 79)), "{shortest:?}");
}

#[test]
fn what_is_no_command_line_is_told_what_is_missing() {
    let env = TestEnv::new();
    env.tenure_run([""; 0]).exits_with(64).says("<NAME>");
    env.tenure_run(["x"]).exits_with(64).says("<CMD>");
    env.tenure_run(["x", "--"]).exits_with(64).says("<CMD>");
    env.tenure_run(["x", "-odd"]).exits_with(64).says("-o");
    env.tenure_run(["--frobnicate", "x", "true"]).exits_with(64).says("--frobnicate");
    env.tenure_run(["--tll", "5s", "x", "true"])
        .exits_with(64)
        .says("did you mean '--ttl'?; `tenure run --help`");
    env.tenure_run(["--no-wiat", "x", "true"]).exits_with(64).says("did you mean '--no-wait'?;");
    env.run(env.tenure(["statsu", "x"])).exits_with(64).says("did you mean 'status'?");
    env.run(env.tenure(["frobnicate"])).exits_with(64).says("`tenure --help`");
    env.run(env.tenure(["status"])).exits_with(64).says("`tenure status --help`");
    env.run(env.tenure(["list", "a", "b"])).exits_with(64).says("`tenure list --help`");
    for command in ["status", "list"] {
        env.run(env.tenure([command, "--store", "memory:x", "y"]))
            .exits_with(64)
            .says("not shared between processes");
    }
    env.run(env.tenure([""; 0])).exits_with(64);
}

#[test]
fn without_a_home_a_store_must_be_named() {
    let env = TestEnv::new();
    let mut command = env.tenure_run_command(["x", "--", "true"]);
    command.env_remove("HOME").env_remove("XDG_STATE_HOME");
    env.run(command).exits_with(64).says("--store");
    let mut command = env.tenure_run_command(["x", "--", "true"]);
    command.env_remove("XDG_STATE_HOME").env("HOME", env.path("home"));
    env.run(command).exits_with(0).says_nothing();
    assert!(env.path("home/.local/state/tenure").is_dir());
}

#[test]
fn a_directory_that_is_missing_is_made() {
    let env = TestEnv::new();
    for name in ["missing", "a/b/c", "with space", "per%20cent", "que?ry#x", "ünï"] {
        let store = env.path(name);
        env.tenure_run(["--store", &format!("file:{}", store.display()), "x", "--", "true"])
            .exits_with(0)
            .says_nothing();
        assert!(store.is_dir(), "{name}");
    }
    // Relative to the working directory.
    env.tenure_run(["--store", "file:here", "x", "--", "true"]).exits_with(0).says_nothing();
    assert!(env.path("here").is_dir());
    env.tenure_run(["--store", "file:", "x", "--", "true"]).exits_with(64).says("directory");
}

#[test]
fn an_empty_store_is_refused_and_says_what_to_write() {
    let env = TestEnv::new();
    for args in
        [&["run", "x", "--", "touch", "ran"][..], &["status", "x"], &["list"], &["release", "--force", "x"]]
    {
        let (verb, rest) = args.split_first().unwrap();
        let named = [&[*verb, "--store", ""][..], rest].concat();
        env.run(env.tenure(named)).exits_with(64).says("--store file:DIR");
        let mut command = env.tenure(args);
        command.env("TENURE_STORE", "");
        env.run(command).exits_with(64).says("TENURE_STORE");
    }
    assert!(!env.path("ran").exists() && !env.store().exists());
}

#[test]
fn a_directory_that_does_not_exist_is_an_error_to_all_but_run() {
    let env = TestEnv::new();
    let missing = env.path("missing");
    let path = missing.display().to_string();
    for store in [format!("file:{path}"), format!("file://{path}"), "file:missing".to_owned()] {
        for args in [&["status", "x"][..], &["list"], &["release", "--force", "x"], &["doctor"], &["bench"]] {
            let (verb, rest) = args.split_first().unwrap();
            let args = [&[*verb, "--store", &store][..], rest].concat();
            let said = env.run(env.tenure(args)).exits_with(69).says("does not exist");
            assert!(said.stderr.contains("missing") && said.stdout.is_empty(), "{said:?}");
        }
    }
    assert!(!missing.exists());
    let store = format!("file:{path}");
    env.tenure_run(["--store", &store, "x", "--", "true"]).exits_with(0).says_nothing();
    env.run(env.tenure(["status", "--store", &store, "x"])).exits_with(1).says_nothing();
    // The first run creates the default directory.
    env.run(env.tenure(["status", "x"])).exits_with(1).says_nothing();
}

/// The command as a user other than root, to whom permissions apply.
fn as_nobody(env: &TestEnv, args: &[&str]) -> Command {
    let mut command = env.as_user(65534, &[]);
    command.args(args);
    command
}

fn with_mode(env: &TestEnv, name: &str, mode: u32, is_theirs: bool) -> String {
    let path = env.path(name);
    fs::create_dir(&path).unwrap();
    if is_theirs && rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&path, Some(65534), Some(65534)).unwrap();
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    format!("file:{}", path.display())
}

#[test]
fn a_directory_that_cannot_be_used_is_told_with_its_path() {
    let env = TestEnv::new();
    let stores = [
        (with_mode(&env, "read-only", 0o500, true), "read-only"),
        (with_mode(&env, "no-rights", 0o000, false), "no-rights"),
        (format!("{}/inner", with_mode(&env, "locked-parent", 0o500, false)), "locked-parent"),
        ("file:/proc/tenure".to_owned(), "/proc/tenure"),
    ];
    for (store, path) in &stores {
        // Reading verbs do not create the directory.
        let all = [&["run", "x", "--", "touch", "ran"][..], &["status", "x"], &["list"]];
        for args in &all[..if store == "file:/proc/tenure" { 1 } else { 3 }] {
            let (verb, rest) = args.split_first().unwrap();
            let args: Vec<&str> = [*verb, "--store", store].into_iter().chain(rest.iter().copied()).collect();
            let said = env.run(as_nobody(&env, &args)).exits_with(69).says(path);
            assert_eq!(said.stderr.contains("create"), *path == "/proc/tenure", "{said:?}");
        }
    }
    let usable = with_mode(&env, "usable", 0o700, true);
    env.run(as_nobody(&env, &["run", "--store", &usable, "x", "--", "true"])).exits_with(0).says_nothing();
    assert!(!env.path("ran").exists());
}

#[test]
fn a_file_in_place_of_the_directory_is_told() {
    let env = TestEnv::new();
    fs::write(env.store(), "text").unwrap();
    let said = env.tenure_run(["x", "--", "touch", "ran"]).exits_with(69).says("a file is in the way");
    assert!(!said.stderr.contains("-w DURATION"), "to wait would not help: {said:?}");
    env.tenure_run(["--store", &format!("{}/inner", env.url()), "x", "--", "touch", "ran"])
        .exits_with(69)
        .says("tenure");
    assert_eq!(env.read("tenure"), "text");
    assert!(!env.path("ran").exists());
}

#[test]
fn a_full_disk_is_told() {
    let env = TestEnv::new();
    fs::create_dir(env.path("full")).unwrap();
    let script = r#"mount -t tmpfs -o size=4k,nr_inodes=20 tmpfs full && echo x > full/fill && exec "$0" run --store file:full x -- touch ran"#;
    let mut command = env.program("unshare");
    command.args(["--mount", "--map-root-user", "sh", "-c", script, BINARY]);
    env.run(command).exits_with(69).says("full");
    assert!(!env.path("ran").exists());
}
