//! The states of locks that the golden files hold. This file also compiles with the library of that time.

use std::any::Any;
use std::fs;
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tenure::{Entry, Locks, Result, block_on};

/// Each is made in a store of its own.
pub(super) const STATES: [&str; 21] = [
    "a mutex",
    "a mutex with waiters",
    "a detached mutex",
    "a mutex that is kept for a while",
    "a mutex without a token",
    "a mutex that was released",
    "a reentrant mutex, held twice",
    "a fair mutex with waiters",
    "a fair mutex that moved on to its first waiter",
    "readers and a waiting writer",
    "a writer",
    "an upgradeable reader and a reader",
    "an upgradeable reader that waits to become the writer",
    "a semaphore with a waiter",
    "a semaphore whose permits were changed",
    "a leader that was asked to stop",
    "a job that runs",
    "a job that succeeded",
    "a job that failed",
    "a cached value",
    "a cached value that is computed again",
];

/// The longest lease, so that nothing is renewed meanwhile and nothing expires later. ZooKeeper's sessions are shorter,
/// and the members of a quorum vote only when they are older than it.
fn ttl(url: &str) -> Duration {
    match url.split(':').next() {
        Some("zookeeper") => Duration::from_secs(19 * 86_400),
        Some("redis-quorum") => HOUR / 2,
        _ => Duration::from_secs(365 * 86_400),
    }
}

const HOUR: Duration = Duration::from_secs(3_600);

/// What holds a state: first the holders, then the waiters.
pub(super) type Kept = Box<dyn Any>;

fn kept(one: impl Any) -> Kept {
    Box::new(one)
}

pub(super) fn open(url: &str) -> Locks {
    let locks = Locks::open(url).expect("a store");
    locks.with(|options| options.ttl(ttl(url)).label("nightly report")).expect("options")
}

/// Clients that wait for a lock, each on a thread. They have it until this is dropped.
struct Waiters<T> {
    guards: Vec<Receiver<T>>,
    threads: Vec<JoinHandle<()>>,
}

impl<T: Send + 'static> Waiters<T> {
    fn none() -> Self {
        Self { guards: Vec::new(), threads: Vec::new() }
    }

    fn one(url: &str, lock: impl AsyncFnOnce(Locks) -> Result<T> + Send + 'static) -> Self {
        let mut waiters = Self::none();
        waiters.add(url, lock);
        waiters
    }

    fn add(&mut self, url: &str, lock: impl AsyncFnOnce(Locks) -> Result<T> + Send + 'static) {
        let (locks, (locked, guard)) = (open(url), mpsc::channel());
        self.guards.push(guard);
        let waits = move || drop(block_on(lock(locks)).map(|guard| locked.send(guard)));
        self.threads.push(thread::spawn(waits));
    }
}

impl<T> Drop for Waiters<T> {
    fn drop(&mut self) {
        self.guards.clear();
        self.threads.drain(..).for_each(|thread| thread.join().expect("a waiter"));
    }
}

pub(super) async fn until(what: &str, mut it: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    let limit = Instant::now() + Duration::from_secs(60);
    while !it().await? {
        assert!(Instant::now() < limit, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

async fn waited_for(locks: &Locks, name: &str, waiters: usize) -> Result<()> {
    let is_so = async || {
        let status = locks.inspect(name).await?;
        Ok(status.is_some_and(|status| status.waiters.len() == waiters))
    };
    until("waiters", is_so).await
}

/// The files of a directory whose names begin like this.
fn files(url: &str, head: &str) -> Vec<String> {
    let directory = url.strip_prefix("file:").expect("a state of directories");
    let files = fs::read_dir(directory).expect("a directory").flatten();
    let files = files.filter(|file| file.file_name().as_encoded_bytes().starts_with(head.as_bytes()));
    files.filter_map(|file| fs::read_to_string(file.path()).ok()).collect()
}

/// Brings the locks of an empty store into this state.
pub(super) fn make(state: &str, url: &str) -> (Kept, Locks) {
    let locks = open(url);
    // The client stays open, because it removes its files in the background when it is closed.
    (block_on(make_with(&locks, state, url)).expect("a state"), locks)
}

#[expect(clippy::too_many_lines, reason = "a case for each state")]
async fn make_with(locks: &Locks, state: &str, url: &str) -> Result<Kept> {
    Ok(match state {
        "a mutex" => kept(locks.mutex("räumung/1")?.lock().await?),
        "a mutex with waiters" => {
            let (guard, mut all) = (locks.mutex("m")?.lock().await?, Waiters::none());
            for waiters in 1..=3 {
                all.add(url, async |locks| locks.mutex("m")?.lock().await);
                let is_listed = async || Ok(files(url, "waits-").concat().lines().count() == waiters);
                until("a list", is_listed).await?;
            }
            kept((guard, all))
        }
        "a detached mutex" => kept(locks.mutex("m")?.lock().await?.detach().await?),
        "a mutex that is kept for a while" => kept(locks.mutex("m")?.lock().await?.keep_for(HOUR).await?),
        "a mutex without a token" => {
            kept(locks.with(|options| options.unfenced(true))?.mutex("m")?.lock().await?)
        }
        "a mutex that was released" => kept(locks.mutex("m")?.lock().await?.release().await?),
        "a reentrant mutex, held twice" => {
            let owner = tenure::Owner::new("a job")?;
            let lock = locks.reentrant_mutex("r", &owner)?;
            kept((lock.lock().await?, lock.lock().await?))
        }
        "a fair mutex with waiters" | "a fair mutex that moved on to its first waiter" => {
            let (guard, mut all) = (locks.fair_mutex("f")?.lock().await?, Waiters::none());
            for waiters in 1..=3 {
                all.add(url, async |locks| locks.fair_mutex("f")?.lock().await);
                waited_for(locks, "f", waiters).await?;
            }
            if state == "a fair mutex with waiters" {
                return Ok(kept((guard, all)));
            }
            guard.release().await?;
            let has_lease = async || {
                let status = locks.inspect("f").await?.expect("a holder");
                Ok(status.holders.first().and_then(|holder| holder.remaining) > Some(HOUR))
            };
            until("a lease", has_lease).await?;
            kept(all)
        }
        "readers and a waiting writer" => {
            let lock = locks.rwlock("rw")?;
            let readers = (lock.read().await?, lock.read().await?);
            let writer = Waiters::one(url, async |locks| locks.rwlock("rw")?.write().await);
            waited_for(locks, "rw", 1).await?;
            kept((readers, writer))
        }
        "a writer" => kept(locks.rwlock("rw")?.write().await?),
        "an upgradeable reader and a reader" => {
            let lock = locks.rwlock("rw")?;
            kept((lock.upgradeable_read().await?, lock.read().await?))
        }
        "an upgradeable reader that waits to become the writer" => {
            let lock = locks.rwlock("rw")?;
            let (reader, (read, record)) = (lock.read().await?, mpsc::channel());
            let at = url.to_owned();
            let writer = Waiters::one(url, async move |locks| {
                let upgradeable = locks.rwlock("rw")?.upgradeable_read().await?;
                read.send(files(&at, "lock-")).expect("a receiver");
                upgradeable.upgrade().await.map_err(|failed| failed.error)
            });
            let before = record.recv().expect("an upgradeable reader");
            until("a writer to be", async || Ok(files(url, "lock-") != before)).await?;
            kept((reader, writer))
        }
        "a semaphore with a waiter" | "a semaphore whose permits were changed" => {
            let slots = locks.semaphore("s", 3)?;
            let held = (slots.acquire().await?, slots.acquire_many(2).await?);
            let waiter = Waiters::one(url, async |locks| locks.semaphore("s", 3)?.acquire_many(3).await);
            waited_for(locks, "s", 1).await?;
            if state != "a semaphore with a waiter" {
                slots.set_permits(5).await?;
            }
            kept((held, waiter))
        }
        "a leader that was asked to stop" => {
            let mut term = locks.election("e", "10.0.0.7:80")?.campaign().await?;
            term.update("10.0.0.7:81").await?;
            locks.election("e", "")?.request_stop("maintenance").await?;
            kept(term)
        }
        "a job that runs" => kept(locks.once_per("j", HOUR)?.try_begin().await?),
        "a job that succeeded" => kept(locks.once_per("j", HOUR)?.run(async |_| Ok::<_, String>(())).await?),
        "a job that failed" => {
            kept(locks.once_per("j", HOUR)?.run(async |_| Err::<(), _>("full disk")).await?)
        }
        "a cached value" => kept(cached(locks).await?),
        "a cached value that is computed again" => {
            cached(locks).await?;
            locks.cache("c")?.invalidate().await?;
            let ((began, begun), (kept_for, ends)) = (mpsc::channel(), mpsc::channel::<()>());
            let computing = Waiters::one(url, async move |locks| {
                let fill = async || {
                    began.send(()).expect("a receiver");
                    let _ = ends.recv();
                    Err::<Entry<String>, _>("no value")
                };
                locks.cache("c")?.get_or_fill(fill).await
            });
            begun.recv().expect("a computation");
            kept((kept_for, computing))
        }
        other => panic!("not a state: {other}"),
    })
}

async fn cached(locks: &Locks) -> Result<()> {
    let fill = async || Ok::<_, String>(Entry::value("a value".to_owned(), HOUR));
    locks.cache("c")?.get_or_fill(fill).await?.map(drop).map_err(|error| panic!("{error}"))
}
