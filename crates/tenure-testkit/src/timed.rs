//! Tests that measure time, on a machine that may be busy with other work.

use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::time::Duration;

const RUNS: usize = 5;

/// What took too long.
struct Late(String);

/// Runs a test, and runs it again if it was late, five times at most: other work may keep the
/// machine busy. What fails otherwise fails at once.
///
/// # Panics
/// If the test does, or if it was late each time.
pub fn timed(test: impl Fn()) {
    for run in 1..=RUNS {
        let Err(panic) = catch_unwind(AssertUnwindSafe(&test)) else { return };
        match panic.downcast::<Late>() {
            Ok(late) if run < RUNS => println!("{}", late.0),
            Ok(late) => panic!("{}, the last of {RUNS} runs", late.0),
            Err(panic) => resume_unwind(panic),
        }
    }
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
    fn what_fails_otherwise_fails_at_once() {
        let runs = Cell::new(0);
        let fails = || {
            runs.set(runs.get() + 1);
            panic!("it fails");
        };
        assert!(catch_unwind(AssertUnwindSafe(|| timed(fails))).is_err());
        assert_eq!(runs.get(), 1);
    }
}
