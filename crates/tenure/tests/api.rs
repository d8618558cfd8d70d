//! What the public API promises whatever the store, on the memory store.

use std::time::Duration;

use tenure::{LockName, Locks, Owner, block_on};

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
                    "fair" => locks.fair_mutex(name)?.with(set)?.lock().await?,
                    "reentrant" => locks.reentrant_mutex(name, &owner)?.with(set)?.lock().await?,
                    "rwlock" => locks.rwlock(name)?.with(set)?.write().await?,
                    _ => locks.semaphore(name, 2)?.with(set)?.acquire_many(2).await?,
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

#[test]
fn a_name_may_be_text_or_a_name() {
    let locks = Locks::memory();
    let (text, name) = ("x".to_owned(), LockName::new("x").expect("a name"));
    let guard = block_on(locks.mutex("x").expect("a name").lock()).expect("a free lock");
    for mutex in
        [locks.mutex(&text), locks.mutex(text.clone()), locks.mutex(&name), locks.mutex(name.clone())]
    {
        let mutex = mutex.expect("a name");
        assert_eq!(mutex.name(), &name);
        assert!(block_on(mutex.try_lock()).expect("an answer").is_none());
    }
    for found in [block_on(locks.inspect(&name)), block_on(locks.inspect(text))] {
        assert_eq!(
            found.expect("an answer").expect("a holder").holders[0].owner.as_ref(),
            Some(guard.owner())
        );
    }
    assert!(locks.mutex("").expect_err("no name").is_invalid());
    assert!(locks.mutex(format!("tenure:{name}")).expect_err("a side key").is_invalid());
}

/// The name stands in the message escaped, though it prints as it is.
#[test]
fn a_message_stays_on_one_line_whatever_the_name() {
    let locks = Locks::memory();
    let name = LockName::new("a\nb").expect("a name");
    let _mutex = block_on(locks.mutex(&name).expect("a name").lock()).expect("a free lock");
    let error = block_on(locks.rwlock(&name).expect("a name").read()).expect_err("a mutex");
    assert!(error.is_mismatch() && error.to_string().contains("`a\\nb`"), "{error}");
    assert_eq!(error.lock().map(ToString::to_string).as_deref(), Some("a\nb"));
}

#[test]
fn a_permit_is_one_unless_more_are_asked_for() {
    let semaphore = Locks::memory().semaphore("x", 3).expect("a name");
    let one = block_on(semaphore.acquire()).expect("a free lock");
    let two = block_on(semaphore.try_acquire_many(2)).expect("an answer").expect("two are left");
    assert!(block_on(semaphore.try_acquire()).expect("an answer").is_none());
    block_on(one.release()).expect("a release");
    assert!(block_on(semaphore.try_acquire_many(2)).expect("an answer").is_none());
    let one = block_on(semaphore.try_acquire_for(LONG)).expect("an answer").expect("one is left");
    for guard in [one, two] {
        block_on(guard.release()).expect("a release");
    }
    assert!(block_on(semaphore.try_acquire_many_for(3, LONG)).expect("an answer").is_some());
    assert!(block_on(semaphore.acquire_many(4)).expect_err("too many").is_invalid());
}
