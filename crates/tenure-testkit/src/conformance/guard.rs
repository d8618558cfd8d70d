//! Guards, and the remaining calls of `Locks`.

use std::time::Duration;

use futures_util::future::{join, pending};
use tenure::{ForcedRelease, HoldEnd, Kind, Owner, Renewal};

use super::Fixture;
use super::exclusion::LAPSE;

/// So that a task waiting for the loss ends.
pub async fn a_released_lock_is_free_and_its_signal_says_released(fixture: &Fixture) {
    let locks = fixture.client();
    let guard = fixture.mutex(&locks, "x").await.lock().await.expect("a free lock");
    let (lost, again) = (guard.lost(), guard.lost().clone());
    guard.release().await.expect("a release");
    assert!(fixture.is_free(&locks, "x").await);
    for signal in [lost, again] {
        let end = fixture.within(fixture.ttl, signal).await;
        assert!(matches!(end, HoldEnd::Released) && !end.is_lost(), "{end}");
    }
}

/// In the background, long before the lease would expire.
pub async fn a_dropped_guard_releases(fixture: &Fixture) {
    let locks = fixture.client_with(fixture.options().ttl(Duration::from_secs(20)));
    drop(fixture.mutex(&locks, "x").await.lock().await.expect("a free lock"));
    let freed = async {
        while !fixture.is_free(&locks, "x").await {
            fixture.sleep(Duration::from_millis(2)).await;
        }
    };
    fixture.within(2 * fixture.ttl, freed).await;
}

/// After a release, a drop and a lapsed lease, across clients.
pub async fn tokens_grow_from_grant_to_grant(fixture: &Fixture) {
    let clients = [fixture.client(), fixture.client_with(fixture.options().renewal(Renewal::Off))];
    let mut last = 0;
    for turn in 0..9 {
        let locks = &clients[turn % 2];
        let guard = fixture.mutex(locks, "x").await.lock().await.expect("a grant");
        assert!(fixture.is_later(guard.fence(), last), "{} after {last}", guard.fence());
        last = guard.fence();
        match turn % 3 {
            0 => guard.release().await.expect("a release"),
            1 => drop(guard),
            // Not released: the next one waits for the lease to expire.
            _ => drop(guard.detach().await.expect("a detached hold")),
        }
    }
}

/// From another client, like the supervisor of a dead holder: a waiter is woken at once, and a repeated call
/// leaves the next holder alone.
pub async fn release_hold_ends_one_hold_and_wakes_a_waiter(fixture: &Fixture) {
    let ours = fixture.client_with(fixture.options().ttl(Duration::from_secs(20)));
    let theirs = fixture.client();
    let guard = fixture.mutex(&ours, "x").await.lock().await.expect("a free lock");
    let id = guard.hold_id().to_string().parse().expect("what was printed");
    let waiter = fixture.mutex(&theirs, "x").await;
    let releases = async {
        fixture.sleep(fixture.ttl / 8).await;
        fixture.client().release_hold(&id).await.expect("a release");
    };
    let (next, ()) = fixture.within(4 * fixture.ttl, join(waiter.lock(), releases)).await;
    let next = next.expect("a grant");
    assert!(guard.verify().await.expect_err("it was released").is_lost());
    fixture.client().release_hold(&id).await.expect("nothing to release");
    next.verify().await.expect("still held");
    next.release().await.expect("a release");
    fixture.client().release_hold(&id).await.expect("nothing to release");
}

/// An operator's last resort.
pub async fn a_forced_release_says_whose_it_was_and_the_holder_is_told(fixture: &Fixture) {
    let (ours, theirs) = (fixture.client(), fixture.client());
    let guard = fixture.mutex(&ours, "x").await.lock().await.expect("a free lock");
    let forced = theirs.force_release("x").await.expect("an answer").expect("a holder");
    assert_eq!(forced.holders[0].owner.as_ref(), Some(guard.owner()));
    assert!(guard.verify().await.expect_err("it was forced").is_lost());
    let error = fixture.within(fixture.ttl, guard.lost()).await;
    assert!(error.is_lost() && error.to_string().contains("gone"), "{error}");
    assert!(fixture.mutex(&theirs, "x").await.try_lock().await.expect("an answer").is_some());
}

/// Right after the grant and later, while the next renewal is many seconds away.
pub async fn a_holder_is_told_at_once_that_its_hold_was_ended_by_force(fixture: &Fixture) {
    let ours = fixture.client_with(fixture.options().ttl(Duration::from_secs(30)));
    let theirs = fixture.client();
    for held_for in [Duration::ZERO, Duration::from_millis(1_500)] {
        let guard = fixture.mutex(&ours, "x").await.lock().await.expect("a free lock");
        fixture.sleep(held_for).await;
        theirs.force_release("x").await.expect("an answer").expect("a holder");
        assert!(fixture.within(Duration::from_secs(2), guard.lost()).await.is_lost());
    }
    let guard = fixture.mutex(&ours, "x").await.lock().await.expect("a free lock");
    fixture.sleep(Duration::from_millis(1_500)).await;
    let ended = theirs.force_release_owner("x", guard.owner()).await.expect("an answer");
    assert!(matches!(ended, ForcedRelease::Ended(_)), "{ended:?}");
    assert!(fixture.within(Duration::from_secs(2), guard.lost()).await.is_lost());
}

/// A free lock has no holder to report.
pub async fn a_released_name_was_not_forced(fixture: &Fixture) {
    assert!(fixture.client().force_release("x").await.expect("an answer").is_none());
}

/// With its token, and it is renewed again.
pub async fn a_detached_hold_is_resumed_with_its_token(fixture: &Fixture) {
    let (ours, theirs) = (fixture.client(), fixture.client());
    let guard = fixture.mutex(&ours, "x").await.lock().await.expect("a free lock");
    let (fence, lost) = (guard.fence(), guard.lost());
    let line = guard.detach().await.expect("a detached hold").to_string();
    assert!(matches!(fixture.within(fixture.ttl, lost).await, HoldEnd::Released));
    let owner: Owner = line.parse().expect("an owner");
    let resumed = theirs.resume("x", &owner).await.expect("an answer").expect("it is not over");
    assert_eq!((resumed.fence(), resumed.owner()), (fence, &owner));
    assert!(
        fixture.mutex(&ours, "x").await.try_lock_for(2 * fixture.ttl).await.expect("an answer").is_none()
    );
    resumed.release().await.expect("a release");
    assert!(theirs.resume("x", &owner).await.expect("an answer").is_none(), "a release is final");
}

/// A hold without a guard is not renewed.
pub async fn a_detached_hold_ends_with_its_lease(fixture: &Fixture) {
    let (ours, theirs) = (fixture.client(), fixture.client());
    let started = fixture.now();
    let guard = fixture.mutex(&ours, "x").await.lock().await.expect("a free lock");
    let owner = guard.detach().await.expect("a detached hold");
    let mutex = fixture.mutex(&theirs, "x").await;
    let next = match mutex.try_lock().await.expect("an answer") {
        Some(next) => next,
        None => fixture.within(LAPSE, mutex.lock()).await.expect("a grant"),
    };
    // Servers may count whole milliseconds.
    assert!(fixture.now().since(started) >= fixture.ttl * 9 / 10, "it was let in during the lease");
    assert!(ours.resume("x", &owner).await.expect("an answer").is_none());
    next.verify().await.expect("still held");
}

/// Another owner's attempt gets nothing and changes nothing.
pub async fn only_the_owner_can_resume(fixture: &Fixture) {
    let locks = fixture.client();
    let guard = fixture.mutex(&locks, "x").await.lock().await.expect("a free lock");
    let other = Owner::new("other").expect("an owner");
    assert!(locks.resume("x", &other).await.expect("an answer").is_none());
    assert!(locks.resume("y", &other).await.expect("an answer").is_none());
    guard.verify().await.expect("still held");
}

/// Returns the value of the work and frees the lock.
pub async fn run_returns_what_the_work_returns_and_releases(fixture: &Fixture) {
    let locks = fixture.client();
    let guard = fixture.mutex(&locks, "x").await.lock().await.expect("a free lock");
    let fence = guard.fence();
    assert_eq!(guard.run(async |guard| guard.fence()).await.expect("a value"), fence);
    assert!(fixture.is_free(&locks, "x").await);
}

/// At its next await.
pub async fn run_stops_the_work_when_the_lock_is_lost(fixture: &Fixture) {
    let locks = fixture.client_with(fixture.options().max_hold(2 * fixture.ttl));
    let guard = fixture.mutex(&locks, "x").await.lock().await.expect("a free lock");
    let work = guard.run(async |_| pending::<()>().await);
    let error = fixture.within(4 * fixture.ttl, work).await.expect_err("it was lost");
    let message = error.to_string();
    assert!(
        error.is_lost() && message.contains("max_hold") && message.ends_with("work was stopped"),
        "{error}"
    );
}

/// With label, token and remaining lease; the prefix is not shown.
pub async fn inspect_shows_the_holder_and_list_the_names(fixture: &Fixture) {
    let locks = fixture.client_with(fixture.options().label("nightly").prefix("p:"));
    assert!(locks.inspect("x/1").await.expect("an answer").is_none());
    let guard = fixture.mutex(&locks, "x/1").await.lock().await.expect("a free lock");
    let _other = fixture.mutex(&locks, "x/2").await.lock().await.expect("a free lock");
    let _third = fixture.mutex(&locks, "y").await.lock().await.expect("a free lock");
    let status = locks.inspect("x/1").await.expect("an answer").expect("a holder");
    let holder = &status.holders[0];
    assert_eq!((status.name.as_str(), status.kind, status.holders.len()), ("x/1", Kind::Mutex, 1));
    assert_eq!((holder.owner.as_ref(), holder.fence), (Some(guard.owner()), guard.fence()));
    assert_eq!(guard.owner().label(), "nightly");
    assert!(holder.remaining.is_some_and(|left| left <= fixture.ttl));

    let mut names = Vec::new();
    let mut listing = locks.list("x/").expect("a prefix");
    while let Some(status) = listing.next().await.expect("an answer") {
        names.push(status.name.as_str().to_owned());
    }
    names.sort();
    assert_eq!(names, ["x/1", "x/2"]);
}

/// For `Locks` in a `static`, which is never dropped.
pub async fn flush_waits_for_dropped_guards_and_closes_nothing(fixture: &Fixture) {
    let (ours, theirs) =
        (fixture.client_with(fixture.options().ttl(Duration::from_secs(20))), fixture.client());
    for name in ["x", "y", "z"] {
        drop(fixture.mutex(&ours, name).await.lock().await.expect("a free lock"));
    }
    let kept = fixture.mutex(&ours, "kept").await.lock().await.expect("a free lock");
    ours.flush().await.expect("all released");
    for name in ["x", "y", "z"] {
        assert!(theirs.inspect(name).await.expect("an answer").is_none());
    }
    kept.verify().await.expect("it is held on");
    drop(fixture.mutex(&ours, "x").await.lock().await.expect("a lock after the flush"));
}

/// In both directions. Inspections and forced releases work on any kind.
pub async fn a_name_in_use_as_another_kind_is_a_mismatch_that_names_both(fixture: &Fixture) {
    let (ours, theirs) = (fixture.client(), fixture.client());
    let _mutex = ours.mutex("m").expect("a name").lock().await.expect("a free lock");
    let _fair = ours.fair_mutex("f").expect("a name").lock().await.expect("a free lock");
    let me = Owner::new("me").expect("an owner");
    let _reentrant = ours.reentrant_mutex("r", &me).expect("a name").lock().await.expect("a free lock");
    let errors = [
        (theirs.fair_mutex("m").expect("a name").lock().await.expect_err("a mutex"), ["mutex", "fair mutex"]),
        (
            theirs.mutex("f").expect("a name").try_lock().await.expect_err("a fair mutex"),
            ["fair mutex", "mutex"],
        ),
        (
            theirs.rwlock("f").expect("a name").read().await.expect_err("a fair mutex"),
            ["fair mutex", "read-write lock"],
        ),
        (
            theirs.mutex("r").expect("a name").lock().await.expect_err("reentrant"),
            ["reentrant mutex", "mutex"],
        ),
        (
            theirs.reentrant_mutex("m", &me).expect("a name").lock().await.expect_err("a mutex"),
            ["mutex", "reentrant mutex"],
        ),
    ];
    for (error, kinds) in errors {
        assert!(error.is_mismatch() && kinds.iter().all(|kind| error.to_string().contains(kind)), "{error}");
    }
    for (name, kind) in [("m", Kind::Mutex), ("f", Kind::Fair), ("r", Kind::Reentrant)] {
        let status = theirs.inspect(name).await.expect("an answer").expect("a holder");
        assert_eq!((status.kind, status.holders.len()), (kind, 1));
        let forced = theirs.force_release(name).await.expect("an answer").expect("a holder");
        assert_eq!(forced.holders[0].owner, status.holders[0].owner);
        assert!(theirs.inspect(name).await.expect("an answer").is_none());
    }
}
