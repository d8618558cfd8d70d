//! Names of side keys: the token counter, and each lock's channel and ballot.
//!
//! Two locks never share a side key, and on a cluster a lock and its side keys share a slot. Neither wrapping
//! the name in `{}` nor appending to it ensures both: `x` and `{x}` would share `{x}:fence`, and a key
//! appended to `a}b` would be in another slot.

use std::borrow::Cow;
use std::sync::LazyLock;

use crate::requests::Keyspace;
use crate::resp::encode::decimal;
use crate::topology::slots::SLOTS;
use tenure_core::name::{LockName, USE};
use tenure_core::owner::Client;
use tenure_core::protocol::LockSpec;
use tenure_core::protocol::record::{self, marks, tag};

/// The key of the token counter, shared by all locks of a database, or of a namespace in it.
pub(crate) const COUNTER: &str = "tenure:fence";

impl Keyspace {
    /// The namespace of a lock's key. It precedes the names of the lock's side keys as well.
    pub(crate) fn namespace(self, key: &str) -> &str {
        &key[..self.namespace]
    }

    /// The name of a lock, for people.
    pub(crate) fn name(self, key: &LockName) -> &str {
        &key.as_str()[self.namespace..]
    }

    /// A key or channel that all locks of the namespace share.
    fn shared(self, key: &str, what: &'static str) -> Cow<'static, str> {
        match self.namespace(key) {
            "" => Cow::Borrowed(what),
            namespace => Cow::Owned([namespace, what].concat()),
        }
    }
}

/// The key of a server's epoch: its replication id, and since when that is known.
pub(crate) fn epoch(space: Keyspace, key: &str) -> Cow<'static, str> {
    space.shared(key, "tenure:epoch")
}

/// The channel of the messages that replicas confirm.
pub(crate) fn acks(space: Keyspace, key: &str) -> Cow<'static, str> {
    space.shared(key, "tenure:wake:acks")
}

/// The key of the token counter. A cluster has one for each slot: its hash tag is a number that hashes to the
/// lock's slot.
pub(crate) fn counter(space: Keyspace, key: &str) -> Cow<'static, str> {
    match space.has_slots {
        false => space.shared(key, COUNTER),
        true => {
            let number = NUMBERS[usize::from(slot(key))];
            Cow::Owned(format!("{}{COUNTER}:{{{number}}}", space.namespace(key)))
        }
    }
}

/// The slot whose counter a lock's tokens are drawn from; 0 where all locks share one.
pub(crate) fn counter_slot(space: Keyspace, key: &str) -> u16 {
    if space.has_slots { slot(key) } else { 0 }
}

/// The key of the highest ballot that a quorum member has seen for a lock.
pub(crate) fn ballot(space: Keyspace, key: &str) -> String {
    let (before, after) = marks(key);
    [space.namespace(key), "tenure:ballot:", before, key, after].concat()
}

/// The key of the record beside a lock, in parts.
pub(crate) fn record(space: Keyspace, lock: &LockName) -> [&str; 3] {
    record::key(space.namespace(lock.as_str()), space.name(lock))
}

/// The lock beside which the record with this key is.
pub(crate) fn recorded(space: Keyspace, key: &str) -> Option<LockName> {
    let (namespace, rest) = key.split_at_checked(space.namespace)?;
    let name = rest.strip_prefix("tenure:rec:")?;
    Some(LockName::in_store([namespace, USE, name].concat()))
}

/// For each slot, the smallest number whose decimal digits hash to it.
static NUMBERS: LazyLock<Box<[u32]>> = LazyLock::new(|| {
    let mut numbers = vec![None; usize::from(SLOTS)];
    let mut missing = numbers.len();
    for number in 0_u32.. {
        let known = &mut numbers[usize::from(slot(&number.to_string()))];
        if known.is_none() {
            (*known, missing) = (Some(number), missing - 1);
        }
        if missing == 0 {
            break;
        }
    }
    numbers.into_iter().flatten().collect()
});

/// A lock's wake-up channel. Channels are shared by all databases of a server, so the name includes the
/// database. The reentrant kind uses Redisson's channel name.
pub(crate) fn channel(space: Keyspace, spec: LockSpec, key: &str) -> String {
    with_channel(space, spec, key, |parts| parts.concat())
}

/// Like `channel`, in parts.
pub(crate) fn with_channel<T>(
    space: Keyspace,
    spec: LockSpec,
    key: &str,
    then: impl FnOnce(&[&str]) -> T,
) -> T {
    let namespace = space.namespace(key);
    match spec {
        LockSpec::Reentrant if key.contains('{') => then(&[namespace, "redisson_lock__channel:", key]),
        LockSpec::Reentrant => then(&[namespace, "redisson_lock__channel:{", key, "}"]),
        LockSpec::Mutex | LockSpec::Queue(_) => {
            let (before, after) = marks(key);
            let mut digits = [0; 20];
            let db = std::str::from_utf8(decimal(space.db.into(), &mut digits)).unwrap_or_default();
            then(&[namespace, "tenure:wake:", db, ":", before, key, after])
        }
    }
}

/// The channel of a subscription: the lock's, or one client's.
pub(crate) fn subscribed(space: Keyspace, spec: LockSpec, key: &str, client: Option<Client>) -> String {
    client.map_or_else(|| channel(space, spec, key), |client| client_channel(space, spec, key, client))
}

/// The channel on which one client's waiters learn of their grants. Scripts derive it from the lock's channel
/// and the common suffix of the client's owners.
///
/// It can coincide with the channel of a lock that has a hash tag and a name ending the same way. Subscribers
/// there get spurious wake-ups, which are harmless, because ticket numbers are unique within a database.
fn client_channel(space: Keyspace, spec: LockSpec, key: &str, client: Client) -> String {
    format!("{}:{client}", channel(space, spec, key))
}

fn has_tag(key: &str) -> bool {
    tag(key).is_some()
}

/// The slot of a key or channel: CRC16 (polynomial 0x1021, not reflected) of the hashed part.
pub(crate) fn slot(key: &str) -> u16 {
    let crc = tag(key)
        .unwrap_or(key)
        .bytes()
        .fold(0_u16, |crc, byte| (crc << 8) ^ CRC16[usize::from((crc >> 8) as u8 ^ byte)]);
    crc % SLOTS
}

const CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = ((byte as u16) << 8, 0);
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// Whether a lock and its channel share a slot.
pub(crate) fn share_a_slot(spec: LockSpec, key: &str) -> bool {
    match spec {
        LockSpec::Reentrant if key.contains('{') => has_tag(key),
        _ => has_tag(key) || !key.contains('}'),
    }
}

/// A SCAN pattern that matches exactly the keys with this prefix.
pub(crate) fn pattern(prefix: &str) -> String {
    let mut pattern = String::with_capacity(prefix.len() + 1);
    for char in prefix.chars() {
        if matches!(char, '*' | '?' | '[' | ']' | '\\') {
            pattern.push('\\');
        }
        pattern.push(char);
    }
    pattern.push('*');
    pattern
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::requests::Publish;
    use tenure_core::protocol::QueueSpec;

    const CLUSTER: Keyspace = Keyspace { db: 0, publish: Publish::Plain, has_slots: true, namespace: 0 };

    fn in_db(db: u32) -> Keyspace {
        Keyspace { db, publish: Publish::Plain, has_slots: false, namespace: 0 }
    }

    const ODD: [&str; 16] = [
        "x", "{x}", "{{x}}", "a}b", "a{b", "a{}b", "{}", "}", "{", "a{b}c", "{a}{b}", "=x", "~x", "~a}b",
        "={x}", "x:fence",
    ];

    /// The hashed part of a key by the Redis Cluster specification, written independently of `slot`.
    fn hashed(key: &str) -> &str {
        let Some(open) = key.find('{') else { return key };
        match key[open + 1..].find('}') {
            Some(0) | None => key,
            Some(length) => &key[open + 1..open + 1 + length],
        }
    }

    #[test]
    fn two_names_never_share_a_side_key() {
        let all: BTreeSet<_> = ODD
            .iter()
            .flat_map(|key| {
                [
                    ballot(in_db(0), key),
                    channel(in_db(0), LockSpec::Mutex, key),
                    channel(in_db(1), LockSpec::Mutex, key),
                ]
            })
            .collect();
        assert_eq!(all.len(), 3 * ODD.len());
    }

    #[test]
    fn a_side_key_shares_the_slot_of_its_lock_unless_it_is_marked() {
        for key in ODD {
            let side = ballot(in_db(0), key);
            if !side.starts_with("tenure:ballot:~") {
                assert_eq!(hashed(&side), hashed(key), "{key}");
            }
        }
        assert_eq!(ballot(in_db(0), "orders"), "tenure:ballot:{orders}");
        assert_eq!(channel(in_db(3), LockSpec::Mutex, "{shop}:orders"), "tenure:wake:3:={shop}:orders");
        assert_eq!(
            channel(in_db(3), LockSpec::Reentrant, "{shop}:orders"),
            "redisson_lock__channel:{shop}:orders"
        );
        assert_eq!(channel(in_db(3), LockSpec::Reentrant, "orders"), "redisson_lock__channel:{orders}");
    }

    #[test]
    fn turns_are_told_in_the_slot_of_their_lock() {
        let client = Client::from(&"@h:1/0123456789ab0123456789abcdef0123".parse().expect("an owner"));
        let spec = LockSpec::Queue(QueueSpec::FAIR);
        for key in ODD.iter().filter(|key| share_a_slot(spec, key)) {
            assert_eq!(slot(&client_channel(in_db(0), spec, key, client)), slot(key), "{key}");
        }
        assert_eq!(client_channel(in_db(3), spec, "orders", client), "tenure:wake:3:{orders}:0123456789");
        assert_eq!(client_channel(in_db(0), spec, "a{b}c", client), "tenure:wake:0:=a{b}c:0123456789");
    }

    #[test]
    fn slots_are_those_of_the_servers() {
        // From CLUSTER KEYSLOT.
        for (key, expected) in [
            ("123456789", 12_739),
            ("foo", 12_182),
            ("a", 15_495),
            ("{foo}bar", 12_182),
            ("x{foo}{bar}", 12_182),
            ("{}foo", 9_500),
            ("\u{e4}\0", 11_805),
        ] {
            assert_eq!(slot(key), expected, "{key:?}");
        }
    }

    #[test]
    fn what_shares_a_slot_is_known_without_hashing() {
        for key in ODD {
            for spec in [LockSpec::Mutex, LockSpec::Reentrant, LockSpec::Queue(QueueSpec::FAIR)] {
                let together = [ballot(in_db(0), key), channel(in_db(0), spec, key)]
                    .iter()
                    .all(|side| slot(side) == slot(key));
                assert_eq!(share_a_slot(spec, key), together, "{spec:?} {key}");
            }
        }
    }

    #[test]
    fn a_counter_shares_the_slot_of_each_lock_that_it_counts_for() {
        for key in ODD {
            assert_eq!(slot(&counter(CLUSTER, key)), slot(key), "{key}");
        }
        assert_eq!(counter(CLUSTER, "orders"), counter(CLUSTER, "{orders}:1"));
    }

    #[test]
    fn a_namespace_precedes_every_key_and_moves_no_side_key_to_another_slot() {
        let spec = LockSpec::Queue(QueueSpec::FAIR);
        for name in ODD {
            let key = format!("app:{name}");
            let lock = LockName::in_store(key.clone());
            for space in [in_db(0), CLUSTER].map(|space| Keyspace { namespace: 4, ..space }) {
                let beside = [
                    counter(space, &key).into_owned(),
                    ballot(space, &key),
                    record(space, &lock).concat(),
                    channel(space, LockSpec::Mutex, &key),
                    channel(space, LockSpec::Reentrant, &key),
                    channel(space, spec, &key),
                ];
                let of_all = [epoch(space, &key), acks(space, &key)].map(Cow::into_owned);
                for side in beside.iter().chain(&of_all) {
                    assert!(side.starts_with("app:tenure:") || side.starts_with("app:redisson"), "{side}");
                }
                assert_eq!(share_a_slot(spec, &key), share_a_slot(spec, name), "{name}");
                if space.has_slots && share_a_slot(spec, &key) {
                    for side in [&beside[0], &beside[1], &beside[3], &beside[5]] {
                        assert_eq!(slot(side), slot(&key), "{side}");
                    }
                }
                assert_eq!(space.name(&lock), name);
            }
        }
        let space = Keyspace { namespace: 4, ..in_db(3) };
        assert_eq!(channel(space, LockSpec::Mutex, "app:orders"), "app:tenure:wake:3:{app:orders}");
        assert_eq!(counter(space, "app:orders"), "app:tenure:fence");
        let job = LockName::in_store("app:tenure:use:once:{nightly}".into());
        assert_eq!(record(space, &job).concat(), "app:tenure:rec:once:{nightly}");
    }

    #[test]
    fn a_pattern_takes_the_prefix_literally() {
        assert_eq!(pattern("a*[b]?\\"), "a\\*\\[b\\]\\?\\\\*");
        assert_eq!(pattern(""), "*");
    }
}
