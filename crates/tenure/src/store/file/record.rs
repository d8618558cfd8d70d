//! How a lock is written to its file, and the directory's counter to the guard file. Pure: text in, text out.
//!
//! Both are text that an operator can read. Whatever is not exactly what this version writes is refused: a lock whose
//! record cannot be read is neither free nor held.

use std::fmt;
use std::str::FromStr;

use siphasher::sip128::SipHasher24;

use crate::name::LockName;
use crate::protocol::{Data, Entry, Kind};

const FORMAT: &str = "1";
const RECORD: &str = "tenure lock";
const LEDGER: &str = "tenure guard";
/// No record is longer: the longest name, and room for the value and the header.
pub(super) const MAX_BYTES: usize = 2 * LockName::MAX_BYTES;

/// Which file a lock's record is in: a hash of its name. The record says the name too, so that two locks are never
/// taken for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RecordId(u128);

impl RecordId {
    pub(super) fn of(name: &LockName) -> Self {
        Self(SipHasher24::new().hash(name.as_str().as_bytes()).as_u128())
    }
}

/// Which file tells whether a holder is alive.
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
        let id = Self(u128::from_str_radix(file.strip_prefix("lock-").ok_or(())?, 16).map_err(drop)?);
        if id.to_string() == file { Ok(id) } else { Err(()) }
    }
}

impl FromStr for HolderId {
    type Err = ();
    fn from_str(file: &str) -> Result<Self, ()> {
        let id = Self(u64::from_str_radix(file.strip_prefix("holder-").ok_or(())?, 16).map_err(drop)?);
        if id.to_string() == file { Ok(id) } else { Err(()) }
    }
}

/// One lock, as its file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) name: LockName,
    /// The boot in whose time the lease is counted.
    pub(super) boot: String,
    /// Whose end ends the hold too; without one only the lease does.
    pub(super) holder: Option<HolderId>,
    pub(super) lock: Entry<Data>,
}

/// What the guard file says: the boot in which the directory is used, and the last token given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ledger {
    pub(super) boot: String,
    pub(super) fence: u64,
}

/// Why a file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Damage {
    /// Not what this crate writes, or only a part of it.
    Damaged,
    /// What another version writes.
    Format(String),
}

impl Record {
    pub(super) fn encode(&self) -> String {
        let (kind, value) = match &self.lock.value {
            Data::Text(value) => (Kind::Mutex, value.as_str()),
            Data::Other(kind) => (*kind, ""),
            Data::Hash(_) | Data::Queue(_) => (Kind::Mutex, ""),
        };
        let ends = self.lock.expires_ms.map_or("never".to_owned(), |end| end.to_string());
        let holder = self.holder.map_or("none".to_owned(), |holder| holder.to_string());
        let (boot, name) = (&self.boot, self.name.as_str());
        format!(
            "{RECORD} {FORMAT}\nboot {boot}\nends {ends}\nholder {holder}\nkind {kind}\nbytes {} {}\n{name}\n{value}\n",
            name.len(),
            value.len()
        )
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Damage> {
        let rest = after_format(bytes, RECORD)?;
        Self::decode_body(rest).ok_or(Damage::Damaged)
    }

    fn decode_body(mut rest: &str) -> Option<Self> {
        let boot = field(&mut rest, "boot")?.to_owned();
        let expires_ms = match field(&mut rest, "ends")? {
            "never" => None,
            end => Some(number(end)?),
        };
        let holder = match field(&mut rest, "holder")? {
            "none" => None,
            holder => Some(holder.parse().ok()?),
        };
        let kind: Kind = field(&mut rest, "kind")?.parse().ok()?;
        let (name_bytes, value_bytes) = field(&mut rest, "bytes")?.split_once(' ')?;
        let name = take(&mut rest, number(name_bytes)?)?;
        let value = take(&mut rest, number(value_bytes)?)?;
        let value = match kind {
            Kind::Mutex => Data::Text(value.to_owned()),
            other => Data::Other(other),
        };
        let name = LockName::new(name).ok()?;
        rest.is_empty().then_some(Self { name, boot, holder, lock: Entry { value, expires_ms } })
    }
}

impl Ledger {
    /// Always of the same length for boots of the same length, so that it can be written over.
    pub(super) fn encode(&self) -> String {
        format!("{LEDGER} {FORMAT}\nboot {}\nfence {:020}\n", self.boot, self.fence)
    }

    /// `None` for a guard file that was only just created.
    pub(super) fn decode(bytes: &[u8]) -> Result<Option<Self>, Damage> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let mut rest = after_format(bytes, LEDGER)?;
        let mut body = || {
            let boot = field(&mut rest, "boot")?.to_owned();
            let fence = field(&mut rest, "fence")?;
            let all = fence.len() == 20 && fence.bytes().all(|byte| byte.is_ascii_digit()) && rest.is_empty();
            all.then_some(Self { boot, fence: fence.parse().ok()? })
        };
        body().map(Some).ok_or(Damage::Damaged)
    }
}

impl Damage {
    /// The end of the sentence that begins with the file, and what to do.
    pub(super) fn of_record(&self) -> String {
        match self {
            Self::Damaged => {
                "is no whole record of a lock: once nobody holds that lock, remove the file".to_owned()
            }
            Self::Format(format) => other_version(format),
        }
    }

    /// The same for the guard file.
    pub(super) fn of_ledger(&self) -> String {
        match self {
            Self::Damaged => {
                "is damaged or not a guard file: once nobody uses the directory, remove the file".to_owned()
            }
            Self::Format(format) => other_version(format),
        }
    }
}

fn other_version(format: &str) -> String {
    format!(
        "was written by another version of tenure (format {format}; this one knows {FORMAT}): \
         use that version, or another directory"
    )
}

/// What follows the first line, if that is what this version writes.
fn after_format<'a>(bytes: &'a [u8], what: &str) -> Result<&'a str, Damage> {
    // The first line alone decides about the version: another one may write bytes that are no text.
    let end = bytes.iter().position(|byte| *byte == b'\n').ok_or(Damage::Damaged)?;
    let first = std::str::from_utf8(&bytes[..end]).map_err(|_| Damage::Damaged)?;
    match first.strip_prefix(what).and_then(|rest| rest.strip_prefix(' ')) {
        Some(FORMAT) => std::str::from_utf8(&bytes[end + 1..]).map_err(|_| Damage::Damaged),
        Some(format) if number::<u32>(format).is_some() => Err(Damage::Format(format.to_owned())),
        _ => Err(Damage::Damaged),
    }
}

/// The value of the next line, which must carry this key.
fn field<'a>(rest: &mut &'a str, key: &str) -> Option<&'a str> {
    let (line, after) = rest.split_once('\n')?;
    *rest = after;
    line.strip_prefix(key)?.strip_prefix(' ')
}

/// The next `bytes` bytes, which a line's end must follow.
fn take<'a>(rest: &mut &'a str, bytes: usize) -> Option<&'a str> {
    let (text, after) = (rest.get(..bytes)?, rest.get(bytes..)?);
    *rest = after.strip_prefix('\n')?;
    Some(text)
}

/// A number as it is printed: no sign, no leading zero.
fn number<T: FromStr + ToString>(text: &str) -> Option<T> {
    text.parse().ok().filter(|value: &T| value.to_string() == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &str, value: &str) -> Record {
        Record {
            name: LockName::new(name).expect("a name"),
            boot: "b00t".to_owned(),
            holder: Some(HolderId(7)),
            lock: Entry { value: Data::Text(value.to_owned()), expires_ms: Some(1_234) },
        }
    }

    #[test]
    fn any_name_and_any_value_read_back() {
        let long = "ü/".repeat(20_000);
        for name in ["x", "a\nb", "a\0b\r\n", "..", "holder none\nkind mutex\n", long.as_str()] {
            for value in ["", "a@h:1/0#5", "a\nb\n\n"] {
                let record = record(name, value);
                let text = record.encode();
                assert!(text.len() <= MAX_BYTES);
                assert_eq!(Record::decode(text.as_bytes()), Ok(record));
            }
        }
        let lasting = Record {
            holder: None,
            lock: Entry { value: Data::Text("x".into()), expires_ms: None },
            ..record("x", "")
        };
        assert_eq!(Record::decode(lasting.encode().as_bytes()), Ok(lasting));
    }

    #[test]
    fn another_kind_reads_back_whatever_it_keeps() {
        let text = record("x", "things of its own\n").encode().replace("kind mutex", "kind fair mutex");
        let read = Record::decode(text.as_bytes()).expect("a record");
        assert_eq!(read.lock.value, Data::Other(Kind::Fair));
        assert_eq!(Record::decode(read.encode().as_bytes()), Ok(read));
    }

    #[test]
    fn a_record_cut_short_anywhere_or_changed_in_its_shape_is_refused() {
        let text = record("name", "value").encode();
        for end in 0..text.len() {
            assert_eq!(Record::decode(&text.as_bytes()[..end]), Err(Damage::Damaged), "{end}");
        }
        for (from, to) in [
            ("tenure lock 1", "tenure lock 1 "),
            ("ends 1234", "ends +1234"),
            ("ends 1234", "ends 99999999999999999999"),
            ("holder holder-0000000000000007", "holder 7"),
            ("kind mutex", "kind monitor"),
            ("bytes 4 5", "bytes 4 6"),
            ("bytes 4 5", "bytes 5 4"),
            ("name\nvalue\n", "name\nvalue\n\n"),
        ] {
            assert!(text.contains(from), "{from}");
            assert_eq!(Record::decode(text.replace(from, to).as_bytes()), Err(Damage::Damaged), "{to}");
        }
        assert_eq!(Record::decode(&[0; 300]), Err(Damage::Damaged));
        assert_eq!(Record::decode(&[text.as_bytes(), b"\xff"].concat()), Err(Damage::Damaged));
    }

    #[test]
    fn another_version_is_told_from_damage() {
        let later = [b"tenure lock 2\n".as_slice(), &[0xff; 20]].concat();
        assert_eq!(Record::decode(&later), Err(Damage::Format("2".to_owned())));
        assert_eq!(Ledger::decode(b"tenure guard 10\n"), Err(Damage::Format("10".to_owned())));
    }

    #[test]
    fn a_ledger_reads_back_and_keeps_its_length() {
        let ledgers = [0, 7, u64::MAX].map(|fence| Ledger { boot: "b00t".to_owned(), fence });
        for ledger in &ledgers {
            let text = ledger.encode();
            assert_eq!(text.len(), ledgers[0].encode().len());
            assert_eq!(Ledger::decode(text.as_bytes()), Ok(Some(ledger.clone())));
            for end in 1..text.len() {
                assert_eq!(Ledger::decode(&text.as_bytes()[..end]), Err(Damage::Damaged), "{end}");
            }
        }
        assert_eq!(Ledger::decode(b""), Ok(None));
    }

    #[test]
    fn a_file_name_reads_back_and_only_as_it_is_written() {
        let id = RecordId::of(&LockName::new("x").expect("a name"));
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(HolderId(7).to_string().parse(), Ok(HolderId(7)));
        for file in ["lock-7", "lock-+0000000000000000000000000000007", "temp", "guard", "lock-"] {
            assert_eq!(file.parse::<RecordId>(), Err(()), "{file}");
        }
        for file in ["holder-7", "holder-000000000000000A", "holder"] {
            assert_eq!(file.parse::<HolderId>(), Err(()), "{file}");
        }
    }

    #[test]
    fn the_file_of_a_name_never_changes() {
        // Processes of several versions share a directory: another hash would give one lock two records.
        let id = RecordId::of(&LockName::new("nightly").expect("a name"));
        assert_eq!(id.to_string(), "lock-4f88aefeafe699a7bae60596823deb34");
    }
}
