//! Stores and their locks.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use tenure::bindings::{AnyGuard, AnyLock, Report};
use tenure::metrics::Groups;
use tenure::{Listing, Multi, Owner, Renewal};

use crate::error;
use crate::fill::Fill;
use crate::guard::Hold;
use crate::op::{Convert, Op, converted, told};
use crate::process::{Owned, Process};
use crate::uses::{Cache, Election, OncePer};
use crate::values;

/// An open store: closed when its last handle is dropped.
pub struct Root {
    locks: Option<tenure::Locks>,
    /// The thread of a store for tests.
    _thread: Option<Box<dyn Send + Sync>>,
}

impl Root {
    pub fn new(locks: tenure::Locks, thread: Option<Box<dyn Send + Sync>>) -> Arc<Self> {
        let root = Arc::new(Self { locks: Some(locks), _thread: thread });
        Process::current().add_root(&root);
        root
    }

    pub fn locks(&self) -> &tenure::Locks {
        self.locks.as_ref().expect("only the drop takes it")
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let mut locks = self.locks.take();
        // The drop may wait for releases in flight and for the log, which needs the GIL. When the interpreter
        // shuts down, nothing is left to wait for.
        if !Process::current().is_closing() {
            let _ = Python::try_attach(|py| {
                let locks = locks.take();
                py.detach(|| drop(locks));
            });
        }
        drop(locks);
    }
}

/// Converts an error of the library into an exception.
pub fn checked<T>(result: tenure::Result<T>) -> PyResult<T> {
    result.map_err(|error| error::of(&error))
}

pub fn owner(text: &str) -> PyResult<Owner> {
    checked(text.parse())
}

/// A store of locks with options.
#[pyclass(frozen, module = "tenure._native")]
pub struct Locks {
    locks: Owned<tenure::Locks>,
    /// Dropped last, in all handles, because its drop may wait, without the GIL.
    root: Owned<Arc<Root>>,
}

impl Locks {
    pub fn of(root: Arc<Root>) -> Self {
        let locks = Owned::new(root.locks().clone());
        Self { locks, root: Owned::new(root) }
    }

    fn root(&self) -> PyResult<Arc<Root>> {
        Ok(Arc::clone(self.root.get()?))
    }

    fn handle(&self, kind: AnyLock) -> PyResult<Lock> {
        Ok(Lock::new(self.root()?, kind))
    }
}

/// Converts a guard, or `None` for a busy lock.
pub fn guarded<G>(root: Arc<Root>, held: tenure::Result<Option<G>>) -> Convert
where
    G: Into<AnyGuard> + Send + 'static,
{
    converted(held, |py, held| match held {
        Some(held) => Ok(Py::new(py, Hold::new(root, held.into()))?.into_any()),
        None => Ok(py.None()),
    })
}

#[pymethods]
impl Locks {
    /// Opens a store without I/O.
    #[staticmethod]
    fn open(url: &str) -> PyResult<Self> {
        Ok(Self::of(Root::new(checked(tenure::Locks::open(url))?, None)))
    }

    /// Opens a store whose login a function returns at each dial: `(user or None, password)`.
    #[cfg(feature = "redis")]
    #[staticmethod]
    fn open_with_credentials(url: &str, function: Py<PyAny>) -> PyResult<Self> {
        let provider = crate::credentials::provider(function)?;
        Ok(Self::of(Root::new(checked(tenure::Locks::open_with_credentials(url, provider))?, None)))
    }

    /// A majority of independent stores.
    #[staticmethod]
    fn quorum(members: Vec<PyRef<'_, Self>>) -> PyResult<Self> {
        let members =
            members.iter().map(|member| member.locks.get().cloned()).collect::<PyResult<Vec<_>>>()?;
        Ok(Self::of(Root::new(checked(tenure::Locks::quorum(members))?, None)))
    }

    /// The same store with changed options. Times are in seconds.
    #[pyo3(signature = (*, ttl=None, renew=None, max_hold=None, grace=None, inherit_liveness=None, op_timeout=None,
                        patience=None, label=None, prefix=None, unfenced=None, group_by=None))]
    #[expect(clippy::too_many_arguments, reason = "one for each option")]
    fn configured(
        &self,
        ttl: Option<f64>,
        renew: Option<bool>,
        max_hold: Option<f64>,
        grace: Option<f64>,
        inherit_liveness: Option<bool>,
        op_timeout: Option<f64>,
        patience: Option<f64>,
        label: Option<String>,
        prefix: Option<String>,
        unfenced: Option<bool>,
        group_by: Option<char>,
    ) -> PyResult<Self> {
        let time =
            |what: &str, value: Option<f64>| value.map(|value| error::seconds(what, value)).transpose();
        let (ttl, max_hold, grace) = (time("ttl", ttl)?, time("max_hold", max_hold)?, time("grace", grace)?);
        let (op_timeout, patience) = (time("op_timeout", op_timeout)?, time("patience", patience)?);
        let change = |mut options: tenure::Options| {
            options.ttl = ttl.unwrap_or(options.ttl);
            if let Some(renew) = renew {
                options.renewal = if renew { Renewal::Automatic } else { Renewal::Off };
            }
            options.max_hold = max_hold.or(options.max_hold);
            options.grace = grace.unwrap_or(options.grace);
            options.inherit_liveness = inherit_liveness.unwrap_or(options.inherit_liveness);
            options.op_timeout = op_timeout.unwrap_or(options.op_timeout);
            options.patience = patience.unwrap_or(options.patience);
            options.label = label.unwrap_or(options.label);
            options.prefix = prefix.unwrap_or(options.prefix);
            options.unfenced = unfenced.unwrap_or(options.unfenced);
            if let Some(separator) = group_by {
                options.groups = Groups::by_prefix(separator);
            }
            options
        };
        let locks = checked(self.locks.get()?.with(change))?;
        Ok(Self { locks: Owned::new(locks), root: Owned::new(self.root()?) })
    }

    #[getter]
    fn url(&self) -> PyResult<String> {
        Ok(self.locks.get()?.url().to_owned())
    }

    #[getter]
    fn ttl(&self) -> PyResult<f64> {
        Ok(self.locks.get()?.options().ttl.as_secs_f64())
    }

    fn ping(&self) -> PyResult<Op> {
        let locks = self.locks.get()?.clone();
        Ok(Op::new(async move { told(locks.ping().await) }))
    }

    fn flush(&self) -> PyResult<Op> {
        let locks = self.locks.get()?.clone();
        Ok(Op::new(async move { told(locks.flush().await) }))
    }

    fn mutex(&self, name: &str) -> PyResult<Lock> {
        self.handle(AnyLock::Mutex(checked(self.locks.get()?.mutex(name))?))
    }

    fn fair_mutex(&self, name: &str) -> PyResult<Lock> {
        self.handle(AnyLock::Fair(checked(self.locks.get()?.fair_mutex(name))?))
    }

    fn reentrant_mutex(&self, name: &str, by: &str) -> PyResult<Lock> {
        self.handle(AnyLock::Reentrant(checked(self.locks.get()?.reentrant_mutex(name, &owner(by)?))?))
    }

    /// One side of a read-write lock: `read`, `upgradeable` or `write`.
    fn rwlock(&self, name: &str, side: &str) -> PyResult<Lock> {
        let lock = checked(self.locks.get()?.rwlock(name))?;
        self.handle(match side {
            "read" => AnyLock::Read(lock),
            "upgradeable" => AnyLock::Upgradeable(lock),
            _ => AnyLock::Write(lock),
        })
    }

    /// Some permits of a semaphore.
    fn semaphore(&self, name: &str, permits: u32, taken: u32) -> PyResult<Lock> {
        let semaphore = checked(self.locks.get()?.semaphore(name, permits))?;
        checked(semaphore.for_permits(taken))?;
        self.handle(AnyLock::Permits(semaphore, taken))
    }

    fn set_permits(&self, name: &str, permits: u32) -> PyResult<Op> {
        let semaphore = checked(self.locks.get()?.semaphore(name, permits))?;
        Ok(Op::new(async move { told(semaphore.set_permits(permits).await) }))
    }

    fn inspect(&self, name: String) -> PyResult<Op> {
        let locks = self.locks.get()?.clone();
        Ok(Op::new(async move { told(locks.inspect(name).await) }))
    }

    fn list(&self, prefix: &str) -> PyResult<Locked> {
        let listing = checked(self.locks.get()?.list(prefix))?;
        Ok(Locked(Owned::new(Arc::new(tokio::sync::Mutex::new(listing)))))
    }

    fn jobs(&self, prefix: String) -> PyResult<Op> {
        let locks = self.locks.get()?.clone();
        let found = async move {
            let (mut jobs, mut found) = (locks.jobs(&prefix)?, Vec::new());
            while let Some(job) = jobs.next().await? {
                found.push(job.into());
            }
            Ok(Report::List(found))
        };
        Ok(Op::new(async move { told(found.await) }))
    }

    fn elections(&self, prefix: String) -> PyResult<Op> {
        let locks = self.locks.get()?.clone();
        let found = async move {
            let (mut elections, mut found) = (locks.elections(&prefix)?, Vec::new());
            while let Some(election) = elections.next().await? {
                found.push(election.into());
            }
            Ok(Report::List(found))
        };
        Ok(Op::new(async move { told(found.await) }))
    }

    fn force_release(&self, name: String) -> PyResult<Op> {
        let locks = self.locks.get()?.clone();
        Ok(Op::new(async move { told(locks.force_release(name).await) }))
    }

    /// Removes a string of another program.
    fn force_release_foreign(&self, name: String) -> PyResult<Op> {
        let locks = self.locks.get()?.clone();
        Ok(Op::new(async move { told(locks.force_release_foreign(name).await) }))
    }

    /// Ends the hold of an owner, or with a token.
    #[pyo3(signature = (name, by, token))]
    fn force_release_of(&self, name: String, by: Option<&str>, token: u64) -> PyResult<Op> {
        let (locks, owner) = (self.locks.get()?.clone(), by.map(owner).transpose()?);
        Ok(Op::new(async move {
            let forced = match owner {
                Some(owner) => locks.force_release_owner(name, &owner).await,
                None => locks.force_release_token(name, token).await,
            };
            told(forced)
        }))
    }

    /// Asks the holders to stop.
    fn request_stop(&self, name: String, reason: String) -> PyResult<Op> {
        let locks = self.locks.get()?.clone();
        Ok(Op::new(async move { told(locks.request_stop(name, &reason).await) }))
    }

    /// Waits until the holder is asked to stop: `(owner, reason)`, or `None` once the guard is released.
    fn stop_requested(&self, hold: &Hold) -> PyResult<Op> {
        hold.until_asked(Some(self.locks.get()?.clone()))
    }

    fn resume(&self, name: String, by: &str) -> PyResult<Op> {
        let (locks, owner, root) = (self.locks.get()?.clone(), owner(by)?, self.root()?);
        Ok(Op::new(async move { guarded(root, locks.resume(name, &owner).await) }))
    }

    /// Extends a detached hold: its remaining seconds, or `None`.
    fn renew_detached(&self, name: String, by: &str) -> PyResult<Op> {
        let (locks, owner) = (self.locks.get()?.clone(), owner(by)?);
        Ok(Op::new(async move { told(locks.renew_detached(name, &owner).await) }))
    }

    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        values::metrics(py, &self.locks.get()?.metrics())
    }

    fn cache(&self, name: &str) -> PyResult<Cache> {
        Ok(Cache::new(checked(self.locks.get()?.cache(name))?, self.root()?))
    }

    fn fill(&self, name: &str, wait: f64, overdue: &str, outage: &str) -> PyResult<Fill> {
        Fill::new(checked(self.locks.get()?.fill(name))?, self.root()?, wait, overdue, outage)
    }

    fn once_per(
        &self,
        name: &str,
        period: Bound<'_, PyAny>,
        open_for: Option<f64>,
        frees: &str,
        again: bool,
    ) -> PyResult<OncePer> {
        OncePer::new(self.root()?, self.locks.get()?, name, &period, open_for, frees, again)
    }

    fn election(&self, name: &str, payload: String) -> PyResult<Election> {
        Ok(Election::new(checked(self.locks.get()?.election(name, payload))?, self.root()?))
    }
}

/// A lock of any kind.
#[pyclass(frozen, module = "tenure._native")]
pub struct Lock {
    kind: Owned<AnyLock>,
    root: Owned<Arc<Root>>,
}

impl Lock {
    fn new(root: Arc<Root>, kind: AnyLock) -> Self {
        Self { kind: Owned::new(kind), root: Owned::new(root) }
    }

    fn acquire(&self, wait: Option<Duration>) -> PyResult<Op> {
        let (kind, root) = (self.kind.get()?.clone(), Arc::clone(self.root.get()?));
        Ok(Op::new(async move { guarded(root, kind.acquire(wait).await) }))
    }
}

#[pymethods]
impl Lock {
    /// Several locks, all or none.
    #[staticmethod]
    fn multi(locks: Vec<PyRef<'_, Self>>) -> PyResult<Self> {
        let parts =
            locks.iter().map(|lock| checked(lock.kind.get()?.part())).collect::<PyResult<Vec<_>>>()?;
        let multi = AnyLock::Multi(checked(Multi::new(parts))?);
        Ok(Self::new(Arc::clone(locks[0].root.get()?), multi))
    }

    /// Acquires the lock, without a limit.
    fn lock(&self) -> PyResult<Op> {
        self.acquire(None)
    }

    /// Tries once, or waits for at most `limit` seconds; `None` if the lock is busy.
    #[pyo3(signature = (limit=None))]
    fn try_lock(&self, limit: Option<f64>) -> PyResult<Op> {
        self.acquire(Some(error::seconds("timeout", limit.unwrap_or_default())?))
    }

    /// How often the owner of a reentrant mutex holds it.
    fn hold_count(&self) -> PyResult<Op> {
        let kind = self.kind.get()?.clone();
        Ok(Op::new(async move { told(kind.hold_count().await) }))
    }
}

/// The held locks of a store.
#[pyclass(frozen, module = "tenure._native")]
pub struct Locked(Owned<Arc<tokio::sync::Mutex<Listing>>>);

#[pymethods]
impl Locked {
    /// The next lock, or `None` after the last.
    fn next(&self) -> PyResult<Op> {
        let listing = Arc::clone(self.0.get()?);
        Ok(Op::new(async move { told(listing.lock().await.next().await) }))
    }
}

/// A fresh owner for a reentrant mutex.
#[pyfunction]
pub fn new_owner(label: &str) -> PyResult<String> {
    Ok(checked(Owner::new(label))?.as_str().to_owned())
}
