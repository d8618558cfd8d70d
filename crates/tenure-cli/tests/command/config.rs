//! `tenure.toml`, the environment and flags: precedence, errors, and that no password is printed.

use std::fs;

use serde_json::Value;
use tenure_testkit::servers::{Config, Server};

use crate::env::TestEnv;

fn write(env: &TestEnv, text: &str) {
    fs::create_dir_all(env.path("config")).expect("a directory");
    fs::write(env.path("config/tenure.toml"), text).expect("a file");
}

/// A key in `tenure config --json`: its value, and the source of that.
fn told(env: &TestEnv, verb: Option<&str>, key: &str) -> (String, String) {
    let said = env.run(env.tenure(["config", "--json"])).exits_with(0).says_nothing();
    let all: Value = serde_json::from_str(&said.stdout).expect("JSON");
    let all = all["settings"].as_array().expect("settings").iter();
    let mut all = all.filter(|one| one["key"] == key && one["verb"].as_str() == verb);
    let found = all.next().unwrap_or_else(|| panic!("{verb:?} {key}: {said:?}"));
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    (text("value"), text("from"))
}

#[test]
fn a_flag_wins_over_the_environment_and_that_over_a_file() {
    let env = TestEnv::new();
    let directory = |name: &str| format!("file:{}", env.path(name).display());
    let used = |command: std::process::Command| {
        env.run(command).exits_with(0).says_nothing();
        let names = ["of-file", "of-variable", "of-flag", "of-store-file", "tenure"];
        let made: Vec<_> = names.into_iter().filter(|name| env.path(name).exists()).collect();
        made.iter().for_each(|name| fs::remove_dir_all(env.path(name)).expect("a directory"));
        made
    };
    let run = || env.tenure_run_command(["x", "--", "true"]);
    assert_eq!(used(run()), ["tenure"]);
    write(&env, &format!("store = \"{}\"\n", directory("of-file")));
    assert_eq!(used(run()), ["of-file"]);
    let mut command = run();
    command.env("TENURE_STORE", directory("of-variable"));
    assert_eq!(used(command), ["of-variable"]);
    fs::write(env.path("url"), format!("{}\n", directory("of-store-file"))).expect("a file");
    let mut command = run();
    command.env("TENURE_STORE_FILE", env.path("url"));
    assert_eq!(used(command), ["of-store-file"]);
    let mut command = env.tenure_run_command(["--store", &directory("of-flag"), "x", "--", "true"]);
    command.env("TENURE_STORE", directory("of-variable")).env("TENURE_STORE_FILE", "/no/such/file");
    assert_eq!(used(command), ["of-flag"]);
    write(&env, &format!("store-file = \"{}\"\n", env.path("url").display()));
    assert_eq!(used(run()), ["of-store-file"]);

    let mut both = run();
    both.env("TENURE_STORE", directory("a")).env("TENURE_STORE_FILE", env.path("url"));
    env.run(both).exits_with(64).says("both set");
    let mut missing = run();
    missing.env("TENURE_STORE_FILE", "/no/such/file");
    env.run(missing).exits_with(64).says("/no/such/file");
    env.tenure_run(["--store", "file:a", "--store-file", "b", "x", "true"]).exits_with(64).says("--store");
}

#[test]
fn a_file_sets_flags_of_all_verbs_or_of_one_and_a_flag_wins() {
    let env = TestEnv::new();
    write(&env, "prefix = \"app:\"\nttl = \"40s\"\n[run]\nbusy-code = 7\nwait = \"100ms\"\n");
    let ttl = "echo $TENURE_TTL_MS $TENURE_NAME";
    assert_eq!(env.tenure_run(["x", "-c", ttl]).exits_with(0).stdout, "40000 x\n");
    assert_eq!(env.tenure_run(["--ttl", "2s", "x", "-c", ttl]).exits_with(0).stdout, "2000 x\n");
    let holder = env.start_script(&[], "x", "READY; exec sleep 30");
    let listed = env.run(env.tenure(["list", "--prefix", ""])).exits_with(0).stdout;
    assert!(listed.starts_with("app:x\t"), "{listed}");
    env.tenure_run(["x", "--", "true"]).exits_with(7).says("busy");
    env.tenure_run(["-n", "x", "--", "true"]).exits_with(7).says("busy");
    env.tenure_run(["-E", "9", "x", "--", "true"]).exits_with(9).says("busy");
    env.run(env.tenure(["acquire", "-n", "x"])).exits_with(75).says("busy");
    // Instead of the user's file.
    fs::write(env.path("other.toml"), "[run]\nbusy-code = 8\n").expect("a file");
    let other = ["--config", "other.toml", "run", "--prefix", "app:", "-n", "x", "--", "true"];
    env.run(env.tenure(other)).exits_with(8).says("busy");
    drop(holder);
}

#[test]
fn what_is_wrong_in_a_file_is_one_line_with_its_place() {
    let env = TestEnv::new();
    let path = env.path("config/tenure.toml").display().to_string();
    for (text, says) in [
        ("stoer = \"x\"\n", "line 1: unknown key `stoer`; did you mean `store`?"),
        (
            "\n[run]\nkil-after = \"1s\"\n",
            "line 3: unknown key `kil-after` in [run]; did you mean `kill-after`?",
        ),
        ("[run]\nttl = \"soon\"\n", "line 2: `ttl`: invalid value 'soon': expected seconds"),
        ("ttl = \n", "line 1: "),
        ("[rum]\n", "line 1: unknown key `rum`; did you mean `run`?"),
        ("[doctor]\ngrace = 1\n", "unknown key `grace` in [doctor]; there are ttl"),
        ("[run]\nbusy-code = 256\n", "line 2: `busy-code`: invalid value '256'"),
        ("[run]\nzone = \"Berlin\"\n", "line 2: `zone`: invalid value 'Berlin': time zone: got"),
        ("prefix = [1]\n", "line 1: `prefix` must be a string"),
        (
            "store = \"redis://:hush@h\"\nstore-file = \"x\"\n",
            "line 2: `store` and `store-file` are both set",
        ),
    ] {
        write(&env, text);
        for verb in [&["list"][..], &["run", "x", "true"], &["config"]] {
            let said = env.run(env.tenure(verb)).exits_with(64).says(says);
            assert!(said.stderr.contains(&path) && !said.stderr.contains("hush"), "{said:?}");
        }
        // These need no store.
        env.run(env.tenure(["--help"])).exits_with(0);
        env.run(env.tenure(["completions", "bash"])).exits_with(0);
    }
    env.run(env.tenure(["--config", "no.toml", "list"])).exits_with(64).says("no.toml");
}

#[test]
fn a_term_that_the_store_cannot_keep_is_told_with_its_line() {
    let env = TestEnv::new();
    write(&env, "[run]\nacks = 1\n");
    let said = env.tenure_run(["x", "true"]).exits_with(64);
    said.says("--acks, from ").says("tenure.toml, line 2, is for Redis and Valkey servers with replicas");
}

#[test]
fn config_tells_where_each_value_is_from_and_no_password() {
    let env = TestEnv::new();
    let path = env.path("config/tenure.toml").display().to_string();
    assert_eq!(told(&env, None, "store"), (env.url(), "default".into()));
    assert_eq!(told(&env, Some("run"), "ttl"), ("15s".into(), "default".into()));
    write(&env, "# locks\nstore = \"redis://ann:hush@h/2?acks=1\"\n[elect]\nttl = \"9s\"\n");
    assert_eq!(told(&env, None, "store"), ("redis://h:6379/2?acks=1".into(), format!("{path}, line 2")));
    assert_eq!(told(&env, Some("elect"), "ttl"), ("9s".into(), format!("{path}, line 4")));
    assert_eq!(told(&env, Some("run"), "ttl"), ("15s".into(), "default".into()));
    assert_eq!(told(&env, Some("run"), "wait"), (String::new(), String::new()));
    let mut command = env.tenure(["config"]);
    command.env("TENURE_STORE", "redis://:hu/sh@h");
    for said in [env.run(command), env.run(env.tenure(["config"])), env.run(env.tenure(["config", "--json"]))]
    {
        let said = said.exits_with(0).says_nothing();
        assert!(!said.stdout.contains("hush") && !said.stdout.contains("hu/sh"), "{said:?}");
    }
    // The output is a file with the same settings.
    fs::write(env.path("copy.toml"), env.run(env.tenure(["config"])).stdout).expect("a file");
    env.run(env.tenure(["--config", "copy.toml", "config"])).exits_with(0).says_nothing();
}

/// It would be another store in each directory.
#[test]
fn a_store_that_depends_on_the_working_directory_is_refused() {
    let env = TestEnv::new();
    for text in ["store = \"file:locks\"", "store-file = \"url\""] {
        write(&env, &format!("{text}\n"));
        env.tenure_run(["x", "--", "true"]).exits_with(64).says("depends on the working directory");
    }
    write(&env, "store = \"file:~/locks\"\n");
    env.tenure_run(["x", "--", "true"]).exits_with(64).says("only a shell expands ~");
    for verb in ["run x true", "list", "doctor"] {
        let words = verb.split(' ').collect::<Vec<_>>();
        let words = [&words[..1], &["--store", "file:~/locks"], &words[1..]].concat();
        env.run(env.tenure(words)).exits_with(64).says("only a shell expands ~");
    }
    assert!(!env.path("~").exists() && !env.path("locks").exists());
}

#[test]
fn a_configured_limit_of_a_hold_is_not_retried_for_ever() {
    let env = TestEnv::new();
    write(&env, "[run]\nmax-hold = \"1s\"\n");
    env.tenure_run(["--retry-lost", "x", "--", "true"]).exits_with(64).says("--retry-lost");
    env.tenure_run(["x", "--", "true"]).exits_with(0);
}

#[test]
fn a_file_of_the_system_is_read_after_that_of_the_user() {
    let env = TestEnv::new();
    write(&env, "ttl = \"7s\"\n");
    let script = "mount -t tmpfs none /etc && printf 'ttl = \"8s\"\\nprefix = \"all:\"\\n' > /etc/tenure.toml && \
                  exec \"$0\" config";
    let mut command = env.program("unshare");
    command.args(["-rm", "sh", "-c", script, crate::env::BINARY]);
    let said = env.run(command).exits_with(0).stdout;
    let line = |key: &str| said.lines().find(|line| line.starts_with(key)).unwrap_or_default();
    assert!(line("ttl").contains("\"7s\"") && line("ttl").contains("config/tenure.toml, line 1"), "{said}");
    assert!(
        line("prefix").contains("\"all:\"") && line("prefix").contains("/etc/tenure.toml, line 2"),
        "{said}"
    );
}

#[test]
fn a_nested_command_finds_the_store_that_a_flag_named() {
    let (env, server) = (TestEnv::new(), Server::start());
    fs::write(env.path("url"), server.url()).expect("a file");
    let file = env.path("url").display().to_string();
    let nested = [crate::env::BINARY, "run", "-n", "x", "--", "echo", "beside its holder"];
    let relative: &[&str] = &["--store", "file:relative"];
    let by_file: &[&str] = &["--store-file", &file];
    let by_url: &[&str] = &["--store", &server.url(), "--namespace", "app:"];
    for store in [relative, by_file, by_url] {
        for other in ["TENURE_STORE", "TENURE_STORE_FILE"] {
            let mut command = env.tenure([&["run"], store, &["x", "--"], &nested].concat());
            command.env_remove("TENURE_STORE").env(other, "file:/nowhere");
            let said = env.run(command).exits_with(75).says("busy");
            assert_eq!(said.stdout, "", "{store:?}");
        }
    }
}

#[test]
fn the_password_of_the_store_does_not_reach_the_command() {
    let (env, server) = (TestEnv::new(), Server::start_with(Config::new().password("hush")));
    let at = server.address();
    let run = |url: &str| {
        let mut command = env.tenure_run_command(["x", "--", "env"]);
        command.env("TENURE_STORE", url);
        env.run(command).exits_with(0).says_nothing().stdout
    };
    let said = run(&format!("redis://:hush@{at}/1"));
    assert!(said.contains(&format!("TENURE_STORE=redis://{at}/1\n")) && !said.contains("hush"), "{said}");
    fs::write(env.path("password"), "hush\n").expect("a file");
    let url = format!("redis://{at}?password-file={}", env.path("password").display());
    let said = run(&url);
    assert!(said.contains(&format!("TENURE_STORE={url}\n")) && !said.contains("hush"), "{said}");
    // A nested run is refused, instead of taking a lock in another store.
    let mut command = env.tenure_run_command(["x", "--", crate::env::BINARY, "run", "y", "--", "true"]);
    command.env("TENURE_STORE", format!("redis://:hush@{at}"));
    env.run(command).exits_with(69).says("NOAUTH");
}
