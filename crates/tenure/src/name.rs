use std::borrow::Cow;
use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::{Error, Result};

/// The name of a lock, checked once.
///
/// Methods that take a name take it as a `&str`, a `String` or a `LockName`. Make a `LockName`
/// yourself to check a name where it enters your program, for example with its configuration, and
/// to keep it.
///
/// A name is any text of 1 byte to 64 KiB that does not begin with `tenure:`. Such keys are side
/// keys of the locks. Names are compared byte by byte: `Nightly` and `nightly` are two locks.
///
/// `Display` prints the whole name as it is, control characters included. Messages of [`Error`]
/// quote, escape and shorten it.
///
/// ```
/// use tenure::{LockName, Locks};
///
/// let name: LockName = "orders/42".parse()?;
/// assert_eq!(name.to_string(), "orders/42");
/// assert!(LockName::new("").unwrap_err().is_invalid());
///
/// let locks = Locks::memory();
/// let by_name = locks.mutex(&name)?;
/// let by_text = locks.mutex(format!("orders/{}", 42))?;
/// assert_eq!(by_name.name(), by_text.name());
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockName(Arc<str>);

impl LockName {
    /// The longest name, in bytes.
    pub const MAX_BYTES: usize = 64 * 1024;

    /// Checks a name.
    ///
    /// ```
    /// assert!(tenure::LockName::new("orders/42").is_ok());
    /// assert!(tenure::LockName::new("tenure:x").unwrap_err().is_invalid());
    /// # Ok::<(), tenure::Error>(())
    /// ```
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

    /// A name that this library itself has made, or has read back from its store.
    pub(crate) fn in_store(name: String) -> Self {
        Self(name.into())
    }

    /// The name as text.
    ///
    /// ```
    /// assert_eq!(tenure::LockName::new("orders/42")?.as_str(), "orders/42");
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name as messages show it: quoted, escaped, and cut if it is long.
    pub(crate) fn quoted(&self) -> Quoted<'_> {
        Quoted(&self.0)
    }
}

/// The name itself, whole and without quotes.
impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for LockName {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::new(name)
    }
}

impl TryFrom<&str> for LockName {
    type Error = Error;

    fn try_from(name: &str) -> Result<Self> {
        Self::new(name)
    }
}

impl TryFrom<&&str> for LockName {
    type Error = Error;

    fn try_from(name: &&str) -> Result<Self> {
        Self::new(name)
    }
}

impl TryFrom<String> for LockName {
    type Error = Error;

    fn try_from(name: String) -> Result<Self> {
        Self::new(&name)
    }
}

impl TryFrom<&String> for LockName {
    type Error = Error;

    fn try_from(name: &String) -> Result<Self> {
        Self::new(name)
    }
}

impl TryFrom<Cow<'_, str>> for LockName {
    type Error = Error;

    fn try_from(name: Cow<'_, str>) -> Result<Self> {
        Self::new(&name)
    }
}

impl From<&Self> for LockName {
    fn from(name: &Self) -> Self {
        name.clone()
    }
}

impl AsRef<str> for LockName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// A [`LockName`] is a name already, so that its conversion cannot fail.
impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
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
        let name = LockName::new(&"a\r\nb".repeat(1000)).expect("a name");
        for shown in [name.quoted().to_string(), format!("{name:?}")] {
            assert!(!shown.contains('\n') && shown.len() < 400, "{shown}");
        }
    }

    #[test]
    fn a_printed_name_is_the_name() {
        for text in ["x", "a`b", "a\r\nb", &"x".repeat(64 * 1024)] {
            let name = LockName::new(text).expect("a name");
            assert_eq!((name.to_string().as_str(), name.as_ref()), (text, text));
        }
        assert_eq!(format!("[{:>4}]", LockName::new("x").expect("a name")), "[   x]");
    }

    #[test]
    fn text_and_names_become_names() {
        fn name(name: impl TryInto<LockName, Error: Into<Error>>) -> Result<LockName> {
            name.try_into().map_err(Into::into)
        }
        let (text, known) = ("x".to_owned(), LockName::new("x").expect("a name"));
        let made = [name("x"), name(&"x"), name(&text), name(text.clone()), name(Cow::from("x"))];
        for made in made.into_iter().chain([name(&known), name(known.clone()), "x".parse()]) {
            assert_eq!(made.expect("a name"), known);
        }
        for refused in [name(""), name("tenure:x".to_owned()), "".parse()] {
            assert!(refused.expect_err("no name").is_invalid());
        }
    }
}
