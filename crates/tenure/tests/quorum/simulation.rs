//! The real quorum under schedules of faults, and not one violation.

use std::env;

use tenure_testkit::sim::quorum::{Report, replay as replay_seed, run};

/// How many schedules the test command runs; `TENURE_SCHEDULES` asks for another number.
const SCHEDULES: u64 = 10_000;

/// What schedules have found, and the seed of one that shows it.
const REGRESSIONS: [(&str, u64); 3] = [
    ("what an earlier try may have left was given back after a later one had been granted", 226),
    ("a ballot was raised to where the clock of a node without one had been", 441),
    ("two held after the undo of one", 631),
];

fn setting(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text}")))
}

#[test]
fn no_schedule_violates_a_promise() {
    let first = setting("TENURE_SEED").unwrap_or(0);
    let count = setting("TENURE_SCHEDULES").unwrap_or(SCHEDULES);
    let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let (grants, violations): (Vec<u64>, Vec<Vec<Report>>) = std::thread::scope(|scope| {
        let workers = (0..threads).map(|worker| {
            scope.spawn(move || {
                let reports = (first + worker..first + count).step_by(threads as usize).map(run);
                let mut grants = 0;
                let wrong = reports.inspect(|report| grants += report.grants);
                let wrong: Vec<_> = wrong.filter(|report| report.violation.is_some()).collect();
                (grants, wrong)
            })
        });
        let workers: Vec<_> = workers.collect();
        workers.into_iter().map(|worker| worker.join().expect("a worker ends")).unzip()
    });
    println!("{count} schedules, {} grants", grants.iter().sum::<u64>());
    let mut violations: Vec<Report> = violations.into_iter().flatten().collect();
    violations.sort_by_key(|report| report.seed);
    for report in violations.iter().take(20) {
        let violation = report.violation.as_ref().expect("a violation");
        println!("seed {} ({:?}, {} nodes): {violation}", report.seed, report.regime, report.nodes);
    }
    if let Some(report) = violations.first() {
        panic!(
            "{} violations; to see the first: TENURE_SEED={} cargo test -p tenure --test quorum replay -- --nocapture",
            violations.len(),
            report.seed
        );
    }
}

#[test]
fn the_same_seed_gives_the_same_schedule() {
    for seed in 0..200 {
        assert_eq!(run(seed).hash, run(seed).hash, "seed {seed}: a door leaks");
    }
}

#[test]
fn what_once_went_wrong_does_not_again() {
    for (what, seed) in REGRESSIONS {
        let report = run(seed);
        assert!(report.violation.is_none(), "seed {seed}: {what}: {:?}", report.violation);
    }
}

/// Plays one schedule again, for a person; without a seed there is nothing to show.
#[test]
fn replay() {
    let Some(seed) = setting("TENURE_SEED") else { return };
    let report = replay_seed(seed);
    println!("seed {seed}, {:?}, {} nodes", report.regime, report.nodes);
    for (at, what) in &report.log {
        println!("{:12.6}  {what}", *at as f64 / 1e9);
    }
    assert!(report.violation.is_none(), "{:?}", report.violation);
}
