//! Complete schedules per second on one core, each with a new world of processes, tasks, faults and checks.
//!
//! `cargo bench -p tenure-testkit --bench schedules`

use tenure_testkit::sim::regime::LockKind;
use tenure_testkit::sim::report::Report;
use tenure_testkit::sim::world::{run, run_of};

/// Enough for a few seconds.
const SCHEDULES: u64 = 30_000;

fn main() {
    count("mutex over memory", |seed| run_of(LockKind::Mutex, seed));
    count("every kind", run);
}

fn count(what: &str, schedule: impl Fn(u64) -> Report) {
    let (mut polls, mut grants, mut lasted) = (0, 0, 0);
    let before = on_core();
    for seed in 0..SCHEDULES {
        let report = schedule(seed);
        assert!(report.violation.is_none(), "seed {seed}: {:?}", report.violation);
        polls += report.steps;
        grants += report.grants;
        lasted += report.lasted;
    }
    // CPU time, because wall-clock time includes other programs.
    let each = SCHEDULES as f64;
    println!(
        "{what}: {:.0} schedules per second of one core; each {:.0} polls, {:.1} grants, {:.0} virtual s",
        each / (on_core() - before),
        polls as f64 / each,
        grants as f64 / each,
        lasted as f64 / each / 1e9
    );
}

/// CPU time of this thread, in seconds.
fn on_core() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux says what a thread took");
    let nanos = text.split(' ').next().and_then(|text| text.parse::<f64>().ok()).expect("a number first");
    nanos / 1e9
}
