//! What the public API promises whatever the store, on the memory store.

use std::time::Duration;

use tenure::{Locks, Owner, block_on};

const LONG: Duration = Duration::from_secs(60);

/// A lock that lost its prefix would be another lock, and exclude nobody.
#[test]
fn a_changed_option_leaves_the_others_as_they_were() {
    let shop = Locks::memory().with(|options| options.prefix("shop:").label("till")).expect("options");
    let slow = shop.with(|options| options.ttl(LONG)).expect("options");
    assert_eq!((&*slow.options().prefix, &*slow.options().label), ("shop:", "till"));
    assert_eq!((slow.options().ttl, shop.options().ttl), (LONG, Duration::from_secs(15)));
    let guard = block_on(shop.mutex("x").expect("a name").lock()).expect("a free lock");
    assert!(block_on(slow.mutex("x").expect("a name").try_lock()).expect("an answer").is_none());
    block_on(guard.release()).expect("a release");
    let guard = block_on(slow.mutex("x").expect("a name").lock()).expect("a free lock");
    assert_eq!(guard.owner().label(), "till");
}

#[test]
fn an_option_of_one_lock_is_no_other_locks() {
    let locks = Locks::memory().with(|options| options.prefix("shop:").label("till")).expect("options");
    let owner = Owner::new("me").expect("an owner");
    let remaining = |ttl: Duration| {
        let set = |options: tenure::Options| options.ttl(ttl);
        let lock = |name| -> tenure::Result<_> {
            block_on(async {
                Ok(match name {
                    "mutex" => locks.mutex(name)?.with(set)?.lock().await?,
                    "fair" => locks.fair(name)?.with(set)?.lock().await?,
                    "reentrant" => locks.reentrant(name, &owner)?.with(set)?.lock().await?,
                    "rwlock" => locks.rwlock(name)?.with(set)?.write().await?,
                    _ => locks.semaphore(name, 2)?.with(set)?.acquire(2).await?,
                })
            })
        };
        for name in ["mutex", "fair", "reentrant", "rwlock", "semaphore"] {
            let guard = lock(name).expect("a free lock");
            assert!(guard.remaining() <= ttl && guard.remaining() > ttl / 2, "{name}");
            let key = locks.with(|options| options.prefix("")).expect("options");
            let found = block_on(key.inspect(&format!("shop:{name}"))).expect("an answer");
            assert!(found.is_some(), "{name} has lost its prefix");
        }
    };
    remaining(LONG);
    remaining(2 * LONG);
    assert_eq!(locks.options().ttl, Duration::from_secs(15));
}

#[test]
fn options_that_cannot_be_right_are_refused_where_they_are_set() {
    let locks = Locks::memory();
    let too_short = |options: tenure::Options| options.ttl(Duration::ZERO);
    assert!(locks.with(too_short).expect_err("no ttl").is_invalid());
    let mutex = locks.mutex("x").expect("a name");
    assert!(mutex.with(too_short).expect_err("no ttl").is_invalid());
    assert!(mutex.with(|options| options.acks(1)).expect_err("no replicas").is_unsupported());
    let name = "x".repeat(64 * 1024);
    let longest = locks.mutex(&name).expect("a name");
    assert!(longest.with(|options| options.prefix("p:")).expect_err("too long").is_invalid());
}
