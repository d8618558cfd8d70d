//! Likelihoods of faults of whole processes, connections and servers.

/// Relative likelihood of each fault.
#[derive(Clone, Copy, Debug, Default)]
pub struct NodeFaults {
    /// Maximum number of faults.
    pub most: u64,
    /// Whether times are drawn uniformly, so that most are long, instead of log-uniformly.
    pub evenly: bool,
    /// Weight of [`NodeFault::Pause`](crate::sim::node_faults::NodeFault::Pause).
    pub pause: u32,
    /// Weight of [`NodeFault::Kill`](crate::sim::node_faults::NodeFault::Kill).
    pub kill: u32,
    /// Weight of [`NodeFault::Cut`](crate::sim::node_faults::NodeFault::Cut).
    pub cut: u32,
    /// Weight of [`NodeFault::DelayMessages`](crate::sim::node_faults::NodeFault::DelayMessages).
    pub delay_messages: u32,
    /// Weight of [`NodeFault::Stall`](crate::sim::node_faults::NodeFault::Stall).
    pub stall: u32,
    /// Weight of [`NodeFault::Forget`](crate::sim::node_faults::NodeFault::Forget).
    pub forget: u32,
    /// Weight of [`NodeFault::Delete`](crate::sim::node_faults::NodeFault::Delete).
    pub delete: u32,
    /// Weight of [`NodeFault::Part`](crate::sim::node_faults::NodeFault::Part).
    pub part: u32,
    /// Weight of [`NodeFault::Rewind`](crate::sim::node_faults::NodeFault::Rewind).
    pub rewind: u32,
    /// Weight of [`NodeFault::Evict`](crate::sim::node_faults::NodeFault::Evict).
    pub evict: u32,
    /// Weight of [`NodeFault::Step`](crate::sim::node_faults::NodeFault::Step).
    pub step: u32,
}
