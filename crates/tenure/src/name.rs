use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};

/// The name of a lock, checked once.
///
/// Any text of 1 byte to 64 KiB, except what begins with `tenure:`, which is kept for side keys. Names are
/// compared byte by byte: `Nightly` and `nightly` are two locks.
///
/// ```
/// use tenure::LockName;
/// assert!(LockName::new("orders/42").is_ok());
/// assert!(LockName::new("").unwrap_err().is_invalid());
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockName(Arc<str>);

impl LockName {
    /// The longest name, in bytes.
    pub const MAX_BYTES: usize = 64 * 1024;

    /// Checks a name.
    ///
    /// # Errors
    /// `is_invalid` when it is empty, longer than 64 KiB or begins with `tenure:`.
    pub fn new(name: &str) -> Result<Self> {
        if name.is_empty() {
            return Err(Error::invalid("a lock needs a name of 1 byte to 64 KiB, and this one is empty"));
        }
        if name.len() > Self::MAX_BYTES {
            return Err(Error::invalid(format!(
                "a lock's name has at most {} bytes, and this one has {}",
                Self::MAX_BYTES,
                name.len()
            )));
        }
        if name.starts_with("tenure:") {
            return Err(Error::invalid(format!(
                "a lock's name may not begin with `tenure:`, which is kept for side keys: {}",
                Quoted(name)
            )));
        }
        Ok(Self(name.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Quoted(&self.0), f)
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Quoted(&self.0), f)
    }
}

/// Text from outside, fit for one line of a message: escaped, and cut when it is long.
pub(crate) struct Quoted<'a>(pub(crate) &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 80;
        let mut chars = self.0.chars();
        f.write_str("`")?;
        for char in chars.by_ref().take(SHOWN) {
            match char {
                '`' => f.write_str("\\`")?,
                char if char.is_control() => write!(f, "{}", char.escape_default())?,
                char => write!(f, "{char}")?,
            }
        }
        f.write_str(if chars.next().is_some() { "…`" } else { "`" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_any_text_within_its_limits() {
        for name in ["x", "a b", "a/b", "..", "naïve ✓", "a\0b", "a\r\nb", "}{", &"x".repeat(64 * 1024)] {
            assert_eq!(LockName::new(name).expect("a name").as_str(), name);
        }
        for name in ["", "tenure:fence:x", &"x".repeat(64 * 1024 + 1)] {
            assert!(LockName::new(name).expect_err("no name").is_invalid());
        }
    }

    #[test]
    fn a_quoted_name_stays_on_one_short_line() {
        let shown = LockName::new(&"a\r\nb".repeat(1000)).expect("a name").to_string();
        assert!(!shown.contains('\n') && shown.len() < 400, "{shown}");
    }
}
