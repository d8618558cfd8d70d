//! The responses: Prometheus metrics, JSON, and the page.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use serde_json::{Value, json};

use super::Seen;
use super::series::{Metrics, ms, quoted};
use crate::clock;
use crate::observed::{Observed, SPAN};
use crate::table::{LOCKS, Party, Row};
use crate::versions::Versions;

/// The page and what it loads, apart from `locks.json`.
pub(super) const PAGE: &str = include_str!("page.html");
pub(super) const STYLE: &str = include_str!("page.css");
pub(super) const SCRIPT: &str = include_str!("page.js");
/// Maximum holders and waiters listed per lock.
const LISTED: usize = 100;

pub(super) struct Pages {
    /// The flags of commands that the page offers, and whether the store's login is missing there.
    pub(super) flags: Vec<String>,
    pub(super) lacks_login: bool,
    pub(super) store: String,
    pub(super) prefix: String,
    /// Elections and jobs that are shown although they have never been led or run.
    pub(super) elections: Vec<String>,
    pub(super) jobs: Vec<String>,
    pub(super) every: Duration,
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

    pub(super) fn metrics(&self, seen: &Seen) -> String {
        let Seen { locks: seen, uses, versions, .. } = seen;
        let mut text = Metrics::default();
        let mut metric = |name: &str, kind: &str, help: &str, values| text.add(name, kind, help, values);
        let one = |value: f64| vec![(String::new(), value)];
        let is_up = seen.trouble(self.every).is_none() && !seen.looked_at.is_zero();
        metric("tenure_up", "gauge", "Whether the store answers refreshes in time.", one(is_up.into()));
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
        let mut kinds: BTreeMap<&str, [Option<u64>; 3]> = BTreeMap::new();
        if !seen.looked_at.is_zero() {
            kinds.extend(LOCKS.iter().map(|kind| (*kind, [Some(0); 3])));
        }
        for row in &seen.rows {
            let counts = kinds.entry(&row.kind).or_insert([Some(0); 3]);
            for (sum, count) in counts.iter_mut().zip([Some(1), Some(row.holders.len() as u64), row.waiting])
            {
                *sum = sum.zip(count).map(|(sum, count)| sum + count);
            }
        }
        let by_kind = |count: usize| {
            let value = |(kind, counts): (&&str, &[Option<u64>; 3])| {
                Some((format!("{{kind={}}}", quoted(kind)), counts[count]? as f64))
            };
            kinds.iter().filter_map(value).collect::<Vec<_>>()
        };
        metric("tenure_locks", "gauge", "Held locks.", by_kind(0));
        metric("tenure_holders", "gauge", "Listed holders.", by_kind(1));
        metric("tenure_waiters", "gauge", "Waiters, where the store can tell.", by_kind(2));
        metric(
            "tenure_observed_handovers_total",
            "counter",
            "Hand-overs observed. Several between two refreshes count once.",
            one(seen.handovers_total as f64),
        );
        let now = clock::unix();
        let each = |of: &dyn Fn(&Row) -> Option<f64>| {
            let values = seen.rows.iter().take(self.series);
            let values = values.filter_map(|row| Some((format!("{{lock={}}}", quoted(&row.name)), of(row)?)));
            values.collect::<Vec<_>>()
        };
        let waiting = |row: &Row| row.waiting.map(|waiting| waiting as f64);
        metric(
            "tenure_lock_waiters",
            "gauge",
            "Waiters of a lock, where the store can tell.",
            each(&waiting),
        );
        let age = |row: &Row| Some(now.saturating_sub(row.since()?).as_secs_f64());
        metric("tenure_lock_held_seconds", "gauge", "How long a lock has been held.", each(&age));
        let left = |row: &Row| Some(seen.lease(row, now)?.0.as_secs_f64());
        metric("tenure_lock_lease_seconds", "gauge", "Remaining lease of a lock.", each(&left));
        let used = |row: &Row| row.permits.map(|(used, _)| f64::from(used));
        metric("tenure_lock_permits_used", "gauge", "Permits in use of a semaphore.", each(&used));
        let permits = |row: &Row| row.permits.map(|(_, all)| f64::from(all));
        metric("tenure_lock_permits", "gauge", "Permits of a semaphore.", each(&permits));
        let without = seen.rows.len().saturating_sub(self.series);
        metric(
            "tenure_locks_without_series",
            "gauge",
            "Locks without metrics of their own.",
            one(without as f64),
        );
        let versions = versions.iter().flatten().flat_map(Versions::iter);
        let versions =
            versions.map(|(version, count)| (format!("{{version={}}}", quoted(version)), count as f64));
        let help = "Clients by version of tenure, where the store can tell.";
        metric("tenure_connections", "gauge", help, versions.collect());
        uses.metrics(&mut text, self, now.saturating_sub(seen.looked_at));
        text.0
    }

    /// The observed locks, elections and jobs. Histories contain only what changed after `after`, in
    /// milliseconds since 1970.
    pub(super) fn json(&self, seen: &Seen, after: u64) -> String {
        let now = clock::unix();
        let recent = seen.locks.histories().filter(|(_, history)| history.is_recent(now));
        let mut locks: BTreeMap<&str, Option<&Row>> = recent.map(|(name, _)| (name, None)).collect();
        locks.extend(seen.locks.rows.iter().map(|row| (row.name.as_str(), Some(row))));
        let mut elections = seen.uses.election_names(&self.elections);
        // Those that cannot be read any more.
        elections.extend(seen.elections.rows.iter().map(|row| row.name.as_str()));
        let election = |name: &str| lock(&seen.elections, name, seen.elections.row(name), now, after);
        let object = json!({
            "store": self.store,
            "prefix": self.prefix,
            "flags": self.flags,
            "lacks_login": self.lacks_login,
            "trouble": seen.locks.trouble(self.every),
            "started_ms": ms(seen.locks.since.unwrap_or_default()),
            "looked_ms": ms(seen.locks.looked_at),
            "now_ms": ms(now),
            "every_ms": ms(seen.pause),
            "span_ms": ms(SPAN),
            "uses_trouble": seen.uses.trouble,
            "versions": seen.versions.as_ref().and_then(|found| found.as_ref().ok()).map(|found| json!({
                "connected": found.iter().collect::<BTreeMap<_, _>>(),
                "others": found.others(),
            })),
            "versions_trouble": seen.versions.as_ref().and_then(|found| found.as_ref().err()),
            "handovers_per_second": seen.locks.handovers_per_second(),
            "locks": locks.iter().map(|(name, row)| lock(&seen.locks, name, *row, now, after)).collect::<Vec<_>>(),
            "elections": elections.into_iter().map(election).collect::<Vec<_>>(),
            "jobs": seen.uses.job_names(&self.jobs).into_iter().map(|name| seen.uses.job(name)).collect::<Vec<_>>(),
        });
        object.to_string()
    }
}

/// A lock or an election with its history, whether it is held or not.
fn lock(seen: &Observed, name: &str, row: Option<&Row>, now: Duration, after: u64) -> Value {
    let history = seen.history(name);
    let kind = row.map(|row| &row.kind).or(history.map(|history| &history.kind));
    let hold = |one: &Party| history.and_then(|history| history.hold(one));
    let party = |one: &Party| {
        let lease = seen.lease_of(name, one, now);
        json!({
            "who": one.who(),
            "owner": one.owner,
            "detail": one.detail,
            "token": one.token,
            "since_ms": hold(one).map(|hold| hold.from).or(one.since).map(ms),
            "left_ms": lease.map(|(left, _)| ms(left)),
            "lease_ms": lease.map(|(_, whole)| ms(whole)),
        })
    };
    let parties =
        |all: Option<&Vec<Party>>| all.into_iter().flatten().take(LISTED).map(party).collect::<Vec<_>>();
    let is_news = |at: Duration| ms(at) > after;
    let holds = history.into_iter().flat_map(|history| &history.holds);
    let holds =
        holds.filter(|hold| is_news(hold.changed) && hold.end.is_none_or(|(end, _)| end + SPAN >= now));
    let waits = history.into_iter().flat_map(|history| &history.waits).filter(|(at, _)| is_news(*at));
    json!({
        "name": name,
        "kind": kind,
        "permits": row.and_then(|row| row.permits).map(|(used, all)| json!({ "used": used, "all": all })),
        "foreign": row.and_then(|row| row.foreign.as_ref()),
        "held": row.map_or(0, |row| row.holders.len()),
        "waiting": row.map_or(Some(0), |row| row.waiting),
        "holders": parties(row.map(|row| &row.holders)),
        "waiters": parties(row.map(|row| &row.waiters)),
        "holds": holds.map(|hold| json!({
            "who": hold.who,
            "token": hold.token,
            "from_ms": ms(hold.from),
            "to_ms": hold.end.map(|(end, _)| ms(end)),
            "end": hold.end.map(|(_, how)| how.to_string()),
        })).collect::<Vec<_>>(),
        "waits": waits.map(|(at, count)| json!({ "at_ms": ms(*at), "waiting": count })).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(series: usize, is_local: bool) -> Pages {
        Pages {
            flags: Vec::new(),
            lacks_login: false,
            store: String::new(),
            prefix: String::new(),
            elections: Vec::new(),
            jobs: Vec::new(),
            every: Duration::from_secs(5),
            series,
            is_local,
        }
    }

    #[test]
    fn an_answer_has_only_what_changed_after_the_last() {
        let row = |token| Row {
            name: "a".into(),
            holders: vec![Party { token, ..Party::default() }],
            ..Row::default()
        };
        let mut seen = Seen::default();
        let now = clock::unix();
        let at = |seconds| now - Duration::from_secs(seconds);
        seen.locks.looked(Ok(vec![row(1)]), at(20), Duration::ZERO);
        seen.locks.looked(Ok(vec![row(1)]), at(10), Duration::ZERO);
        let told = |seen: &Seen, after| -> Value {
            serde_json::from_str(&pages(1, true).json(seen, after)).expect("JSON")
        };
        let tokens = |told: &Value| -> Vec<u64> {
            let holds = told["locks"][0]["holds"].as_array().expect("holds");
            holds.iter().filter_map(|hold| hold["token"].as_u64()).collect()
        };
        assert_eq!(tokens(&told(&seen, 0)), [1]);
        let looked = told(&seen, 0)["looked_ms"].as_u64().expect("a time");
        assert!(tokens(&told(&seen, looked)).is_empty());
        seen.locks.looked(Ok(vec![row(2)]), at(5), Duration::ZERO);
        assert_eq!(tokens(&told(&seen, looked)), [2, 1]);
        // A free lock stays with its history.
        seen.locks.looked(Ok(vec![]), at(1), Duration::ZERO);
        let told = told(&seen, looked);
        assert_eq!((&told["locks"][0]["held"], tokens(&told)), (&0.into(), vec![2, 1]), "{told}");
    }

    #[test]
    fn a_page_from_elsewhere_may_not_read_what_is_for_this_machine() {
        let page = |is_local| pages(1, is_local);
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
        let row = |name: &str, kind: &str, waiting| Row {
            name: name.into(),
            kind: kind.into(),
            waiting,
            ..Row::default()
        };
        let mut seen = Seen::default();
        let (first, unknown) = (row("a\"b\\c\nd", "mutex", Some(0)), row("u", "reentrant mutex", None));
        let rows = vec![first, unknown, row("z", "mutex", Some(3))];
        seen.locks.looked(Ok(rows), clock::unix(), Duration::from_millis(5));
        seen.versions = Some(Ok(Versions::of(["tenure-0.1.7", "tenure-0.1.7", "web"])));
        let text = pages(2, true).metrics(&seen);
        for line in [
            "tenure_up 1",
            "tenure_locks{kind=\"mutex\"} 2",
            "tenure_lock_waiters{lock=\"a\\\"b\\\\c\\nd\"} 0",
            "tenure_waiters{kind=\"mutex\"} 3",
            "tenure_locks{kind=\"reentrant mutex\"} 1",
            "tenure_locks_without_series 1",
            "tenure_look_seconds 0.005",
            "tenure_connections{version=\"0.1.7\"} 2",
        ] {
            assert!(text.lines().any(|one| one == line), "{line}\n{text}");
        }
        assert!(!text.contains("lock=\"z\""), "{text}");
        for unknown in ["tenure_waiters{kind=\"reentrant", "tenure_lock_waiters{lock=\"u"] {
            assert!(!text.contains(unknown), "{text}");
        }
    }
}
