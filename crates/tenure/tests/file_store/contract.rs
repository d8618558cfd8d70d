//! The contract of every store.

use super::*;
use tenure_testkit::timed::in_time;

#[test]
fn a_locked_guard_fails_calls_in_time_and_they_are_never_carried_out() {
    let (dir, name) = (dir(), owner());
    let client = Client::new(dir.path());
    client.inspect("x").expect("an answer");
    let path = dir.path().join("guard");
    let guard = fs::OpenOptions::new().read(true).write(true).open(&path).expect("the guard");
    guard.lock().expect("the guard's lock");
    let begin = Instant::now();
    match client.ask("x", &name, takes(), Duration::from_millis(300)) {
        Err(Failure::NotSent(cause)) => {
            let text = cause.to_string();
            assert!(text.contains(&path.display().to_string()) && text.contains("locked"), "{text}");
        }
        other => panic!("{other:?}"),
    }
    let took = begin.elapsed();
    assert!(took >= Duration::from_millis(300), "{took:?}");
    in_time(took, 2 * SECOND);
    guard.unlock().expect("the guard's lock");
    assert_eq!(client.inspect("x").expect("an answer"), Answer::Free);
}

#[test]
fn a_short_call_behind_a_long_one_fails_in_its_own_time() {
    let dir = dir();
    let client = Client::new(dir.path());
    client.inspect("x").expect("an answer");
    let guard = fs::File::open(dir.path().join("guard")).expect("the guard");
    guard.lock().expect("the guard's lock");
    std::thread::scope(|scope| {
        let long = scope.spawn(|| client.ask("x", &owner(), Verb::Inspect, 20 * SECOND));
        sleep(Duration::from_millis(50));
        let begin = Instant::now();
        let short = client.ask("x", &owner(), Verb::Inspect, Duration::from_millis(100));
        let took = begin.elapsed();
        assert!(matches!(short, Err(Failure::NotSent(_))), "{short:?}");
        guard.unlock().expect("the guard's lock");
        assert_eq!(long.join().expect("an end").expect("an answer"), Answer::Free);
        in_time(took, 2 * SECOND);
    });
}

#[test]
fn a_release_undoes_an_acquire_whose_future_was_dropped() {
    let (dir, name) = (dir(), owner());
    let client = Client::new(dir.path());
    for _ in 0..200 {
        let mut call = client.store.request(mutex_op(&name, takes()), SECOND);
        let polled = call.poll_unpin(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(polled, Poll::Pending | Poll::Ready(Ok(_))));
        drop(call);
        client.release("x", &name);
        assert_eq!(client.inspect("x").expect("an answer"), Answer::Free);
    }
}

#[test]
fn a_store_that_is_shut_down_says_so() {
    let dir = dir();
    let client = Client::new(dir.path());
    client.inspect("x").expect("an answer");
    client.driver.stop();
    // The outcome of a request at just that moment is unknown.
    eventually("the thread has ended", || match client.inspect("x") {
        Ok(_) | Err(Failure::Unknown(_)) => false,
        last => {
            assert!(matches!(last, Err(Failure::NotSent(_))), "{last:?}");
            true
        }
    });
}

#[test]
fn a_listing_goes_on_where_its_page_ended() {
    let dir = dir();
    let client = Client::new(dir.path());
    let name = owner();
    for number in 0..1_100 {
        let kind = if number % 2 == 0 { "even" } else { "odd" };
        client.acquire(&format!("{kind}/{number}"), &name);
    }
    let mut names = client.list("").expect("a list");
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 1_100);
    assert_eq!(client.list("even/").expect("a list").len(), 550);
    assert_eq!(client.list("none").expect("a list"), Vec::<String>::new());
}

#[test]
fn tokens_grow_over_all_names_and_processes_when_the_clock_steps_back() {
    let dir = dir();
    Client::new(dir.path()).inspect("x").expect("an answer");
    // A year ahead, as if the clock had been set back by a year since.
    let file = dir.path().join("guard");
    let text = fs::read_to_string(&file).expect("the guard");
    let ahead = Driver::start().expect("a thread").unix_micros() + 31_536_000_000_000;
    fs::write(&file, text.replace(&format!("{:020}", 0), &format!("{ahead:020}"))).expect("written");
    for step in 1..5 {
        let answer = Client::new(dir.path()).acquire(&format!("x{step}"), &owner());
        assert_eq!(answer, Answer::Held { fence: ahead + step });
    }
}

#[test]
fn a_lapsed_lease_is_free_and_its_record_goes() {
    let (dir, name) = (dir(), owner());
    let client = Client::new(dir.path());
    assert!(is_held(&client.try_acquire("x", &name, Liveness::Lease, 60).expect("an answer")));
    eventually("the lease ends", || client.inspect("x").expect("an answer") == Answer::Free);
    assert_eq!(files(dir.path(), "lock-"), Vec::<PathBuf>::new());
    assert_eq!(client.renew("x", &name, None, LONG_MS), Answer::Free);
}

fn mutex_op(owner: &Owner, verb: Verb) -> Op {
    let name = LockName::new("x").expect("a name");
    Op { name, spec: LockSpec::Mutex, owner: owner.clone(), request: 7, verb }
}

fn takes() -> Verb {
    let (fence, bind) = (Fence::Assign, Liveness::Process);
    Verb::Acquire { ttl_ms: LONG_MS, hold: 1, fence, wait_ms: None, listens: None, bind }
}

#[test]
fn a_request_that_waits_for_nothing_is_carried_out_where_it_is_asked() {
    let (dir, name) = (dir(), owner());
    let client = Client::new(dir.path());
    // The first one opens the directory, and a slow machine may delay others.
    let mut at_once = 0;
    for _ in 0..1_000 {
        let taken = client.store.request(mutex_op(&name, takes()), SECOND).now_or_never();
        at_once += u32::from(matches!(taken, Some(Ok(Answer::Held { .. }))));
        assert_eq!(client.release("x", &name), Answer::Released { left: 0 });
    }
    println!("{at_once} of 1,000 at once");
    assert!(at_once > 0);
}

#[test]
fn a_release_never_passes_an_acquire_that_waits_for_the_guard() {
    let dir = dir();
    let client = Client::new(dir.path());
    client.inspect("x").expect("an answer");
    let guard = fs::File::open(dir.path().join("guard")).expect("the guard");
    for _ in 0..100 {
        let name = owner();
        guard.lock().expect("the guard's lock");
        let mut takes = client.store.request(mutex_op(&name, takes()), 5 * SECOND);
        assert!((&mut takes).now_or_never().is_none(), "the guard is locked");
        guard.unlock().expect("the guard's lock");
        assert_eq!(client.release("x", &name), Answer::Released { left: 0 });
        assert!(matches!(block_on(takes), Ok(Answer::Held { .. })));
        assert_eq!(client.inspect("x").expect("an answer"), Answer::Free);
    }
}

/// As in a crowd: each of them holds the guard for a moment, and none hangs.
#[test]
fn a_guard_that_goes_from_hand_to_hand_is_waited_for_and_one_that_does_not_is_not() {
    let dir = dir();
    let client = Client::new(dir.path());
    client.inspect("x").expect("an answer");
    let guard = fs::File::open(dir.path().join("guard")).expect("the guard");
    guard.lock().expect("the guard's lock");
    let within = Duration::from_millis(300);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| client.ask("x", &owner(), Verb::Inspect, within));
        // Changes, as by another process that holds the guard.
        for change in 0..12 {
            sleep(Duration::from_millis(100));
            fs::write(dir.path().join(format!("change-{change}")), "").expect("written");
        }
        guard.unlock().expect("the guard's lock");
        assert_eq!(waits.join().expect("an end").expect("an answer"), Answer::Free);
    });
    guard.lock().expect("the guard's lock");
    let begin = Instant::now();
    assert!(matches!(client.ask("x", &owner(), Verb::Inspect, within), Err(Failure::NotSent(_))));
    in_time(begin.elapsed(), 3 * SECOND);
}
