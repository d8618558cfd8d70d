//! Every verb with a store that is down, silent or rejects the login, with a missing name and with a
//! misspelled flag: one line, its code, and soon.

use std::time::Duration;

use rustix::process::Signal;
use tenure_testkit::servers::{Config, Server, eventually};

use crate::env::{Outcome, TestEnv};
use crate::tmux::Tmux;

const OWNER: &str = "alice/@host:1/00000000000000000000000000000001";

/// Each verb that uses a store, with its arguments before NAME, and NAME with the rest.
const VERBS: [(&str, &[&str], &[&str]); 17] = [
    ("run", &[], &["x", "--", "touch", "ran"]),
    ("acquire", &[], &["x"]),
    ("renew", &["--owner", OWNER], &["x"]),
    ("verify", &["--owner", OWNER], &["x"]),
    ("release", &["--force"], &["x"]),
    ("release", &["--owner", OWNER], &["x"]),
    ("stop", &[], &["x"]),
    ("wait", &[], &["x"]),
    ("status", &[], &["x"]),
    ("elect", &[], &["x", "--", "touch", "ran"]),
    ("leader", &[], &["x"]),
    ("list", &[], &[]),
    ("jobs", &[], &[]),
    ("doctor", &[], &[]),
    ("bench", &[], &[]),
    ("serve", &["--listen", "127.0.0.1:0"], &[]),
    ("stress", &["--for", "1s"], &[]),
];

fn words<'a>(url: &'a str, (verb, before, after): (&'a str, &[&'a str], &[&'a str])) -> Vec<&'a str> {
    [&[verb, "--store", url], before, after].concat()
}

/// Checks that all verbs on this store exit with 69 and one line with these words.
fn all_fail(env: &TestEnv, url: &str, says: &[&str], limit: Duration) {
    for verb in VERBS {
        let said = env.within(limit, || env.run(env.tenure(words(url, verb))));
        has_failed(env, verb.0, said, says);
    }
}

fn has_failed(env: &TestEnv, verb: &str, said: Outcome, says: &[&str]) {
    let said = said.exits_with(69);
    for says in says {
        assert!(said.stderr.contains(says), "{verb}: {said:?}");
    }
    assert!(said.stderr.starts_with("tenure: ") && said.stderr.lines().count() == 1, "{verb}: {said:?}");
    assert!(said.stdout.is_empty() && !said.stderr.contains("hush"), "{verb}: {said:?}");
    assert!(!env.path("ran").exists());
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn every_verb_says_within_a_second_that_its_store_is_down() {
    let (env, server) = (TestEnv::new(), Server::start());
    let (url, unix) = (server.url(), server.unix_url());
    server.kill();
    all_fail(&env, &url, &[&url, "no server listens there: start it"], SECOND);
    all_fail(&env, &unix, &["no server listens there: start it"], SECOND);
    for verb in &VERBS[..2] {
        let said = env.within(SECOND, || env.run(env.tenure(words("redis+unix:///none", *verb))));
        said.exits_with(69).says("No such file");
    }
}

#[test]
fn no_verb_pings_a_store_that_answers() {
    let (env, server) = (TestEnv::new(), Server::start());
    for verb in [&["run", "x", "true"][..], &["status", "x"], &["list"], &["leader", "x"], &["wait", "x"]] {
        // On a busy machine an answer may be so slow that a ping is sent.
        eventually(verb[0], 10 * SECOND, || {
            server.command(&["CONFIG", "RESETSTAT"]);
            env.run(env.tenure([&verb[..1], &["--store", &server.url()], &verb[1..]].concat()));
            !server.info("commandstats").contains_key("cmdstat_ping")
        });
    }
}

#[test]
fn every_verb_says_that_its_store_does_not_answer() {
    let (env, server) = (TestEnv::new(), Server::start());
    env.tenure_run(["x", "--", "true"]).exits_with(0);
    server.stop();
    let _silence = env.silence_the_store();
    let url = server.url();
    // Most wait 20 s for an answer, so run them concurrently.
    let all = VERBS.map(|verb| (verb.0, env.start(env.tenure(words(&url, verb)))));
    let of_directory = [(&["-n"][..], "cannot reach store"), (&[], "use -w DURATION to retry for that long")];
    let of_directory = of_directory.map(|(options, says)| {
        let words = [options, &["x", "--", "touch", "ran"]].concat();
        (says, env.start(env.tenure_run_command(words)))
    });
    for (verb, running) in all {
        has_failed(&env, verb, running.wait(), &[&url]);
    }
    for (says, running) in of_directory {
        let said = running.wait().exits_with(69).says(says);
        assert!(said.took >= 19 * SECOND, "{said:?}");
    }
    assert!(!env.path("ran").exists());
    server.cont();
}

#[test]
fn every_verb_says_at_once_that_the_login_is_refused() {
    let env = TestEnv::new();
    let server = Server::start_with(Config::new().user("default on >hush ~* &* +@all"));
    let url = server.url();
    all_fail(&env, &url, &["NOAUTH", "?password-file=FILE"], SECOND);
    let wrong = url.replace("redis://", "redis://:hushed@");
    all_fail(&env, &wrong, &["WRONGPASS", "correct the user or the password"], SECOND);
    let file = env.path("password");
    let with_file = url.replace("redis://", "redis://default@") + "?password-file=" + &file.to_string_lossy();
    let file_fails = |says: &[&str]| {
        let path = file.to_string_lossy();
        let says = [says, &[&*path]].concat();
        for verb in [VERBS[1], VERBS[8], VERBS[11]] {
            has_failed(&env, verb.0, env.run(env.tenure(words(&with_file, verb))), &says);
        }
        let said = env.tenure_run(["--store", &with_file, "x", "true"]).exits_with(69);
        assert!(!said.stderr.contains("-w DURATION") && said.took < 10 * SECOND, "{said:?}");
    };
    file_fails(&["No such file", "correct `password-file`"]);
    std::fs::write(&file, "\n").expect("a file");
    file_fails(&["it is empty", "correct `password-file`"]);
    std::fs::write(&file, "hushed\n").expect("a file");
    file_fails(&["WRONGPASS", "or the password in that file"]);
    std::fs::remove_file(&file).expect("a file");
    std::fs::create_dir(&file).expect("a directory, which is not readable as a file");
    file_fails(&["Is a directory", "correct `password-file`"]);
    let terminal = Tmux::start(&env, 100, 24, &format!("$TENURE top --store {wrong}; echo code $?"));
    let screen = terminal.expect("code 69").join("");
    assert!(screen.contains("WRONGPASS") && !screen.contains("hush"), "{screen}");
}

#[test]
fn every_verb_says_what_is_missing_and_which_flag_was_meant() {
    let env = TestEnv::new();
    for (verb, before, after) in VERBS {
        let said = env.run(env.tenure([&[verb, "--stor", "file:x"], before, after].concat()));
        let said = said.exits_with(64).says("did you mean '--store'?");
        assert!(said.stderr.contains(&format!("`tenure {verb} --help`")), "{said:?}");
        if !after.is_empty() {
            let said = env.run(env.tenure([&[verb], before].concat())).exits_with(64).says("<NAME>");
            assert!(said.stdout.is_empty() && said.took < SECOND * 3, "{said:?}");
        }
    }
    assert!(!env.store().exists() && !env.path("x").exists());
    for (verb, says) in
        [("completions", "<SHELL>"), ("config", "--jso"), ("man", "--jso"), ("fence", "--jso")]
    {
        let flag = if says == "--jso" { &["--jso"][..] } else { &[] };
        env.run(env.tenure([&[verb], flag].concat())).exits_with(64).says(says);
    }
}

#[test]
fn a_candidate_says_that_its_store_has_stopped_answering_and_that_it_is_back() {
    let (env, server) = (TestEnv::new(), Server::start());
    let url = server.url();
    let store = ["--store", url.as_str()];
    let elect = |more: &[&str]| env.start(env.tenure([&["elect", "--ttl", "2m"], &store[..], more].concat()));
    let first = elect(&["x", "--", "sh", "-c", "touch leads; exec sleep 60"]);
    first.eventually("it leads", || env.path("leads").exists());
    let second = elect(&["-v", "x", "--", "touch", "second"]);
    second.eventually("it waits", || second.stderr().contains("a candidate of"));
    server.stop();
    second.eventually("it says so", || second.stderr().contains("; still waiting"));
    server.cont();
    second.eventually("it says so", || second.stderr().contains("answers again"));
    assert!(!first.has_ended() && !env.path("second").exists());
    first.signal(Signal::TERM);
    first.wait().exits_with(143);
    second.wait().exits_with(0);
}
