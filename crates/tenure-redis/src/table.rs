//! The slot table of a cluster, as far as it is known.

use std::sync::Arc;

use crate::requests::node::Node;
use crate::topology::Address;
use crate::topology::slots::SLOTS;

/// A cluster node, identified by the address that the cluster announces.
pub(crate) struct ClusterNode {
    pub(crate) address: Address,
    /// The address as text.
    pub(crate) shown: Arc<str>,
    pub(crate) node: Node,
}

/// Maps slots to the masters that serve them.
pub(crate) struct SlotTable {
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
    pub(crate) fn owner(&self, slot: u16) -> Option<&Arc<ClusterNode>> {
        self.masters.get(usize::from(self.owners[usize::from(slot)]))
    }

    pub(crate) fn masters(&self) -> &[Arc<ClusterNode>] {
        &self.masters
    }

    pub(crate) fn has(&self, address: &Address) -> bool {
        self.masters.iter().any(|known| known.address == *address)
    }

    pub(crate) fn give(&mut self, first: u16, last: u16, to: &Arc<ClusterNode>) {
        let known = self.masters.iter().position(|known| Arc::ptr_eq(known, to));
        let at = known.unwrap_or_else(|| {
            self.masters.push(Arc::clone(to));
            self.masters.len() - 1
        });
        // There are at most as many masters as slots, so the index fits.
        self.owners[usize::from(first)..=usize::from(last)].fill(at as u16);
    }
}
