//! Holds: the guards of all kinds of locks and uses.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use pyo3::prelude::*;
use tenure::{
    DowngradeError, Error, Guard, HoldEnd, Lost, MultiGuard, Term, Turn, UpgradeError, UpgradeableGuard,
    WriteGuard,
};
use tokio::sync::Notify;

use crate::error;
use crate::locks::Root;
use crate::op::{Convert, Op, converted, done};
use crate::process::{Owned, Process, lock};
use crate::values;

/// A guard of any kind.
pub enum Held {
    Plain(Guard),
    Write(WriteGuard),
    Upgradeable(UpgradeableGuard),
    Multi(MultiGuard),
    Term(Box<Term>),
    Turn(Box<Turn>),
}

impl Held {
    /// The guard of a single lock.
    fn guard(&self) -> Option<&Guard> {
        match self {
            Self::Plain(guard) => Some(guard),
            Self::Write(guard) => Some(guard),
            Self::Upgradeable(guard) => Some(guard),
            Self::Term(term) => Some(term.guard()),
            Self::Turn(turn) => Some(turn.guard()),
            Self::Multi(_) => None,
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
            Self::Plain(guard) => guard.release().await,
            Self::Write(guard) => guard.release().await,
            Self::Upgradeable(guard) => guard.release().await,
            Self::Multi(guards) => guards.release().await,
            Self::Term(term) => term.resign().await,
            Self::Turn(turn) => turn.succeed().await,
        }
    }
}

/// A guard that concurrent requests share. A release waits for them.
struct Shared {
    held: Arc<Held>,
    idle: Arc<Notify>,
    /// Ends the calls that wait for as long as the guard lives.
    ending: Arc<Notify>,
}

/// A request's use of a guard.
struct Use {
    held: Option<Arc<Held>>,
    idle: Arc<Notify>,
}

impl Use {
    fn held(&self) -> &Held {
        self.held.as_ref().expect("it is taken only by the drop")
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        drop(self.held.take());
        self.idle.notify_one();
    }
}

impl Shared {
    fn new(held: Held) -> Self {
        Self { held: Arc::new(held), idle: Arc::default(), ending: Arc::default() }
    }

    fn lend(&self) -> Use {
        Use { held: Some(Arc::clone(&self.held)), idle: Arc::clone(&self.idle) }
    }

    /// Waits until no request uses the guard, and returns it.
    async fn into_held(self) -> Held {
        let Self { mut held, idle, ending } = self;
        ending.notify_waiters();
        loop {
            match Arc::try_unwrap(held) {
                Ok(held) => return held,
                Err(shared) => held = shared,
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

    fn put(&self, held: Held) {
        *lock(&self.0) = Some(Shared::new(held));
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
        let slot = Arc::new(Slot::default());
        slot.put(held);
        let id = Process::current().add_hold(&slot);
        Self { slot: Owned::new(slot), _root: Owned::new(root), id, name, fence, owner, parts, window }
    }

    fn lend(&self) -> PyResult<Use> {
        lock(&self.slot.get()?.0).as_ref().map(Shared::lend).ok_or_else(error::released)
    }

    /// Waits for a request to stop, until the guard is released. A term or a run of a job needs no `locks`.
    pub fn until_asked(&self, locks: Option<tenure::Locks>) -> PyResult<Op> {
        let (lent, ended) = {
            let slot = lock(&self.slot.get()?.0);
            let shared = slot.as_ref().ok_or_else(error::released)?;
            (shared.lend(), Arc::clone(&shared.ending).notified_owned())
        };
        Ok(Op::new(async move {
            let asked = async {
                match (lent.held(), &locks) {
                    (Held::Term(term), None) => term.stop_requested().await.map(Some),
                    (Held::Turn(turn), None) => turn.stop_requested().await.map(Some),
                    (held, Some(locks)) => match held.guard() {
                        Some(guard) => locks.stop_requested(guard).await.map(Some),
                        None => Ok(None),
                    },
                    _ => Ok(None),
                }
            };
            let (mut asked, mut ended) = (pin!(asked), pin!(ended));
            let request = poll_fn(|context| match ended.as_mut().poll(context) {
                Poll::Ready(()) => Poll::Ready(Ok(None)),
                Poll::Pending => asked.as_mut().poll(context),
            });
            converted(request.await, |py, request| values::optional(py, request, values::stop_request))
        }))
    }

    /// Takes the guard out, to consume it.
    fn take(&self) -> PyResult<Shared> {
        self.slot.get()?.take().ok_or_else(error::released)
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

/// Puts back the guard of a failed change.
fn put_back(slot: &Slot, held: Held, error: &Error) -> Convert {
    slot.put(held);
    let error = error::of(error);
    Box::new(move |_| Err(error))
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
        Ok(lock(&self.slot.get()?.0).as_ref().map_or(0.0, |shared| shared.held.remaining()))
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
        Ok(Op::new(async move {
            done(match lent.held().guard() {
                Some(guard) => guard.renew().await,
                None => Ok(()),
            })
        }))
    }

    fn release(&self) -> PyResult<Op> {
        let shared = self.take()?;
        Ok(Op::new(async move { done(shared.into_held().await.release().await) }))
    }

    fn detach(&self) -> PyResult<Op> {
        let shared = self.take()?;
        Ok(Op::new(async move {
            let owner = match shared.into_held().await {
                Held::Plain(guard) => guard.detach().await,
                Held::Write(guard) => guard.detach().await,
                Held::Upgradeable(guard) => guard.detach().await,
                _ => return misused("only a single lock can be detached; the locks are released"),
            };
            converted(owner, |py, owner| Ok(owner.as_str().into_pyobject(py)?.into_any().unbind()))
        }))
    }

    fn keep_for(&self, seconds: f64) -> PyResult<Op> {
        let time = error::seconds("time", seconds)?;
        let shared = self.take()?;
        Ok(Op::new(async move {
            let guard = match shared.into_held().await {
                Held::Plain(guard) => guard,
                Held::Write(guard) => guard.into(),
                Held::Upgradeable(guard) => guard.into(),
                _ => return misused("only a single lock can be kept; the locks are released"),
            };
            done(guard.keep_for(time).await)
        }))
    }

    /// Makes a writer or an upgradeable reader a reader.
    fn downgrade(&self) -> PyResult<Op> {
        let slot = Arc::clone(self.slot.get()?);
        let shared = self.take()?;
        Ok(Op::new(async move {
            let reader = match shared.into_held().await {
                Held::Write(guard) => match guard.downgrade().await {
                    Ok(reader) => reader,
                    Err(DowngradeError { error, guard, .. }) => {
                        return put_back(&slot, Held::Write(guard), &error);
                    }
                },
                Held::Upgradeable(guard) => match guard.downgrade().await {
                    Ok(reader) => reader,
                    Err(UpgradeError { error, guard, .. }) => {
                        return put_back(&slot, Held::Upgradeable(guard), &error);
                    }
                },
                other => {
                    slot.put(other);
                    return misused("only a writer or an upgradeable reader can be downgraded");
                }
            };
            slot.put(Held::Plain(reader.into()));
            done(Ok(()))
        }))
    }

    /// Makes an upgradeable reader the writer; `False` after `limit` seconds.
    #[pyo3(signature = (limit=None))]
    fn upgrade(&self, limit: Option<f64>) -> PyResult<Op> {
        let limit = limit.map(|limit| error::seconds("timeout", limit)).transpose()?;
        let slot = Arc::clone(self.slot.get()?);
        let shared = self.take()?;
        Ok(Op::new(async move {
            let guard = match shared.into_held().await {
                Held::Upgradeable(guard) => guard,
                other => {
                    slot.put(other);
                    return misused("only an upgradeable reader can be upgraded");
                }
            };
            let upgraded = match limit {
                Some(limit) => guard.try_upgrade_for(limit).await,
                None => guard.upgrade().await.map(Ok),
            };
            let is_writer = match upgraded {
                Ok(Ok(writer)) => {
                    slot.put(Held::Write(writer));
                    true
                }
                Ok(Err(reader)) => {
                    slot.put(Held::Upgradeable(reader));
                    false
                }
                Err(UpgradeError { error, guard, .. }) => {
                    return put_back(&slot, Held::Upgradeable(guard), &error);
                }
            };
            converted(Ok(is_writer), |py, is_writer| {
                Ok(is_writer.into_pyobject(py)?.to_owned().into_any().unbind())
            })
        }))
    }

    /// Changes a leader's payload.
    fn update(&self, payload: String) -> PyResult<Op> {
        let slot = Arc::clone(self.slot.get()?);
        let shared = self.take()?;
        Ok(Op::new(async move {
            match shared.into_held().await {
                Held::Term(mut term) => {
                    let updated = term.update(payload).await;
                    slot.put(Held::Term(term));
                    done(updated)
                }
                other => {
                    slot.put(other);
                    misused("only a leader has a payload")
                }
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
