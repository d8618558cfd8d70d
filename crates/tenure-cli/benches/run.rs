//! The cost of a run under an idle lock: `tenure run x -- true` compared with `flock FILE true`, alternating.
//!
//! `cargo bench -p tenure-cli`
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a benchmark reads the clock")]

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const ROUNDS: usize = 300;

fn main() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let file = dir.path().join("file");
    let url = format!("file:{}", dir.path().join("store").display());

    let mut tenure = Command::new(env!("CARGO_BIN_EXE_tenure"));
    tenure.args(["run", "--store", &url, "x", "--", "true"]);
    let mut flock = Command::new("flock");
    flock.arg(&file).arg("true");
    let mut bare = Command::new("true");

    let mut took = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        took[0].push(time(&mut bare));
        took[1].push(time(&mut flock));
        took[2].push(time(&mut tenure));
    }
    let [bare, flock, tenure] = took.map(median);
    println!("median of {ROUNDS} runs, file store, release build");
    println!("| true | {bare:.2?} |");
    println!("| flock FILE true | {flock:.2?} |");
    println!("| tenure run x -- true | {tenure:.2?} |");
    println!("| tenure over flock | {:.2?} |", tenure.saturating_sub(flock));
}

fn time(command: &mut Command) -> Duration {
    let start = Instant::now();
    let status = command.stdin(Stdio::null()).status().expect("it can be run");
    assert!(status.success(), "{command:?}: {status}");
    start.elapsed()
}

fn median(mut took: Vec<Duration>) -> Duration {
    took.sort_unstable();
    took[took.len() / 2]
}
