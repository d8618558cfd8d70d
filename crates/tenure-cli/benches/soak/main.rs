//! Breaks real servers on purpose, under `tenure stress`, which kills and stops its processes meanwhile.
//!
//! ```text
//! cargo bench -p tenure-cli --bench soak -- [TOPOLOGY [SECONDS [harm]]]
//! ```
//! TOPOLOGY is single, sentinel, cluster or quorum. Without `harm`, only faults that must not cost a lock.
//! With `harm`, only faults that may lose an acknowledged lock, so that two clients can hold: no persistence,
//! sentinels that promote a replica, clocks that step. Ends with a report. The exit code is 1 if a violation
//! was found, or, with `harm`, if none was.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::unwrap_used,
    reason = "real processes take real time"
)]

use std::collections::BTreeMap;
use std::process::{Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

mod topology;

use topology::{Topology, random};

/// The lease of each hold.
const TTL: Duration = Duration::from_secs(1);
/// Mean interval between faults of the servers.
const EVERY: Duration = Duration::from_millis(700);
/// Mean interval between kills, and between stops, of clients.
const CLIENTS: Duration = Duration::from_secs(3);
/// Locks of each kind.
const NAMES: &str = "8";
/// Tasks in each process.
const TASKS: &str = "20";
/// Time without progress that counts as a stall: longer than any fault and its detection.
const STALL: Duration = Duration::from_secs(30);
/// Time without faults at the end, so that leftovers can be attributed.
const QUIET: Duration = Duration::from_secs(3);

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let name = args.first().map_or("single", String::as_str);
    let seconds: u64 = args.get(1).map_or(15, |seconds| seconds.parse().expect("a number of seconds"));
    let topology = Topology::start(name);
    let length = Duration::from_secs(seconds);
    let harm = args.get(2).is_some_and(|word| word == "harm");

    let mut stress = Command::new(env!("CARGO_BIN_EXE_tenure"));
    let seconds = |time: Duration| format!("{}ms", time.as_millis());
    stress.args(["stress", "--store", &topology.url(), "--for", &seconds(length), "--ttl", &seconds(TTL)]);
    stress.args(["--kill", "--pause", "--every", &seconds(CLIENTS), "--stall", &seconds(STALL)]);
    stress.args(["--names", NAMES, "--tasks", TASKS]);
    // The verdict goes to a file, because its output is not read during faults.
    let verdict = tempfile::NamedTempFile::new().expect("a file");
    stress.stdin(Stdio::null()).stdout(verdict.reopen().expect("the same file"));
    let begun = Instant::now();
    let mut stress = stress.spawn().expect("the command can be run");

    let mut faults: BTreeMap<&str, u64> = BTreeMap::new();
    while begun.elapsed() + QUIET < length && stress.try_wait().unwrap().is_none() {
        sleep(EVERY / 2 + random(EVERY));
        if begun.elapsed() + QUIET < length {
            let since = begun.elapsed();
            let fault = if harm { Some(topology.do_harm(TTL)) } else { topology.break_and_heal(TTL) };
            let Some(fault) = fault else { continue };
            eprintln!("soak: {:.1}s to {:.1}s: {fault}", since.as_secs_f64(), begun.elapsed().as_secs_f64());
            *faults.entry(fault).or_default() += 1;
        }
    }
    let status = stress.wait().expect("a child");
    let verdict = std::fs::read_to_string(verdict.path()).expect("a verdict");

    println!("topology: {name}, {}{}", topology.version(), if harm { ", harmed" } else { "" });
    println!("lease: {TTL:?}; faults of servers and network: {}", faults.values().sum::<u64>());
    for (fault, count) in faults {
        println!("  {count:>6}  {fault}");
    }
    print!("{verdict}");
    if let Some(left) = topology.keys_left() {
        println!("keys left, beside counters that end by themselves: {left}");
    }
    if status.success() == harm { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
