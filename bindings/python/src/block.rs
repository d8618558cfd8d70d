//! `with` blocks. A signal handler may raise between any two steps of Python code, so the steps in which nothing
//! of the program holds a guard yet, or still, are here.

use std::sync::Mutex;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};

use crate::error;
use crate::guard::Hold;
use crate::op::Op;
use crate::process::lock;

/// Waits for a call by `block(op)`, and makes the guard of its hold by `make(hold)`: `None` for a busy lock.
#[pyfunction]
pub fn granted<'py>(
    op: &Bound<'py, Op>,
    block: &Bound<'py, PyAny>,
    make: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = op.py();
    let cancelled = |raised| {
        // At once, because a traceback may keep the call, with what it acquired.
        let _ = op.get().cancel(py);
        raised
    };
    block.call1((op,)).map_err(cancelled)?;
    let hold = op.get().result(py)?.into_bound(py);
    if hold.is_none() {
        return Ok(None);
    }
    make.call1((&hold,)).map(Some).inspect_err(|_| give_back(&hold))
}

fn give_back(hold: &Bound<'_, PyAny>) {
    if let Ok(hold) = hold.cast::<Hold>() {
        // An error means that the hold belongs to the parent process.
        let _ = hold.get().give_back(hold.py());
    }
}

struct Block {
    /// Its frame.
    frame: usize,
    /// The task, greenlet or thread that entered it.
    who: Py<PyAny>,
    guard: Py<PyAny>,
}

/// The base class of locks: the blocks that hold the lock. They may end in another thread or task.
#[pyclass(subclass, frozen, module = "tenure._native")]
pub struct Blocks(Mutex<Vec<Block>>);

/// The frame that called into the extension.
fn frame(py: Python<'_>) -> PyResult<usize> {
    static FRAME: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let frame = FRAME.get_or_try_init(py, || py.import("sys")?.getattr("_getframe").map(Bound::unbind))?;
    Ok(frame.bind(py).call0()?.as_ptr() as usize)
}

/// Threads are numbers; tasks and greenlets are objects.
fn is_same(one: &Bound<'_, PyAny>, other: &Bound<'_, PyAny>) -> bool {
    let number = |who: &Bound<'_, PyAny>| who.extract::<u64>().ok();
    one.is(other) || number(one).is_some_and(|one| number(other) == Some(one))
}

/// `tenure._wait.current()`.
fn current(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    static CURRENT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let current =
        CURRENT.get_or_try_init(py, || py.import("tenure._wait")?.getattr("current").map(Bound::unbind))?;
    current.bind(py).call0()
}

#[pymethods]
impl Blocks {
    #[new]
    #[pyo3(signature = (*_args, **_options))]
    fn new(_args: &Bound<'_, PyTuple>, _options: Option<&Bound<'_, PyDict>>) -> Self {
        Self(Mutex::default())
    }

    fn __enter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let (frame, who) = (frame(py)?, current(py)?.unbind());
        let guard = slf.call_method0(intern!(py, "_acquire"))?;
        lock(&slf.get().0).push(Block { frame, who, guard: guard.clone().unbind() });
        Ok(guard)
    }

    #[pyo3(signature = (*error))]
    fn __exit__(slf: &Bound<'_, Self>, error: &Bound<'_, PyTuple>) -> PyResult<()> {
        let py = slf.py();
        let guard = slf.get().leave(py, frame(py)?)?.into_bound(py);
        let left = guard.call_method1(intern!(py, "__exit__"), error);
        if let (Err(_), Ok(hold)) = (&left, guard.getattr(intern!(py, "_hold"))) {
            give_back(&hold);
        }
        left.map(drop)
    }

    /// Begins a block of this frame.
    #[pyo3(name = "_enter")]
    fn enter(&self, frame: usize, guard: Bound<'_, PyAny>) -> PyResult<()> {
        let who = current(guard.py())?.unbind();
        lock(&self.0).push(Block { frame, who, guard: guard.unbind() });
        Ok(())
    }

    /// Ends the block of this frame, and returns its guard. For an `ExitStack`, whose frames differ, it is the
    /// block that the caller entered last, or else anybody.
    #[pyo3(name = "_leave")]
    fn leave(&self, py: Python<'_>, frame: usize) -> PyResult<Py<PyAny>> {
        let known = lock(&self.0).iter().any(|block| block.frame == frame);
        let who = if known { None } else { current(py).ok() };
        let mut blocks = lock(&self.0);
        let of_frame = blocks.iter().rposition(|block| block.frame == frame);
        let of_who = |block: &Block| who.as_ref().is_some_and(|who| is_same(block.who.bind(py), who));
        let last = blocks.len().checked_sub(1);
        let found = of_frame.or_else(|| blocks.iter().rposition(of_who)).or(last);
        let Some(found) = found else { return Err(error::released()) };
        let block = blocks.remove(found);
        drop(blocks);
        Ok(block.guard)
    }
}
