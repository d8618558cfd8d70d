//! The store of `tenure.testing`, on its own thread.

use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::UNIX_EPOCH;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::error;
use crate::locks::{Locks, Root};
use crate::op::{Op, told};
use crate::process::{Owned, lock};

/// Ends the thread of a store when it is dropped.
struct Thread(#[expect(dead_code, reason = "its drop is the message")] oneshot::Sender<()>);

struct Testing {
    control: tenure::testing::Control,
    /// The runtime of the store's thread, whose clock and timers the store uses.
    runtime: Handle,
    _root: Arc<Root>,
}

/// Controls a store from a test.
#[pyclass(frozen, module = "tenure._native")]
pub struct Control(Owned<Testing>);

/// A store with injectable faults, whose wall clock begins `at` this time since 1970.
#[pyfunction]
pub fn testing_store(py: Python<'_>, at: Option<f64>) -> PyResult<(Locks, Control)> {
    let at = at.map(|at| error::seconds("time since 1970", at)).transpose()?;
    let (stop, stopped) = oneshot::channel();
    let (sender, opened) = mpsc::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    thread::Builder::new().name("tenure-testing".to_owned()).spawn(move || {
        runtime.block_on(async move {
            let _ = sender.send(match at {
                None => tenure::testing::store(),
                Some(at) => tenure::testing::store_at(UNIX_EPOCH + at),
            });
            let _ = stopped.await;
        });
    })?;
    let opened = Mutex::new(opened);
    let (locks, control) = py
        .detach(|| lock(&opened).recv())
        .map_err(|_| PyRuntimeError::new_err("the thread of the store ended"))?;
    let root = Root::new(locks, Some(Box::new(Mutex::new(Thread(stop)))));
    Ok((Locks::of(Arc::clone(&root)), Control(Owned::new(Testing { control, runtime: handle, _root: root }))))
}

#[pymethods]
impl Control {
    fn lose(&self, name: &str) -> PyResult<bool> {
        Ok(self.0.get()?.control.lose(name))
    }

    fn hold_elsewhere(&self, name: &str) -> PyResult<Elsewhere> {
        Ok(Elsewhere(Mutex::new(Some(Box::new(self.0.get()?.control.hold_elsewhere(name))))))
    }

    fn outage(&self) -> PyResult<Elsewhere> {
        Ok(Elsewhere(Mutex::new(Some(Box::new(self.0.get()?.control.outage())))))
    }

    fn elsewhere(&self) -> PyResult<Locks> {
        Ok(Locks::of(Root::new(self.0.get()?.control.elsewhere().clone(), None)))
    }

    fn slow(&self, seconds: f64) -> PyResult<()> {
        self.0.get()?.control.slow(error::seconds("delay", seconds)?);
        Ok(())
    }

    fn advance(&self, seconds: f64) -> PyResult<Op> {
        let Testing { control, runtime, .. } = self.0.get()?;
        let (control, runtime, by) = (control.clone(), runtime.clone(), error::seconds("time", seconds)?);
        Ok(Op::new(async move {
            // An error means that the thread, and its clock, has ended.
            let _ = runtime.spawn(async move { control.advance(by).await }).await;
            told(Ok(()))
        }))
    }

    fn suspend(&self, seconds: f64) -> PyResult<()> {
        self.0.get()?.control.suspend(error::seconds("time", seconds)?);
        Ok(())
    }

    fn requests(&self) -> PyResult<Vec<String>> {
        Ok(self.0.get()?.control.requests().iter().map(ToString::to_string).collect())
    }

    fn forget_requests(&self) -> PyResult<()> {
        self.0.get()?.control.forget_requests();
        Ok(())
    }
}

/// A hold of another process, or an outage. Lasts until `end`.
#[pyclass(frozen, module = "tenure._native")]
pub struct Elsewhere(Mutex<Option<Box<dyn Send>>>);

#[pymethods]
impl Elsewhere {
    fn end(&self) {
        let ended = lock(&self.0).take();
        drop(ended);
    }
}
