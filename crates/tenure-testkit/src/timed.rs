//! Tests that measure time, on a machine that may be busy with other work.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "what a busy machine does is seen in real time"
)]

use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const RUNS: usize = 5;
/// How often the watch looks whether this machine runs what is due.
const TICK: Duration = Duration::from_millis(10);
/// What is due for so long, and does not run, may cost a test a short lease.
const STALL: Duration = Duration::from_millis(50);

/// What took too long.
struct Late(String);

/// Runs a test, and runs it again, five times at most, if it was late, or failed while this machine
/// stood still for 50 ms. What fails otherwise fails at once.
///
/// # Panics
/// If the test does, or if it was late each time.
pub fn timed(test: impl Fn()) {
    watch();
    run_again(test, || STALLS.load(Ordering::SeqCst));
}

fn run_again(test: impl Fn(), stalls: impl Fn() -> u64) {
    for run in 1..=RUNS {
        let before = stalls();
        let Err(panic) = catch_unwind(AssertUnwindSafe(&test)) else { return };
        match panic.downcast::<Late>() {
            Ok(late) if run < RUNS => println!("{}", late.0),
            Ok(late) => panic!("{}, the last of {RUNS} runs", late.0),
            Err(panic) => {
                // The watch tells of a stall when it is over.
                thread::sleep(STALL);
                if run == RUNS || stalls() == before {
                    resume_unwind(panic);
                }
                println!("this machine stood still meanwhile");
            }
        }
    }
}

/// How often this machine has stood still.
static STALLS: AtomicU64 = AtomicU64::new(0);

/// Starts the thread that counts them.
fn watch() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        thread::spawn(|| {
            loop {
                let due = Instant::now() + TICK;
                thread::sleep(TICK);
                if due.elapsed() >= STALL {
                    STALLS.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
    });
}

/// Ends this run of a [`timed`] test if something took as long as `limit`, or longer.
#[track_caller]
pub fn in_time(took: Duration, limit: Duration) {
    if took >= limit {
        let text = format!("{}: it took {took:?}, and {limit:?} is too late", Location::caller());
        resume_unwind(Box::new(Late(text)));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn what_is_late_runs_again_and_what_is_late_each_time_fails() {
        let runs = Cell::new(0);
        let late_until = |first: usize| {
            runs.set(0);
            timed(|| {
                runs.set(runs.get() + 1);
                in_time(if runs.get() < first { 2 * MS } else { MS }, 2 * MS);
            });
        };
        late_until(RUNS);
        assert_eq!(runs.get(), RUNS);
        assert!(catch_unwind(AssertUnwindSafe(|| late_until(RUNS + 1))).is_err());
        assert_eq!(runs.get(), RUNS);
    }

    #[test]
    fn what_fails_while_the_machine_stands_still_runs_again() {
        let (runs, stalls) = (Cell::new(0), Cell::new(0));
        let fails_until = |first: usize| {
            runs.set(0);
            let test = || {
                runs.set(runs.get() + 1);
                stalls.set(stalls.get() + 1);
                assert!(runs.get() >= first, "it fails");
            };
            run_again(test, || stalls.get());
        };
        fails_until(RUNS);
        assert_eq!(runs.get(), RUNS);
        assert!(catch_unwind(AssertUnwindSafe(|| fails_until(RUNS + 1))).is_err());
        assert_eq!(runs.get(), RUNS);
    }

    #[test]
    fn what_fails_otherwise_fails_at_once() {
        let runs = Cell::new(0);
        let fails = || {
            runs.set(runs.get() + 1);
            panic!("it fails");
        };
        assert!(catch_unwind(AssertUnwindSafe(|| run_again(fails, || 0))).is_err());
        assert_eq!(runs.get(), 1);
    }
}
