//! Likelihoods of faults of whole processes, connections and servers.

use super::Regime;

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

impl NodeFaults {
    /// The faults of a regime.
    pub(super) fn of(regime: Regime) -> Self {
        let none = Self::default();
        match regime {
            Regime::Lossy => Self { most: 4, cut: 3, delay_messages: 2, ..none },
            Regime::Pausing => Self { most: 6, pause: 5, stall: 2, ..none },
            Regime::Killing => Self { most: 3, kill: 3, cut: 1, ..none },
            Regime::Drifting => Self { most: 3, stall: 2, cut: 1, ..none },
            Regime::Tiny => Self { most: 2, pause: 1, ..none },
            Regime::Storm => Self { most: 6, pause: 3, kill: 1, cut: 2, delay_messages: 2, stall: 2, ..none },
            Regime::Forgetting => Self { most: 4, forget: 3, delete: 3, cut: 1, ..none },
            Regime::Parted => Self { most: 6, part: 6, cut: 1, ..none },
            Regime::Rewinding => Self { most: 4, rewind: 5, cut: 1, ..none },
            Regime::Evicting => Self { most: 4, delete: 2, evict: 3, ..none },
            Regime::Stepping => Self { most: 4, step: 1, ..none },
            Regime::LateMessages => Self { most: 8, delay_messages: 3, cut: 2, ..none },
            Regime::Relapsing => Self { most: 8, evenly: true, rewind: 1, ..none },
            Regime::Outage => Self { most: 3, evenly: true, stall: 1, ..none },
            Regime::Flapping => Self { most: 12, evenly: true, cut: 3, delay_messages: 1, ..none },
            _ => none,
        }
    }
}
