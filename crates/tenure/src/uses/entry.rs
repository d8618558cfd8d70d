//! The format of a cached value: one line, then the bytes. Pure functions.

use std::time::Duration;

use super::micros;
use super::value::CacheValue;
use crate::protocol::record::Record;

const FORMAT: &str = "1";

/// The result of a computation for a [`Cache`](crate::Cache), with its ttl.
///
/// ```
/// use std::time::Duration;
/// use tenure::Entry;
///
/// // A user that does not exist is remembered as such, for a shorter time.
/// fn entry(found: Option<String>) -> Entry<String> {
///     match found {
///         Some(user) => Entry::value(user, Duration::from_secs(300)),
///         None => Entry::absent(Duration::from_secs(30)),
///     }
/// }
/// # entry(None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<T> {
    pub(crate) value: Option<T>,
    pub(crate) ttl: Duration,
    pub(crate) is_kept: bool,
}

impl<T> Entry<T> {
    /// A value that is fresh for `ttl`, from 1 ms to 365 days.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let entry = tenure::Entry::value("Ada".to_owned(), Duration::from_secs(60));
    /// ```
    pub fn value(value: T, ttl: Duration) -> Self {
        Self { value: Some(value), ttl, is_kept: true }
    }

    /// No value exists, and nobody recomputes for `ttl`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let entry = tenure::Entry::<String>::absent(Duration::from_secs(5));
    /// ```
    pub fn absent(ttl: Duration) -> Self {
        Self { value: None, ttl, is_kept: true }
    }

    /// A value that is not stored, only passed to the waiters in this process.
    ///
    /// For a second, callers of other processes compute without waiting for each other.
    ///
    /// ```
    /// let entry = tenure::Entry::uncached("only now".to_owned());
    /// ```
    pub fn uncached(value: T) -> Self {
        Self { value: Some(value), ttl: UNCACHED, is_kept: false }
    }
}

/// How long the store remembers that a value is not stored.
pub(crate) const UNCACHED: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Value,
    Absent,
    /// Too large to be stored, or not meant to be.
    Uncached,
}

/// The line before the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) content: Content,
    /// How long the value is fresh, and how long it may be used at all, in microseconds.
    pub(crate) soft_us: u64,
    pub(crate) hard_us: u64,
    /// How long the computation took.
    pub(crate) delta_us: u64,
    /// The token of the lock that protected the computation.
    pub(crate) token: u64,
}

impl Head {
    /// Encodes a record with these bytes.
    pub(crate) fn encode(&self, codec: &str, bytes: &[u8]) -> Vec<u8> {
        let Self { content, soft_us, hard_us, delta_us, token } = self;
        let content = match content {
            Content::Value => 'v',
            Content::Absent => 'n',
            Content::Uncached => 'u',
        };
        let mut text =
            format!("{FORMAT} {content} {codec} {soft_us} {hard_us} {delta_us} {token}\n").into_bytes();
        text.extend_from_slice(bytes);
        text
    }

    /// Splits a record into its head, the name of its codec, and the bytes.
    pub(crate) fn decode(text: &[u8]) -> Option<(Self, &str, &[u8])> {
        let end = text.iter().position(|byte| *byte == b'\n')?;
        let mut words = std::str::from_utf8(&text[..end]).ok()?.split(' ');
        if words.next()? != FORMAT {
            return None;
        }
        let content = match words.next()? {
            "v" => Content::Value,
            "n" => Content::Absent,
            "u" => Content::Uncached,
            _ => return None,
        };
        let codec = words.next()?;
        let mut number = || words.next()?.parse().ok();
        let head =
            Self { content, soft_us: number()?, hard_us: number()?, delta_us: number()?, token: number()? };
        words.next().is_none().then_some((head, codec, &text[end + 1..]))
    }
}

/// What a record means to a reader of this type.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sight<T> {
    /// Use it as it is.
    Fresh(Option<T>),
    /// Use it, while one caller recomputes.
    /// With the token of its computation.
    Stale(Option<T>, u64),
    /// Known not to be stored.
    Uncached,
    Missing,
}

/// Interprets a record at a time of the store's clock. `early` is the β of XFetch; `random` returns a number in
/// (0, 1].
///
/// XFetch is by Vattani, Chierichetti and Lowenstein, *Optimal Probabilistic Cache Stampede Prevention*,
/// 2015: the longer a value takes to compute, the earlier one caller begins.
pub(crate) fn look<T: CacheValue>(
    record: Option<&Record>,
    now_us: u64,
    early: f64,
    random: impl FnOnce() -> f64,
) -> Sight<T> {
    let Some(record) = record else { return Sight::Missing };
    let Some((head, codec, bytes)) = Head::decode(&record.value) else { return Sight::Missing };
    let age = now_us.saturating_sub(record.at_us);
    let value = match head.content {
        _ if age >= head.hard_us => return Sight::Missing,
        Content::Uncached => return Sight::Uncached,
        Content::Absent => None,
        Content::Value if codec != T::CODEC => return Sight::Missing,
        Content::Value => match T::decode(bytes) {
            Ok(value) => Some(value),
            Err(_) => return Sight::Missing,
        },
    };
    let left = head.soft_us.saturating_sub(age);
    let is_early =
        || left <= head.soft_us / 5 && -(head.delta_us as f64) * early * random().ln() >= left as f64;
    if left == 0 || is_early() { Sight::Stale(value, head.token) } else { Sight::Fresh(value) }
}

/// The token of the computation that wrote a record.
pub(crate) fn token_of(record: &Record) -> Option<u64> {
    Some(Head::decode(&record.value)?.0.token)
}

/// How long a value is fresh. `jitter`, from 0 to 1, is the maximum share of the ttl subtracted at random, so
/// that values computed together do not expire together.
pub(crate) fn soft_us(ttl: Duration, jitter: f64, random: f64) -> u64 {
    (micros(ttl) as f64 * (1.0 - jitter * random)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(content: Content, codec: &str, bytes: &[u8]) -> Record {
        let head = Head { content, soft_us: 1_000, hard_us: 1_500, delta_us: 50, token: 9 };
        Record { at_us: 10_000, value: head.encode(codec, bytes).into() }
    }

    fn seen(record: &Record, now_us: u64) -> Sight<String> {
        look(Some(record), now_us, 1.0, || 1.0)
    }

    #[test]
    fn a_value_is_fresh_then_stale_then_missing() {
        let record = record(Content::Value, "text", b"a\nb");
        let value = || Some("a\nb".to_owned());
        assert_eq!(seen(&record, 10_999), Sight::Fresh(value()));
        assert_eq!(seen(&record, 11_000), Sight::Stale(value(), 9));
        assert_eq!(seen(&record, 11_499), Sight::Stale(value(), 9));
        assert_eq!(seen(&record, 11_500), Sight::Missing);
        // A server whose clock was set back.
        assert_eq!(seen(&record, 0), Sight::Fresh(value()));
    }

    #[test]
    fn what_cannot_be_read_is_missing() {
        assert_eq!(seen(&record(Content::Value, "json", b"a"), 10_000), Sight::Missing);
        assert_eq!(seen(&record(Content::Value, "text", b"\xff"), 10_000), Sight::Missing);
        assert_eq!(seen(&record(Content::Absent, "other", b""), 10_000), Sight::Fresh(None));
        assert_eq!(seen(&record(Content::Uncached, "text", b""), 10_000), Sight::Uncached);
        for text in ["", "1 v text 1 1 1 1", "2 v text 1 1 1 1\n", "1 x text 1 1 1 1\n", "1 v text 1 1 1\n"] {
            let record = Record { at_us: 10_000, value: text.as_bytes().into() };
            assert_eq!(seen(&record, 10_000), Sight::Missing, "{text:?}");
        }
    }

    #[test]
    fn a_value_that_took_long_is_computed_early_and_only_in_the_last_fifth() {
        let record = record(Content::Value, "text", b"a");
        let at = |now_us, random| look::<String>(Some(&record), now_us, 1.0, || random);
        let is_stale = |sight| matches!(sight, Sight::Stale(..));
        // 50 µs × 1 × ln(1/0.02) is 195 µs.
        assert!(is_stale(at(10_810, 0.02)) && !is_stale(at(10_810, 0.03)));
        assert!(!is_stale(at(10_799, f64::MIN_POSITIVE)));
        assert!(!is_stale(look::<String>(Some(&record), 10_999, 0.0, || f64::MIN_POSITIVE)));
    }
}
