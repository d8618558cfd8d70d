//! `acks` and `restart-grace` across failovers by Sentinel and by a cluster.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests against real servers measure real time"
)]

use std::error::Error as _;
use std::thread::scope;
use std::time::{Duration, Instant};

use crate::overlap::{now, overlap};
use crate::schedulers::Schedulers;
use tenure::{Guard, Locks, Options, block_on};
use tenure_testkit::servers::{Cluster, Config, Sentinels, Server, eventually, with_query};

/// Longer than a grant confirmed by two replicas takes on a busy machine; also the restart grace.
const TTL: Duration = Duration::from_secs(2);
/// Longer than any failover takes.
const LONG: Duration = Duration::from_secs(30);
const SOON: Duration = Duration::from_secs(20);

fn locks(url: &str, guarantees: &str, options: Options) -> Locks {
    let locks = Locks::open(&with_query(url, guarantees)).expect("a store");
    locks.with(|_| options.patience(2 * SOON)).expect("options")
}

fn acquire(locks: &Locks, name: &str) -> Guard {
    block_on(locks.mutex(name).expect("a name").lock()).unwrap_or_else(|error| panic!("{name}: {error:?}"))
}

/// Checks that a lock is refused for this reason and that nothing of it is left.
fn is_refused(locks: &Locks, name: &str, why: &str, master: &Server) {
    let locks = locks.with(|options| options.op_timeout(Duration::from_secs(1))).expect("options");
    let error = block_on(locks.mutex(name).expect("a name").try_lock()).expect_err("too few replicas");
    let source = error.source().map_or_else(String::new, ToString::to_string);
    assert!(error.is_unreachable() && source.contains(why), "{error}: {source}");
    eventually("it was given back", SOON, || !master.has(name));
}

/// Checks that the replicas have a grant or renewal when it is answered.
fn is_confirmed(locks: &Locks, name: &str, replicas: &[&Server]) {
    let left = |replica: &&Server| replica.command(&["PTTL", name]).int();
    let ttl = i64::try_from(LONG.as_millis()).expect("few");
    let guard = acquire(locks, name);
    assert!(replicas.iter().all(|replica| left(replica) > 0), "granted, and a replica has it not");
    eventually("some of the lease is over", SOON, || {
        replicas.iter().all(|replica| left(replica) <= ttl - 300)
    });
    let asked = Instant::now();
    block_on(guard.renew()).expect("a renewal");
    let lefts: Vec<_> = replicas.iter().map(left).collect();
    let since = i64::try_from(asked.elapsed().as_millis()).expect("a while");
    assert!(lefts.iter().all(|left| *left >= ttl - since - 1), "renewed, and a replica has not heard of it");
    block_on(guard.release()).expect("a release");
}

/// How often the server was sent this command.
fn calls(server: &Server, command: &str) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]);
    let of = format!("cmdstat_{command}:calls=");
    let count = |line: &str| line.strip_prefix(&of)?.split(',').next()?.parse().ok();
    stats.text().lines().find_map(count).unwrap_or(0)
}

mod behind_sentinel {
    use super::*;

    fn replicas(sentinels: &Sentinels) -> Vec<&Server> {
        let master = sentinels.master().address();
        sentinels.servers().iter().filter(|server| server.address() != master).collect()
    }

    #[test]
    fn all_replicas_have_what_was_granted_and_without_one_of_them_nothing_is() {
        let sentinels = Sentinels::start();
        let ours = locks(&sentinels.url(), "acks=2", Options::new().ttl(LONG));
        let replicas = replicas(&sentinels);
        is_confirmed(&ours, "x", &replicas);
        // As is the beginning of a run: one WAIT for the lock, and one for the record.
        let job = ours.once_per("job", 100 * LONG).expect("a name");
        let waits = || calls(sentinels.master(), "wait");
        let before = waits();
        let turn = block_on(job.try_begin()).expect("an answer").expect("the first");
        assert_eq!(waits() - before, 2);
        block_on(turn.succeed()).expect("it is held");

        let held = acquire(&ours, "held");
        replicas[1].stop();
        is_refused(&ours, "late", "1 of 2 replicas", sentinels.master());
        block_on(held.release()).expect("a release needs no confirmation");
        replicas[1].cont();
        drop(acquire(&ours, "late"));
    }

    /// Repeated failovers under a held lock: a waiting client never holds together with the holder, and no
    /// window of a job has two runs.
    #[test]
    fn acks_of_all_replicas_and_a_grace_keep_exclusion_and_windows_in_each_failover() {
        let servers = Config::new().user("app on >pw ~* &* +@all");
        let sentinels = Sentinels::start_with(&servers, &Config::new(), "");
        let url = sentinels.url().replace("://", "://app:pw@");
        // A holder may keep its lock through a planned failover; `max_hold` limits that.
        let options_of_jobs = Options::new().ttl(TTL);
        let options = options_of_jobs.clone().max_hold(2 * TTL);
        let ours = locks(&url, "acks=2&restart-grace=2s", options.clone());
        // One of the two replicas is the master by then.
        let theirs = locks(&url, "acks=1&restart-grace=2s", options);
        let clients = [(); 3].map(|()| locks(&url, "acks=2&restart-grace=2s", options_of_jobs.clone()));
        let schedulers = Schedulers::start(clients);
        for how in ["asked for", "killed"] {
            let guard = acquire(&ours, how);
            let (token, old, replicas) = (guard.fence(), sentinels.master(), replicas(&sentinels));
            assert!(replicas.iter().all(|replica| replica.has(how)), "granted, and a replica has it not");
            let overlap = overlap(Some(&guard), || {
                if how == "killed" {
                    old.kill();
                    sentinels.fails_over_from(old);
                } else {
                    sentinels.fail_over();
                }
                let rival = acquire(&theirs, how);
                assert!(rival.fence() > token, "{} after {token}", rival.fence());
                rival
            });
            println!("{how}: {overlap:?} of overlap");
            assert_eq!(overlap, Duration::ZERO);
            if how == "killed" {
                old.restart();
            }
            sentinels.settles();
            schedulers.goes_on();
        }

        // A master that only its lock clients still reach. A holder without acks shows that there is
        // something to lose.
        let guarantees = [("restart-grace=2s", "without acks"), ("acks=2&restart-grace=2s", "cut off")];
        let [kept, guard] = guarantees
            .map(|(guarantees, name)| acquire(&locks(&url, guarantees, Options::new().ttl(TTL)), name));
        let old = sentinels.master();
        assert!(old.command(&["ACL", "SETUSER", "default", "-@all"]) == "OK");
        old.command(&["CLIENT", "KILL", "TYPE", "replica"]);
        sentinels.fails_over_from(old);
        let overlaps = scope(|scope| {
            let contests = [&guard, &kept].map(|guard| {
                // Like a client that reconnects and is sent to the new master.
                let theirs = locks(&url, "acks=1&restart-grace=2s", theirs.options().clone());
                scope.spawn(move || overlap(Some(guard), || acquire(&theirs, guard.name().as_str())))
            });
            contests.map(|contest| contest.join().expect("no panic"))
        });
        println!("cut off: {:?} of overlap, and {:?} without acks", overlaps[0], overlaps[1]);
        assert!(overlaps[0].is_zero() && !overlaps[1].is_zero(), "{overlaps:?}");
        schedulers.end();
    }
}

mod on_a_cluster {
    use super::*;

    #[test]
    fn each_shards_replica_has_each_grant_and_more_acks_than_replicas_grant_nothing() {
        let cluster = Cluster::start().calm();
        let options = Options::new().ttl(LONG);
        let (ours, greedy) =
            (locks(&cluster.url(), "acks=1", options.clone()), locks(&cluster.url(), "acks=2", options));
        for shard in 0..3 {
            let replica = &cluster.nodes()[cluster.replica_of(shard)];
            // Allows reading from the replica.
            assert!(replica.command(&["READONLY"]) == "OK");
            let name = cluster.key_at(shard, "x");
            is_confirmed(&ours, &name, &[replica]);
            is_refused(&greedy, &name, "1 of 2 replicas", &cluster.nodes()[shard]);
        }
        let (name, replica) = (cluster.key_at(0, "late"), &cluster.nodes()[cluster.replica_of(0)]);
        replica.stop();
        is_refused(&ours, &name, "0 of 1 replicas", &cluster.nodes()[0]);
        replica.cont();
        drop(acquire(&ours, &name));
    }

    /// A holder keeps a confirmed lock when its master fails, and loses an unconfirmed one.
    #[test]
    fn an_acknowledged_lock_outlives_its_master() {
        let cluster = Cluster::start();
        let options = Options::new().ttl(LONG);
        let (ours, plain) =
            (locks(&cluster.url(), "acks=1", options.clone()), locks(&cluster.url(), "", options.clone()));
        let theirs = locks(&cluster.url(), "", options);
        let (name, unheard) = (cluster.key_at(0, "x"), cluster.key_at(0, "unheard"));
        let guard = acquire(&ours, &name);
        let token = guard.fence();
        scope(|scope| {
            // Moved, so that a failure here stops the rival.
            let guard = guard;
            let rival = scope.spawn(|| {
                let rival = acquire(&theirs, &name);
                (now(), rival)
            });
            cluster.fail_over(0);
            cluster.settles();
            eventually("it is renewed at the new master", SOON, || block_on(guard.renew()).is_ok());

            let master = cluster.owner_of(&name);
            let replica = cluster.replica_of(master);
            cluster.nodes()[replica].stop();
            // Drops writes that are on their way to the replica.
            cluster.nodes()[master].command(&["CLIENT", "KILL", "TYPE", "replica"]);
            let lost = acquire(&plain, &unheard);
            cluster.nodes()[master].kill();
            cluster.nodes()[replica].cont();
            eventually("the replica is the master", SOON, || {
                cluster.owner(cluster.slot(&name)) == Some(replica)
            });
            assert!(cluster.nodes()[replica].has(&name) && !cluster.nodes()[replica].has(&unheard));
            eventually("its holder is told", SOON, || {
                block_on(lost.verify()).is_err_and(|error| error.is_lost())
            });
            // Nothing can be confirmed until there is a replica again.
            let error = block_on(guard.renew()).expect_err("no replica");
            assert!(!error.is_lost(), "{error:?}");
            cluster.nodes()[master].restart();
            cluster.settles();
            eventually("it is renewed as ever", SOON, || block_on(guard.renew()).is_ok());

            assert!(guard.is_held() && !rival.is_finished());
            let released = now();
            block_on(guard.release()).expect("it was held all the time");
            let (granted, rival) = rival.join().expect("no panic");
            assert!(granted > released && rival.fence() > token);
        });
    }
}

/// It refuses WAIT as a replica, which is not to be taken for a lack of rights.
#[test]
fn a_demoted_master_is_asked_again() {
    let (old, new) = (Server::start(), Server::start());
    let follow = |replica: &Server, master: &Server| {
        let (host, port) = (master.address().ip().to_string(), master.address().port().to_string());
        replica.command(&["REPLICAOF", &host, &port]);
    };
    follow(&new, &old);
    eventually("it follows", SOON, || new.info("replication")["master_link_status"] == "up");
    let ours = Locks::open(&with_query(&old.url(), "acks=1")).expect("a store");
    let ours = ours.with(|_| Options::new().op_timeout(Duration::from_secs(1))).expect("options");
    block_on(ours.ping()).expect("an answer");
    new.command(&["REPLICAOF", "NO", "ONE"]);
    follow(&old, &new);
    let error = block_on(ours.mutex("x").expect("a name").try_lock()).expect_err("no master");
    assert!(error.is_unreachable(), "{error}");
    old.command(&["REPLICAOF", "NO", "ONE"]);
    follow(&new, &old);
    drop(block_on(ours.mutex("x").expect("a name").try_lock_for(SOON)).expect("an answer").expect("a lock"));
}
