//! The kinds of locks that a schedule uses.

use super::*;

/// The kind of a lock, and its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// One holder.
    Mutex,
    /// One holder, in order.
    Fair,
    /// Readers or a writer.
    RwLock,
    /// So many permits.
    Semaphore(u32),
    /// One of two owners, several times.
    Reentrant,
}

impl LockKind {
    pub(super) fn draw(sim: &Sim) -> Self {
        match sim.choose(6) {
            0 | 1 => Self::Mutex,
            2 => Self::Fair,
            3 => Self::RwLock,
            4 => Self::Semaphore(2 + sim.choose(4)),
            _ => Self::Reentrant,
        }
    }

    /// What the server is asked for it, by one that takes least.
    pub const fn spec(self) -> LockSpec {
        match self {
            Self::Mutex => LockSpec::Mutex,
            Self::Fair => LockSpec::Queue(QueueSpec::FAIR),
            Self::RwLock => LockSpec::Queue(QueueSpec::READER),
            Self::Semaphore(permits) => LockSpec::Queue(QueueSpec::permits(permits, 1)),
            Self::Reentrant => LockSpec::Reentrant,
        }
    }

    /// How much weight may hold at once.
    pub const fn capacity(self) -> u32 {
        match self {
            Self::Mutex | Self::Fair | Self::Reentrant => 1,
            Self::RwLock => QueueSpec::WRITER.capacity,
            Self::Semaphore(permits) => permits,
        }
    }
}
