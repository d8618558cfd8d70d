//! Lock names as stored in the column `name`: unchanged where possible.
//!
//! Text in an SQL database may not contain a zero byte, and an index entry is limited to about 2,700 bytes. A
//! backslash is therefore doubled and a zero byte written as `\0`. If the result is too long, the column has
//! its beginning, `\~` and a hash, and the column `whole` has all of it.
//!
//! A row whose name is `\!` and a client names the client's session in `whole`: see `sessions`.

use siphasher::sip128::SipHasher13;

use crate::name::LockName;
use crate::owner::Client;

/// Maximum length in bytes of a name stored unchanged.
const LONGEST: usize = 1_000;
/// Maximum bytes kept of a longer name.
const KEPT: usize = 900;

/// The columns that identify a lock.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LockKey {
    /// The column `name`.
    pub name: String,
    /// The column `whole`, if `name` is truncated.
    pub whole: Option<String>,
}

impl LockKey {
    /// The key of the lock with this name.
    #[must_use]
    pub fn of(name: &LockName) -> Self {
        let escaped = escaped(name.as_str());
        if escaped.len() <= LONGEST {
            return Self { name: escaped, whole: None };
        }
        let hash = SipHasher13::new().hash(escaped.as_bytes());
        let (high, low) = (hash.h1, hash.h2);
        Self { name: format!("{}\\~{high:016x}{low:016x}", beginning(&escaped)), whole: Some(escaped) }
    }
}

/// The column `name` of the row that names a client's session.
pub(super) fn client_row(client: Client) -> String {
    format!("\\!{client}")
}

/// The name of the lock with these columns; `None` if they are invalid.
pub(super) fn name_of(name: &str, whole: Option<&str>) -> Option<LockName> {
    let escaped = whole.unwrap_or(name);
    let mut plain = String::with_capacity(escaped.len());
    let mut chars = escaped.chars();
    while let Some(char) = chars.next() {
        plain.push(match char {
            '\\' => match chars.next()? {
                '0' => '\0',
                '\\' => '\\',
                _ => return None,
            },
            char => char,
        });
    }
    (!plain.is_empty()).then(|| LockName::in_store(plain))
}

/// A prefix of the column `name` shared by all locks with this name prefix. Other locks may match too.
pub(super) fn prefix(prefix: &str) -> String {
    beginning(&escaped(prefix)).to_owned()
}

fn escaped(name: &str) -> String {
    if !name.contains(['\\', '\0']) {
        return name.to_owned();
    }
    name.replace('\\', "\\\\").replace('\0', "\\0")
}

fn beginning(escaped: &str) -> &str {
    let mut end = escaped.len().min(KEPT);
    while !escaped.is_char_boundary(end) {
        end -= 1;
    }
    // Not within an escaped character: the row could be that of another name.
    let slashes = escaped[..end].bytes().rev().take_while(|byte| *byte == b'\\').count();
    &escaped[..end - slashes % 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_back_and_no_two_are_one() {
        let long = "n".repeat(LockName::MAX_BYTES - 2);
        let cut = format!("{}\\{long}", "n".repeat(KEPT - 1))[..LockName::MAX_BYTES].to_owned();
        let [slash, zero] = ["\\", "\0"].map(|end| format!("{long}{end}"));
        let names = ["orders", "a\0b", "a\\0b", "a\\\\0b", "\\", "ä✓", &slash, &zero, &cut];
        let keys: Vec<LockKey> =
            names.iter().map(|name| LockKey::of(&LockName::in_store((*name).into()))).collect();
        for (name, key) in names.iter().zip(&keys) {
            let read = name_of(&key.name, key.whole.as_deref()).expect("a name");
            assert_eq!(read.as_str(), *name);
            assert!(key.whole.is_none() || name_of(&key.name, None).is_none(), "it is that of another name");
            assert!(key.name.len() <= LONGEST && !key.name.contains('\0'));
            assert!(key.name.starts_with(&prefix(name)) && key.name.starts_with(&prefix("")));
        }
        let mut once: Vec<&LockKey> = keys.iter().collect();
        once.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        once.dedup_by(|one, other| one.name == other.name);
        assert_eq!(once.len(), names.len());
        assert_eq!(name_of("a\\x", None), None);
        assert_eq!(name_of("", None), None);
        let client = crate::owner::Owners::new(7).client();
        assert_eq!(name_of(&client_row(client), None), None);
    }
}
