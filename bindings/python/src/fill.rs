//! Caches of the program's own, which one caller fills.

use std::sync::Arc;

use pyo3::prelude::*;
use tenure::bindings;

use crate::error;
use crate::locks::{Root, checked};
use crate::op::{Op, converted};
use crate::process::Owned;
use crate::question::{Ask, Question};

/// Lets one caller fill a cache of the program's own.
#[pyclass(frozen, module = "tenure._native")]
pub struct Fill {
    fill: Owned<tenure::Fill>,
    _root: Owned<Arc<Root>>,
}

impl Fill {
    pub fn new(
        fill: tenure::Fill,
        root: Arc<Root>,
        wait: f64,
        overdue: &str,
        outage: &str,
    ) -> PyResult<Self> {
        let fill = fill.wait(error::seconds("wait", wait)?).overdue(checked(bindings::overdue(overdue))?);
        let fill = fill.outage(checked(bindings::outage(outage))?);
        Ok(Self { fill: Owned::new(fill), _root: Owned::new(root) })
    }
}

/// `None` for a value that the cache does not have.
fn found(value: Py<PyAny>) -> Option<Py<PyAny>> {
    let is_none = Python::attach(|py| value.is_none(py));
    (!is_none).then_some(value)
}

#[pymethods]
impl Fill {
    /// Asks for `("get", None)` and, if that is `None`, perhaps for `("compute", token)`. The token is `None`
    /// without the lock.
    fn run(&self) -> PyResult<Op> {
        let (fill, question) = (self.fill.get()?.clone(), Arc::new(Question::<Py<PyAny>>::default()));
        let asked = Arc::clone(&question);
        let op = Op::new(async move {
            let get = || async { question.ask(Ask { what: "get", fence: None }).await.map(found) };
            let compute = async |guard: Option<&tenure::Guard>| {
                question.ask(Ask { what: "compute", fence: guard.map(tenure::Guard::fence) }).await
            };
            let filled = fill.run(get, compute).await;
            converted(filled, |_, value| value)
        });
        Ok(op.with_exchange(asked))
    }
}
