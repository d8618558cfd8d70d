//! Holds: the guards of all kinds of locks and uses.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pyo3::prelude::*;
use tenure::bindings::AnyGuard;
use tenure::{Guard, HoldEnd, Lost};
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use crate::error;
use crate::locks::{Root, checked};
use crate::op::{Convert, Op, told};
use crate::process::{Owned, Process, lock};
use crate::values;

/// A guard until it is consumed or dropped.
struct Kept {
    held: Option<AnyGuard>,
    /// A drop leaves the lock to its lease.
    is_left: AtomicBool,
    /// Changes of the guard come one after the other.
    changes: tokio::sync::Mutex<()>,
}

impl Kept {
    fn held(&self) -> &AnyGuard {
        self.held.as_ref().expect("only its end takes it")
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let (Some(held), true) = (self.held.take(), self.is_left.load(Ordering::Acquire)) {
            held.leave();
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

    fn held(&self) -> &AnyGuard {
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
    fn new(held: AnyGuard) -> Self {
        let (held, is_left, changes) = (Some(held), AtomicBool::new(false), tokio::sync::Mutex::default());
        Self { kept: Arc::new(Kept { held, is_left, changes }), idle: Arc::default(), ending: Arc::default() }
    }

    fn lend(&self) -> Use {
        let ended = Box::pin(Arc::clone(&self.ending).notified_owned());
        Use { kept: Some(Arc::clone(&self.kept)), idle: Arc::clone(&self.idle), ended }
    }

    /// Waits until no request uses the guard, and returns it.
    async fn into_held(self) -> AnyGuard {
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
    /// The token of each lock.
    #[pyo3(get)]
    fences: Vec<u64>,
    /// The window of a run of a job, in seconds since 1970, and how late it began.
    #[pyo3(get)]
    window: Option<(f64, f64, f64)>,
}

impl Hold {
    pub fn new(root: Arc<Root>, held: AnyGuard) -> Self {
        let fences: Vec<_> = held.guards().iter().map(Guard::fence).collect();
        let names: Vec<_> = held.guards().iter().map(|guard| guard.name().as_str()).collect();
        let name = names.join(", ");
        let (fence, owner) = match held.guards() {
            [guard] => (guard.fence(), guard.owner().to_string()),
            _ => (0, String::new()),
        };
        let window = held.window().map(|(window, late)| {
            (values::seconds(window.start), values::seconds(window.end), late.as_secs_f64())
        });
        let slot = Arc::new(Slot(Mutex::new(Some(Shared::new(held)))));
        let id = Process::current().add_hold(&slot);
        Self { slot: Owned::new(slot), _root: Owned::new(root), id, name, fence, owner, fences, window }
    }

    fn lend(&self) -> PyResult<Use> {
        lock(&self.slot.get()?.0).as_ref().map(Shared::lend).ok_or_else(error::released)
    }

    /// Waits for a request to stop, until the guard is released. A term or a run of a job needs no `locks`.
    pub fn until_asked(&self, locks: Option<tenure::Locks>) -> PyResult<Op> {
        let mut lent = self.lend()?;
        Ok(Op::new(async move {
            let asked =
                lent.until_ended(async |kept| kept.held().stop_requested(locks.as_slice()).await).await;
            told(asked.transpose())
        }))
    }

    /// Takes the guard out, to consume it. From here on a drop releases it.
    fn take(&self) -> PyResult<Shared> {
        let shared = self.slot.get()?.take().ok_or_else(error::released)?;
        shared.kept.is_left.store(false, Ordering::Release);
        Ok(shared)
    }

    /// As `take`, of a single lock.
    fn take_single(&self) -> PyResult<Shared> {
        checked(self.lend()?.held().check_single())?;
        self.take()
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
        Ok(lock(&self.slot.get()?.0)
            .as_ref()
            .map_or(0.0, |shared| shared.kept.held().lost().remaining().as_secs_f64()))
    }

    fn lost(&self) -> PyResult<Loss> {
        let lent = self.lend()?;
        Ok(Loss(Owned::new(lent.held().lost())))
    }

    /// Waits until a leader or the runner of a job is asked to stop, as `Locks.stop_requested`.
    fn stop_requested(&self) -> PyResult<Op> {
        self.until_asked(None)
    }

    fn verify(&self) -> PyResult<Op> {
        let lent = self.lend()?;
        Ok(Op::new(async move { told(lent.held().verify().await) }))
    }

    fn renew(&self) -> PyResult<Op> {
        let lent = self.lend()?;
        Ok(Op::new(async move { told(lent.held().renew().await) }))
    }

    /// Sets the end of a lease that is not renewed to this many seconds from now, or adds them to what is left.
    fn renew_for(&self, seconds: f64, adds: bool) -> PyResult<Op> {
        let (time, lent) = (error::seconds("time", seconds)?, self.lend()?);
        Ok(Op::new(async move {
            let _change = lent.kept().changes.lock().await;
            let left = if adds { lent.held().lost().remaining() } else { Duration::ZERO };
            told(lent.held().renew_for(time + left).await)
        }))
    }

    /// From here on, a drop leaves the lock to its lease instead of releasing it.
    fn leave_to_lease(&self) -> PyResult<()> {
        self.lend()?.kept().is_left.store(true, Ordering::Release);
        Ok(())
    }

    fn release(&self) -> PyResult<Op> {
        let shared = self.take()?;
        Ok(Op::new(async move { told(shared.into_held().await.release().await) }))
    }

    fn detach(&self) -> PyResult<Op> {
        let shared = self.take_single()?;
        Ok(Op::new(async move { told(shared.into_held().await.detach().await) }))
    }

    fn keep_for(&self, seconds: f64) -> PyResult<Op> {
        let (time, shared) = (error::seconds("time", seconds)?, self.take_single()?);
        Ok(Op::new(async move { told(shared.into_held().await.keep_for(time).await) }))
    }

    /// Makes a writer or an upgradeable reader a reader. After a cancellation or an error, the store may have
    /// granted readers.
    fn downgrade(&self) -> PyResult<Op> {
        let lent = self.lend()?;
        Ok(Op::new(async move {
            let _change = lent.kept().changes.lock().await;
            told(lent.held().downgrade().await)
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
                kept.held().upgrade(limit).await
            });
            match upgraded.await {
                Some(upgraded) => told(upgraded),
                None => over(),
            }
        }))
    }

    /// Changes a leader's payload.
    fn update(&self, payload: String) -> PyResult<Op> {
        let lent = self.lend()?;
        Ok(Op::new(async move {
            let _change = lent.kept().changes.lock().await;
            told(lent.held().update(payload).await)
        }))
    }

    /// Ends the run of a job that failed.
    fn fail(&self, why: String) -> PyResult<Op> {
        let shared = self.take()?;
        Ok(Op::new(async move { told(shared.into_held().await.fail(why).await) }))
    }
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
