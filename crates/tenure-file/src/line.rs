//! Format of the line file: the waiters of a queue, one per line, beside the lock's record. Pure: text in,
//! text out.
//!
//! ```text
//! + NUMBER WEIGHT DEADLINE HOLDER OWNER SUM
//! ```
//!
//! A ticket is appended at the end. A refresh overwrites it without changing its length, and abandoning it
//! changes its first byte to `-`. The lock's record says which bytes of the file are valid; bytes written but
//! not yet covered by the record are ignored.

use std::fmt::Write;

use siphasher::sip::SipHasher13;

use super::names::HolderId;
use tenure_core::owner::Owner;
use tenure_core::protocol::codec::{number, word};
use tenure_core::protocol::queue::Ticket;

/// First byte of a waiting ticket; [`LEFT`] marks an abandoned one.
const WAITS: u8 = b'+';
pub(super) const LEFT: &[u8; 1] = b"-";
/// Bytes of a space, the checksum and the newline.
const TAIL: usize = 18;

/// The valid bytes of the file and the number of tickets in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) count: u64,
}

impl Span {
    pub(super) fn is_empty(self) -> bool {
        self.from == self.to
    }

    /// Whether the file exists.
    pub(super) fn has_file(self) -> bool {
        self.to > 0
    }

    pub(super) fn bytes(self) -> u64 {
        self.to - self.from
    }
}

/// A ticket and its position in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) at: u64,
    pub(super) number: u64,
    pub(super) ticket: Ticket,
    /// A ticket without a holder ends only with its lease.
    pub(super) holder: Option<HolderId>,
}

impl Standing {
    pub(super) fn encode(&self) -> String {
        let Ticket { owner, weight, deadline_ms, listens: _ } = &self.ticket;
        let mut text = format!("+ {} {weight} {deadline_ms:020} ", self.number);
        let _ = match self.holder {
            Some(HolderId(holder)) => write!(text, "{holder:016x}"),
            None => write!(text, "{:-<16}", ""),
        };
        let _ = write!(text, " {owner}");
        let sum = SipHasher13::new().hash(&text.as_bytes()[1..]);
        let _ = writeln!(text, " {sum:016x}");
        text
    }

    /// Parses one line, which must be complete and starts at `at`. `Some(None)` for an abandoned ticket.
    pub(super) fn decode(line: &str, at: u64) -> Option<Option<Self>> {
        let body = line.len().checked_sub(TAIL).and_then(|end| line.get(..end))?;
        let sum = SipHasher13::new().hash(body.as_bytes().get(1..)?);
        (line[body.len()..] == format!(" {sum:016x}\n")).then_some(())?;
        match body.as_bytes()[0] {
            WAITS => {}
            sign if sign == LEFT[0] => return Some(None),
            _ => return None,
        }
        let mut rest = body.get(1..)?.strip_prefix(' ')?;
        let ticket_number = number(word(&mut rest)?)?;
        let weight = number(word(&mut rest)?)?;
        let deadline = word(&mut rest)?;
        (deadline.len() == 20 && deadline.bytes().all(|byte| byte.is_ascii_digit())).then_some(())?;
        let holder = word(&mut rest)?;
        let holder = match holder.bytes().all(|byte| byte == b'-') {
            true => None,
            false => Some(u64::from_str_radix(holder, 16).map(HolderId).ok()?),
        };
        let owner: Owner = rest.parse().ok()?;
        let ticket = Ticket { owner, weight, deadline_ms: deadline.parse().ok()?, listens: None };
        let standing = Self { at, number: ticket_number, ticket, holder };
        // Only the exact encoding is accepted, so that it can be overwritten in place.
        (standing.encode().as_bytes()[1..] == line.as_bytes()[1..]).then_some(Some(standing))
    }
}

/// Whether one of these lines is about this owner. Compares only the end of each line.
pub(super) fn name(lines: &[u8], owner: &Owner) -> bool {
    let owner = owner.as_str().as_bytes();
    let about = |line: &[u8]| line.len().checked_sub(TAIL).is_some_and(|end| line[..end].ends_with(owner));
    lines.split_inclusive(|byte| *byte == b'\n').any(about)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(holder: Option<u64>) -> Standing {
        let owner = "a@h:1/0123456789abcdef0123456789abcdef".parse().expect("an owner");
        let ticket = Ticket { owner, weight: 3, deadline_ms: 77, listens: None };
        Standing { at: 5, number: 9, ticket, holder: holder.map(HolderId) }
    }

    #[test]
    fn a_place_reads_back_and_keeps_its_length() {
        for standing in [standing(Some(7)), standing(None)] {
            let text = standing.encode();
            assert_eq!(Standing::decode(&text, 5), Some(Some(standing.clone())));
            let mut refreshed = standing;
            refreshed.ticket.deadline_ms = u64::MAX;
            refreshed.holder = Some(HolderId(u64::MAX));
            assert_eq!(refreshed.encode().len(), text.len());
        }
    }

    #[test]
    fn a_place_that_was_left_is_none_and_one_that_is_damaged_is_neither() {
        let text = standing(Some(7)).encode();
        assert_eq!(Standing::decode(&text.replacen('+', "-", 1), 5), Some(None));
        for at in 0..text.len() {
            assert_eq!(Standing::decode(&text[..at], 5), None, "{at}");
            let mut changed = text.clone().into_bytes();
            changed[at] ^= 1;
            let changed = String::from_utf8(changed).expect("text");
            assert_eq!(Standing::decode(&changed, 5), None, "{at}");
        }
        let other = text.replace("+ 9 3", "+ 09 3");
        assert_eq!(Standing::decode(&other, 5), None);
    }

    #[test]
    fn an_owner_is_found_in_the_lines_that_name_it() {
        let (one, two) = (standing(Some(7)), standing(None));
        let lines = format!("{}{}", one.encode(), two.encode().replace("a@h", "b@h"));
        assert!(name(lines.as_bytes(), &one.ticket.owner));
        assert!(!name(
            lines.as_bytes(),
            &"c@h:1/0123456789abcdef0123456789abcdef".parse().expect("an owner")
        ));
        assert!(!name(b"\n", &one.ticket.owner));
    }
}
