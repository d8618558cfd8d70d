//! What may happen in a schedule, and how often it did.

/// Something that is to happen now and then, where it takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A task could have gone on, and its process stood still.
    Paused,
    /// A process died with tasks.
    Died,
    /// A connection ended under a request.
    Cut,
    /// A message was said while a process had no connection for it.
    Unheard,
    /// A request came while the server stood still.
    Stalled,
    /// A server with locks lost all.
    Forgotten,
    /// The key of a lock that was held disappeared.
    Deleted,
    /// The counter of a lock that had one disappeared.
    Evicted,
    /// A server lost something that was written.
    Rewound,
    /// A server's clock was set.
    Stepped,
    /// A message was kept back between two that were parted.
    Parted,
    /// A request disappeared.
    RequestLost,
    /// A reply disappeared.
    ReplyLost,
    /// A request was not sent at all.
    NotSent,
    /// A wake-up disappeared.
    MessageLost,
    /// A wake-up came twice.
    MessageAgain,
    /// A wake-up came late.
    MessageLate,
    /// A message took long.
    Late,
    /// A message was timed by the end of a lease.
    AtEdge,
    /// A message was timed by the end of a client's patience.
    AtLimit,
    /// A request was sent a second time.
    Again,
    /// A waiter was called, and no client heard it.
    NobodyThere,
}

impl Event {
    /// All of them.
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

/// How often each happened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Events(pub(super) [u64; Event::ALL.len()]);

impl Events {
    /// It happened.
    pub fn add(&mut self, event: Event) {
        self.0[event as usize] += 1;
    }

    /// Adds another count.
    pub(super) fn merge(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(count, other)| *count += other);
    }
}
