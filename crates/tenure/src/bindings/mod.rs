//! For the packages of other languages, whose threads and tasks share a guard. Exempt from semver: nothing else should
//! use this module.
//!
//! - [`AnyLock`] is a lock of any kind, and [`AnyGuard`] its guard.
//! - [`Report`] is what a call reports, before a package makes values of its language of it.
//! - [`Candidacy`] leads again and again, and [`event_log`] delivers events.

mod any_guard;
mod any_lock;
pub mod event_log;
mod report;

use std::error::Error as _;

#[cfg(unix)]
pub use tenure_file::take_inherited_files;

pub use self::any_guard::{AnyGuard, Side};
pub use self::any_lock::AnyLock;
pub use self::report::Report;
use crate::error::{Error, Result};
use crate::uses::cache::Cache;
use crate::uses::entry::Entry;
use crate::uses::fill::{Outage, Overdue};
pub use crate::uses::lead::Candidacy;
use crate::uses::turn::Frees;
use crate::uses::value::CacheValue;

/// As [`Cache::refresh`], with the ttl and the kind of entry that `fill` returns.
///
/// # Errors
/// As [`Cache::refresh`].
pub async fn refill<T: CacheValue, E>(
    cache: &Cache,
    fill: impl AsyncFnOnce() -> Result<Entry<T>, E>,
) -> Result<Result<Option<T>, E>> {
    cache.refill(fill).await
}

/// The message of an error with those of its causes.
pub fn message(error: &Error) -> String {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !message.contains(&text) {
            message += &format!(": {text}");
        }
        cause = error.source();
    }
    message
}

/// The value that a word names, of those in `words`.
fn named<T: Copy>(what: &str, word: &str, words: &[(&str, T)]) -> Result<T> {
    if let Some((_, value)) = words.iter().find(|(name, _)| *name == word) {
        return Ok(*value);
    }
    let names: Vec<_> = words.iter().map(|(name, _)| *name).collect();
    let (last, others) = names.split_last().expect("there are words");
    Err(Error::invalid(format!("{what}: got {word:?}, expected {} or {last}", others.join(", "))))
}

/// What a caller does whose wait has lasted too long: `compute` or `fail`.
///
/// # Errors
/// `is_invalid` for another word.
pub fn overdue(word: &str) -> Result<Overdue> {
    named("overdue", word, &[("compute", Overdue::Compute), ("fail", Overdue::Fail)])
}

/// What a caller does whose store does not answer: `compute` or `fail`.
///
/// # Errors
/// `is_invalid` for another word.
pub fn outage(word: &str) -> Result<Outage> {
    named("outage", word, &[("compute", Outage::Compute), ("fail", Outage::Fail)])
}

/// What lets a window be used again: `nothing`, `failure` or `failure_or_loss`.
///
/// # Errors
/// `is_invalid` for another word.
pub fn frees(word: &str) -> Result<Frees> {
    let words =
        [("nothing", Frees::Nothing), ("failure", Frees::Failure), ("failure_or_loss", Frees::FailureOrLoss)];
    named("reopens on", word, &words)
}
