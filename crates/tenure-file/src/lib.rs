//! Locks in a directory, for processes on one machine, without a server.
//!
//! ```text
//! DIR/guard           flocked during each change; contains the boot id and the last token
//! DIR/lock-HASH       one record per held lock: its name, its holders and waiters, the end of the lease
//! DIR/waits-HASH      the processes that wait for a lock without a queue
//! DIR/holder-ID       flocked by the process that holds or waits, for as long as it lives
//! DIR/wake-ID         the socket on which that process receives wake-ups
//! DIR/record-HASH     data that the last holder of a lock wrote beside it, and its expiry
//! DIR/temp            the record being written
//! ```
//!
//! # Files
//!
//! A record is replaced by a rename and removed when the lock becomes free, so a process killed at any point
//! leaves either the old or the new state. Nothing is synced to disk because no lock outlives the machine:
//! leases are counted on a clock that starts at boot and name their boot, so a reboot frees everything.
//!
//! Each hold and each place in a queue is bound to a holder file. The kernel drops the flock of that file
//! when the last process that has it open exits. A crash therefore ends the process's holds immediately, in
//! any pid namespace, and child processes that inherit the file keep it.
//!
//! # Waiting
//!
//! Listeners are notified of every record that changed. Notifications of a queue are exact: they list the
//! tickets that now hold, each ticket once.
//!
//! The cost of waiting in a queue does not depend on its length. The process that grants a ticket, or that
//! moves one to the first two places, sends a datagram to its process. Only the first two waiters watch for
//! crashes: the first watches the holders, the second watches the first. A request tests only the flocks its
//! decision depends on and those of the tickets it grants.
//!
//! # Modules
//!
//! - `shared`: executes a request on the caller's thread if nothing would block.
//! - `worker`: the task on the runtime's thread that does everything else.
//! - `apply`: applies a request to the files; `beside` does it for the record beside a lock.
//! - `lock`: reads and writes one lock, and `run` runs the state machine on it, without the holds and tickets of
//!   crashed processes.
//! - `look`: reads the state of locks without a request.
//! - `directory`: the files and their guard. `record` and `bindings` are their formats, and `names` their
//!   names.
//! - `waits`: the processes that wait for a lock without a queue.
//! - `holders`: this process's holder files, and whether the holders in a record are alive.
//! - `inherited`: the descriptors that a forked child has to close.
//! - `watch`: listeners and inotify.
//! - `sweep`: removes what crashed processes left behind.
//! - `system`: boot id and file system type.
//! - `error`: error messages.

mod apply;
mod beside;
mod bindings;
mod directory;
mod error;
mod holders;
mod inherited;
mod inotify;
mod lock;
mod look;
mod names;
#[cfg(tenure_planted)]
pub mod observe;
mod record;
mod run;
mod shared;
mod sweep;
mod system;
mod waits;
mod watch;
mod worker;

pub use inherited::take_inherited_files;
pub use record::FORMAT;
pub use system::shared_file_system;

use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::{Either, FutureExt, select};
use tokio::sync::{mpsc, oneshot};

use self::names::RecordId;
use self::shared::{CallerOutcome, SharedDirectory};
use self::system::boot_clock_offset_ms;
use self::watch::WatchMode;
use self::worker::{DirectoryWorker, Job, JobRequest, Promise};
use tenure_core::error::{Error, Result};
use tenure_core::name::{LockName, Quoted};
use tenure_core::protocol::places::PLACE;
use tenure_core::protocol::{Found, LockSpec};
use tenure_core::runtime::Runtime;
use tenure_core::store::{
    Capabilities, Cursor, Failure, HoldLiveness, Incarnation, LeaseClock, Listener, Opening, Page, Purpose,
    RecordPage, Signals, Store, StoreExt, StoreFuture, StoreReply, StoreRequest, Topic,
};

/// A store in a directory. Clones share it; it closes with the last clone and the last pending future.
#[derive(Clone)]
pub struct File(Arc<DirectoryInner>);

struct DirectoryInner {
    path: PathBuf,
    url: Arc<str>,
    runtime: Arc<dyn Runtime>,
    jobs: OnceLock<mpsc::UnboundedSender<Job>>,
    shared: Arc<SharedDirectory>,
    /// Interrupted when the directory at the path was replaced by another.
    signals: Signals,
}

/// Opens the store of a `file:DIR` URL. Touches no file before the first use.
///
/// # Errors
/// `is_invalid` if the URL names no directory.
pub fn open(opening: Opening<'_>) -> Result<Arc<dyn Store>> {
    let path = opening.url.strip_prefix("file:").unwrap_or(opening.url);
    if path == "~" || path.starts_with("~/") {
        let what =
            format!("store URL: got \"file:{path}\", and only a shell expands ~: write the whole path");
        return Err(Error::invalid(what));
    }
    // Accepted: `file:///var/lib/locks`, `file:/var/lib/locks` and `file:locks`. In `file://var/lib/locks`,
    // `var` would be a host.
    let behind = path.strip_prefix("//");
    if let Some(path) = behind.filter(|path| !path.starts_with('/')) {
        return Err(Error::invalid(format!(
            "`file://` must be followed by an absolute path, as in `file:///var/lib/app/locks`, got one \
             that begins with {}",
            Quoted(path.split('/').next().unwrap_or_default())
        )));
    }
    let path = behind.unwrap_or(path);
    if path.is_empty() || path.contains('\0') {
        return Err(Error::invalid("a file store's URL names a directory, as in `file:/var/lib/app/locks`"));
    }
    Ok(Arc::new(File::new(Path::new(path), opening.url, opening.runtime)))
}

impl File {
    /// A store in this directory, which is opened, or created, on first use. Does no I/O.
    ///
    /// The runtime's tasks must run within a tokio runtime.
    pub fn new(directory: &Path, url: &str, runtime: Arc<dyn Runtime>) -> Self {
        // Absolute, so that a later change of the working directory does not move the store.
        let path = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
        Self(Arc::new(DirectoryInner {
            path,
            url: url.into(),
            runtime,
            jobs: OnceLock::new(),
            shared: SharedDirectory::new(boot_clock_offset_ms()),
            signals: Signals::new(Incarnation::Lasting),
        }))
    }

    /// The result of a request that was executed on this thread, after passing its changes to the worker's
    /// listeners.
    fn done<T>(&self, tried: CallerOutcome<T>) -> Option<Result<T, Failure>> {
        let CallerOutcome::Done(answer, applied) = tried else { return None };
        if let Some(applied) = applied.filter(|_| self.0.shared.listens.load(Ordering::Acquire)) {
            let now = self.0.runtime.now();
            // Sending fails only if the worker has ended, and then there are no listeners.
            let _ = self.0.jobs().send(Job::new(JobRequest::Heard(applied), now, Duration::MAX, None));
        }
        Some(answer)
    }

    /// Sends a request to the worker when first polled, and waits for its answer.
    fn ask<T: Send + 'static>(
        &self,
        within: Duration,
        ask: impl FnOnce(Promise<T>) -> JobRequest + Send + 'static,
    ) -> impl Future<Output = Result<T, Failure>> + Send + 'static {
        let store = self.clone();
        async move {
            let (promise, answer) = oneshot::channel();
            let jobs = store.0.jobs();
            let handed = store.0.shared.hand_over();
            let job = Job::new(ask(promise), store.0.runtime.now(), within, Some(handed));
            if jobs.send(job).is_err() {
                return Err(Failure::NotSent(Failure::cause("the store was closed")));
            }
            let answered = match select(answer, pin!(jobs.closed())).await {
                Either::Left((answered, _)) => answered.ok(),
                // A job sent at the moment the worker ends stays in the channel and is never answered.
                Either::Right((_, answer)) => answer.now_or_never().and_then(Result::ok),
            };
            answered.unwrap_or_else(|| Err(Failure::Unknown(Failure::cause("the store was closed"))))
        }
    }
}

impl DirectoryInner {
    fn jobs(&self) -> &mpsc::UnboundedSender<Job> {
        self.jobs.get_or_init(|| {
            let (sender, jobs) = mpsc::unbounded_channel();
            let runtime = Arc::clone(&self.runtime);
            let shared = Arc::clone(&self.shared);
            let worker = DirectoryWorker::new(self.path.clone(), runtime, shared, self.signals.clone(), jobs);
            self.runtime.spawn(worker.run().boxed());
            sender
        })
    }
}

impl Store for File {
    fn call(&self, request: StoreRequest, within: Duration) -> StoreFuture<StoreReply> {
        let store = self.clone();
        match request {
            StoreRequest::Lock(op) => async move {
                let answer = match store.done(store.0.shared.call(&*store.0.runtime, &op)) {
                    Some(answer) => answer,
                    None => store.ask(within, |promise| JobRequest::Call(op, promise)).await,
                };
                answer.map(StoreReply::Lock)
            }
            .boxed(),
            StoreRequest::Record(op) => async move {
                let answer = match store.done(store.0.shared.record(&*store.0.runtime, &op)) {
                    Some(answer) => answer,
                    None => store.ask(within, |promise| JobRequest::Record(op, promise)).await,
                };
                answer.map(StoreReply::Record)
            }
            .boxed(),
            StoreRequest::Renewals(ops) => self.renew_each(ops, within),
        }
    }

    fn subscribe(&self, topic: Topic<'_>, within: Duration) -> StoreFuture<Listener> {
        let (store, name) = (self.clone(), topic.name.clone());
        let hears = match (topic.purpose, topic.spec) {
            (Purpose::Hold(_), _) => {
                return self.ask(within, move |promise| JobRequest::ListenWhileHeld(name, promise)).boxed();
            }
            (Purpose::Ask, _) => WatchMode::Calls,
            (_, LockSpec::Queue(_)) => WatchMode::Grants,
            _ => WatchMode::All,
        };
        async move {
            let id = RecordId::of(&name);
            let listener =
                store.ask(within, move |promise| JobRequest::Listen { name, hears, promise }).await?;
            if !matches!(hears, WatchMode::Calls) {
                return Ok(listener);
            }
            // A listener does not keep the store alive.
            let (jobs, runtime) = (store.0.jobs().downgrade(), Arc::clone(&store.0.runtime));
            Ok(listener.resting(move || {
                if let Some(jobs) = jobs.upgrade() {
                    let _ = jobs.send(Job::new(JobRequest::Rest(id), runtime.now(), Duration::MAX, None));
                }
            }))
        }
        .boxed()
    }

    fn list(&self, prefix: &str, from: Cursor, within: Duration) -> StoreFuture<Page> {
        let prefix = prefix.to_owned();
        self.ask(within, |promise| JobRequest::List { prefix, from, promise }).boxed()
    }

    fn waiting(&self, locks: &[(LockName, Found)], _within: Duration) -> StoreFuture<Vec<Option<u64>>> {
        let (store, ids) =
            (self.clone(), locks.iter().map(|(name, _)| RecordId::of(name)).collect::<Vec<_>>());
        async move {
            let core = store.0.shared.core();
            let count =
                |id| core.directory.as_ref().map(|directory| waits::count(directory, &core.holders, id));
            Ok(ids.into_iter().map(count).collect())
        }
        .boxed()
    }

    fn records(&self, prefix: &str, from: Cursor, within: Duration) -> StoreFuture<RecordPage> {
        let prefix = prefix.to_owned();
        self.ask(within, |promise| JobRequest::ListRecords { prefix, from, promise }).boxed()
    }

    fn ready(&self, within: Duration) -> StoreFuture<()> {
        let store = self.clone();
        async move {
            match store.done(store.0.shared.ready(&*store.0.runtime)) {
                Some(answer) => answer,
                None => store.ask(within, JobRequest::Ready).await,
            }
        }
        .boxed()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            clock: LeaseClock::Machine,
            liveness: HoldLiveness::Handle,
            member: Ok(()),
            place_kept: Some(PLACE),
            ..Capabilities::SERVER
        }
    }

    /// Interrupted when the directory was replaced.
    fn signals(&self) -> &Signals {
        &self.0.signals
    }

    fn url(&self) -> &Arc<str> {
        &self.0.url
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("File").field(&self.0.url).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_core::runtime::Driver;

    #[test]
    fn a_request_ends_with_the_worker_whatever_becomes_of_its_promise() {
        let runtime = Driver::start().expect("a thread");
        let store = File::new(Path::new("never-made"), "file:never-made", runtime);
        let (sender, mut jobs) = mpsc::unbounded_channel();
        assert!(store.0.jobs.set(sender).is_ok(), "there is no worker yet");
        let mut ready = store.ready(Duration::from_secs(3_600));
        assert!((&mut ready).now_or_never().is_none(), "no server answers");
        // As if a worker ended with jobs in its queue.
        jobs.close();
        assert!(matches!(ready.now_or_never(), Some(Err(Failure::Unknown(_)))));
        let late = store.ready(Duration::from_secs(3_600)).now_or_never();
        assert!(matches!(late, Some(Err(Failure::NotSent(_)))));
    }
}
