//! The identity of a lock's holder.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::error::{Error, Result};
use crate::name::Quoted;
use crate::platform;
use crate::runtime::Runtime;

/// The holder of a lock: `user/label@host:pid/id`.
///
/// Create an owner for a `ReentrantMutex`, or parse one to resume a hold. The other kinds of locks do not
/// need one from you.
///
/// Every other acquisition generates a fresh owner. It is stored at the lock's key, where an operator can
/// read who holds the lock: user, host and process, since when, and the label from `Options::label`. Only
/// `Locks::resume` and the reentrant kind take an owner from you.
///
/// The `id` is 32 hexadecimal digits: 12 for the creation time in milliseconds since 1970 by the clock of its
/// process, 10 shared by all owners of one `Locks`, and 10 more that distinguish them.
///
/// ```
/// use tenure::Owner;
/// let owner = Owner::new("https://ci/job/7")?;
/// assert_eq!(owner.label(), "https://ci/job/7");
/// assert_eq!(owner.to_string().parse::<Owner>()?, owner);
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[must_use = "a detached hold can only be resumed by its owner"]
pub struct Owner(Arc<str>);

impl Owner {
    /// Creates an owner with this label: at most 256 bytes of text without control characters. It may be
    /// empty.
    ///
    /// ```
    /// assert_eq!(tenure::Owner::new("nightly report")?.label(), "nightly report");
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// `is_invalid` if the label is longer or has a control character.
    pub fn new(label: &str) -> Result<Self> {
        check_text("a label", label)?;
        Ok(Self::made(label, &process(), crate::runtime::unix_micros(), crate::runtime::random_long()))
    }

    /// A fresh owner for one acquisition. The label has already been checked with the options.
    #[doc(hidden)]
    pub fn fresh(label: &str, runtime: &dyn Runtime) -> Self {
        Self::made(label, &process(), runtime.unix_micros(), runtime.random_long())
    }

    /// The client that created it.
    #[doc(hidden)]
    pub fn client(&self) -> Client {
        let id = self.0.rsplit_once('/').map_or("", |(_, id)| id);
        Client((u128::from_str_radix(id, 16).unwrap_or(0) >> SERIAL_BITS) as u64 & LOW)
    }

    /// Builds an owner; `process` is the output of [`process`].
    fn made(label: &str, process: &str, unix_us: u64, random: u128) -> Self {
        thread_local! {
            // A reused buffer: most acquisitions create an owner, which then costs one allocation.
            static TEXT: RefCell<String> = const { RefCell::new(String::new()) };
        }
        let id = u128::from(unix_us / 1_000) << RANDOM_BITS | random & ((1 << RANDOM_BITS) - 1);
        let write = |text: &mut String| {
            text.clear();
            text.push_str(&USER);
            if !label.is_empty() {
                text.push('/');
                text.extend(utf8_percent_encode(label, ENCODED));
            }
            text.push_str(process);
            text.push_str(str::from_utf8(&digits(id)).expect("hexadecimal digits are ASCII"));
            Self(text.as_str().into())
        };
        // The buffer is gone while its thread ends.
        TEXT.try_with(|text| write(&mut text.borrow_mut())).unwrap_or_else(|_| write(&mut String::new()))
    }

    /// The owner as text.
    ///
    /// ```
    /// # let owner = tenure::Owner::new("nightly")?;
    /// assert!(owner.as_str().contains("/nightly@"));
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The user of the process that created it: `LOGNAME` or `USER` from its environment, or else the name
    /// in the system's list of users, or the numeric id. Only the characters `A-Z a-z 0-9 . _ -` are kept, at most 64.
    ///
    /// ```
    /// # let owner = tenure::Owner::new("nightly")?;
    /// println!("held by {}", owner.user());
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn user(&self) -> &str {
        self.who().0
    }

    /// The label from `Options::label` or [`new`](Self::new).
    ///
    /// ```
    /// # let owner = tenure::Owner::new("nightly")?;
    /// assert_eq!(owner.label(), "nightly");
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn label(&self) -> Cow<'_, str> {
        percent_decode_str(self.who().1).decode_utf8_lossy()
    }

    /// The host of the process that created it.
    ///
    /// ```
    /// # let owner = tenure::Owner::new("nightly")?;
    /// println!("held on {}", owner.host());
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn host(&self) -> &str {
        self.place().0
    }

    /// The id of the process that created it.
    ///
    /// ```
    /// # let owner = tenure::Owner::new("nightly")?;
    /// assert_eq!(owner.pid(), std::process::id());
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn pid(&self) -> u32 {
        self.place().1.parse().unwrap_or(0)
    }

    /// When it was created, which is when its acquisition began, in whole milliseconds by the clock of its
    /// process. `None` if a client generated the id in another way.
    ///
    /// ```
    /// # let owner = tenure::Owner::new("nightly")?;
    /// assert!(owner.made_at().is_some());
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn made_at(&self) -> Option<SystemTime> {
        let id = self.0.rsplit_once('/').map_or("", |(_, id)| id);
        let ms = (u128::from_str_radix(id, 16).ok()? >> RANDOM_BITS) as u64;
        PLAUSIBLE_MS.contains(&ms).then(|| UNIX_EPOCH + Duration::from_millis(ms))
    }

    fn who(&self) -> (&str, &str) {
        let who = self.0.split_once('@').map_or("", |(who, _)| who);
        who.split_once('/').unwrap_or((who, ""))
    }

    fn place(&self) -> (&str, &str) {
        let place =
            self.0.split_once('@').and_then(|(_, rest)| rest.split_once('/')).map_or("", |(place, _)| place);
        place.rsplit_once(':').unwrap_or((place, ""))
    }
}

/// Parses the output of [`Display`](fmt::Display).
impl FromStr for Owner {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match parts(text) {
            Some(()) => Ok(Self(text.into())),
            None => Err(Error::invalid(format!(
                "owner: got {}, expected `user/label@host:pid/` and 32 hexadecimal digits",
                Quoted(text)
            ))),
        }
    }
}

/// The part that all owners of one `Locks` share: the address of messages to that client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Client(u64);

impl Client {
    /// A client with this random number.
    fn new(random: u64) -> Self {
        Self(random & LOW)
    }
}

impl From<&Owner> for Client {
    fn from(owner: &Owner) -> Self {
        owner.client()
    }
}

/// Generates the owners of one client.
#[doc(hidden)]
#[derive(Debug)]
pub struct Owners {
    client: Client,
    /// The text that identifies this process.
    process: String,
}

impl Owners {
    /// For a client with this random number.
    pub fn new(random: u64) -> Self {
        Self { client: Client::new(random), process: process() }
    }

    /// The client.
    pub fn client(&self) -> Client {
        self.client
    }

    /// A fresh owner with the number `serial`. The label has already been checked with the options.
    pub fn make(&self, serial: u64, label: &str, unix_us: u64) -> Owner {
        let random = u128::from(self.client.0) << SERIAL_BITS | u128::from(serial & LOW);
        Owner::made(label, &self.process, unix_us, random)
    }
}

/// The part between label and id: `@host:pid/`.
fn process() -> String {
    format!("@{}:{}/", *HOST, std::process::id())
}

/// Formats a number as 32 hexadecimal digits.
fn digits(number: u128) -> [u8; 32] {
    let mut digits = [0; 32];
    for (two, byte) in digits.chunks_exact_mut(2).zip(number.to_be_bytes()) {
        two.copy_from_slice(&[byte >> 4, byte & 15].map(|digit| b"0123456789abcdef"[usize::from(digit)]));
    }
    digits
}

/// The 10 hexadecimal digits that its owners contain.
impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:010x}", self.0)
    }
}

fn parts(text: &str) -> Option<()> {
    let (who, rest) = text.split_once('@')?;
    let (place, id) = rest.split_once('/')?;
    let (host, pid) = place.rsplit_once(':')?;
    let fits = who.len() <= MAX_WHO
        && who.chars().all(|char| in_host(char) || matches!(char, '%' | ':' | '/'))
        && host.len() <= MAX_HOST
        && host.chars().all(in_host)
        && pid.parse::<u32>().is_ok()
        && (pid == "0" || !pid.starts_with(['0', '+']))
        && id.len() == 32
        && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    fits.then_some(())
}

const MAX_LABEL: usize = 256;
const MAX_HOST: usize = 64;
const MAX_USER: usize = 64;
/// The user, a slash, and a label of which each byte may be percent-encoded as three.
const MAX_WHO: usize = MAX_USER + 1 + 3 * MAX_LABEL;
const RANDOM_BITS: u32 = 80;
const SERIAL_BITS: u32 = 40;
const LOW: u64 = (1 << SERIAL_BITS) - 1;
/// The years 2000 to 2100.
const PLAUSIBLE_MS: Range<u64> = 946_684_800_000..4_102_444_800_000;

/// Bytes that are percent-encoded in a label.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'.').remove(b'_').remove(b'-').remove(b':').remove(b'/');

fn in_host(char: char) -> bool {
    char.is_ascii_alphanumeric() || matches!(char, '.' | '_' | '-')
}

/// Checks text meant for people. `what` names it in the error.
///
/// # Errors
/// `is_invalid`, with `what` and the violated limit.
pub fn check_text(what: &str, text: &str) -> Result<()> {
    if text.len() <= MAX_LABEL && !text.contains(char::is_control) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{what} must have at most {MAX_LABEL} bytes and no control characters, got {}",
        Quoted(text)
    )))
}

/// The host name, reduced to the characters allowed in an owner.
static HOST: LazyLock<String> =
    LazyLock::new(|| platform::host().chars().filter(|char| in_host(*char)).take(MAX_HOST).collect());

/// The user of this process, reduced to the characters allowed in an owner.
static USER: LazyLock<String> = LazyLock::new(|| {
    platform::users().map(|user| fitting_user(&user)).find(|user| !user.is_empty()).unwrap_or_default()
});

/// Leading hyphens are removed, because an owner may be an argument of a command.
fn fitting_user(user: &str) -> String {
    user.trim_start_matches('-').chars().filter(|char| in_host(*char)).take(MAX_USER).collect()
}

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
    fn an_owner_says_who_and_where_and_when() {
        for label in ["nightly", "", "https://ci.example/job/7?a=b#c", "a b", "/", "ä%20@x:1/2"] {
            let before = crate::runtime::unix_micros() / 1_000;
            let owner = Owner::new(label).expect("an owner");
            assert_eq!((&*owner.label(), owner.pid()), (label, std::process::id()));
            assert_eq!((owner.user(), owner.host()), (&**USER, &**HOST));
            assert_eq!(owner.to_string().parse::<Owner>().expect("its own text"), owner);
            let made = owner.made_at().expect("a time").duration_since(UNIX_EPOCH).expect("after 1970");
            assert!(
                made >= Duration::from_millis(before) && !owner.as_str().contains([' ', '#', '!']),
                "{owner}"
            );
        }
    }

    #[test]
    fn an_owner_says_which_client_made_it() {
        let made = Owners::new(u64::MAX - 1);
        let client = made.client();
        let owners = [7, 8].map(|serial| made.make(serial, "a/b", 1_700_000_000_000_000));
        assert!(owners[0] < owners[1] && owners.iter().all(|owner| owner.client() == client));
        // A script reads it from there.
        let digits = owners[0].as_str().len();
        assert_eq!(owners[0].as_str()[digits - 20..digits - 10], client.to_string());
        assert_eq!(client.to_string(), "fffffffffe");
        assert!(owners[0].made_at().is_some());
    }

    #[test]
    fn a_user_has_what_an_owner_can_say() {
        for (user, fits) in [("--alice", "alice"), ("DOMAIN\\bob", "DOMAINbob"), ("ä", ""), ("a b", "ab")] {
            assert_eq!(fitting_user(user), fits);
        }
        assert_eq!(fitting_user(&"x".repeat(65)).len(), 64);
    }

    #[test]
    fn what_is_no_owner_is_refused() {
        let random = "0123456789abcdef0123456789abcdef";
        let owner: Owner = format!("@h:1/{random}").parse().expect("an owner");
        assert_eq!((owner.user(), &*owner.label(), owner.made_at().is_some()), ("", "", true));
        let longest = format!("{}/{}@h:1/{random}", "u".repeat(64), "%20".repeat(256));
        assert_eq!(longest.parse::<Owner>().expect("the longest").label(), " ".repeat(256));
        for text in ["", "x", "a@h:1/xyz", "a b@h:1/0", "a@h/0"] {
            assert!(text.parse::<Owner>().expect_err("no owner").is_invalid());
        }
        for text in [
            format!("#@h:1/{random}"),
            format!("a@h:01/{random}"),
            format!("a@h:1/{random}#1"),
            format!("a@:h/{random}"),
            format!("u{longest}"),
        ] {
            assert!(text.parse::<Owner>().is_err(), "{text}");
        }
        assert!(Owner::new("a\nb").is_err() && Owner::new(&"x".repeat(257)).is_err());
    }
}
