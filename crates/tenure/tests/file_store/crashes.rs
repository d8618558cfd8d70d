//! A crash of a client ends its own holds and places immediately, and nothing else.

use super::*;
use tenure_testkit::timed::in_time;

#[test]
fn a_crashed_holders_lock_is_free_at_once() {
    let dir = dir();
    let mut holder = Process::start("hold", dir.path());
    assert_eq!(holder.line(), "held");
    let client = Client::new(dir.path());
    assert!(is_busy(&client.acquire("x", &owner())));
    assert_eq!(client.list("").expect("a list"), ["x"]);
    holder.kill();
    assert_eq!(client.list("").expect("a list"), Vec::<String>::new());
    assert!(is_held(&client.acquire("x", &owner())));
}

#[test]
fn a_crash_wakes_who_listens() {
    let dir = dir();
    let mut holder = Process::start("hold", dir.path());
    assert_eq!(holder.line(), "held");
    let client = Client::new(dir.path());
    let mut listener = client.listen("x");
    assert!(client.within(SECOND, listener.next()).is_none(), "a wake-up while the holder lives");
    let crash = Instant::now();
    holder.kill();
    assert!(matches!(client.within(SECOND, listener.next()), Some(Some(Notification::Free { .. }))));
    println!("woken {:?} after the crash", crash.elapsed());
}

#[test]
fn the_lock_of_a_killed_process_is_held_until_children_that_inherited_it_end() {
    let dir = dir();
    let mut parent = Process::start("hold with children", dir.path());
    let said = parent.line();
    let pids: Vec<_> = said.split(' ').collect();
    let client = Client::new(dir.path());
    parent.kill();
    // A child that is being started closes its parent's files a moment later.
    eventually("no child keeps what is bound to the process", || {
        is_held(&client.acquire("process", &owner()))
    });
    kill(pids[0]);
    sleep(Duration::from_millis(50));
    assert!(is_busy(&client.acquire("work", &owner())), "the child that inherited it still runs");
    assert!(is_busy(&client.acquire("detached", &owner())), "its lease still runs");
    kill(pids[1]);
    eventually("the work's lock is free", || is_held(&client.acquire("work", &owner())));
    assert!(is_busy(&client.acquire("detached", &owner())), "only its lease ends it");
}

#[test]
fn a_released_hold_is_free_although_a_child_that_inherited_it_runs() {
    let dir = dir();
    let mut parent = Process::start("release work", dir.path());
    parent.line();
    assert_eq!(files(dir.path(), "holder-"), Vec::<PathBuf>::new());
    assert!(is_held(&Client::new(dir.path()).acquire("x", &owner())));
    parent.ends_well();
}

#[test]
fn a_detached_hold_outlives_its_process_and_can_be_bound_to_another() {
    let (dir, name) = (dir(), owner());
    let first = Client::new(dir.path());
    let Answer::Held { fence } = first.acquire("x", &name) else { panic!("not held") };
    first.renew("x", &name, Some(Liveness::Lease), LONG_MS);
    drop(first);
    let (second, third) = (Client::new(dir.path()), Client::new(dir.path()));
    assert!(is_busy(&second.acquire("x", &owner())));
    assert_eq!(second.renew("x", &name, Some(Liveness::Process), LONG_MS), Answer::Held { fence });
    assert!(is_busy(&third.acquire("x", &owner())));
    drop(second);
    eventually("what was bound again ends with its store", || is_held(&third.acquire("x", &owner())));
}

#[test]
fn a_closed_store_leaves_no_holder_file_and_that_of_a_crashed_one_is_removed() {
    let (dir, name) = (dir(), owner());
    let client = Client::new(dir.path());
    client.acquire("x", &name);
    client.release("x", &name);
    assert_eq!(files(dir.path(), "holder-").len(), 1);
    drop(client);
    eventually("its file is gone", || files(dir.path(), "holder-").is_empty());

    let mut holder = Process::start("hold", dir.path());
    holder.line();
    holder.kill();
    assert_eq!((files(dir.path(), "holder-").len(), files(dir.path(), "lock-").len()), (1, 1));
    Client::new(dir.path()).inspect("another").expect("an answer");
    assert_eq!((files(dir.path(), "holder-").len(), files(dir.path(), "lock-").len()), (0, 0));
}

#[test]
fn a_hold_whose_holder_file_was_removed_is_good_for_its_lease() {
    let dir = dir();
    let (first, second) = (Client::new(dir.path()), Client::new(dir.path()));
    assert!(is_held(&first.try_acquire("x", &owner(), Liveness::Process, 300).expect("an answer")));
    for file in files(dir.path(), "holder-") {
        fs::remove_file(file).expect("removed");
    }
    assert!(is_busy(&second.acquire("x", &owner())));
    eventually("its lease ends", || is_held(&second.acquire("x", &owner())));
}

#[test]
fn a_process_killed_at_any_moment_leaves_a_directory_that_can_be_read() {
    let dir = dir();
    let (client, queue) = (Client::new(dir.path()), Client::of(FAIR, dir.path()));
    let owner = owner();
    for round in 0..60 {
        let mut process = Process::start("churn", dir.path());
        process.line();
        sleep(Duration::from_micros(200 + 137 * (round * round % 61)));
        process.kill();
        client.list("").expect("a list");
        assert!(is_held(&client.acquire("x", &owner)), "round {round}");
        assert_eq!(client.release("x", &owner), Answer::Released { left: 0 }, "round {round}");
        assert!(is_held(&queue.acquire("queue", &owner)), "round {round}");
        assert_eq!(queue.release("queue", &owner), Answer::Released { left: 0 }, "round {round}");
    }
    drop((client, queue));
    Client::new(dir.path()).inspect("x").expect("an answer");
    // The guard and a temporary file, once both threads have ended.
    eventually("nothing else is left", || files(dir.path(), "").len() <= 2);
}

#[test]
fn a_killed_holder_in_a_queue_hands_on_at_once() {
    let dir = dir();
    let locks = locks(dir.path());
    for looked_at in [false, true] {
        let mut holder = Process::start("have a place: fair", dir.path());
        holder.line();
        let waits = std::thread::spawn({
            let lock = locks.fair_mutex("x").expect("a name");
            move || block_on(lock.lock()).expect("a grant")
        });
        let look = Client::of(FAIR, dir.path());
        eventually("it waits", || found(look.inspect("x")).waiters.len() == 1);
        let crash = Instant::now();
        holder.kill();
        if looked_at {
            // An inspection removes the dead client, and grants nothing.
            found(look.inspect("x"));
        }
        let guard = waits.join().expect("a guard");
        let took = crash.elapsed();
        in_time(took, 3 * SECOND);
        println!("handed on {took:?} after the crash");
        block_on(guard.release()).expect("a release");
    }
}

#[test]
fn a_killed_waiter_costs_those_behind_it_nothing() {
    let dir = dir();
    let (first, second) = (Client::of(FAIR, dir.path()), Client::of(FAIR, dir.path()));
    let (a, c) = (owner(), owner());
    first.join("x", &a);
    let mut waiter = Process::start("have a place: fair", dir.path());
    waiter.line();
    let place = ticket(&second.join("x", &c));
    assert_eq!(found(first.inspect("x")).waiters.len(), 2);
    waiter.kill();
    assert_eq!(found(first.inspect("x")).waiters.len(), 1);
    let mut listener = second.listen("x");
    assert_eq!(first.release("x", &a), Answer::Released { left: 0 });
    let granted = |wake: &Option<Option<Notification>>| {
        *wake == Some(Some(Notification::Granted { tickets: vec![place] }))
    };
    // An earlier look may have reported the first.
    let heard = [(); 2].map(|()| second.within(SECOND, listener.next()));
    assert!(heard.iter().any(granted), "{heard:?}");
}

#[test]
fn readers_behind_a_killed_writer_are_let_in_at_once() {
    let dir = dir();
    let locks = locks(dir.path());
    let reader = block_on(locks.rwlock("x").expect("a name").read()).expect("a grant");
    let mut writer = Process::start("have a place: writer", dir.path());
    writer.line();
    let second = std::thread::spawn({
        let lock = locks.rwlock("x").expect("a name");
        move || block_on(lock.read()).expect("a grant")
    });
    let look = Client::of(READER, dir.path());
    eventually("both wait", || found(look.inspect("x")).waiters.len() == 2);
    let crash = Instant::now();
    writer.kill();
    let second = second.join().expect("a guard");
    in_time(crash.elapsed(), 3 * SECOND);
    block_on(async { reader.release().await.and(second.release().await) }).expect("a release");
}

#[test]
fn a_crashed_readers_lock_ends_and_no_others() {
    let dir = dir();
    let mut readers = [(); 2].map(|()| Process::start("have a place: reader", dir.path()));
    readers.iter_mut().for_each(|reader| drop(reader.line()));
    let writer = Client::of(WRITER, dir.path());
    assert_eq!(found(writer.inspect("x")).holders.len(), 2);
    readers[0].kill();
    assert_eq!(found(writer.inspect("x")).holders.len(), 1);
    assert!(is_busy(&writer.acquire("x", &owner())));
    readers[1].kill();
    assert!(is_held(&writer.acquire("x", &owner())));
}

#[test]
fn of_two_processes_of_one_owner_a_crash_ends_one_hold() {
    let (dir, name) = (dir(), owner());
    let role = format!("enter again: {name}");
    let mut holders = [(); 2].map(|()| Process::start(&role, dir.path()));
    holders.iter_mut().for_each(|holder| drop(holder.line()));
    let other = Client::of(LockSpec::Reentrant, dir.path());
    let count = || found(other.inspect("x")).holders[0].weight;
    assert_eq!(count(), 2);
    holders[0].kill();
    assert_eq!(count(), 1);
    assert!(is_busy(&other.acquire("x", &owner())));
    holders[1].kill();
    assert!(is_held(&other.acquire("x", &owner())));
}

#[test]
fn a_child_keeps_the_permits_it_has_inherited_and_no_others() {
    let dir = dir();
    let mut parent = Process::start("two permits with a child", dir.path());
    let child = parent.line();
    let client = Client::of(LockSpec::Queue(QueueSpec::permits(2, 1)), dir.path());
    let taken = owner();
    assert!(is_busy(&client.acquire("x", &taken)));
    parent.kill();
    eventually("the second permit is free", || is_held(&client.acquire("x", &taken)));
    assert!(is_busy(&client.acquire("x", &owner())), "the child that inherited the first still runs");
    kill(&child);
    eventually("both are free", || is_held(&client.acquire("x", &owner())));
}

#[test]
fn each_of_an_owners_holds_can_be_passed_on() {
    let (dir, name) = (dir(), owner());
    let (first, second) =
        (Client::of(LockSpec::Reentrant, dir.path()), Client::of(LockSpec::Reentrant, dir.path()));
    let bind = |client: &Client, hold, bind| {
        let verb = Verb::Renew { ttl_ms: LONG_MS, hold, bind: Some(bind), weight: None };
        client.ask("x", &name, verb, 5 * SECOND).expect("an answer")
    };
    assert!(is_held(&first.enter("x", &name, 1)) && is_held(&first.enter("x", &name, 2)));
    assert!(is_held(&bind(&first, 1, Liveness::Lease)));
    drop(first);
    let count = || found(second.inspect("x")).holders[0].weight;
    eventually("what was not passed on has ended", || count() == 1);
    assert!(is_held(&bind(&second, 7, Liveness::Process)));
    assert_eq!(bind(&second, 8, Liveness::Process), Answer::Free);
    drop(second);
    let third = Client::of(LockSpec::Reentrant, dir.path());
    eventually("what was bound again ends with its store", || is_held(&third.acquire("x", &owner())));
}

fn kill(pid: &str) {
    assert!(Command::new("kill").args(["-9", pid]).status().expect("kill").success());
}
