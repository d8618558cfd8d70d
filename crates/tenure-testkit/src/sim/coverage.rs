//! What really happened in schedules. A fault that is drawn, and then does nothing, finds nothing
//! either.

use super::regime::Plan;

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
}

impl Event {
    /// All of them.
    pub const ALL: [Self; 21] = [
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
    ];

    /// Whether schedules with such numbers are to have it now and then.
    fn is_due(self, plan: &Plan) -> bool {
        let (node_faults, faults) = (plan.node_faults, plan.faults);
        let share = match self {
            Self::Paused => node_faults.pause,
            Self::Died => node_faults.kill,
            Self::Cut => node_faults.cut,
            Self::Unheard => node_faults.delay_messages,
            Self::Stalled => node_faults.stall,
            Self::Forgotten => node_faults.forget,
            Self::Deleted => node_faults.delete,
            Self::Evicted => node_faults.evict,
            Self::Rewound => node_faults.rewind,
            Self::Stepped => node_faults.step,
            Self::Parted => node_faults.part,
            Self::RequestLost => faults.lose_request,
            Self::ReplyLost => faults.lose_reply,
            Self::NotSent => faults.refuse,
            Self::MessageLost => faults.lose_wake,
            Self::MessageAgain => faults.repeat_wake,
            Self::MessageLate => faults.late_wake.0,
            Self::Late => faults.late.0,
            Self::AtEdge => faults.edge,
            Self::AtLimit => faults.limit,
            Self::Again => faults.again,
        };
        share > 0
    }
}

/// How often each happened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Events([u64; Event::ALL.len()]);

impl Events {
    /// It happened.
    pub fn add(&mut self, event: Event) {
        self.0[event as usize] += 1;
    }

    fn merge(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(count, other)| *count += other);
    }
}

/// What happened in many schedules, and what was to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Coverage {
    /// In so many of them.
    due: Events,
    happened: Events,
}

impl Coverage {
    /// In so many schedules each fault must have had its effect.
    const ENOUGH: u64 = 500;

    /// Adds a schedule.
    pub fn add(&mut self, plan: &Plan, happened: &Events) {
        Event::ALL.into_iter().filter(|event| event.is_due(plan)).for_each(|event| self.due.add(event));
        self.happened.merge(happened);
    }

    /// All that is in both.
    pub fn merge(&mut self, other: &Self) {
        self.due.merge(&other.due);
        self.happened.merge(&other.happened);
    }

    /// What was due in enough schedules, and never happened.
    pub fn missing(&self) -> Vec<Event> {
        let never = |event: &Event| {
            let of = |events: Events| events.0[*event as usize];
            of(self.due) >= Self::ENOUGH && of(self.happened) == 0
        };
        Event::ALL.into_iter().filter(never).collect()
    }
}
