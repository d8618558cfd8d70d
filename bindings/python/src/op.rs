//! A call of the library: a future that Python runs, on a blocked thread or in an event loop.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use rustix::process::getpid;
use rustix::thread::gettid;
use tenure::bindings::Report;

use crate::error;
use crate::process::{Owned, Process, lock};
use crate::question::Ask;
use crate::reactor::{Reactor, Task};
use crate::values;

/// Creates the Python result, on the thread that requests it.
pub type Convert = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;
type Work = Pin<Box<dyn Future<Output = Convert> + Send>>;

/// Interval at which a blocked main thread checks for signals, which only it handles.
const SIGNALS: Duration = Duration::from_millis(25);
/// Interval of other threads, which have nothing to check.
const IDLE: Duration = Duration::from_secs(3_600);
/// Time for an abandoned request to be answered and undone, before its thread continues.
const UNDO: Duration = Duration::from_millis(10);

/// Converts a result of the library.
pub fn converted<T: Send + 'static>(
    result: tenure::Result<T>,
    into: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
) -> Convert {
    match result {
        Ok(value) => Box::new(move |py| into(py, value)),
        Err(error) => Box::new(move |_| Err(error::of(&error))),
    }
}

/// Converts a report of the library.
pub fn told<T: Into<Report> + Send + 'static>(result: tenure::Result<T>) -> Convert {
    converted(result, |py, value| values::report(py, value.into()))
}

/// Raises an exception of a Python function that the library called.
pub fn raised(error: PyErr) -> Convert {
    Box::new(move |_| Err(error))
}

/// Cancels a call from another thread.
#[derive(Default)]
pub struct Cancel {
    is_set: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Cancel {
    pub fn set(&self) {
        self.is_set.store(true, Ordering::Release);
        let waker = lock(&self.waker).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn listen(&self, context: &Context<'_>) -> bool {
        let mut waker = lock(&self.waker);
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            *waker = Some(context.waker().clone());
        }
        self.is_set.load(Ordering::Acquire)
    }
}

/// Questions of the library to Python during a call, such as to compute the value of a cache.
pub trait Exchange: Send + Sync {
    /// Whether there is a new question. True once per question.
    fn take_question(&self) -> bool;
    /// The latest question.
    fn ask(&self) -> Ask;
    /// Answers it.
    fn reply(&self, reply: PyResult<Bound<'_, PyAny>>);
}

enum State {
    Pending(Work),
    /// Being polled, perhaps on a blocked thread.
    Running,
    Done(Convert),
    /// Waits for Python to answer the exchange.
    Asked(Work),
    Over,
}

/// A call of the library: not started, in progress, or done.
#[pyclass(frozen, module = "tenure._native")]
pub struct Op {
    state: Owned<Mutex<State>>,
    cancel: Arc<Cancel>,
    exchange: Option<Arc<dyn Exchange>>,
}

/// Why a blocked thread stopped waiting.
enum Stop {
    Done(Convert),
    Asked,
    Cancelled,
    /// The interval ended: check for signals and the timeout.
    Slice,
}

impl Op {
    pub fn new(work: impl Future<Output = Convert> + Send + 'static) -> Self {
        let state = Owned::new(Mutex::new(State::Pending(Box::pin(work))));
        Self { state, cancel: Arc::default(), exchange: None }
    }

    pub fn with_exchange(self, exchange: Arc<dyn Exchange>) -> Self {
        Self { exchange: Some(exchange), ..self }
    }

    fn asks(&self) -> bool {
        self.exchange.as_ref().is_some_and(|exchange| exchange.take_question())
    }

    /// Polls the future in an event loop. Ready once the call is done, asks a question, or is cancelled.
    pub fn poll(&self, context: &mut Context<'_>) -> PyResult<Poll<()>> {
        let mut work = match self.set(State::Running)? {
            State::Pending(work) => work,
            other => {
                self.set(other)?;
                return Ok(Poll::Ready(()));
            }
        };
        let (next, poll) = match work.as_mut().poll(context) {
            Poll::Ready(convert) => (State::Done(convert), Poll::Ready(())),
            Poll::Pending if self.asks() => (State::Asked(work), Poll::Ready(())),
            Poll::Pending => (State::Pending(work), Poll::Pending),
        };
        self.set(next)?;
        Ok(poll)
    }

    fn set(&self, state: State) -> PyResult<State> {
        Ok(std::mem::replace(&mut *lock(self.state.get()?), state))
    }

    /// Waits without the GIL.
    fn wait(&self, work: &mut Work, most: Duration) -> Stop {
        let step = poll_fn(|context| {
            if self.cancel.listen(context) {
                return Poll::Ready(Stop::Cancelled);
            }
            match work.as_mut().poll(context) {
                Poll::Ready(convert) => Poll::Ready(Stop::Done(convert)),
                Poll::Pending if self.asks() => Poll::Ready(Stop::Asked),
                Poll::Pending => Poll::Pending,
            }
        });
        let runtime = Process::current().runtime();
        runtime.block_on(async { tokio::time::timeout(most, step).await }).unwrap_or(Stop::Slice)
    }

    /// Takes the future or the result of a call in an event loop, for the caller to drop. Needs no GIL.
    pub fn end(&self) -> Option<impl Send + use<>> {
        let mut state = lock(self.state.get().ok()?);
        match *state {
            State::Running => None,
            _ => Some(std::mem::replace(&mut *state, State::Over)),
        }
    }

    /// Drops the future, and runs the runtime for a moment, because there may be no other thread to read the
    /// answer to a request in flight.
    fn abandon(py: Python<'_>, work: Work) {
        py.detach(|| {
            drop(work);
            Process::current().runtime().block_on(async { tokio::time::sleep(UNDO).await });
        });
    }
}

#[pymethods]
impl Op {
    /// Blocks until there is a result or a question (`True`), or until the timeout in seconds (`False`).
    #[pyo3(signature = (timeout=None))]
    fn run(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let process = Process::current();
        if process.is_closing() {
            return Err(error::closing());
        }
        let until = match timeout {
            Some(timeout) => Instant::now().checked_add(error::seconds("timeout", timeout)?),
            None => None,
        };
        let mut work = match self.set(State::Running)? {
            State::Pending(work) => work,
            other => {
                self.set(other)?;
                return Ok(true);
            }
        };
        let _registered = process.waiting(&self.cancel);
        let mut slice = SIGNALS;
        loop {
            let left =
                until.map_or(slice, |until| slice.min(until.saturating_duration_since(Instant::now())));
            match py.detach(|| self.wait(&mut work, left)) {
                Stop::Done(convert) => {
                    self.set(State::Done(convert))?;
                    return Ok(true);
                }
                Stop::Asked => {
                    self.set(State::Asked(work))?;
                    return Ok(true);
                }
                Stop::Cancelled => {
                    self.set(State::Over)?;
                    Self::abandon(py, work);
                    return if process.is_closing() { Err(error::closing()) } else { Ok(true) };
                }
                Stop::Slice => {}
            }
            if let Err(raised) = py.check_signals() {
                self.set(State::Over)?;
                Self::abandon(py, work);
                return Err(raised);
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                self.set(State::Pending(work))?;
                return Ok(false);
            }
            slice = if gettid() == getpid() { SIGNALS } else { IDLE };
        }
    }

    /// Begins the call in an event loop. Returns its id there, and calls `sink.set_result(None)` once it is
    /// done; returns `None` if it is done already.
    fn start(slf: &Bound<'_, Self>, reactor: &Reactor, sink: Py<PyAny>) -> PyResult<Option<u64>> {
        let task: Arc<Task> = reactor.add(slf.clone().unbind(), sink)?;
        let poll = slf.get().poll(&mut Context::from_waker(&task.waker()));
        if !matches!(poll, Ok(Poll::Pending)) {
            reactor.forget(task.id())?;
        }
        Ok(poll?.is_pending().then(|| task.id()))
    }

    /// Returns the result or raises the error of the call.
    pub fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self.set(State::Over)? {
            State::Done(convert) => convert(py),
            other => {
                self.set(other)?;
                Err(error::invalid("the call has no result"))
            }
        }
    }

    /// Whether the call waits for an answer, by `reply` or `fail`.
    fn is_asking(&self) -> PyResult<bool> {
        Ok(matches!(*lock(self.state.get()?), State::Asked(_)))
    }

    /// What the call asks, and the token of the lock that protects the answer.
    fn question(&self) -> (&'static str, Option<u64>) {
        let ask = self.exchange.as_ref().map_or_else(Ask::default, |exchange| exchange.ask());
        (ask.what, ask.fence)
    }

    fn reply(&self, value: Bound<'_, PyAny>) -> PyResult<()> {
        self.answer(Ok(value))
    }

    fn fail(&self, error: Bound<'_, PyAny>) -> PyResult<()> {
        self.answer(Err(PyErr::from_value(error)))
    }

    /// Ends the call: what it acquired is released.
    pub fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        match self.set(State::Over)? {
            // The blocked thread notices this and drops the future.
            State::Running => {
                self.set(State::Running)?;
                self.cancel.set();
            }
            before => py.detach(|| drop(before)),
        }
        Ok(())
    }
}

impl Op {
    fn answer(&self, reply: PyResult<Bound<'_, PyAny>>) -> PyResult<()> {
        if let Some(exchange) = &self.exchange {
            exchange.reply(reply);
        }
        match self.set(State::Over)? {
            State::Asked(work) => self.set(State::Pending(work)).map(|_| ()),
            other => self.set(other).map(|_| ()),
        }
    }
}
