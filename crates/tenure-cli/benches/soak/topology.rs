//! Servers, and faults that must not cost a lock.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tenure_testkit::proxy::{Direction, Fault, Proxy};
use tenure_testkit::servers::{Cluster, Config, Sentinels, Server, Value};

pub(crate) enum Topology {
    /// One server behind a faulty network. Everything acknowledged is on its disk.
    Single {
        server: Box<Server>,
        proxy: Proxy,
    },
    Sentinel(Sentinels),
    /// A cluster, and the time of its last failover.
    Cluster {
        cluster: Cluster,
        handed_over: Cell<Instant>,
    },
    /// Five servers, each behind a proxy. At most two fail at once, and the clocks of two are an hour off.
    Quorum {
        servers: Vec<Server>,
        proxies: Vec<Proxy>,
    },
}

/// Uptime that the servers report, because a quorum ignores the votes of a node that has just started.
const UP: Duration = Duration::from_secs(3 * 60 * 60);
/// A cluster node that is silent for this long counts as failed.
const AWAY: Duration = Duration::from_secs(8);
const HOUR_MS: i64 = 60 * 60 * 1_000;

impl Topology {
    pub(crate) fn start(name: &str) -> Self {
        let network = |server: &Server| Proxy::start(server.address());
        match name {
            "single" => {
                let config = Config::new().set("appendonly", "yes").set("appendfsync", "always").keep_data();
                let server = Server::start_with(config);
                let proxy = network(&server);
                Self::Single { server: Box::new(server), proxy }
            }
            "sentinel" => Self::Sentinel(Sentinels::start()),
            "cluster" => {
                let cluster = Cluster::start();
                // Writes that a replica lacks would be lost by its election.
                for node in cluster.nodes() {
                    node.command(&["CONFIG", "SET", "cluster-node-timeout", &AWAY.as_millis().to_string()]);
                }
                Self::Cluster { cluster, handed_over: Cell::new(Instant::now()) }
            }
            "quorum" => {
                let servers: Vec<Server> = (0..5).map(|_| old()).collect();
                // Two clocks are wrong from the beginning.
                servers[0].clock().step_ms(HOUR_MS);
                servers[1].clock().step_ms(-HOUR_MS);
                let proxies = servers.iter().map(network).collect();
                Self::Quorum { servers, proxies }
            }
            other => panic!("single, sentinel, cluster or quorum, and not {other}"),
        }
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Single { proxy, .. } => proxy.url(),
            Self::Sentinel(sentinels) => sentinels.url(),
            Self::Cluster { cluster, .. } => cluster.url(),
            Self::Quorum { proxies, .. } => {
                let at: Vec<String> = proxies.iter().map(|proxy| proxy.address().to_string()).collect();
                format!("redis-quorum://{}", at.join(","))
            }
        }
    }

    pub(crate) fn version(&self) -> String {
        let server = match self {
            Self::Single { server, .. } => server,
            Self::Sentinel(sentinels) => sentinels.master(),
            Self::Cluster { cluster, .. } => &cluster.nodes()[0],
            Self::Quorum { servers, .. } => &servers[0],
        };
        let info = server.info("server");
        match info.get("valkey_version") {
            Some(version) => format!("valkey {version}"),
            None => format!("redis {}", info.get("redis_version").map_or("of no version", String::as_str)),
        }
    }

    /// One fault, from its beginning to its end; returns its name, if there was one.
    pub(crate) fn break_and_heal(&self, ttl: Duration) -> Option<&'static str> {
        Some(match self {
            Self::Single { server, proxy } => match below(8) {
                0 => killed(server, ttl),
                1 => stopped(server, ttl),
                _ => network(proxy, ttl),
            },
            Self::Sentinel(sentinels) => match below(4) {
                0 | 1 => {
                    let all = sentinels.sentinels();
                    let one = &all[below(all.len())];
                    one.stop();
                    sleep(random(ttl));
                    one.cont();
                    "sentinel stopped"
                }
                // Too short to count as failed.
                2 => brief(sentinels.master(), ttl),
                _ => {
                    hang_up(sentinels.master());
                    "connections cut"
                }
            },
            Self::Cluster { cluster, handed_over } => match below(4) {
                0 => return slot_moved(cluster),
                // Masters vote once per twice the node timeout.
                1 if handed_over.get().elapsed() > 3 * AWAY => {
                    cluster.fail_over(cluster.owner(below(16_384) as u16)?);
                    cluster.settles();
                    handed_over.set(Instant::now());
                    "failover that the master was told of"
                }
                1 => return slot_moved(cluster),
                2 => brief(&cluster.nodes()[below(cluster.nodes().len())], ttl),
                _ => {
                    cluster.nodes().iter().for_each(hang_up);
                    "connections cut"
                }
            },
            Self::Quorum { servers, proxies } => {
                let first = below(5);
                let minority = [first, (first + 1 + below(4)) % 5];
                let said = match below(3) {
                    0 => {
                        minority.iter().for_each(|at| servers[*at].stop());
                        sleep(random(2 * ttl));
                        minority.iter().for_each(|at| servers[*at].cont());
                        "minority stopped"
                    }
                    1 => {
                        minority.iter().for_each(|at| proxies[*at].set(Fault::BlackHole));
                        sleep(random(2 * ttl));
                        minority.iter().for_each(|at| proxies[*at].set(Fault::None));
                        "minority cut off"
                    }
                    _ => {
                        minority.iter().for_each(|at| proxies[*at].reset());
                        "connections to a minority reset"
                    }
                };
                // By then requests use the recovered nodes again, so the next two may fail.
                sleep(ttl);
                said
            }
        })
    }

    /// One fault outside the guarantees, which may cost a lock: the negative control.
    pub(crate) fn do_harm(&self, ttl: Duration) -> &'static str {
        match self {
            Self::Single { server, .. } => {
                server.restart_with(Config::new());
                "server restarted empty"
            }
            // The old master continues until it learns of the failover.
            Self::Sentinel(sentinels) => {
                sentinels.fail_over();
                sentinels.settles();
                "failover that sentinels were asked for"
            }
            Self::Cluster { .. } => panic!("no harm is known here that is not known of a single server"),
            // Locks on a bare majority lose some of their members.
            Self::Quorum { servers, .. } => {
                let first = below(5);
                let minority = [first, (first + 1 + below(4)) % 5];
                for _ in 0..20 {
                    minority.iter().for_each(|at| servers[*at].clock().step_ms(HOUR_MS));
                    sleep(random(ttl / 20));
                    minority.iter().for_each(|at| servers[*at].clock().step_ms(-HOUR_MS));
                    sleep(random(ttl / 20));
                }
                "clocks of a minority stepped 20 times, and back"
            }
        }
    }

    /// Keys other than counters, once every lease has expired; unknown for several servers.
    pub(crate) fn keys_left(&self) -> Option<usize> {
        let Self::Single { server, .. } = self else { return None };
        sleep(Duration::from_secs(2));
        let keys = server.command(&["KEYS", "*"]);
        Some(keys.items().iter().filter(|key| !key.text().starts_with("tenure:fence")).count())
    }
}

/// A server with a long uptime, by its clock.
fn old() -> Server {
    let server = Server::with_clock();
    server.clock().back(UP);
    server.restart();
    server.clock().reset();
    server
}

fn killed(server: &Server, ttl: Duration) -> &'static str {
    server.kill();
    sleep(random(ttl / 2));
    server.restart();
    "server killed, and started from its disk"
}

fn stopped(server: &Server, ttl: Duration) -> &'static str {
    server.stop();
    sleep(random(2 * ttl));
    server.cont();
    "server stopped"
}

fn brief(server: &Server, ttl: Duration) -> &'static str {
    server.stop();
    sleep(random(ttl / 2));
    server.cont();
    "server stopped briefly"
}

fn hang_up(server: &Server) {
    for what in ["normal", "pubsub"] {
        let _ = server.try_command(&["CLIENT", "KILL", "TYPE", what]);
    }
}

fn network(proxy: &Proxy, ttl: Duration) -> &'static str {
    let bytes = below(2_000) as u64;
    let (fault, name) = match below(8) {
        0 => (Fault::BlackHole, "network swallows everything"),
        1 => (Fault::Hold(Direction::ToServer), "network holds requests"),
        2 => (Fault::Hold(Direction::ToClient), "network holds replies"),
        3 => (Fault::Delay(random(ttl / 8)), "network is slow"),
        4 => (Fault::CutAfterBytes(Direction::ToServer, bytes), "connections cut within a request"),
        5 => (Fault::CutAfterBytes(Direction::ToClient, bytes), "connections cut within a reply"),
        6 => (Fault::CutAfterReplies(bytes % 20), "connections cut between replies"),
        _ => (Fault::Refuse, "connections reset, and refused"),
    };
    proxy.set(fault);
    if fault == Fault::Refuse {
        proxy.reset();
    }
    sleep(random(2 * ttl));
    proxy.set(Fault::None);
    name
}

/// Migrates the slot of some lock with its keys; clients ask the wrong node until they learn of it.
fn slot_moved(cluster: &Cluster) -> Option<&'static str> {
    let [from, to] = [cluster.owner(below(16_384) as u16)?, cluster.owner(below(16_384) as u16)?];
    let key = cluster.nodes()[from].command(&["RANDOMKEY"]);
    if from == to || key == Value::Nil {
        return None;
    }
    cluster.move_slot(cluster.slot(key.text()), from, to);
    Some("slot of a lock moved")
}

/// A random number below this one.
fn below(below: usize) -> usize {
    (RandomState::new().hash_one(0) % below as u64) as usize
}

/// A random time up to this one.
pub(crate) fn random(most: Duration) -> Duration {
    most.mul_f64(below(1_000) as f64 / 1_000.0)
}
