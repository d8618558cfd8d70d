//! Whether the versions of tenure that are connected to a server may share it.

use tenure::VERSION;

use super::report::Report;
use crate::versions::Versions;

const CHECK: &str = "versions";

/// `versions` are those of all connections, or why they are unknown.
pub(super) fn check(versions: Result<Versions, String>, at: &str, report: &mut Report) {
    let versions = match versions {
        Ok(versions) => versions,
        Err(why) => return report.cannot_check(CHECK, at, why),
    };
    if versions == Versions::default() {
        return;
    }
    report.saw(at, format!("connected versions of tenure: {versions}"));
    let others = versions.others();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mix_is_a_finding_and_one_version_is_only_shown() {
        let told = |names: &[&str]| {
            let mut report = Report::default();
            check(Ok(Versions::of(names.iter().copied())), "db1", &mut report);
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
