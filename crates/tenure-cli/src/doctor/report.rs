//! The report of a diagnosis, for people and for programs.

use std::fmt::Write;

use serde_json::json;

use crate::output::{Line, plural};

/// A problem that would cost locks.
#[derive(Debug)]
pub(super) struct Finding {
    check: &'static str,
    at: String,
    what: String,
    why: &'static str,
    fix: String,
}

/// Information that is worth knowing but costs no lock.
#[derive(Debug)]
struct Remark {
    check: &'static str,
    at: String,
    what: String,
}

#[derive(Debug, Default)]
pub(super) struct Report {
    findings: Vec<Finding>,
    notes: Vec<Remark>,
    unchecked: Vec<Remark>,
    servers: Vec<(String, String)>,
}

impl Report {
    /// Adds a finding, for which the command exits with 1: what it is, why it harms locks, and how to fix it.
    pub(super) fn find(
        &mut self,
        check: &'static str,
        at: &str,
        what: impl Into<String>,
        why: &'static str,
        fix: impl Into<String>,
    ) {
        let (at, what, fix) = (at.to_owned(), what.into(), fix.into());
        self.findings.push(Finding { check, at, what, why, fix });
    }

    /// Adds what is worth knowing but costs no lock. It does not affect the exit code.
    pub(super) fn note(&mut self, check: &'static str, at: &str, what: impl Into<String>) {
        self.notes.push(Remark { check, at: at.to_owned(), what: what.into() });
    }

    /// Reports that a server or user did not allow a check, and why. It does not affect the exit code.
    /// Duplicates are dropped.
    pub(super) fn cannot_check(&mut self, check: &'static str, at: &str, why: impl Into<String>) {
        let what = why.into();
        if !self.unchecked.iter().any(|known| known.check == check && known.at == at && known.what == what) {
            self.unchecked.push(Remark { check, at: at.to_owned(), what });
        }
    }

    /// Reports what was seen of a server.
    pub(super) fn saw(&mut self, at: &str, what: String) {
        self.servers.push((at.to_owned(), what));
    }

    pub(super) fn has_findings(&self) -> bool {
        !self.findings.is_empty()
    }

    pub(super) fn has(&self, checks: &[&str]) -> bool {
        self.findings.iter().any(|finding| checks.contains(&finding.check))
    }

    pub(super) fn text(&self, store: &str) -> String {
        let mut text = format!("{}\n", Line(store));
        for (at, what) in &self.servers {
            let _ = writeln!(text, "{}: {}", Line(at), Line(what));
        }
        for Finding { check, at, what, why, fix } in &self.findings {
            let _ = writeln!(text, "\n{check} ({}): {}", Line(at), Line(what));
            let _ = writeln!(text, "  why: {why}\n  fix: {}", Line(fix));
        }
        for (how, remarks) in [("note", &self.notes), ("not checked", &self.unchecked)] {
            for Remark { check, at, what } in remarks {
                let _ = writeln!(text, "\n{how}: {check} ({}): {}", Line(at), Line(what));
            }
        }
        let count = match self.findings.len() {
            0 => "no findings".to_owned(),
            count => plural(count as u64, "finding"),
        };
        let _ = writeln!(text, "\n{count}");
        text
    }

    /// One object on one line. Fields may be added, but are never removed.
    pub(super) fn json(&self, store: &str) -> String {
        let findings = self.findings.iter().map(|Finding { check, at, what, why, fix }| {
            json!({ "check": check, "at": at, "what": what, "why": why, "fix": fix })
        });
        let remarks = |remarks: &[Remark]| {
            let object =
                |Remark { check, at, what }: &Remark| json!({ "check": check, "at": at, "what": what });
            remarks.iter().map(object).collect::<Vec<_>>()
        };
        let servers = self.servers.iter().map(|(at, what)| json!({ "at": at, "what": what }));
        let object = json!({
            "store": store,
            "servers": servers.collect::<Vec<_>>(),
            "findings": findings.collect::<Vec<_>>(),
            "notes": remarks(&self.notes),
            "unchecked": remarks(&self.unchecked),
        });
        format!("{object}\n")
    }
}
