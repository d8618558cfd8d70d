//! This store's listeners.

use std::collections::{BTreeMap, BTreeSet};

use super::names::{HolderId, RecordId};
use tenure_core::protocol::Notification;
use tenure_core::store::Publisher;

/// This store's listeners, by lock.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    by_lock: BTreeMap<RecordId, LockListeners>,
    /// Number of locks at which the next insertion removes dropped listeners.
    full: usize,
    /// Nonzero while any lock may depend on the directory watch.
    watching: usize,
}

/// The listeners of one lock. Dropped ones are removed at the next look at the lock.
#[derive(Debug)]
struct LockListeners {
    listeners: Vec<Publisher>,
    /// Listeners of holders, which are notified only that a hold may have been ended by force.
    holding: Vec<Publisher>,
    /// The holding tickets of the last notification. Every refresh changes a queue's record, and repeating
    /// these tickets would wake every process each time.
    told: BTreeSet<u64>,
    /// How its changes are noticed.
    hears: WatchMode,
    /// The holders to watch while a ticket of this process is at the front of the queue.
    ahead: Option<Vec<HolderId>>,
}

/// How a process notices changes of a lock. The greatest applies if listeners differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WatchMode {
    /// It waits in a queue and is woken when it is granted; until then it refreshes its ticket.
    Grants,
    /// It retries whenever the lock becomes free, on a wake-up or a periodic look.
    Calls,
    /// It watches the directory.
    All,
}

impl Listeners {
    /// Adds a listener.
    pub(super) fn add(&mut self, id: RecordId, listener: Publisher, hears: WatchMode) {
        add(&mut self.of(id, hears).listeners, listener);
        self.watching += usize::from(hears == WatchMode::All);
    }

    /// Adds a listener of a holder. `is_called`: a process that ends the hold by force sends a wake-up.
    pub(super) fn add_holder(&mut self, id: RecordId, listener: Publisher, is_called: bool) {
        let hears = if is_called { WatchMode::Grants } else { WatchMode::All };
        add(&mut self.of(id, hears).holding, listener);
        self.watching += usize::from(!is_called);
    }

    fn of(&mut self, id: RecordId, hears: WatchMode) -> &mut LockListeners {
        if self.by_lock.len() >= self.full.max(64) {
            self.forget();
            self.full = 2 * self.by_lock.len();
        }
        let listening = self.by_lock.entry(id).or_insert_with(|| LockListeners {
            listeners: Vec::new(),
            holding: Vec::new(),
            told: BTreeSet::new(),
            hears,
            ahead: None,
        });
        listening.hears = listening.hears.max(hears);
        listening
    }

    /// Notifies the lock's holders that a hold may have been ended by force.
    pub(super) fn tell_holders(&mut self, id: RecordId) {
        let holding = self.by_lock.get(&id).into_iter().flat_map(|listening| &listening.holding);
        holding.for_each(|listener| listener.say(Notification::Free { by: None }));
    }

    /// Whether the lock's holders have to check themselves whether a hold was ended by force.
    pub(super) fn holders_look(&self, id: RecordId) -> bool {
        let look =
            |listening: &LockListeners| listening.hears == WatchMode::All && !listening.holding.is_empty();
        self.by_lock.get(&id).is_some_and(look)
    }

    /// Removes dropped listeners and locks without listeners.
    pub(super) fn forget(&mut self) {
        self.by_lock.retain(|_, listening| {
            listening.listeners.retain(|listener| !listener.is_over());
            listening.holding.retain(|listener| !listener.is_over());
            !listening.listeners.is_empty() || !listening.holding.is_empty()
        });
        self.watching = self.by_lock.values().filter(|listening| listening.hears == WatchMode::All).count();
    }

    /// Publishes the effect of this store's own request.
    pub(super) fn tell(&mut self, id: RecordId, wake: &Notification) {
        let Some(listening) = self.by_lock.get_mut(&id) else { return };
        listening.say(wake);
        if let Notification::Granted { tickets } = wake {
            listening.told.extend(tickets);
        }
    }

    /// Publishes what a record shows; of the holding tickets, only the new ones.
    pub(super) fn tell_news(&mut self, id: RecordId, wake: Notification) {
        let Some(listening) = self.by_lock.get_mut(&id) else { return };
        let Notification::Granted { tickets: holding } = wake else {
            listening.say(&wake);
            return;
        };
        let tickets: Vec<_> =
            holding.iter().copied().filter(|ticket| !listening.told.contains(ticket)).collect();
        if !tickets.is_empty() {
            listening.say(&Notification::Granted { tickets });
        }
        listening.told = holding.into_iter().collect();
    }

    pub(super) fn tell_all(&mut self, wake: &Notification) {
        for listening in self.by_lock.values() {
            listening.say(wake);
            listening.holding.iter().for_each(|listener| listener.say(wake.clone()));
        }
    }

    /// Whether the lock has a listener that waits for it.
    pub(super) fn has(&self, id: RecordId) -> bool {
        let mut listeners = self.by_lock.get(&id).into_iter().flat_map(|listening| &listening.listeners);
        listeners.any(|listener| !listener.is_over())
    }

    /// All locks with listeners.
    pub(super) fn all(&self) -> Vec<RecordId> {
        self.by_lock.keys().copied().collect()
    }

    /// Whether changes of this lock are noticed through the directory watch.
    pub(super) fn watches(&self, id: RecordId) -> bool {
        self.by_lock.get(&id).is_some_and(|listening| listening.hears == WatchMode::All)
    }

    /// Whether the directory watch is needed for any lock.
    pub(super) fn any_watches(&self) -> bool {
        self.watching > 0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_lock.is_empty()
    }

    /// The locks due for a frequent look, after removing dropped listeners; with `all`, also those that are
    /// looked at rarely.
    pub(super) fn due_looks(&mut self, all: bool) -> Vec<RecordId> {
        self.forget();
        let looks = |(id, listening): (&RecordId, &LockListeners)| {
            let is_due = match listening.hears {
                WatchMode::All => true,
                WatchMode::Calls => all || listening.ahead.is_some(),
                WatchMode::Grants => listening.ahead.is_some(),
            };
            is_due.then_some(*id)
        };
        self.by_lock.iter().filter_map(looks).collect()
    }

    /// Whether any lock needs rare looks.
    pub(super) fn any_calls(&self) -> bool {
        self.by_lock.values().any(|listening| listening.hears == WatchMode::Calls)
    }

    /// Records the holders ahead of this process's ticket at the front of the queue. Returns whether that
    /// changed.
    pub(super) fn set_ahead(&mut self, id: RecordId, ahead: Option<Vec<HolderId>>) -> bool {
        let Some(listening) = self.by_lock.get_mut(&id) else { return false };
        let is_news = listening.ahead != ahead;
        listening.ahead = ahead;
        is_news
    }

    /// Whether a ticket of this process was at the front of the queue at the last look.
    pub(super) fn is_near(&self, id: RecordId) -> bool {
        self.by_lock.get(&id).is_some_and(|listening| listening.ahead.is_some())
    }

    /// All holders ahead of this process's tickets.
    pub(super) fn all_ahead(&self) -> BTreeSet<HolderId> {
        self.by_lock.values().flat_map(|listening| listening.ahead.iter().flatten()).copied().collect()
    }
}

/// Adds a listener. Drops closed ones before growing, so that the list stays proportional to the open ones.
fn add(listeners: &mut Vec<Publisher>, listener: Publisher) {
    if listeners.len() == listeners.capacity() {
        listeners.retain(|listener| !listener.is_over());
    }
    listeners.push(listener);
}

impl LockListeners {
    fn say(&self, wake: &Notification) {
        self.listeners.iter().for_each(|listener| listener.say(wake.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_core::name::LockName;
    use tenure_core::store::Listener;

    fn id() -> RecordId {
        RecordId::of(&LockName::new("x").expect("a name"))
    }

    /// A listener registered through `add`.
    fn listens(add: impl FnOnce(Publisher)) -> Listener {
        Listener::new(|publisher| {
            add(publisher);
            Box::new(())
        })
    }

    #[test]
    fn of_holders_that_come_one_after_the_other_few_are_kept() {
        let mut listeners = Listeners::default();
        let stays = listens(|publisher| listeners.add_holder(id(), publisher, true));
        for _ in 0..10_000 {
            drop(listens(|publisher| listeners.add_holder(id(), publisher, true)));
            drop(listens(|publisher| listeners.add(id(), publisher, WatchMode::Calls)));
        }
        let LockListeners { listeners, holding, .. } = &listeners.by_lock[&id()];
        assert!(holding.len() < 20 && listeners.len() < 20, "{} and {}", holding.len(), listeners.len());
        assert!(holding.iter().any(|listener| !listener.is_over()));
        drop(stays);
    }

    #[test]
    fn none_waits_once_its_listener_is_dropped() {
        let mut listeners = Listeners::default();
        let one = listens(|publisher| listeners.add(id(), publisher, WatchMode::Calls));
        assert!(listeners.has(id()));
        drop(one);
        assert!(!listeners.has(id()));
    }
}
