//! A cluster of servers, made by the commands that its nodes understand.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use super::{Config, Server, Value, eventually, sweep_at_exit};

/// So many slots a cluster has.
const SLOTS: u16 = 16_384;
/// A node that says nothing for so long is taken for lost: on a busy machine one may say nothing
/// for a second.
const NODE_TIMEOUT_MS: &str = "2000";
/// The same, where none is meant to be lost.
const CALM_TIMEOUT_MS: &str = "60000";
/// A fresh master takes no writes for 2 s.
const READY: Duration = Duration::from_secs(20);

/// Three masters, each with a third of the slots, and perhaps a replica for each.
#[derive(Debug)]
pub struct Cluster {
    /// The first three were the masters in the beginning.
    nodes: Vec<Server>,
}

impl Cluster {
    /// Three masters, and the replica of the first, the second and the third, which takes its place
    /// 2 s after it is lost.
    ///
    /// A shard that is down does not make the others refuse their slots.
    ///
    /// # Panics
    /// Like each function here: if the servers cannot be had, or do not do in time what they are
    /// told.
    pub fn start() -> Self {
        Self::start_with(&Config::new())
    }

    /// The same, with these settings for each node.
    pub fn start_with(nodes: &Config) -> Self {
        Self::of(6, nodes)
    }

    /// Three masters alone.
    pub fn without_replicas() -> Self {
        Self::of(3, &Config::new()).calm()
    }

    /// The same cluster, where no client is taken for lost any more, however busy the machine is.
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
        let starts: Vec<_> = (0..count)
            .map(|_| {
                let config = config.clone();
                thread::spawn(|| Server::start_with(config))
            })
            .collect();
        let nodes = starts.into_iter().map(|start| start.join().expect("a server")).collect();
        let cluster = Self { nodes };
        cluster.join();
        cluster
    }

    /// For a `static`, which is never dropped: its directories are removed when this process ends,
    /// as its servers do.
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
        // One that is started again before may not start: valkey-io/valkey#2171.
        eventually("all nodes know which of them are one shard", READY, || {
            let shards = |node: &Server| node.command(&["CLUSTER", "SHARDS"]).items().len();
            self.nodes.iter().all(|node| shards(node) == self.masters().len())
        });
    }

    /// Waits until every node that runs says that all slots are served, and every replica has what
    /// its master has.
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

    /// Waits until a replica has all that the node of this key was told so far.
    ///
    /// # Panics
    /// As [`Server::replicates`].
    pub fn replicates(&self, key: &str) {
        self.nodes[self.owner_of(key)].replicates(1, &format!("{{{key}}}:told"));
    }

    /// All nodes, those that were the masters in the beginning first.
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// Those that were the masters in the beginning.
    pub fn masters(&self) -> &[Server] {
        &self.nodes[..3]
    }

    /// `redis-cluster://` and these nodes; `rediss-cluster://` where they speak TLS.
    pub fn url_of(&self, nodes: &[usize]) -> String {
        let hosts: Vec<_> = nodes.iter().map(|at| self.nodes[*at].address().to_string()).collect();
        format!("{}-cluster://{}", self.nodes[0].scheme(), hosts.join(","))
    }

    /// The same with the first three nodes.
    pub fn url(&self) -> String {
        self.url_of(&[0, 1, 2])
    }

    /// The slot of a key.
    pub fn slot(&self, key: &str) -> u16 {
        let slot = self.running().command(&["CLUSTER", "KEYSLOT", key]).int();
        u16::try_from(slot).expect("a slot")
    }

    /// Who serves a slot, as each of the nodes that run sees it, if all agree and that one runs.
    pub fn owner(&self, slot: u16) -> Option<usize> {
        let running = || self.nodes.iter().filter(|node| node.is_running());
        let views: Vec<_> = running().map(|node| owner_id(node, slot)).collect();
        let id = views.first()?.as_ref()?;
        let at = self.nodes.iter().position(|node| node.is_running() && node.node_id() == *id)?;
        views.iter().all(|view| view.as_ref() == Some(id)).then_some(at)
    }

    /// Who serves the slot of a key; waits until all agree.
    pub fn owner_of(&self, key: &str) -> usize {
        let (slot, mut owner) = (self.slot(key), None);
        eventually("all nodes agree on a slot's owner", READY, || {
            owner = self.owner(slot);
            owner.is_some()
        });
        owner.expect("waited for")
    }

    /// A key with this beginning in a slot of this node.
    pub fn key_at(&self, node: usize, prefix: &str) -> String {
        let id = self.nodes[node].node_id();
        (0..10_000)
            .map(|number| format!("{prefix}{number}"))
            .find(|key| owner_id(&self.nodes[node], self.slot(key)).as_ref() == Some(&id))
            .expect("a third of the keys is on each master")
    }

    /// The node that replicates this one.
    pub fn replica_of(&self, node: usize) -> usize {
        let port = self.nodes[node].address().port().to_string();
        let replicates =
            |node: &Server| node.is_running() && node.info("replication").get("master_port") == Some(&port);
        self.nodes.iter().position(replicates).expect("a master with a replica")
    }

    /// Starts to move a slot: from now on its keys are moved one by one.
    pub fn begin_move(&self, slot: u16, from: usize, to: usize) {
        let [from_id, to_id] = [from, to].map(|at| self.nodes[at].node_id());
        let slot = slot.to_string();
        ok(&self.nodes[to], &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]);
        ok(&self.nodes[from], &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]);
    }

    /// Moves at most so many of the slot's keys; how many there were.
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

    /// The slot is the other node's.
    pub fn end_move(&self, slot: u16, from: usize, to: usize) {
        let (slot, to_id) = (slot.to_string(), self.nodes[to].node_id());
        for at in [to, from] {
            ok(&self.nodes[at], &["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]);
        }
    }

    /// Moves a slot with all that is in it.
    pub fn move_slot(&self, slot: u16, from: usize, to: usize) {
        self.begin_move(slot, from, to);
        eventually("all keys of a slot are moved", READY, || self.move_keys(slot, from, to, 100) == 0);
        self.end_move(slot, from, to);
    }

    /// Lets the replica of a master take its place, with what the master has. Which node that was.
    pub fn fail_over(&self, master: usize) -> usize {
        let replica = self.replica_of(master);
        let node = &self.nodes[replica];
        // Masters vote for no one who claims what has moved on.
        eventually("all say the same of every slot", READY, || {
            let mut said = self.nodes.iter().filter(|node| node.is_running()).map(ranges);
            let first = said.next();
            said.all(|ranges| Some(ranges) == first)
        });
        // After an election that failed, the next is four times this away: minutes, where no client
        // is taken for lost.
        let timeout = node.command(&["CONFIG", "GET", "cluster-node-timeout"]).items()[1].text().to_owned();
        ok(node, &["CONFIG", "SET", "cluster-node-timeout", NODE_TIMEOUT_MS]);
        // A server gives one up that has not come about within 5 s, which happens where much is
        // written.
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

/// Which slots are served together, and by whose id, as this node sees it.
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

/// The id of the client that serves a slot, as this node sees it. Ports are not told to every
/// client: only to those who speak TLS where that is all that is spoken.
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
