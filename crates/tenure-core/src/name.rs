//! Lock names, and external text as messages show it.

use std::fmt;
use std::sync::Arc;

/// The validated name of a lock.
///
/// Methods that take a name accept a `&str`, a `String` or a `LockName`. Create a `LockName` to validate a
/// name where it enters your program, for example from its configuration.
///
/// A name is any text of 1 byte to 64 KiB that does not start with `tenure:`, which is reserved for side
/// keys. Names are compared byte by byte: `Nightly` and `nightly` are two locks.
///
/// `Display` prints the whole name unchanged, including control characters. Messages of
/// [`Error`](crate::error::Error) quote, escape and shorten it.
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
    /// Maximum length of a name, in bytes.
    pub const MAX_BYTES: usize = 64 * 1024;

    /// The name, or the reason why the text is invalid.
    #[doc(hidden)]
    pub fn checked(name: &str) -> Result<Self, String> {
        if name.is_empty() {
            return Err("lock name must not be empty".into());
        }
        if name.len() > Self::MAX_BYTES {
            let (most, len) = (Self::MAX_BYTES, name.len());
            return Err(format!("lock name must have at most {most} bytes, got {len}"));
        }
        if name.starts_with("tenure:") {
            return Err(format!("lock name must not begin with `tenure:`, got {}", Quoted(name)));
        }
        Ok(Self(name.into()))
    }

    /// A name that this library generated or read back from its store; not validated.
    #[doc(hidden)]
    pub fn in_store(name: String) -> Self {
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

    /// The name for messages: quoted, escaped, and shortened.
    #[doc(hidden)]
    pub fn quoted(&self) -> Quoted<'_> {
        Quoted(&self.0)
    }

    /// For a lock with a record, its use and the full name given by the user; otherwise `None`.
    #[doc(hidden)]
    pub fn of_use(&self) -> Option<(&'static str, Quoted<'_>)> {
        let (kind, key) = self.0.strip_prefix(USE)?.split_once(':')?;
        let uses = [("elect", "election"), ("once", "job"), ("cache", "cache"), ("fill", "fill")];
        let (_, what) = uses.into_iter().find(|(known, _)| *known == kind)?;
        let in_braces = || key.strip_prefix('{')?.strip_suffix('}');
        Some((what, Quoted(key.strip_prefix(['=', '~']).or_else(in_braces)?)))
    }
}

/// What a URL's `namespace` puts before all keys of a store; may be absent. Clients with different namespaces
/// share nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespace(Option<Arc<str>>);

impl Namespace {
    /// What [`checked`](Self::checked) accepts. The length is that of an identifier of PostgreSQL, which
    /// truncates longer ones.
    pub const FORM: &str = "1 to 63 ASCII letters, digits and `-_.:/`";

    /// The namespace, if the text is valid.
    #[must_use]
    pub fn checked(text: &str) -> Option<Self> {
        let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/".contains(&byte);
        ((1..=63).contains(&text.len()) && text.bytes().all(is_valid)).then(|| Self(Some(text.into())))
    }

    /// The text; empty without a namespace.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }

    /// Puts the namespace before a name.
    pub fn precede(&self, name: &mut LockName) {
        if let Some(namespace) = &self.0 {
            *name = LockName::in_store([namespace, name.as_str()].concat());
        }
    }

    /// Removes the namespace from a name that has it.
    pub fn leave(&self, name: &mut LockName) {
        if let Some(rest) = self.0.as_deref().and_then(|namespace| name.0.strip_prefix(namespace)) {
            *name = LockName(rest.into());
        }
    }
}

/// Prefix of the names of locks with records.
pub const USE: &str = "tenure:use:";

/// Prints the whole name without quotes.
impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
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

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Quoted(&self.0), f)
    }
}

/// Whether a terminal or a page obeys this character instead of showing it: it controls, ends a line, or reorders
/// the text around it.
#[doc(hidden)]
#[must_use]
pub fn is_control(char: char) -> bool {
    let reorders = matches!(char, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    char.is_control() || matches!(char, '\u{2028}' | '\u{2029}') || reorders
}

/// External text for one line of a message: escaped, and shortened to 80 characters.
#[derive(Debug)]
pub struct Quoted<'a>(pub &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 80;
        let mut chars = self.0.chars();
        f.write_str("`")?;
        for char in chars.by_ref().take(SHOWN) {
            match char {
                '`' => f.write_str("\\`")?,
                char if is_control(char) => write!(f, "{}", char.escape_default())?,
                char => write!(f, "{char}")?,
            }
        }
        f.write_str(if chars.next().is_some() { "…`" } else { "`" })
    }
}
