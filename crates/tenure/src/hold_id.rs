use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::name::{LockName, Quoted};
use crate::owner::Owner;
use crate::protocol::LockSpec;

/// Identifies one hold at its store, so that a process which supervises the holder can release
/// exactly that hold if the holder dies: see
/// [`Guard::hold_id`](crate::Guard::hold_id) and [`Locks::release_hold`](crate::Locks::release_hold).
///
/// `Display` prints it as one line, unless the lock's name has line breaks, and `FromStr` parses that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldId {
    /// The full name.
    pub(crate) name: LockName,
    pub(crate) spec: LockSpec,
    pub(crate) owner: Owner,
    pub(crate) hold: u64,
}

impl fmt::Display for HoldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, spec, owner, hold } = self;
        let (kind, capacity) = (spec.kind().as_str().replace(' ', "_"), spec.capacity().unwrap_or(1));
        write!(f, "{kind} {capacity} {hold:x} {owner} {name}")
    }
}

/// Parses what [`Display`](fmt::Display) prints.
impl FromStr for HoldId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        parse(text).ok_or_else(|| {
            let text = Quoted(text);
            Error::invalid(format!("hold id: got {text}, expected `KIND CAPACITY HOLD OWNER NAME`"))
        })
    }
}

fn parse(text: &str) -> Option<HoldId> {
    let mut parts = text.splitn(5, ' ');
    let kind = parts.next()?.replace('_', " ").parse().ok()?;
    let capacity = parts.next()?.parse().ok()?;
    let hold = u64::from_str_radix(parts.next()?, 16).ok()?;
    let owner = parts.next()?.parse().ok()?;
    // A full name, which may be one that only this library makes.
    let name = parts.next().filter(|name| !name.is_empty())?;
    let name = LockName::in_store(name.to_owned());
    Some(HoldId { name, spec: LockSpec::of(kind, Some(capacity)), owner, hold })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::QueueSpec;

    #[test]
    fn a_hold_id_reads_back_and_noise_does_not() {
        let owner = Owner::new("nightly report").expect("an owner");
        let rules = [LockSpec::Mutex, LockSpec::Reentrant, LockSpec::Queue(QueueSpec::permits(5, 1))];
        for spec in rules {
            for name in ["x", "two words\nand a line", "tenure:use:elect:{x}"] {
                let name = LockName::in_store(name.to_owned());
                let id = HoldId { name, spec, owner: owner.clone(), hold: u64::MAX };
                assert_eq!(id.to_string().parse::<HoldId>().expect("a hold id"), id);
            }
        }
        for text in ["", "mutex 1 ff", "mutex 1 xx a@h:1/0 x", "lock 1 ff a@h:1/0 x"] {
            assert!(text.parse::<HoldId>().is_err(), "{text:?}");
        }
    }
}
