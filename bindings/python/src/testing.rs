//! The store of `tenure.testing`, on a thread of its own.

use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tokio::sync::oneshot;

use crate::error;
use crate::locks::{Locks, Root};
use crate::op::{Op, done};
use crate::process::{Owned, lock};

/// Ends the thread of a store when it is dropped.
struct Thread(#[expect(dead_code, reason = "its drop is the message")] oneshot::Sender<()>);

/// What a test does to a store.
#[pyclass(frozen, module = "tenure._native")]
pub struct Control(Owned<(tenure::testing::Control, Arc<Root>)>);

/// A store with injectable faults.
#[pyfunction]
pub fn testing_store(py: Python<'_>) -> PyResult<(Locks, Control)> {
    let (stop, stopped) = oneshot::channel();
    let (sender, opened) = mpsc::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("tenure-testing".to_owned()).spawn(move || {
        runtime.block_on(async move {
            let _ = sender.send(tenure::testing::store());
            let _ = stopped.await;
        });
    })?;
    let opened = Mutex::new(opened);
    let (locks, control) = py
        .detach(|| lock(&opened).recv())
        .map_err(|_| PyRuntimeError::new_err("the thread of the store ended"))?;
    let root = Root::new(locks, Some(Box::new(Mutex::new(Thread(stop)))));
    Ok((Locks::of(Arc::clone(&root)), Control(Owned::new((control, root)))))
}

#[pymethods]
impl Control {
    fn lose(&self, name: &str) -> PyResult<bool> {
        Ok(self.0.get()?.0.lose(name))
    }

    fn hold_elsewhere(&self, name: &str) -> PyResult<Elsewhere> {
        Ok(Elsewhere(Mutex::new(Some(Box::new(self.0.get()?.0.hold_elsewhere(name))))))
    }

    fn outage(&self) -> PyResult<Elsewhere> {
        Ok(Elsewhere(Mutex::new(Some(Box::new(self.0.get()?.0.outage())))))
    }

    fn elsewhere(&self) -> PyResult<Locks> {
        Ok(Locks::of(Root::new(self.0.get()?.0.elsewhere().clone(), None)))
    }

    fn slow(&self, seconds: f64) -> PyResult<()> {
        self.0.get()?.0.slow(error::seconds("delay", seconds)?);
        Ok(())
    }

    fn advance(&self, seconds: f64) -> PyResult<Op> {
        let (control, by) = (self.0.get()?.0.clone(), error::seconds("time", seconds)?);
        Ok(Op::new(async move {
            control.advance(by).await;
            done(Ok(()))
        }))
    }

    fn suspend(&self, seconds: f64) -> PyResult<()> {
        self.0.get()?.0.suspend(error::seconds("time", seconds)?);
        Ok(())
    }

    fn requests(&self) -> PyResult<Vec<String>> {
        Ok(self.0.get()?.0.requests().iter().map(ToString::to_string).collect())
    }

    fn forget_requests(&self) -> PyResult<()> {
        self.0.get()?.0.forget_requests();
        Ok(())
    }
}

/// A hold of another process, or an outage, until it is ended.
#[pyclass(frozen, module = "tenure._native")]
pub struct Elsewhere(Mutex<Option<Box<dyn Send>>>);

#[pymethods]
impl Elsewhere {
    fn end(&self) {
        let ended = lock(&self.0).take();
        drop(ended);
    }
}
