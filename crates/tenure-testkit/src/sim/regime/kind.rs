//! The kinds of locks that a schedule uses.

use super::*;

/// The kind of a lock, with its capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// `Mutex`.
    Mutex,
    /// `FairMutex`.
    Fair,
    /// `RwLock`.
    RwLock,
    /// `Semaphore` with this many permits.
    Semaphore(u32),
    /// `ReentrantMutex`, for one of two owners.
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

    /// The lock specification of a request with minimum weight.
    pub const fn spec(self) -> LockSpec {
        match self {
            Self::Mutex => LockSpec::Mutex,
            Self::Fair => LockSpec::Queue(QueueSpec::FAIR),
            Self::RwLock => LockSpec::Queue(QueueSpec::READER),
            Self::Semaphore(permits) => LockSpec::Queue(QueueSpec::permits(permits, 1)),
            Self::Reentrant => LockSpec::Reentrant,
        }
    }

    /// Maximum total weight of holders.
    pub const fn capacity(self) -> u32 {
        match self {
            Self::Mutex | Self::Fair | Self::Reentrant => 1,
            Self::RwLock => QueueSpec::WRITER.capacity,
            Self::Semaphore(permits) => permits,
        }
    }
}
