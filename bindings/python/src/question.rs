//! A question of the library to Python during a call.

use std::future::poll_fn;
use std::sync::Mutex;
use std::task::{Poll, Waker};

use pyo3::prelude::*;

use crate::op::Exchange;
use crate::process::lock;

/// What Python is to do.
#[derive(Clone, Copy, Default)]
pub struct Ask {
    pub what: &'static str,
    /// The token of the lock that protects a computation.
    pub fence: Option<u64>,
}

/// One question at a time, whose answer is a `T`.
pub struct Question<T>(Mutex<State<T>>);

struct State<T> {
    /// Not yet taken.
    is_open: bool,
    ask: Ask,
    reply: Option<PyResult<T>>,
    waker: Option<Waker>,
}

impl<T> Default for Question<T> {
    fn default() -> Self {
        Self(Mutex::new(State { is_open: false, ask: Ask::default(), reply: None, waker: None }))
    }
}

impl<T> Question<T> {
    pub async fn ask(&self, ask: Ask) -> PyResult<T> {
        {
            let mut state = lock(&self.0);
            (state.is_open, state.ask) = (true, ask);
        }
        let reply = poll_fn(|context| {
            let mut state = lock(&self.0);
            match state.reply.take() {
                Some(reply) => Poll::Ready(reply),
                None => {
                    state.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        });
        reply.await
    }
}

impl<T: for<'a, 'py> FromPyObject<'a, 'py, Error: Into<PyErr>> + Send> Exchange for Question<T> {
    fn take_question(&self) -> bool {
        std::mem::take(&mut lock(&self.0).is_open)
    }

    fn ask(&self) -> Ask {
        lock(&self.0).ask
    }

    fn reply(&self, reply: PyResult<Bound<'_, PyAny>>) {
        let reply = reply.and_then(|reply| reply.extract::<T>().map_err(Into::into));
        let mut state = lock(&self.0);
        state.reply = Some(reply);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
