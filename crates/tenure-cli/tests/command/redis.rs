//! The command and a Redis server that fails or is busy, and what it shows of the server.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rustix::process::Pid;
use tenure_testkit::proxy::{Fault, Proxy};
use tenure_testkit::servers::{Authority, Config, Server};

use crate::env::{Outcome, Running, TestEnv, UNTIL_END, full_pipe, is_alive, ms, now};

const TTL_MS: u64 = 3_000;
const GRACE_MS: u64 = 1_000;
/// Logs that it is told to end, and ignores that.
const STUBBORN: &str = "trap 'echo > told' TERM; READY; while :; do sleep 0.01; done";

/// Starts a stubborn script under the lock `x` of this store.
fn start(env: &TestEnv, url: &str) -> (Running, Pid) {
    let (ttl, grace) = (format!("{TTL_MS}ms"), format!("{GRACE_MS}ms"));
    let options = ["--store", url, "--ttl", &ttl, "--grace", &grace];
    let running = env.start_script(&options, "x", STUBBORN);
    (running, env.pid("up"))
}

/// A lower bound of the lease's end on the server, just after a renewal, so that none is in flight.
fn lease_end(server: &Server, running: &Running) -> Duration {
    let mut end = Duration::ZERO;
    running.eventually("a renewal", || {
        let asked = now();
        let left = server.command(&["PTTL", "x"]).int() as u64;
        end = asked + ms(left);
        left > TTL_MS - 100
    });
    end
}

/// Upper bounds of when the child was told to end, and of when it was gone.
fn watch(env: &TestEnv, running: &Running, child: Pid) -> (Duration, Duration) {
    let (mut told, mut gone) = (None, None);
    running.eventually("the child is gone", || {
        if told.is_none() && env.path("told").exists() {
            told = Some(now());
        }
        if !is_alive(child) {
            gone = Some(now());
        }
        gone.is_some()
    });
    (told.expect("it was told before"), gone.expect("it is gone"))
}

/// While the server does not answer but still has the lock, the child is gone before the lease ends and
/// another client can hold.
fn gone_in_time(what: &str, server: &Server, url: &str, spoil: impl Fn(), restore: impl Fn()) {
    let env = TestEnv::new();
    let (running, child) = start(&env, url);
    let lease_end = lease_end(server, &running);
    spoil();
    let (told, gone) = watch(&env, &running, child);
    assert!(gone < lease_end, "{what}: the child outlived the lease by {:?}", gone - lease_end);
    println!(
        "{what}: told {:?}, gone {:?} before another could get the lease",
        lease_end - told,
        lease_end - gone
    );
    restore();
    running.wait().exits_with(79).says_among_others("lost"); // the shell may report the end of its `sleep`
    // Requests still in flight to the server cost at most one more lease.
    let next = env.run(env.tenure(["run", "--store", &server.url(), "-w", "5", "x", "--", "true"]));
    next.exits_with(0).says_nothing();
}

#[test]
fn a_stopped_server_costs_the_child_its_life_before_the_lease_is_over() {
    let server = Server::start();
    gone_in_time("stopped", &server, &server.url(), || server.stop(), || server.cont());
}

#[test]
fn a_silent_network_costs_the_child_its_life_before_the_lease_is_over() {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let spoil = || proxy.set(Fault::BlackHole);
    gone_in_time("black hole", &server, &proxy.url(), spoil, || proxy.set(Fault::None));
}

#[test]
fn a_network_that_refuses_costs_the_child_its_life_before_the_lease_is_over() {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let spoil = || {
        proxy.set(Fault::Refuse);
        proxy.reset();
    };
    gone_in_time("refused", &server, &proxy.url(), spoil, || proxy.set(Fault::None));
}

/// If the server has lost the lock, the child is gone within `grace` of the moment tenure learns of it.
fn gone_within_grace(what: &str, server: &Server, empty: impl Fn()) {
    let env = TestEnv::new();
    let (running, child) = start(&env, &server.url());
    lease_end(server, &running);
    empty();
    let emptied = now();
    let (told, gone) = watch(&env, &running, child);
    // Both are polled every 2 ms.
    assert!(gone < told + ms(GRACE_MS), "{what}: {:?} after it was told", gone - told);
    let told = told.saturating_sub(emptied);
    println!("{what}: told {told:?} after it was there again, gone {:?} after", gone - emptied);
    running.wait().exits_with(79).says_among_others("lost"); // the shell may report the end of its `sleep`
}

#[test]
fn a_server_that_comes_back_empty_costs_the_child_its_life_within_the_grace() {
    let server = Server::start();
    gone_within_grace("restarted empty", &server, || server.restart());
}

#[test]
fn a_killed_server_that_comes_back_costs_the_child_its_life_within_the_grace() {
    let server = Server::start();
    gone_within_grace("killed, and empty after 300 ms", &server, || {
        server.kill();
        std::thread::sleep(ms(300));
        server.restart();
    });
}

#[test]
fn a_flushed_server_costs_the_child_its_life_within_the_grace() {
    let server = Server::start();
    gone_within_grace("flushed", &server, || drop(server.command(&["FLUSHALL"])));
}

#[test]
fn the_systems_authorities_are_those_that_ssl_cert_file_names() {
    let env = TestEnv::new();
    let authority = Authority::new();
    let config = Config::new().tls(&authority, &authority.certify("127.0.0.1")).set("tls-auth-clients", "no");
    let server = Server::start_with(config);
    let url = server.url();
    let run = |trusted: PathBuf| {
        let mut command = env.tenure_run_command(["--store", &url, "x", "--", "touch", "ran"]);
        command.env("SSL_CERT_FILE", trusted).env_remove("SSL_CERT_DIR");
        env.run(command)
    };
    run(Authority::new().ca()).exits_with(69).says_among_others("ca=FILE");
    let other = Authority::new();
    run(other.ca()).exits_with(69).says_among_others("UnknownIssuer");
    assert!(!env.path("ran").exists());
    run(authority.ca()).exits_with(0).says_nothing();
    assert!(env.path("ran").exists());
}

#[test]
fn a_wait_for_a_server_ends_in_time() {
    let env = TestEnv::new();
    let server = Server::start();
    let wait = |url: &str| {
        let run = || env.tenure_run(["--store", url, "-w", "1.2", "x", "--", "touch", "ran"]);
        let said = env.within(ms(1_400), run);
        assert!(said.took >= ms(1_150), "{said:?}");
        said
    };
    server.command(&["SET", "x", "a foreign token", "PX", "60000"]);
    wait(&server.url()).exits_with(75).says("busy");
    server.command(&["DEL", "x"]);
    let holder = start(&env, &server.url());
    wait(&server.url()).exits_with(75).says("busy");
    let proxy = Proxy::start(server.address());
    proxy.set(Fault::BlackHole);
    wait(&proxy.url()).exits_with(69).says("cannot reach store");
    server.stop();
    wait(&server.url()).exits_with(69).says("cannot reach store");
    server.kill();
    wait(&server.url()).exits_with(69).says("refused");
    drop(holder);
    assert!(!env.path("ran").exists());
}

#[test]
fn a_wait_for_a_server_that_loads_its_data_ends_while_it_does() {
    let env = TestEnv::new();
    let server = Server::loading(Duration::from_secs(30));
    let url = server.url();
    let wait = |limit: &str| env.tenure_run(["--store", &url, "-w", limit, "x", "--", "touch", "ran"]);
    let said = wait("0.5").exits_with(69).says("LOADING");
    assert!(said.took >= ms(450) && server.is_loading(), "{said:?}");
    assert!(!env.path("ran").exists());
    server.finish_loading();
    wait("20").exits_with(0).says_nothing();
    assert!(env.path("ran").exists());
}

#[test]
fn status_and_list_show_holders_of_ours_and_of_others() {
    let env = TestEnv::new();
    let server = Server::start();
    let url = server.url();
    server.command(&["SET", "app:foreign", "550e8400\n", "PX", "60000"]);
    server.command(&["SET", "app:forever", "somebody"]);
    let (ours, _) = {
        let options = ["--store", &url, "--prefix", "app:", "--ttl", "1h"];
        let running = env.start_script(&options, "ours", "echo $TENURE_FENCE > fence; READY; exec sleep 30");
        let pid = env.pid("up");
        (running, pid)
    };
    let ask = |args: &[&str]| env.run(env.tenure(args.iter().chain(&["--store", &url])));
    let pid = format!("pid {}", ours.pid().as_raw_nonzero());
    let said = ask(&["status", "app:ours"]).exits_with(0).says_nothing();
    for word in ["mutex", "holder: alice@", &pid, "59m ", "left", env.read("fence").trim()] {
        assert!(said.stdout.contains(word), "{word}: {said:?}");
    }
    let said = ask(&["status", "app:foreign"]).exits_with(0).says_nothing();
    assert_eq!(said.stdout.lines().count(), 3, "{said:?}");
    assert!(said.stdout.contains("holder: another program, a string of 9 bytes, 59s left"), "{said:?}");
    let said = ask(&["status", "--prefix", "app:", "forever"]).exits_with(0).says_nothing();
    assert!(said.stdout.contains("holder: another program, a string of 8 bytes, without end"), "{said:?}");
    let said = ask(&["status", "app:nobody"]).exits_with(1).says_nothing();
    assert!(said.stdout.starts_with("free\nstore: redis://"), "{said:?}");

    // Without a prefix, locks of other programs cannot be told from other strings.
    for (args, names) in [
        (&["list"][..], &["app:ours"][..]),
        (&["list", "app:"], &["app:foreign", "app:forever", "app:ours"]),
        (&["list", "--prefix", "app:", "for"], &["foreign", "forever"]),
    ] {
        let said = ask(args).exits_with(0).says_nothing();
        let mut found: Vec<&str> = said.stdout.lines().filter_map(|line| line.split('\t').next()).collect();
        found.sort_unstable();
        assert_eq!(found, names, "{said:?}");
    }
    let said =
        env.tenure_run(["--store", &url, "-v", "-w", "0.2", "app:foreign", "--", "true"]).exits_with(75);
    assert!(said.stderr.contains("waiting for another program, a string of 9 bytes"), "{said:?}");
}

#[test]
fn a_password_in_the_environment_is_never_shown() {
    let env = TestEnv::new();
    let server = Server::start_with(Config::new().password("hush-hush"));
    let place = server.address();
    let hidden = |said: Outcome| {
        let shown = format!("{}{}", said.stdout, said.stderr);
        assert!(!shown.contains("hush"), "{said:?}");
        said
    };
    let with = |url: &str, mut command: Command| {
        hidden(env.run({
            command.env("TENURE_STORE", url);
            command
        }))
    };
    let right = format!("redis://:hush-hush@{place}");
    with(&right, env.tenure(["run", "-v", "x", "--", "true"])).exits_with(0);
    with(&right, env.tenure(["status", "x"])).exits_with(1);
    with(&right, env.tenure(["run", "--help"])).exits_with(0);
    with(&right, env.tenure(["run", "--frobnicate"])).exits_with(64);

    let wrong = format!("redis://ann:hush-puppy@{place}/1");
    let malformed = format!("redis://:hush/hush@{place}");
    for args in [&["run", "-v", "-w", "0.3", "x", "--", "true"][..], &["status", "x"], &["list"]] {
        with(&wrong, env.tenure(args)).exits_with(69).says("WRONGPASS");
        with(&malformed, env.tenure(args)).exits_with(64).says("URL");
    }
    // The server is down, and has lost its data.
    let mut command =
        env.tenure(["run", "--ttl", "900ms", "x", "--", "sh", "-c", "echo > up; exec sleep 30"]);
    command.env("TENURE_STORE", &right);
    let running = env.start(command);
    running.eventually("it is up", || env.path("up").exists());
    server.kill();
    hidden(running.wait().exits_with(79)).says("lost");
    for args in [&["run", "-v", "-w", "0.3", "x", "--", "true"][..], &["status", "x"], &["list"]] {
        with(&right, env.tenure(args)).exits_with(69);
    }
}

#[test]
fn what_the_library_warns_of_is_said_unless_nothing_is_to_be() {
    let env = TestEnv::new();
    let server = Server::start_with(Config::new().user("mute on >pw ~* &* +@all -publish"));
    let other = Server::start();
    let mute = server.url().replace("redis://", "redis://mute:pw@");
    let even = format!("redis-quorum://{},{}", server.address(), other.address());
    for (url, says) in [(mute, "cannot wake the waiters"), (even, "even number")] {
        let run = |more: &[&str]| {
            // A server of a quorum that has just started does not vote.
            let patient = &["run", "--ttl", "1s", "-w", "30", "--store", &url];
            env.run(env.tenure([patient, more, &["x", "--", "true"]].concat())).exits_with(0)
        };
        let said = run(&[]).says("warning: ").says(says);
        assert_eq!(said.stdout, "", "{said:?}");
        run(&["-q"]).says_nothing();
    }
    let even = format!("redis-quorum://{},{}", server.address(), other.address());
    env.run(env.tenure(["status", "--store", &even, "x"])).exits_with(1).says("even number");
}

#[test]
fn what_a_grant_rests_on_can_be_asked_for() {
    let env = TestEnv::new();
    let server = Server::start_with(Config::new().user("plain on >pw ~* &* +@all -@scripting"));
    let run = |url: &str, more: &[&str]| {
        let (options, script) =
            (&["run", "--ttl", "1s", "--store", url], &["x", "--", "sh", "-c", "echo $TENURE_FENCE"]);
        env.run(env.tenure([&options[..], more, script].concat()))
    };
    let plain = server.url().replace("redis://", "redis://plain:pw@");
    run(&plain, &[]).exits_with(64).says("unfenced");
    assert_eq!(run(&plain, &["--unfenced"]).exits_with(0).says_nothing().stdout, "0\n");
    run(&server.url(), &["-w", "0.5", "--acks", "1"]).exits_with(69).says("replicas");
    // The first use of a server starts a grace.
    run(&server.url(), &["-n", "--restart-grace", "1s"]).exits_with(75).says("busy");
    run(&server.url(), &["-w", "20", "--restart-grace", "1s"]).exits_with(0).says_nothing();
    // In the URL, and in both places.
    let url = format!("{}?restart-grace=1s", server.url());
    run(&url, &["-w", "20"]).exits_with(0).says_nothing();
    run(&url, &["-w", "20", "--restart-grace", "1000ms"]).exits_with(0).says_nothing();
}

#[test]
fn a_warning_that_is_not_read_delays_no_renewal() {
    let env = TestEnv::new();
    let servers = [Server::start(), Server::start()];
    let even = format!("redis-quorum://{},{}", servers[0].address(), servers[1].address());
    let (_reader, writer) = full_pipe();
    let mut command =
        env.tenure(["run", "--ttl", "3s", "-w", "30", "--store", &even, "x", "--", "sleep", "4"]);
    command.stderr(writer);
    let started = now();
    assert_eq!(command.status().expect("a process").code(), Some(0));
    assert!(now() - started < ms(30_000));
}

/// A replica may lag behind its master, and lack locks.
#[test]
fn a_replica_is_not_believed() {
    let env = TestEnv::new();
    let master = Server::start();
    let of_master = format!("127.0.0.1 {}", master.address().port());
    let replica = Server::start_with(Config::new().set("replicaof", &of_master));
    let (_holder, _) = start(&env, &master.url());
    let url = replica.url();
    for args in [&["status", "x"][..], &["list"], &["run", "-n", "x", "touch", "ran"]] {
        let args = [&args[..1], &["--store", &url], &args[1..]].concat();
        env.run(env.tenure(args)).exits_with(69).says("this server is a replica; name its master");
    }
    // It is queried again each time, because it may be promoted.
    let waiter = env.start(env.tenure_run_command(["--store", &url, "-w", "30", "y", "--", "true"]));
    replica.command(&["REPLICAOF", "NO", "ONE"]);
    waiter.wait_for(ms(40_000)).exits_with(0).says_nothing();
    env.run(env.tenure(["status", "--store", &url, "y"])).exits_with(1).says_nothing();
}

#[test]
fn a_server_of_another_protocol_is_told_from_one_that_hangs_up() {
    let env = TestEnv::new();
    for (reply, says) in [
        ("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", "it does not speak the Redis protocol"),
        ("", "it closed the connection without a reply"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("redis://{}", listener.local_addr().expect("an address"));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                let _ = stream.read(&mut [0; 1024]);
                let _ = stream.write_all(reply.as_bytes());
            }
        });
        env.run(env.tenure(["status", "--store", &url, "x"])).exits_with(69).says(says);
    }
}

#[test]
fn a_forced_release_leaves_what_is_no_lock_and_says_what_it_is() {
    let env = TestEnv::new();
    let server = Server::start();
    let url = server.url();
    let run = |verb: &str, args: &[&str]| env.run(env.tenure([&[verb, "--store", &url][..], args].concat()));
    server.command(&["SET", "text", "hunter2"]);
    server.command(&["RPUSH", "list", "hunter2", "b", "c"]);
    server.command(&["HSET", "hash", "hunter2", "1"]);
    let all = [("text", "a string of 7 bytes"), ("list", "a list"), ("hash", "a hash")];
    for (name, what) in all {
        let said = run("status", &[name]).exits_with(0).says_nothing();
        let holder = format!("held by another program\nholder: another program, {what}, without end\n");
        assert!(said.stdout.starts_with(&holder), "{said:?}");
        let said = run("status", &["--json", name]).exits_with(0).says_nothing();
        assert!(said.stdout.contains(what) && !said.stdout.contains("hunter2"), "{said:?}");
        let said = run("release", &["--force", name]).exits_with(65).says("not a lock of tenure");
        assert!(said.stderr.contains(what) && said.stdout.is_empty(), "{said:?}");
        assert!(!said.stderr.contains("hunter2"), "{said:?}");
    }
    let said = run("list", &["t"]).exits_with(0).says_nothing();
    assert!(said.stdout.contains("7 bytes") && !said.stdout.contains("hunter2"), "{said:?}");
    for name in ["list", "hash"] {
        run("release", &["--force", "--foreign", name]).exits_with(65).says("not a lock of tenure");
    }
    run("release", &["--force", "text"]).exits_with(65).says("--foreign");
    assert_eq!(server.command(&["EXISTS", "text", "list", "hash"]).int(), 3);
    let said = run("release", &["--force", "--foreign", "text"]).exits_with(0).says_nothing();
    assert!(said.stdout.starts_with("was held by another program\n"), "{said:?}");
    assert_eq!(server.command(&["EXISTS", "text", "list", "hash"]).int(), 2);
    run("release", &["text"]).exits_with(64).says("--force");
}

/// Once when the server stops answering, once when it is back. The minute between repeated reports would make
/// this a long test.
#[test]
fn a_wait_says_that_its_server_does_not_answer_and_that_it_is_back() {
    let env = TestEnv::new();
    let server = Server::start();
    let store = ["--store", &server.url(), "--ttl", "1h"].map(str::to_owned);
    let store: Vec<&str> = store.iter().map(String::as_str).collect();
    let holder = env.start_script(&store, "x", UNTIL_END);
    let waiter = env.start(env.tenure_run_command([&store[..], &["-w", "60", "x", "--", "true"]].concat()));
    let own = |waiter: &Running| waiter.stderr().lines().map(str::to_owned).collect::<Vec<_>>();
    for round in 0..2 {
        server.stop();
        waiter.eventually("it says so", || own(&waiter).len() == 2 * round + 1);
        assert!(own(&waiter)[2 * round].contains("still waiting"), "{waiter:?}");
        // The report is not repeated at the next check.
        std::thread::sleep(ms(4_500));
        assert_eq!(own(&waiter).len(), 2 * round + 1, "{waiter:?}");
        server.cont();
        waiter.eventually("it is back", || own(&waiter).len() == 2 * round + 2);
        assert!(own(&waiter)[2 * round + 1].contains("answers again, after"), "{waiter:?}");
    }
    env.end();
    waiter.wait_for(ms(30_000)).exits_with(0);
    holder.wait().exits_with(0);
}

#[test]
fn namespaces_are_apart_and_names_are_shown_without_them() {
    let (env, server) = (TestEnv::new(), Server::start());
    let url = server.url();
    let both = [
        ("--namespace=a:", url.clone(), 75), // the same namespace: busy
        ("--namespace=b:", url.clone(), 0),  // another: free
        ("--prefix=y", format!("{url}?namespace=a:"), 0), // in the URL, and a prefix besides
    ];
    let holder = env.start_script(&["--store", &url, "--namespace", "a:"], "x", STUBBORN);
    env.pid("up");
    for (flag, url, code) in both {
        env.run(env.tenure(["run", "-n", flag, "--store", &url, "x", "--", "true"])).exits_with(code);
    }
    let listed = env.run(env.tenure(["list", "--json", "--namespace", "a:", "--store", &url])).exits_with(0);
    assert!(listed.stdout.contains(r#""name":"x""#) && !listed.stdout.contains("a:x"), "{listed:?}");
    let status = env.run(env.tenure(["status", "--namespace", "a:", "--store", &url, "x"])).exits_with(0);
    assert!(!status.stdout.contains("a:x"), "{status:?}");
    env.run(env.tenure(["status", "--namespace", "b:", "--store", &url, "x"])).exits_with(1);
    assert!(server.has("a:x") && server.has("a:tenure:fence") && !server.has("x"));
    drop(holder);
    // A warning of the store itself has the name, too.
    server.command(&["ACL", "SETUSER", "app", "on", ">pw", "resetchannels", "~a:*", "+@all"]);
    let app = url.replace("redis://", "redis://app:pw@");
    let said = env.run(env.tenure(["run", "--namespace=a:", "--store", &app, "y", "--", "true"]));
    assert!(said.stderr.contains("cannot wake the waiters (lock y, "), "{said:?}");
    said.exits_with(0);
    for (store, namespace, says) in [
        (&*format!("{url}?namespace=a:"), "b:", "all clients of a lock must agree"),
        (&*url, "b", "must end with one of"),
        (&*url, "", "expected 1 to 63 ASCII letters"),
        (&*url, "{b}:", "expected 1 to 63 ASCII letters"),
        (&*url, "tenure:", "must not begin with `tenure:`"),
        ("file:x", "b:", "another directory"),
    ] {
        let said = env.run(env.tenure(["status", "--store", store, "--namespace", namespace, "x"]));
        said.exits_with(64).says(says);
    }
}

#[test]
fn a_run_that_lost_its_lock_waits_for_its_server_to_return() {
    let env = TestEnv::new();
    let server = Server::start();
    let url = server.url();
    for more in [&[][..], &["--once-per", "1d"]] {
        let options = [&["--store", &url, "--ttl", "900ms", "--retry-lost"], more].concat();
        let script = "echo ran >> turns; READY; while [ ! -e end ]; do sleep 0.02; done";
        let running = env.start_script(&options, "x", script);
        server.kill();
        running.eventually("it waits", || running.stderr().contains("waiting for the lock again"));
        // A first request to a port that refuses fails after a tenth of that.
        std::thread::sleep(ms(2_000));
        server.restart();
        running.eventually("it runs again", || env.read("turns").lines().count() == 2);
        env.end();
        running.wait_for(ms(30_000)).exits_with(0);
        for file in ["turns", "end"] {
            std::fs::remove_file(env.path(file)).expect("a file");
        }
    }
}

/// A renewal and a look for a request to stop are one GET each, and a probe is a PING.
#[test]
fn a_process_that_holds_on_redis_sends_few_requests() {
    const HOLDERS: usize = 4;
    let (env, server) = (TestEnv::new(), Server::start());
    let url = server.url();
    let start = |number: usize| {
        let name = format!("x{number}");
        env.start(env.tenure(["run", "--store", &url, &name, "--", "sleep", "300"]))
    };
    let holders: Vec<Running> = (0..HOLDERS).map(start).collect();
    // After its first looks, a holder has subscribed.
    let stops = || server.command(&["PUBSUB", "CHANNELS", "*stop*"]).items().len();
    holders[0].eventually("each awaits requests to stop", || stops() == HOLDERS);
    let each = rate(&server, &["get", "ping"]) / HOLDERS as f64;
    println!("a holder: {each:.2} requests a second");
    assert!(each > 0.0 && each <= 0.35, "{each:.2} requests a second");
    env.run(env.tenure(["stop", "--store", &url, "x0"])).exits_with(0);
}

/// How often a second these commands are called.
fn rate(server: &Server, names: &[&str]) -> f64 {
    let sent = || {
        let calls = server.info_commandstats();
        names.iter().filter_map(|name| calls.get(*name)).sum::<u64>()
    };
    let (before, begun) = (sent(), now());
    std::thread::sleep(ms(20_000));
    (sent() - before) as f64 / (now() - begun).as_secs_f64()
}

/// A refresh of a place, and a request for a mutex, are a script.
#[test]
fn processes_that_wait_on_redis_send_few_requests_on_two_connections() {
    const WAITERS: usize = 4;
    let (env, server) = (TestEnv::new(), Server::start());
    let store = ["--store", &server.url()];
    let mut running = Vec::new();
    for (name, kind) in [("mutex", None), ("fair", Some("--fair"))] {
        let options: Vec<&str> = store.into_iter().chain(kind).collect();
        running.push(env.start_script(&options, name, "READY; exec sleep 300"));
        for _ in 0..WAITERS {
            let words = [&options[..], &[name, "--", "true"]].concat();
            running.push(env.start(env.tenure_run_command(words)));
        }
    }
    let channels = || server.command(&["PUBSUB", "CHANNELS", "*:{mutex}*"]).items().len();
    // A string as long as nobody waits.
    let is_queue = || server.command(&["TYPE", "fair"]).text() == "zset";
    let places = || if is_queue() { server.command(&["ZCARD", "fair"]).int() as usize } else { 0 };
    running[0].eventually("all wait", || channels() > 0 && places() == 4 + 2 * WAITERS);
    std::thread::sleep(ms(5_000));
    let each = rate(&server, &["evalsha", "ping"]) / running.len() as f64;
    let clients = server.command(&["CLIENT", "LIST"]);
    let connections = clients.text().matches(" name=tenure").count();
    println!("{each:.2} requests a second each, {connections} connections of {}", running.len());
    assert!(each > 0.0 && each <= 0.3, "{each:.2} requests a second each");
    assert!(connections <= 2 * running.len(), "{connections} connections");
}

#[test]
fn a_first_connection_to_a_busy_server_has_lost_no_request() {
    let env = TestEnv::new();
    let server = Server::start_with(Config::new().set("lua-time-limit", "20"));
    let url = server.url();
    let mut busy = server.client().expect("a connection");
    busy.send(&["EVAL", "while true do end", "0"]).expect("a connection");
    let run = || env.tenure_run(["--store", &url, "-w", "1s", "x", "--", "true"]);
    let said = run().exits_with(69);
    assert!(
        said.stderr.contains("BUSY") && !said.stderr.contains("cannot close the old connection"),
        "{said:?}"
    );
    server.command(&["SCRIPT", "KILL"]);
    run().exits_with(0).says_nothing();
}

/// Each run connects, which alone takes longer than the wait may last.
#[test]
fn a_wait_shorter_than_a_round_trip_finds_the_lock_busy_or_the_server_down() {
    let (env, server) = (TestEnv::new(), Server::start());
    let url = server.url();
    let holder = env.start_script(&["--store", &url], "x", UNTIL_END);
    for _ in 0..20 {
        let run = ["--store", &url, "-w", "0.001", "x", "--", "touch", "ran"];
        env.tenure_run(run).exits_with(75).says("busy");
    }
    env.tenure_run(["--store", &url, "-w", "0.001", "free", "--", "true"]).exits_with(0);
    assert!(!holder.has_ended() && !env.path("ran").exists());
    env.end();
    holder.wait().exits_with(0);
    drop(server);
    env.tenure_run(["--store", &url, "-w", "0.001", "x", "--", "true"]).exits_with(69);
}
