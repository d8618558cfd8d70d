//! Exclusion, order and waking.

use rustix::fs::{FlockOperation, flock};

use super::*;
use tenure_testkit::timed::in_time;

#[test]
fn four_processes_on_one_name_never_overlap_and_their_tokens_grow() {
    never_overlap("take turns", TURNS);
}

#[test]
fn four_processes_in_one_queue_never_overlap_and_are_served_by_ticket() {
    never_overlap("take turns in a queue", TURNS / 3);
}

fn never_overlap(role: &str, turns: usize) {
    let dir = dir();
    fs::write(dir.path().join("turns"), "").expect("a log");
    let mut processes: Vec<_> = (0..4).map(|_| Process::start(role, dir.path())).collect();
    for process in &mut processes {
        assert_eq!(process.line(), "ready");
    }
    let begin = Instant::now();
    processes.iter_mut().for_each(Process::go_on);
    processes.into_iter().for_each(Process::ends_well);
    println!("{} turns of four processes in {:?}", 4 * turns, begin.elapsed());

    let log = fs::read_to_string(dir.path().join("turns")).expect("the log");
    let lines: Vec<_> = log.lines().map(|line| line.split_once(' ').expect("two words")).collect();
    assert_eq!(lines.len(), 4 * turns * 2);
    let mut last = 0;
    for turn in lines.chunks(2) {
        assert_eq!((turn[0].0, turn[1].0, turn[0].1), ("in", "out", turn[1].1), "an overlap");
        let fence: u64 = turn[0].1.parse().expect("a token");
        assert!(fence > last, "{fence} after {last}");
        last = fence;
    }
}

#[test]
fn a_release_by_another_process_wakes_at_once_and_says_nothing_of_other_locks() {
    let (dir, name) = (dir(), owner());
    let (holder, waiter) = (Client::new(dir.path()), Client::new(dir.path()));
    holder.acquire("x", &name);
    holder.acquire("y", &name);
    let mut listener = waiter.listen("x");
    holder.release("y", &name);
    holder.renew("x", &name, None, LONG_MS + 1);
    let early = waiter.within(Duration::from_millis(500), listener.next());
    assert!(early.is_none(), "{early:?}");
    // Several in a row, so that periodic looks cannot be what finds them.
    let begin = Instant::now();
    for _ in 0..24 {
        holder.release("x", &name);
        assert!(matches!(waiter.within(SECOND, listener.next()), Some(Some(Notification::Free { .. }))));
        holder.acquire("x", &name);
    }
    // Without inotify, each is found by a look.
    let most = if cfg!(tenure_portable) { 6_000 } else { 1_500 };
    in_time(begin.elapsed(), Duration::from_millis(most));
}

#[test]
fn a_release_within_a_store_wakes_once_and_says_whose_it_was() {
    let (dir, name) = (dir(), owner());
    let client = Client::new(dir.path());
    client.acquire("x", &name);
    let mut listener = client.listen_to_ask("x");
    client.release("x", &name);
    let by = Some(name.clone());
    assert_eq!(client.within(SECOND, listener.next()), Some(Some(Notification::Free { by })));
    drop(listener);
    // A process that watches the directory may see the change before the request's own notification.
    client.acquire("x", &name);
    let mut listener = client.listen("x");
    client.release("x", &name);
    assert!(matches!(client.within(SECOND, listener.next()), Some(Some(Notification::Free { .. }))));
}

#[test]
fn what_holds_is_told_to_another_process_by_number_and_once() {
    let dir = dir();
    let (first, second) = (Client::of(TWO_OF_FIVE, dir.path()), Client::of(TWO_OF_FIVE, dir.path()));
    let owners = [(); 4].map(|()| owner());
    let tickets = [0, 1, 2, 3].map(|n| ticket(&first.join("x", &owners[n])));
    let mut listener = second.listen("x");
    let refresh = || {
        let verb = Verb::Refresh {
            owners: Arc::new([owners[2].clone(), owners[3].clone()]),
            wait_ms: LONG_MS,
            listens: None,
        };
        let places = first.ask("x", &owners[2], verb, 5 * SECOND).expect("an answer");
        let waiting = [2, 3].map(|n| Place::Waiting { ticket: tickets[n] });
        assert!(matches!(&places, Answer::Places { places, .. } if *places == waiting), "{places:?}");
        sleep(Duration::from_millis(3));
    };
    refresh();
    let all = Some(Some(Notification::Granted { tickets: tickets[..2].to_vec() }));
    assert_eq!(second.within(SECOND, listener.next()), all);
    // A refresh rewrites the record, but notifies nobody.
    (0..5).for_each(|_| refresh());
    let early = second.within(Duration::from_millis(500), listener.next());
    assert!(early.is_none(), "{early:?}");
    for (leaves, comes) in [(0, 2), (1, 3)] {
        first.release("x", &owners[leaves]);
        let told = Some(Some(Notification::Granted { tickets: vec![tickets[comes]] }));
        assert_eq!(second.within(SECOND, listener.next()), told);
    }
}

#[test]
fn where_the_system_gives_no_inotify_a_place_in_a_queue_is_called_all_the_same() {
    let dir = dir();
    let mut holder = Process::start("have a place: fair", dir.path());
    holder.line();
    let script = "echo 0 > /proc/sys/user/max_inotify_instances && exec \"$@\"";
    let before = ["unshare", "-r", "sh", "-c", script, "sh"];
    let mut waiter = Process::start_under(&before, "wait in line", dir.path());
    let look = Client::of(FAIR, dir.path());
    eventually("it waits", || found(look.inspect("x")).waiters.len() == 1);
    let begin = Instant::now();
    holder.kill();
    assert_eq!(waiter.line(), "held");
    in_time(begin.elapsed(), 3 * SECOND);
}

#[test]
fn without_inotify_a_release_and_a_crash_are_noticed_all_the_same() {
    let dir = dir();
    let mut holder = Process::start("hold", dir.path());
    holder.line();
    // A user namespace has its own limit.
    let script = "echo 0 > /proc/sys/user/max_inotify_instances && exec \"$@\"";
    let mut waiter = Process::start_under(&["unshare", "-r", "sh", "-c", script, "sh"], "listen", dir.path());
    assert_eq!(waiter.line(), "listening");
    holder.kill();
    let begin = Instant::now();
    assert!(waiter.line().contains("Free"));
    in_time(begin.elapsed(), 3 * SECOND);
}

#[test]
fn a_waiter_does_not_spin() {
    let dir = dir();
    let mut holder = Process::start("hold", dir.path());
    holder.line();
    let mut waiter = Process::start("listen", dir.path());
    waiter.line();
    does_not_spin(&[waiter]);
}

#[test]
fn three_processes_in_one_queue_do_not_wake_each_other_all_the_time() {
    let dir = dir();
    let mut holder = Process::start("have a place: fair", dir.path());
    holder.line();
    let waiters = [(); 3].map(|()| Process::start("wait in line", dir.path()));
    let look = Client::of(FAIR, dir.path());
    eventually("they wait", || found(look.inspect("x")).waiters.len() == 3);
    sleep(Duration::from_millis(300));
    does_not_spin(&waiters);
}

fn does_not_spin(waiters: &[Process]) {
    let used = || waiters.iter().map(|waiter| ticks(waiter.child.id())).sum::<u64>();
    let before = used();
    sleep(2 * SECOND);
    // A tick is 10 ms: at most 2 % of the time, on a busy machine.
    let used = used() - before;
    assert!(used <= 4 * waiters.len() as u64, "{used} ticks of processor time in two seconds");
}

/// CPU time of a process, in hundredths of a second.
fn ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("Linux tells");
    let fields: Vec<_> = stat.rsplit_once(')').expect("a name").1.split_whitespace().collect();
    fields[11..13].iter().map(|field| field.parse::<u64>().expect("a number")).sum()
}

/// As by a process that was stopped while it held the guard.
#[test]
fn a_guard_that_is_stuck_is_waited_for_by_one_thread() {
    let (dir, owner) = (dir(), owner());
    let client = Client::new(dir.path());
    client.acquire("x", &owner);
    let path = dir.path().join("guard");
    let stuck = fs::File::open(&path).expect("the guard");
    flock(&stuck, FlockOperation::LockExclusive).expect("its lock");
    for _ in 0..10 {
        let answer = client.ask("x", &owner, Verb::Inspect, SECOND / 20);
        assert!(matches!(answer, Err(Failure::NotSent(_))), "{answer:?}");
    }
    let open = || {
        let files = fs::read_dir("/proc/self/fd").expect("open files").flatten();
        files.filter(|file| fs::read_link(file.path()).is_ok_and(|of| of == path)).count()
    };
    // This test's, the client's, and its thread's.
    assert_eq!(open(), 3);
    drop(stuck);
    eventually("the guard is given back", || client.inspect("x").is_ok() && open() == 1);
}

/// The lease of a grant counts from its execution, not from the beginning of the wait for the guard.
#[test]
fn a_grant_that_waited_for_the_guard_longer_than_its_lease_is_held() {
    let dir = dir();
    let locks = Locks::open(&format!("file:{}", dir.path().display())).expect("a store");
    // There is no time left for a retry.
    let locks = locks.with(|options| options.ttl(SECOND).op_timeout(3 * SECOND)).expect("options");
    block_on(locks.ping()).expect("an answer");
    let stuck = fs::File::open(dir.path().join("guard")).expect("the guard");
    flock(&stuck, FlockOperation::LockExclusive).expect("its lock");
    let mutex = locks.mutex("x").expect("a name");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            sleep(5 * SECOND / 2);
            drop(stuck);
        });
        let guard = block_on(mutex.try_lock()).expect("an answer").expect("a free lock");
        assert!(guard.is_held() && guard.remaining() < SECOND);
    });
}
