//! What all threads of the process share: the runtime of the calls, and the open stores.

use std::future::pending;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Handle};

/// Locks a mutex whose content is consistent at all times.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the calls of all threads. A blocked event loop therefore costs neither a lease nor an acquisition.
pub fn runtime() -> &'static Handle {
    static RUNTIME: OnceLock<Handle> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("the system has a file descriptor left");
        let handle = runtime.handle().clone();
        let run = move || runtime.block_on(pending::<()>());
        thread::Builder::new()
            .name("tenure-node".to_owned())
            .spawn(run)
            .expect("the system has a thread left");
        handle
    })
}

/// An open store, which is closed when its last handle in any thread is dropped.
pub struct Root {
    locks: Option<tenure::Locks>,
}

/// A URL, and the directory in which its path begins.
type Key = (String, Option<PathBuf>);

static ROOTS: Mutex<Vec<(Key, Weak<Root>)>> = Mutex::new(Vec::new());

impl Root {
    /// Opens a store without I/O, unless it is open. `memory:` is a new one each time.
    pub fn open(url: &str) -> tenure::Result<Arc<Self>> {
        let key = (url.to_owned(), std::env::current_dir().ok());
        let mut roots = lock(&ROOTS);
        roots.retain(|(_, root)| root.strong_count() > 0);
        let known = roots.iter().find(|(known, _)| *known == key && url != "memory:");
        if let Some(root) = known.and_then(|(_, root)| root.upgrade()) {
            return Ok(root);
        }
        let root = Arc::new(Self { locks: Some(tenure::Locks::open(url)?) });
        roots.push((key, Arc::downgrade(&root)));
        Ok(root)
    }

    /// A majority of stores.
    pub fn quorum(members: Vec<tenure::Locks>) -> tenure::Result<Arc<Self>> {
        let root = Arc::new(Self { locks: Some(tenure::Locks::quorum(members)?) });
        lock(&ROOTS).push((("quorum:".to_owned(), None), Arc::downgrade(&root)));
        Ok(root)
    }

    pub fn locks(&self) -> &tenure::Locks {
        self.locks.as_ref().expect("only the drop takes it")
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        // It may wait for releases in flight, which no event loop should.
        let locks = self.locks.take();
        runtime().spawn_blocking(move || drop(locks));
    }
}

/// Blocks until the releases that are in progress have been answered, for at most `most`.
pub fn flush(most: Duration) {
    let (end, (sender, flushed)) = (Instant::now() + most, mpsc::channel::<()>());
    let roots: Vec<_> = lock(&ROOTS).iter().filter_map(|(_, root)| root.upgrade()).collect();
    for root in roots {
        let sender = sender.clone();
        runtime().spawn(async move {
            // If the store is unreachable, the leases expire.
            let _ = root.locks().flush().await;
            drop(sender);
        });
    }
    drop(sender);
    let _ = flushed.recv_timeout(end.saturating_duration_since(Instant::now()));
}

/// Blocks until the calls that were cancelled before have been dropped.
pub fn settle(most: Duration) {
    let (sender, settled) = mpsc::channel::<()>();
    runtime().spawn(async move { drop(sender) });
    let _ = settled.recv_timeout(most);
}
