//! When the renewer looks at which grant.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};

use tokio::sync::Notify;

use super::grant::Lease;
use crate::moment::Moment;
use crate::sync::Locked;

/// The grants that one engine renews.
#[derive(Default)]
pub(super) struct Renewer {
    schedule: Locked<RenewSchedule>,
    pub(super) notify: Notify,
}

#[derive(Default)]
pub(super) struct RenewSchedule {
    /// By due time and hold.
    pub(super) due: BTreeMap<(Moment, u64), Arc<Lease>>,
    /// When the task wakes up; `None` while there is no task.
    pub(super) asleep_until: Option<Moment>,
    pub(super) closed: bool,
}

impl RenewSchedule {
    pub(super) fn put(&mut self, lease: &Arc<Lease>, due: Moment) {
        let mut state = lease.state();
        let due = state.doubtful_at.map_or(due, |doubtful| doubtful.min(due));
        state.due = Some(due);
        drop(state);
        self.due.insert((due, lease.hold), Arc::clone(lease));
    }

    /// Moves it forward to this time; false if it is due earlier or not scheduled.
    pub(super) fn hasten(&mut self, lease: &Arc<Lease>, by: Moment) -> bool {
        let due = lease.state().due;
        due.is_some_and(|due| by < due) && self.set(lease, by)
    }

    /// Whether the task has to wake up earlier for this time.
    pub(super) fn wakes(&mut self, due: Moment) -> bool {
        let is_sooner = self.asleep_until.is_some_and(|until| due < until);
        if is_sooner {
            self.asleep_until = Some(due);
        }
        is_sooner
    }

    /// When the task wakes up next. An empty schedule keeps the planned time, because otherwise each short
    /// hold would wake the task.
    pub(super) fn sleep(&mut self, now: Moment) -> Moment {
        let planned = self.asleep_until.filter(|until| *until > now);
        let until = self.first().or(planned).unwrap_or(Moment(u64::MAX));
        self.asleep_until = Some(until);
        until
    }

    pub(super) fn first(&self) -> Option<Moment> {
        self.due.keys().next().map(|(due, _)| *due)
    }

    /// Moves it to this time; false if another thread has removed it.
    pub(super) fn set(&mut self, lease: &Arc<Lease>, due: Moment) -> bool {
        let is_in = self.take(lease);
        if is_in {
            self.put(lease, due);
        }
        is_in
    }

    pub(super) fn has(&self, lease: &Lease) -> bool {
        lease.state().due.is_some()
    }

    /// Removes it; false if it was not scheduled.
    pub(super) fn take(&mut self, lease: &Lease) -> bool {
        let due = lease.state().due.take();
        due.is_some_and(|due| self.due.remove(&(due, lease.hold)).is_some())
    }
}

impl Renewer {
    pub(super) fn ask_by(&self, lease: &Arc<Lease>, by: Moment) {
        lease.state().doubt(by);
        if self.schedule().hasten(lease, by) {
            self.notify.notify_one();
        }
    }

    pub(super) fn forget(&self, lease: &Lease) {
        self.schedule().take(lease);
    }

    /// No handle is left: the task ends.
    pub(super) fn close(&self) {
        self.schedule().closed = true;
        self.notify.notify_one();
    }

    #[cfg(test)]
    pub(super) fn scheduled(&self) -> usize {
        self.schedule().due.len()
    }

    pub(super) fn schedule(&self) -> MutexGuard<'_, RenewSchedule> {
        self.schedule.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_that_are_held_for_a_moment_do_not_wake_the_task() {
        let mut schedule = RenewSchedule { asleep_until: Some(Moment(u64::MAX)), ..RenewSchedule::default() };
        let woken = (0..100).filter(|at| {
            // Released before the task looks.
            let is_woken = schedule.wakes(Moment(1_000 + at));
            schedule.sleep(Moment(*at));
            is_woken
        });
        assert_eq!(woken.count(), 1);
        assert!(schedule.wakes(Moment(500)), "that is due before");
        assert_eq!(schedule.sleep(Moment(500)), Moment(u64::MAX), "nothing is planned any more");
    }
}
