//! Nothing that a caller does to its own runtime can cost a lease.
#![expect(clippy::disallowed_methods, reason = "these tests misuse threads and runtimes on purpose")]

use std::future::Future;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake};
use std::thread;
use std::time::Duration;

use tenure::internals::{Driver, Runtime};
use tenure::{
    Error, FairMutex, Guard, HoldEnd, Holder, Kind, Listing, LockName, Locks, Lost, Multi, MultiGuard, Mutex,
    Options, Owner, Part, ReentrantMutex, Renewal, RwLock, Semaphore, Status, block_on,
};

const TTL: Duration = Duration::from_millis(300);

fn locks() -> Locks {
    Locks::memory().with(|options| options.ttl(TTL)).expect("options")
}

fn lock(locks: &Locks, name: &str) -> Guard {
    block_on(locks.mutex(name).expect("a name").lock()).expect("a free lock")
}

fn is_free(locks: &Locks, name: &str) -> bool {
    block_on(locks.inspect(name)).expect("an answer").is_none()
}

/// Like a quorum whose last handle is dropped during a request to a member.
#[test]
fn a_timer_whose_thread_has_ended_keeps_nobody_waiting_and_does_not_panic() {
    let driver = Driver::start().expect("a thread");
    let mut sleep = driver.sleep_until(driver.now() + Duration::from_secs(3_600));
    let mut context = Context::from_waker(std::task::Waker::noop());
    assert!(sleep.as_mut().poll(&mut context).is_pending());
    driver.stop();
    let ended = (0..5_000).any(|_| {
        thread::sleep(Duration::from_millis(1));
        sleep.as_mut().poll(&mut context).is_ready()
    });
    assert!(ended, "it goes on without its thread");
}

/// Like a connection that is dialled on a caller's runtime while the last handle is dropped: its sleeps end
/// immediately from then on.
#[test]
fn a_task_on_a_callers_runtime_ends_with_the_client_and_keeps_no_thread() {
    struct Over(mpsc::Sender<()>);
    impl Drop for Over {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }
    let (over, ended) = mpsc::channel();
    let over = Over(over);
    thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let driver = Driver::start().expect("a thread");
            let callers = driver.of_caller().expect("a runtime of the caller");
            let timers = Arc::clone(&callers);
            let task = async move {
                let _over = over;
                loop {
                    timers.sleep_until(timers.now() + Duration::from_millis(250)).await;
                }
            };
            callers.spawn(Box::pin(task));
            driver.stop();
            tokio::time::sleep(Duration::from_secs(3)).await;
        });
    });
    ended.recv_timeout(Duration::from_secs(20)).expect("the task ends");
}

#[test]
fn a_task_that_blocks_its_runtime_costs_no_lease() {
    let locks = Locks::memory().with(|options| options.ttl(5 * TTL)).expect("options");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let guard = runtime.block_on(async {
        let guard = locks.mutex("x").expect("a name").lock().await.expect("a free lock");
        thread::sleep(Duration::from_secs(5)); // three leases during which nothing polls this runtime
        guard
    });
    assert!(guard.is_held());
    block_on(guard.verify()).expect("still held");
}

#[test]
fn a_runtime_that_shuts_down_with_guards_alive_neither_panics_nor_hangs() {
    let locks = locks();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let guard = runtime.block_on(async {
        let (inner, waiter) = (locks.clone(), locks.clone());
        // One guard is dropped with its task, one wait with its task, and one guard outlives the runtime.
        tokio::spawn(async move {
            let _guard = inner.mutex("dies").expect("a name").lock().await.expect("a free lock");
            std::future::pending::<()>().await;
        });
        let guard = locks.mutex("lives").expect("a name").lock().await.expect("a free lock");
        tokio::spawn(async move { drop(waiter.mutex("lives").expect("a name").lock().await) });
        while locks.inspect("dies").await.expect("an answer").is_none() {
            tokio::task::yield_now().await;
        }
        guard
    });
    runtime.shutdown_timeout(Duration::from_secs(5));
    block_on(guard.verify()).expect("still held");
    block_on(guard.release()).expect("a release");
    for name in ["dies", "lives"] {
        drop(lock(&locks, name));
    }
}

#[test]
fn a_guard_is_dropped_on_any_thread_with_or_without_a_runtime() {
    let locks = locks();
    let guard = lock(&locks, "x");
    thread::spawn(move || drop(guard)).join().expect("no panic");
    block_on(locks.flush()).expect("flushed");
    assert!(is_free(&locks, "x"));

    // Unwinding drops guards too.
    let inner = locks.clone();
    let panicked = thread::spawn(move || {
        let _guard = lock(&inner, "x");
        panic!("on purpose");
    });
    assert!(panicked.join().is_err());
    block_on(locks.flush()).expect("flushed");
    assert!(is_free(&locks, "x"));
}

#[test]
fn the_last_handle_waits_for_what_is_queued() {
    let name = "memory:the-last-handle";
    let watcher = Locks::open(name).expect("a store");
    for turn in 0..50 {
        let locks = Locks::open(name).expect("a store");
        let guard = lock(&locks, "x");
        drop(locks);
        drop(guard);
        assert!(is_free(&watcher, "x"), "turn {turn}");
    }
}

#[test]
fn two_memories_are_two_stores_unless_they_have_one_name() {
    let (a, b) = (Locks::open("memory:").expect("a store"), Locks::open("memory:").expect("a store"));
    let _guards = (lock(&a, "x"), lock(&b, "x"));
    let (a, b) = (Locks::open("memory:one").expect("a store"), Locks::open("memory:one").expect("a store"));
    let _guard = lock(&a, "x");
    assert!(!is_free(&b, "x"));
    let c = Locks::open("memory:two").expect("a store");
    assert!(is_free(&c, "x"));
}

#[test]
fn threads_block_side_by_side() {
    let locks = locks();
    let inside = std::sync::atomic::AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let guard = lock(&locks, "x");
                    assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                    inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    block_on(guard.release()).expect("a release");
                }
            });
        }
    });
}

#[test]
fn a_waker_that_nobody_wakes_is_no_obstacle() {
    // A future is polled once by hand with a waker that does nothing, and then by an executor.
    struct NoWaker;
    impl Wake for NoWaker {
        fn wake(self: Arc<Self>) {}
    }
    let locks = locks();
    let guard = lock(&locks, "x");
    let mutex = locks.mutex("x").expect("a name");
    let mut waiting = pin!(mutex.lock());
    assert!(matches!(
        waiting.as_mut().poll(&mut Context::from_waker(&Arc::new(NoWaker).into())),
        Poll::Pending
    ));
    let lost = guard.lost();
    let mut lost = pin!(lost);
    assert!(matches!(lost.as_mut().poll(&mut Context::from_waker(&Arc::new(NoWaker).into())), Poll::Pending));
    drop(guard);
    assert!(matches!(block_on(lost), HoldEnd::Released));
    block_on(waiting).expect("a grant").name();
}

/// Like an executor whose queue is gone: the waker is the last owner of a task that also listens.
#[test]
fn a_waker_may_drop_what_it_was_to_wake() {
    struct Last(std::sync::Mutex<Option<Lost>>);
    impl Wake for Last {
        fn wake(self: Arc<Self>) {
            self.0.lock().expect("nothing panics").take();
        }
    }
    let locks = locks();
    let guard = lock(&locks, "x");
    let (heard, other) = (guard.lost(), guard.lost());
    let waker = Arc::new(Last(std::sync::Mutex::new(Some(other)))).into();
    let mut heard = pin!(heard);
    assert!(heard.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop(waker);
    let (done, is_done) = std::sync::mpsc::channel();
    thread::spawn(move || {
        drop(guard);
        done.send(()).expect("a client waits");
    });
    is_done.recv_timeout(Duration::from_secs(20)).expect("the drop of the guard ends");
}

/// A panic in a caller's waker on the library's thread affects only the task that called it.
#[test]
fn a_waker_that_panics_costs_what_it_waits_for_and_nothing_after() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker that panics, on purpose");
        }
    }
    let locks = locks();
    let guard = lock(&locks, "x");
    // Ended by force, which the renewer finds out and reports.
    let mut lost = pin!(guard.lost());
    let waker = Arc::new(Panics).into();
    assert!(lost.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    block_on(locks.force_release("x")).expect("an answer");
    thread::sleep(2 * TTL);
    assert!(!guard.is_held());
    // The next lock is renewed as usual, also after a wait.
    let next = lock(&locks, "x");
    let inner = locks.clone();
    let waiter = thread::spawn(move || drop(lock(&inner, "x")));
    thread::sleep(3 * TTL);
    assert!(next.is_held());
    block_on(next.release()).expect("a release");
    waiter.join().expect("a turn");
}

/// The answer is positive, but nobody reads it before the lease has expired.
#[test]
fn a_renewal_that_is_looked_at_too_late_says_that_the_lock_is_lost() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = Options::new().ttl(TTL).renewal(tenure::Renewal::Off);
    let locks = Locks::open(&format!("file:{}", dir.path().display())).expect("a store");
    let locks = locks.with(|_| options).expect("options");
    type Asks = for<'a> fn(&'a Guard) -> std::pin::Pin<Box<dyn Future<Output = tenure::Result<()>> + 'a>>;
    let asks: [Asks; 2] = [|guard| Box::pin(guard.renew()), |guard| Box::pin(guard.verify())];
    for ask in asks {
        let guard = lock(&locks, "x");
        let mut context = Context::from_waker(std::task::Waker::noop());
        let asked = loop {
            let mut asked = ask(&guard);
            match asked.as_mut().poll(&mut context) {
                Poll::Pending => break asked,
                // The answer came too early: retry.
                Poll::Ready(said) => said.expect("it is held"),
            }
        };
        thread::sleep(3 * TTL);
        assert!(block_on(guard.lost()).is_lost());
        assert!(block_on(asked).expect_err("it is lost").is_lost());
    }
}

#[test]
fn what_is_public_can_be_sent_shared_and_kept() {
    fn all<T: Send + Sync + Unpin + UnwindSafe + RefUnwindSafe + 'static>() {}
    all::<(Locks, Mutex, FairMutex, ReentrantMutex, RwLock, Semaphore)>();
    all::<(Multi, Part, Guard, MultiGuard, Lost, Listing)>();
    all::<(Options, Renewal, Owner, LockName, Status, Holder, Kind, Error)>();
    fn future<F: Future + Send>(_: &F) {}
    let locks = locks();
    let mutex = locks.mutex("x").expect("a name");
    future(&mutex.lock());
    future(&mutex.try_lock());
    future(&mutex.try_lock_for(TTL));
    let guard = lock(&locks, "y");
    future(&guard.verify());
    future(&guard.renew());
    future(&locks.inspect("x"));
    future(&locks.force_release("x"));
    future(&guard.run(async |guard| guard.fence()));
}

#[test]
fn an_error_is_as_small_as_a_pointer() {
    assert_eq!(size_of::<Error>(), size_of::<usize>());
}
