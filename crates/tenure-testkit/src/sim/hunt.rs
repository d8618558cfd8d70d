//! Runs many schedules on all cores; shared by the tests of all simulations.
//!
//! `TENURE_SCHEDULES` sets their number, `TENURE_SEED` the first seed, and `TENURE_REGIME` a single regime.

use std::collections::BTreeMap;
use std::{env, thread};

use super::coverage::Coverage;
use super::regime::Regime;
use super::regressions::Regression;
use super::report::Report;
use crate::{plant, setting};

/// One of the simulations.
#[derive(Clone, Copy, Debug)]
pub struct Hunt {
    /// Runs a schedule, with or without a log.
    pub run: fn(Regime, u64, bool) -> Report,
    /// Its regimes, in rotation.
    pub regimes: &'static [Regime],
    /// The test that replays a schedule.
    pub again: &'static str,
}

impl Hunt {
    /// The regime set by the environment, otherwise the one that the seed selects.
    fn regime(&self, seed: u64) -> Regime {
        match env::var("TENURE_REGIME") {
            Ok(name) => {
                Regime::named(&name).unwrap_or_else(|| panic!("TENURE_REGIME: none is called {name}"))
            }
            Err(_) => self.turn(seed),
        }
    }

    fn turn(&self, seed: u64) -> Regime {
        self.regimes[(seed % self.regimes.len() as u64) as usize]
    }

    /// Runs this many schedules, unless the environment sets another number.
    ///
    /// # Panics
    /// If one of them violates an invariant.
    pub fn no_violation_in(&self, schedules: u64) {
        let first = setting("TENURE_SEED").unwrap_or(0);
        let last = first + setting("TENURE_SCHEDULES").unwrap_or(schedules);
        let threads = thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
        #[expect(
            clippy::disallowed_methods,
            clippy::disallowed_types,
            reason = "real time, for the figure that it prints"
        )]
        let begun = std::time::Instant::now();
        let tallies: Vec<Tally> = thread::scope(|scope| {
            let workers = (0..threads).map(|worker| {
                scope.spawn(move || {
                    let mut tally = Tally::default();
                    let seeds = (first + worker..last).step_by(threads as usize);
                    seeds.for_each(|seed| tally.add((self.run)(self.regime(seed), seed, false)));
                    tally
                })
            });
            let workers: Vec<_> = workers.collect();
            workers.into_iter().map(|worker| worker.join().expect("a worker ends")).collect()
        });
        let took = begun.elapsed().as_secs_f64();
        let mut all = Tally::default();
        tallies.into_iter().for_each(|tally| all.merge(tally));
        println!(
            "{} schedules, {} grants, {} polls, {:.0} virtual hours in {took:.1} s: {:.0} schedules/s on {threads} cores",
            all.schedules,
            all.grants,
            all.steps,
            all.lasted as f64 / 3.6e12,
            all.schedules as f64 / took
        );
        let unseen = |(regime, coverage): (_, &Coverage)| {
            coverage.missing().into_iter().map(|event| format!("{event:?} in {regime:?}")).collect::<Vec<_>>()
        };
        let unseen: Vec<_> = all.coverage.iter().flat_map(unseen).collect();
        self.accuse(all.violations);
        assert!(unseen.is_empty(), "never happened: {unseen:?}");
    }

    /// Reports one violation of each sort in each regime, with how to replay the first.
    fn accuse(&self, mut violations: Vec<Report>) {
        violations.sort_by_key(|report| report.seed);
        let mut sorts: BTreeMap<String, (String, u64)> = BTreeMap::new();
        for report in &violations {
            let Some(violation) = &report.violation else { continue };
            let kinds = &report.plan.kinds[..report.plan.names as usize];
            let sort = format!("{} in {:?} of {kinds:?}", violation.invariant, report.plan.regime);
            let first = format!("first {} ({} servers): {}", report.seed, report.nodes, violation.what);
            sorts.entry(sort).or_insert((first, 0)).1 += 1;
        }
        for (sort, (first, count)) in sorts {
            println!("{count} × {sort}, {first}");
        }
        if let Some(report) = violations.first() {
            panic!(
                "{} violations; the first: {}\nto see it: TENURE_REGIME={:?} TENURE_SEED={} scripts/test --test sim {} -- --ignored --nocapture",
                violations.len(),
                report.violation.as_ref().expect("a violation"),
                report.plan.regime,
                report.seed,
                self.again
            );
        }
    }

    /// Runs each of this many schedules twice.
    ///
    /// # Panics
    /// If the two runs differ.
    pub fn replays(&self, schedules: u64) {
        for seed in 0..schedules {
            let regime = self.turn(seed);
            let (one, two) = ((self.run)(regime, seed, false), (self.run)(regime, seed, false));
            assert_eq!(one.hash, two.hash, "seed {seed} ({regime:?}): a door leaks");
        }
    }

    /// Runs schedules that once violated an invariant. They must pass now, and in builds with planted bugs
    /// fail with their bug.
    ///
    /// # Panics
    /// If a schedule fails, or passes with its bug.
    pub fn stays_right(&self, regressions: &[Regression]) {
        let mut wrong = Vec::new();
        for (regime, seed, bug) in regressions {
            if let Some(violation) = (self.run)(*regime, *seed, false).violation {
                wrong.push(format!("{regime:?} {seed}: {violation}"));
            }
            if cfg!(tenure_planted) && bug.is_some() {
                plant(*bug);
                let is_seen = (self.run)(*regime, *seed, false).violation.is_some();
                plant(None);
                if !is_seen {
                    wrong.push(format!("{regime:?} {seed} does not show {bug:?} any more"));
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    /// Replays the schedule of `TENURE_SEED` with a log.
    ///
    /// # Panics
    /// If it violates an invariant, or if no seed is given.
    pub fn replay(&self) {
        let seed = setting("TENURE_SEED").expect("TENURE_SEED says which schedule");
        let report = (self.run)(self.regime(seed), seed, true);
        println!("seed {seed}, {:?}, {} servers\n{}", report.plan.regime, report.nodes, report.trace());
        match &report.violation {
            Some(violation) => panic!("{violation}"),
            None => println!("no violation: {} grants, {} polls", report.grants, report.steps),
        }
    }
}

#[derive(Default)]
struct Tally {
    schedules: u64,
    grants: u64,
    steps: u64,
    lasted: u128,
    violations: Vec<Report>,
    /// For schedules with one server or a directory.
    coverage: BTreeMap<Regime, Coverage>,
}

impl Tally {
    fn add(&mut self, report: Report) {
        self.schedules += 1;
        self.grants += report.grants;
        self.steps += report.steps;
        self.lasted += u128::from(report.lasted);
        if report.nodes <= 1 {
            self.coverage.entry(report.plan.regime).or_default().add(&report.plan, &report.events);
        }
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
        for (regime, coverage) in &other.coverage {
            self.coverage.entry(*regime).or_default().merge(coverage);
        }
    }
}
