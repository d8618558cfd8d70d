//! The responses: Prometheus metrics, JSON, and the page.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::IpAddr;

use serde_json::{Value, json};

use crate::clock;
use crate::observed::Observed;
use crate::table::{Party, Row};

/// The page, which loads nothing but `locks.json`.
pub(super) const PAGE: &str = include_str!("page.html");
/// Maximum changes reported per lock.
const CHANGES: usize = 20;

pub(super) struct Pages {
    pub(super) store: String,
    /// Maximum number of locks with metrics of their own.
    pub(super) series: usize,
    /// Whether only this machine can connect.
    pub(super) is_local: bool,
}

impl Pages {
    /// Guards against DNS rebinding: a foreign page whose name resolves to this machine must not read what is
    /// meant for local programs.
    pub(super) fn may_ask(&self, host: &str) -> bool {
        let bare = match host.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or_default(),
            None => host.split(':').next().unwrap_or_default(),
        };
        let is_loopback = bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        !self.is_local || is_loopback || bare.is_empty() || bare == "localhost"
    }

    pub(super) fn metrics(&self, seen: &Observed) -> String {
        let mut text = String::new();
        let mut metric = |name: &str, kind: &str, help: &str, values: Vec<(String, f64)>| {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (labels, value) in values {
                let _ = writeln!(text, "{name}{labels} {value}");
            }
        };
        let one = |value: f64| vec![(String::new(), value)];
        let is_up = seen.trouble.is_none() && !seen.looked_at.is_zero();
        metric("tenure_up", "gauge", "Whether the store answered the last refresh.", one(is_up.into()));
        metric(
            "tenure_look_seconds",
            "gauge",
            "Duration of the last successful refresh.",
            one(seen.took.as_secs_f64()),
        );
        metric(
            "tenure_looked_timestamp_seconds",
            "gauge",
            "When the store last answered a refresh.",
            one(seen.looked_at.as_secs_f64()),
        );
        let mut kinds: BTreeMap<&str, (u64, u64, u64)> = BTreeMap::new();
        for row in &seen.rows {
            let (locks, holders, waiters) = kinds.entry(&row.kind).or_default();
            *locks += 1;
            *holders += row.holders.len() as u64;
            *waiters += row.waiting();
        }
        let by_kind = |of: fn(&(u64, u64, u64)) -> u64| {
            let values =
                kinds.iter().map(|(kind, counts)| (format!("{{kind={}}}", quoted(kind)), of(counts) as f64));
            values.collect::<Vec<_>>()
        };
        metric("tenure_locks", "gauge", "Locks that are held.", by_kind(|(locks, ..)| *locks));
        metric("tenure_holders", "gauge", "Holders that are listed.", by_kind(|(_, holders, _)| *holders));
        metric("tenure_waiters", "gauge", "Waiters that are listed.", by_kind(|(.., waiters)| *waiters));
        metric(
            "tenure_handoffs_total",
            "counter",
            "Hand-overs seen. Several between two refreshes count once.",
            one(seen.handoffs_total as f64),
        );
        let now = clock::unix();
        let each = |of: &dyn Fn(&Row) -> Option<f64>| {
            let values = seen.rows.iter().take(self.series);
            let values = values.filter_map(|row| Some((format!("{{lock={}}}", quoted(&row.name)), of(row)?)));
            values.collect::<Vec<_>>()
        };
        let waiting = |row: &Row| Some(row.waiting() as f64);
        metric("tenure_lock_waiters", "gauge", "Waiters of a lock.", each(&waiting));
        let age = |row: &Row| Some(now.saturating_sub(row.since()?).as_secs_f64());
        metric("tenure_lock_held_seconds", "gauge", "How long a lock has been held.", each(&age));
        let left = |row: &Row| Some(seen.lease(row, now)?.0.as_secs_f64());
        metric("tenure_lock_lease_seconds", "gauge", "What is left of the lease of a lock.", each(&left));
        let used = |row: &Row| row.permits.map(|(used, _)| f64::from(used));
        metric("tenure_lock_permits_used", "gauge", "Permits of a semaphore in use.", each(&used));
        let permits = |row: &Row| row.permits.map(|(_, all)| f64::from(all));
        metric("tenure_lock_permits", "gauge", "Permits of a semaphore.", each(&permits));
        let without = seen.rows.len().saturating_sub(self.series);
        metric(
            "tenure_locks_without_series",
            "gauge",
            "Locks beyond those that have metrics of their own.",
            one(without as f64),
        );
        text
    }

    pub(super) fn json(&self, seen: &Observed) -> String {
        let now = clock::unix();
        let ms = |time: std::time::Duration| time.as_millis() as u64;
        let party = |one: &Party| {
            json!({
                "who": one.who(),
                "token": one.token,
                "since_ms": one.since.map(ms),
                "left_ms": one.left.map(|left| ms(left.saturating_sub(now.saturating_sub(seen.looked_at)))),
            })
        };
        let locks = seen.rows.iter().map(|row| {
            let history = seen.history(&row.name).take(CHANGES);
            json!({
                "name": row.name,
                "kind": row.kind,
                "permits": row.used(),
                "waiting": row.waiting(),
                "foreign": row.foreign,
                "holders": row.holders.iter().map(party).collect::<Vec<_>>(),
                "waiters": row.waiters.iter().map(party).collect::<Vec<_>>(),
                "history": history.map(|change| json!({ "at_ms": ms(change.at), "what": change.what })).collect::<Vec<_>>(),
            })
        });
        let object: Value = json!({
            "store": self.store,
            "trouble": seen.trouble,
            "looked_ms": ms(seen.looked_at),
            "handoffs_per_second": seen.handoffs_per_second(),
            "locks": locks.collect::<Vec<_>>(),
        });
        object.to_string()
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_from_elsewhere_may_not_read_what_is_for_this_machine() {
        let page = |is_local| Pages { store: String::new(), series: 1, is_local };
        for (host, may) in [
            ("localhost:9797", true),
            ("127.0.0.1:9797", true),
            ("[::1]:9797", true),
            ("", true),
            ("evil.example:9797", false),
            ("localhost.evil.example", false),
            ("10.0.0.1", false),
        ] {
            assert_eq!(page(true).may_ask(host), may, "{host}");
            assert!(page(false).may_ask(host));
        }
    }

    #[test]
    fn names_are_quoted_in_labels_and_only_some_locks_have_series() {
        let row = |name: &str| Row { name: name.into(), kind: "mutex".into(), ..Row::default() };
        let mut seen = Observed::default();
        let rows = vec![row("a\"b\\c\nd"), row("z")];
        seen.looked(Ok(rows), clock::unix(), std::time::Duration::from_millis(5));
        let text = Pages { store: String::new(), series: 1, is_local: true }.metrics(&seen);
        for line in [
            "tenure_up 1",
            "tenure_locks{kind=\"mutex\"} 2",
            "tenure_lock_waiters{lock=\"a\\\"b\\\\c\\nd\"} 0",
            "tenure_locks_without_series 1",
            "tenure_look_seconds 0.005",
        ] {
            assert!(text.lines().any(|one| one == line), "{line}\n{text}");
        }
        assert!(!text.contains("lock=\"z\""), "{text}");
    }
}
