//! Locks in a directory: for processes on one machine, with no server.
//!
//! ```text
//! DIR/guard           its flock is held during each change; has the boot id and last token
//! DIR/lock-HASH       one record per lock that is held: its name, its holders, until when
//! DIR/line-HASH       those who wait for it, if it has a queue
//! DIR/holder-ID       flocked by the process that holds or waits, for as long as it lives
//! DIR/wake-ID         the socket on which that process is called while it waits or holds
//! DIR/record-HASH     what the last holder of a lock wrote beside it, until when
//! DIR/temp            the record that is being written
//! ```
//!
//! A record is replaced by a rename and removed when no process holds the lock, so a process that
//! is killed at any point leaves the old state or the new one. A line counts as far as the record
//! says, so a change writes the record and one place, however many wait. Nothing is synced to the
//! disk: a lock does not outlive the machine. Leases count on a clock that starts with the machine
//! and name the boot they belong to, so a reboot frees everything.
//!
//! Each hold, and each place in a queue, is bound to a holder file, whose flock the system drops
//! with the last process that has it open. So a crash ends what the process had at once, in
//! any pid namespace, and only that; and children that inherit the file keep it.
//!
//! A listener is told of every record that has changed. For a queue those are grants, and exact:
//! the tickets that hold, each told once.
//!
//! Waiting in a queue costs the same however many wait. The process that lets a waiter in, or makes
//! it one of the first two in line, sends a message to its process. Only those two watch for
//! crashes: the first the holders, the second the first. A request looks at the flocks of those
//! only that it decides about, and of the places that it lets in.
//!
//! The map: `shared` carries out a request on the caller's thread, if that waits for nothing, and
//! `worker` is the task on the runtime's thread that does everything else. `apply` is what a
//! request does to the files, and `beside` to the record beside a lock; `lock` reads and writes one
//! lock. `directory` has the files and their guard, `record`, `line` and `bindings` what they say;
//! `holders` who is alive, `watch` who listens; `sweep` what crashed processes left; `system` says
//! which boot and file system this is, `error` what is said when something cannot be done.

mod apply;
mod beside;
mod bindings;
mod called;
mod directory;
mod error;
mod holders;
mod life;
mod line;
mod lock;
mod look;
mod names;
#[cfg(tenure_planted)]
pub mod observe;
mod record;
mod run;
mod seen;
mod shared;
mod sweep;
mod system;
mod waits;
mod watch;
mod worker;

pub use system::shared_file_system;

use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, FutureExt, pending, ready, select};
use tokio::sync::{mpsc, oneshot, watch::Sender};

use self::names::RecordId;
use self::shared::{Shared, Tried};
use self::system::boot_clock_offset_ms;
use self::watch::Hears;
use self::worker::{Job, Promise, Request, Worker};
use tenure_core::error::{Error, Result};
use tenure_core::name::{LockName, Quoted};
use tenure_core::owner::Owner;
use tenure_core::protocol::record::{RecordAnswer, RecordOp};
use tenure_core::protocol::{Answer, LockSpec, Op};
use tenure_core::runtime::Runtime;
use tenure_core::store::{
    Capabilities, Cursor, Failure, HoldLiveness, Incarnation, Kinds, LeaseClock, Listener, Opening, Page,
    QuorumMember, Store,
};

/// A store in a directory. Clones share it; it ends with the last of them and the last future.
#[derive(Clone)]
pub struct File(Arc<Inner>);

struct Inner {
    path: PathBuf,
    url: Arc<str>,
    runtime: Arc<dyn Runtime>,
    jobs: OnceLock<mpsc::UnboundedSender<Job>>,
    shared: Arc<Shared>,
    /// How often another directory was found at the path.
    replaced: Arc<Sender<u64>>,
}

/// The store that a URL names: `file:DIR`. No file is touched before its first use.
///
/// # Errors
/// `is_invalid` if the URL names no directory.
pub fn open(opening: Opening<'_>) -> Result<Arc<dyn Store>> {
    let path = opening.url.strip_prefix("file:").unwrap_or(opening.url);
    // `file:///var/lib/locks`, `file:/var/lib/locks` and `file:locks` are what people write; of
    // `file://var/lib/locks` the first part would be a host.
    let behind = path.strip_prefix("//");
    if let Some(path) = behind.filter(|path| !path.starts_with('/')) {
        return Err(Error::invalid(format!(
            "behind `file://` comes a path that begins with a slash, as in `file:///var/lib/app/locks`, and this one begins with {}",
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
    /// A store in this directory, which is opened or created at the first use. Does no I/O.
    ///
    /// The runtime's tasks must run within a tokio runtime.
    pub fn new(directory: &Path, url: &str, runtime: Arc<dyn Runtime>) -> Self {
        // Absolute, so that the store stays where it is when the process changes its directory.
        let path = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
        Self(Arc::new(Inner {
            path,
            url: url.into(),
            runtime,
            jobs: OnceLock::new(),
            shared: Shared::new(boot_clock_offset_ms()),
            replaced: Arc::default(),
        }))
    }

    /// What a request did that was carried out on this thread, if it was.
    fn done<T>(&self, tried: Tried<T>) -> Option<Result<T, Failure>> {
        let Tried::Done(answer, applied) = tried else { return None };
        if let Some(applied) = applied.filter(|_| self.0.shared.listens.load(Ordering::Acquire)) {
            let now = self.0.runtime.now();
            // A worker that has ended has no listeners.
            let _ = self.0.jobs().send(Job::new(Request::Heard(applied), now, Duration::MAX, None));
        }
        Some(answer)
    }

    /// Hands a request to the worker when first polled, and waits for what it says.
    fn ask<T: Send + 'static>(
        &self,
        within: Duration,
        ask: impl FnOnce(Promise<T>) -> Request + Send + 'static,
    ) -> impl Future<Output = Result<T, Failure>> + Send + 'static {
        let store = self.clone();
        async move {
            let (promise, answer) = oneshot::channel();
            let jobs = store.0.jobs();
            let handed = store.0.shared.hand_over();
            let job = Job::new(ask(promise), store.0.runtime.now(), within, Some(handed));
            if jobs.send(job).is_err() {
                return Err(Failure::NotSent(Failure::cause("the store is shut down")));
            }
            let answered = match select(answer, pin!(jobs.closed())).await {
                Either::Left((answered, _)) => answered.ok(),
                // What was handed over in the very moment in which the worker ended is kept and
                // never looked at.
                Either::Right((_, answer)) => answer.now_or_never().and_then(Result::ok),
            };
            answered.unwrap_or_else(|| Err(Failure::Unknown(Failure::cause("the store ended meanwhile"))))
        }
    }
}

impl Inner {
    fn jobs(&self) -> &mpsc::UnboundedSender<Job> {
        self.jobs.get_or_init(|| {
            let (sender, jobs) = mpsc::unbounded_channel();
            let runtime = Arc::clone(&self.runtime);
            let shared = Arc::clone(&self.shared);
            let worker = Worker::new(self.path.clone(), runtime, shared, Arc::clone(&self.replaced), jobs);
            self.runtime.spawn(worker.run().boxed());
            sender
        })
    }
}

impl Store for File {
    fn call(&self, op: Op, within: Duration) -> BoxFuture<'static, Result<Answer, Failure>> {
        let store = self.clone();
        async move {
            match store.done(store.0.shared.call(&*store.0.runtime, &op)) {
                Some(answer) => answer,
                None => store.ask(within, |promise| Request::Call(op, promise)).await,
            }
        }
        .boxed()
    }

    fn record(&self, op: RecordOp, within: Duration) -> BoxFuture<'static, Result<RecordAnswer, Failure>> {
        let store = self.clone();
        async move {
            match store.done(store.0.shared.record(&*store.0.runtime, &op)) {
                Some(answer) => answer,
                None => store.ask(within, |promise| Request::Record(op, promise)).await,
            }
        }
        .boxed()
    }

    fn listen(
        &self,
        name: &LockName,
        rule: LockSpec,
        within: Duration,
    ) -> BoxFuture<'static, Result<Listener, Failure>> {
        let name = name.clone();
        let hears = if matches!(rule, LockSpec::Queue(_)) { Hears::Turns } else { Hears::All };
        self.ask(within, move |promise| Request::Listen { name, hears, promise }).boxed()
    }

    fn listen_to_ask(
        &self,
        name: &LockName,
        _rule: LockSpec,
        within: Duration,
    ) -> BoxFuture<'static, Result<Listener, Failure>> {
        let (store, name) = (self.clone(), name.clone());
        async move {
            let (id, hears) = (RecordId::of(&name), Hears::Calls);
            let listener = store.ask(within, move |promise| Request::Listen { name, hears, promise }).await?;
            // A listener keeps no store alive.
            let (jobs, runtime) = (store.0.jobs().downgrade(), Arc::clone(&store.0.runtime));
            Ok(listener.resting(move || {
                if let Some(jobs) = jobs.upgrade() {
                    let _ = jobs.send(Job::new(Request::Rest(id), runtime.now(), Duration::MAX, None));
                }
            }))
        }
        .boxed()
    }

    fn listen_while_held(
        &self,
        name: &LockName,
        _rule: LockSpec,
        _owner: &Owner,
        within: Duration,
    ) -> BoxFuture<'static, Result<Listener, Failure>> {
        let name = name.clone();
        self.ask(within, move |promise| Request::ListenWhileHeld(name, promise)).boxed()
    }

    fn list(
        &self,
        prefix: &str,
        from: Cursor,
        within: Duration,
    ) -> BoxFuture<'static, Result<Page, Failure>> {
        let prefix = prefix.to_owned();
        self.ask(within, |promise| Request::List { prefix, from, promise }).boxed()
    }

    fn ready(&self, within: Duration) -> BoxFuture<'static, Result<(), Failure>> {
        let store = self.clone();
        async move {
            match store.done(store.0.shared.ready(&*store.0.runtime)) {
                Some(answer) => answer,
                None => store.ask(within, Request::Ready).await,
            }
        }
        .boxed()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            kinds: Kinds::All,
            clock: LeaseClock::Machine,
            values: Ok(()),
            liveness: HoldLiveness::Handle,
            messages_grant: true,
            restart_grace: None,
        }
    }

    fn supports(&self, _rule: LockSpec, _name: &LockName) -> Result<(), &'static str> {
        Ok(())
    }

    fn declare_ttl(&self, _ttl: Duration) {}

    fn settled(&self) -> BoxFuture<'static, ()> {
        ready(()).boxed()
    }

    /// When the directory was replaced.
    fn interrupted(&self) -> BoxFuture<'static, ()> {
        let mut replaced = self.0.replaced.subscribe();
        let before = *replaced.borrow_and_update();
        async move {
            // The sender lives as long as the store: what waits for a store that is gone waits for
            // nothing.
            if replaced.wait_for(|count| *count > before).await.is_err() {
                pending().await
            }
        }
        .boxed()
    }

    fn interruptions(&self) -> u64 {
        *self.0.replaced.borrow()
    }

    fn member(&self) -> Result<&dyn QuorumMember, &'static str> {
        Ok(self)
    }

    fn url(&self) -> &Arc<str> {
        &self.0.url
    }
}

impl QuorumMember for File {
    fn incarnation(&self) -> Incarnation {
        Incarnation::Lasting
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
        // As when a worker ends whose queue is not empty.
        jobs.close();
        assert!(matches!(ready.now_or_never(), Some(Err(Failure::Unknown(_)))));
        let late = store.ready(Duration::from_secs(3_600)).now_or_never();
        assert!(matches!(late, Some(Err(Failure::NotSent(_)))));
    }
}
