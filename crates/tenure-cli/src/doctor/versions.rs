//! Which versions of tenure are connected to a server, by the names that they give their connections.

use std::collections::BTreeMap;

use tenure::VERSION;

use super::report::Report;

const CHECK: &str = "versions";

/// `names` are those of all connections, or why they are unknown.
pub(super) fn check<'a>(
    names: Result<impl IntoIterator<Item = &'a str>, String>,
    at: &str,
    report: &mut Report,
) {
    let names = match names {
        Ok(names) => names,
        Err(why) => return report.cannot_check(CHECK, at, why),
    };
    let mut versions = BTreeMap::<&str, usize>::new();
    for version in names.into_iter().filter_map(of) {
        *versions.entry(version).or_default() += 1;
    }
    if versions.is_empty() {
        return;
    }
    let seen: Vec<_> = versions.iter().map(|(version, count)| format!("{version} ({count})")).collect();
    report.saw(at, format!("connections by version of tenure: {}", seen.join(", ")));
    let others: Vec<_> = versions.into_keys().filter(|version| series(version) != series(VERSION)).collect();
    if !others.is_empty() {
        report.find(
            CHECK,
            at,
            format!("tenure {} is connected, and this program is {VERSION}", others.join(", ")),
            "programs of versions with other formats may not see each other's locks",
            "read what the changelog says under Stores and formats, or use one version",
        );
    }
}

/// The version in a name like `tenure-0.1.0`, which may have more before it, after a space, and after it.
fn of(name: &str) -> Option<&str> {
    let version = name.split(' ').find_map(|word| word.strip_prefix("tenure-"))?;
    let version = version.split('-').next()?;
    version.starts_with(|char: char| char.is_ascii_digit()).then_some(version)
}

/// What two versions have in common that may share a store: before 1.0 the first two numbers, then the first.
fn series(version: &str) -> &str {
    let numbers = if version.starts_with("0.") { 2 } else { 1 };
    version.match_indices('.').nth(numbers - 1).map_or(version, |(end, _)| &version[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_from_the_name_of_a_connection() {
        for (name, version) in [
            ("tenure-0.1.0", Some("0.1.0")),
            ("tenure-12.0.7-00ff00ff00ff00ff app@host:1", Some("12.0.7")),
            ("web tenure-0.2.1-00ff00ff00ff00ff app@host:1", Some("0.2.1")),
            ("tenure", None),
            ("tenure-00ff", Some("00ff")),
            ("tenure-fair", None),
            ("my-tenure-0.1.0", None),
            ("", None),
        ] {
            assert_eq!(of(name), version, "{name}");
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

    #[test]
    fn a_mix_is_a_finding_and_one_version_is_only_shown() {
        let told = |names: &[&str]| {
            let mut report = Report::default();
            check(Ok(names.iter().copied()), "db1", &mut report);
            (report.has_findings(), report.text("redis://db1"))
        };
        let (found, text) = told(&["other"]);
        assert!(!found && !text.contains("version of tenure"), "{text}");
        let own = format!("tenure-{VERSION}");
        let (found, text) = told(&[&own, &own, "x"]);
        assert!(!found && text.contains(&format!("{VERSION} (2)")), "{text}");
        let (found, text) = told(&[&own, "tenure-99.0.0"]);
        assert!(found && text.contains("tenure 99.0.0 is connected"), "{text}");
    }
}
