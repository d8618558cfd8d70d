//! The real faces and the real engine under two hundred thousand schedules of faults, and not one violation.
//!
//! A failure names its seed. `TENURE_SEED=… cargo test -p tenure --test sim replay -- --nocapture` plays that schedule again and
//! prints what happened in it.

use std::collections::BTreeMap;
use std::env;
use std::thread;

use tenure_testkit::sim::world::{Report, regime, replay as replay_seed, run, run_scripts};

/// How many schedules the test command runs; `TENURE_SCHEDULES` asks for another number.
const SCHEDULES: u64 = 200_000;

/// What schedules have found, and the seed of one that shows it.
const REGRESSIONS: [(&str, u64); 9] = [
    ("a re-entry stood in line behind somebody who waited for its owner", 2),
    ("a second hold was not asked for when its owner had just been let in", 940),
    ("the end of a hold in another process was taken for one that was known", 72),
    ("the release of one of several holds was given up when its own lease was over", 552),
    ("a detach that was dropped left its hold counted for nobody", 314),
    ("who was called from a queue began with less than its grace", 176),
    ("`max_hold` counted from before the turn of who waited in a queue", 0),
    ("a grant that came too late was asked for again under the owner that was being released", 1_375),
    ("a refresh that was answered late handed out what little was left", 105),
];

fn setting(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text}")))
}

#[test]
fn no_schedule_violates_a_promise() {
    let (first, count) =
        (setting("TENURE_SEED").unwrap_or(0), setting("TENURE_SCHEDULES").unwrap_or(SCHEDULES));
    let threads = thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    #[expect(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "real time, for the figure that it prints"
    )]
    let begun = std::time::Instant::now();
    let reports: Vec<Tally> = thread::scope(|scope| {
        let workers = (0..threads).map(|worker| {
            scope.spawn(move || {
                let mut tally = Tally::default();
                (first + worker..first + count)
                    .step_by(threads as usize)
                    .for_each(|seed| tally.add(run(seed)));
                tally
            })
        });
        let workers: Vec<_> = workers.collect();
        workers.into_iter().map(|worker| worker.join().expect("a worker ends")).collect()
    });
    let took = begun.elapsed().as_secs_f64();
    let mut all = Tally::default();
    reports.into_iter().for_each(|tally| all.merge(tally));
    println!(
        "{} schedules, {} grants, {} polls, {:.0} virtual hours in {took:.1} s: {:.0} schedules/s on {threads} cores",
        all.schedules,
        all.grants,
        all.steps,
        all.lasted as f64 / 3.6e12,
        all.schedules as f64 / took
    );
    all.violations.sort_by_key(|report| report.seed);
    let mut kinds: BTreeMap<(&str, String), (String, u64)> = BTreeMap::new();
    for report in &all.violations {
        let invariant = report.violation.as_ref().map_or("", |violation| violation.invariant);
        let sorts = &report.plan.kinds[..report.plan.names as usize];
        let what = report.violation.as_ref().map_or("", |violation| &violation.what);
        let case = format!("{:?} of {sorts:?}, first {}: {what}", report.plan.regime, report.seed);
        let key = format!("{:?} {sorts:?}", report.plan.regime);
        kinds.entry((invariant, key)).or_insert((case, 0)).1 += 1;
    }
    if let Some(report) = all.violations.first() {
        for ((invariant, _), (case, count)) in kinds {
            println!("{count} × {invariant} in {case}");
        }
        panic!(
            "seed {} ({:?}): {}\nto see it: TENURE_SEED={} cargo test -p tenure --test sim replay -- --nocapture",
            report.seed,
            report.plan.regime,
            report.violation.as_ref().expect("a violation"),
            report.seed
        );
    }
}

#[derive(Default)]
struct Tally {
    schedules: u64,
    grants: u64,
    steps: u64,
    lasted: u128,
    violations: Vec<Report>,
}

impl Tally {
    fn add(&mut self, report: Report) {
        self.schedules += 1;
        self.grants += report.grants;
        self.steps += report.steps;
        self.lasted += u128::from(report.lasted);
        if report.violation.is_some() {
            self.violations.push(report);
        }
    }

    fn merge(&mut self, other: Self) {
        self.schedules += other.schedules;
        self.grants += other.grants;
        self.steps += other.steps;
        self.lasted += other.lasted;
        self.violations.extend(other.violations);
    }
}

/// Fewer, because a script takes longer than its twin.
#[test]
fn the_scripts_themselves_answer_as_the_machines_in_every_schedule() {
    for seed in 0..setting("TENURE_SCRIPTS").unwrap_or(3_000) {
        let report = run_scripts(seed);
        assert!(report.violation.is_none(), "seed {seed}: {:?}", report.violation);
    }
}

#[test]
fn the_same_seed_gives_the_same_schedule() {
    for seed in 0..500 {
        let (one, two) = (run(seed), run(seed));
        assert_eq!(one.hash, two.hash, "seed {seed} ({:?}): a door leaks", regime(seed));
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
    println!("seed {seed}, {:?}\n{}", report.plan.regime, report.trace());
    match &report.violation {
        Some(violation) => panic!("{violation}"),
        None => println!("no violation: {} grants, {} polls", report.grants, report.steps),
    }
}
