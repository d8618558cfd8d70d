//! `tracing` events. A slow subscriber never delays the driver's thread.
//!
//! On a caller's thread the subscriber is called directly. Events from the thread of a
//! [`Driver`](crate::runtime::Driver), which renews leases, and from work that a caller does in its place, pass
//! through a bounded queue to a separate thread. Events that do not fit are dropped and counted, and the count is
//! reported as an event.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, MutexGuard, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::sync::Locked;
use tokio::sync::Notify;
use tracing::Span;
use tracing::dispatcher::{self, Dispatch};
use tracing::field::{self, DisplayValue};
use tracing::subscriber::NoSubscriber;

/// Capacity of the event queue. Further events are dropped.
const QUEUE: usize = 4_096;
/// Time that `flush` and the drop of the last handle wait for the subscriber.
pub const FLUSH: Duration = Duration::from_secs(1);

/// Emits an event with a level, target, name, message and fields. The name, in the field `event`, is stable
/// between versions; the message is for people. The fields' values are owned, and evaluated only if a
/// subscriber is interested in the event.
#[macro_export]
#[doc(hidden)]
macro_rules! event {
    (
        $level:ident, target: $target:expr, $name:literal, $message:literal
        $(, $field:ident = $value:expr)* $(,)?
    ) => {
        if $crate::events::is_enabled(|| {
            $crate::events::tracing::event_enabled!(target: $target, $crate::events::tracing::Level::$level, event $(, $field)*)
        }) {
            let ($($field,)*) = ($($value,)*);
            $crate::events::emit(move || {
                $crate::events::tracing::event!(
                    target: $target, $crate::events::tracing::Level::$level, event = $name, $($field = $field,)* $message
                )
            });
        }
    };
}
pub use crate::event;
#[doc(hidden)]
pub use tracing;

/// A span for work on a caller's thread. On a driver's thread it is disabled, because no subscriber may be
/// called there.
pub fn span(makes: impl FnOnce() -> Span) -> Span {
    let is_drivers = QUEUED.try_with(|events| events.borrow().is_some()).unwrap_or(true);
    if is_drivers { Span::none() } else { makes() }
}

/// Milliseconds for a field.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A field value from its `Display` text.
pub fn text(value: impl fmt::Display) -> DisplayValue<String> {
    field::display(value.to_string())
}

type Event = Box<dyn FnOnce() + Send>;

/// Starts a thread with the given name.
type StartThread = fn(&str, Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>>;

thread_local! {
    /// The queue of the driver whose work this thread does.
    static QUEUED: RefCell<Option<Arc<Events>>> = const { RefCell::new(None) };
    /// Whether this thread delivers queued events and so must not wait for them.
    static HANDS_ON: Cell<bool> = const { Cell::new(false) };
}

/// Whether the subscriber of this thread is interested in the event.
pub fn is_enabled(asks: impl Fn() -> bool) -> bool {
    match queued() {
        Some(events) => events.within(asks),
        None => asks(),
    }
}

/// Delivers an event to the subscriber: directly, or through the queue on a driver's thread.
pub fn emit(event: impl FnOnce() + Send + 'static) {
    match queued() {
        Some(events) => events.queue(Box::new(event)),
        None => event(),
    }
}

fn queued() -> Option<Arc<Events>> {
    QUEUED.try_with(|events| events.borrow().clone()).ok().flatten()
}

/// The event queue of one driver.
pub struct Events {
    start_thread: StartThread,
    /// The subscriber of the thread that started the driver; `None` selects the global one.
    subscriber: Option<Dispatch>,
    /// Channel to the thread that calls the subscriber. Started by the first event.
    thread: OnceLock<SyncSender<Event>>,
    progress: Arc<Progress>,
}

#[derive(Default)]
struct Progress {
    counts: Locked<Counts>,
    blocking: Condvar,
    waiting: Notify,
    dropped: AtomicU64,
}

/// Number of events queued and delivered.
#[derive(Clone, Copy, Default)]
struct Counts {
    queued: u64,
    done: u64,
}

impl Events {
    /// For a driver started by this thread. `start_thread` starts the thread that calls the subscriber.
    pub fn new(start_thread: StartThread) -> Arc<Self> {
        let subscriber = dispatcher::get_default(Dispatch::clone);
        let subscriber = (!subscriber.is::<NoSubscriber>()).then_some(subscriber);
        Arc::new(Self { subscriber, start_thread, thread: OnceLock::new(), progress: Arc::default() })
    }

    /// Makes this thread queue its events from now on.
    pub fn take_over(self: &Arc<Self>) {
        QUEUED.set(Some(Arc::clone(self)));
    }

    /// Makes this thread queue the events of this work.
    pub fn queueing(self: &Arc<Self>, work: impl FnOnce()) {
        struct Restore(Option<Arc<Events>>);
        impl Drop for Restore {
            fn drop(&mut self) {
                QUEUED.set(self.0.take());
            }
        }
        let _restore = Restore(QUEUED.replace(Some(Arc::clone(self))));
        work();
    }

    fn within<T>(&self, work: impl FnOnce() -> T) -> T {
        match &self.subscriber {
            Some(subscriber) => dispatcher::with_default(subscriber, work),
            None => work(),
        }
    }

    fn queue(&self, event: Event) {
        let thread = match self.thread.get() {
            Some(thread) => Some(thread),
            None => self.start().map(|thread| self.thread.get_or_init(|| thread)),
        };
        if thread.is_some_and(|thread| thread.try_send(event).is_ok()) {
            self.progress.counts().queued += 1;
        } else {
            self.progress.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Starts the thread that calls the subscriber. It ends with the driver, after delivering all events.
    fn start(&self) -> Option<SyncSender<Event>> {
        let (thread, events) = sync_channel(QUEUE);
        let (subscriber, progress) = (self.subscriber.clone(), Arc::clone(&self.progress));
        let work = move || match subscriber {
            Some(subscriber) => dispatcher::with_default(&subscriber, || progress.hand_on(&events)),
            None => progress.hand_on(&events),
        };
        (self.start_thread)("tenure-events", Box::new(work)).ok().map(|_| thread)
    }

    /// Blocks until all events queued so far have been delivered, for at most `most`.
    pub fn wait(&self, most: Duration) {
        if HANDS_ON.get() {
            return;
        }
        let counts = self.progress.counts();
        let queued = counts.queued;
        drop(self.progress.blocking.wait_timeout_while(counts, most, |counts| counts.done < queued));
    }

    /// Waits until all events queued so far have been delivered.
    pub async fn flushed(&self) {
        let queued = self.progress.counts().queued;
        loop {
            let change = self.progress.waiting.notified();
            if self.progress.counts().done >= queued {
                return;
            }
            change.await;
        }
    }
}

impl Progress {
    fn hand_on(&self, events: &Receiver<Event>) {
        HANDS_ON.set(true);
        for event in events {
            call(event);
            let dropped = self.dropped.swap(0, Ordering::Relaxed);
            if dropped > 0 {
                call(move || {
                    tracing::warn!(
                        target: "tenure",
                        event = "events_dropped",
                        dropped,
                        "the subscriber is slow: events were dropped"
                    );
                });
            }
            self.counts().done += 1;
            self.blocking.notify_all();
            self.waiting.notify_waiters();
        }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock()
    }
}

/// Calls the subscriber. A panic loses this event but no later one.
fn call(event: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(event));
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;
    use std::sync::mpsc::{Sender, channel};
    use std::thread::{self, ThreadId};

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Metadata, Subscriber, subscriber};

    use super::*;
    use crate::runtime::{self, Driver, Runtime};

    const LIMIT: Duration = Duration::from_secs(20);

    /// A subscriber that calls a function with the number field of each event.
    struct Numbers<F>(F);

    struct Number<'a, F>(&'a F);

    impl<F: Fn(u64)> Visit for Number<'_, F> {
        fn record_u64(&mut self, _: &Field, value: u64) {
            (self.0)(value);
        }

        fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
    }

    impl<F: Fn(u64) + Send + Sync + 'static> Subscriber for Numbers<F> {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == "tenure"
        }

        fn event(&self, event: &tracing::Event<'_>) {
            event.record(&mut Number(&self.0));
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    /// A driver with this function as its subscriber.
    fn driver(with: impl Fn(u64) + Send + Sync + 'static) -> Arc<Driver> {
        subscriber::with_default(Numbers(with), || Driver::start().expect("a thread"))
    }

    /// Emits these numbers on the driver's thread and waits until all are emitted.
    fn say(driver: &Driver, numbers: impl Iterator<Item = u64> + Send + 'static) {
        let (done, is_done) = channel();
        driver.spawn(Box::pin(async move {
            for number in numbers {
                event!(DEBUG, target: "tenure", "said", "said", number = number);
            }
            done.send(()).expect("the test waits");
        }));
        is_done.recv_timeout(LIMIT).expect("the driver's thread goes on");
    }

    fn sends() -> (impl Fn(u64) + Send + Sync + 'static, Receiver<u64>) {
        let (said, hears) = channel();
        let said: Locked<Sender<u64>> = Locked::new(said);
        let send = move |number| said.lock().send(number).expect("the test waits");
        (send, hears)
    }

    #[test]
    fn events_of_the_drivers_thread_come_in_order_and_none_is_lost() {
        let (send, hears) = sends();
        let driver = driver(move |number| {
            thread::yield_now();
            send(number);
        });
        say(&driver, 0..1_000);
        driver.events().wait(LIMIT);
        assert!(hears.try_iter().eq(0..1_000));
    }

    #[test]
    fn a_future_waits_for_queued_events_too() {
        let (send, hears) = sends();
        let driver = driver(send);
        say(&driver, 0..1_000);
        runtime::block_on(driver.events().flushed());
        assert!(hears.try_iter().eq(0..1_000));
    }

    #[test]
    fn what_does_not_fit_is_counted_and_the_count_is_told() {
        let (send, hears) = sends();
        let (go_on, goes_on) = channel::<()>();
        let (began, begins) = channel();
        let block = Locked::new(Some(goes_on));
        let driver = driver(move |number| {
            if let Some(block) = block.lock().take() {
                began.send(()).expect("the test waits");
                let _ = block.recv();
            }
            send(number);
        });
        say(&driver, 0..1);
        begins.recv_timeout(LIMIT).expect("the subscriber has the first event");
        let queued = QUEUE as u64;
        say(&driver, 1..1 + queued + 7);
        drop(go_on);
        driver.events().wait(LIMIT);
        let heard: Vec<u64> = hears.try_iter().collect();
        // The count is reported as soon as the subscriber returns.
        assert_eq!(heard[..3], [0, 7, 1]);
        assert!(heard[2..].iter().copied().eq(1..1 + queued));
    }

    #[test]
    fn a_subscriber_that_panics_gets_the_next_event() {
        let (send, hears) = sends();
        let driver = driver(move |number| {
            assert!(number != 1, "a subscriber that panics, on purpose");
            send(number);
        });
        say(&driver, 0..3);
        driver.events().wait(LIMIT);
        assert!(hears.try_iter().eq([0, 2]));
    }

    #[test]
    fn what_a_caller_does_for_the_driver_waits_for_no_subscriber() {
        let (send, hears) = sends();
        let (go_on, goes_on) = channel::<()>();
        let block = Locked::new(goes_on);
        let driver = driver(move |number| {
            let _ = block.lock().recv();
            send(number);
        });
        let say = |number: u64| event!(DEBUG, target: "tenure", "said", "said", number = number);
        assert!(driver.run_here(false, &mut || (0..3).for_each(say)));
        drop(go_on);
        driver.events().wait(LIMIT);
        assert!(hears.try_iter().eq(0..3));
        // Its own are not queued any more.
        say(3);
        assert!(hears.try_recv().is_err());
    }

    #[test]
    fn a_callers_own_events_are_told_at_once_on_its_thread() {
        let heard = Arc::<Locked<Vec<ThreadId>>>::default();
        let kept = Arc::clone(&heard);
        let keep = move |_| kept.lock().push(thread::current().id());
        subscriber::with_default(Numbers(keep), || {
            event!(DEBUG, target: "tenure", "said", "said", number = 1_u64);
        });
        assert_eq!(*heard.lock(), [thread::current().id()]);
    }
}
