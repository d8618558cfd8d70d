//! File names in the directory.

use std::fmt;
use std::str::FromStr;

use siphasher::sip128::SipHasher24;

use tenure_core::name::LockName;

const BESIDE: &str = "record-";
const SPARE: &str = "spare-";
const WAITS: &str = "waits-";

/// Names the file of a lock's record: a hash of the lock's name. The record contains the name too, so that
/// two locks with the same hash are not confused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RecordId(u128);

impl RecordId {
    pub(super) fn of(name: &LockName) -> Self {
        Self(SipHasher24::new().hash(name.as_str().as_bytes()).as_u128())
    }

    /// The file of the record beside the lock, which only the holder writes.
    pub(super) fn beside(self) -> String {
        format!("{BESIDE}{:032x}", self.0)
    }

    /// The file that a long record is written to, and exchanged with.
    pub(super) fn spare(self) -> String {
        format!("{SPARE}{:032x}", self.0)
    }

    /// The lock that a spare file belongs to.
    pub(super) fn of_spare(file: &str) -> Option<Self> {
        u128::from_str_radix(digits(file, SPARE, 32)?, 16).map(Self).ok()
    }

    /// The file listing the processes that wait for the lock, if it has no queue.
    pub(super) fn waits(self) -> String {
        format!("{WAITS}{:032x}", self.0)
    }

    /// The lock that such a list belongs to.
    pub(super) fn of_waits(file: &str) -> Option<Self> {
        u128::from_str_radix(digits(file, WAITS, 32)?, 16).map(Self).ok()
    }

    /// The lock that a file of a record beside it belongs to.
    pub(super) fn of_beside(file: &str) -> Option<Self> {
        u128::from_str_radix(digits(file, BESIDE, 32)?, 16).map(Self).ok()
    }
}

/// Names the flocked file of a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HolderId(pub(super) u64);

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lock-{:032x}", self.0)
    }
}

impl fmt::Display for HolderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "holder-{:016x}", self.0)
    }
}

impl FromStr for RecordId {
    type Err = ();
    fn from_str(file: &str) -> Result<Self, ()> {
        let digits = digits(file, "lock-", 32).ok_or(())?;
        u128::from_str_radix(digits, 16).map(Self).map_err(drop)
    }
}

impl FromStr for HolderId {
    type Err = ();
    fn from_str(file: &str) -> Result<Self, ()> {
        let digits = digits(file, "holder-", 16).ok_or(())?;
        u64::from_str_radix(digits, 16).map(Self).map_err(drop)
    }
}

/// The `length` hexadecimal digits after a prefix.
fn digits<'a>(file: &'a str, prefix: &str, length: usize) -> Option<&'a str> {
    let digits = file.strip_prefix(prefix).filter(|digits| digits.len() == length)?;
    digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')).then_some(digits)
}

/// The name of the socket on which a holder's process receives wake-ups.
pub(super) fn socket_name(holder: HolderId) -> String {
    format!("wake-{:016x}", holder.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_name_reads_back_and_only_as_it_is_written() {
        let id = RecordId::of(&LockName::new("x").expect("a name"));
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(HolderId(7).to_string().parse(), Ok(HolderId(7)));
        assert_eq!(
            (RecordId::of_spare(&id.spare()), RecordId::of_beside(&id.beside())),
            (Some(id), Some(id))
        );
        assert_eq!(RecordId::of_waits(&id.waits()), Some(id));
        for file in ["lock-7", "lock-+0000000000000000000000000000007", "temp", "guard", "lock-"] {
            assert_eq!(file.parse::<RecordId>(), Err(()), "{file}");
        }
        for file in ["holder-7", "holder-000000000000000A", "holder"] {
            assert_eq!(file.parse::<HolderId>(), Err(()), "{file}");
        }
    }

    #[test]
    fn the_file_of_a_name_never_changes() {
        // Pinned, because processes of several versions share a directory: a different hash would give one
        // lock two records.
        let id = RecordId::of(&LockName::new("nightly").expect("a name"));
        assert_eq!(id.to_string(), "lock-4f88aefeafe699a7bae60596823deb34");
    }
}
