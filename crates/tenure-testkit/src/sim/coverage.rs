//! Tracks which faults took effect. A fault that is drawn but has no effect finds nothing.

use super::event::{Event, Events};
use super::regime::Plan;

impl Event {
    /// Whether schedules with this plan are expected to contain the event now and then.
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

/// Expected and observed events of many schedules.
#[derive(Clone, Copy, Debug, Default)]
pub struct Coverage {
    /// Number of schedules in which each event was expected.
    due: Events,
    happened: Events,
}

impl Coverage {
    /// Number of schedules within which each expected event must occur.
    const ENOUGH: u64 = 500;

    /// Adds a schedule.
    pub fn add(&mut self, plan: &Plan, happened: &Events) {
        Event::ALL.into_iter().filter(|event| event.is_due(plan)).for_each(|event| self.due.add(event));
        self.happened.merge(happened);
    }

    /// Adds another count.
    pub fn merge(&mut self, other: &Self) {
        self.due.merge(&other.due);
        self.happened.merge(&other.happened);
    }

    /// Events that were expected in enough schedules but never occurred.
    pub fn missing(&self) -> Vec<Event> {
        let never = |event: &Event| {
            let of = |events: Events| events.0[*event as usize];
            of(self.due) >= Self::ENOUGH && of(self.happened) == 0
        };
        Event::ALL.into_iter().filter(never).collect()
    }
}
