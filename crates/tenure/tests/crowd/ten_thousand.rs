//! Ten thousand waiters in four processes.

use std::thread;
use std::time::Duration;

use tenure::{Locks, Status, block_on};
use tenure_testkit::servers::Server;

use crate::log::{self, What, now};
use crate::member::Member;

const PROCESSES: usize = 4;
const TASKS: usize = 2_500;
const ALL: usize = PROCESSES * TASKS;
/// Places refreshed by one script, at a third of the time for which they are kept.
const BATCH: usize = 256;
const REFRESH: Duration = Duration::from_secs(5).checked_div(3).expect("three is not zero");

pub(crate) fn drain() {
    let server = Server::start();
    let dir = tempfile::tempdir().expect("a directory");
    let locks = Locks::open(&server.url()).expect("a store");
    let first = block_on(locks.fair_mutex("crowd").expect("a name").lock()).expect("a free lock");
    let mut members: Vec<Member> = (0..PROCESSES)
        .map(|number| {
            let log = dir.path().join(format!("log-{number}"));
            Member::start(log, &["once", &TASKS.to_string(), &server.url()])
        })
        .collect();
    let begun = now();
    let in_line: Status = loop {
        let status = block_on(locks.inspect("crowd")).expect("an answer").expect("it is held");
        let came = status.waiters.len() + status.unlisted as usize;
        if came == ALL {
            break status;
        }
        assert!(now() - begun < 30_000_000_000, "only {came} came");
        thread::sleep(Duration::from_millis(50));
    };
    server.command(&["CONFIG", "RESETSTAT"]);
    let begun = now();
    block_on(first.release()).expect("a release");
    members.iter_mut().for_each(|member| member.ends_within(Duration::from_secs(40)));
    let took = Duration::from_nanos(now() - begun);
    let scripts = server.info_commandstats()["evalsha"] as usize;

    let mut turns: Vec<_> = members.iter().flat_map(|member| log::read(&member.log)).collect();
    turns.retain(|line| line.what == What::Held);
    turns.sort_by_key(|line| line.time);
    let turns: Vec<u64> = turns.iter().map(|line| line.fence).collect();
    let places: Vec<u64> = in_line.waiters.iter().map(|waiter| waiter.fence).collect();
    assert!(places.is_sorted_by(|one, next| one < next), "places are numbered in order");
    assert!(turns.starts_with(&places), "all had their turns in the order in which they stood in line");
    assert!(turns.is_sorted(), "no token is smaller than one before it");
    assert_eq!(turns.len(), ALL, "all had their turns");

    let refreshes =
        PROCESSES * TASKS.div_ceil(BATCH) * (1 + took.as_millis().div_ceil(REFRESH.as_millis()) as usize);
    println!("{ALL} turns in {took:?}: {scripts} scripts, of which {refreshes} may be refreshes");
    assert!(scripts <= 2 * ALL + refreshes, "{scripts} scripts for {ALL} turns and {refreshes} refreshes");
}
