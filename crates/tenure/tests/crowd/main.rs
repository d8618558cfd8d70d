//! Crowds of real processes at one lock on a real server. Each task logs what it observes, and the logs are
//! checked at the end. A process of a crowd is this program started again with other arguments, so the tests
//! have their own `main`. Other arguments select tests by parts of their names, as usual.
#![expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "real processes take real time")]

use std::panic::catch_unwind;
use std::process::ExitCode;
use std::thread;
use std::time::Instant;

mod killed;
mod leaders;
mod log;
mod member;
mod stampede;
mod ten_thousand;
mod windows;

#[derive(Clone, Copy)]
struct Test {
    name: &'static str,
    run: fn(),
}

/// Run concurrently: while one crowd waits for a killed client's lease, the other uses the processors.
const HALVES: [&[Test]; 2] = [
    &[
        Test {
            name: "a_fair_mutex_survives_a_crowd_some_of_which_are_killed",
            run: || killed::crowd("fair"),
        },
        Test {
            name: "a_semaphore_survives_a_crowd_some_of_which_are_killed",
            run: || killed::crowd("semaphore"),
        },
    ],
    &[
        Test { name: "a_mutex_survives_a_crowd_some_of_which_are_killed", run: || killed::crowd("mutex") },
        Test {
            name: "a_reentrant_mutex_survives_a_crowd_some_of_which_are_killed",
            run: || killed::crowd("reentrant"),
        },
        Test {
            name: "a_read_write_lock_survives_a_crowd_some_of_which_are_killed",
            run: || killed::crowd("rwlock"),
        },
    ],
];

/// Run concurrently, because they mostly wait.
const USES: [&[Test]; 2] = [
    &[Test { name: "a_thousand_readers_compute_a_value_once_at_each_expiry", run: stampede::crowd }],
    &[
        Test {
            name: "a_job_runs_once_in_a_window_though_runners_are_killed_and_paused",
            run: windows::crowd,
        },
        Test {
            name: "one_leads_at_a_time_though_leaders_are_killed_paused_and_cut_off",
            run: leaders::crowd,
        },
    ],
];

/// Run alone, because it measures the cost of a hand-over.
const ALONE: &[Test] = &[Test {
    name: "ten_thousand_who_wait_for_a_fair_mutex_get_it_in_order_for_two_scripts_a_turn",
    run: ten_thousand::drain,
}];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let is_process = match args.first().map(String::as_str) {
        Some(member::MARK) => Some(member::run as fn(&[String])),
        Some(stampede::MARK) => Some(stampede::read as fn(&[String])),
        Some(leaders::MARK) => Some(leaders::run as fn(&[String])),
        Some(windows::MARK) => Some(windows::run as fn(&[String])),
        _ => None,
    };
    if let Some(run) = is_process {
        run(&args[1..]);
        return ExitCode::SUCCESS;
    }
    let all = || HALVES.into_iter().chain(USES).flatten().chain(ALONE);
    // Used by the runner, which reruns a test that failed during a stall.
    if args.iter().any(|arg| arg == "--list") {
        all().for_each(|test| println!("{}: test", test.name));
        return ExitCode::SUCCESS;
    }
    let parts: Vec<&str> = args.iter().map(String::as_str).filter(|arg| !arg.starts_with('-')).collect();
    let is_meant = |name: &str| parts.is_empty() || parts.iter().any(|part| name.contains(part));
    let failed = |tests: &[Test]| tests.iter().filter(|test| is_meant(test.name) && !passes(test)).count();
    let begun = Instant::now();
    let side_by_side = |halves: [&'static [Test]; 2]| {
        thread::scope(|scope| {
            let halves = halves.map(|half| scope.spawn(move || failed(half)));
            halves.map(|half| half.join().expect("a panic of a test is caught")).iter().sum::<usize>()
        })
    };
    let failures = side_by_side(HALVES) + side_by_side(USES) + failed(ALONE);
    let meant = all().filter(|test| is_meant(test.name)).count();
    let (verdict, passed) = (if failures == 0 { "ok" } else { "FAILED" }, meant - failures);
    let took = begun.elapsed().as_secs_f64();
    println!("test result: {verdict}. {passed} passed; {failures} failed; finished in {took:.2}s");
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn passes(test: &Test) -> bool {
    let passed = catch_unwind(test.run).is_ok();
    println!("test {} ... {}", test.name, if passed { "ok" } else { "FAILED" });
    passed
}
