//! Holds: the guards of all kinds of locks and uses.

use std::future::{pending, poll_fn};
use std::pin::{Pin, pin};
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use pyo3::prelude::*;
use tenure::{
    Guard, HoldEnd, Lost, MultiGuard, StopRequest, Term, Turn, UpgradeableGuard, WriteGuard, bindings,
};
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use crate::error;
use crate::locks::Root;
use crate::op::{Convert, Op, converted, done};
use crate::process::{Owned, Process, lock};
use crate::values;

/// A guard of any kind.
pub enum Held {
    Single(Guard, Mutex<Side>),
    Multi(MultiGuard),
    Term(Box<Term>),
    Turn(Box<Turn>),
}

/// What a guard of a read-write lock may become.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Also of other locks.
    Reader,
    Upgradeable,
    Writer,
}

impl Held {
    pub fn plain(guard: impl Into<Guard>) -> Self {
        Self::Single(guard.into(), Mutex::new(Side::Reader))
    }

    pub fn upgradeable(guard: UpgradeableGuard) -> Self {
        Self::Single(guard.into(), Mutex::new(Side::Upgradeable))
    }

    pub fn writer(guard: WriteGuard) -> Self {
        Self::Single(guard.into(), Mutex::new(Side::Writer))
    }

    /// The guards of its locks.
    fn guards(&self) -> &[Guard] {
        match self {
            Self::Single(guard, _) => slice::from_ref(guard),
            Self::Multi(guards) => guards,
            Self::Term(term) => slice::from_ref(term.guard()),
            Self::Turn(turn) => slice::from_ref(turn.guard()),
        }
    }

    /// The guard of a single lock.
    fn guard(&self) -> Option<&Guard> {
        match self {
            Self::Multi(_) => None,
            held => held.guards().first(),
        }
    }

    fn lost(&self) -> Lost {
        match self {
            Self::Multi(guards) => guards.lost(),
            Self::Term(term) => term.lost(),
            held => held.guard().expect("only a multi-lock has several guards").lost(),
        }
    }

    fn remaining(&self) -> f64 {
        let remaining = match self {
            Self::Multi(guards) => guards.remaining(),
            held => held.guard().expect("only a multi-lock has several guards").remaining(),
        };
        remaining.as_secs_f64()
    }

    async fn verify(&self) -> tenure::Result<()> {
        match self {
            Self::Multi(guards) => guards.verify().await,
            held => held.guard().expect("only a multi-lock has several guards").verify().await,
        }
    }

    async fn release(self) -> tenure::Result<()> {
        match self {
            Self::Single(guard, _) => guard.release().await,
            Self::Multi(guards) => guards.release().await,
            Self::Term(term) => term.resign().await,
            Self::Turn(turn) => turn.succeed().await,
        }
    }

    /// Waits for a request to stop: to the leader, to the runner of a job, or to the holder of any of the locks.
    async fn stop_requested(&self, locks: Option<&tenure::Locks>) -> tenure::Result<StopRequest> {
        match (self, locks) {
            (Self::Term(term), None) => term.stop_requested().await,
            (Self::Turn(turn), None) => turn.stop_requested().await,
            (held, Some(locks)) => first(held.guards().iter().map(|guard| locks.stop_requested(guard))).await,
            _ => pending().await,
        }
    }
}

/// Waits for all of these, and returns the first error.
async fn all(parts: impl Iterator<Item = impl Future<Output = tenure::Result<()>>>) -> tenure::Result<()> {
    let (mut parts, mut result): (Vec<_>, _) = (parts.map(Box::pin).collect(), Ok(()));
    poll_fn(|context| {
        parts.retain_mut(|part| match part.as_mut().poll(context) {
            Poll::Ready(done) => {
                let before = std::mem::replace(&mut result, Ok(()));
                result = before.and(done);
                false
            }
            Poll::Pending => true,
        });
        if parts.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    result
}

/// Waits for the first of these.
async fn first<T>(parts: impl Iterator<Item = impl Future<Output = T>>) -> T {
    let mut parts: Vec<_> = parts.map(Box::pin).collect();
    poll_fn(|context| {
        let ready = parts.iter_mut().find_map(|part| match part.as_mut().poll(context) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        });
        ready.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

/// A guard until it is consumed or dropped.
struct Kept {
    held: Option<Held>,
    /// A drop leaves the lock to its lease.
    is_left: AtomicBool,
    /// Changes of the guard come one after the other.
    changes: tokio::sync::Mutex<()>,
}

impl Kept {
    fn held(&self) -> &Held {
        self.held.as_ref().expect("only its end takes it")
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let (Some(Held::Single(guard, _)), true) = (self.held.take(), self.is_left.load(Ordering::Acquire))
        {
            bindings::leave(guard);
        }
    }
}

/// A guard that concurrent requests share. A release waits for them.
struct Shared {
    kept: Arc<Kept>,
    idle: Arc<Notify>,
    /// Ends the calls that wait for as long as the guard lives.
    ending: Arc<Notify>,
}

/// A request's use of a guard.
struct Use {
    kept: Option<Arc<Kept>>,
    idle: Arc<Notify>,
    /// The end of the guard.
    ended: Pin<Box<OwnedNotified>>,
}

impl Use {
    fn kept(&self) -> &Kept {
        self.kept.as_ref().expect("it is taken only by the drop")
    }

    fn held(&self) -> &Held {
        self.kept().held()
    }

    /// Runs a call until the guard is consumed or dropped; `None` by then.
    async fn until_ended<T>(&mut self, call: impl AsyncFnOnce(&Kept) -> T) -> Option<T> {
        let kept = self.kept.as_ref().expect("it is taken only by the drop");
        let (mut call, ended) = (pin!(call(kept)), &mut self.ended);
        poll_fn(|context| match ended.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => call.as_mut().poll(context).map(Some),
        })
        .await
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        drop(self.kept.take());
        self.idle.notify_one();
    }
}

impl Shared {
    fn new(held: Held) -> Self {
        let (held, is_left, changes) = (Some(held), AtomicBool::new(false), tokio::sync::Mutex::default());
        Self { kept: Arc::new(Kept { held, is_left, changes }), idle: Arc::default(), ending: Arc::default() }
    }

    fn lend(&self) -> Use {
        let ended = Box::pin(Arc::clone(&self.ending).notified_owned());
        Use { kept: Some(Arc::clone(&self.kept)), idle: Arc::clone(&self.idle), ended }
    }

    /// Waits until no request uses the guard, and returns it.
    async fn into_held(self) -> Held {
        let Self { mut kept, idle, ending } = self;
        ending.notify_waiters();
        loop {
            match Arc::try_unwrap(kept) {
                Ok(mut kept) => return kept.held.take().expect("only its end takes it"),
                Err(shared) => kept = shared,
            }
            idle.notified().await;
        }
    }
}

/// Holds the guard until it is released.
#[derive(Default)]
pub struct Slot(Mutex<Option<Shared>>);

impl Slot {
    fn take(&self) -> Option<Shared> {
        lock(&self.0).take()
    }

    /// Drops the guard, which releases it in the background.
    pub fn clear(&self) {
        if let Some(shared) = self.take() {
            shared.ending.notify_waiters();
        }
    }
}

/// A held lock of any kind, a term, or a run of a job.
#[pyclass(frozen, module = "tenure._native")]
pub struct Hold {
    slot: Owned<Arc<Slot>>,
    _root: Owned<Arc<Root>>,
    id: u64,
    #[pyo3(get)]
    name: String,
    #[pyo3(get)]
    fence: u64,
    #[pyo3(get)]
    owner: String,
    /// The names and tokens of a multi-lock.
    #[pyo3(get)]
    parts: Vec<(String, u64)>,
    /// The window of a run of a job, in seconds since 1970.
    #[pyo3(get)]
    window: Option<(f64, f64)>,
}

impl Hold {
    pub fn new(root: Arc<Root>, held: Held) -> Self {
        let (name, fence, owner, parts) = match (&held, held.guard()) {
            (_, Some(guard)) => {
                (guard.name().to_string(), guard.fence(), guard.owner().to_string(), Vec::new())
            }
            (Held::Multi(guards), _) => {
                let parts = guards.iter().map(|guard| (guard.name().to_string(), guard.fence()));
                (String::new(), 0, String::new(), parts.collect())
            }
            _ => unreachable!("only a multi-lock has several guards"),
        };
        let window = match &held {
            Held::Turn(turn) => {
                let window = turn.window();
                Some((values::seconds(window.start), values::seconds(window.end)))
            }
            _ => None,
        };
        let slot = Arc::new(Slot(Mutex::new(Some(Shared::new(held)))));
        let id = Process::current().add_hold(&slot);
        Self { slot: Owned::new(slot), _root: Owned::new(root), id, name, fence, owner, parts, window }
    }

    fn lend(&self) -> PyResult<Use> {
        lock(&self.slot.get()?.0).as_ref().map(Shared::lend).ok_or_else(error::released)
    }

    /// Waits for a request to stop, until the guard is released. A term or a run of a job needs no `locks`.
    pub fn until_asked(&self, locks: Option<tenure::Locks>) -> PyResult<Op> {
        let mut lent = self.lend()?;
        Ok(Op::new(async move {
            let asked = lent.until_ended(async |kept| kept.held().stop_requested(locks.as_ref()).await).await;
            converted(asked.transpose(), |py, request| values::optional(py, request, values::stop_request))
        }))
    }

    /// Takes the guard out, to consume it. From here on a drop releases it.
    fn take(&self) -> PyResult<Shared> {
        let shared = self.slot.get()?.take().ok_or_else(error::released)?;
        shared.kept.is_left.store(false, Ordering::Release);
        Ok(shared)
    }

    /// The end of the hold, if it is known: released, or lost with an error.
    fn end(lost: &Lost) -> Option<HoldEnd> {
        let mut context = Context::from_waker(Waker::noop());
        match pin!(lost.clone()).poll(&mut context) {
            Poll::Ready(end) => Some(end),
            Poll::Pending => None,
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.slot.is_foreign() {
            Process::current().remove_hold(self.id);
        }
    }
}

#[pymethods]
impl Hold {
    /// Whether the hold was carried over a fork.
    fn is_foreign(&self) -> bool {
        self.slot.is_foreign()
    }

    fn is_released(&self) -> PyResult<bool> {
        Ok(lock(&self.slot.get()?.0).is_none())
    }

    /// Drops the guard, which releases it in the background: for one that no block of the program came to hold.
    pub fn give_back(&self, py: Python<'_>) -> PyResult<()> {
        let slot = self.slot.get()?;
        py.detach(|| slot.clear());
        Ok(())
    }

    fn remaining(&self) -> PyResult<f64> {
        Ok(lock(&self.slot.get()?.0).as_ref().map_or(0.0, |shared| shared.kept.held().remaining()))
    }

    fn lost(&self) -> PyResult<Loss> {
        let lent = self.lend()?;
        Ok(Loss(Owned::new(lent.held().lost())))
    }

    /// How many seconds after the start of its window the run of a job began.
    fn late_by(&self) -> PyResult<f64> {
        let lent = self.lend()?;
        Ok(match lent.held() {
            Held::Turn(turn) => turn.late_by().as_secs_f64(),
            _ => 0.0,
        })
    }

    /// Waits until a leader or the runner of a job is asked to stop, as `Locks.stop_requested`.
    fn stop_requested(&self) -> PyResult<Op> {
        self.until_asked(None)
    }

    fn verify(&self) -> PyResult<Op> {
        let lent = self.lend()?;
        Ok(Op::new(async move { done(lent.held().verify().await) }))
    }

    fn renew(&self) -> PyResult<Op> {
        let lent = self.lend()?;
        Ok(Op::new(async move { done(all(lent.held().guards().iter().map(Guard::renew)).await) }))
    }

    /// Sets the end of a lease that is not renewed to this many seconds from now.
    fn renew_for(&self, seconds: f64) -> PyResult<Op> {
        let (time, lent) = (error::seconds("time", seconds)?, self.lend()?);
        Ok(Op::new(async move {
            done(all(lent.held().guards().iter().map(|guard| bindings::renew_for(guard, time))).await)
        }))
    }

    /// From here on, a drop leaves the lock to its lease instead of releasing it.
    fn leave_to_lease(&self) -> PyResult<()> {
        self.lend()?.kept().is_left.store(true, Ordering::Release);
        Ok(())
    }

    fn release(&self) -> PyResult<Op> {
        let shared = self.take()?;
        Ok(Op::new(async move { done(shared.into_held().await.release().await) }))
    }

    fn detach(&self) -> PyResult<Op> {
        let shared = self.take()?;
        Ok(Op::new(async move {
            let Held::Single(guard, _) = shared.into_held().await else {
                return misused("only a single lock can be detached; the locks are released");
            };
            converted(guard.detach().await, |py, owner| {
                Ok(owner.as_str().into_pyobject(py)?.into_any().unbind())
            })
        }))
    }

    fn keep_for(&self, seconds: f64) -> PyResult<Op> {
        let time = error::seconds("time", seconds)?;
        let shared = self.take()?;
        Ok(Op::new(async move {
            let Held::Single(guard, _) = shared.into_held().await else {
                return misused("only a single lock can be kept; the locks are released");
            };
            done(guard.keep_for(time).await)
        }))
    }

    /// Makes a writer or an upgradeable reader a reader. After a cancellation or an error, the store may have
    /// granted readers.
    fn downgrade(&self) -> PyResult<Op> {
        let lent = self.lend()?;
        Ok(Op::new(async move {
            let _change = lent.kept().changes.lock().await;
            match lent.held() {
                Held::Single(guard, side) if *lock(side) != Side::Reader => {
                    let downgraded = bindings::downgrade(guard).await;
                    if downgraded.is_ok() {
                        *lock(side) = Side::Reader;
                    }
                    done(downgraded)
                }
                _ => misused("only a writer or an upgradeable reader can be downgraded"),
            }
        }))
    }

    /// Makes an upgradeable reader the writer; `False` after `limit` seconds. After a cancellation or an error it
    /// is a reader, but the store may still keep other readers out.
    #[pyo3(signature = (limit=None))]
    fn upgrade(&self, limit: Option<f64>) -> PyResult<Op> {
        let limit = limit.map(|limit| error::seconds("timeout", limit)).transpose()?;
        let mut lent = self.lend()?;
        Ok(Op::new(async move {
            let upgraded = lent.until_ended(async |kept| {
                let _change = kept.changes.lock().await;
                let (guard, side) = match kept.held() {
                    Held::Single(guard, side) if *lock(side) == Side::Upgradeable => (guard, side),
                    _ => return None,
                };
                let upgraded = bindings::upgrade(guard, limit).await;
                if matches!(upgraded, Ok(true)) {
                    *lock(side) = Side::Writer;
                }
                Some(upgraded)
            });
            match upgraded.await {
                Some(Some(upgraded)) => converted(upgraded, |py, is_writer| {
                    Ok(is_writer.into_pyobject(py)?.to_owned().into_any().unbind())
                }),
                Some(None) => misused("only an upgradeable reader can be upgraded"),
                None => over(),
            }
        }))
    }

    /// Changes a leader's payload.
    fn update(&self, payload: String) -> PyResult<Op> {
        let lent = self.lend()?;
        Ok(Op::new(async move {
            let _change = lent.kept().changes.lock().await;
            match lent.held() {
                Held::Term(term) => done(bindings::update(term, payload).await),
                _ => misused("only a leader has a payload"),
            }
        }))
    }

    /// Ends the run of a job that failed.
    fn fail(&self, why: String) -> PyResult<Op> {
        let shared = self.take()?;
        Ok(Op::new(async move {
            match shared.into_held().await {
                Held::Turn(turn) => done(turn.fail(why).await),
                other => done(other.release().await),
            }
        }))
    }
}

fn misused(message: &'static str) -> Convert {
    Box::new(move |_| Err(error::invalid(message)))
}

/// The error of a call whose guard was released meanwhile.
fn over() -> Convert {
    Box::new(|_| Err(error::released()))
}

/// The end of a hold.
#[pyclass(frozen, module = "tenure._native")]
pub struct Loss(Owned<Lost>);

/// `None` for a release, the error of a loss.
fn ended(end: HoldEnd) -> Convert {
    Box::new(move |py| {
        Ok(match end.into_error() {
            Some(error) => error::of(&error).into_value(py).into_any(),
            None => py.None(),
        })
    })
}

#[pymethods]
impl Loss {
    /// `None` while the lock is held, `False` after its release, and the error of a loss.
    fn peek(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let Some(end) = Hold::end(self.0.get()?) else { return Ok(py.None()) };
        let end = ended(end)(py)?;
        Ok(if end.is_none(py) { false.into_pyobject(py)?.to_owned().into_any().unbind() } else { end })
    }

    /// Waits for the end: `None` for a release, the error of a loss.
    fn wait(&self) -> PyResult<Op> {
        let lost = self.0.get()?.clone();
        Ok(Op::new(async move { ended(lost.await) }))
    }
}
