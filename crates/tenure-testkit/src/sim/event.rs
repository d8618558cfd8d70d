//! Events that schedules should contain, and how often they occurred.

/// An event that is expected now and then; it counts only if it takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A task was runnable while its process was paused.
    Paused,
    /// A process died with running tasks.
    Died,
    /// A connection was cut with a request in flight.
    Cut,
    /// A message was published while a process had no connection for it.
    Unheard,
    /// A request arrived while the server was stalled.
    Stalled,
    /// A server with locks lost all of them.
    Forgotten,
    /// The key of a held lock was deleted.
    Deleted,
    /// An existing token counter was evicted.
    Evicted,
    /// A server lost writes.
    Rewound,
    /// A server's clock was stepped.
    Stepped,
    /// A message was held back by a partition.
    Parted,
    /// A request was lost.
    RequestLost,
    /// A reply was lost.
    ReplyLost,
    /// A request could not be sent.
    NotSent,
    /// A wake-up was lost.
    MessageLost,
    /// A wake-up was delivered twice.
    MessageAgain,
    /// A wake-up was late.
    MessageLate,
    /// A message was slow.
    Late,
    /// A message was timed to arrive at the end of a lease.
    AtEdge,
    /// A message was timed to arrive at a client's timeout.
    AtLimit,
    /// A request was sent a second time.
    Again,
    /// A waiter was granted, but its client missed the message.
    NobodyThere,
}

impl Event {
    /// All events.
    pub const ALL: [Self; 22] = [
        Self::Paused,
        Self::Died,
        Self::Cut,
        Self::Unheard,
        Self::Stalled,
        Self::Forgotten,
        Self::Deleted,
        Self::Evicted,
        Self::Rewound,
        Self::Stepped,
        Self::Parted,
        Self::RequestLost,
        Self::ReplyLost,
        Self::NotSent,
        Self::MessageLost,
        Self::MessageAgain,
        Self::MessageLate,
        Self::Late,
        Self::AtEdge,
        Self::AtLimit,
        Self::Again,
        Self::NobodyThere,
    ];
}

/// Number of occurrences of each event.
#[derive(Clone, Copy, Debug, Default)]
pub struct Events(pub(super) [u64; Event::ALL.len()]);

impl Events {
    /// Counts an occurrence.
    pub fn add(&mut self, event: Event) {
        self.0[event as usize] += 1;
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(count, other)| *count += other);
    }
}
