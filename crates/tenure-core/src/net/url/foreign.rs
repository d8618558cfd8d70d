//! Names of parameters: ours, those of other programs, and the error for an unknown one.

use super::encryption;
use super::{Parts, Syntax, split};
use crate::error::Error;

/// What the URLs of other programs for the same servers contain.
#[derive(Debug)]
pub struct ForeignNames {
    /// Drivers that a scheme may name, as in `postgresql+asyncpg`.
    pub drivers: &'static [&'static str],
    /// Other names of our parameters, and ours.
    pub aliases: &'static [(&'static str, &'static str)],
    /// Parameters without a meaning for locks, such as limits of a pool, by the program that documents them.
    pub ignored: &'static [(&'static str, &'static [&'static str])],
}

impl ForeignNames {
    /// None.
    pub const NONE: Self = Self { drivers: &[], aliases: &[], ignored: &[] };

    /// A scheme without the name of a driver.
    #[must_use]
    pub fn without_driver<'a>(&self, scheme: &'a str) -> &'a str {
        match scheme.split_once('+') {
            Some((scheme, driver)) if self.drivers.contains(&driver) => scheme,
            _ => scheme,
        }
    }
}

/// Longest unknown parameter that an error quotes.
const LONGEST: usize = 40;

impl Syntax {
    /// Our name of a parameter, and the name as written.
    pub(super) fn resolve(&self, name: &str) -> Option<(&'static str, &'static str)> {
        let ours = self.parameters.iter().map(|known| (*known, *known));
        let others = self.aliases().map(|(alias, key)| (key, alias));
        ours.chain(others).find(|(_, written)| *written == name)
    }

    /// The aliases of parameters that this store has.
    fn aliases(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let all = self.foreign.aliases.iter().chain(encryption::ALIASES).copied();
        all.filter(|(_, key)| {
            self.parameters.contains(key) || encryption::is_about_tls(key) && self.has_tls()
        })
    }

    fn has_tls(&self) -> bool {
        self.parameters.contains(&"ca")
    }

    pub(super) fn is_ignored(&self, name: &str) -> bool {
        self.foreign.ignored.iter().any(|(_, names)| names.contains(&name))
    }

    /// The error for an unknown parameter. It quotes no part of a password with an unescaped `?`.
    pub(super) fn unknown(&self, parts: &Parts<'_>, name: &str) -> Error {
        let is_name = |char: char| char.is_ascii_alphanumeric() || "-_.".contains(char);
        let has_port = |place: &str| {
            split(place, ':').1.is_none_or(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
        };
        let is_whole =
            parts.login.is_some() || parts.hosts.starts_with('[') || parts.hosts.split(',').all(has_port);
        let known = self.parameters.join(", ");
        if parts.query.contains('@') || !is_whole || name.len() > LONGEST || !name.chars().all(is_name) {
            let hint = "in a password, write %3F for ?";
            return self.wrong(&format!("unknown parameter, expected one of {known}; {hint}"));
        }
        let lower = name.to_ascii_lowercase();
        let names = self.parameters.iter().copied().chain(self.aliases().map(|(alias, _)| alias));
        let distance = |known: &str| strsim::osa_distance(&lower, &known.to_ascii_lowercase());
        let near = names.map(|known| (distance(known), known)).min();
        self.wrong(&match near {
            Some((distance, near)) if distance <= name.len() / 3 => {
                format!("unknown parameter `{name}`, did you mean `{near}`?")
            }
            _ => format!("unknown parameter `{name}`, expected one of {known}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::TEST;
    use super::*;

    const SYNTAX: Syntax = Syntax {
        parameters: &["connect_timeout", "ca"],
        foreign: ForeignNames {
            drivers: &["quick"],
            aliases: &[("connectTimeout", "connect_timeout"), ("charset", "encoding")],
            ignored: &[("pools", &["pool_size"])],
        },
        ..TEST
    };

    #[test]
    fn an_unknown_parameter_is_named_with_the_nearest_known_one() {
        for (url, said) in [
            ("test://h?conect_timeout=1", "`conect_timeout`, did you mean `connect_timeout`?"),
            ("test://h?connecttimeout=1", "`connecttimeout`, did you mean `connectTimeout`?"),
            ("test://h?sslrootcrt=1", "`sslrootcrt`, did you mean `sslrootcert`?"),
            ("test://h?wild=1", "`wild`, expected one of connect_timeout, ca"),
            ("test://h?charset=1", "unknown parameter `charset`"),
            ("test://u:pass?word=x@h/", "unknown parameter, expected"),
            ("test://u:pass?word", "unknown parameter, expected"),
            ("test://h?connectTimeout=1&connect_timeout=2", "both `connectTimeout` and `connect_timeout`"),
        ] {
            let error = SYNTAX.parse(url).map(drop).expect_err(url).to_string();
            assert!(error.contains(said) && !error.contains("word="), "{url}: {error}");
        }
    }

    #[test]
    fn other_names_drivers_and_pools_are_taken() {
        let mut url = SYNTAX.parse("jdbc:test+quick://h?connectTimeout=7&pool_size=%").expect("a URL");
        assert_eq!((url.scheme(), url.take("connect_timeout").as_deref()), ("test", Some("7")));
        url.end().expect("nothing is left");
        assert_eq!(SYNTAX.parse("test+slow://h").expect("a URL").scheme(), "test+slow");
    }
}
