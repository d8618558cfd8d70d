//! What really happened in schedules. A fault that is drawn, and then does nothing, finds nothing
//! either.

use super::event::{Event, Events};
use super::regime::Plan;

impl Event {
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
            Self::NobodyThere => node_faults.kill * u32::from(plan.passes),
        };
        share > 0
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
