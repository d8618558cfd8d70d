use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, LazyLock};

use crate::error::{Error, Result};
use crate::name::Quoted;
use crate::runtime::Runtime;

/// The holder of a lock: `label@host:pid/random`, 128 bits of it random.
///
/// Make one for a [`ReentrantMutex`](crate::ReentrantMutex), and parse one to
/// [resume](crate::Locks::resume) a hold. For the other kinds you need none.
///
/// Every acquisition gets a fresh one. It is written at the lock's key, so an operator can read
/// there which client holds. Only [`Locks::resume`](crate::Locks::resume) and the re-entrant kind
/// take one from you.
///
/// ```
/// use tenure::Owner;
/// let owner = Owner::new("nightly")?;
/// assert_eq!(owner.label(), "nightly");
/// assert_eq!(owner.to_string().parse::<Owner>()?, owner);
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[must_use = "only its owner can resume a hold that was detached"]
pub struct Owner(Arc<str>);

impl Owner {
    /// A fresh owner with this label: up to 64 of the characters `A-Z a-z 0-9 . _ -`; it may be
    /// empty.
    ///
    /// ```
    /// assert_eq!(tenure::Owner::new("nightly")?.label(), "nightly");
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// `is_invalid` when the label has another character or is longer.
    pub fn new(label: &str) -> Result<Self> {
        check_label(label)?;
        Ok(Self::with_random(label, crate::runtime::random_long()))
    }

    /// A fresh owner for one acquisition; the label was checked with the options.
    pub(crate) fn fresh(label: &str, runtime: &dyn Runtime) -> Self {
        Self::with_random(label, runtime.random_long())
    }

    fn with_random(label: &str, random: u128) -> Self {
        Self(format!("{label}@{}:{}/{random:032x}", *HOST, std::process::id()).into())
    }

    /// The owner as text.
    ///
    /// ```
    /// # let owner = tenure::Owner::new("nightly")?;
    /// assert!(owner.as_str().starts_with("nightly@"));
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The part before `@`.
    ///
    /// ```
    /// # let owner = tenure::Owner::new("nightly")?;
    /// assert_eq!(owner.label(), "nightly");
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn label(&self) -> &str {
        self.0.split_once('@').map_or("", |(label, _)| label)
    }

    /// The host it was made on.
    ///
    /// ```
    /// # let owner = tenure::Owner::new("nightly")?;
    /// println!("held on {}", owner.host());
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn host(&self) -> &str {
        self.place().0
    }

    /// The process that made it.
    ///
    /// ```
    /// # let owner = tenure::Owner::new("nightly")?;
    /// assert_eq!(owner.pid(), std::process::id());
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn pid(&self) -> u32 {
        self.place().1.parse().unwrap_or(0)
    }

    fn place(&self) -> (&str, &str) {
        let place =
            self.0.split_once('@').and_then(|(_, rest)| rest.split_once('/')).map_or("", |(place, _)| place);
        place.rsplit_once(':').unwrap_or((place, ""))
    }
}

/// Parses what [`Display`](fmt::Display) prints.
impl FromStr for Owner {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match parts(text) {
            Some(()) => Ok(Self(text.into())),
            None => Err(Error::invalid(format!(
                "an owner reads `label@host:pid/` and 32 hexadecimal digits, and this one reads {}",
                Quoted(text)
            ))),
        }
    }
}

fn parts(text: &str) -> Option<()> {
    let (label, rest) = text.split_once('@')?;
    let (place, random) = rest.split_once('/')?;
    let (host, pid) = place.rsplit_once(':')?;
    let fits = label.len() <= MAX_LABEL
        && label.chars().all(in_label)
        && host.len() <= MAX_HOST
        && host.chars().all(in_label)
        && pid.parse::<u32>().is_ok()
        && (pid == "0" || !pid.starts_with(['0', '+']))
        && random.len() == 32
        && random.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    fits.then_some(())
}

const MAX_LABEL: usize = 64;
const MAX_HOST: usize = 64;

fn in_label(char: char) -> bool {
    char.is_ascii_alphanumeric() || matches!(char, '.' | '_' | '-')
}

pub(crate) fn check_label(label: &str) -> Result<()> {
    if label.len() <= MAX_LABEL && label.chars().all(in_label) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "a label has at most {MAX_LABEL} of the characters A-Z a-z 0-9 . _ -, and this one is {}",
        Quoted(label)
    )))
}

/// Of this machine, as far as an owner can say it.
static HOST: LazyLock<String> = LazyLock::new(|| {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().chars().filter(|char| in_label(*char)).take(MAX_HOST).collect()
});

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_owners_are_never_the_same() {
        assert_ne!(Owner::new("x").expect("an owner"), Owner::new("x").expect("an owner"));
    }

    #[test]
    fn an_owner_says_where_it_was_made() {
        let owner = Owner::new("nightly").expect("an owner");
        assert_eq!((owner.label(), owner.pid()), ("nightly", std::process::id()));
        assert_eq!(owner.to_string().parse::<Owner>().expect("its own text"), owner);
    }

    #[test]
    fn what_is_no_owner_is_refused() {
        let random = "0123456789abcdef0123456789abcdef";
        assert!(format!("@h:1/{random}").parse::<Owner>().is_ok());
        for text in ["", "x", "a@h:1/xyz", "a b@h:1/0", "a@h/0"] {
            assert!(text.parse::<Owner>().expect_err("no owner").is_invalid());
        }
        for text in [
            format!("#@h:1/{random}"),
            format!("a@h:01/{random}"),
            format!("a@h:1/{random}#1"),
            format!("a@:h/{random}"),
        ] {
            assert!(text.parse::<Owner>().is_err(), "{text}");
        }
        assert!(Owner::new("a#b").is_err() && Owner::new(&"x".repeat(65)).is_err());
    }
}
