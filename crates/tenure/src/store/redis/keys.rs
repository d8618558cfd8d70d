//! What is kept beside a lock: its counter's key and its channel, named after it.
//!
//! Two names never share a side key, and on a cluster a lock and its side key share a slot. Neither wrapping nor appending
//! alone does that: `x` and `{x}` would share `{x}:fence`, and `a}b` would be torn from its own.

use crate::protocol::Rule;

/// The key of a lock's token counter.
pub(super) fn fence(key: &str) -> String {
    beside("tenure:fence:", key)
}

/// The channel on which a lock's end is said. Channels are common to all databases of a server, so it names the database;
/// that of the reentrant kind is named by Redisson's own rule.
pub(super) fn channel(db: u32, rule: Rule, key: &str) -> String {
    match rule {
        Rule::Reentrant if key.contains('{') => format!("redisson_lock__channel:{key}"),
        Rule::Reentrant => format!("redisson_lock__channel:{{{key}}}"),
        Rule::Mutex | Rule::Queue(_) => beside(&format!("tenure:wake:{db}:"), key),
    }
}

fn beside(prefix: &str, key: &str) -> String {
    if has_tag(key) {
        // The first tag of the whole is the tag of the key.
        format!("{prefix}={key}")
    } else if !key.contains('}') {
        format!("{prefix}{{{key}}}")
    } else {
        // No name can be made to share its slot; a single server has none.
        format!("{prefix}~{key}")
    }
}

/// Whether a cluster hashes only a part of the key: what stands between its first `{` and the next `}`, unless empty.
fn has_tag(key: &str) -> bool {
    key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).is_some_and(|(tag, _)| !tag.is_empty())
}

/// A pattern of SCAN that matches exactly the keys that begin with this prefix.
pub(super) fn pattern(prefix: &str) -> String {
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

    const ODD: [&str; 16] = [
        "x", "{x}", "{{x}}", "a}b", "a{b", "a{}b", "{}", "}", "{", "a{b}c", "{a}{b}", "=x", "~x", "~a}b",
        "={x}", "x:fence",
    ];

    /// What a cluster hashes of a key: the server's own rule, written out by hand.
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
            .flat_map(|key| [fence(key), channel(0, Rule::Mutex, key), channel(1, Rule::Mutex, key)])
            .collect();
        assert_eq!(all.len(), 3 * ODD.len());
    }

    #[test]
    fn a_side_key_shares_the_slot_of_its_lock_unless_it_is_marked() {
        for key in ODD {
            let side = fence(key);
            if !side.starts_with("tenure:fence:~") {
                assert_eq!(hashed(&side), hashed(key), "{key}");
            }
        }
        assert_eq!(fence("orders"), "tenure:fence:{orders}");
        assert_eq!(channel(3, Rule::Mutex, "{shop}:orders"), "tenure:wake:3:={shop}:orders");
        assert_eq!(channel(3, Rule::Reentrant, "{shop}:orders"), "redisson_lock__channel:{shop}:orders");
        assert_eq!(channel(3, Rule::Reentrant, "orders"), "redisson_lock__channel:{orders}");
    }

    #[test]
    fn a_pattern_takes_the_prefix_literally() {
        assert_eq!(pattern("a*[b]?\\"), "a\\*\\[b\\]\\?\\\\*");
        assert_eq!(pattern(""), "*");
    }
}
