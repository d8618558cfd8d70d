//! Errors of the library, for JavaScript.

use std::time::Duration;

use napi::Status;
use napi::bindgen_prelude::Either;
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

/// Milliseconds, or a text such as `15s`.
pub type Time = Either<f64, String>;

/// Units of times, in milliseconds.
const UNITS: [(&str, f64); 5] = [("ms", 1.0), ("s", 1e3), ("m", 60e3), ("h", 3600e3), ("d", 86_400e3)];

pub fn duration(what: &str, time: &Time) -> Result<Duration> {
    let (millis, shown) = match time {
        Either::A(millis) => (Some(*millis), millis.to_string()),
        Either::B(text) => {
            let (number, unit) = text.split_at(text.find(char::is_alphabetic).unwrap_or(text.len()));
            let unit = UNITS.iter().find(|(name, _)| *name == unit);
            let number = number.trim_end().parse::<f64>();
            (unit.zip(number.ok()).map(|((_, unit), number)| number * unit), text.clone())
        }
    };
    let duration = millis.and_then(|millis| Duration::try_from_secs_f64(millis / 1000.0).ok());
    let expected = r#"milliseconds or a text such as "15s""#;
    duration.ok_or_else(|| invalid(format!("{what}: got {shown}, expected {expected}")))
}

/// A number that JavaScript might have as a fraction.
pub fn whole(what: &str, number: f64) -> Result<u32> {
    if number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number) {
        return Ok(number as u32);
    }
    Err(invalid(format!("{what}: got {number}, expected a whole number below 2^32")))
}
