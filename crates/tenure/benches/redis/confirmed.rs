//! An uncontended lock with a replica that confirms each acquisition.

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use tenure::{Locks, block_on};
use tenure_testkit::servers::{Config, Server, eventually};

use crate::pairs::{bare, compare, count, load};

/// Pairs on its own key until this time, with a WAIT after each of the two commands.
async fn bare_pairs(mut connection: MultiplexedConnection, sha: String, task: usize, until: Instant) -> u32 {
    let key = format!("bare:{task}");
    let mut pairs = 0;
    while Instant::now() < until {
        let mut both = redis::pipe();
        both.cmd("SET").arg(&key).arg("b4re0wner").arg("NX").arg("PX").arg(15_000);
        both.cmd("WAIT").arg(1).arg(1_000);
        let (set, confirmed): (Option<String>, i64) =
            both.query_async(&mut connection).await.expect("an answer");
        assert!(set.is_some() && confirmed == 1, "no other client takes it, and the replica is there");
        let mut both = redis::pipe();
        both.cmd("EVALSHA").arg(&sha).arg(1).arg(&key).arg("b4re0wner");
        both.cmd("WAIT").arg(1).arg(1_000);
        let done: (i64, i64) = both.query_async(&mut connection).await.expect("an answer");
        assert_eq!(done, (1, 1));
        pairs += 1;
    }
    pairs
}

pub(crate) fn pairs(what: &str, tasks: usize, reach: f64) {
    let config = Config::new().set("repl-diskless-sync-delay", "0");
    let master = Server::start_with(config.clone());
    let of = format!("127.0.0.1 {}", master.address().port());
    let replica = Server::start_with(config.set("replicaof", &of));
    eventually("the replica follows", Duration::from_secs(20), || {
        replica.info("replication").get("master_link_status").is_some_and(|status| status == "up")
    });
    master.replicates(1, "told");
    let locks = Locks::open(&format!("{}?acks=1", master.url())).expect("a store");
    let mut connection = bare(&master.url());
    let sha = block_on(load(&mut connection));
    let ours = || {
        block_on(count(tasks, |task, until| {
            let mutex = locks.mutex(format!("ours:{task}")).expect("a name");
            async move {
                let mut pairs = 0_u32;
                while Instant::now() < until {
                    mutex.lock().await.expect("a free lock").release().await.expect("a release");
                    pairs += 1;
                }
                pairs
            }
        }))
    };
    let theirs =
        || block_on(count(tasks, |task, until| bare_pairs(connection.clone(), sha.clone(), task, until)));
    compare(what, ours, theirs, reach);
}
