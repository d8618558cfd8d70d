//! Logins that Python provides at each dial.
//!
//! The library asks for them on the thread that renews leases, which must not wait for the GIL. So a thread of
//! its own calls the function.

use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use tenure::Credentials;

use crate::process::{Process, lock};

/// Maximum time that a dial waits for the function. A later answer is for the next dial.
const WAIT: Duration = Duration::from_millis(100);
/// How long a late answer is kept, because a login may expire.
const KEPT: Duration = Duration::from_secs(30);

/// The user, `None` for the default user, and the password.
type Login = (Option<String>, String);
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// One call of the function at a time, and its answer.
#[derive(Default)]
struct Exchange {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The function is called, or is to be called.
    is_asked: bool,
    answer: Option<(Instant, Result<Login, String>)>,
    /// No dial follows.
    is_over: bool,
}

fn ask(function: &Py<PyAny>) -> Option<Result<Login, String>> {
    Python::try_attach(|py| {
        let login = function.bind(py).call0().and_then(|login| login.extract::<Login>());
        login.map_err(|error| format!("the function for credentials failed: {error}"))
    })
}

impl Exchange {
    /// Answers the questions, on a thread of its own.
    fn answer(&self, function: &Py<PyAny>) {
        loop {
            let idle = |state: &mut State| !state.is_asked && !state.is_over;
            let Ok(state) = self.changed.wait_while(lock(&self.state), idle) else { return };
            if state.is_over || Process::current().is_closing() {
                return;
            }
            drop(state);
            let Some(login) = ask(function) else { return };
            let mut state = lock(&self.state);
            (state.is_asked, state.answer) = (false, Some((Instant::now(), login)));
            self.changed.notify_all();
        }
    }

    /// The answer to a question of this dial or, if it is recent, of an earlier one.
    fn login(&self) -> Result<Login, Failure> {
        let mut state = lock(&self.state);
        state.answer.take_if(|(at, _)| at.elapsed() > KEPT);
        if state.answer.is_none() {
            state.is_asked = true;
            self.changed.notify_all();
            let waits = |state: &mut State| state.answer.is_none();
            let waited = self.changed.wait_timeout_while(state, WAIT, waits);
            state = waited.map_err(|_| "the thread for credentials panicked")?.0;
        }
        let late = "the function for credentials has not returned yet: the next dial asks again";
        Ok(state.answer.take().ok_or(late)?.1?)
    }
}

/// Ends the thread with the provider.
struct Ends(Arc<Exchange>);

impl Drop for Ends {
    fn drop(&mut self) {
        lock(&self.0.state).is_over = true;
        self.0.changed.notify_all();
    }
}

/// The provider for the library.
pub fn provider(function: Py<PyAny>) -> PyResult<impl Fn() -> Result<Credentials, Failure> + Send + Sync> {
    let exchange = Arc::new(Exchange::default());
    let ends = Ends(Arc::clone(&exchange));
    thread::Builder::new().name("tenure-credentials".to_owned()).spawn(move || exchange.answer(&function))?;
    Ok(move || {
        let (user, password) = ends.0.login()?;
        Ok(match user {
            Some(user) => Credentials::new(user, password),
            None => Credentials::of_default_user(password),
        })
    })
}
