//! Two versions at once on each store: what a later one keeps in another format, and columns that it adds. Redis, whose
//! clients of two versions share locks, is in `plain/versions.rs`.

use std::thread;

use super::servers::{Raw, State, json};
use super::zookeeper::Nodes as ZooKeeperNodes;
use super::*;
use tenure::Error;
use tenure_testkit::servers::{Etcd, MariaDb, Postgres};

/// A lock in a format of another number is neither free nor held, and stays as it is.
fn is_refused_and_stays<S: Raw>(store: &str, later: impl Fn(Value) -> Value) {
    let server = S::start();
    let all = S::numbers().zip(State::all::<S>(store)).filter(|(_, golden)| !golden.listed.is_empty());
    for (number, golden) in all {
        let golden = golden.of_now();
        let url = server.url(number);
        let locks = states::open(&url);
        block_on(locks.ping()).expect("a server"); // makes the table
        for line in &golden.held {
            server.write(number, &later(json(line)));
        }
        let before = without_markers(server.read(number));
        for status in &golden.listed {
            let (status, state) = (json(status), &golden.name);
            let name = status["name"].as_str().expect("a name");
            let owner = status["holders"][0]["owner"].as_str().expect("a holder").parse().expect("an owner");
            for (asked, error) in block_on(refusals(&locks, name, &owner)) {
                let error = error.unwrap_or_else(|| panic!("{state}: {asked} is granted"));
                assert!(
                    error.is_refused() && error.to_string().contains("version"),
                    "{state}: {asked}: {error}"
                );
            }
        }
        assert_eq!(without_markers(server.read(number)), before, "{}", golden.name);
    }
}

/// Without what clients of etcd and ZooKeeper show their lives by.
fn without_markers(mut held: Vec<Value>) -> Vec<Value> {
    held.retain(|line| !line.to_string().contains("/lease/"));
    held
}

async fn refusals(locks: &Locks, name: &str, owner: &Owner) -> [(&'static str, Option<Error>); 8] {
    let lock = |locks: &Locks| locks.mutex(name).expect("a name");
    let short = Duration::from_millis(50);
    [
        ("a mutex", lock(locks).try_lock().await.err()),
        ("a wait", lock(locks).try_lock_for(short).await.err()),
        ("a fair mutex", locks.fair_mutex(name).expect("a name").try_lock().await.err()),
        ("a permit", locks.semaphore(name, 3).expect("a name").try_acquire().await.err()),
        ("a reader", locks.rwlock(name).expect("a name").try_read().await.err()),
        ("a holder that resumes", locks.resume(name, owner).await.err()),
        ("a look", locks.inspect(name).await.err()),
        ("a forced release", locks.force_release_owner(name, owner).await.err()),
    ]
}

fn later_row(mut line: Value) -> Value {
    if line["name"] != "" {
        line["version"] = "2".into();
    }
    line
}

fn later_value(mut line: Value) -> Value {
    for word in ["value", "data"] {
        if let Some(text) = line[word].as_str() {
            line[word] = text.replacen("tenure 1 ", "tenure 2 ", 1).into();
        }
    }
    line
}

#[test]
fn postgresql_refuses_locks_of_a_later_format() {
    is_refused_and_stays::<Postgres>("postgresql", later_row);
}

#[test]
fn mysql_refuses_locks_of_a_later_format() {
    is_refused_and_stays::<MariaDb>("mysql", later_row);
}

#[test]
fn etcd_refuses_locks_of_a_later_format() {
    is_refused_and_stays::<Etcd>("etcd", later_value);
}

#[test]
fn zookeeper_refuses_locks_of_a_later_format() {
    is_refused_and_stays::<ZooKeeperNodes>("zookeeper", later_value);
}

#[test]
fn directories_of_a_later_format_are_refused_and_stay() {
    for golden in golden() {
        let directory = tempfile::tempdir().expect("a directory");
        for (name, content) in &golden.files {
            let later = content.replacen(" 4\n", " 5\n", 1);
            fs::write(directory.path().join(name), later).expect("a file");
        }
        let before = files(directory.path());
        let locks = states::open(&url(directory.path()));
        let error = block_on(locks.mutex("m").expect("a name").try_lock()).expect_err("another format");
        assert!(error.is_refused() && error.to_string().contains("format 5"), "{}: {error}", golden.state);
        assert_eq!(files(directory.path()), before, "{}", golden.state);
    }
}

/// Clients that are connected, and one that comes later, do not notice columns that come and go.
fn columns_are_not_noticed(url: &str, run: impl Fn(&str)) {
    const TTL: Duration = Duration::from_secs(2);
    let open = || {
        let locks = Locks::open(url).expect("a store");
        locks.with(|options| options.ttl(TTL)).expect("options")
    };
    let locks = open();
    let held = block_on(async { locks.mutex("held")?.lock().await }).expect("a lock");
    let turn = block_on(async { locks.fair_mutex("turn")?.lock().await }).expect("a lock");
    let token = turn.fence();
    let waiter = thread::spawn({
        let locks = open();
        move || block_on(async { locks.fair_mutex("turn")?.lock().await }).expect("a turn").fence()
    });
    let waits = async || Ok(locks.inspect("turn").await?.is_some_and(|status| status.waiters.len() == 1));
    block_on(states::until("a waiter", waits)).expect("an answer");
    run("ADD COLUMN later bigint NOT NULL DEFAULT 7");
    run("ADD COLUMN another varchar(10)");
    thread::sleep(TTL * 3 / 2); // renewals, and the waiter's
    assert!(held.is_held());
    block_on(turn.release()).expect("a release");
    assert!(waiter.join().expect("no panic") > token);
    each_kind_takes_a_turn(&locks);
    each_kind_takes_a_turn(&open());
    run("DROP COLUMN later");
    run("DROP COLUMN another");
    each_kind_takes_a_turn(&locks);
    each_kind_takes_a_turn(&open());
    block_on(held.release()).expect("it was held all the time");
}

fn each_kind_takes_a_turn(locks: &Locks) {
    let turns = async {
        locks.mutex("a")?.lock().await?.release().await?;
        locks.fair_mutex("b")?.lock().await?.release().await?;
        locks.reentrant_mutex("c", &Owner::new("me")?)?.lock().await?.release().await?;
        locks.rwlock("d")?.write().await?.release().await?;
        locks.rwlock("d")?.read().await?.release().await?;
        locks.semaphore("e", 2)?.acquire().await?.release().await?;
        locks
            .once_per("f", Duration::from_secs(3_600))?
            .again(true)
            .run(async |_| Ok::<_, String>(()))
            .await?;
        locks.election("g", "me")?.campaign().await?.resign().await?;
        Ok::<_, Error>(locks.list("")?.next().await?.is_some())
    };
    block_on(turns).expect("turns");
}

#[test]
fn columns_that_a_later_version_adds_to_postgresql_are_not_noticed() {
    let server = Postgres::start();
    let url = server.url("later");
    columns_are_not_noticed(&url, |change| {
        drop(server.run(&format!("ALTER TABLE later.tenure_lock {change}")))
    });
}

#[test]
fn columns_that_a_later_version_adds_to_mysql_are_not_noticed() {
    let server = MariaDb::start();
    let url = server.url("later");
    columns_are_not_noticed(&url, |change| {
        drop(server.run(&format!("ALTER TABLE later.tenure_lock {change}")))
    });
}
