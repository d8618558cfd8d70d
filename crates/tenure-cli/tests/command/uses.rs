//! The uses of locks from the command line: a job once per period, and a leader.

use std::fs;
use std::time::Duration;

use rustix::process::Signal;
use tenure_testkit::proxy::{Fault, Proxy};
use tenure_testkit::servers::{Config, Postgres, Server, eventually};

use crate::env::{SOON, TestEnv, UNTIL_END, ms};
use crate::prometheus::alerts_are;

const LONG: &str = "1d";

#[test]
fn a_job_runs_once_in_a_period_and_the_next_is_told_which_run_it_was() {
    let env = TestEnv::new();
    let server = Server::start();
    for url in [env.url(), server.url()] {
        let run = |name: &str, options: &[&str], script: &str| {
            let options = [&["--store", &url, "--once-per", LONG], options].concat();
            env.tenure_run(options.into_iter().chain([name, "-c", script]))
        };
        let last = |name: &str, how: &str| {
            let said = env.run(env.tenure(["status", "--store", &url, name])).exits_with(1);
            assert!(said.stdout.contains(how), "{said:?}");
        };
        run("digest", &[], "echo ran >> digest; exit 0").exits_with(0).says_nothing();
        run("digest", &[], "echo ran >> digest").exits_with(75).says("has run in this window");
        run("digest", &["-E", "0", "-q"], "echo ran >> digest").exits_with(0).says_nothing();
        assert_eq!(env.read("digest"), "ran\n", "{url}");
        last("digest", " ago: done\n");
        fs::remove_file(env.path("digest")).expect("a file");
        // A failed job may run again.
        run("failing", &[], "exit 3").exits_with(3);
        last("failing", " ago: failed: exit status: 3\n");
        run("failing", &[], "test \"$TENURE_FENCE\" -gt 0").exits_with(0);
        run("failing", &[], "exit 3").exits_with(75);
        last("failing", " ago: done\n");
        // A run by hand does not reopen the window.
        run("failing", &["--again"], "echo ran >> digest; exit 3").exits_with(3).says_nothing();
        assert_eq!(env.read("digest"), "ran\n", "{url}");
        fs::remove_file(env.path("digest")).expect("a file");
        let said = env.run(env.tenure(["status", "--store", &url, "failing"])).exits_with(1).stdout;
        assert!(
            said.contains(" ago: failed: exit status: 3; its window stays closed; last done ")
                && said.ends_with(" ago\n"),
            "{said}"
        );
        let said = env.run(env.tenure(["status", "--json", "--store", &url, "failing"])).exits_with(1).stdout;
        let last_run = &serde_json::from_str::<serde_json::Value>(&said).expect("JSON")["last_run"];
        let time = |field: &str| last_run[field].as_u64().expect("a time");
        assert!(time("succeeded_ms") <= time("begun_ms"));
        run("failing", &["--retry-lost"], "true").exits_with(75).says("has run in this window");
        // A job is not a lock of this name.
        env.tenure_run(["--store", &url, "-n", "digest", "true"]).exits_with(0);
    }
}

/// A job, a leader, a stop request, and what monitoring tells of them, on any store, which may be one that warns.
pub(crate) fn a_job_and_a_leader(env: &TestEnv, url: &str) {
    let once =
        |name: &str, script: &str| env.tenure_run(["--store", url, "--once-per", LONG, name, "-c", script]);
    once("digest", "echo ran >> digest").exits_with(0);
    let said = once("digest", "echo ran >> digest").exits_with(75);
    assert!(said.stderr.contains("has run in this window"), "{said:?}");
    assert_eq!(env.read("digest"), "ran\n");
    once("failing", "exit 3").exits_with(3);
    once("failing", "true").exits_with(0);
    let told = env.run(env.tenure(["jobs", "--json", "--store", url, "failing"])).exits_with(0).stdout;
    let job: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    let runs: Vec<_> = job["runs"].as_array().expect("runs").iter().map(|run| &run["code"]).collect();
    assert_eq!(runs, [0, 3], "{told}");
    assert_eq!((&job["last_run"]["outcome"], &job["overdue_ms"]), (&"done".into(), &serde_json::Value::Null));
    let listed = env.run(env.tenure(["jobs", "--store", url])).exits_with(0).stdout;
    let names: Vec<_> = listed.lines().map(|line| line.split('\t').next().expect("a name")).collect();
    assert_eq!(names, ["digest", "failing"], "{listed}");

    let watching = env.start(env.tenure(["leader", "--watch", "--store", url, "api"]));
    env.elect_until_watched(&watching, url, "a");
    let script = "touch leads; exec sleep 60";
    let leader = env.start(env.tenure(["elect", "--store", url, "--payload", "b", "api", "-c", script]));
    leader.eventually("it leads", || env.path("leads").exists());
    let told = env.run(env.tenure(["leader", "--json", "--store", url, "api"])).exits_with(0);
    assert!(told.stdout.contains("\"payload\":\"b\""), "{told:?}");
    let listed = env.run(env.tenure(["list", "--store", url])).exits_with(0).stdout;
    assert!(listed.starts_with("api\telection\t") && listed.lines().count() == 1, "{listed}");
    env.run(env.tenure(["stop", "--election", "--store", url, "--reason", "it hangs", "api"])).exits_with(0);
    let said = leader.wait().exits_with(143);
    assert!(said.stderr.contains(": it hangs"), "{said:?}");
    watching.eventually("it is told", || watching.stdout().contains("resigned: b, term "));
    watching.signal(Signal::INT);
    let said = watching.wait().exits_with(130);
    assert!(said.stdout.contains("elected: b, term "), "{said:?}");
    assert_eq!(env.run(env.tenure(["leader", "--store", url, "api"])).exits_with(1).stdout, "");

    once("broken", "exit 4").exits_with(4);
    let failed = r#"alertname="TenureJobFailed",severity="warning",name="broken",outcome="failed""#;
    let no_leader = r#"alertname="TenureNoLeader",severity="critical",election="api""#;
    alerts_are(env, url, &[failed, no_leader]);
}

#[test]
fn a_name_that_is_a_job_or_an_election_is_said_to_be_one() {
    let env = TestEnv::shared();
    let running = env.start_script(&["--once-per", LONG], "digest", "READY; exec sleep 60");
    env.pid("up");
    let leader = env.start(env.tenure(["elect", "api", "--", "sh", "-c", "touch leads; exec sleep 60"]));
    leader.eventually("it leads", || env.path("leads").exists());
    let listed = env.run(env.tenure(["list", "--sort", "name"])).exits_with(0).stdout;
    let kinds: Vec<_> = listed.lines().map(|line| line.split('\t').nth(1).expect("a kind")).collect();
    assert_eq!(kinds, ["election", "job"], "{listed}");
    let listed = env.run(env.tenure(["list", "--json", "--filter", "kind=job"])).exits_with(0).stdout;
    let job: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
    assert_eq!((&job["name"], &job["kind"], &job["held"]), (&"digest".into(), &"job".into(), &true.into()));
    assert!(job["holders"][0]["fence"].as_u64() > Some(0), "{listed}");
    for (name, what) in [("digest", "--job"), ("api", "--election")] {
        let flag = format!("`tenure stop {what} {name}`");
        for verb in [&["stop"][..], &["release", "--force"]] {
            env.run(env.tenure([verb, &[name]].concat())).exits_with(1).says(&flag);
        }
        let status = env.run(env.tenure(["status", name])).exits_with(1);
        assert!(status.stdout.contains(&format!("`tenure stop {what}`")), "{status:?}");
    }
    env.run(env.tenure(["jobs", "--forget", "digest"])).exits_with(75).says("`tenure stop --job`");
    running.signal(Signal::TERM);
    running.wait().exits_with(143);
    env.run(env.tenure(["jobs", "--forget", "digest"])).exits_with(0).says_nothing();
    env.run(env.tenure(["jobs", "digest"])).exits_with(1).says("no run of a job");
    assert_eq!(env.run(env.tenure(["jobs"])).exits_with(0).stdout, "");
    env.run(env.tenure(["jobs", "--forget"])).exits_with(64).says("<NAME>");
    // A lock that is free, with a name of its own.
    env.run(env.tenure(["stop", "other"])).exits_with(1).says_nothing();
}

#[test]
fn a_job_that_runs_is_said_to_and_its_window_stays_closed_when_its_runner_dies() {
    let env = TestEnv::shared();
    let once = ["--once-per", LONG, "--ttl", "1s"];
    let running = env.start_script(&once, "digest", "READY; while :; do sleep 0.02; done");
    env.pid("up");
    env.tenure_run(["--once-per", LONG, "digest", "true"]).exits_with(75).says("is running");
    let by_hand = |script: &str| env.tenure_run(["--once-per", LONG, "--again", "digest", "-c", script]);
    by_hand("touch beside").exits_with(75).says("is running");
    assert!(!env.path("beside").exists());
    running.signal(Signal::KILL);
    running.wait();
    let asked = || env.tenure_run(["--once-per", LONG, "digest", "true"]).exits_with(75);
    eventually("its lock is free", SOON, || asked().stderr.contains("by a run that died"));
    let status = env.run(env.tenure(["status", "digest"])).exits_with(1);
    assert!(status.stdout.contains(" ago: died or lost its lock\n"), "{status:?}");
    // `--retry-lost` opens the window.
    let again = ["--once-per", LONG, "--retry-lost", "digest", "-c", "touch again"];
    env.tenure_run(again).exits_with(0).says_nothing();
    assert!(env.path("again").exists());
    env.tenure_run(again).exits_with(75).says("has run in this window");
}

#[test]
fn a_run_by_hand_follows_a_run_that_died() {
    let env = TestEnv::new();
    let server = Server::start();
    let url = server.url();
    let run = |more: &[&str], script: &str| {
        let options = ["--store", &url, "--once-per", LONG];
        env.tenure_run([&options[..], more, &["digest", "-c", script]].concat())
    };
    let running = env.start_script(&["--store", &url, "--once-per", LONG], "digest", "READY; exec sleep 60");
    env.pid("up");
    running.signal(Signal::KILL);
    running.wait();
    let died = || run(&[], "true").exits_with(75).stderr.contains("by a run that died");
    eventually("its lock is free", SOON, died);
    // A failure leaves the window as it was.
    run(&["--again"], "exit 3").exits_with(3).says_nothing();
    run(&["--retry-lost"], "true").exits_with(75).says("has run in this window");
    run(&["--again"], "touch done").exits_with(0).says_nothing();
    assert!(env.path("done").exists());
    // Another version's record, and one of a wrong clock.
    let key = "tenure:rec:once:{digest}";
    let done = server.command(&["GET", key]).text().to_owned();
    let [at, format, state, _, _, rest @ ..] = &done.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{done}")
    };
    let ahead = format!("{at} {format} {state} {} {} {}", u64::MAX - 1, u64::MAX, rest.join(" "));
    for (record, says) in [("1 2 later", "cannot read its record"), (&ahead, "which is far ahead")] {
        server.command(&["SET", key, record]);
        let said = run(&[], "true").exits_with(69).says(says);
        assert!(said.stderr.contains("`tenure run --again`"), "{said:?}");
        run(&["--again"], "true").exits_with(0).says_nothing();
        run(&[], "true").exits_with(75).says("has run in this window");
    }
}

#[test]
fn what_cannot_be_once_per_period_is_refused() {
    let env = TestEnv::shared();
    for (options, says) in [
        (&["--fair"][..], "--fair"),
        (&["-w", "1s"], "--wait"),
        (&["--also", "y"], "--also"),
        (&["--min-hold", "1s"], "--min-hold"),
        (&["--store", "redis-quorum://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"], "quorum"),
    ] {
        let options = [&["--once-per", "1h"], options].concat();
        env.tenure_run(options.into_iter().chain(["x", "--", "true"])).exits_with(64).says_among_others(says);
    }
    let said = env.tenure_run(["--again", "x", "--", "true"]).exits_with(64);
    said.says_among_others("--once-per <PERIOD>");
    env.tenure_run(["--once-per", "0s", "x", "--", "true"]).exits_with(64).says_among_others("period");
}

#[test]
fn what_hosts_do_together_needs_a_store_that_is_named() {
    let env = TestEnv::new();
    let together: [&[&str]; 7] = [
        &["run", "--once-per", "1d", "x", "--", "touch", "ran"],
        &["run", "--once-per", "1d", "--again", "x", "--", "touch", "ran"],
        &["elect", "x", "--", "touch", "ran"],
        &["leader", "x"],
        &["stop", "--election", "x"],
        &["stop", "--job", "x"],
        &["serve", "--listen", "127.0.0.1:0"],
    ];
    for words in together {
        let said =
            env.run(env.tenure(words)).exits_with(64).says("none is configured: write --store redis://HOST");
        assert!(said.stderr.contains("--store file:DIR is for this machine alone"), "{said:?}");
    }
    assert!(!env.path("ran").exists() && !env.store().exists());
    let url = env.url();
    let named = |words: &[&str]| env.tenure([&words[..1], &["--store", &url], &words[1..]].concat());
    env.run(named(together[0])).exits_with(0).says_nothing();
    let mut elect = env.tenure(together[2]);
    elect.env("TENURE_STORE", &url);
    env.run(elect).exits_with(0).says_nothing();
    // A lock may be for one machine.
    env.tenure_run(["y", "--", "true"]).exits_with(0).says_nothing();
    env.run(env.tenure(["stop", "x"])).exits_with(1);
}

#[test]
fn one_candidate_leads_and_the_next_when_it_ends() {
    let env = TestEnv::new();
    let server = Server::start();
    let candidate = |payload: &str, script: &str| {
        let mut elect = env.tenure(["elect", "--store", &server.url(), "--payload", payload]);
        elect.args(["api", "-c", script]);
        env.start(elect)
    };
    let leader = |more: &[&str]| {
        let mut leader = env.tenure(["leader", "--store", &server.url()]);
        leader.args(more).arg("api");
        env.run(leader)
    };
    leader(&[]).exits_with(1).says_nothing();
    let script =
        |me: &str| format!("echo $TENURE_FENCE > {me}; while [ ! -e end-{me} ]; do sleep 0.02; done; exit 7");
    let first = candidate("host-1:8080", &script("one"));
    first.eventually("it leads", || env.path("one").exists());
    let second = candidate("host-2:8080", &script("two"));
    let told = leader(&["--json"]).exits_with(0);
    assert!(told.stdout.contains("\"payload\":\"host-1:8080\""), "{told:?}");
    assert!(told.stdout.contains("\"owner\":\"alice@"), "{told:?}");
    assert!(!env.path("two").exists(), "two lead");
    fs::write(env.path("end-one"), "").expect("a file");
    first.wait().exits_with(7);
    second.eventually("the next leads", || env.path("two").exists());
    leader(&[]).exits_with(0).says_nothing();
    let terms = ["one", "two"].map(|me| {
        second.eventually("its term is written", || env.read(me).ends_with('\n'));
        env.read(me).trim().parse::<u64>().expect("a token")
    });
    assert!(terms[0] < terms[1], "{terms:?}");
    second.signal(Signal::TERM);
    second.wait().exits_with(143);
    leader(&[]).exits_with(1);
}

#[test]
fn jobs_and_leaders_work_in_a_directory_and_on_redis() {
    let (one, other) = (TestEnv::new(), TestEnv::new());
    a_job_and_a_leader(&one, &one.url());
    a_job_and_a_leader(&other, &Server::start().url());
}

#[test]
fn a_candidate_prints_each_change_of_who_leads() {
    let env = TestEnv::new();
    let (redis, postgres) = (Server::start(), Postgres::start());
    for (at, url) in [env.url(), redis.url(), postgres.url("elect")].iter().enumerate() {
        let elect = |payload: &str, command: &[&str]| {
            let words =
                [&["elect", "--print", "--store", url, "--payload", payload, "api", "--"], command].concat();
            env.start(env.tenure(words))
        };
        let leads = format!("leads-{at}");
        let first = elect("a", &["sh", "-c", &format!("touch {leads}; exec sleep 60")]);
        first.eventually("it leads", || env.path(&leads).exists());
        let second = elect("b", &["echo", "output"]);
        second.eventually("it is told", || second.stderr().contains("tenure: elected: a, term "));
        first.signal(Signal::TERM);
        let words = |stderr: &str| {
            let changes = stderr.lines().filter(|line| !line.starts_with("tenure: warning: "));
            changes.map(|line| line.split(", ").next().unwrap_or_default().to_owned()).collect::<Vec<_>>()
        };
        let said = first.wait().exits_with(143);
        assert_eq!(words(&said.stderr)[..2], ["tenure: elected: a", "tenure: resigned: a"], "{said:?}");
        assert_eq!(said.stdout, "");
        // Its command ends before the observer polls again.
        let said = second.wait().exits_with(0);
        let all = ["elected: a", "resigned: a", "elected: b", "resigned: b"];
        assert_eq!(words(&said.stderr), all.map(|change| format!("tenure: {change}")), "{said:?}");
        assert_eq!(said.stdout, "output\n");
    }
    env.run(env.tenure(["elect", "--print", "-q", "api", "true"])).exits_with(64).says("--quiet");
}

#[test]
fn status_tells_of_an_election_and_a_job_of_the_name() {
    let env = TestEnv::new();
    let server = Server::start();
    for url in [env.url(), server.url()] {
        env.tenure_run(["--store", &url, "api", "true"]).exits_with(0);
        let status = || env.run(env.tenure(["status", "--store", &url, "api"])).exits_with(1).stdout;
        assert!(!status().contains("of this name"));
        let script = "READY; exec sleep 30";
        let job = env.start_script(&["--store", &url, "--once-per", LONG], "api", script);
        let leads = env.path("leads");
        let lead = ["elect", "--store", &url, "api", "--", "sh", "-c", "touch leads; exec sleep 30"];
        let leader = env.start(env.tenure(lead));
        leader.eventually("it leads", || leads.exists());
        let said = status();
        assert!(said.starts_with("free\nstore: "), "{said}");
        let pid = |of: &crate::env::Running| format!("pid {}", of.pid().as_raw_nonzero());
        for (what, verb, of) in
            [("election", "`tenure leader`", &leader), ("job", "`tenure stop --job`", &job)]
        {
            let line =
                said.lines().find(|line| line.starts_with(&format!("{what} of this name"))).unwrap_or("");
            assert!(line.contains(&pid(of)) && line.contains(verb), "{what}: {said}");
        }
        for running in [job, leader] {
            running.signal(Signal::TERM);
            running.wait();
        }
        fs::remove_file(leads).expect("a file");
        let said = status();
        assert!(
            !said.contains("election of this name") && said.contains(" ago: failed: signal: 15"),
            "{said}"
        );
    }
}

#[test]
fn a_leader_that_cannot_renew_is_stopped_before_another_leads() {
    let env = TestEnv::new();
    let server = Server::start();
    let mut elect = env.tenure(["elect", "--store", &server.url(), "--ttl", "2s", "--grace", "500ms"]);
    elect.args(["api", "-c", "echo up > up; while :; do sleep 0.02; done"]);
    let leading = env.start(elect);
    leading.eventually("it leads", || env.path("up").exists());
    server.stop();
    leading.wait_for(Duration::from_secs(30)).exits_with(79).says_among_others("the command was stopped");
    server.cont();
}

#[test]
fn a_restart_grace_is_no_run_of_a_job() {
    let env = TestEnv::new();
    let server = Server::start();
    // The first use of a server begins a grace.
    let once = |grace: &str, more: &[&str]| {
        let options = ["--store", &server.url(), "--once-per", LONG, "--restart-grace", grace, "--ttl", "1s"];
        env.tenure_run([&options[..], more, &["digest", "-c", "echo ran >> digest"]].concat())
    };
    let said =
        once("10m", &["-E", "0"]).exits_with(69).says("nothing during its restart-grace, for another ");
    assert!(!said.stderr.contains("in this window") && said.took < SOON, "{said:?}");
    assert!(!env.path("digest").exists());
    server.command(&["DEL", "tenure:epoch"]);
    once("3s", &[]).exits_with(0).says_nothing();
    assert_eq!(env.read("digest"), "ran\n");
    once("3s", &[]).exits_with(75).says("has run in this window");
}

#[test]
fn a_result_that_cannot_be_stored_is_said() {
    for (options, says) in [
        (&["--retry-lost"][..], "the job may run again in this window: "),
        (&[], "the job does not run again in this window: "),
    ] {
        let env = TestEnv::new();
        let server = Server::start();
        let url = server.url();
        let options = [&["--store", &url, "--once-per", LONG, "--ttl", "2s"], options].concat();
        let running = env.start_script(&options, "digest", UNTIL_END);
        env.pid("up");
        server.kill();
        env.end();
        let said = running.wait().exits_with(0).says(says);
        assert!(said.stderr.contains("result not stored, and the run counts as lost"), "{said:?}");
    }
}

#[test]
fn a_result_is_stored_once_the_server_is_back() {
    let env = TestEnv::new();
    let kept = Config::new().set("appendonly", "yes").set("appendfsync", "always").keep_data();
    let server = Server::start_with(kept);
    let url = server.url();
    let once = ["--store", &url, "--once-per", LONG, "--retry-lost", "--ttl", "1m"];
    let running =
        env.start_script(&once, "digest", "READY; while [ ! -e end ]; do sleep 0.02; done; touch over");
    env.pid("up");
    server.kill();
    env.end();
    running.eventually("the command is over", || env.path("over").exists());
    server.restart();
    running.wait().exits_with(0).says_nothing();
    let again = [&once[..], &["digest", "-c", "touch again"]].concat();
    env.tenure_run(again).exits_with(75).says("has run in this window");
}

/// The store would otherwise be waited for until the lease ends.
#[test]
fn a_signal_ends_the_wait_for_a_result_that_nobody_takes() {
    for options in [&["--once-per", LONG][..], &[]] {
        let (env, server) = (TestEnv::new(), Server::start());
        let url = server.url();
        let options = [&["--store", &url, "--ttl", "10m"], options].concat();
        let running = env.start_script(
            &options,
            "digest",
            "READY; while [ ! -e end ]; do sleep 0.02; done; touch over",
        );
        env.pid("up");
        server.kill();
        env.end();
        running.eventually("the command is over", || env.path("over").exists());
        // The first may still go to the command.
        running.eventually("it ends", || {
            running.signal(Signal::TERM);
            std::thread::sleep(ms(100));
            running.has_ended()
        });
        let said = running.wait_for(SOON);
        assert!([0, 143].contains(&said.code().expect("a code")), "{said:?}");
        said.says("a signal to end came before the store's answer");
    }
}

#[test]
fn a_signal_ends_a_scheduler_while_it_waits_for_the_store() {
    let (env, server) = (TestEnv::new(), Server::start());
    let url = server.url();
    let options = ["--store", &url, "--ttl", "10m", "--once-per", LONG, "--forever"];
    let running = env.start_script(&options, "digest", "READY; while [ ! -e end ]; do sleep 0.02; done");
    env.pid("up");
    server.kill();
    env.end();
    running.command_has_ended();
    running.signal(Signal::TERM);
    running.wait_for(SOON).exits_with(0).says("a signal to end came before the store's answer");
}

#[test]
fn a_signal_ends_a_scheduler_whose_run_is_asked_to_stop() {
    let env = TestEnv::new();
    let script = "trap 'touch told' TERM; READY; while [ ! -e end ]; do sleep 0.02; done; exit 3";
    let url = env.url();
    let running = env.start_script(&["--store", &url, "--once-per", LONG, "--forever"], "digest", script);
    env.pid("up");
    running.signal(Signal::TERM);
    running.eventually("the command is told", || env.path("told").exists());
    let stop = env.start(env.tenure(["stop", "--store", &url, "--job", "-w", "20s", "digest"]));
    fs::remove_file(env.path("told")).expect("a file");
    running.eventually("the request has arrived", || env.path("told").exists());
    env.end();
    running.wait_for(SOON).exits_with(3).says_among_others("asked to stop by");
    stop.wait().exits_with(0);
}

#[test]
fn a_signal_while_the_beginning_is_recorded_leaves_the_window_open() {
    let (env, server) = (TestEnv::new(), Server::start());
    let proxy = Proxy::start(server.address());
    proxy.set(Fault::Delay(ms(150)));
    let run = |url: &str, name: &str| {
        let script = format!("touch ran-{name}");
        env.tenure_run_command(["--store", url, "--once-per", LONG, name, "-c", &script])
    };
    // On a slow machine the command has begun before the signal.
    let in_time = ["a", "b", "c", "d", "e"].into_iter().find(|name| {
        let running = env.start(run(&proxy.url(), name));
        let record = format!("tenure:rec:once:{{{name}}}");
        running.eventually("its beginning is recorded", || server.has(&record));
        running.signal(Signal::TERM);
        running.wait().exits_with(143);
        !env.path(&format!("ran-{name}")).exists()
    });
    env.run(run(&server.url(), in_time.expect("a signal in time"))).exits_with(0);
}

#[test]
fn status_tells_when_the_lock_of_a_dead_runner_ends() {
    let env = TestEnv::new();
    let server = Server::start();
    let url = server.url();
    let script = "READY; exec sleep 30";
    let job = env.start_script(&["--store", &url, "--once-per", LONG, "--ttl", "1m"], "digest", script);
    env.pid("up");
    let status = |more: &[&str]| {
        let words = [&["status", "--store", &url], more, &["digest"]].concat();
        env.run(env.tenure(words)).exits_with(1).stdout
    };
    let said = status(&[]);
    assert!(said.contains(" ago: running, ") && said.contains("s left; see `tenure stop --job`"), "{said}");
    let told: serde_json::Value = serde_json::from_str(&status(&["--json"])).expect("JSON");
    let run = &told["last_run"];
    assert_eq!((&told["leader"], &run["error"]), (&serde_json::Value::Null, &serde_json::Value::Null));
    assert_eq!(run["outcome"], "running", "{told}");
    assert!((1..=60_000).contains(&run["remaining_ms"].as_u64().expect("a lease")), "{told}");
    assert!(run["begun_ms"].as_u64().expect("a time") < run["window_end_ms"].as_u64().expect("a time"));
    // It no longer notices a request to stop.
    job.signal(Signal::STOP);
    let stop = ["stop", "--job", "--store", &url, "-w", "100ms", "digest"];
    env.run(env.tenure(stop)).exits_with(75).says("or, if it is dead, wait: its lock ends in ");
    job.signal(Signal::CONT);
    job.signal(Signal::TERM);
    job.wait();
    let told: serde_json::Value = serde_json::from_str(&status(&["--json"])).expect("JSON");
    let run = &told["last_run"];
    assert_eq!(
        (&run["outcome"], &run["remaining_ms"]),
        (&"failed".into(), &serde_json::Value::Null),
        "{told}"
    );
    assert!(run["error"].as_str().expect("a reason").contains("signal: 15"), "{told}");
}

#[test]
fn a_leader_needs_time_to_end() {
    let env = TestEnv::new();
    let said = env.run(env.tenure(["elect", "--grace", "0", "scheduler", "--", "touch", "ran"]));
    said.exits_with(64).says("--grace must be longer than 0s");
    assert!(!env.path("ran").exists());
}
