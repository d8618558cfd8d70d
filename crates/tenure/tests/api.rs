//! Guarantees of the public API that do not depend on the store, on the memory store.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::pending;
use tenure::internals::store::file::File;
use tenure::internals::store::memory::Memory;
use tenure::internals::store::quorum::Quorum;
use tenure::internals::store::redis::Redis;
use tenure::internals::{Driver, Runtime, Store};
use tenure::{
    Error, ErrorKind, Guard, HoldEnd, Kind, LockName, Locks, Mutex, Options, Owner, RunError, Share, block_on,
};

const LONG: Duration = Duration::from_secs(60);

/// A lock that lost its prefix would be another lock.
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
                    "rwlock" => locks.rwlock(name)?.with(set)?.write().await?.into(),
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
            block_on(guard.release()).expect("a release");
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
    let name = "x".repeat(64 * 1024);
    let longest = locks.mutex(&name).expect("a name");
    assert!(longest.with(|options| options.prefix("p:")).expect_err("too long").is_invalid());
}

#[test]
fn no_ttl_is_longer_than_the_grace_of_the_store() {
    let grace = Duration::from_secs(5);
    let locks = Locks::open("redis://127.0.0.1:1?restart-grace=5s").expect("a URL");
    assert_eq!(locks.options().ttl, grace);
    assert!(locks.with(|options| options.ttl(grace)).is_ok());
    let mutex = locks.mutex("x").expect("a name");
    let long = |options: tenure::Options| options.ttl(grace + Duration::from_millis(1));
    for error in [locks.with(long).expect_err("too long"), mutex.with(long).expect_err("too long")] {
        let said = error.to_string();
        assert!(error.is_invalid() && said.contains("restart-grace") && said.contains("5.001s"), "{said}");
    }
    let patient = Locks::open("redis://127.0.0.1:1?restart-grace=1h").expect("a URL");
    assert_eq!(patient.options().ttl, Duration::from_secs(15));
}

#[test]
fn a_member_of_a_quorum_decides_alone() {
    let two = || [Locks::memory(), Locks::memory()];
    for (url, why) in [
        ("redis://127.0.0.1:1?acks=1", "acks"),
        ("redis://127.0.0.1:1?restart-grace=1m", "restart-grace"),
        ("redis-sentinel://127.0.0.1:1/s", "several servers"),
        ("redis-cluster://127.0.0.1:1", "several servers"),
    ] {
        let other = Locks::open(url).expect("a URL");
        let error = Locks::quorum(two().into_iter().chain([other])).expect_err(url);
        assert!(error.is_invalid() && error.to_string().contains(why), "{url}: {error}");
    }
    let inner = Locks::quorum(two()).expect("two members");
    let error = Locks::quorum(two().into_iter().chain([inner])).expect_err("a quorum");
    assert!(error.to_string().contains("several servers"), "{error}");
}

#[test]
fn a_store_keeps_exactly_the_kinds_that_it_says_it_can() {
    let driver = Driver::start().expect("a thread");
    let runtime = || Arc::clone(&driver) as Arc<dyn Runtime>;
    let memory = || Arc::new(Memory::new(runtime(), "memory:")) as Arc<dyn Store>;
    let quorum = Quorum::new(vec![memory(), memory()], Box::new(()), runtime(), None).expect("two members");
    let file = File::new(Path::new("never-made"), "file:never-made", runtime());
    let redis = Redis::open("redis://127.0.0.1:1?acks=1&restart-grace=30s", runtime()).expect("a URL");
    let stores: [Arc<dyn Store>; 4] = [memory(), Arc::new(file), Arc::new(redis), Arc::new(quorum)];
    for store in stores {
        let (url, kinds) = (Arc::clone(store.url()), store.capabilities().kinds);
        let locks = tenure::internals::locks(store, runtime(), Options::new()).expect("options");
        let owner = Owner::new("me").expect("an owner");
        for (kind, refused) in [
            (Kind::Mutex, locks.mutex("x").err()),
            (Kind::Reentrant, locks.reentrant_mutex("x", &owner).err()),
            (Kind::Fair, locks.fair_mutex("x").err()),
            (Kind::RwLock, locks.rwlock("x").err()),
            (Kind::Semaphore, locks.semaphore("x", 2).err()),
        ] {
            match (kinds.keep(kind), refused) {
                (Ok(()), None) => {}
                (Err(why), Some(error)) if error.is_unsupported() && error.to_string().contains(why) => {}
                (said, refused) => panic!("{url} says {said:?} of a {kind}, and does {refused:?}"),
            }
        }
    }
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

/// The message escapes the name, although `Display` prints it unchanged.
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

/// The work had its effects, so the caller must learn its result.
#[test]
fn a_loss_that_the_release_hears_of_costs_no_value() {
    let locks = Locks::memory();
    let broken = async |name: &str| {
        locks.force_release(name).await.expect("an answer").expect("a holder");
        17
    };
    let guard = block_on(locks.mutex("x").expect("a name").lock()).expect("a free lock");
    let failed = block_on(guard.run(async |guard| broken(guard.name().as_str()).await)).expect_err("forced");
    assert!(failed.is_lost() && failed.to_string().ends_with("; the work was done"), "{failed}");

    let guard = block_on(locks.mutex("x").expect("a name").lock()).expect("a free lock");
    let failed = block_on(guard.run_recoverable(broken("x"))).expect_err("forced");
    assert!(failed.to_string().contains("the work was done"), "{failed}");
    assert_eq!(failed.value, Some(17));

    let guards = block_on(locks.multi(["x", "y"]).expect("two").lock()).expect("free locks");
    let failed = block_on(guards.run_recoverable(broken("y"))).expect_err("forced");
    assert_eq!(failed.value, Some(17));
    let error = Error::from(failed);
    assert!(error.is_lost() && error.to_string().ends_with("; the work was done"), "{error}");
}

/// An application's error type, as services have one.
#[derive(Debug)]
enum ServiceError {
    Lock(Error),
    Work(std::num::ParseIntError),
}

impl From<Error> for ServiceError {
    fn from(error: Error) -> Self {
        Self::Lock(error)
    }
}

impl From<std::num::ParseIntError> for ServiceError {
    fn from(error: std::num::ParseIntError) -> Self {
        Self::Work(error)
    }
}

/// For the guards of one lock, of several, and of readers and writers.
#[test]
fn two_question_marks_unwrap_the_result_of_the_work() {
    async fn both(locks: &Locks, text: &str) -> Result<u32, ServiceError> {
        let one = locks.mutex("x")?.lock().await?.run(async |_| text.parse::<u32>()).await??;
        let two = locks.multi(["x", "y"])?.lock().await?.run(async |_| text.parse::<u32>()).await??;
        let three = locks.rwlock("z")?.write().await?.run_future(async { text.parse::<u32>() }).await??;
        Ok(one + two + three)
    }
    let locks = Locks::memory();
    assert_eq!(block_on(both(&locks, "17")).expect("three numbers"), 51);
    let failed = block_on(both(&locks, "x"));
    assert!(matches!(&failed, Err(ServiceError::Work(error)) if error.to_string().contains("digit")));
    let held = block_on(locks.mutex("z").expect("a name").lock()).expect("a free lock");
    let failed = block_on(both(&locks, "17"));
    assert!(matches!(&failed, Err(ServiceError::Lock(error)) if error.is_mismatch()));
    drop(held);
}

#[test]
fn work_that_is_stopped_has_no_value() {
    let locks = Locks::memory().with(|options| options.max_hold(Duration::from_millis(60))).expect("options");
    let guard = block_on(locks.mutex("x").expect("a name").lock()).expect("a free lock");
    let failed = block_on(guard.run_recoverable(pending::<u32>())).expect_err("max_hold");
    assert!(failed.value.is_none() && failed.to_string().contains("max_hold"), "{failed}");
    let guard = block_on(locks.rwlock("y").expect("a name").write()).expect("a free lock");
    let failed = block_on(guard.run(async |_| pending::<u32>().await)).expect_err("max_hold");
    assert!(failed.is_lost() && failed.to_string().ends_with("; the work was stopped"), "{failed}");
}

/// In a generic function, and on another thread.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn generic_code_can_spawn_work_under_a_lock() {
    #[expect(clippy::disallowed_methods, reason = "a caller's own runtime")]
    fn spawn<F>(mutex: Mutex, work: F) -> tokio::task::JoinHandle<Result<F::Output, Error>>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        tokio::spawn(async move { mutex.lock().await?.run_future(work).await })
    }
    let mutex = Locks::memory().mutex("x").expect("a name");
    let done = spawn(mutex, async { 17 });
    assert_eq!(done.await.expect("no panic").expect("a value"), 17);
}

#[test]
fn a_run_error_fits_where_errors_are_boxed() {
    fn boxed(failed: RunError<u32>) -> Box<dyn std::error::Error + Send + Sync> {
        failed.into()
    }
    let locks = Locks::memory();
    let guard = block_on(locks.mutex("x").expect("a name").lock()).expect("a free lock");
    let work = async {
        locks.force_release("x").await.expect("an answer");
        17
    };
    let failed = block_on(guard.run_recoverable(work)).expect_err("forced");
    assert!(boxed(failed).to_string().contains("lost"));
}

#[test]
fn the_signal_of_a_loss_tells_it_from_a_release() {
    let locks = Locks::memory();
    let ends: [fn(Guard); 3] = [
        |guard| block_on(guard.release()).expect("a release"),
        drop,
        |guard| drop(block_on(guard.detach()).expect("a detached hold")),
    ];
    for (number, end) in ends.into_iter().enumerate() {
        let guard = block_on(locks.mutex(format!("x{number}")).expect("a name").lock()).expect("a free lock");
        let lost = guard.lost();
        end(guard);
        assert!(matches!(block_on(lost), HoldEnd::Released));
    }
    let guard = block_on(locks.mutex("x").expect("a name").lock()).expect("a free lock");
    block_on(locks.force_release("x")).expect("an answer");
    assert!(block_on(guard.verify()).is_err());
    let error = block_on(guard.lost()).into_error().expect("a loss");
    assert_eq!((error.kind(), error.kind().as_str()), (ErrorKind::Lost, "lost"));
}

#[test]
fn each_kind_of_error_has_one_predicate_and_one_name() {
    let locks = Locks::memory();
    let _guard = block_on(locks.mutex("x").expect("a name").lock()).expect("a free lock");
    let quorum = Locks::quorum([locks.clone(), Locks::memory()]).expect("two members");
    let errors = [
        (LockName::new("").expect_err("no name"), "invalid"),
        (quorum.fair_mutex("x").expect_err("no order"), "unsupported"),
        (block_on(locks.rwlock("x").expect("a name").read()).expect_err("a mutex"), "mismatch"),
    ];
    for (error, name) in errors {
        let is = [error.is_invalid(), error.is_unsupported(), error.is_mismatch(), error.is_lost()];
        assert_eq!((error.kind().to_string().as_str(), is.iter().filter(|is| **is).count()), (name, 1));
    }
}

#[test]
fn a_kind_is_parsed_from_its_name_only() {
    for kind in [Kind::Mutex, Kind::Reentrant, Kind::Fair, Kind::RwLock, Kind::Semaphore] {
        assert_eq!(kind.as_str().parse::<Kind>().expect("a kind"), kind);
    }
    let error = "spinlock".parse::<Kind>().expect_err("no kind");
    assert!(error.is_invalid() && error.to_string().contains("`fair mutex`"), "{error}");
}

#[test]
fn a_status_says_how_much_each_holder_has() {
    let locks = Locks::memory();
    let owner = Owner::new("me").expect("an owner");
    let share = |name: &str| {
        let status = block_on(locks.inspect(name)).expect("an answer").expect("a holder");
        status.holders[0].share
    };
    let _mutex = block_on(locks.mutex("m").expect("a name").lock()).expect("a free lock");
    let _fair = block_on(locks.fair_mutex("f").expect("a name").lock()).expect("a free lock");
    let reentrant = locks.reentrant_mutex("r", &owner).expect("a name");
    let _holds = [(); 2].map(|()| block_on(reentrant.lock()).expect("our own"));
    let _reader = block_on(locks.rwlock("a").expect("a name").read()).expect("a free lock");
    let writer = block_on(locks.rwlock("b").expect("a name").write()).expect("a free lock");
    let _permits = block_on(locks.semaphore("s", 5).expect("a name").acquire_many(3)).expect("a free lock");
    let shares = ["m", "f", "r", "a", "b", "s"].map(share);
    let expected =
        [Share::Whole, Share::Whole, Share::Holds(2), Share::Reader, Share::Writer, Share::Permits(3)];
    assert_eq!(shares, expected);
    let _reader = block_on(writer.downgrade()).expect("a downgrade");
    assert_eq!(share("b"), Share::Reader);
}

/// Otherwise a crash of the next holder would end the first one's `keep_for` early.
#[test]
fn a_resume_with_a_shorter_ttl_shortens_no_lease() {
    let long = Locks::memory().with(|options| options.ttl(LONG)).expect("options");
    let short = long.with(|options| options.ttl(Duration::from_millis(100))).expect("options");
    let guard = block_on(long.mutex("x").expect("a name").lock()).expect("a free lock");
    let left = || {
        let status = block_on(long.inspect("x")).expect("an answer").expect("a holder");
        status.holders[0].remaining.expect("an end")
    };
    let owner = block_on(guard.detach()).expect("a detached hold");
    let guard = block_on(short.resume("x", &owner)).expect("an answer").expect("it is not over");
    assert!(left() > LONG / 2);
    block_on(guard.renew()).expect("a renewal");
    assert!(left() > LONG / 2);
    drop(block_on(guard.detach()).expect("a detached hold"));
    assert!(left() > LONG / 2);
}
