//! Several locks at once.

use std::future::pending;
use std::time::Duration;

use futures_util::future::join;
use tenure::{Multi, Owner, Part};

use super::Fixture;

/// Four kinds.
pub async fn all_or_none_are_held(fixture: &Fixture) {
    let (ours, theirs) = (fixture.client(), fixture.client());
    let me = Owner::new("me").expect("an owner");
    let parts: [Part; 5] = [
        ours.mutex("d").expect("a name").into(),
        ours.fair_mutex("c").expect("a name").into(),
        ours.reentrant_mutex("b", &me).expect("a name").into(),
        ours.rwlock("a").expect("a name").for_read(),
        ours.semaphore("e", 3).expect("a name").for_permits(2).expect("two of three"),
    ];
    let multi = Multi::new(parts).expect("five names");
    let guards = multi.try_lock().await.expect("an answer").expect("free locks");
    let names: Vec<_> = guards.iter().map(|guard| guard.name().as_str()).collect();
    assert_eq!(names, ["d", "c", "b", "a", "e"]);
    guards.verify().await.expect("all held");
    assert!(guards.is_held() && guards.remaining() <= fixture.ttl);
    assert!(multi.try_lock_for(fixture.ttl).await.expect("an answer").is_none());
    guards.release().await.expect("a release");

    // The last one in order is busy: those taken before it are released.
    let busy = theirs.semaphore("e", 3).expect("a name").acquire_many(2).await.expect("a free lock");
    assert!(multi.try_lock().await.expect("an answer").is_none());
    // A dropped wait is cleaned up in the background.
    let freed = async {
        for name in ["a", "b", "c", "d"] {
            while theirs.inspect(name).await.expect("an answer").is_some() {
                fixture.sleep(Duration::from_millis(2)).await;
            }
        }
    };
    fixture.within(fixture.ttl, freed).await;
    // One name is in use as another kind: an error that also leaves nothing behind.
    let parts: [Part; 2] =
        [ours.mutex("a").expect("a name").into(), ours.fair_mutex("e").expect("a name").into()];
    let mismatch = Multi::new(parts);
    assert!(mismatch.expect("two names").lock().await.expect_err("another kind").is_mismatch());
    assert!(theirs.inspect("a").await.expect("an answer").is_none());
    busy.release().await.expect("a release");
    drop(multi.lock().await.expect("free locks"));
}

/// Whichever of the locks is held; nothing is left of the others.
pub async fn a_wait_for_several_ends_at_its_limit(fixture: &Fixture) {
    let patient = || fixture.client_with(fixture.options().ttl(Duration::from_secs(20)));
    let (ours, theirs) = (patient(), patient());
    let names = ["a", "b", "c"];
    let multi = ours.multi(names).expect("three names");
    ours.ping().await.expect("a store");
    for held in names {
        let guard = theirs.mutex(held).expect("a name").lock().await.expect("a free lock");
        let started = fixture.now();
        assert!(multi.try_lock_for(fixture.ttl).await.expect("an answer").is_none());
        let took = fixture.now().since(started);
        assert!(took >= fixture.ttl && took < fixture.limit(5 * fixture.ttl), "{took:?}");
        for name in names.into_iter().filter(|name| *name != held) {
            let freed = async {
                while theirs.inspect(name).await.expect("an answer").is_some() {
                    fixture.sleep(Duration::from_millis(2)).await;
                }
            };
            fixture.within(4 * fixture.ttl, freed).await;
        }
        guard.release().await.expect("a release");
    }
}

/// Twenty times each, without a deadlock.
pub async fn two_that_want_the_same_in_another_order_both_get_it(fixture: &Fixture) {
    let (ours, theirs) = (fixture.client(), fixture.client());
    let part = |locks: &tenure::Locks, name| locks.mutex(name).expect("a name");
    let one = Multi::new([part(&ours, "a"), part(&ours, "b")]).expect("two names");
    let two = Multi::new([part(&theirs, "b"), part(&theirs, "a")]).expect("two names");
    let many = async |multi: &Multi| {
        for _ in 0..20 {
            multi.lock().await.expect("a grant").release().await.expect("a release");
        }
    };
    fixture.within(Duration::from_secs(30), join(many(&one), many(&two))).await;
}

/// At once, and the work is stopped.
pub async fn the_loss_of_one_is_the_loss_of_all(fixture: &Fixture) {
    let locks = fixture.client();
    let part = |name| locks.mutex(name).expect("a name");
    let multi = Multi::new([part("a"), part("b"), part("c")]).expect("three names");
    let guards = multi.lock().await.expect("free locks");
    let lost = guards.lost();
    locks.force_release("b").await.expect("an answer").expect("a holder");
    assert!(guards.verify().await.expect_err("one is gone").is_lost());
    assert!(fixture.within(fixture.ttl, lost).await.is_lost());
    assert!(!guards.is_held());
    drop(guards);

    let guards = fixture.within(2 * fixture.ttl, multi.lock()).await.expect("free locks");
    let work = guards.run(async |_| pending::<()>().await);
    let (stopped, forced) = fixture.within(2 * fixture.ttl, join(work, locks.force_release("c"))).await;
    assert!(stopped.expect_err("one is gone").is_lost());
    assert!(forced.expect("an answer").is_some());
    let next = fixture.within(2 * fixture.ttl, multi.lock()).await.expect("free locks");
    assert_eq!(next.run(async |guards| guards.len()).await.expect("a value"), 3);
}

/// And so is an empty list.
pub async fn the_same_name_twice_is_refused(fixture: &Fixture) {
    let (ours, theirs) = (fixture.client(), fixture.client());
    let parts: [Part; 2] =
        [ours.mutex("a").expect("a name").into(), theirs.fair_mutex("a").expect("a name").into()];
    let twice = Multi::new(parts);
    let error = twice.expect_err("one name");
    assert!(error.is_invalid() && error.to_string().contains("`a`"), "{error}");
    assert!(Multi::new(Vec::<Part>::new()).expect_err("nothing").is_invalid());
    drop(
        Multi::new([ours.mutex("a").expect("a name")]).expect("one name").lock().await.expect("a free lock"),
    );
}
