//! Which of the processes that wait for a mutex are woken, and what happens if a woken process does not
//! retry.

use rustix::process::{Pid, Signal, kill_process};
use tenure_testkit::servers;
use tenure_testkit::timed::in_time;

use super::*;

/// A process that found the lock busy and waits to retry.
struct Waiting {
    client: Client,
    owner: Owner,
    listener: Listener,
}

impl Waiting {
    fn new(dir: &Path) -> Self {
        let (client, owner) = (Client::new(dir), owner());
        let listener = client.listen_to_ask("x");
        let waiting = Self { client, owner, listener };
        assert!(is_busy(&waiting.client.acquire("x", &waiting.owner)));
        waiting
    }

    fn has_heard(&mut self) -> bool {
        self.listener.next().now_or_never().is_some()
    }
}

/// The lines of the file of waiters.
fn waiting(dir: &Path) -> Vec<String> {
    let files = files(dir, "waits-");
    let text = files.first().map(|file| fs::read_to_string(file).unwrap_or_default());
    text.unwrap_or_default().lines().map(str::to_owned).collect()
}

fn holder(line: &str) -> &str {
    line.split(' ').nth(1).expect("a holder")
}

#[test]
fn of_sixteen_that_wait_for_a_mutex_each_release_wakes_one() {
    const CROWD: usize = 16;
    let (dir, first) = (dir(), owner());
    let client = Client::new(dir.path());
    client.acquire("x", &first);
    let mut crowd: Vec<_> = (0..CROWD).map(|_| Waiting::new(dir.path())).collect();
    assert_eq!(waiting(dir.path()).len(), CROWD);
    client.release("x", &first);
    let mut heard = 0;
    for turn in 0..CROWD {
        let mut called = None;
        eventually("one is called", || {
            called = crowd[turn..].iter_mut().position(Waiting::has_heard);
            called.is_some()
        });
        // They are woken in order of arrival, but one that polls may come first.
        crowd.swap(turn, turn + called.expect("one"));
        let Waiting { client, owner, .. } = &crowd[turn];
        assert!(is_held(&client.acquire("x", owner)));
        heard += 1 + crowd[turn..].iter_mut().map(|one| usize::from(one.has_heard())).sum::<usize>();
        let Waiting { client, owner, .. } = &crowd[turn];
        assert_eq!(client.release("x", owner), Answer::Released { left: 0 });
    }
    // The first two poll, and may see it free before the woken process retries.
    assert!(heard <= 3 * CROWD, "{CROWD} turns woke {heard}");
    assert_eq!(files(dir.path(), "waits-"), Vec::<PathBuf>::new());
}

#[test]
fn one_that_asks_no_more_is_not_called_and_passes_its_turn_on() {
    let (dir, first) = (dir(), owner());
    let client = Client::new(dir.path());
    client.acquire("x", &first);
    let crowd: Vec<_> = (0..3).map(|_| Waiting::new(dir.path())).collect();
    let lines = waiting(dir.path());
    let [a, b, c] = &lines[..] else { panic!("{lines:?}") };
    crowd[0].listener.rest();
    eventually("it is out", || waiting(dir.path()).len() == 2);
    assert!(waiting(dir.path()).iter().all(|line| holder(line) != holder(a)));
    client.release("x", &first);
    let is_called = |line: &str| {
        waiting(dir.path())
            .first()
            .is_some_and(|first| first.starts_with("called ") && holder(first) == holder(line))
    };
    assert!(is_called(b), "{:?}", waiting(dir.path()));
    crowd[1].listener.rest();
    eventually("the next is called", || is_called(c));
}

#[test]
fn a_waiter_that_gives_up_leaves_those_who_wait() {
    let (dir, first) = (dir(), owner());
    let client = Client::new(dir.path());
    client.acquire("x", &first);
    let mutex = locks(dir.path()).mutex("x").expect("a name");
    let waits = std::thread::spawn(move || {
        let given = block_on(mutex.try_lock_for(SECOND)).expect("an answer");
        assert!(given.is_none());
        mutex
    });
    eventually("it waits", || waiting(dir.path()).len() == 1);
    let mutex = waits.join().expect("it gives up");
    eventually("it is out", || waiting(dir.path()).is_empty());
    drop(mutex);
}

/// Nor is anything else written in a directory on a full disk.
#[test]
fn one_that_cannot_be_written_down_asks_now_and_then() {
    let (dir, first) = (dir(), owner());
    let client = Client::new(dir.path());
    client.acquire("x", &first);
    let record = files(dir.path(), "lock-").remove(0);
    let name = record.file_name().expect("a name").to_string_lossy().replace("lock-", "waits-");
    fs::create_dir(dir.path().join(name)).expect("a directory in its place");
    let mut waiting = Waiting::new(dir.path());
    let (mut asked, begin) = (0, Instant::now());
    while begin.elapsed() < SECOND {
        if waiting.has_heard() {
            assert!(is_busy(&waiting.client.acquire("x", &waiting.owner)));
            asked += 1;
        }
        sleep(Duration::from_millis(1));
    }
    assert!(asked < 20, "it was told to ask {asked} times in a second");
    client.release("x", &first);
    eventually("it looks", || waiting.has_heard());
}

#[test]
fn a_busy_lock_puts_off_no_look_at_another() {
    let (dir, first) = (dir(), owner());
    let client = Client::new(dir.path());
    client.acquire("x", &first);
    let mut waiting = Waiting::new(dir.path());
    // So that nobody calls it.
    fs::remove_file(&files(dir.path(), "waits-")[0]).expect("a list");
    client.release("x", &first);
    let mut busy = waiting.client.listen_to_ask("busy");
    let (ours, theirs, begin) = (owner(), owner(), Instant::now());
    while !waiting.has_heard() {
        assert!(begin.elapsed() < 20 * SECOND, "it does not look");
        assert!(is_held(&client.acquire("busy", &theirs)));
        assert!(is_busy(&waiting.client.acquire("busy", &ours)));
        client.release("busy", &theirs);
        assert!(waiting.client.within(SECOND, busy.next()).is_some(), "it is called");
        assert!(is_held(&waiting.client.acquire("busy", &ours)));
        waiting.client.release("busy", &ours);
    }
}

#[test]
fn a_task_that_asks_once_and_does_not_wait_takes_no_turn_from_those_who_wait() {
    let (dir, first) = (dir(), owner());
    let client = Client::new(dir.path());
    client.acquire("x", &first);
    let mutex = locks(dir.path()).mutex("x").expect("a name");
    assert!(block_on(mutex.try_lock_for(SECOND / 10)).expect("an answer").is_none());
    eventually("it is out", || waiting(dir.path()).is_empty());
    assert!(block_on(mutex.try_lock()).expect("an answer").is_none());
    let next = Waiting::new(dir.path());
    let lines = waiting(dir.path());
    let last = holder(lines.last().expect("those who wait"));
    client.release("x", &first);
    let is_called = || {
        waiting(dir.path()).first().is_some_and(|line| line.starts_with("called ") && holder(line) == last)
    };
    let took = eventually("the next is called", is_called);
    in_time(took, 2 * SECOND);
    drop(next);
}

/// As if its file belonged to another user, or the checking process could open no further file.
#[test]
fn one_of_which_it_cannot_be_seen_that_it_lives_is_called() {
    let (dir, first) = (dir(), owner());
    let client = Client::new(dir.path());
    client.acquire("x", &first);
    let _one = Waiting::new(dir.path());
    let lines = waiting(dir.path());
    let one = holder(&lines[0]);
    let file = dir.path().join(format!("holder-{one}"));
    fs::rename(&file, dir.path().join("moved")).expect("its file");
    symlink("moved", &file).expect("a link, which is not followed");
    client.release("x", &first);
    let lines = waiting(dir.path());
    assert!(
        lines.first().is_some_and(|line| line.starts_with("called ") && holder(line) == one),
        "{lines:?}"
    );
}

/// A task of the same process has held the lock, and released it to another process.
#[test]
fn one_that_waits_behind_a_hold_that_its_process_has_detached_comes_in_again() {
    let (dir, first) = (dir(), owner());
    let client = Client::new(dir.path());
    client.acquire("x", &first);
    let mut one = Waiting::new(dir.path());
    client.release("x", &first);
    let beside = owner();
    assert!(is_held(&one.client.acquire("x", &beside)));
    assert!(waiting(dir.path()).is_empty());
    assert!(is_held(&one.client.renew("x", &beside, Some(Liveness::Lease), LONG_MS)));
    while one.has_heard() {}
    eventually("it is told to ask", || one.has_heard());
    assert!(is_busy(&one.client.acquire("x", &one.owner)));
    assert_eq!(waiting(dir.path()).len(), 1);
}

/// Starts processes that wait for the mutex `x`, one after the other.
fn processes(dir: &Path, count: usize) -> Vec<Process> {
    let start = |number| {
        let process = Process::start("wait for a mutex", dir);
        eventually("it waits", || waiting(dir).len() > number);
        process
    };
    (0..count).map(start).collect()
}

fn signal(process: &Process, signal: Signal) {
    let pid = Pid::from_child(&process.child);
    kill_process(pid, signal).expect("a process");
}

/// Without polling, the next would retry when the last holder's lease ends, in ten minutes.
fn the_last_gets_it_soon(break_it: impl Fn(&mut Process), broken: usize) {
    let (dir, first) = (dir(), owner());
    let client = Client::new(dir.path());
    client.acquire("x", &first);
    let mut line = processes(dir.path(), broken + 1);
    line[..broken].iter().for_each(|process| servers::stop(&process.child));
    client.release("x", &first);
    line[..broken].iter_mut().for_each(break_it);
    let begin = Instant::now();
    assert_eq!(line[broken].line(), "held");
    assert!(begin.elapsed() < 10 * SECOND, "{:?}", begin.elapsed());
    println!("{broken} that do not ask cost the next {:?}", begin.elapsed());
    line[..broken].iter().for_each(|process| signal(process, Signal::CONT));
}

#[test]
fn a_called_process_that_is_stopped_costs_the_next_a_look() {
    the_last_gets_it_soon(|_| {}, 1);
}

#[test]
fn a_called_process_that_is_killed_before_it_asks_costs_the_next_a_look_at_most() {
    the_last_gets_it_soon(|process| signal(process, Signal::KILL), 1);
}

#[test]
fn the_first_two_may_be_stopped_and_the_third_looks() {
    the_last_gets_it_soon(|_| {}, 2);
}

#[test]
fn a_crash_of_the_holder_is_noticed_by_one_that_waits() {
    let dir = dir();
    let mut holder = Process::start("hold", dir.path());
    assert_eq!(holder.line(), "held");
    let mut line = processes(dir.path(), 2);
    while !line.is_empty() {
        holder.kill();
        // Usually the first; the one behind it if the first gets no processor.
        let mut next = None;
        let took = eventually("it is noticed", || {
            next = line.iter().position(|process| process.said().is_some_and(|said| said == "held"));
            next.is_some()
        });
        println!("noticed after {took:?}");
        in_time(took, 5 * SECOND);
        holder = line.remove(next.expect("one of them"));
    }
}

/// With a watch on the directory, each change would wake it.
#[test]
fn changes_of_other_locks_wake_none_that_waits() {
    let (dir, first, other) = (dir(), owner(), owner());
    let client = Client::new(dir.path());
    client.acquire("x", &first);
    let line = processes(dir.path(), 3);
    let waits = |process: &Process| crowds::waits(process.child.id());
    let before: Vec<u64> = line.iter().map(waits).collect();
    for _ in 0..1_000 {
        assert!(is_held(&client.acquire("y", &other)));
        assert_eq!(client.release("y", &other), Answer::Released { left: 0 });
        sleep(Duration::from_millis(1));
    }
    for (process, before) in line.iter().zip(before) {
        let woken = waits(process) - before;
        assert!(woken <= 200, "1,000 turns at another lock woke it {woken} times");
    }
}

#[test]
fn a_holder_without_a_socket_hears_that_its_hold_was_ended_by_force() {
    let dir = dir();
    let mut process = Process::start("hold without a socket", dir.path());
    assert_eq!(process.line(), "listens");
    assert_eq!(files(dir.path(), "wake-"), Vec::<PathBuf>::new());
    let verb = Verb::Release { hold: 0, fence: Fence::Assign, whose: ReleaseScope::Any };
    let ended = Client::new(dir.path()).ask("x", &owner(), verb, 5 * SECOND);
    assert!(matches!(ended, Ok(Answer::Found(_))), "{ended:?}");
    assert_eq!(process.line(), "told");
}

#[test]
fn who_has_waited_leaves_no_file_behind() {
    for turn in 0..20 {
        let (dir, first) = (dir(), owner());
        let client = Client::new(dir.path());
        client.acquire("x", &first);
        let mutex = locks(dir.path()).mutex("x").expect("a name");
        let waits = std::thread::spawn(move || {
            let guard = block_on(mutex.lock()).expect("a grant");
            block_on(guard.release()).expect("a release");
        });
        eventually("it waits", || waiting(dir.path()).len() == 1);
        client.release("x", &first);
        waits.join().expect("its turn");
        assert_eq!(files(dir.path(), "wake-"), Vec::<PathBuf>::new(), "in turn {turn}");
    }
}

/// The requests of busy tasks never end, and messages arrive between them.
#[test]
fn a_busy_process_hears_of_its_turn() {
    let directory = tempfile::tempdir().expect("a directory");
    let url = format!("file:{}", directory.path().display());
    let [ours, theirs] = [(); 2].map(|()| Locks::open(&url).expect("a store"));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let held = block_on(theirs.fair_mutex("x").expect("a name").lock()).expect("a free lock");
    runtime.block_on(async {
        let waiter = ours.fair_mutex("x").expect("a name");
        let waiter = tokio::spawn(async move { waiter.lock().await });
        for task in 0..200 {
            let mutex = ours.mutex(format!("own{task}")).expect("a name");
            tokio::spawn(async move {
                while let Ok(guard) = mutex.lock().await {
                    let _ = guard.release().await;
                }
            });
        }
        tokio::time::sleep(SECOND).await;
        let released = Instant::now();
        held.release().await.expect("a release");
        let granted = waiter.await.expect("no panic").expect("its turn");
        let took = released.elapsed();
        drop(granted);
        assert!(took < SECOND, "it heard of its turn after {took:?}");
    });
}
