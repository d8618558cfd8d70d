//! Formats of the record files and of the guard file. Pure: text in, text out.
//!
//! Both are text that an operator can read. Anything but the exact encoding of this version is refused: a
//! lock with an unreadable record is neither free nor held.

use std::fmt::Write;

use siphasher::sip::SipHasher13;

use super::bindings::Bindings;
use super::names::HolderId;
use tenure_core::name::{LockName, USE};
use tenure_core::protocol::codec::{self, number, word};
use tenure_core::protocol::{self, Data, ExpiringValue, Kind, Now, State};

/// Version of the directory's files. The guard file keeps out processes of another version.
pub const FORMAT: &str = "4";
const RECORD: &str = "tenure lock";
const SUM: &str = "sum ";
const LEDGER: &str = "tenure guard";
/// Maximum size of a queue's record, or line, that accepts further tickets: about 10,000 of the longest
/// owners or 30,000 typical ones.
pub(super) const FULL_BYTES: usize = 1 << 22;
/// Maximum size of any record. The gap to [`FULL_BYTES`] lets the members of a full queue renew.
pub(super) const MAX_BYTES: usize = 2 * FULL_BYTES;

/// One lock as stored in its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileRecord {
    pub(super) name: LockName,
    /// The boot whose clock counts the leases.
    pub(super) boot: String,
    pub(super) bindings: Bindings,
    pub(super) lock: ExpiringValue<Data>,
}

/// Content of the guard file: the boot in which the directory is used and the last token issued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ledger {
    pub(super) boot: String,
    pub(super) fence: u64,
}

/// Why a file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Damage {
    /// Truncated, or not written by this crate.
    Damaged,
    /// Written by another version.
    Format(String),
}

impl FileRecord {
    pub(super) fn encode(&self) -> String {
        let (kind, value) = (codec::kind(&self.lock.value), codec::encode(&self.lock.value));
        let ends = self.lock.expires_ms.map_or("never".to_owned(), |end| end.to_string());
        let (boot, name, bindings) = (&self.boot, self.name.as_str(), self.bindings.by_holder());
        let mut text = format!("{RECORD} {FORMAT}\nboot {boot}\nends {ends}\nholders {}\n", bindings.len());
        for (holder, numbers) in bindings {
            let _ = write!(text, "{holder}");
            for number in numbers {
                let _ = write!(text, " {number}");
            }
            text.push('\n');
        }
        let _ = writeln!(text, "kind {kind}");
        let _ = write!(text, "bytes {} {}\n{name}\n{value}\n", name.len(), value.len());
        text.push_str(&seal_of(text.as_bytes()));
        text
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Damage> {
        Self::decode_whole(bytes).or_else(|damage| {
            // On a full disk, a process that was killed while it replaced a longer record left the end of that one.
            let seal = format!("\n{SUM}");
            let at = bytes.windows(seal.len()).position(|bytes| bytes == seal.as_bytes()).ok_or(damage)?;
            let shorter = bytes.get(..at + seal.len() + 17).unwrap_or_default();
            Self::decode_whole(shorter)
        })
    }

    fn decode_whole(bytes: &[u8]) -> Result<Self, Damage> {
        let rest = after_format(bytes, RECORD)?;
        let body = rest.len().checked_sub(SUM.len() + 17).and_then(|end| rest.split_at_checked(end));
        let (body, seal) = body.ok_or(Damage::Damaged)?;
        // A read that races with a write may return a mix of both, and everything in a queue's record is
        // trusted.
        if seal != seal_of(&bytes[..bytes.len() - seal.len()]) {
            return Err(Damage::Damaged);
        }
        Self::decode_body(body).ok_or(Damage::Damaged)
    }

    fn decode_body(mut rest: &str) -> Option<Self> {
        let boot = field(&mut rest, "boot")?.to_owned();
        let expires_ms = match field(&mut rest, "ends")? {
            "never" => None,
            end => Some(number(end)?),
        };
        let bindings = decode_bindings(&mut rest)?;
        let kind: Kind = field(&mut rest, "kind")?.parse().ok()?;
        let (name_bytes, value_bytes) = field(&mut rest, "bytes")?.split_once(' ')?;
        let name = take(&mut rest, number(name_bytes)?)?;
        let value = take(&mut rest, number(value_bytes)?)?;
        let value = codec::decode(kind, value)?;
        let name = match name.starts_with(USE) {
            true => LockName::in_store(name.to_owned()),
            false => LockName::new(name).ok()?,
        };
        let is_whole = rest.is_empty() && bindings.iter().all(|(number, _)| value.has(number));
        let lock = ExpiringValue { value, expires_ms };
        is_whole.then_some(Self { name, boot, bindings, lock })
    }

    /// The holds and tickets bound to these holders.
    pub(super) fn bound_to(&self, is_one: impl Fn(HolderId) -> bool) -> Vec<u64> {
        let holders = self.bindings.by_holder();
        let those = holders.into_iter().filter(|(holder, _)| is_one(*holder));
        those.flat_map(|(_, numbers)| numbers).collect()
    }

    /// The record without what is bound to these holders; `None` if nothing is left.
    pub(super) fn without(self, is_dead: impl Fn(HolderId) -> bool) -> Option<Self> {
        let numbers = self.bound_to(is_dead);
        self.without_numbers(&numbers)
    }

    /// Whether nothing in the record is valid any more.
    pub(super) fn is_over(&self, now: Now) -> bool {
        self.lock.is_over(now)
    }

    /// The record without these holds and tickets; `None` if nothing is left.
    pub(super) fn without_numbers(mut self, numbers: &[u64]) -> Option<Self> {
        if numbers.is_empty() {
            return Some(self);
        }
        let mut state = State { lock: Some(self.lock), ballot: None };
        numbers.iter().for_each(|number| protocol::end(&mut state, *number));
        self.lock = state.lock?;
        self.bindings.retain(|number| self.lock.value.has(number));
        Some(self)
    }
}

/// The last line: a hash of everything before it.
fn seal_of(bytes: &[u8]) -> String {
    format!("{SUM}{:016x}\n", SipHasher13::new().hash(bytes))
}

/// Parses a line per holder: its file and the holds bound to it.
fn decode_bindings(rest: &mut &str) -> Option<Bindings> {
    let (mut bindings, mut last) = (Vec::new(), None);
    for _ in 0..number::<usize>(field(rest, "holders")?)? {
        let (mut line, after) = rest.split_once('\n')?;
        *rest = after;
        let holder: HolderId = word(&mut line)?.parse().ok()?;
        let mut last_hold = None;
        for hold in line.split(' ') {
            let hold: u64 = number(hold)?;
            (last_hold < Some(hold)).then(|| bindings.push((hold, holder)))?;
            last_hold = Some(hold);
        }
        (last < Some(holder)).then_some(())?;
        last = Some(holder);
    }
    Bindings::new(bindings)
}

impl Ledger {
    /// The length depends only on the length of the boot id, so that it can be overwritten in place.
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
    /// Reason and remedy, to follow the file's path.
    pub(super) fn of_record(&self) -> String {
        match self {
            Self::Damaged => {
                "is not a complete record of a lock: once no process holds that lock, remove the file"
                    .to_owned()
            }
            Self::Format(format) => other_version(format),
        }
    }

    pub(super) fn of_ledger(&self) -> String {
        match self {
            Self::Damaged => {
                "is damaged or not a guard file: once no process uses the directory, remove the file"
                    .to_owned()
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

/// The text after the first line, if this version can read it.
fn after_format<'a>(bytes: &'a [u8], what: &str) -> Result<&'a str, Damage> {
    // Only the first line is checked for the version, because another version may write bytes that are not
    // UTF-8.
    let end = bytes.iter().position(|byte| *byte == b'\n').ok_or(Damage::Damaged)?;
    let first = std::str::from_utf8(&bytes[..end]).map_err(|_| Damage::Damaged)?;
    match first.strip_prefix(what).and_then(|rest| rest.strip_prefix(' ')) {
        Some(FORMAT) => std::str::from_utf8(&bytes[end + 1..]).map_err(|_| Damage::Damaged),
        Some(format) if number::<u32>(format).is_some() => Err(Damage::Format(format.to_owned())),
        _ => Err(Damage::Damaged),
    }
}

/// The value of the next line, which must have this key.
fn field<'a>(rest: &mut &'a str, key: &str) -> Option<&'a str> {
    let (line, after) = rest.split_once('\n')?;
    *rest = after;
    line.strip_prefix(key)?.strip_prefix(' ')
}

/// The next `bytes` bytes, which must be followed by a newline.
fn take<'a>(rest: &mut &'a str, bytes: usize) -> Option<&'a str> {
    let (text, after) = (rest.get(..bytes)?, rest.get(bytes..)?);
    *rest = after.strip_prefix('\n')?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use tenure_testkit::fuzz::fuzz;

    use super::*;
    use tenure_core::protocol::queue::{Queue, Ticket};

    const A: &str = "a@h:1/0123456789abcdef0123456789abcdef";
    const B: &str = "b@h:2/0123456789abcdef0123456789abcdef";
    const C: &str = "c@h:3/0123456789abcdef0123456789abcdef";

    fn record(name: &str, value: Data) -> FileRecord {
        FileRecord {
            name: LockName::new(name).expect("a name"),
            boot: "b00t".to_owned(),
            bindings: Bindings::default(),
            lock: ExpiringValue { value, expires_ms: Some(1_234) },
        }
    }

    /// The body with a valid checksum line.
    fn sealed(body: &str) -> String {
        format!("{body}{}", seal_of(body.as_bytes()))
    }

    fn body(record: &FileRecord) -> String {
        let text = record.encode();
        text[..text.rfind(SUM).expect("a last line")].to_owned()
    }

    /// One holder, with token 5, bound to holder file 7.
    fn mutex() -> FileRecord {
        let mut record = record("name", Data::Text(format!("{A}#5")));
        record.bindings.bind(5, Some(HolderId(7)));
        record
    }

    /// One owner holds it three times: from two processes, and once detached.
    fn reentrant() -> FileRecord {
        let fields = [(A, "3"), ("#fence", "5"), ("#a1", "1"), ("#b2", "1"), ("#0", "1")];
        let hash = fields.map(|(field, value)| (field.to_owned(), value.to_owned()));
        let mut record = record("name", Data::Hash(hash.into()));
        record.bindings.bind(0xa1, Some(HolderId(7)));
        record.bindings.bind(0xb2, Some(HolderId(8)));
        record
    }

    /// Three holders of a semaphore with three permits.
    fn semaphore() -> FileRecord {
        let mut queue = Queue::new(Kind::Semaphore, 3);
        queue.mark = 9;
        for (number, weight, owner) in [(5, 1, A), (6, 1, B), (9, 1, C)] {
            let owner = owner.parse().expect("an owner");
            queue.insert(number, Ticket { owner, weight, deadline_ms: 1_000 + number, listens: None });
        }
        let mut record = record("name", Data::Queue(queue));
        record.lock.expires_ms = Some(1_009);
        for (number, holder) in [(5, 7), (6, 8), (9, 7)] {
            record.bindings.bind(number, Some(HolderId(holder)));
        }
        record
    }

    #[test]
    fn any_name_and_any_value_read_back() {
        let long = "ü/".repeat(20_000);
        for name in ["x", "a\nb", "a\0b\r\n", "..", "holders 0\nkind mutex\n", long.as_str()] {
            for value in ["", "a@h:1/0#5", "a\nb\n\n"] {
                let record = record(name, Data::Text(value.into()));
                let text = record.encode();
                assert!(text.len() <= MAX_BYTES);
                assert_eq!(FileRecord::decode(text.as_bytes()), Ok(record));
            }
        }
        let mut lasting = record("x", Data::Text("x".into()));
        lasting.lock.expires_ms = None;
        assert_eq!(FileRecord::decode(lasting.encode().as_bytes()), Ok(lasting));
    }

    #[test]
    fn every_kind_reads_back() {
        for record in [mutex(), reentrant(), semaphore()] {
            assert_eq!(FileRecord::decode(record.encode().as_bytes()), Ok(record));
        }
    }

    #[test]
    fn those_who_wait_read_back() {
        let mut record = semaphore();
        let Data::Queue(queue) = &mut record.lock.value else { panic!("{record:?}") };
        let owner = "d@h:4/0123456789abcdef0123456789abcdef".parse().expect("an owner");
        queue.insert(11, Ticket { owner, weight: 1, deadline_ms: 2_000, listens: None });
        record.bindings.bind(11, Some(HolderId(9)));
        record.lock.expires_ms = Some(2_000);
        assert_eq!(FileRecord::decode(record.encode().as_bytes()), Ok(record));
    }

    #[test]
    fn ten_thousand_holders_with_the_longest_names_have_room() {
        let longest = format!("{}@{}:{}/{}", "l".repeat(64), "h".repeat(64), u32::MAX, "f".repeat(27));
        let mut queue = Queue::new(Kind::RwLock, 1 << 20);
        queue.mark = u64::MAX;
        let mut record = record(&"n".repeat(LockName::MAX_BYTES), Data::Text(String::new()));
        for number in 0..10_000 {
            let owner = format!("{longest}{number:05}").parse().expect("an owner");
            let number = u64::MAX - 10_000 + number;
            queue.insert(number, Ticket { owner, weight: 1, deadline_ms: u64::MAX, listens: None });
            record.bindings.bind(number, Some(HolderId(number)));
        }
        record.lock = ExpiringValue { value: Data::Queue(queue), expires_ms: Some(u64::MAX) };
        let text = record.encode();
        assert!(text.len() <= FULL_BYTES, "{}", text.len());
        assert_eq!(FileRecord::decode(text.as_bytes()), Ok(record));
    }

    #[test]
    fn a_record_cut_short_anywhere_or_changed_in_a_byte_is_refused() {
        for record in [mutex(), reentrant(), semaphore()] {
            let text = record.encode().into_bytes();
            for end in 0..text.len() {
                assert_eq!(FileRecord::decode(&text[..end]), Err(Damage::Damaged), "{end}");
                let mut changed = text.clone();
                changed[end] ^= 1;
                assert!(FileRecord::decode(&changed).is_err(), "{end}");
            }
        }
        assert_eq!(FileRecord::decode(&[0; 300]), Err(Damage::Damaged));
    }

    /// As a process leaves it that is killed while it overwrites a record of a full disk.
    #[test]
    fn the_end_of_a_longer_record_behind_one_is_ignored() {
        let [short, long] = [mutex(), semaphore()].map(|record| record.encode());
        assert!(short.len() < long.len());
        for at in short.len()..long.len() {
            let text = [short.as_bytes(), &long.as_bytes()[at..]].concat();
            assert_eq!(FileRecord::decode(&text), Ok(mutex()), "{at}");
        }
        // The end may begin within a character.
        assert_eq!(FileRecord::decode(&[short.as_bytes(), b"\xa4"].concat()), Ok(mutex()));
    }

    #[test]
    fn what_no_machine_would_write_is_refused() {
        let changes: [(FileRecord, &[(&str, &str)]); 3] = [
            (
                mutex(),
                &[
                    ("tenure lock 4", "tenure lock 4 "),
                    ("ends 1234", "ends +1234"),
                    ("ends 1234", "ends 99999999999999999999"),
                    ("holders 1", "holders 0"),
                    ("holders 1", "holders 2"),
                    ("holders 1", "holders -1"),
                    ("holder-0000000000000007 5", "7 5"),
                    ("holder-0000000000000007 5", "holder-0000000000000007 6"),
                    ("holder-0000000000000007 5", "holder-0000000000000007 5 5"),
                    ("holder-0000000000000007 5", "holder-0000000000000007"),
                    ("kind mutex", "kind monitor"),
                    ("kind mutex", "kind reentrant mutex"),
                    ("kind mutex", "kind fair mutex"),
                    ("bytes 4 40", "bytes 4 41"),
                    ("bytes 4 40", "bytes 40 4"),
                    ("#5\n", "#5\n\n"),
                ],
            ),
            (
                reentrant(),
                &[
                    ("bytes 4 67", "bytes 4 66"),
                    ("#a1 1", "#a1 2"),
                    ("#a1 1", "#A1 1"),
                    ("#a1 1", "#c1 1"),
                    ("#b2 1", "#x2 1"),
                    ("#b2 1", "#a1 1"),
                    ("#fence 5", "#fence x"),
                    ("#fence 5", "#fenc0 5"),
                    ("abcdef 3", "abcdef 4"),
                    ("abcdef 3", "abcdef 03"),
                    ("a@h:1/0", "a h:1/0"),
                    ("8 178", "8 161"),
                ],
            ),
            (
                semaphore(),
                &[
                    ("\n3 9\n", "\n2 9\n"),
                    ("\n5 1 ", "\n5 0 "),
                    ("\n5 1 ", "\n5 4 "),
                    ("\n6 1 ", "\n5 1 "),
                    ("\n6 1 ", "\n9 1 "),
                    (" 1006 ", " 100x "),
                    (" 1006 ", " 1006  "),
                    ("b@h:2", "a@h:1"),
                    ("b@h:2", "b@h:x"),
                    ("8 6\n", "8 9\n"),
                    ("7 5 9", "7 9 5"),
                ],
            ),
        ];
        for (record, changes) in changes {
            let body = body(&record);
            assert_eq!(FileRecord::decode(sealed(&body).as_bytes()), Ok(record));
            for (from, to) in changes {
                assert!(body.contains(from), "{from:?} in {body}");
                let changed = sealed(&body.replacen(from, to, 1));
                assert_eq!(FileRecord::decode(changed.as_bytes()), Err(Damage::Damaged), "{to:?}");
            }
        }
        let mut empty = semaphore();
        empty.lock.value = Data::Queue(Queue::new(Kind::Semaphore, 2));
        empty.bindings = Bindings::default();
        assert_eq!(FileRecord::decode(empty.encode().as_bytes()), Err(Damage::Damaged));
    }

    #[test]
    fn whatever_a_file_says_it_is_refused_or_reads_as_it_is_written() {
        let words = [
            "\n",
            " ",
            "holder-0000000000000007",
            "never",
            "#fence",
            "#0",
            "kind mutex",
            "kind fair mutex",
            "kind reentrant mutex",
            "kind read-write lock",
            "kind semaphore",
            "tenure lock 4\n",
            "tenure guard 4\n",
            A,
            B,
        ];
        fuzz("record", &[], &words, |bytes| {
            let _ = FileRecord::decode(bytes);
            if let Ok(Some(ledger)) = Ledger::decode(bytes) {
                assert_eq!(ledger.encode().as_bytes(), bytes);
            }
            // Sealed content is trusted.
            let sealed = [bytes, seal_of(bytes).as_bytes()].concat();
            let record = match FileRecord::decode(&sealed) {
                Ok(record) => record,
                Err(damage) => {
                    let said = damage.of_record();
                    assert!(!said.contains(char::is_control));
                    return said;
                }
            };
            assert_eq!(record.encode().as_bytes(), sealed);
            let outcome = format!(
                "{:?} {:?}",
                record.clone().without(|_| true).map(|left| codec::kind(&left.lock.value)),
                record
                    .clone()
                    .without(|holder| holder == HolderId(7))
                    .map(|left| left.bindings.by_holder().len()),
            );
            assert_eq!(record.clone().without(|_| false), Some(record));
            outcome
        });
    }

    #[test]
    fn a_dead_holders_holds_end_and_no_others() {
        let is_seven = |holder| holder == HolderId(7);
        assert_eq!(mutex().without(is_seven), None);
        assert_eq!(mutex().without(|_| false), Some(mutex()));

        let left = reentrant().without(is_seven).expect("two holds");
        let Data::Hash(hash) = &left.lock.value else { panic!("{left:?}") };
        assert_eq!(
            (hash[A].as_str(), hash.contains_key("#a1"), hash.contains_key("#b2")),
            ("2", false, true)
        );
        assert!(left.bindings.names(HolderId(8)) && !left.bindings.names(HolderId(7)));
        let left = reentrant().without(|_| true).expect("a detached hold");
        assert!(matches!(&left.lock.value, Data::Hash(hash) if hash[A] == "1"));

        let left = semaphore().without(is_seven).expect("one that holds");
        let Data::Queue(queue) = &left.lock.value else { panic!("{left:?}") };
        assert_eq!(queue.tickets().map(|(number, _)| number).collect::<Vec<_>>(), [6]);
        assert_eq!(queue.holding().collect::<Vec<_>>(), [6]);
        assert_eq!(semaphore().without(|_| true), None);
    }

    #[test]
    fn another_version_is_told_from_damage() {
        let later = [b"tenure lock 5\n".as_slice(), &[0xff; 20]].concat();
        assert_eq!(FileRecord::decode(&later), Err(Damage::Format("5".to_owned())));
        let earlier = b"tenure lock 1\n".as_slice();
        assert_eq!(FileRecord::decode(earlier), Err(Damage::Format("1".to_owned())));
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
}
