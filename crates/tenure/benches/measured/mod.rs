//! Rounds of several sides that alternate, so that a slow phase of the machine affects all of them.
#![allow(dead_code, reason = "each benchmark uses a part")]
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a benchmark reads the clock and spawns"
)]

use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

pub(crate) const ROUNDS: usize = 9;
const ROUND: Duration = Duration::from_millis(700);

pub(crate) fn header() {
    println!("{:<66} {:>10} {:>10} {:>8} {:>9}", "", "ours", "bare", "ratio", "reach");
}

pub(crate) fn row(what: &str, ours: f64, bare: f64, reach: &str) {
    row_of(what, (ours, bare, ours / bare), reach);
}

/// A row with a ratio that is not that of the two values.
pub(crate) fn row_of(what: &str, (ours, bare, ratio): (f64, f64, f64), reach: &str) {
    println!("{what:<66} {ours:>10.1} {bare:>10.1} {ratio:>8.2} {reach:>9}");
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Operations per second in one round.
pub(crate) fn rate(mut operation: impl FnMut()) -> f64 {
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < ROUND {
        operation();
        count += 1;
    }
    f64::from(count) / start.elapsed().as_secs_f64()
}

/// Operations per second of each side: the median of its rounds, after one that does not count.
pub(crate) fn rates<const SIDES: usize>(sides: [&dyn Fn(); SIDES]) -> [f64; SIDES] {
    let sides = sides.map(|side| move || rate(side));
    medians(std::array::from_fn(|at| &sides[at] as &dyn Fn() -> f64))
}

/// The median of the rounds of each side, after one that does not count.
pub(crate) fn medians<const SIDES: usize>(sides: [&dyn Fn() -> f64; SIDES]) -> [f64; SIDES] {
    let mut values = [const { Vec::new() }; SIDES];
    for round in 0..=ROUNDS {
        for (values, side) in values.iter_mut().zip(sides) {
            let value = side();
            values.extend((round > 0).then_some(value));
        }
    }
    values.map(median)
}

/// Operations per second of many tasks, each of which repeats its own.
pub(crate) fn rate_of_tasks<F: Future<Output = ()> + Send>(
    runtime: &Runtime,
    tasks: usize,
    operation: impl Fn(usize) -> F + Clone + Send + 'static,
) -> f64 {
    let start = Instant::now();
    let tasks: Vec<_> = (0..tasks)
        .map(|task| {
            let operation = operation.clone();
            runtime.spawn(async move {
                let mut count = 0;
                while start.elapsed() < ROUND {
                    operation(task).await;
                    count += 1;
                }
                count
            })
        })
        .collect();
    let counts = tasks.into_iter().map(|task| runtime.block_on(task).expect("no panic"));
    f64::from(counts.sum::<u32>()) / start.elapsed().as_secs_f64()
}
