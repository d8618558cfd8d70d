//! Encodes lock names as node names.
//!
//! A node name must not contain a slash, control characters or certain ranges of Unicode, and must not be `.`
//! or `..`. Everything but letters, digits and a few signs is therefore percent-encoded, and so is a leading
//! dot. The encoding preserves prefixes.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

const KEPT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b':')
    .remove(b'@')
    .remove(b'+')
    .remove(b'=')
    .remove(b',')
    .remove(b'~')
    .remove(b'#')
    .remove(b'(')
    .remove(b')');

/// The node name of a lock name.
pub(super) fn encoded(name: &str) -> String {
    let rest = name.strip_prefix('.');
    let begin = if rest.is_some() { "%2E" } else { "" };
    format!("{begin}{}", utf8_percent_encode(rest.unwrap_or(name), KEPT))
}

/// The lock name of a node, if this store created it.
pub(super) fn decoded(node: &str) -> Option<String> {
    let name = percent_decode_str(node).decode_utf8().ok()?.into_owned();
    (encoded(&name) == node).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_nodes_name_and_comes_back() {
        let names = [
            "a",
            "orders/42",
            ".",
            "..",
            ".hidden",
            "a.b",
            "50%",
            "%2F",
            "ä€😀",
            "\0\u{1f}\u{7f}\u{9f}\u{f8ff}\u{ffff}",
            "a b\n",
        ];
        for name in names {
            let node = encoded(name);
            assert!(!node.contains('/') && !node.starts_with('.') && node.is_ascii(), "{node}");
            assert!(node.bytes().all(|byte| byte.is_ascii_graphic()), "{node}");
            assert_eq!(decoded(&node).as_deref(), Some(name));
        }
    }

    #[test]
    fn what_begins_alike_is_written_alike_and_other_nodes_are_no_names() {
        assert!(encoded("..a/b").starts_with(&encoded("..a")));
        for node in ["a/b", "%", "%zz", "%61", ".a", "a b", "%FF"] {
            assert_eq!(decoded(node), None, "{node}");
        }
    }
}
