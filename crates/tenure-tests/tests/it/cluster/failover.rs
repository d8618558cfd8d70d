//! Masters that fail over, are killed or stopped.

use super::*;
use tenure_testkit::timed::in_time;

enum Fault {
    /// Its replica takes over with all data.
    FailOver,
    Kill,
    Stop,
}

impl Fault {
    /// Applies the fault to the node that serves a key; returns its index.
    fn strikes(&self, cluster: &Cluster, key: &str) -> usize {
        let master = cluster.owner_of(key);
        match self {
            Self::FailOver => {
                cluster.fail_over(master);
            }
            Self::Kill => cluster.nodes()[master].kill(),
            Self::Stop => cluster.nodes()[master].stop(),
        }
        master
    }

    fn heals(&self, cluster: &Cluster, struck: usize) {
        match self {
            Self::FailOver => {}
            Self::Kill => cluster.nodes()[struck].restart(),
            Self::Stop => cluster.nodes()[struck].cont(),
        }
        cluster.settles();
    }
}

#[test]
fn a_master_that_fails_over_costs_seconds_and_nobody_who_has_lost_is_not_told() {
    let cluster = Cluster::start();
    let key = cluster.key_at(0, "k");
    for (what, fault) in [("failed over", Fault::FailOver), ("killed", Fault::Kill), ("stopped", Fault::Stop)]
    {
        // A server that aborts a failover has blocked its clients for 5 s.
        let ttl = if let Fault::FailOver = fault { ms(15_000) } else { ms(2_000) };
        let (crowd, clients) = (Crowd::new(&key), [(); 2].map(|()| locks(&cluster.url(), ttl)));
        let holders = locks(&cluster.url(), Duration::from_secs(8));
        let mut guards = held(&holders, &key);
        let many = (0..200).map(|number| acquire(&holders, "mutex", &format!("many:{number}")));
        guards.extend(many.map(|guard| guard.expect("a free lock")));
        // A lock of another shard is unaffected.
        let elsewhere = held(&locks(&cluster.url(), ms(900)), &cluster.key_at(1, "e"));
        let owners: Vec<_> = guards.iter().map(|guard| (guard.owner().clone(), guard.fence())).collect();
        scope(|scope| {
            let _ends = crowd.ends_with_the_test();
            let workers = crowd.starts(scope, &clients);
            crowd.goes_on(SOON);
            cluster.replicates(&key);
            crowd.watches();
            let struck = fault.strikes(&cluster, &key);
            crowd.goes_on(Duration::from_secs(15));
            crowd.tells(what);
            fault.heals(&cluster, struck);
            crowd.goes_on(SOON);
            crowd.ends();
            workers.into_iter().for_each(|worker| worker.join().expect("no panic"));
        });
        if let Fault::FailOver = fault {
            for kind in KINDS {
                crowd.tally(kind, |tally| assert_eq!((tally.overlaps, tally.lost), (0, 0), "{kind}"));
            }
        }
        for (guard, (owner, fence)) in guards.into_iter().zip(owners) {
            block_on(guard.verify()).unwrap_or_else(|error| panic!("{what}: {}: {error:?}", guard.name()));
            let status =
                block_on(holders.inspect(guard.name().as_str())).expect("an answer").expect("a holder");
            let holder = &status.holders[0];
            assert_eq!(holder.owner.as_ref(), Some(&owner));
            // 0 if the store does not know it.
            assert!([0, fence].contains(&holder.fence), "{} of {fence}", holder.fence);
            block_on(guard.release()).expect("it was held all the time");
        }
        for guard in elsewhere {
            block_on(guard.release()).expect("it was held all the time");
        }
    }
}

#[test]
fn of_a_thousand_locks_only_those_of_the_stopped_master_are_lost_and_in_time() {
    const TTL: Duration = ms(3_000);
    let cluster = Cluster::without_replicas();
    let holders = locks(&cluster.url(), TTL);
    let guards: Vec<_> = (0..1_000)
        .map(|number| {
            let name = format!("lock:{number}");
            let at = cluster.owner(cluster.slot(&name)).expect("an owner");
            (at, acquire(&holders, "mutex", &name).expect("a free lock"))
        })
        .collect();
    let on_the_dead = guards.iter().filter(|(at, _)| *at == 0).count();
    assert!((100..900).contains(&on_the_dead), "{on_the_dead}");
    let (key, other) = (cluster.key_at(1, "x"), locks(&cluster.url(), TTL));
    cluster.nodes()[0].stop();
    let stopped = Instant::now();
    // Meanwhile the other shards serve holders and newcomers as usual.
    let mut longest = Duration::ZERO;
    while stopped.elapsed() < TTL * 3 {
        let began = Instant::now();
        let guard = acquire(&other, "mutex", &key).expect("a free lock");
        block_on(guard.release()).expect("a release");
        longest = longest.max(began.elapsed());
        for (at, guard) in &guards {
            assert!(*at == 0 || guard.is_held(), "{} of a shard that lives is lost", guard.name());
            assert!(*at != 0 || !guard.is_held() || stopped.elapsed() < TTL, "{} is not lost", guard.name());
        }
        sleep(ms(5));
    }
    println!("{on_the_dead} of 1,000 lost; a pair on another shard took {longest:?} at most");
    in_time(longest, ms(2_000));
    cluster.nodes()[0].cont();
    eventually("the stopped shard is served again", SOON, || {
        let (_, lost) = guards.iter().find(|(at, _)| *at == 0).expect("some");
        block_on(holders.mutex(lost.name().as_str()).expect("a name").try_lock())
            .is_ok_and(|got| got.is_some())
    });
    for (at, guard) in guards {
        match (at, block_on(guard.release())) {
            (0, Err(error)) => assert!(error.is_lost() || error.is_unknown(), "{error:?}"),
            (0, Ok(())) => panic!("a lock that was lost is released"),
            (_, released) => released.expect("it was held all the time"),
        }
    }
}

#[test]
fn a_cluster_is_found_by_any_live_seed_and_by_the_addresses_it_announces() {
    let cluster = Cluster::without_replicas();
    let port = cluster.nodes()[2].address().port();
    // Nothing listens at the first address; the nodes announce the second under another name.
    let url = format!("redis-cluster://127.0.0.1:1,localhost:{port}");
    let locks = block_on(Locks::connect(&url)).expect("a cluster");
    for node in 0..3 {
        for kind in KINDS {
            let guard = acquire(&locks, kind, &cluster.key_at(node, kind)).expect("a free lock");
            block_on(guard.release()).expect("a release");
        }
    }
    let error = block_on(Locks::connect("redis-cluster://127.0.0.1:1,127.0.0.1:2")).expect_err("nobody");
    assert!(error.is_unreachable(), "{error:?}");
    let alone = tenure_testkit::servers::Server::start();
    let error =
        block_on(Locks::connect(&format!("redis-cluster://{}", alone.address()))).expect_err("no cluster");
    assert!(error.is_refused() && format!("{error:?}").contains("cluster"), "{error:?}");
}

#[test]
fn who_only_waits_on_a_stopped_master_hears_of_a_release_on_its_replica() {
    let cluster = Cluster::start();
    let key = cluster.key_at(0, "k");
    let [holders, waiters] = [(); 2].map(|()| locks(&cluster.url(), Duration::from_secs(30)));
    // Queued waiters refresh their places, and notice sooner.
    let mut guards = held(&holders, &key);
    guards.truncate(2);
    let waited = scope(|scope| {
        let waiters: Vec<_> = guards
            .iter()
            .zip(KINDS)
            .map(|(guard, kind)| {
                let (name, waiters) = (guard.name().as_str().to_owned(), &waiters);
                scope.spawn(move || {
                    let guard = acquire(waiters, kind, &name).expect("a grant");
                    (Instant::now(), guard)
                })
            })
            .collect();
        eventually("a subscription each", SOON, || {
            cluster.nodes()[0].command(&["PUBSUB", "SHARDCHANNELS"]).items().len() == 2
        });
        cluster.nodes()[0].stop();
        let stopped = Instant::now();
        for guard in guards {
            // If the first answer is lost, it is unknown whether the lock was released there.
            match block_on(guard.release()) {
                Ok(()) => {}
                Err(error) => assert!(error.is_unknown(), "{error:?}"),
            }
        }
        waiters.into_iter().map(|waiter| waiter.join().expect("no panic").0 - stopped).max()
    });
    println!("who only waited went on {waited:?} after the master was stopped");
    assert!(waited < Some(Duration::from_secs(15)), "{waited:?}");
}
