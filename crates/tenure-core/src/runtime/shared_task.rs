//! A task of a runtime that callers may poll as well.

use std::future::poll_fn;
use std::mem;
use std::sync::{Arc, MutexGuard, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use tokio::task::unconstrained;

use super::Runtime;
use crate::moment::Moment;
use crate::sync::Locked;

/// How often a caller polls the task that it keeps waking before it leaves it to the runtime.
const ROUNDS: u32 = 8;
/// Interval at which the runtime looks at the host.
const LOOK: Duration = Duration::from_millis(25);
/// How long no caller becomes the host after the task was called home.
const REST: Duration = Duration::from_millis(200);
/// The same after a host that was found unchanged: its runtime may block, or run nothing at all.
const LONG_REST: Duration = Duration::from_secs(10);

/// A task of a runtime. A caller that has something for it may poll it at once, on its own thread, so that the
/// task need not wait until the runtime's thread has woken up.
///
/// A caller that does so often becomes the *host* of the task until it has its output: it is woken in place of the
/// runtime, and polls the task again. Sockets are then registered with the host's own runtime (`net/roaming.rs`).
///
/// No caller is depended upon, because it may block or never be polled again. The runtime polls the task itself when
/// something else wants it ([`call_home`](Self::call_home)), at the task's own timers, and when it finds the host
/// unchanged after 25 ms.
pub struct SharedTask {
    runtime: Arc<dyn Runtime>,
    state: Locked<SharedTaskState>,
}

struct SharedTaskState {
    /// `None` while it is polled, and once it is over.
    future: Option<BoxFuture<'static, ()>>,
    is_polled: bool,
    /// The runtime has dropped the task.
    is_dropped: bool,
    /// Woken since it was last polled, by what it calls or by another thread.
    is_woken: bool,
    /// Wakes the runtime.
    home: Option<Waker>,
    /// Number and waker of the host.
    host: Option<(u64, Waker)>,
    /// Number of the last host.
    hosts: u64,
    /// Whether the runtime looks at the host from time to time.
    is_watched: bool,
    /// No caller becomes the host before.
    rests_until: Moment,
}

impl SharedTask {
    /// Spawns a task on this runtime, which drops it as any other.
    pub fn spawn(runtime: Arc<dyn Runtime>, future: BoxFuture<'static, ()>) -> Weak<Self> {
        let state = SharedTaskState {
            future: Some(future),
            is_polled: false,
            is_dropped: false,
            is_woken: true,
            home: None,
            host: None,
            hosts: 0,
            is_watched: false,
            rests_until: Moment(0),
        };
        let task = Arc::new(Self { runtime, state: Locked::new(state) });
        let (weak, home) = (Arc::downgrade(&task), AtHome(Arc::clone(&task)));
        let mut watch = None;
        let runs = poll_fn(move |context| {
            home.0.look(&mut watch, context);
            home.0.poll_at_home(context)
        });
        task.runtime.spawn(runs.boxed());
        weak
    }

    /// Calls `wake`, which wakes the task, has this thread poll it, and waits for `output`. No poll takes longer than the
    /// task runs without waiting, and a panic of the task unwinds from here. On the runtime's own thread, and while
    /// another thread polls the task, this only calls `wake`.
    ///
    /// Dropped early, it leaves the task to the runtime.
    pub async fn wake_here<T>(
        self: &Arc<Self>,
        wake: impl FnOnce(),
        mut output: impl Future<Output = T> + Unpin,
    ) -> T {
        let mut wake = Some(wake);
        let mut hosting = None;
        poll_fn(|context| {
            if let Some(wake) = wake.take() {
                hosting = self.host(context.waker());
                self.poll_here(hosting.as_ref().map(|hosting| hosting.number), Some(wake));
            } else if let Some(hosting) = hosting.as_ref().filter(|hosting| hosting.is_due(context.waker())) {
                self.poll_here(Some(hosting.number), None::<fn()>);
            }
            output.poll_unpin(context)
        })
        .await
    }

    /// Makes the caller the host, unless the task rests or the caller's runtime cannot be one.
    fn host(self: &Arc<Self>, waker: &Waker) -> Option<Hosting> {
        let (may_host, now) = (self.runtime.has_host(), self.runtime.now());
        let mut state = self.state();
        if !may_host || now < state.rests_until {
            drop(state);
            self.end_host(|_| true, None);
            return None;
        }
        state.hosts += 1;
        let number = state.hosts;
        let before = state.host.replace((number, waker.clone()));
        let is_watched = mem::replace(&mut state.is_watched, true);
        let home = state.home.clone().filter(|_| !is_watched);
        drop(state);
        drop(before);
        if let Some(home) = home {
            home.wake();
        }
        Some(Hosting { task: Arc::clone(self), number })
    }

    /// Polls on this thread, after `wake`, as the host with this number.
    fn poll_here(self: &Arc<Self>, host: Option<u64>, wake: Option<impl FnOnce()>) {
        let mut wake = wake;
        self.runtime.run_here(host.is_some(), &mut || {
            let future = self.begin();
            if let Some(wake) = wake.take() {
                wake();
            }
            if let Some(future) = future {
                self.poll(future, Poller::Caller { host });
            }
        });
        if let Some(wake) = wake {
            wake();
        }
    }

    /// Ends the part of the host, if there is one: the runtime polls the task now, and whatever wakes it later.
    pub fn call_home(&self) {
        self.end_host(|_| true, Some(REST));
    }

    /// Ends the part of a host. With `rest` the task is called home.
    fn end_host(&self, is_it: impl FnOnce(u64) -> bool, rest: Option<Duration>) {
        let (host, home) = {
            let mut state = self.state();
            let host = state.host.take_if(|(number, _)| is_it(*number));
            if host.is_some()
                && let Some(rest) = rest
            {
                (state.rests_until, state.is_woken) = (self.runtime.now() + rest, true);
            }
            // The host may have been woken and not have polled the task yet.
            let is_due = host.is_some() && state.is_woken && !state.is_polled;
            (host, if is_due { state.home.clone() } else { None })
        };
        drop(host);
        if let Some(home) = home {
            home.wake();
        }
    }

    fn state(&self) -> MutexGuard<'_, SharedTaskState> {
        self.state.lock()
    }

    /// Looks at the host, and calls the task home if no new one has come since the last look.
    fn look(&self, watch: &mut HostWatch, context: &mut Context<'_>) {
        while let Some(hosts) = self.watched() {
            let timer = || (hosts, self.runtime.sleep_until(self.runtime.now() + LOOK));
            let (seen, look) = watch.get_or_insert_with(timer);
            if look.poll_unpin(context).is_pending() {
                return;
            }
            let is_last = *seen == hosts;
            *watch = None;
            if is_last && self.is_unattended() {
                self.end_host(|_| true, Some(LONG_REST));
            }
        }
    }

    /// Unless a caller polls the task just now, has the runtime poll it, which registers its sockets here, and ends the
    /// looks.
    fn is_unattended(&self) -> bool {
        let mut state = self.state();
        if !state.is_polled {
            (state.is_watched, state.is_woken) = (false, true);
        }
        !state.is_polled
    }

    /// The number of the last host, if the runtime looks at it.
    fn watched(&self) -> Option<u64> {
        let state = self.state();
        state.is_watched.then_some(state.hosts)
    }

    fn poll_at_home(self: &Arc<Self>, context: &Context<'_>) -> Poll<()> {
        let is_due = {
            let mut state = self.state();
            state.home = Some(context.waker().clone());
            state.is_woken && state.host.is_none()
        };
        if is_due && let Some(future) = self.begin() {
            self.poll(future, Poller::Runtime);
        }
        let state = self.state();
        match state.future.is_none() && !state.is_polled {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// Takes the future, to be polled by this thread alone. A thread that polls it already will do so again.
    fn begin(&self) -> Option<BoxFuture<'static, ()>> {
        let mut state = self.state();
        if state.is_polled {
            state.is_woken = true;
            return None;
        }
        let future = state.future.take()?;
        (state.is_polled, state.is_woken) = (true, false);
        Some(future)
    }

    /// Has the task polled again by its host, or by the runtime: if `is_home`, on its thread, and once it is over.
    fn call(&self, is_home: bool) {
        let is_home = is_home || self.runtime.is_current();
        let (waker, host) = {
            let mut state = self.state();
            let is_over = state.future.is_none() && !state.is_polled;
            let host = if is_home || is_over { state.host.take() } else { None };
            let waker = state.host.as_ref().map(|(_, waker)| waker).or(state.home.as_ref()).cloned();
            (waker, host)
        };
        drop(host);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn poll(self: &Arc<Self>, mut future: BoxFuture<'static, ()>, poller: Poller) {
        let is_home = matches!(poller, Poller::Runtime);
        // At home, other tasks run before a second round.
        let rounds = if is_home { 1 } else { ROUNDS };
        let end = PollEnd(self, poller);
        let waker = Waker::from(Arc::clone(self));
        let mut context = Context::from_waker(&waker);
        for round in 1.. {
            self.state().is_woken = false;
            // What the caller's task has left of its budget is no limit here: tokio would defer the wake-up to the
            // caller's runtime.
            let is_over = match is_home {
                true => future.poll_unpin(&mut context).is_ready(),
                false => unconstrained(&mut future).poll_unpin(&mut context).is_ready(),
            };
            let mut state = self.state();
            if is_over || state.is_dropped {
                drop((state, future));
                break;
            }
            if !state.is_woken || round >= rounds {
                state.future = Some(future);
                break;
            }
        }
        drop(end);
    }
}

impl Wake for SharedTask {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let is_polled = {
            let mut state = self.state();
            state.is_woken = true;
            state.is_polled
        };
        if !is_polled {
            self.call(false);
        }
    }
}

/// A caller that is the host until this is dropped.
struct Hosting {
    task: Arc<SharedTask>,
    number: u64,
}

impl Hosting {
    /// Whether the task has been woken for its host, which from now on has this waker.
    fn is_due(&self, waker: &Waker) -> bool {
        let (is_due, before) = {
            let mut state = self.task.state();
            let is_woken = state.is_woken;
            match &mut state.host {
                Some((number, known)) if *number == self.number => {
                    let is_new = !known.will_wake(waker);
                    (is_woken, is_new.then(|| mem::replace(known, waker.clone())))
                }
                _ => (false, None),
            }
        };
        drop(before);
        is_due
    }
}

impl Drop for Hosting {
    fn drop(&mut self) {
        self.task.end_host(|number| number == self.number, None);
    }
}

/// The number of the last host at the last look, and the timer of the next.
type HostWatch = Option<(u64, BoxFuture<'static, ()>)>;

/// The task as its runtime has it. The future holds wakers of the task, so it would not be dropped with it.
struct AtHome(Arc<SharedTask>);

impl Drop for AtHome {
    fn drop(&mut self) {
        let future = {
            let mut state = self.0.state();
            state.is_dropped = true;
            (state.home.take(), state.host.take(), state.future.take())
        };
        drop(future);
    }
}

/// Who polls the task.
#[derive(Clone, Copy)]
enum Poller {
    Runtime,
    /// A caller, perhaps as the host with this number.
    Caller {
        host: Option<u64>,
    },
}

/// The end of a poll, also by a panic, which drops the future: the runtime then ends its task.
struct PollEnd<'a>(&'a SharedTask, Poller);

impl Drop for PollEnd<'_> {
    fn drop(&mut self) {
        let (is_due, is_left) = {
            let mut state = self.0.state();
            state.is_polled = false;
            let host = state.host.as_ref().map(|(number, _)| *number);
            // Sockets may have been registered with a runtime that is no longer the host's.
            let is_left = matches!(self.1, Poller::Caller { host: number @ Some(_) } if number != host);
            state.is_woken |= is_left;
            (state.is_woken || state.future.is_none(), is_left)
        };
        if is_due {
            self.0.call(is_left);
        }
    }
}

impl std::fmt::Debug for SharedTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedTask").field("runtime", &self.runtime).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::pin::pin;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread::{self, ThreadId};
    use std::time::Duration;

    use futures_util::future::LocalBoxFuture;
    use futures_util::poll;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::runtime::{Builder, Runtime as Tokio};
    use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
    use tokio::sync::{Notify, oneshot};

    use super::*;
    use crate::net::{Address, dial};
    use crate::platform::boot_clock;
    use crate::runtime::{Driver, block_on};

    const LIMIT: Duration = Duration::from_secs(20);

    /// A task that tells the thread of each of its rounds, one for each notification.
    fn task(driver: &Arc<Driver>) -> (Arc<SharedTask>, Arc<Notify>, Receiver<ThreadId>) {
        let (told, hears) = channel();
        let notified = Arc::<Notify>::default();
        let work = Arc::clone(&notified);
        let future = async move {
            while told.send(thread::current().id()).is_ok() {
                work.notified().await;
            }
        };
        let task = SharedTask::spawn(Arc::clone(driver) as _, future.boxed());
        (task.upgrade().expect("it runs"), notified, hears)
    }

    #[test]
    fn a_caller_has_its_work_done_on_its_own_thread() {
        let driver = Driver::start().expect("a thread");
        let (task, work, hears) = task(&driver);
        let first = hears.recv_timeout(LIMIT).expect("the first round");
        assert_ne!(first, thread::current().id());
        while task.state().is_polled {
            thread::yield_now();
        }
        block_on(task.wake_here(|| work.notify_one(), ready(())));
        assert_eq!(hears.try_recv(), Ok(thread::current().id()));
        // As before, if something else wakes it.
        work.notify_one();
        assert_eq!(hears.recv_timeout(LIMIT), Ok(first));
        driver.stop();
    }

    /// As if it had drained a channel before.
    #[test]
    fn a_caller_that_has_used_up_its_budget_does_the_work_too() {
        let driver = Driver::start().expect("a thread");
        let ((say, mut hears), (told, heard)) = (unbounded_channel(), channel());
        let future = async move {
            while let Some(number) = hears.recv().await {
                let _ = told.send((number, thread::current().id()));
            }
        };
        let task = SharedTask::spawn(Arc::clone(&driver) as _, future.boxed());
        let task = task.upgrade().expect("it runs");
        say.send(0).expect("it hears");
        assert!(heard.recv_timeout(LIMIT).is_ok());
        while task.state().is_polled {
            thread::yield_now();
        }
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(poll_fn(|context| {
            while pin!(tokio::task::consume_budget()).poll(context).is_ready() {}
            let wakes = pin!(task.wake_here(|| say.send(1).expect("it hears"), ready(())));
            wakes.poll(context)
        }));
        assert_eq!(heard.try_recv(), Ok((1, thread::current().id())));
        driver.stop();
    }

    /// A server that answers each byte of its only client with one, once it may.
    fn server() -> (Address, Sender<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let (may, answers) = channel();
        thread::spawn(move || {
            let (mut client, _) = listener.accept().expect("a client");
            let mut byte = [0];
            while client.read_exact(&mut byte).is_ok() && answers.recv().is_ok() {
                client.write_all(&byte).expect("a client that listens");
            }
        });
        (Address::Tcp(address.ip().to_string(), address.port()), may)
    }

    struct Ask {
        reply: oneshot::Sender<()>,
        meanwhile: Box<dyn FnOnce() + Send>,
    }

    /// A runtime that never looks at a host.
    #[derive(Debug)]
    struct Lookless(Arc<Driver>);

    impl Runtime for Lookless {
        fn now(&self) -> Moment {
            self.0.now()
        }

        fn unix_micros(&self) -> u64 {
            self.0.unix_micros()
        }

        fn random(&self) -> u64 {
            self.0.random()
        }

        fn sleep_until(&self, _: Moment) -> BoxFuture<'static, ()> {
            pending().boxed()
        }

        fn spawn(&self, task: BoxFuture<'static, ()>) {
            self.0.spawn(task);
        }

        fn run_here(&self, is_hosted: bool, work: &mut dyn FnMut()) -> bool {
            self.0.run_here(is_hosted, work)
        }

        fn has_host(&self) -> bool {
            self.0.has_host()
        }

        fn is_current(&self) -> bool {
            self.0.is_current()
        }
    }

    /// A task that asks a server for each caller, and the threads on which it has read the answers.
    struct Client {
        driver: Arc<Driver>,
        task: Arc<SharedTask>,
        asks: UnboundedSender<Ask>,
        may_answer: Sender<()>,
        read_on: Receiver<ThreadId>,
    }

    impl Client {
        fn start() -> Self {
            let driver = Driver::start().expect("a thread");
            Self::start_on(Arc::clone(&driver) as _, driver)
        }

        fn without_looks() -> Self {
            let driver = Driver::start().expect("a thread");
            Self::start_on(Arc::new(Lookless(Arc::clone(&driver))), driver)
        }

        fn start_on(runtime: Arc<dyn Runtime>, driver: Arc<Driver>) -> Self {
            let ((address, may_answer), (told, read_on)) = (server(), channel());
            let (asks, mut asked) = unbounded_channel::<Ask>();
            let dials = Arc::clone(&runtime);
            let future = async move {
                let mut stream = dial(&address, &*dials).await.expect("a server").stream;
                while let Some(Ask { reply, meanwhile }) = asked.recv().await {
                    meanwhile();
                    stream.write_u8(0).await.expect("a server that reads");
                    stream.read_u8().await.expect("an answer");
                    let _ = (told.send(thread::current().id()), reply.send(()));
                }
            };
            let task = SharedTask::spawn(runtime, future.boxed());
            Self { driver, task: task.upgrade().expect("it runs"), asks, may_answer, read_on }
        }

        async fn ask(&self) {
            self.ask_while(|| ()).await;
        }

        /// Does something while the task is polled.
        async fn ask_while(&self, meanwhile: impl FnOnce() + Send + 'static) {
            let (reply, answer) = oneshot::channel();
            let wake = || drop(self.asks.send(Ask { reply, meanwhile: Box::new(meanwhile) }));
            self.task.wake_here(wake, answer).await.expect("it runs");
        }

        /// As somebody who does not poll the task.
        fn ask_at_home(&self) -> oneshot::Receiver<()> {
            let (reply, answer) = oneshot::channel();
            self.task.call_home();
            let _ = self.asks.send(Ask { reply, meanwhile: Box::new(|| ()) });
            answer
        }

        fn read_on(&self) -> ThreadId {
            self.read_on.recv_timeout(LIMIT).expect("an answer")
        }

        /// A request of which this runtime is the host, until `meanwhile`.
        fn hosted(
            &self,
            runtime: &Tokio,
            meanwhile: impl FnOnce() + Clone + Send + 'static,
        ) -> LocalBoxFuture<'_, ()> {
            let until = boot_clock() + LIMIT;
            let hosts = || self.task.state().hosts;
            loop {
                let before = hosts();
                let mut unanswered = self.ask_while(meanwhile.clone()).boxed_local();
                let is_pending = runtime.block_on(async { poll!(&mut unanswered).is_pending() });
                assert!(is_pending, "it was not answered");
                if hosts() > before {
                    return unanswered;
                }
                self.answers();
                runtime.block_on(unanswered);
                self.read_on();
                assert!(boot_clock() < until, "this runtime is never the host");
            }
        }

        /// Has the server answer the next request.
        fn answers(&self) {
            self.may_answer.send(()).expect("it runs");
        }
    }

    fn with_io() -> Tokio {
        Builder::new_current_thread().enable_all().build().expect("a runtime")
    }

    #[test]
    fn a_caller_that_asks_often_reads_its_answers_itself() {
        let (client, runtime) = (Client::without_looks(), with_io());
        let until = boot_clock() + LIMIT;
        // The first times, something may still wake the task on the thread of its own runtime.
        loop {
            let unanswered = client.hosted(&runtime, || ());
            client.answers();
            runtime.block_on(unanswered);
            if client.read_on() == thread::current().id() {
                break;
            }
            assert!(boot_clock() < until, "the host reads no answer");
        }
        client.driver.stop();
    }

    #[test]
    fn a_host_that_blocks_is_not_waited_for() {
        let (client, runtime) = (Client::start(), with_io());
        let blocked = client.hosted(&runtime, || ());
        client.answers();
        assert_ne!(client.read_on(), thread::current().id());
        runtime.block_on(blocked);
        client.driver.stop();
    }

    #[test]
    fn the_request_of_a_host_ends_on_another_runtime_or_without_one() {
        let client = Client::start();
        for without in [false, true] {
            let runtime = with_io();
            let unanswered = client.hosted(&runtime, || ());
            drop(runtime);
            client.answers();
            match without {
                false => with_io().block_on(unanswered),
                true => block_on(unanswered),
            }
            client.read_on();
            // It rests after a host that was found unchanged.
            client.task.state().rests_until = Moment(0);
        }
        client.driver.stop();
    }

    /// A thread may go on with a runtime that has been shut down.
    #[test]
    fn a_host_whose_runtime_ends_loses_no_connection() {
        let (client, runtime) = (Client::without_looks(), with_io());
        let handle = runtime.handle().clone();
        let unanswered = client.hosted(&runtime, || ());
        runtime.shutdown_background();
        client.answers();
        handle.block_on(unanswered);
        client.read_on();
        client.answers();
        handle.block_on(client.ask());
        client.read_on();
        client.driver.stop();
    }

    #[test]
    fn a_host_that_drops_its_request_leaves_the_answer_to_the_runtime() {
        let (client, runtime) = (Client::without_looks(), with_io());
        drop(client.hosted(&runtime, || ()));
        client.answers();
        runtime.block_on(async {
            while client.read_on.try_recv().is_err() {
                tokio::task::yield_now().await;
            }
        });
        client.driver.stop();
    }

    #[test]
    fn who_needs_the_task_too_calls_it_home() {
        let (client, runtime) = (Client::without_looks(), with_io());
        let unanswered = client.hosted(&runtime, || ());
        let answer = client.ask_at_home();
        (0..2).for_each(|_| client.answers());
        // The host's runtime waits for nothing meanwhile.
        assert!((0..2).all(|_| client.read_on() != thread::current().id()));
        block_on(answer).expect("an answer");
        runtime.block_on(unanswered);
        client.driver.stop();
    }

    #[test]
    fn a_host_that_is_called_home_while_it_polls_keeps_no_socket() {
        let (client, runtime) = (Client::without_looks(), with_io());
        let task = Arc::downgrade(&client.task);
        let unanswered = client.hosted(&runtime, move || {
            if let Some(task) = task.upgrade()
                && task.state().hosts > 0
            {
                task.call_home();
            }
        });
        client.answers();
        assert_ne!(client.read_on(), thread::current().id());
        runtime.block_on(unanswered);
        client.driver.stop();
    }

    /// tokio prints the message of a panic.
    #[test]
    fn a_runtime_without_io_is_no_host() {
        let client = Client::start();
        let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
        for _ in 0..20 {
            client.answers();
            runtime.block_on(client.ask());
        }
        assert_eq!(client.task.state().hosts, 0);
        client.driver.stop();
    }

    /// Some give up, some do not poll the task, and all interrupt each other.
    #[test]
    fn no_wake_up_is_lost_between_hosts() {
        const EACH: u64 = 600;
        let client = Client::start();
        (0..3 * EACH).for_each(|_| client.answers());
        let Client { driver, task, asks, .. } = &client;
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(move || {
                    let runtime = with_io();
                    for _ in 0..EACH {
                        let (reply, answer) = oneshot::channel();
                        let send = || drop(asks.send(Ask { reply, meanwhile: Box::new(|| ()) }));
                        let random = driver.random() % 16;
                        if random == 0 {
                            task.call_home();
                            send();
                            runtime.block_on(answer).expect("it runs");
                        } else {
                            let mut asked = pin!(task.wake_here(send, answer));
                            runtime.block_on(async {
                                if random > 1 {
                                    asked.await.expect("it runs");
                                } else if let Poll::Ready(answer) = poll!(&mut asked) {
                                    answer.expect("it runs");
                                }
                            });
                        }
                        if random > 8 {
                            thread::sleep(Duration::from_micros(100 * random));
                        }
                        task.state().rests_until = Moment(0);
                    }
                });
            }
        });
        let hosts = task.state().hosts;
        assert!(hosts > 0, "there was no host");
        driver.stop();
    }

    #[test]
    fn no_wake_up_is_lost_between_threads() {
        const EACH: usize = 2_000;
        let driver = Driver::start().expect("a thread");
        let (told, hears) = channel();
        let (count, work) = (Arc::<Locked<usize>>::default(), Arc::<Notify>::default());
        let (counted, notified) = (Arc::clone(&count), Arc::clone(&work));
        let future = async move {
            while *counted.lock() < 3 * EACH {
                notified.notified().await;
            }
            let _ = told.send(());
        };
        let task = SharedTask::spawn(Arc::clone(&driver) as _, future.boxed());
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        *count.lock() += 1;
                        match task.upgrade() {
                            Some(task) => block_on(task.wake_here(|| work.notify_one(), ready(()))),
                            None => work.notify_one(),
                        }
                    }
                });
            }
        });
        assert_eq!(hears.recv_timeout(LIMIT), Ok(()));
        driver.stop();
    }

    /// Its future holds wakers of the task, as a connection does.
    #[test]
    fn it_is_dropped_with_its_runtime_and_after_a_panic() {
        let driver = Driver::start().expect("a thread");
        let (task, _work, hears) = task(&driver);
        assert!(hears.recv_timeout(LIMIT).is_ok());
        let weak = Arc::downgrade(&task);
        drop(task);
        driver.stop();
        driver.wait(LIMIT);
        assert!(weak.upgrade().is_none());

        let driver = Driver::start().expect("a thread");
        let work = Arc::<Notify>::default();
        let notified = Arc::clone(&work);
        let future = async move {
            notified.notified().await;
            panic!("a task that panics, on purpose");
        };
        let task = SharedTask::spawn(Arc::clone(&driver) as _, future.boxed());
        let waking = task.upgrade().expect("it runs");
        let wakes = || block_on(waking.wake_here(|| work.notify_one(), ready(())));
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(wakes));
        drop(waking);
        driver.stop();
        driver.wait(LIMIT);
        assert!(task.upgrade().is_none());
    }
}
