//! An owner that reacquires its own lock sends no request.

use std::time::Duration;

use tenure::{Guard, Locks, Owner, Renewal, block_on};
use tenure_testkit::servers::{Server, Value, eventually};

/// Number of requests about locks that the server has executed.
fn asked(server: &Server) -> u64 {
    let calls = server.info_commandstats();
    ["evalsha", "eval"].iter().filter_map(|name| calls.get(*name)).sum()
}

fn count_on_the_server(server: &Server, owner: &Owner) -> Option<String> {
    match server.command(&["HGET", "x", owner.as_str()]) {
        Value::Nil => None,
        count => Some(count.text().to_owned()),
    }
}

fn locks(server: &Server) -> Locks {
    let locks = Locks::open(&server.url()).expect("a store");
    locks.with(|options| options.ttl(Duration::from_secs(30))).expect("options")
}

#[test]
fn a_reentry_asks_nothing_and_the_last_release_frees() {
    let server = Server::start();
    let (locks, me) = (locks(&server), Owner::new("me").expect("an owner"));
    let lock = locks.reentrant_mutex("x", &me).expect("a name");
    let first = block_on(lock.lock()).expect("a free lock");
    let before = asked(&server);
    let more: Vec<_> = (0..100).map(|_| block_on(lock.lock()).expect("our own")).collect();
    assert!(more.iter().all(|guard| guard.fence() == first.fence() && guard.is_held()));
    block_on(first.release()).expect("a release");
    let mut more = more.into_iter();
    let last = more.next().expect("a hundred");
    more.for_each(|guard| block_on(guard.release()).expect("a release"));
    assert_eq!(asked(&server), before, "requests of 100 re-entries and 100 releases");
    assert_eq!(count_on_the_server(&server, &me).as_deref(), Some("1"));
    assert_eq!(block_on(lock.hold_count()).expect("an answer"), 1);
    block_on(last.release()).expect("a release");
    assert_eq!(count_on_the_server(&server, &me), None);
}

/// The server counts two holds if the second has another renewal setting or end, and after a reconnect, when
/// the server may have forgotten the first.
#[test]
fn a_reentry_asks_where_the_lease_of_the_first_will_not_do() {
    let server = Server::start();
    let (locks, me) = (locks(&server), Owner::new("me").expect("an owner"));
    let lock = locks.reentrant_mutex("x", &me).expect("a name");
    let first = block_on(lock.lock()).expect("a free lock");
    let other = [
        lock.with(|options| options.renewal(Renewal::Off)),
        lock.with(|options| options.max_hold(Duration::from_secs(20))),
        lock.with(|options| options.grace(Duration::from_secs(5))),
        lock.with(|options| options.ttl(Duration::from_secs(60))),
    ];
    for other in other {
        let before = asked(&server);
        let guard = block_on(other.expect("options").lock()).expect("our own");
        assert_eq!(asked(&server), before + 1);
        assert_eq!(count_on_the_server(&server, &me).as_deref(), Some("2"));
        block_on(guard.release()).expect("a release");
    }
    let again = block_on(lock.lock()).expect("our own");
    assert_eq!(count_on_the_server(&server, &me).as_deref(), Some("1"));
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    eventually("the connection is made again", Duration::from_secs(10), || block_on(first.verify()).is_ok());
    let before = asked(&server);
    let after = block_on(lock.lock()).expect("our own");
    assert!(asked(&server) > before);
    assert_eq!(count_on_the_server(&server, &me).as_deref(), Some("2"));
    drop((first, again, after));
}

#[test]
fn a_loss_is_told_to_all_who_share_the_hold() {
    let server = Server::start();
    let (locks, me) = (locks(&server), Owner::new("me").expect("an owner"));
    let lock = locks.reentrant_mutex("x", &me).expect("a name");
    let guards: Vec<_> = (0..3).map(|_| block_on(lock.lock()).expect("our own")).collect();
    let lost: Vec<_> = guards.iter().map(|guard| guard.lost()).collect();
    server.command(&["DEL", "x"]);
    assert!(block_on(guards[1].verify()).expect_err("it is gone").is_lost());
    assert!(guards.iter().all(|guard| !guard.is_held()));
    assert!(lost.into_iter().all(|lost| block_on(lost).is_lost()));
    let fence = guards[0].fence();
    let again = block_on(lock.lock()).expect("a free lock");
    assert!(again.fence() > fence);
    for guard in guards {
        assert!(block_on(guard.release()).expect_err("it is gone").is_lost());
    }
    block_on(again.verify()).expect("still held");
}

/// Also before the loss is known.
#[test]
fn what_was_released_by_force_here_is_not_entered_again() {
    let server = Server::start();
    let (locks, me) = (locks(&server), Owner::new("me").expect("an owner"));
    let lock = locks.reentrant_mutex("x", &me).expect("a name");
    let before = block_on(lock.lock()).expect("a free lock");
    block_on(locks.force_release("x")).expect("an answer").expect("a holder");
    let after = block_on(lock.lock()).expect("a free lock");
    assert!(after.fence() > before.fence());
    assert!(block_on(before.release()).expect_err("it is gone").is_lost());
    block_on(after.verify()).expect("still held");
}

/// The others keep their shares, and the process that takes it over has a hold of its own.
#[test]
fn one_of_those_that_share_a_hold_is_detached_or_kept_for_a_time() {
    let server = Server::start();
    let (ours, theirs, me) = (locks(&server), locks(&server), Owner::new("me").expect("an owner"));
    let lock = ours.reentrant_mutex("x", &me).expect("a name");
    let (first, second) = (block_on(lock.lock()).expect("free"), block_on(lock.lock()).expect("our own"));
    let third = block_on(lock.lock()).expect("our own");
    assert_eq!(block_on(first.detach()).expect("a detached hold"), me);
    assert_eq!(block_on(lock.hold_count()).expect("an answer"), 3);
    let resumed = block_on(theirs.resume("x", &me)).expect("an answer").expect("it is not over");
    block_on(second.keep_for(Duration::from_secs(60))).expect("kept");
    block_on(third.release()).expect("a release");
    block_on(resumed.release()).expect("a release");
    let stranger = Owner::new("other").expect("an owner");
    let stranger = theirs.reentrant_mutex("x", &stranger).expect("a name");
    assert!(block_on(stranger.try_lock()).expect("an answer").is_none(), "it is kept for a minute");
    assert_eq!(count_on_the_server(&server, &me).as_deref(), Some("1"));
}

/// A restarted or promoted server grants nothing for a while, but what it has kept is held.
#[test]
fn in_a_servers_grace_a_shared_hold_is_not_detached_and_not_lost() {
    let server = Server::start();
    let locks = Locks::open(&format!("{}?restart-grace=4s", server.url())).expect("a store");
    let locks = locks.with(|options| options.ttl(Duration::from_secs(4))).expect("options");
    let lock = locks.reentrant_mutex("x", &Owner::new("me").expect("an owner")).expect("a name");
    let [first, second] = [(); 2].map(|()| block_on(lock.lock()).expect("free, or our own"));
    // As after a failover to a replica that has everything.
    server.command(&["SET", "tenure:epoch", "0123456789abcdef0123456789abcdef01234567:1"]);
    let error = block_on(first.detach()).expect_err("nothing is granted");
    assert!(error.is_unreachable() && !error.is_lost(), "{error:?}");
    block_on(second.verify()).expect("still held");
    block_on(second.release()).expect("a release");
}

/// Threads of one owner acquire and release, detach holds and resume them, while another ends holds by force.
#[test]
fn whatever_the_threads_of_an_owner_do_nothing_is_left() {
    let (locks, me) = (Locks::memory(), Owner::new("me").expect("an owner"));
    let lock = locks.reentrant_mutex("x", &me).expect("a name");
    let enter = |thread: usize| {
        let mut kept: Vec<Guard> = Vec::new();
        for round in thread..thread + 3_000 {
            kept.push(block_on(lock.lock()).expect("our own"));
            match round % 11 {
                // A hold ended by force cannot be detached.
                0 => drop(kept.pop().map(|guard| block_on(guard.detach()))),
                1 => kept.extend(block_on(locks.resume("x", &me)).expect("an answer")),
                2 => drop(kept.pop().map(|guard| block_on(guard.release()))),
                3..6 => kept.truncate(round % 3),
                _ => {}
            }
        }
        // Holds that are still detached.
        while let Some(guard) = block_on(locks.resume("x", &me)).expect("an answer") {
            kept.push(guard);
        }
    };
    std::thread::scope(|scope| {
        (0..4).for_each(|thread| drop(scope.spawn(move || enter(thread))));
        scope.spawn(|| (0..300).for_each(|_| drop(block_on(locks.force_release("x")).expect("an answer"))));
    });
    block_on(locks.flush()).expect("released");
    assert_eq!(locks.metrics().total().held, 0);
    assert_eq!(block_on(lock.hold_count()).expect("an answer"), 0);
    assert!(block_on(locks.inspect("x")).expect("an answer").is_none());
}
