//! The cached view of a cluster, and its refresh.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::{FutureExt, join3, pending, select, select_ok};
use tokio::sync::Notify;

use super::{ClusterInner, at, unserved};
use crate::connection::Connector;
use crate::replies;
use crate::requests::node::Node;
use crate::requests::{Keyspace, Publish, answered, keys};
use crate::resp::Value;
use crate::resp::encode::command;
use crate::topology::Address;
use crate::topology::slots::{ClusterView, SLOTS};
use tenure_core::moment::Moment;
use tenure_core::store::Failure;

/// Minimum pause between topology refreshes, and the longest after several that failed.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Interval between refreshes while messages are plain: once the servers are upgraded, they are sharded.
const PLAIN: Duration = Duration::from_secs(60);
/// Timeout for one node's reply to a topology query.
const ANSWER: Duration = Duration::from_secs(1);
/// Nodes queried concurrently; the first valid reply wins.
const SIDE_BY_SIDE: usize = 3;
/// How long a node without slots is kept after its last use, so that no request to it can still be in flight
/// when it is dropped.
const KEPT: Duration = Duration::from_secs(60);

/// The cached view of the cluster.
pub(super) struct Map {
    pub(super) table: SlotTable,
    /// How the cluster's clients publish; unknown until a node has replied.
    pub(super) publish: Option<Publish>,
    /// All nodes with connections, and when each was last used.
    pub(super) nodes: BTreeMap<Address, (Arc<ClusterNode>, Moment)>,
    /// Nodes without slots that can still be queried for the topology.
    replicas: Vec<Address>,
    /// Number of failed topology refreshes, and the last reason.
    pub(super) failures: u64,
    pub(super) failure: Option<Failure>,
    /// Length of the namespace.
    namespace: usize,
}

impl Map {
    /// Nothing is known yet. `namespace` is the length of the namespace.
    pub(super) fn new(namespace: usize) -> Self {
        Self {
            table: SlotTable::default(),
            publish: None,
            nodes: BTreeMap::new(),
            replicas: Vec::new(),
            failures: 0,
            failure: None,
            namespace,
        }
    }

    pub(super) fn space(&self) -> Keyspace {
        let publish = self.publish.unwrap_or(Publish::Plain);
        Keyspace { db: 0, publish, has_slots: true, namespace: self.namespace }
    }

    pub(super) fn owner(&self, slot: u16) -> Option<(Arc<ClusterNode>, Keyspace)> {
        self.table.owner(slot).map(|owner| (Arc::clone(owner), self.space()))
    }

    pub(super) fn serves(&self, member: &Arc<ClusterNode>, slot: u16) -> bool {
        self.table.owner(slot).is_some_and(|owner| Arc::ptr_eq(owner, member))
    }

    /// Ends subscriptions on nodes that no longer receive the messages, which notifies the subscribers.
    pub(super) fn dismiss(&self) {
        for (member, _) in self.nodes.values() {
            member.node.notifications.keep(|channel, publish| {
                Some(publish) == self.publish && self.serves(member, keys::slot(channel))
            });
        }
    }
}

impl ClusterInner {
    /// The node at an address; created if unknown.
    pub(super) fn member(&self, map: &mut Map, address: &Address) -> Arc<ClusterNode> {
        let now = self.runtime.now();
        let known = map.nodes.entry(address.clone());
        let (member, needed) =
            known.or_insert_with(|| (self.stranger(address, Arc::clone(&self.trouble)), now));
        *needed = now;
        Arc::clone(member)
    }

    /// A new node without connections, with the login of the seeds.
    pub(super) fn stranger(&self, address: &Address, trouble: Arc<Notify>) -> Arc<ClusterNode> {
        let seed = self.seeds.iter().find(|seed| seed.address == *address).or(self.seeds.first());
        let target = seed.expect("a URL has a host").at(address.clone());
        let connector = Connector::new(Arc::clone(&self.runtime), Arc::clone(&self.dial), target);
        let node = Node::new(connector.telling(trouble), self.signals.clone(), Arc::clone(&self.url));
        Arc::new(ClusterNode { address: address.clone(), shown: address.to_string().into(), node })
    }

    /// Records a MOVED redirect: `to` serves this slot.
    pub(super) fn moved(&self, slot: u16, to: &Address) {
        let is_promoted = {
            let mut map = self.map();
            let member = self.member(&mut map, to);
            let is_promoted = !map.table.has(to);
            map.table.give(slot, slot, &member);
            map.dismiss();
            is_promoted
        };
        if is_promoted {
            self.signals.interrupt();
        }
        self.changed.notify_waiters();
        self.trouble.notify_one();
    }

    /// Refreshes the topology: queries batches of nodes until one describes the slots.
    ///
    /// Returns whether one did.
    async fn look(&self) -> bool {
        let mut why = unserved();
        for members in self.candidates().chunks(SIDE_BY_SIDE) {
            let views = members.iter().map(|member| self.ask_for_view(member).boxed());
            match select_ok(views).await {
                Ok(((view, publish), _)) => {
                    self.learn(&view, publish);
                    return true;
                }
                Err(failure) => why = failure,
            }
        }
        {
            let mut map = self.map();
            map.failures += 1;
            map.failure = Some(why);
        }
        self.changed.notify_waiters();
        false
    }

    /// Nodes to query: connected ones first, rotated randomly because one of them may be partitioned from the
    /// cluster without knowing it; then the seeds, since every known node may be gone.
    fn candidates(&self) -> Vec<Arc<ClusterNode>> {
        let map = self.map();
        let is_open = |member: &Arc<ClusterNode>| member.node.link.open_pipeline().is_some();
        let known = map.nodes.values().map(|(member, _)| Arc::clone(member));
        let (mut all, rest): (Vec<_>, Vec<_>) = known.partition(is_open);
        if !all.is_empty() {
            let first = self.runtime.random() % all.len() as u64;
            all.rotate_left(first as usize);
        }
        let seeds = self.seeds.iter().map(|seed| &seed.address);
        for address in seeds.chain(rest.iter().map(|member| &member.address)).chain(&map.replicas) {
            if !all.iter().any(|asked| asked.address == *address) {
                let known = map.nodes.get(address).map(|(member, _)| Arc::clone(member));
                // Only this query cares whether an unknown node is reachable, so it gets its own trouble
                // signal.
                all.push(known.unwrap_or_else(|| self.stranger(address, Arc::default())));
            }
        }
        all
    }

    async fn ask_for_view(&self, member: &ClusterNode) -> Result<(ClusterView, Publish), Failure> {
        let ClusterNode { address, node, .. } = member;
        let deadline = self.runtime.now() + ANSWER;
        let pipeline = node.link.pipeline_at_once(deadline).await.map_err(|failure| at(address, failure))?;
        let (health, slots) = (command(&["CLUSTER", "INFO"]), command(&["CLUSTER", "SLOTS"]));
        // Redisson detects sharded Pub/Sub with the same command, and all clients of a lock must choose the
        // same channel.
        let sharded = command(&["PUBSUB", "SHARDNUMSUB"]);
        let asked = join3(
            pipeline.ask(&health, deadline),
            pipeline.ask(&slots, deadline),
            pipeline.ask(&sharded, deadline),
        );
        let (health, slots, sharded) = asked.await;
        let slots = answered(&pipeline, slots?).map_err(|failure| at(address, failure))?;
        let Some(view) = ClusterView::read(&slots, address) else {
            pipeline.hang_up();
            return Err(at(address, Failure::NotSent(Failure::cause("a malformed reply to CLUSTER SLOTS"))));
        };
        // A partitioned node does not know what the others have decided since.
        let is_down = replies::prose(&health?).is_some_and(|health| health.contains("cluster_state:fail"));
        if is_down || view.ranges.is_empty() {
            return Err(at(address, Failure::NotSent(Failure::cause("its cluster is down"))));
        }
        let publish = match sharded? {
            Value::ServerError(_) => Publish::Plain,
            _ => Publish::Sharded,
        };
        Ok((view, publish))
    }

    /// Installs the view that a node reported.
    fn learn(&self, view: &ClusterView, publish: Publish) {
        let now = self.runtime.now();
        let mut is_promoted = false;
        {
            let mut map = self.map();
            // Requests to former masters may still be in flight: refresh their last-used time.
            for served in map.table.masters().to_vec() {
                self.member(&mut map, &served.address);
            }
            let mut table = SlotTable::default();
            for (first, last, address) in &view.ranges {
                let member = self.member(&mut map, address);
                is_promoted |= !map.table.has(address) && !table.has(address);
                table.give(*first, *last, &member);
            }
            map.table = table;
            map.publish = Some(publish);
            map.replicas.clone_from(&view.replicas);
            map.failure = None;
            map.dismiss();
            let Map { nodes, table, .. } = &mut *map;
            nodes.retain(|address, (_, needed)| table.has(address) || now.since(*needed) < KEPT);
        }
        if is_promoted {
            self.signals.interrupt();
        }
        self.changed.notify_waiters();
    }
}

/// Refreshes the topology whenever trouble is signalled, rate-limited by `PAUSE`. A cluster that is down is queried
/// less and less often, because each query may open connections to all of its nodes.
pub(super) async fn topology_refresh(cluster: Weak<ClusterInner>) {
    let Some((runtime, trouble)) =
        cluster.upgrade().map(|inner| (Arc::clone(&inner.runtime), Arc::clone(&inner.trouble)))
    else {
        return;
    };
    let (mut pause, mut is_plain) = (PAUSE, false);
    loop {
        let again = if is_plain { runtime.sleep_until(runtime.now() + PLAIN) } else { pending().boxed() };
        select(pin!(trouble.notified()), again).await;
        let Some(inner) = cluster.upgrade() else { return };
        pause = if inner.look().await { PAUSE } else { (2 * pause).min(PAUSE_MAX) };
        is_plain = inner.map().publish == Some(Publish::Plain);
        drop(inner);
        runtime.sleep_until(runtime.now() + pause).await;
    }
}

/// A cluster node, identified by the address that the cluster announces.
pub(super) struct ClusterNode {
    pub(super) address: Address,
    /// The address as text.
    pub(super) shown: Arc<str>,
    pub(super) node: Node,
}

/// Maps slots to the masters that serve them.
pub(super) struct SlotTable {
    masters: Vec<Arc<ClusterNode>>,
    /// Index into `masters` by slot.
    owners: Box<[u16]>,
}

const NOBODY: u16 = u16::MAX;

impl Default for SlotTable {
    fn default() -> Self {
        Self { masters: Vec::new(), owners: vec![NOBODY; usize::from(SLOTS)].into() }
    }
}

impl SlotTable {
    pub(super) fn owner(&self, slot: u16) -> Option<&Arc<ClusterNode>> {
        self.masters.get(usize::from(self.owners[usize::from(slot)]))
    }

    pub(super) fn masters(&self) -> &[Arc<ClusterNode>] {
        &self.masters
    }

    pub(super) fn has(&self, address: &Address) -> bool {
        self.masters.iter().any(|known| known.address == *address)
    }

    pub(super) fn give(&mut self, first: u16, last: u16, to: &Arc<ClusterNode>) {
        let known = self.masters.iter().position(|known| Arc::ptr_eq(known, to));
        let at = known.unwrap_or_else(|| {
            self.masters.push(Arc::clone(to));
            self.masters.len() - 1
        });
        // There are at most as many masters as slots, so the index fits.
        self.owners[usize::from(first)..=usize::from(last)].fill(at as u16);
    }
}
