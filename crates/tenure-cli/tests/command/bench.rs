//! `tenure bench` measures, ends in time, and leaves nothing behind.

use std::fs;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tenure_testkit::servers::{Cluster, Ensemble, Etcd, MariaDb, Postgres, Sentinels, Server, ZooKeeper};

use crate::doctor::left;
use crate::env::{TestEnv, UNTIL_END};

const PARTS: [&str; 4] = ["uncontended", "contended", "hand-over", "renewal"];

/// Measures for a second, and checks that each part has both sides; for longer where a busy machine leaves no
/// time for one.
fn measured(env: &TestEnv, url: &str) -> Value {
    let measure = |seconds: u64| {
        let length = format!("{seconds}s");
        let said = env.run(env.tenure(["bench", "--json", "--for", &length, "--store", url])).exits_with(0);
        assert!(said.took < Duration::from_secs(seconds + 9), "{said:?}");
        let told: Value =
            serde_json::from_str(&said.stdout).unwrap_or_else(|error| panic!("{error}: {said:?}"));
        assert_eq!(told["for_ms"], seconds * 1_000);
        told
    };
    let had_time = |told: &Value| !told.to_string().contains("there was no time left");
    let told = [1, 4, 16].into_iter().map(measure).find(had_time).expect("time for all parts");
    let parts = told["parts"].as_array().expect("parts");
    assert_eq!(parts.iter().map(|part| part["part"].as_str().expect("a name")).collect::<Vec<_>>(), PARTS);
    for part in parts {
        for side in ["tenure", "bare"] {
            let side = &part[side];
            let time = |name: &str| side[name].as_f64().unwrap_or_else(|| panic!("{name}: {part}"));
            assert!(side["count"].as_u64().is_some_and(|count| count > 0), "{part}");
            let times = ["p50_us", "p90_us", "p99_us", "p99_9_us", "max_us"].map(time);
            assert!(times[0] > 0.0 && times.is_sorted(), "{part}");
            let bars = side["histogram"].as_array().expect("bars").iter();
            let all: f64 = bars.map(|bar| bar["part"].as_f64().expect("a part")).sum();
            assert!((all - 1.0).abs() < 1e-6, "{part}");
        }
    }
    told
}

#[test]
fn a_bench_measures_each_part_beside_the_bare_commands_and_leaves_nothing() {
    let env = TestEnv::new();
    fs::create_dir_all(env.path("stores/s")).expect("a directory");
    measured(&env, &format!("file:{}", env.path("stores/s").display()));
    assert_eq!(fs::read_dir(env.path("stores")).expect("a directory").count(), 1);

    let servers: [Server; 3] = Server::several();
    let told = measured(&env, &servers[0].url());
    assert_eq!(told["clients"], 4);
    assert_eq!(left(&servers[0]), [""; 0]);
    let sentinels = Sentinels::start();
    measured(&env, &sentinels.url());
    let cluster = Cluster::start();
    measured(&env, &cluster.url());
    assert!(cluster.masters().iter().all(|master| left(master).is_empty()));
}

#[test]
fn a_bench_prints_tables_and_writes_a_page_that_loads_nothing() {
    let env = TestEnv::new();
    fs::create_dir(env.store()).expect("a directory");
    let said = env.run(env.tenure(["bench", "--for", "400ms", "--html", "page.html"])).exits_with(0);
    for word in PARTS.iter().chain(&["p99.9", "bare: flock", "█", "▒"]) {
        assert!(said.stdout.contains(word), "{word}: {said:?}");
    }
    let page = env.read("page.html");
    assert_eq!(page.matches("<svg").count(), PARTS.len(), "{page}");
    assert!(page.contains("<rect") && page.ends_with("</html>\n"), "{page}");
    for loads in ["http", "<script", "<link", "src=", "url(", "@import"] {
        assert!(!page.contains(loads), "{loads}: {page}");
    }
}

#[test]
fn a_bench_refuses_names_that_are_in_use() {
    let (env, server) = (TestEnv::new(), Server::start());
    let url = server.url();
    let bench = || env.run(env.tenure(["bench", "--name", "b", "--for", "400ms", "--store", &url]));
    let script = UNTIL_END;
    let holder = env.start_script(&["--store", &url], "b:contended", script);
    bench().exits_with(75).says("in use");
    env.end();
    holder.wait().exits_with(0);
    // A key at the name of the bare lock that holds other data.
    server.command(&["SET", "b:bare", "data"]);
    bench().exits_with(75).says("earlier use");
    assert_eq!(server.command(&["GET", "b:bare"]).text(), "data");
    server.command(&["DEL", "b:bare"]);
    bench().exits_with(0).says_nothing();
    assert_eq!(left(&server), [""; 0]);
}

#[test]
fn a_signal_ends_a_bench_with_what_was_measured_and_nothing_left() {
    let (env, server) = (TestEnv::new(), Server::start());
    let bench = env.start(env.tenure(["bench", "--json", "--for", "1h", "--store", &server.url()]));
    bench.eventually("it measures", || server.info_commandstats().get("evalsha").is_some_and(|n| *n > 100));
    bench.signal(Signal::INT);
    let said = bench.wait().exits_with(130).says_nothing();
    serde_json::from_str::<Value>(&said.stdout).expect("JSON");
    assert_eq!(left(&server), [""; 0]);
}

#[test]
fn a_bench_has_bare_figures_on_every_store_and_leaves_no_rows() {
    let env = TestEnv::new();
    let (postgres, mariadb) = (Postgres::start(), MariaDb::start());
    let (etcd, zookeeper) = (Etcd::start(), ZooKeeper::start());
    for url in [postgres.url("bench"), mariadb.url("bench"), etcd.url(), zookeeper.url()] {
        measured(&env, &url);
    }
    assert_eq!(postgres.run("SELECT count(*) FROM bench.tenure_lock WHERE name LIKE '%:bare'"), "0");
    assert_eq!(mariadb.run("SELECT count(*) FROM bench.tenure_lock WHERE name LIKE '%:bare'").trim(), "0");
}

#[test]
fn a_bench_of_one_client_measures_what_one_can_do() {
    let (env, server) = (TestEnv::new(), Server::start());
    let words = ["bench", "--json", "--clients", "1", "--for", "1s", "--store", &server.url()];
    let told: Value = serde_json::from_str(&env.run(env.tenure(words)).exits_with(0).stdout).expect("JSON");
    let parts = told["parts"].as_array().expect("parts").iter();
    let names: Vec<_> = parts.map(|part| part["part"].as_str().expect("a name")).collect();
    assert_eq!(names, ["uncontended", "renewal"]);
}
