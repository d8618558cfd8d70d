//! Errors of the library, for JavaScript.

use std::time::Duration;

use napi::Status;
use tenure::bindings::{Report, message};

/// The kind of an error as one word, which becomes the `code` of the JavaScript error.
pub struct Code(String);

pub type Error = napi::Error<Code>;
/// What a call from JavaScript returns at once.
pub type Result<T> = std::result::Result<T, Error>;

impl AsRef<str> for Code {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl From<Status> for Code {
    fn from(status: Status) -> Self {
        let kind = if status == Status::Closing { "closed" } else { "invalid" };
        Self(kind.to_owned())
    }
}

/// Why a call failed.
pub struct Failure {
    pub code: String,
    pub message: String,
    pub lock: Option<String>,
    pub store: Option<String>,
}

impl Failure {
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        Self { code: code.to_owned(), message: message.into(), lock: None, store: None }
    }
}

impl From<tenure::Error> for Failure {
    /// With the messages of its causes.
    fn from(error: tenure::Error) -> Self {
        Self {
            lock: error.lock().map(ToString::to_string),
            store: error.store().map(ToOwned::to_owned),
            ..Self::new(error.kind().as_str(), message(&error))
        }
    }
}

impl From<Failure> for Report {
    fn from(failure: Failure) -> Self {
        Self::Object(vec![
            ("code", failure.code.into()),
            ("message", failure.message.into()),
            ("lock", failure.lock.into()),
            ("store", failure.store.into()),
        ])
    }
}

/// The error that a call throws at once.
fn thrown(code: &str, message: impl Into<String>) -> Error {
    Error::new(Code(code.to_owned()), message.into())
}

pub fn invalid(message: impl Into<String>) -> Error {
    thrown("invalid", message)
}

pub fn closed() -> Error {
    thrown("closed", "the locks are closed")
}

pub fn released() -> Failure {
    Failure::new("released", "the guard is released")
}

/// Throws an error of the library.
pub fn checked<T>(result: tenure::Result<T>) -> Result<T> {
    result.map_err(|error| {
        let Failure { code, message, .. } = error.into();
        thrown(&code, message)
    })
}

/// A duration from milliseconds.
pub fn millis(what: &str, millis: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(millis / 1000.0)
        .map_err(|_| invalid(format!("{what}: got {millis}, expected milliseconds from 0")))
}
