//! The server's cost of a place in a queue, by the number of places ahead of it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tenure::internals::protocol::{Answer, Fence, Liveness, LockSpec, Op, QueueSpec, Verb};
use tenure::internals::store::StoreExt;
use tenure::internals::store::redis::Redis;
use tenure::internals::{Driver, Store};
use tenure::{LockName, Owner, block_on};
use tenure_testkit::servers::Server;

use crate::pairs::bare;
use crate::{median, row};

const TIMES: usize = 1_000;

/// From `INFO commandstats`: execution time, without parsing the request and writing the reply.
pub(crate) fn server_time(what: &str, server: &Server) {
    let driver = Driver::start().expect("a thread");
    let store: Arc<dyn Store> = Arc::new(Redis::open(&server.url(), driver).expect("a store"));
    let bare = bare(&server.url());
    let one_each: Vec<String> = (0..TIMES).map(|number| format!("short:{number}")).collect();
    take_places(&*store, &one_each);
    take_places(&*store, &vec!["long".to_owned(); 10_000]);
    let (mut behind_one, mut behind_many, mut set) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..5 {
        set.push(server_time_of(server, "set", || {
            let sets = (0..TIMES).map(|number| {
                let mut connection = bare.clone();
                async move {
                    let mut set = redis::cmd("SET");
                    set.arg(format!("set:{round}:{number}")).arg("b4re0wner").arg("NX").arg("PX").arg(60_000);
                    set.query_async::<String>(&mut connection).await.expect("no other client takes it");
                }
            });
            block_on(join_all(sets));
        }));
        behind_one.push(server_time_of(server, "evalsha", || take_places(&*store, &one_each)));
        behind_many.push(server_time_of(server, "evalsha", || {
            take_places(&*store, &vec!["long".to_owned(); TIMES]);
        }));
    }
    let (one, many, set) = (median(behind_one), median(behind_many), median(set));
    row(&format!("{what}: behind 1 to 5, against SET"), one, set, one / set, "<= 9");
    row(&format!("{what}: behind 10,000"), many, set, many / set, "<= 10");
}

/// Takes one more place in the queue of each of these names.
fn take_places(store: &dyn Store, names: &[String]) {
    let places = names.iter().map(|name| {
        let verb = Verb::Acquire {
            ttl_ms: 60_000,
            hold: 1,
            fence: Fence::Assign,
            wait_ms: Some(5_000),
            listens: None,
            bind: Liveness::Process,
        };
        let owner = Owner::new("bench").expect("an owner");
        let name = LockName::new(name).expect("a name");
        let op = Op { name, spec: LockSpec::Queue(QueueSpec::FAIR), owner, request: 1, verb };
        store.request(op, Duration::from_secs(10))
    });
    for reply in block_on(join_all(places)) {
        let answer = reply.expect("an answer");
        assert!(matches!(answer, Answer::Held { .. } | Answer::Waiting { .. }), "{answer:?}");
    }
}

/// Microseconds per call.
fn server_time_of(server: &Server, command: &str, calls: impl FnOnce()) -> f64 {
    server.command(&["CONFIG", "RESETSTAT"]);
    calls();
    let stats = server.info("commandstats");
    let stat = &stats[&format!("cmdstat_{command}")];
    let part = |name: &str| stat.split(',').find_map(|part| part.strip_prefix(name)).expect("a statistic");
    assert_eq!(part("calls="), TIMES.to_string());
    part("usec_per_call=").parse().expect("a number")
}
