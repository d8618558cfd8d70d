//! Logins that Python provides at each dial.
//!
//! The library asks for them on the thread that renews leases, which must not wait for the GIL. So a thread of
//! its own calls the function.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;
use tenure::Credentials;

use crate::process::{Process, lock};

/// Maximum time that a dial waits for the function. A later answer is for the next dial.
const WAIT: Duration = Duration::from_millis(100);

/// The user, `None` for the default user, and the password.
type Login = (Option<String>, String);
type Failure = Box<dyn std::error::Error + Send + Sync>;

fn ask(function: &Py<PyAny>) -> Option<Result<Login, String>> {
    Python::try_attach(|py| {
        let login = function.bind(py).call0().and_then(|login| login.extract::<Login>());
        login.map_err(|error| format!("the function for credentials failed: {error}"))
    })
}

fn answer(function: &Py<PyAny>, questions: &Receiver<()>, answers: &Sender<Result<Login, String>>) {
    for () in questions {
        if Process::current().is_closing() {
            return;
        }
        let Some(login) = ask(function) else { return };
        if answers.send(login).is_err() {
            return;
        }
    }
}

/// The provider for the library.
pub fn provider(function: Py<PyAny>) -> PyResult<impl Fn() -> Result<Credentials, Failure> + Send + Sync> {
    let ((question, questions), (answers, replies)) = (channel(), channel());
    thread::Builder::new()
        .name("tenure-credentials".to_owned())
        .spawn(move || answer(&function, &questions, &answers))?;
    let ends = Arc::new(Mutex::new((question, replies)));
    Ok(move || {
        let ends = lock(&ends);
        let login = match ends.1.try_iter().last() {
            Some(late) => late,
            None => {
                ends.0.send(())?;
                let timeout =
                    |_| "the function for credentials has not returned yet: the next dial asks again";
                ends.1.recv_timeout(WAIT).map_err(timeout)?
            }
        };
        let (user, password) = login?;
        Ok(match user {
            Some(user) => Credentials::new(user, password),
            None => Credentials::of_default_user(password),
        })
    })
}
