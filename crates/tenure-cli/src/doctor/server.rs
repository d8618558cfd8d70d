//! Checks of one server: settings, state, clock and latency.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use tenure::Error;
use tenure::diagnosis::{Console, ConsoleReply, Target, Topology, keys_with};

use super::Setup;
use super::postgres::ALONE;
use super::report::Report;
use super::versions;
use crate::clock;
use crate::output::{Line, plural};
use crate::versions::{Versions, names};

/// Maximum clock offset: a larger one will be corrected by a step some day.
const CLOCK_OFF: Duration = Duration::from_secs(1);
/// Number of round trips measured.
const PINGS: usize = 50;
/// How many times the slowest reply must fit into a lease: a renewal starts after a third of it, and a retry
/// must still be in time.
const ANSWERS_IN_A_LEASE: u32 = 10;
/// Maximum number of keys examined, and keys per SCAN.
const KEYS: usize = 10_000;
const PAGE: &str = "500";
/// Maximum memory use, as a share of the limit.
const FULL: f64 = 0.9;
/// Maximum time that tenure's connections are idle.
const IDLE_SECONDS: u64 = 60;
/// The checks that need INFO.
const OF_INFO: [&str; 8] =
    ["eviction", "evicted", "memory", "role", "save", "persistence", "replicas", "version"];

#[derive(Debug)]
pub(super) struct Server {
    pub(super) at: String,
    pub(super) db: u32,
    console: Console,
    /// The fields of INFO, if this user may query it.
    info: BTreeMap<String, String>,
}

impl Server {
    pub(super) fn new(console: Console, target: &Target) -> Self {
        let (at, db) = (target.address.to_string(), target.access.db);
        Self { at, db, console, info: BTreeMap::new() }
    }

    pub(super) async fn ask(&mut self, words: &[&str]) -> Result<ConsoleReply, Error> {
        self.console.ask(words).await
    }

    /// The local address of this connection.
    pub(super) fn local(&self) -> Option<SocketAddr> {
        self.console.local()?.parse().ok()
    }

    /// Whether it is a cluster node, as far as this user may know.
    pub(super) fn is_in_cluster(&self) -> bool {
        self.info("cluster_enabled") == Some("1")
    }

    pub(super) fn info(&self, field: &str) -> Option<&str> {
        self.info.get(field).map(String::as_str)
    }

    fn number(&self, field: &str) -> Option<u64> {
        self.info(field)?.parse().ok()
    }

    /// A server parameter, if this user may query it and the server has it.
    pub(super) async fn setting(
        &mut self,
        check: &'static str,
        parameter: &str,
        report: &mut Report,
    ) -> Result<Option<String>, Error> {
        Ok(match self.ask(&["CONFIG", "GET", parameter]).await? {
            ConsoleReply::Items(pair) => pair.get(1).and_then(text).map(str::to_owned),
            ConsoleReply::Error(error) => {
                let why = format!("CONFIG GET {parameter} was refused ({error}): give this user +config|get");
                report.cannot_check(check, &self.at, why);
                None
            }
            _ => None,
        })
    }

    /// Runs all checks of a server except permissions.
    pub(super) async fn examine(&mut self, setup: &Setup, report: &mut Report) -> Result<(), Error> {
        match self.ask(&["INFO"]).await? {
            ConsoleReply::Text(info) => self.info = fields(&info),
            ConsoleReply::Error(error) => {
                for check in OF_INFO {
                    let why = format!("INFO was refused ({error}): give this user +info");
                    report.cannot_check(check, &self.at, why);
                }
            }
            _ => {}
        }
        self.memory(report);
        self.role(report);
        self.persistence(setup, report).await?;
        self.replicas(setup, report).await?;
        self.idle(report).await?;
        let offset = self.clock(report).await?;
        let latency = self.latency(setup, report).await?;
        self.keys(setup, report).await?;
        self.version(report);
        self.clients(report).await?;
        let name = self.info("server_name").unwrap_or("redis");
        let version = self.info(&format!("{name}_version")).unwrap_or("of unknown version");
        let ms = |time: Duration| time.as_secs_f64() * 1_000.0;
        let seen = format!(
            "{name} {version}; answers within {:.1} ms, the slowest of {PINGS} within {:.1} ms{}{}",
            ms(latency[PINGS / 2]),
            ms(latency[PINGS - 1]),
            offset.map_or(String::new(), |offset| format!("; its clock is off by {:.0} ms", ms(offset))),
            match setup.topology {
                Topology::Server(_) => format!("; one server: {ALONE}"),
                _ => String::new(),
            },
        );
        report.saw(&self.at, seen);
        Ok(())
    }

    fn memory(&self, report: &mut Report) {
        let limit = self.number("maxmemory").unwrap_or(0);
        let policy = self.info("maxmemory_policy").unwrap_or("noeviction");
        if policy != "noeviction" {
            let without_limit = if limit == 0 { ", at present without a maxmemory" } else { "" };
            report.find(
                "eviction",
                &self.at,
                format!("maxmemory-policy is {policy}{without_limit}"),
                "a server short of memory evicts locks, and a second client can hold them",
                "CONFIG SET maxmemory-policy noeviction; put caches on another server",
            );
        }
        if let Some(evicted) = self.number("evicted_keys").filter(|evicted| *evicted > 0) {
            report.find(
                "evicted",
                &self.at,
                format!("{} evicted since the server started", plural(evicted, "key was")),
                "locks may have been among them, so that two clients held them",
                "raise maxmemory, or give locks a server of their own; CONFIG RESETSTAT resets the count",
            );
        }
        let used = self.number("used_memory").unwrap_or(0);
        if limit > 0 && used as f64 > limit as f64 * FULL {
            report.find(
                "memory",
                &self.at,
                format!("{used} of {limit} bytes of maxmemory are used"),
                "a full server refuses new locks (OOM); it renews those that are held",
                "raise maxmemory, or delete unneeded data",
            );
        }
    }

    fn role(&self, report: &mut Report) {
        if self.info("role") == Some("slave") {
            let master = self.info("master_host").zip(self.info("master_port"));
            let master = master.map_or(String::new(), |(host, port)| format!(": {host}:{port}"));
            report.find(
                "role",
                &self.at,
                "the server is a replica",
                "tenure refuses it: a replica may lack locks, and accepts no writes",
                format!("name its master in the URL{master}, or the sentinels: redis-sentinel://"),
            );
        }
    }

    async fn persistence(&mut self, setup: &Setup, report: &mut Report) -> Result<(), Error> {
        for (field, what) in [("rdb_last_bgsave_status", "save"), ("aof_last_write_status", "append")] {
            if self.info(field).is_some_and(|status| status != "ok") {
                report.find(
                    "save",
                    &self.at,
                    format!("the server's last attempt to {what} its data failed"),
                    "it refuses to grant and to renew (MISCONF), and holders lose their locks",
                    "see the server's log: usually its disk is full or not writable",
                );
            }
        }
        // A member of a quorum that lost its locks takes no part in decisions.
        if setup.restart_grace.is_some() || setup.is_quorum() {
            return Ok(());
        }
        let instead = match setup.is_cluster() {
            true => "",
            false => ", or add restart-grace=DURATION to the URL of every client",
        };
        if self.info("aof_enabled") == Some("0") {
            report.find(
                "persistence",
                &self.at,
                "appendonly is no",
                "a restarted server has lost all or the newest locks, and grants them again",
                format!("set appendonly yes and appendfsync always{instead}"),
            );
        } else if let Some(sync) = self.setting("persistence", "appendfsync", report).await?
            && sync != "always"
        {
            report.find(
                "persistence",
                &self.at,
                format!("appendfsync is {sync}"),
                "a crash of the machine loses the locks of the last second or more, which are granted again",
                format!("set appendfsync always{instead}"),
            );
        }
        Ok(())
    }

    async fn replicas(&mut self, setup: &Setup, report: &mut Report) -> Result<(), Error> {
        let Some(count) = self.number("connected_slaves") else { return Ok(()) };
        if self.info("role") == Some("slave") {
            return Ok(());
        }
        let acks = u64::from(setup.acks);
        if acks > count {
            report.find(
                "acks",
                &self.at,
                format!("the URL has acks={acks}, and the server has {}", plural(count, "replica")),
                "without that many confirmations no lock is granted or renewed",
                "start the missing replicas, or lower acks in the URL of every client",
            );
        } else if acks > 0 && acks < count {
            report.find(
                "acks",
                &self.at,
                format!("the URL has acks={acks}, and the server has {}", plural(count, "replica")),
                "a failover may promote a replica that lacks a lock",
                format!("set acks={count} in the URL of every client"),
            );
        }
        if count > 0 && acks == 0 && setup.restart_grace.is_none() && !setup.is_quorum() {
            let by = if setup.is_cluster() { "acks" } else { "acks and restart-grace" };
            let what = format!(
                "a failover loses the last grants, and another client may get a lock that is held: {by} in the URL of \
                 every client limit that, at a price"
            );
            report.note("replicas", &self.at, what);
        }
        // With a single replica, the new master would refuse writes until the old one is back.
        let and_then = if count == 1 { "start a second replica, then " } else { "" };
        let least = self.setting("replicas", "min-replicas-to-write", report).await?;
        if let Some(least) = least.and_then(|least| least.parse::<u64>().ok()) {
            if least > count {
                report.find(
                    "replicas",
                    &self.at,
                    format!(
                        "min-replicas-to-write is {least}, and the server has {}",
                        plural(count, "replica")
                    ),
                    "the server refuses to grant and to renew (NOREPLICAS)",
                    "start the missing replicas, or lower min-replicas-to-write",
                );
            } else if least == 0 && count > 0 && acks == 0 {
                report.find(
                    "replicas",
                    &self.at,
                    format!("the server has {}, and min-replicas-to-write is 0", plural(count, "replica")),
                    "a master that is cut off keeps granting beside its replacement",
                    format!(
                        "{and_then}set min-replicas-to-write 1 and min-replicas-max-lag 10 on each server"
                    ),
                );
            }
        }
        if setup.restart_grace.is_some()
            && let Some(kept) = self.setting("restart-grace", "repl-backlog-ttl", report).await?
            && kept != "0"
        {
            report.find(
                "restart-grace",
                &self.at,
                format!("repl-backlog-ttl is {kept}"),
                "this long after its last replica left, the server counts as restarted and grants nothing",
                "CONFIG SET repl-backlog-ttl 0 on each server that may be the master",
            );
        }
        Ok(())
    }

    async fn idle(&mut self, report: &mut Report) -> Result<(), Error> {
        let timeout = self.setting("idle", "timeout", report).await?;
        if let Some(seconds) = timeout.and_then(|timeout| timeout.parse::<u64>().ok())
            && (1..=IDLE_SECONDS).contains(&seconds)
        {
            report.find(
                "idle",
                &self.at,
                format!("timeout is {seconds} s"),
                "the server closes idle connections, and waiters learn late that a lock is free",
                "CONFIG SET timeout 0",
            );
        }
        Ok(())
    }

    /// Lower bound of the server's clock offset, in either direction.
    async fn clock(&mut self, report: &mut Report) -> Result<Option<Duration>, Error> {
        let before = clock::unix();
        let reply = self.ask(&["TIME"]).await?;
        let after = clock::unix();
        let Some(time) = time(&reply) else { return Ok(None) };
        // The server read its clock at some time between the two.
        let off = before.saturating_sub(time).max(time.saturating_sub(after));
        if off > CLOCK_OFF {
            report.find(
                "clock",
                &self.at,
                format!("the server's clock differs from this machine's by {:.1} s", off.as_secs_f64()),
                "correcting the clock by a step ends leases early, and a second client can hold",
                "run chrony or ntpd on both machines, and let them slew the clock",
            );
        }
        Ok(Some(off))
    }

    /// Measured round-trip times, sorted.
    async fn latency(&mut self, setup: &Setup, report: &mut Report) -> Result<Vec<Duration>, Error> {
        let mut times = Vec::with_capacity(PINGS);
        for _ in 0..PINGS {
            let start = clock::now();
            self.ask(&["PING"]).await?;
            times.push(clock::now() - start);
        }
        times.sort_unstable();
        let slowest = times[PINGS - 1];
        if slowest * ANSWERS_IN_A_LEASE > setup.ttl {
            report.find(
                "latency",
                &self.at,
                format!(
                    "the slowest of {PINGS} answers took {:.1} ms, and the lease is {} ms",
                    slowest.as_secs_f64() * 1_000.0,
                    setup.ttl.as_millis()
                ),
                "a few slow answers in a row cost a lease",
                format!(
                    "use leases (--ttl) of {} ms or more, or a server that is nearer or less busy",
                    (slowest * ANSWERS_IN_A_LEASE).as_millis() + 1
                ),
            );
        }
        Ok(times)
    }

    /// Looks for keys under the namespace and prefix without expiry, because tenure's locks always expire.
    async fn keys(&mut self, setup: &Setup, report: &mut Report) -> Result<(), Error> {
        let begin = format!("{}{}", setup.namespace.as_str(), setup.prefix);
        let (mut cursor, pattern) = ("0".to_owned(), keys_with(&begin));
        let (mut seen, mut endless, mut example) = (0, 0, None);
        while seen < KEYS {
            let reply = self.ask(&["SCAN", &cursor, "MATCH", &pattern, "COUNT", PAGE]).await?;
            let (next, keys) = match reply {
                ConsoleReply::Items(parts) => match &parts[..] {
                    [ConsoleReply::Text(next), ConsoleReply::Items(keys)] => (next.clone(), keys.clone()),
                    _ => return Ok(()),
                },
                ConsoleReply::Error(error) => {
                    let why = format!("SCAN was refused ({error}): give this user +scan");
                    report.cannot_check("keys", &self.at, why);
                    return Ok(());
                }
                _ => return Ok(()),
            };
            // Count at least a whole page, because SCAN visits that many keys even if the pattern matches
            // fewer.
            seen += PAGE.parse::<usize>().unwrap_or(1).max(keys.len());
            // Token counters have no expiry, those of other namespaces included.
            for key in keys.iter().filter_map(text).filter(|key| !key.contains("tenure:")) {
                match self.ask(&["PTTL", key]).await? {
                    ConsoleReply::Int(-1) => {
                        endless += 1;
                        example.get_or_insert_with(|| key.to_owned());
                    }
                    ConsoleReply::Error(error) => {
                        report.cannot_check("keys", &self.at, format!("PTTL was refused ({error})"));
                        return Ok(());
                    }
                    _ => {}
                }
            }
            if next == "0" {
                break;
            }
            cursor = next;
        }
        if let Some(example) = example {
            let place = match begin.as_str() {
                "" => "the database".to_owned(),
                begin => format!("the keys that begin with `{}`", Line(begin)),
            };
            report.find(
                "keys",
                &self.at,
                format!(
                    "{} without an expiry in {place}, such as `{}`",
                    plural(endless, "key"),
                    Line(&example)
                ),
                "a lock with such a name would never be free",
                "give locks their own prefix (--prefix), and delete stale locks",
            );
        }
        Ok(())
    }

    /// Which versions of tenure are connected.
    async fn clients(&mut self, report: &mut Report) -> Result<(), Error> {
        let versions = match self.ask(&["CLIENT", "LIST"]).await? {
            ConsoleReply::Text(list) => Ok(Versions::of(names(&list))),
            ConsoleReply::Error(error) => {
                Err(format!("CLIENT LIST was refused ({error}): give this user +client|list"))
            }
            _ => return Ok(()),
        };
        versions::check(versions, &self.at, report);
        Ok(())
    }

    fn version(&self, report: &mut Report) {
        let valkey = self.info("valkey_version").map(|version| ("Valkey", version, (7, 2)));
        let found = valkey.or_else(|| Some(("Redis", self.info("redis_version")?, (6, 2))));
        let Some((name, version, (major, minor))) = found else { return };
        let mut parts = version.split('.').map_while(|part| part.parse::<u32>().ok());
        if let Some(first) = parts.next()
            && (first, parts.next().unwrap_or(0)) < (major, minor)
        {
            report.find(
                "version",
                &self.at,
                format!("the server is {name} {version}"),
                "tenure needs Redis 6.2, Valkey 7.2, or later",
                format!("upgrade to {name} {major}.{minor} or later"),
            );
        }
    }
}

pub(super) fn text(reply: &ConsoleReply) -> Option<&str> {
    match reply {
        ConsoleReply::Text(text) => Some(text),
        _ => None,
    }
}

/// Parses the lines `field:value` of INFO.
pub(super) fn fields(info: &str) -> BTreeMap<String, String> {
    let lines = info.lines().filter_map(|line| line.split_once(':'));
    lines.map(|(field, value)| (field.to_owned(), value.trim().to_owned())).collect()
}

/// A reply to TIME, since 1970.
fn time(reply: &ConsoleReply) -> Option<Duration> {
    let ConsoleReply::Items(parts) = reply else { return None };
    let mut parts = parts.iter().map(|part| text(part)?.parse::<u64>().ok());
    Some(Duration::from_secs(parts.next()??) + Duration::from_micros(parts.next()??))
}
