//! A Redis Cluster, formed by commands to its nodes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{Config, Server, Value, eventually, sweep_at_exit};

/// Number of slots of a cluster.
const SLOTS: u16 = 16_384;
/// Silence after which a node counts as failed: on a busy machine a node may be silent for a second.
const NODE_TIMEOUT_MS: &str = "2000";
/// The same, for tests in which no node is meant to fail.
const CALM_TIMEOUT_MS: &str = "60000";
/// Timeout for state changes: a new master takes no writes for 2 s.
const READY: Duration = Duration::from_secs(20);

/// Three masters with a third of the slots each, and optionally a replica for each.
#[derive(Debug)]
pub struct Cluster {
    /// The first three are the initial masters.
    nodes: Vec<Server>,
}

impl Cluster {
    /// Three masters, each with a replica that takes over 2 s after its master fails.
    ///
    /// A failed shard does not make the others refuse their slots.
    ///
    /// # Panics
    /// Like each function here: if the servers cannot be started, or do not reach the requested state in
    /// time.
    pub fn start() -> Self {
        Self::start_with(&Config::new())
    }

    /// Like `start`, with these settings for each node.
    pub fn start_with(nodes: &Config) -> Self {
        Self::of(6, nodes)
    }

    /// Three masters without replicas.
    pub fn without_replicas() -> Self {
        Self::of(3, &Config::new()).calm()
    }

    /// Raises the node timeout, so that no node is considered failed, however busy the machine is.
    #[must_use]
    pub fn calm(self) -> Self {
        for node in &self.nodes {
            ok(node, &["CONFIG", "SET", "cluster-node-timeout", CALM_TIMEOUT_MS]);
        }
        self
    }

    fn of(count: usize, nodes: &Config) -> Self {
        let config = nodes
            .clone()
            .node()
            .set("cluster-node-timeout", NODE_TIMEOUT_MS)
            .set("cluster-require-full-coverage", "no")
            .set("cluster-replica-validity-factor", "0")
            .set("repl-diskless-sync-delay", "0");
        let cluster = Self { nodes: Server::together(count, &config) };
        cluster.join();
        cluster
    }

    /// For a cluster in a `static`, which is never dropped: removes its directories when this process ends.
    #[must_use]
    pub fn until_exit(self) -> Self {
        sweep_at_exit(&self.nodes);
        self
    }

    fn join(&self) {
        for (at, node) in self.nodes.iter().enumerate() {
            ok(node, &["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()]);
        }
        for (at, master) in self.masters().iter().enumerate() {
            let [first, end] = [at, at + 1].map(|third| u16::try_from(third).expect("few") * (SLOTS / 3));
            let end = if at == 2 { SLOTS } else { end };
            let slots = (first..end).map(|slot| slot.to_string());
            let add: Vec<_> = ["CLUSTER", "ADDSLOTS"].map(str::to_owned).into_iter().chain(slots).collect();
            ok(master, &add);
        }
        let first = &self.nodes[0];
        for node in &self.nodes[1..] {
            let port = node.address().port().to_string();
            ok(first, &["CLUSTER", "MEET", "127.0.0.1", &port]);
        }
        let known = self.nodes.len().to_string();
        eventually("all nodes know each other", READY, || {
            self.nodes.iter().all(|node| node.cluster_info().get("cluster_known_nodes") == Some(&known))
        });
        for (replica, master) in self.nodes[3..].iter().zip(self.masters()) {
            let id = master.node_id();
            eventually("a replica knows its master", READY, || {
                replica.command(&["CLUSTER", "REPLICATE", &id]) == "OK"
            });
        }
        self.settles();
        // Restarting a node before that may fail: valkey-io/valkey#2171.
        eventually("all nodes know which of them are one shard", READY, || {
            let shards = |node: &Server| node.command(&["CLUSTER", "SHARDS"]).items().len();
            self.nodes.iter().all(|node| shards(node) == self.masters().len())
        });
    }

    /// Waits until every running node reports that all slots are served, and every replica has caught up.
    pub fn settles(&self) {
        eventually("the cluster is whole", READY, || {
            self.nodes.iter().filter(|node| node.is_running()).all(|node| {
                let info = node.cluster_info();
                let field = |name: &str| info.get(name).map_or("", String::as_str);
                let replication = node.info("replication");
                field("cluster_state") == "ok"
                    && field("cluster_slots_ok") == SLOTS.to_string()
                    && (replication["role"] == "master" || replication["master_link_status"] == "up")
            })
        });
    }

    /// Waits until a replica has everything that this key's node received so far.
    ///
    /// # Panics
    /// As [`Server::replicates`].
    pub fn replicates(&self, key: &str) {
        self.nodes[self.owner_of(key)].replicates(1, &format!("{{{key}}}:told"));
    }

    /// All nodes, initial masters first.
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// The initial masters.
    pub fn masters(&self) -> &[Server] {
        &self.nodes[..3]
    }

    /// The URL with these nodes as seeds: `redis-cluster://`, or `rediss-cluster://` for TLS.
    pub fn url_of(&self, nodes: &[usize]) -> String {
        let hosts: Vec<_> = nodes.iter().map(|at| self.nodes[*at].address().to_string()).collect();
        format!("{}-cluster://{}", self.nodes[0].scheme(), hosts.join(","))
    }

    /// The URL with the first three nodes as seeds.
    pub fn url(&self) -> String {
        self.url_of(&[0, 1, 2])
    }

    /// The slot of a key.
    pub fn slot(&self, key: &str) -> u16 {
        let slot = self.running().command(&["CLUSTER", "KEYSLOT", key]).int();
        u16::try_from(slot).expect("a slot")
    }

    /// The node that serves a slot, if all running nodes agree on it and it is running.
    pub fn owner(&self, slot: u16) -> Option<usize> {
        let running = || self.nodes.iter().filter(|node| node.is_running());
        let views: Vec<_> = running().map(|node| owner_id(node, slot)).collect();
        let id = views.first()?.as_ref()?;
        let at = self.nodes.iter().position(|node| node.is_running() && node.node_id() == *id)?;
        views.iter().all(|view| view.as_ref() == Some(id)).then_some(at)
    }

    /// The node that serves the slot of a key; waits until all agree.
    pub fn owner_of(&self, key: &str) -> usize {
        let (slot, mut owner) = (self.slot(key), None);
        eventually("all nodes agree on a slot's owner", READY, || {
            owner = self.owner(slot);
            owner.is_some()
        });
        owner.expect("waited for")
    }

    /// A key with this prefix in a slot of this node.
    pub fn key_at(&self, node: usize, prefix: &str) -> String {
        let id = self.nodes[node].node_id();
        (0..10_000)
            .map(|number| format!("{prefix}{number}"))
            .find(|key| owner_id(&self.nodes[node], self.slot(key)).as_ref() == Some(&id))
            .expect("a third of the keys is on each master")
    }

    /// The replica of this node.
    pub fn replica_of(&self, node: usize) -> usize {
        let port = self.nodes[node].address().port().to_string();
        let replicates =
            |node: &Server| node.is_running() && node.info("replication").get("master_port") == Some(&port);
        self.nodes.iter().position(replicates).expect("a master with a replica")
    }

    /// Starts a slot migration; the keys are moved one by one afterwards.
    pub fn begin_move(&self, slot: u16, from: usize, to: usize) {
        let [from_id, to_id] = [from, to].map(|at| self.nodes[at].node_id());
        let slot = slot.to_string();
        ok(&self.nodes[to], &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]);
        ok(&self.nodes[from], &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]);
    }

    /// Moves up to `most` keys of the slot and returns their number.
    pub fn move_keys(&self, slot: u16, from: usize, to: usize, most: u32) -> usize {
        let listed = ["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), &most.to_string()];
        let keys = self.nodes[from].command(&listed);
        let keys: Vec<_> = keys.items().iter().map(Value::text).collect();
        if !keys.is_empty() {
            let port = self.nodes[to].address().port().to_string();
            let command = [&["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"][..], &keys].concat();
            let moved = self.nodes[from].command(&command);
            assert!(moved == "OK" || moved == "NOKEY", "MIGRATE: {moved:?}");
        }
        keys.len()
    }

    /// Assigns the slot to the other node.
    pub fn end_move(&self, slot: u16, from: usize, to: usize) {
        let (slot, to_id) = (slot.to_string(), self.nodes[to].node_id());
        for at in [to, from] {
            ok(&self.nodes[at], &["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]);
        }
    }

    /// Migrates a slot with all its keys.
    pub fn move_slot(&self, slot: u16, from: usize, to: usize) {
        self.begin_move(slot, from, to);
        eventually("all keys of a slot are moved", READY, || self.move_keys(slot, from, to, 100) == 0);
        self.end_move(slot, from, to);
    }

    /// Has a master's replica take over with all its data. Returns the replica's index.
    pub fn fail_over(&self, master: usize) -> usize {
        let replica = self.replica_of(master);
        let node = &self.nodes[replica];
        // Masters do not vote for a candidate with an outdated slot configuration.
        eventually("all say the same of every slot", READY, || {
            let mut said = self.nodes.iter().filter(|node| node.is_running()).map(ranges);
            let first = said.next();
            said.all(|ranges| Some(ranges) == first)
        });
        // After a failed election, the next one is delayed by four times the node timeout: minutes, in a calm
        // cluster.
        let timeout = node.command(&["CONFIG", "GET", "cluster-node-timeout"]).items()[1].text().to_owned();
        ok(node, &["CONFIG", "SET", "cluster-node-timeout", NODE_TIMEOUT_MS]);
        // The server abandons a failover that takes more than 5 s, which happens under heavy writes.
        let mut asked: Option<Instant> = None;
        eventually("the replica is the master", 2 * READY, || {
            if asked.is_none_or(|asked| asked.elapsed() > Duration::from_secs(6)) {
                ok(node, &["CLUSTER", "FAILOVER"]);
                asked = Some(Instant::now());
            }
            node.info("replication")["role"] == "master"
        });
        ok(node, &["CONFIG", "SET", "cluster-node-timeout", &timeout]);
        replica
    }

    fn running(&self) -> &Server {
        self.nodes.iter().find(|node| node.is_running()).expect("a node that runs")
    }
}

/// Slot ranges with the ids of their masters, as this node sees them.
fn ranges(node: &Server) -> Vec<(i64, i64, String)> {
    let reply = node.command(&["CLUSTER", "SLOTS"]);
    let range = |range: &Value| {
        let [first, last, master] = [0, 1, 2].map(|at| &range.items()[at]);
        (first.int(), last.int(), master.items()[2].text().to_owned())
    };
    let mut ranges: Vec<_> = reply.items().iter().map(range).collect();
    ranges.sort();
    ranges
}

/// The id of the node that serves a slot, as this node sees it. Not its address: a cluster that speaks only
/// TLS hides the ports from other clients.
fn owner_id(node: &Server, slot: u16) -> Option<String> {
    let mut ranges = ranges(node).into_iter();
    Some(ranges.find(|(first, last, _)| (*first..=*last).contains(&i64::from(slot)))?.2)
}

fn ok<A: AsRef<[u8]>>(node: &Server, command: &[A]) {
    let reply = node.command(command);
    let name =
        |at: usize| command.get(at).map(|word| word.as_ref().escape_ascii().to_string()).unwrap_or_default();
    assert!(reply == "OK", "{} {}: {reply:?}", name(0), name(1));
}

impl Server {
    fn node_id(&self) -> String {
        self.command(&["CLUSTER", "MYID"]).text().to_owned()
    }

    fn cluster_info(&self) -> BTreeMap<String, String> {
        super::fields(&self.command(&["CLUSTER", "INFO"]))
    }
}
