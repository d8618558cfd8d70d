//! Many processes and many locks in one directory.

use super::*;
use tenure_testkit::timed::in_time;

/// Number of voluntary context switches of a process.
pub(crate) fn waits(pid: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("Linux tells");
    let of = |task: std::io::Result<fs::DirEntry>| {
        let status = fs::read_to_string(task.expect("a thread").path().join("status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.map_or(0, |count| count.trim().parse::<u64>().expect("a number"))
    };
    tasks.map(of).sum()
}

/// If all waiting processes polled, each would wake a hundred times a second.
#[test]
fn a_process_in_the_middle_of_a_line_sleeps_until_it_is_called() {
    let dir = dir();
    let mut holder = Process::start("have a place: fair", dir.path());
    holder.line();
    let look = Client::of(FAIR, dir.path());
    let mut line = Vec::new();
    for waiting in 1..=24 {
        line.push(Process::start("wait in line", dir.path()));
        eventually("it waits", || found(look.inspect("x")).waiters.len() == waiting);
    }
    let middle = &line[12];
    let before = waits(middle.child.id());
    sleep(4 * SECOND);
    let woken = waits(middle.child.id()) - before;
    // It refreshes its place every 1.7 s, and may have to wait for the guard then.
    assert!(woken <= 60, "it woke {woken} times in 4 s");
    holder.kill();
    for mut process in line {
        assert_eq!(process.line(), "held");
        process.ends_well();
    }
}

#[test]
fn dead_waiters_by_the_hundred_cost_the_next_living_one_nothing() {
    let dir = dir();
    let client = Client::of(FAIR, dir.path());
    let mine = owner();
    client.join("x", &mine);
    let mut dying = Process::start("have many places", dir.path());
    dying.line();
    let (other, last) = (Client::of(FAIR, dir.path()), owner());
    let place = ticket(&other.join("x", &last));
    dying.kill();
    let begin = Instant::now();
    assert_eq!(client.release("x", &mine), Answer::Released { left: 0 });
    let verb = Verb::Refresh { owners: Arc::new([last.clone()]), wait_ms: LONG_MS, listens: None };
    let places = other.ask("x", &last, verb, 5 * SECOND).expect("an answer");
    assert_eq!(places, Answer::Places { places: vec![Place::Held { fence: place }], retry_in_ms: None });
    in_time(begin.elapsed(), 3 * SECOND);
}

/// The sweep of a directory and the looks at awaited locks are done in batches.
#[test]
fn thousands_of_locks_and_listeners_keep_no_request_waiting() {
    const LOCKS: usize = 20_000;
    let dir = dir();
    let client = Client::new(dir.path());
    let model = owner();
    client.acquire("model", &model);
    let text = fs::read_to_string(record(dir.path())).expect("a record");
    for number in 0..LOCKS {
        // All damaged, so that a sweep reads and leaves them.
        fs::write(dir.path().join(format!("lock-{number:032x}")), &text).expect("written");
    }
    let other = Client::new(dir.path());
    let listeners: Vec<_> = (0..LOCKS).map(|number| other.listen(&format!("name-{number}"))).collect();
    let mut slowest = Duration::ZERO;
    let begin = Instant::now();
    while begin.elapsed() < 2 * SECOND {
        let name = owner();
        let asked = Instant::now();
        assert!(is_held(&other.acquire("y", &name)));
        assert_eq!(other.release("y", &name), Answer::Released { left: 0 });
        slowest = slowest.max(asked.elapsed());
        sleep(Duration::from_millis(5));
    }
    drop(listeners);
    println!("beside {LOCKS} locks and listeners, the slowest pair took {slowest:?}");
    in_time(slowest, SECOND);
}

/// A time namespace has its own boot clock.
#[test]
#[cfg_attr(tenure_portable, ignore = "only Linux has time namespaces")]
fn processes_of_two_time_namespaces_exclude_each_other() {
    let dir = dir();
    let holder = Client::new(dir.path());
    let name = owner();
    assert!(is_held(&holder.try_acquire("x", &name, Liveness::Lease, LONG_MS).expect("an answer")));
    for offset in ["1000000", "-1"] {
        let boottime = format!("--boottime={offset}");
        let before = ["unshare", "-T", "-f", &boottime];
        let mut other = Process::start_under(&before, "try", dir.path());
        let said = other.line();
        assert!(said.contains("Busy"), "{offset}: {said}");
    }
    assert!(is_busy(&holder.acquire("x", &owner())));
    let left = found(holder.inspect("x")).holders[0].left_ms.expect("a lease");
    assert!(left <= LONG_MS, "{left} ms");
}
