//! Conversions from text to a lock name.

use std::borrow::Cow;
use std::convert::Infallible;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::name::LockName;

impl LockName {
    /// Creates a name.
    ///
    /// ```
    /// assert!(tenure::LockName::new("orders/42").is_ok());
    /// assert!(tenure::LockName::new("tenure:x").unwrap_err().is_invalid());
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// `is_invalid` if the name is empty, longer than 64 KiB or starts with `tenure:`.
    pub fn new(name: &str) -> Result<Self> {
        Self::checked(name).map_err(Error::invalid)
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

/// Converting a [`LockName`] to itself cannot fail.
impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
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
