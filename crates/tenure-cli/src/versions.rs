//! Which versions of tenure are connected to a store, by the names that clients give their connections.

use std::collections::BTreeMap;
use std::fmt;

use tenure::VERSION;

/// Why the versions are unknown on some servers.
pub(crate) const UNTOLD: &str = "the server does not tell the names of its connections";

/// The number of connections by version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Versions(BTreeMap<String, usize>);

impl Versions {
    /// By the names of all connections, also of other programs.
    pub(crate) fn of(names: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let mut versions = Self::default();
        versions.add(names);
        versions
    }

    pub(crate) fn add(&mut self, names: impl IntoIterator<Item = impl AsRef<str>>) {
        for name in names {
            if let Some(version) = version(name.as_ref()) {
                *self.0.entry(version.to_owned()).or_default() += 1;
            }
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, usize)> {
        self.0.iter().map(|(version, count)| (version.as_str(), *count))
    }

    /// Those that may not share a store with this program.
    pub(crate) fn others(&self) -> Vec<&str> {
        self.iter().map(|(version, _)| version).filter(|version| series(version) != series(VERSION)).collect()
    }
}

/// Like `0.1.0 (12), 0.1.1 (3)`.
impl fmt::Display for Versions {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<_> = self.iter().map(|(version, count)| format!("{version} ({count})")).collect();
        to.write_str(&all.join(", "))
    }
}

/// The version in a name like `tenure-0.1.0`, which may have more before it, after a space, and after it.
fn version(name: &str) -> Option<&str> {
    let version = name.split(' ').find_map(|word| word.strip_prefix("tenure-"))?;
    let version = version.split('-').next()?;
    version.starts_with(|char: char| char.is_ascii_digit()).then_some(version)
}

/// What two versions have in common that may share a store: before 1.0 the first two numbers, then the first.
fn series(version: &str) -> &str {
    let numbers = if version.starts_with("0.") { 2 } else { 1 };
    version.match_indices('.').nth(numbers - 1).map_or(version, |(end, _)| &version[..end])
}

/// The names in the answer to `CLIENT LIST`.
pub(crate) fn names(list: &str) -> impl Iterator<Item = &str> {
    list.split_whitespace().filter_map(|field| field.strip_prefix("name="))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_from_the_name_of_a_connection() {
        for (name, expected) in [
            ("tenure-0.1.0", Some("0.1.0")),
            ("tenure-12.0.7-00ff00ff00ff00ff app@host:1", Some("12.0.7")),
            ("web tenure-0.2.1-00ff00ff00ff00ff app@host:1", Some("0.2.1")),
            ("tenure", None),
            ("tenure-00ff", Some("00ff")),
            ("tenure-fair", None),
            ("my-tenure-0.1.0", None),
            ("", None),
        ] {
            assert_eq!(version(name), expected, "{name}");
        }
    }

    #[test]
    fn patches_share_a_series_and_minor_versions_before_1_do_not() {
        assert_eq!(series("0.1.0"), series("0.1.7"));
        assert_ne!(series("0.1.0"), series("0.2.0"));
        assert_ne!(series("0.1.0"), series("0.10.0"));
        assert_eq!(series("1.0.0"), series("1.4.2"));
        assert_ne!(series("1.9.0"), series("2.0.0"));
    }
}
