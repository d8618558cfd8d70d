//! The only access to time, randomness, tasks and timers.
//!
//! Everything in this crate that waits, spawns, reads a clock or draws a random number uses [`Runtime`]. In
//! production that is a [`Driver`]: one thread with its own tokio runtime, so that a caller who blocks its
//! runtime cannot cost a lease. The test kit uses a seeded executor in virtual time, and `tenure::testing`
//! the caller's own runtime. The lints in `clippy.toml` forbid every other access.
#![expect(clippy::disallowed_methods, reason = "this file is the door")]

#[cfg(feature = "testing")]
mod callers;
mod shared_task;

use std::cell::RefCell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, mpsc};
use std::task::Poll;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::BoxFuture;
use tokio::runtime::{Builder, Handle, Id};
use tokio::sync::oneshot;

use crate::events::Events;
use crate::moment::Moment;
use crate::platform::{boot_clock, has_poller};
use crate::sync::Locked;

#[cfg(feature = "testing")]
pub use callers::Callers;
pub use shared_task::SharedTask;

/// Time, randomness, tasks and timers.
pub trait Runtime: fmt::Debug + Send + Sync + 'static {
    /// The current time on the clock that measures leases on the client's side.
    fn now(&self) -> Moment;
    /// The wall clock in microseconds since 1970, for ballots and for the tokens of stores on this machine;
    /// never for a lease.
    fn unix_micros(&self) -> u64;
    /// 64 random bits.
    fn random(&self) -> u64;
    /// 128 random bits.
    fn random_long(&self) -> u128 {
        u128::from(self.random()) << 64 | u128::from(self.random())
    }
    /// Completes when `now() >= at`. The future may be polled on any thread.
    fn sleep_until(&self, at: Moment) -> BoxFuture<'static, ()>;
    /// Spawns a task, which is dropped with the last handle of the runtime.
    fn spawn(&self, task: BoxFuture<'static, ()>);
    /// Runs a blocking system call on another thread. Returns false without running it if the runtime has no
    /// threads: in virtual time nothing may block.
    fn spawn_blocking(&self, _call: Box<dyn FnOnce() + Send>) -> bool {
        false
    }
    /// Runs `work` on the calling thread as this runtime's own thread would run it, but with `is_hosted` sockets are
    /// registered with the [host](Self::has_host). Returns false without running it on this runtime's own thread, and
    /// if the runtime does not support it.
    fn run_here(&self, _is_hosted: bool, _work: &mut dyn FnMut()) -> bool {
        false
    }
    /// Whether the calling task has another runtime which asks often, and that one can wait for sockets of this one's
    /// tasks.
    fn has_host(&self) -> bool {
        false
    }
    /// Whether the caller is this runtime's own thread, which must not wait for itself.
    fn is_current(&self) -> bool {
        false
    }
    /// The runtime of the calling task, if that is a different one. It shares this runtime's clock.
    fn of_caller(&self) -> Option<Arc<dyn Runtime>> {
        None
    }
    /// Whether this is the runtime of the calling task.
    fn is_callers(&self) -> bool {
        false
    }
}

/// The production runtime: one thread, named `tenure`, with a current-thread tokio runtime.
pub struct Driver {
    timers: Timers,
    stop: std::sync::Mutex<Option<oneshot::Sender<()>>>,
    thread: thread::ThreadId,
    process: u32,
    events: Arc<Events>,
    hosts: Locked<Hosts>,
    /// Carries no messages: it disconnects once the tasks have been dropped.
    ended: std::sync::Mutex<mpsc::Receiver<()>>,
}

impl Driver {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system's error if it cannot start a thread or open a poller.
    pub fn start() -> io::Result<Arc<Self>> {
        // A failed thread start drops its closure, and a tokio runtime must not be dropped inside another
        // one's task (`block_on` is one), so the runtime is sent to the thread once that is running.
        let (hand_over, handed) = mpsc::channel::<tokio::runtime::Runtime>();
        let (stop, stopped) = oneshot::channel::<()>();
        let is_over = Arc::new(RwLock::new(false));
        let over = Arc::clone(&is_over);
        let events = Events::new(start_thread);
        let queued = Arc::clone(&events);
        let (runs, ended) = mpsc::channel::<()>();
        let work = move || {
            let _runs = runs;
            let Ok(runtime) = handed.recv() else { return };
            queued.take_over();
            drop(queued);
            let _ = runtime.block_on(stopped);
            *over.write().unwrap_or_else(PoisonError::into_inner) = true;
            // A blocking system call that is still running must not delay the end of the thread.
            runtime.shutdown_background();
        };
        let thread = start_thread("tenure", Box::new(work))?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        hand_over.send(runtime).expect("the thread waits for it");
        let (stop, thread) = (std::sync::Mutex::new(Some(stop)), thread.thread().id());
        let (timers, ended) = (Timers { handle, is_over }, std::sync::Mutex::new(ended));
        let (process, hosts) = (std::process::id(), Locked::default());
        Ok(Arc::new(Self { timers, stop, thread, process, events, hosts, ended }))
    }

    /// Whether the current runtime, which is a caller's, can wait for sockets.
    fn has_poller(&self, id: Id) -> bool {
        let hosts = self.hosts.lock();
        if hosts.is_over || hosts.proven == Some(id) {
            return !hosts.is_over;
        }
        drop(hosts);
        // tokio offers no other way to ask than to be panicked at, which prints a message.
        let asked = if cfg!(panic = "unwind") { std::panic::catch_unwind(has_poller).ok() } else { None };
        let mut hosts = self.hosts.lock();
        match asked {
            Some(true) => hosts.proven = Some(id),
            // As if there are no more descriptors.
            Some(false) => {}
            None => hosts.is_over = true,
        }
        asked == Some(true)
    }

    /// The runtime of the calling task, if that is a different one.
    fn callers_handle(&self) -> Option<Handle> {
        let handle = Handle::try_current().ok()?;
        let is_ours = |ours: &Handle| ours.id() == handle.id();
        let is_ours = is_ours(&self.timers.handle) || PARK.get().is_some_and(|park| is_ours(park.handle()));
        (!is_ours).then_some(handle)
    }

    /// The `tracing` events of its thread.
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// Stops the thread and drops its tasks.
    pub fn stop(&self) {
        if let Ok(mut stop) = self.stop.lock() {
            stop.take();
        }
    }

    /// Blocks until the tasks have been dropped after a [`stop`](Self::stop), for at most `most`.
    pub fn wait(&self, most: Duration) {
        if let Ok(ended) = self.ended.lock() {
            let _ = ended.recv_timeout(most);
        }
    }
}

/// The timers of a driver.
#[derive(Clone)]
struct Timers {
    handle: Handle,
    /// True once the driver has stopped. Read-locked while a timer is polled.
    is_over: Arc<RwLock<bool>>,
}

/// What is known of the runtimes that may wait for sockets of a driver's tasks.
#[derive(Default)]
struct Hosts {
    /// The last one that asked, and when.
    last: Option<(Id, Moment)>,
    /// One that has I/O.
    proven: Option<Id>,
    /// One had none. To ask is a panic, so no other is asked.
    is_over: bool,
}

impl Hosts {
    fn is_proven(&self, handle: &Handle) -> bool {
        self.proven == Some(handle.id())
    }
}

/// A caller's tokio runtime. Tasks run there; the clock and the timers are the driver's.
struct OfCaller {
    handle: Handle,
    timers: Timers,
}

thread_local! {
    /// See [`with_host`].
    static HOST: RefCell<Option<Handle>> = const { RefCell::new(None) };
}

struct RestoreHost(Option<Handle>);

impl Drop for RestoreHost {
    fn drop(&mut self) {
        HOST.set(self.0.take());
    }
}

/// Calls `work` with the runtime with which sockets that this thread polls are to be registered; `None` for the current
/// one.
pub(crate) fn with_host<T>(work: impl FnOnce(Option<&Handle>) -> T) -> T {
    HOST.with_borrow(|host| work(host.as_ref()))
}

/// Whether the caller runs inside a tokio runtime.
pub fn has_tokio() -> bool {
    Handle::try_current().is_ok()
}

/// Spawns a task on the caller's tokio runtime.
///
/// # Panics
/// Outside a tokio runtime: check [`has_tokio`] first.
pub fn spawn_on_tokio(task: impl Future<Output = ()> + Send + 'static) {
    Handle::current().spawn(task);
}

/// A caller's runtime that asks twice within this time may be a host.
const FREQUENT: Duration = Duration::from_millis(25);

/// Starts a thread of this library.
fn start_thread(name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<thread::JoinHandle<()>> {
    thread::Builder::new().name(name.into()).spawn(work)
}

/// Maximum length of one timer. The system's timers stop while the machine sleeps, so a longer sleep is
/// split, and the clock is read again within this time after a resume.
const RECHECK: Duration = Duration::from_secs(1);

impl Runtime for Driver {
    fn now(&self) -> Moment {
        boot_clock()
    }

    fn unix_micros(&self) -> u64 {
        unix_micros()
    }

    fn random(&self) -> u64 {
        random_long() as u64
    }

    fn random_long(&self) -> u128 {
        random_long()
    }

    fn sleep_until(&self, at: Moment) -> BoxFuture<'static, ()> {
        self.timers.sleep_until(at)
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.timers.handle.spawn(task);
    }

    fn spawn_blocking(&self, call: Box<dyn FnOnce() + Send>) -> bool {
        self.timers.handle.spawn_blocking(call);
        true
    }

    fn run_here(&self, is_hosted: bool, work: &mut dyn FnMut()) -> bool {
        // After a fork, the child has its parent's connections.
        if self.is_current() || std::process::id() != self.process {
            return false;
        }
        let host =
            Handle::try_current().ok().filter(|handle| is_hosted && self.hosts.lock().is_proven(handle));
        let _host = RestoreHost(HOST.replace(host));
        let _context = self.timers.handle.enter();
        self.events.queueing(work);
        true
    }

    fn has_host(&self) -> bool {
        let Some(handle) = self.callers_handle() else { return false };
        let (id, now) = (handle.id(), boot_clock());
        let last = self.hosts.lock().last.replace((id, now));
        let is_frequent = last.is_some_and(|(last, at)| last == id && now.since(at) <= FREQUENT);
        is_frequent && self.has_poller(id)
    }

    fn is_current(&self) -> bool {
        thread::current().id() == self.thread
    }

    fn of_caller(&self) -> Option<Arc<dyn Runtime>> {
        Some(Arc::new(OfCaller { handle: self.callers_handle()?, timers: self.timers.clone() }))
    }
}

impl Timers {
    fn sleep_until(&self, at: Moment) -> BoxFuture<'static, ()> {
        let (handle, is_over) = (self.handle.clone(), Arc::clone(&self.is_over));
        Box::pin(async move {
            loop {
                let left = at.since(boot_clock());
                if left.is_zero() {
                    return;
                }
                // A timer belongs to the runtime in whose context it is created, but can be polled anywhere.
                let mut piece = pin!({
                    let _context = handle.enter();
                    tokio::time::sleep(left.min(RECHECK))
                });
                let ended = poll_fn(|context| {
                    // A timer whose runtime is gone panics when polled, so this sleep completes instead.
                    let is_over = is_over.read().unwrap_or_else(PoisonError::into_inner);
                    if *is_over { Poll::Ready(true) } else { piece.as_mut().poll(context).map(|()| false) }
                });
                if ended.await {
                    // Yield, so that a caller that sleeps in a loop does not block its thread.
                    tokio::task::yield_now().await;
                    return;
                }
            }
        })
    }

    /// Whether the driver has ended.
    fn are_over(&self) -> bool {
        *self.is_over.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Runtime for OfCaller {
    fn now(&self) -> Moment {
        boot_clock()
    }

    fn unix_micros(&self) -> u64 {
        unix_micros()
    }

    fn random(&self) -> u64 {
        random_long() as u64
    }

    fn random_long(&self) -> u128 {
        random_long()
    }

    fn sleep_until(&self, at: Moment) -> BoxFuture<'static, ()> {
        self.timers.sleep_until(at)
    }

    fn spawn(&self, mut task: BoxFuture<'static, ()>) {
        // The task ends with the driver, like the driver's own tasks, because its sleeps no longer wait from
        // then on.
        let timers = self.timers.clone();
        self.handle.spawn(poll_fn(move |context| match timers.are_over() {
            true => Poll::Ready(()),
            false => task.as_mut().poll(context),
        }));
    }

    fn is_callers(&self) -> bool {
        Handle::try_current().is_ok_and(|current| current.id() == self.handle.id())
    }
}

impl fmt::Debug for OfCaller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OfCaller").field("handle", &self.handle.id()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("thread", &self.thread).finish_non_exhaustive()
    }
}

/// The wall clock in microseconds since 1970; 0 for earlier times.
pub fn unix_micros() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

/// 128 random bits from one system call.
pub fn random_long() -> u128 {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the system gives random bytes");
    u128::from_ne_bytes(bytes)
}

/// The runtime behind [`block_on`]. It has no drivers and only parks and unparks, so many threads can block
/// on it at once.
static PARK: OnceLock<tokio::runtime::Runtime> = OnceLock::new();

/// Runs a future of this crate to completion on the calling thread: the blocking API.
///
/// Any other future works too, as long as it does not depend on a particular runtime. In a task of an
/// executor other than tokio it blocks the thread.
///
/// # Panics
/// On a thread that runs tokio tasks, and inside another `block_on`; use `spawn_blocking` there.
///
/// # Examples
/// ```
/// let locks = tenure::Locks::memory();
/// let guard = tenure::block_on(locks.mutex("nightly")?.lock())?;
/// tenure::block_on(guard.release())?;
/// # Ok::<(), tenure::Error>(())
/// ```
pub fn block_on<F: Future>(future: F) -> F::Output {
    PARK.get_or_init(|| {
        Builder::new_current_thread().build().expect("a runtime without drivers needs nothing")
    })
    .block_on(future)
}
