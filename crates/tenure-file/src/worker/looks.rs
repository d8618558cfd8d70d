//! How the worker notices changes by other processes: inotify, wake-ups and periodic looks.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::{DirectoryWorker, Job, JobRequest};
use crate::apply::{Applied, now};
use crate::bindings::Bindings;
use crate::directory::{Directory, Entered, Inside};
use crate::holders::HolderFiles;
use crate::inotify::{DirectoryEvent, DirectoryWatch};
use crate::lock::Lock;
use crate::look::{Looked, changed as changed_to, holds_no_more, looked};
use crate::names::{HolderId, RecordId};
use crate::shared::SWEEP;
use crate::sweep::Sweep;
use crate::watch::WatchMode;
use tenure_core::events::{event, text};
use tenure_core::moment::Moment;
use tenure_core::planted::{Bug, planted};
use tenure_core::protocol::{Answer, Listening, Notification};
use tenure_core::runtime::Runtime;
use tenure_core::store::{Failure, Listener, Station};

/// Interval between looks at locks with listeners. Releases and most crashes are noticed immediately.
const LOOK: Duration = Duration::from_millis(200);
/// Minimum and maximum interval between looks at a lock that relies on wake-ups, in case the woken process
/// and those behind it are stopped.
const RARE: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3)];
/// Time after the close of a holder's file by which its flock is certainly released.
const AFTER_CLOSE: Duration = Duration::from_millis(1);
/// Consecutive looks without listeners after which the watch ends.
const IDLE_LOOKS: u32 = 25;
/// Maximum locks looked at before yielding to other tasks.
const LOOKS: usize = 32;
/// Minimum pause after a round of looks, as a multiple of its duration.
const SHARE: u32 = 4;
/// Pause between two pieces of a sweep.
const PIECE_PAUSE: Duration = Duration::from_millis(2);

impl DirectoryWorker {
    /// Publishes the changes that were noticed. `own` are those of this store's requests, which inotify
    /// reports as well.
    pub(super) fn hear(&mut self, own: Vec<(RecordId, Applied)>) {
        let mut changed = BTreeSet::new();
        for seen in self.watch.as_ref().map(DirectoryWatch::read).unwrap_or_default() {
            match seen {
                DirectoryEvent::Changed(_) if planted(Bug::ChangeUnheard) => {}
                DirectoryEvent::Changed(id) => drop(changed.insert(id)),
                DirectoryEvent::HolderClosed if planted(Bug::DeathUnheard) => {}
                DirectoryEvent::HolderClosed if self.look.is_some() => {
                    self.closed_at = self.runtime.now();
                    self.look_after(AFTER_CLOSE);
                }
                DirectoryEvent::HolderClosed => {}
                DirectoryEvent::Replaced => self.replaced(),
                DirectoryEvent::Missed => self.listeners.tell_all(&Notification::Reconnected),
            }
        }
        let shared = Arc::clone(&self.shared);
        let core = shared.core();
        let Some(directory) = &core.directory else { return };
        let mut near = Vec::new();
        for (id, Applied { answer, wake, is_near, is_forced, .. }) in own {
            if is_forced {
                self.listeners.tell_holders(id);
            }
            // A process that requested a mutex may have different holders ahead of it now.
            let is_news = matches!(answer, Answer::Busy { .. }) || !self.listeners.is_near(id);
            if self.listeners.has(id) && is_near && is_news {
                near.push(id);
            }
            match wake {
                None => {}
                _ if !self.listeners.has(id) => {}
                // Taken again; its new holder will free it.
                Some(Notification::Free { .. }) if directory.has(id) => {}
                Some(wake @ Notification::Free { .. }) => {
                    changed.remove(&id);
                    self.listeners.tell(id, &wake);
                }
                Some(wake) => self.listeners.tell(id, &wake),
            }
        }
        let now = self.now();
        changed.retain(|id| self.listeners.watches(*id));
        for id in changed {
            if self.listeners.holders_look(id) && holds_no_more(directory, &core.holders, id) {
                self.listeners.tell_holders(id);
            }
            if let Some(wake) = changed_to(directory, now, id) {
                self.listeners.tell_news(id, wake);
            }
        }
        drop(core);
        for id in near {
            self.look_at(id);
        }
    }

    /// Adds a listener to a lock. The guard is held, so that the listener misses no later change.
    pub(super) fn add_listener(
        &mut self,
        inside: &Inside<'_>,
        holders: &mut HolderFiles,
        id: RecordId,
        hears: WatchMode,
    ) -> Listener {
        let runtime = &*self.runtime;
        let hears = match hears {
            _ if holders.cannot_be_called() => WatchMode::All,
            WatchMode::Calls => match holders.begin_to_ask(inside, runtime, id) {
                Ok(true) => hears,
                // The directory watch may start too late for the first changes; the look finds them.
                Ok(false) | Err(_) => WatchMode::All,
            },
            hears => hears,
        };
        let listener = Listener::new(|sender| {
            self.listeners.add(id, sender, hears);
            Box::new(())
        });
        let station = Station::default();
        // Any number: the processes ahead of a waiter know its process, and call it by its socket.
        station.set(Listening::new(1).filter(|_| matches!(hears, WatchMode::Grants)));
        let listener = listener.at(station);
        self.shared.listens.store(true, Ordering::Release);
        match hears {
            WatchMode::Grants => {
                // To find out whether its ticket is at the front of the queue.
                if self.looking.is_empty() {
                    self.looking_since = runtime.now();
                }
                self.looking.push(id);
                self.look_after(Duration::ZERO);
            }
            WatchMode::Calls if self.look.is_some() => {}
            WatchMode::Calls => {
                self.rare_at = runtime.now() + rare(runtime);
                self.look_by(self.rare_at);
            }
            WatchMode::All => self.begin_looks(),
        }
        listener
    }

    /// Adds a listener for the end of a lock's holds.
    pub(super) fn add_holder_listener(
        &mut self,
        inside: &Inside<'_>,
        holders: &mut HolderFiles,
        id: RecordId,
    ) -> Listener {
        let bindings = Lock::peek(inside, id).ok().flatten().map(|record| record.bindings);
        for (_, holder) in bindings.iter().flat_map(Bindings::iter) {
            holders.listen(inside, holder);
        }
        let is_called = !holders.cannot_be_called();
        let listener = Listener::new(|sender| {
            self.listeners.add_holder(id, sender, is_called);
            Box::new(())
        });
        self.shared.listens.store(true, Ordering::Release);
        if !is_called {
            self.begin_looks();
        }
        listener
    }

    /// Handles wake-ups by looking at their locks.
    pub(super) fn called(&mut self) {
        let (called, may_lack) = self.shared.core().holders.called();
        for id in called {
            self.listeners.tell_holders(id);
            if !self.listeners.has(id) {
                // Nobody waits here any more; pass the wake-up on.
                self.queue.push_back(Job::new(JobRequest::Rest(id), self.runtime.now(), Duration::MAX, None));
            } else if !planted(Bug::ChangeUnheard) {
                self.look_at(id);
            }
        }
        if may_lack {
            // The kernel may have dropped wake-ups about any lock.
            self.looking = self.listeners.all();
            self.looking_since = self.runtime.now();
            self.look_after(Duration::ZERO);
        }
    }

    /// Removes dropped listeners, if no look does.
    pub(super) fn forget(&mut self) {
        let now = self.runtime.now();
        if self.look.is_some() || now < self.forget_at {
            return;
        }
        self.forget_at = now + LOOK;
        self.listeners.forget();
        self.shared.listens.store(!self.listeners.is_empty(), Ordering::Release);
    }

    fn look_after(&mut self, delay: Duration) {
        self.look_by(self.runtime.now() + delay);
    }

    /// Schedules the next look, unless one is due before: a busy lock would put off those at all others.
    fn look_by(&mut self, at: Moment) {
        if self.look.as_ref().is_none_or(|(due, _)| at < *due) {
            self.look = Some((at, self.runtime.sleep_until(at)));
        }
    }

    /// Begins the periodic looks, unless one is scheduled already.
    fn begin_looks(&mut self) {
        if self.look.is_none() {
            self.look_after(LOOK);
        }
    }

    /// Looks at some of the locks with listeners, because a crash may go unnoticed and inotify may be
    /// unavailable.
    pub(super) fn look(&mut self) {
        self.look = None;
        if self.looking.is_empty() {
            let now = self.runtime.now();
            let is_rare = now >= self.rare_at;
            self.looking = self.listeners.due_looks(is_rare);
            if is_rare {
                self.rare_at = now + rare(&*self.runtime);
            }
            self.shared.listens.store(!self.listeners.is_empty(), Ordering::Release);
            let over = self.shared.core().holders.ask_no_more(|id| self.listeners.has(id));
            let rest = |id| Job::new(JobRequest::Rest(id), now, Duration::MAX, None);
            self.queue.extend(over.into_iter().map(rest));
            self.looking_since = self.runtime.now();
            self.idle_looks = if self.looking.is_empty() { self.idle_looks + 1 } else { 0 };
            if !self.looking.is_empty() && !self.listeners.any_watches() {
                self.watch.iter_mut().for_each(DirectoryWatch::end_directory);
            }
            if self.looking.is_empty() && self.listeners.any_calls() {
                return self.look_by(self.rare_at);
            }
            let watches = self.watch.as_ref().is_some_and(DirectoryWatch::is_active);
            if self.looking.is_empty() && (!watches || self.idle_looks > IDLE_LOOKS) {
                self.watch.iter_mut().for_each(DirectoryWatch::end);
                return;
            }
        }
        let is_in_place = |directory: &Directory| directory.is_in_place().unwrap_or(true);
        if !self.shared.core().directory.as_ref().is_none_or(is_in_place) {
            self.look_after(LOOK);
            return self.replaced();
        }
        for _ in 0..LOOKS {
            let Some(id) = self.looking.pop() else { break };
            self.look_at(id);
        }
        // Let other tasks run; the next round is scheduled from the end of this one.
        let took = self.runtime.now().since(self.looking_since);
        let pause = if self.looking.is_empty() { LOOK.max(took * SHARE) } else { Duration::ZERO };
        self.look = None;
        self.look_after(pause);
        // This look may have come before the flock of a closed file was released.
        let released_at = self.closed_at + AFTER_CLOSE;
        if self.runtime.now() < released_at {
            self.look_by(released_at);
        }
    }

    /// Looks at one lock. If a ticket of this process is at the front of the queue, watches the holders ahead
    /// of it from now on.
    fn look_at(&mut self, id: RecordId) {
        let now = self.now();
        let shared = Arc::clone(&self.shared);
        let core = shared.core();
        let Some(directory) = &core.directory else { return };
        if self.listeners.holders_look(id) && holds_no_more(directory, &core.holders, id) {
            self.listeners.tell_holders(id);
        }
        let Looked { mut wake, ahead } = looked(directory, &core.holders, now, id);
        if self.listeners.set_ahead(id, ahead) {
            let ahead = self.listeners.all_ahead();
            if !ahead.is_empty() && self.watch.is_none() {
                self.watch = new_watch();
            }
            self.watch.iter_mut().for_each(|watch| watch.watch_holders(directory, &ahead));
            // Look again for a holder that crashed before the watch began.
            let again = looked(directory, &core.holders, now, id);
            self.listeners.set_ahead(id, again.ahead);
            wake = wake.or(again.wake);
            self.look_after(LOOK);
        }
        if let Some(wake) = wake {
            self.listeners.tell_news(id, wake);
        }
    }

    /// Begins a sweep if the last one was long ago.
    pub(super) fn begin_sweep(
        &mut self,
        inside: &Inside<'_>,
        holders: &HolderFiles,
        swept: &mut Option<Moment>,
    ) {
        let (runtime, offset_ms) = (&*self.runtime, self.shared.offset_ms);
        if self.sweep.is_some() || swept.is_some_and(|swept| runtime.now().since(swept) < SWEEP) {
            return;
        }
        *swept = Some(runtime.now());
        match Sweep::new(inside, runtime.random()) {
            Ok(sweep) => self.sweep = Some(sweep),
            Err(failure) => not_swept(&failure),
        }
        self.sweep_at = do_piece(&mut self.sweep, inside, holders, runtime, offset_ms);
    }

    /// Does a piece of the sweep, unless another process has the guard.
    pub(super) fn sweep(&mut self) {
        self.sweep_at = None;
        let core = self.shared.core();
        let Some(directory) = &core.directory else { return };
        let (runtime, offset_ms) = (&*self.runtime, self.shared.offset_ms);
        self.sweep_at = match directory.enter(None) {
            Ok(Entered::Inside(inside)) => {
                do_piece(&mut self.sweep, &inside, &core.holders, runtime, offset_ms)
            }
            Ok(Entered::Locked) => Some(runtime.sleep_until(runtime.now() + PIECE_PAUSE)),
            // The next request notices.
            Ok(Entered::Replaced) | Err(_) => None,
        };
    }
}

/// Does a piece of the sweep and returns when the next is due.
fn do_piece(
    sweep: &mut Option<Sweep>,
    inside: &Inside<'_>,
    holders: &HolderFiles,
    runtime: &dyn Runtime,
    offset_ms: i64,
) -> Option<BoxFuture<'static, ()>> {
    let mut under_way = sweep.take()?;
    match under_way.piece(inside, now(runtime, offset_ms), |id: HolderId| holders.is_mine(id)) {
        Ok(true) => None,
        Ok(false) => {
            *sweep = Some(under_way);
            Some(runtime.sleep_until(runtime.now() + PIECE_PAUSE))
        }
        Err(failure) => {
            not_swept(&failure);
            None
        }
    }
}

/// A random interval, so that waiting processes do not all look at once.
fn rare(runtime: &dyn Runtime) -> Duration {
    let [least, most] = RARE;
    least + Duration::from_nanos(runtime.random() % (most - least).as_nanos() as u64)
}

fn not_swept(failure: &Failure) {
    event!(
        DEBUG,
        target: "tenure",
        "directory_not_swept",
        "the directory was not cleaned up",
        failure = text(failure)
    );
}

/// Starts watching the directory. Without inotify, periodic looks have to do.
pub(super) fn listen(watch: &mut Option<DirectoryWatch>, directory: &Directory) {
    if watch.is_none() {
        *watch = new_watch();
    }
    if let Some(Err(errno)) = watch.as_mut().map(|watch| watch.begin(directory)) {
        event!(
            DEBUG,
            target: "tenure",
            "directory_not_watched",
            "cannot watch the directory",
            errno = text(errno)
        );
    }
}

fn new_watch() -> Option<DirectoryWatch> {
    DirectoryWatch::new()
        .inspect_err(|error| event!(DEBUG, target: "tenure", "directory_not_watched", "the system gives no inotify instance", errno = text(error)))
        .ok()
}
