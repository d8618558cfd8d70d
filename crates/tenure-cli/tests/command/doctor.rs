//! `tenure doctor` finds each bad set-up, and nothing in a good one.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use serde_json::Value;
use tenure_testkit::proxy::{Fault, Proxy};
use tenure_testkit::servers::{
    Cluster, Config, Ensemble, Etcd, MariaDb, Postgres, Sentinels, Server, ZooKeeper, eventually,
};

use crate::env::{BINARY, TestEnv};

/// The recommended settings of a server for locks.
pub(crate) fn good() -> Config {
    Config::new().set("appendonly", "yes").set("appendfsync", "always")
}

/// The JSON output, after checking its exit code.
pub(crate) fn told(env: &TestEnv, url: &str, more: &[&str]) -> Value {
    let said = env.run(env.tenure([&["doctor", "--json", "--store", url], more].concat()));
    let told: Value = serde_json::from_str(&said.stdout).unwrap_or_else(|error| panic!("{error}: {said:?}"));
    let has_findings = told["findings"].as_array().is_some_and(|findings| !findings.is_empty());
    said.exits_with(has_findings.into());
    told
}

/// The checks with findings, all of whose parts must have text.
pub(crate) fn found(env: &TestEnv, url: &str, more: &[&str]) -> BTreeSet<String> {
    let told = told(env, url, more);
    println!("{told}"); // shown if the test fails
    let findings = told["findings"].as_array().expect("findings").iter();
    findings
        .map(|finding| {
            for part in ["check", "at", "what", "why", "fix"] {
                assert!(finding[part].as_str().is_some_and(|text| !text.is_empty()), "{part}: {finding}");
            }
            finding["check"].as_str().expect("a check").to_owned()
        })
        .collect()
}

/// The keys of a server, without the shared token counter and ballots.
pub(crate) fn left(server: &Server) -> Vec<String> {
    // Not KEYS, because a test counts its calls.
    let page = server.command(&["SCAN", "0", "COUNT", "10000"]);
    let keys = page.items()[1].items().iter().map(|key| key.text().to_owned());
    keys.filter(|key| !key.starts_with("tenure:fence") && !key.starts_with("tenure:ballot:")).collect()
}

/// Whether a finding of this check has these words.
pub(crate) fn finds(told: &Value, check: &str, words: &str) -> bool {
    told["findings"].as_array().expect("findings").iter().any(|finding| {
        finding["check"] == check && finding["what"].as_str().is_some_and(|what| what.contains(words))
    })
}

pub(crate) fn set(server: &Server, parameter: &str, value: &str) {
    assert_eq!(server.command(&["CONFIG", "SET", parameter, value]), "OK", "{parameter}");
}

pub(crate) fn checks<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.map(str::to_owned).into()
}

#[test]
fn a_good_server_has_no_finding_and_nothing_is_left_on_it() {
    let (env, server) = (TestEnv::new(), Server::start_with(good()));
    let url = server.url();
    let told = told(&env, &url, &[]);
    assert_eq!(told["findings"], serde_json::json!([]), "{told}");
    assert_eq!(told["unchecked"], serde_json::json!([]), "{told}");
    assert_eq!(told["notes"], serde_json::json!([]), "{told}");
    assert_eq!(left(&server), [""; 0]);
    let calls = server.info_commandstats();
    assert!(!calls.contains_key("keys") && !calls.contains_key("config|set"), "{calls:?}");
    let said = env.run(env.tenure(["doctor", "--store", &url])).exits_with(0).says_nothing();
    assert!(said.stdout.ends_with("\nno findings\n"), "{said:?}");
    // In another database, through a socket, and with restart-grace in place of persistence.
    server.command(&["CONFIG", "SET", "appendonly", "no", "repl-backlog-ttl", "0"]);
    let url = format!("{}?db=3&restart-grace=60s", server.unix_url());
    // A server grants nothing for the grace after its first use.
    assert!(found(&env, &url, &[]).is_subset(&checks(["trial"])));
    let said = env.run(env.tenure(["doctor", "--store", &url])).exits_with(0);
    assert!(said.stdout.contains("no lock is granted now: the server is in its restart-grace"), "{said:?}");
}

#[test]
fn each_bad_setting_of_a_server_is_found() {
    let (env, server) = (TestEnv::new(), Server::start_with(good()));
    let url = server.url();
    let cases = [
        ("maxmemory-policy", "allkeys-lru", "noeviction", "eviction"),
        ("maxmemory", "900000", "0", "memory"),
        ("appendfsync", "everysec", "always", "persistence"),
        ("appendonly", "no", "yes", "persistence"),
        ("timeout", "30", "0", "idle"),
        ("min-replicas-to-write", "1", "0", "replicas"),
    ];
    for (parameter, bad, good, check) in cases {
        set(&server, parameter, bad);
        assert!(found(&env, &url, &[]).contains(check), "{parameter} {bad}");
        set(&server, parameter, good);
    }
    server.command(&["SET", "app:data", "x"]);
    assert_eq!(found(&env, &url, &["--prefix", "app:"]), checks(["keys"]));
    assert_eq!(found(&env, &url, &["--prefix", "other:"]), checks([]));
    server.command(&["DEL", "app:data"]);
    assert!(found(&env, &format!("{url}?acks=1"), &[]).contains("acks"));
    assert!(found(&env, &format!("{url}?restart-grace=1s"), &["--ttl", "20s"]).contains("restart-grace"));
    eventually("the file is written again", Duration::from_secs(10), || {
        server.info("persistence")["aof_rewrite_in_progress"] == "0"
    });
    assert_eq!(found(&env, &url, &[]), checks([]));
}

#[test]
fn a_slow_way_and_a_clock_that_is_off_are_found() {
    let env = TestEnv::new();
    let server = Server::start_with(good().clock());
    let proxy = Proxy::start(server.address());
    proxy.set(Fault::Delay(Duration::from_millis(10)));
    assert!(found(&env, &proxy.url(), &["--ttl", "150ms"]).contains("latency"));
    assert!(!found(&env, &proxy.url(), &["--ttl", "1h"]).contains("latency"));
    server.clock().forward(Duration::from_secs(10));
    assert_eq!(found(&env, &server.url(), &[]), checks(["clock"]));
}

#[test]
fn rights_that_a_user_lacks_are_told_as_the_line_that_gives_them() {
    let env = TestEnv::new();
    let server =
        Server::start_with(good().user("app on >pw resetkeys resetchannels -@all ~app:* +ping +get"));
    let url = server.url().replace("redis://", "redis://app:pw@");
    // Following its advice is enough, in a few rounds.
    for round in 0.. {
        let told = told(&env, &url, &["--prefix", "app:"]);
        let fixes = |list: &str, field: &str| -> Vec<String> {
            let all = told[list].as_array().expect("a list").iter();
            all.filter_map(|one| Some(one[field].as_str()?.split_once("ACL SETUSER ")?.1.to_owned()))
                .collect()
        };
        let rules = [fixes("findings", "fix"), fixes("notes", "what")].concat();
        if round == 0 {
            let unchecked = told["unchecked"].as_array().expect("a list");
            // Without INFO none of these can be checked.
            for check in
                ["eviction", "evicted", "memory", "role", "save", "persistence", "replicas", "version"]
            {
                assert!(unchecked.iter().any(|one| one["check"] == check), "{check}: {told}");
            }
        }
        if rules.is_empty() {
            assert_eq!(told["findings"], serde_json::json!([]), "{told}");
            break;
        }
        assert!(round < 4, "{told}");
        for rule in rules {
            let words: Vec<_> = ["ACL", "SETUSER"].into_iter().chain(rule.split(' ')).collect();
            assert_eq!(server.command(&words), "OK", "{rule}");
        }
    }
    let rights = server.command(&["ACL", "LIST"]);
    let rights = rights.items().iter().map(|user| user.text()).find(|user| user.contains("user app "));
    assert!(rights.is_some_and(|rights| !rights.contains("@all ") || rights.contains("-@all")), "{rights:?}");
    assert_eq!(left(&server), [""; 0]);
}

#[test]
fn a_user_of_one_prefix_is_told_of_the_namespace_and_needs_no_other_right() {
    let env = TestEnv::new();
    let server = Server::start_with(good().user("app on >pw resetkeys resetchannels ~app:* &app:* +@all"));
    let url = server.url().replace("redis://", "redis://app:pw@");
    let names_it = |told: &Value| {
        let mut notes = told["notes"].as_array().expect("notes").iter();
        notes.any(|note| note["what"].as_str().is_some_and(|what| what.contains("?namespace=app:")))
    };
    let by_prefix = told(&env, &url, &["--prefix", "app:"]);
    assert!(by_prefix["findings"][0]["check"] == "rights" && names_it(&by_prefix), "{by_prefix}");
    let by_namespace = told(&env, &url, &["--namespace", "app:"]);
    assert_eq!(by_namespace["findings"], serde_json::json!([]), "{by_namespace}");
    assert_eq!(by_namespace["notes"], serde_json::json!([]), "{by_namespace}");
    assert!(left(&server).iter().all(|key| key == "app:tenure:fence"), "{:?}", left(&server));
    // Without a counter's expiry as a finding, also for those who see more.
    assert_eq!(found(&env, &server.url(), &[]), checks([]));
    server.command(&["ACL", "SETUSER", "app", "resetkeys", "resetchannels"]);
    let bare = told(&env, &url, &["--namespace", "app:"]);
    let fix = bare["findings"][0]["fix"].as_str().expect("a fix");
    assert_eq!(fix, "ACL SETUSER app ~app:*", "{bare}");
}

#[test]
fn a_server_without_scripts_and_a_replica_are_found() {
    let env = TestEnv::new();
    let config = good().set("rename-command", "EVAL \"\"").set("rename-command", "EVALSHA \"\"");
    assert_eq!(found(&env, &Server::start_with(config).url(), &[]), checks(["scripts"]));
    let master = Server::start_with(good());
    let port = master.address().port();
    let replica = Server::start_with(good().set("replicaof", &format!("127.0.0.1 {port}")));
    assert!(found(&env, &replica.url(), &[]).contains("role"));
    eventually("the replica follows", Duration::from_secs(20), || {
        master.info("replication")["connected_slaves"] == "1"
    });
    assert_eq!(found(&env, &master.url(), &[]), checks(["replicas"]));
    let finding = &told(&env, &master.url(), &[])["findings"][0];
    let has = |field: &str, text: &str| finding[field].as_str().is_some_and(|told| told.contains(text));
    assert!(
        has("what", "the server has 1 replica,") && has("fix", "start a second replica, then"),
        "{finding}"
    );
}

#[test]
fn sentinels_are_judged_by_their_number_quorum_and_time() {
    let env = TestEnv::new();
    let servers = good().set("min-replicas-to-write", "1");
    let sentinels = Sentinels::start_with(&servers, &Config::new(), "");
    assert_eq!(found(&env, &sentinels.url(), &[]), checks([]));
    assert_eq!(found(&env, &sentinels.url(), &["--ttl", "2s"]), checks(["failover"]));
    for sentinel in sentinels.sentinels() {
        sentinel.command(&["SENTINEL", "SET", Sentinels::SERVICE, "quorum", "1"]);
    }
    assert_eq!(found(&env, &sentinels.url(), &[]), checks(["sentinels"]));
}

#[test]
fn each_master_of_a_cluster_is_looked_at() {
    let env = TestEnv::new();
    let cluster = Cluster::start_with(&good().set("min-replicas-to-write", "1"));
    assert_eq!(found(&env, &cluster.url(), &[]), checks([]));
    // A failover takes 5 s here, and may begin when two thirds of a lease are left.
    assert_eq!(found(&env, &cluster.url(), &["--ttl", "8s"]), checks([]));
    assert_eq!(found(&env, &cluster.url(), &["--ttl", "7s"]), checks(["failover"]));
    cluster.masters()[1].command(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]);
    cluster.masters()[2].command(&["CONFIG", "SET", "cluster-require-full-coverage", "yes"]);
    assert_eq!(found(&env, &cluster.url(), &[]), checks(["coverage", "eviction"]));
}

#[test]
fn members_of_a_quorum_are_counted_and_need_no_persistence() {
    let env = TestEnv::new();
    let servers: [Server; 3] = Server::several();
    let url = |count: usize| {
        let hosts: Vec<_> = servers[..count].iter().map(|server| server.address().to_string()).collect();
        format!("redis-quorum://{}", hosts.join(","))
    };
    // A member that has just started does not vote yet.
    assert!(found(&env, &url(3), &[]).is_subset(&checks(["trial"])));
    assert!(found(&env, &url(2), &[]).contains("members"));
    servers[2].kill();
    assert!(found(&env, &url(3), &[]).contains("members"));
    assert!(servers[..2].iter().all(|server| left(server).is_empty()));
}

#[test]
fn a_directory_that_others_may_write_is_found() {
    let env = TestEnv::new();
    fs::create_dir(env.store()).unwrap();
    let mode = |mode| fs::set_permissions(env.store(), Permissions::from_mode(mode)).unwrap();
    mode(0o2770);
    assert_eq!(found(&env, &env.url(), &[]), checks([]));
    mode(0o777);
    assert_eq!(found(&env, &env.url(), &[]), checks(["directory-rights"]));
}

#[test]
fn a_store_that_cannot_be_looked_at_is_an_error_of_one_line() {
    let (env, server) = (TestEnv::new(), Server::start());
    let port = server.address().port();
    server.kill();
    for (url, code) in [
        (format!("redis://127.0.0.1:{port}"), 69),
        (format!("redis-sentinel://127.0.0.1:{port}/locks"), 69),
        (format!("redis-cluster://127.0.0.1:{port}"), 69),
        (format!("redis-quorum://127.0.0.1:{port},127.0.0.1:1,127.0.0.1:2"), 69),
        ("memory:".into(), 64),
        ("redis://h/x".into(), 64),
    ] {
        let said = env.run(env.tenure(["doctor", "--store", &url])).exits_with(code);
        assert!(said.stdout.is_empty() && said.stderr.lines().count() == 1, "{said:?}");
    }
}

#[test]
fn the_versions_that_are_connected_are_listed_or_said_to_be_unknown() {
    let (env, redis, postgres) = (TestEnv::new(), Server::start(), Postgres::start());
    let (etcd, zookeeper) = (Etcd::start(), ZooKeeper::start());
    let (mariadb, told) = (MariaDb::start(), MariaDb::start_with(&["--performance-schema=ON"]));
    let version = concat!("connected versions of tenure: ", env!("CARGO_PKG_VERSION"), " (");
    for (url, says) in [
        (redis.url(), version),
        (postgres.url("versions"), version),
        (told.url_as("root", "app"), version),
        (etcd.url(), version),
        (zookeeper.url(), version),
        (mariadb.url_as("root", "app"), "not checked: versions"),
    ] {
        let script = "\"$0\" doctor --store \"$1\"; true";
        let held = env.tenure(["run", "--store", &url, "x", "--", "sh", "-c", script, BINARY, &url]);
        let said = env.run(held).exits_with(0).stdout;
        assert!(said.contains(says), "{said}");
    }
}
