//! How often something happens to whole processes, connections and servers.

/// How likely each fault is, against the others.
#[derive(Clone, Copy, Debug, Default)]
pub struct NodeFaults {
    /// How many at most.
    pub most: u64,
    /// Whether all times and lengths are as likely, and not each power of two: so most of them are
    /// long.
    pub evenly: bool,
    /// See [`NodeFault`](crate::sim::node_faults::NodeFault).
    pub pause: u32,
    /// See [`NodeFault`](crate::sim::node_faults::NodeFault).
    pub kill: u32,
    /// See [`NodeFault`](crate::sim::node_faults::NodeFault).
    pub cut: u32,
    /// See [`NodeFault`](crate::sim::node_faults::NodeFault).
    pub delay_messages: u32,
    /// See [`NodeFault`](crate::sim::node_faults::NodeFault).
    pub stall: u32,
    /// See [`NodeFault`](crate::sim::node_faults::NodeFault).
    pub forget: u32,
    /// See [`NodeFault`](crate::sim::node_faults::NodeFault).
    pub delete: u32,
    /// See [`NodeFault`](crate::sim::node_faults::NodeFault).
    pub part: u32,
    /// See [`NodeFault`](crate::sim::node_faults::NodeFault).
    pub rewind: u32,
    /// See [`NodeFault`](crate::sim::node_faults::NodeFault).
    pub evict: u32,
    /// See [`NodeFault`](crate::sim::node_faults::NodeFault).
    pub step: u32,
}
