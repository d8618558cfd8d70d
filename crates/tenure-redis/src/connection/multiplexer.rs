//! A connection that many callers share: a state machine over bytes, behind one lock.
//!
//! A caller encodes its request into the write buffer and gets a slot for the reply. One task writes the
//! buffer, reads replies, and hands each to the slot of the oldest unanswered request. A second task, which
//! need not run on the same runtime, enforces deadlines with a single timer. A slot is reused under a new
//! generation as soon as its caller leaves, so the late reply to a dropped request is consumed in order and
//! discarded.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::mem;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll, Waker, ready};

use futures_util::future::select;
use tokio::io::ReadBuf;
use tokio::sync::{Notify, oneshot};

use crate::resp::Value;
use crate::resp::encode::Commands;
use crate::resp::parse::{Malformed, Parser, Reply, Tape};
use tenure_core::moment::Moment;
use tenure_core::net::{SILENCE, Stream};
use tenure_core::planted::{Bug, planted};
use tenure_core::runtime::Runtime;
use tenure_core::store::{Cause, Failure};
use tenure_core::sync::Locked;

/// From this many unanswered requests on, the task yields once before it writes, so that other tasks' requests
/// leave in the same packet. With fewer, client and server would only wait for each other.
const MANY: usize = 8;
/// Pending bytes that are written without yielding: about 6 requests. With larger packets, client and server take
/// turns instead of working at the same time; with smaller ones, system calls cost more than that gains.
const ENOUGH: usize = 800;
/// Callers that are woken before the task yields to them. Most of them send their next request at once.
const BURST: usize = 3;
/// Initial size of the read buffer, which grows to hold a whole line.
const READ: usize = 8 * 1024;
/// The deadline of a request whose caller keeps time itself.
const NEVER: Moment = Moment(u64::MAX);

/// Receives the pushes of a connection; must not block.
pub(crate) type PushListener = Arc<dyn Fn(&[Value]) + Send + Sync>;

/// When a request was sent, and when its caller's deadline expires.
#[derive(Clone, Copy)]
pub(crate) struct Times {
    pub(crate) sent: Moment,
    pub(crate) due: Moment,
}

impl Times {
    /// Without a deadline.
    pub(crate) const NONE: Self = Self { sent: NEVER, due: NEVER };
}

/// A connection that many callers share.
#[derive(Default)]
pub(crate) struct Multiplexer {
    state: Locked<MultiplexerState>,
    is_closed: AtomicBool,
    /// Wakes the deadline watch.
    look: Notify,
}

#[derive(Default)]
struct MultiplexerState {
    /// Requests that the task has not taken yet.
    out: Commands,
    parser: Parser,
    /// What has arrived of the replies to the oldest unanswered request.
    reply: Tape,
    /// What has arrived of a push.
    push: Tape,
    is_push: bool,
    /// Requests with outstanding replies, oldest first.
    unanswered: VecDeque<Unanswered>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Number of replies and pushes received.
    heard: u64,
    /// When the watch wakes next; `None` while it has no deadline.
    looks_at: Option<Moment>,
    /// Waker of the connection's task, unless it was woken already.
    task: Option<Waker>,
    /// Why the connection ended.
    end: Option<Cause>,
}

/// A request with outstanding replies.
struct Unanswered {
    slot: usize,
    generation: u64,
    /// Number of outstanding replies.
    missing: u32,
    /// Some of its replies have arrived.
    is_begun: bool,
    sent: Moment,
    /// When the watch checks it.
    due: Moment,
    /// Value of the `heard` counter when it was sent.
    heard: u64,
    /// Past its deadline: it now only serves to detect a dead connection.
    is_late: bool,
    /// The kind of push that confirms it, in any letter case.
    confirmed_by: Option<&'static str>,
}

/// Where a caller finds its replies.
struct Slot {
    /// Incremented when the caller leaves.
    generation: u64,
    outcome: SlotState,
    replies: Tape,
}

enum SlotState {
    Pending(Option<Waker>),
    Late,
    Answered,
}

impl Multiplexer {
    /// A connection over a stream: the handle, the task that serves it, and a receiver that completes at its
    /// end. Without a listener, a push is an error.
    pub(crate) fn open(
        stream: Pin<Box<dyn Stream>>,
        listener: Option<PushListener>,
    ) -> (MultiplexerHandle, impl Future<Output = ()> + Send, oneshot::Receiver<()>) {
        let multiplexer = Arc::<Self>::default();
        let (done, over) = oneshot::channel();
        let task = ConnectionTask {
            multiplexer: Arc::clone(&multiplexer),
            stream,
            listener,
            writing: Commands::default(),
            written: 0,
            flushed: true,
            has_yielded: false,
            input: vec![0; READ],
            filled: 0,
            wakers: VecDeque::new(),
            _done: done,
        };
        (MultiplexerHandle(multiplexer), task, over)
    }

    fn state(&self) -> MutexGuard<'_, MultiplexerState> {
        self.state.lock()
    }

    /// Sends the commands that `write` encodes, contiguously.
    pub(crate) fn send(
        &self,
        times: Times,
        write: impl FnOnce(&mut Commands),
    ) -> Result<InFlight<'_>, Failure> {
        self.push(times, None, write)
    }

    fn push(
        &self,
        Times { sent, due }: Times,
        confirmed_by: Option<&'static str>,
        write: impl FnOnce(&mut Commands),
    ) -> Result<InFlight<'_>, Failure> {
        let mut state = self.state();
        if let Some(end) = &state.end
            && !planted(Bug::WriteAfterHangUp)
        {
            return Err(Failure::Unknown(Arc::clone(end)));
        }
        let before = state.out.count();
        write(&mut state.out);
        let missing = state.out.count() - before;
        let (slot, generation) = state.slot();
        let heard = state.heard;
        let (is_begun, is_late, unanswered) = (false, false, &mut state.unanswered);
        unanswered.push_back(Unanswered {
            slot,
            generation,
            missing,
            is_begun,
            sent,
            due,
            heard,
            is_late,
            confirmed_by,
        });
        let is_sooner = due < NEVER && state.looks_at.is_none_or(|at| at > due);
        if is_sooner {
            state.looks_at = Some(due);
        }
        let task = state.task.take();
        drop(state);
        if let Some(task) = task {
            task.wake();
        }
        if is_sooner {
            self.look.notify_one();
        }
        Ok(InFlight { multiplexer: self, slot, generation, is_over: false })
    }

    /// Sends commands and waits for the reply to the last one, without a deadline. A server error is a reply.
    pub(crate) async fn ask(&self, commands: &Commands) -> Result<Value, Failure> {
        self.send(Times::NONE, |out| out.extend(commands))?.last().await
    }

    /// Like `ask`, for a command that is confirmed by a push of this kind.
    pub(crate) async fn subscribe(
        &self,
        commands: &Commands,
        confirmed_by: &'static str,
    ) -> Result<Value, Failure> {
        self.push(Times::NONE, Some(confirmed_by), |out| out.extend(commands))?.last().await
    }

    /// Closes the connection. Unanswered requests fail.
    pub(crate) fn hang_up(&self) {
        self.end(Failure::cause("the connection was closed"));
    }

    fn end(&self, why: Cause) {
        let wakers: Vec<Waker> = {
            let mut state = self.state();
            self.is_closed.store(true, Ordering::Release);
            state.end.get_or_insert(why);
            let callers = state.slots.iter_mut().filter_map(|slot| match &mut slot.outcome {
                SlotState::Pending(waker) => waker.take(),
                SlotState::Late | SlotState::Answered => None,
            });
            let callers: Vec<_> = callers.collect();
            state.task.take().into_iter().chain(callers).collect()
        };
        wakers.into_iter().for_each(Waker::wake);
        self.look.notify_one();
    }

    /// Whether it was closed, by either side.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Number of replies and pushes received.
    pub(crate) fn heard(&self) -> u64 {
        self.state().heard
    }

    /// Whether a request is unanswered and its caller still waits or its deadline has passed.
    pub(crate) fn has_unanswered(&self) -> bool {
        self.state().in_question().next().is_some()
    }

    /// Whether a request sent before `moment` is unanswered and nothing has arrived since.
    pub(crate) fn is_silent_since(&self, moment: Moment) -> bool {
        let state = self.state();
        state.in_question().any(|request| request.sent <= moment && request.heard == state.heard)
    }

    /// Fails requests at their deadlines, and ends a silent connection: then calls `silent`.
    pub(crate) async fn watch(self: Arc<Self>, runtime: Arc<dyn Runtime>, silent: impl FnOnce()) {
        while !self.is_closed() {
            let next = {
                let mut state = self.state();
                state.looks_at = state.unanswered.iter().map(|request| request.due).min();
                state.looks_at.filter(|at| *at < NEVER)
            };
            let told = self.look.notified();
            match next {
                None => told.await,
                Some(due) => {
                    select(pin!(told), runtime.sleep_until(due)).await;
                }
            }
            let (late, is_silent) = self.state().overdue(runtime.now());
            if is_silent && !planted(Bug::SilenceUnnoticed) {
                self.hang_up();
                late.into_iter().for_each(Waker::wake);
                return silent();
            }
            // Only after a silent connection was closed, so that retries take another one.
            late.into_iter().for_each(Waker::wake);
        }
    }

    /// Processes bytes from the server and returns how many were consumed. Callers to wake are left in
    /// `wakers`.
    fn receive(
        &self,
        input: &[u8],
        listener: Option<&PushListener>,
        wakers: &mut VecDeque<Waker>,
    ) -> Result<usize, Malformed> {
        let mut at = 0;
        loop {
            let mut state = self.state();
            let push = state.receive(input, &mut at, listener.is_some(), wakers)?;
            drop(state);
            match (push, listener) {
                (Some(Value::Array(push)), Some(listener)) => listener(&push),
                _ => return Ok(at),
            }
        }
    }
}

impl MultiplexerState {
    /// Allocates a slot for a new request, with its generation.
    fn slot(&mut self) -> (usize, u64) {
        let at = self.free.pop().unwrap_or_else(|| {
            let (generation, replies) = (0, Tape::default());
            self.slots.push(Slot { generation, outcome: SlotState::Pending(None), replies });
            self.slots.len() - 1
        });
        (at, self.slots[at].generation)
    }

    /// Frees the slot of a caller that leaves.
    fn release(&mut self, at: usize) {
        let slot = &mut self.slots[at];
        slot.replies.clear();
        slot.outcome = SlotState::Pending(None);
        slot.generation += u64::from(!planted(Bug::SlotReusedEarly));
        self.free.push(at);
    }

    /// Requests that can prove a connection dead: all but those whose callers have left
    /// and whose deadline has not passed.
    fn in_question(&self) -> impl Iterator<Item = &Unanswered> {
        let waits = |request: &&Unanswered| {
            request.is_late || self.slots[request.slot].generation == request.generation
        };
        self.unanswered.iter().filter(waits)
    }

    /// Callers whose deadline has passed, and whether the connection is silent.
    fn overdue(&mut self, now: Moment) -> (Vec<Waker>, bool) {
        let (mut late, mut is_silent) = (Vec::new(), false);
        let Self { unanswered, slots, heard, .. } = self;
        for request in unanswered.iter_mut().filter(|request| request.due <= now) {
            request.due = NEVER;
            // Also if its caller has left: its silence may be the only sign.
            request.is_late = true;
            let slot = &mut slots[request.slot];
            if slot.generation == request.generation
                && let SlotState::Pending(waker) = &mut slot.outcome
            {
                late.extend(waker.take());
                slot.outcome = SlotState::Late;
            }
            // The server has left a reply out, and would stay one reply behind.
            is_silent |= request.is_begun;
            if request.heard == *heard {
                let end = request.sent + SILENCE;
                is_silent |= end <= now;
                request.due = end;
            }
        }
        (late, is_silent)
    }

    /// Processes replies up to the first push, which is returned if there is one.
    fn receive(
        &mut self,
        input: &[u8],
        at: &mut usize,
        takes_pushes: bool,
        wakers: &mut VecDeque<Waker>,
    ) -> Result<Option<Value>, Malformed> {
        while let Some(first) = input.get(*at) {
            if self.parser.is_between() {
                self.is_push = *first == b'>' && !planted(Bug::PushTakenForReply);
                if self.is_push && !takes_pushes {
                    return Err(Malformed("a push on a connection without subscriptions"));
                }
                if !self.is_push && self.unanswered.is_empty() {
                    return Err(Malformed("an unsolicited reply"));
                }
            }
            let tape = if self.is_push { &mut self.push } else { &mut self.reply };
            let (taken, is_whole) = self.parser.parse(&input[*at..], tape)?;
            *at += taken;
            if !is_whole {
                break;
            }
            self.heard += 1;
            if self.is_push {
                return Ok(Some(self.pushed(wakers)));
            }
            self.replied(wakers);
        }
        Ok(None)
    }

    /// Handles a complete push. It may confirm a subscription in place of a reply.
    fn pushed(&mut self, wakers: &mut VecDeque<Waker>) -> Value {
        let expected = self.unanswered.front().and_then(|request| request.confirmed_by);
        let mut replies = self.push.replies();
        let (_, kind) = (replies.next(), replies.next());
        let confirms = match (expected, kind) {
            (Some(expected), Some(Reply::Bulk(kind))) => kind.eq_ignore_ascii_case(expected.as_bytes()),
            _ => false,
        };
        let push = self.push.replies().value().unwrap_or(Value::Nil);
        if confirms {
            mem::swap(&mut self.reply, &mut self.push);
            self.replied(wakers);
        }
        self.push.clear();
        push
    }

    /// Handles a complete reply to the oldest unanswered request.
    fn replied(&mut self, wakers: &mut VecDeque<Waker>) {
        let Some(request) = self.unanswered.front_mut() else { return };
        request.missing -= 1;
        request.is_begun = request.missing > 0;
        if request.is_begun {
            return;
        }
        let slot = &mut self.slots[request.slot];
        if slot.generation == request.generation {
            mem::swap(&mut slot.replies, &mut self.reply);
            if let SlotState::Pending(waker) = mem::replace(&mut slot.outcome, SlotState::Answered) {
                wakers.extend(waker);
            }
        }
        self.reply.clear();
        self.unanswered.pop_front();
    }
}

/// A request in flight. If dropped, it is still carried out, and its replies are discarded.
pub(crate) struct InFlight<'a> {
    multiplexer: &'a Multiplexer,
    slot: usize,
    generation: u64,
    is_over: bool,
}

impl InFlight<'_> {
    /// Waits for the replies and reads them in place. `read` runs under the connection's lock and must be
    /// quick.
    pub(crate) async fn read<T>(mut self, read: impl FnOnce(&mut Tape) -> T) -> Result<T, Failure> {
        let mut read = Some(read);
        poll_fn(|cx| {
            let mut state = self.multiplexer.state();
            let MultiplexerState { slots, end, .. } = &mut *state;
            let slot = &mut slots[self.slot];
            debug_assert_eq!(slot.generation, self.generation, "a slot has one caller");
            match &mut slot.outcome {
                SlotState::Answered => {
                    let read = read.take().expect("a future is not polled after its end");
                    let outcome = read(&mut slot.replies);
                    state.release(self.slot);
                    self.is_over = true;
                    Poll::Ready(Ok(outcome))
                }
                SlotState::Late => Poll::Ready(Err(Failure::Unknown(Failure::cause("no reply in time")))),
                SlotState::Pending(waker) => match end {
                    Some(end) if planted(Bug::EndTakenForUnsent) => {
                        Poll::Ready(Err(Failure::NotSent(Arc::clone(end))))
                    }
                    Some(end) => Poll::Ready(Err(Failure::Unknown(Arc::clone(end)))),
                    None => {
                        match waker {
                            Some(waker) => waker.clone_from(cx.waker()),
                            None => *waker = Some(cx.waker().clone()),
                        }
                        Poll::Pending
                    }
                },
            }
        })
        .await
    }

    pub(crate) async fn all(self) -> Result<Vec<Value>, Failure> {
        Ok(self.read(mem::take).await?.replies().values())
    }

    pub(crate) async fn last(self) -> Result<Value, Failure> {
        Ok(self.all().await?.pop().unwrap_or(Value::Nil))
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut state = self.multiplexer.state();
        if planted(Bug::ReplyOfAnother) {
            state.unanswered.retain(|request| request.slot != self.slot);
        }
        state.release(self.slot);
    }
}

/// A handle that closes the connection when dropped.
pub(crate) struct MultiplexerHandle(Arc<Multiplexer>);

impl MultiplexerHandle {
    /// The connection itself, for its watch.
    pub(crate) fn shared(&self) -> Arc<Multiplexer> {
        Arc::clone(&self.0)
    }
}

impl std::ops::Deref for MultiplexerHandle {
    type Target = Multiplexer;

    fn deref(&self) -> &Multiplexer {
        &self.0
    }
}

impl Drop for MultiplexerHandle {
    fn drop(&mut self) {
        self.0.hang_up();
    }
}

#[derive(Debug)]
pub(crate) struct ConnectionLost(pub(crate) io::Error);

impl fmt::Display for ConnectionLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.kind() {
            io::ErrorKind::UnexpectedEof if self.0.get_ref().is_none() => {
                f.write_str("the server closed the connection")
            }
            _ => self.0.fmt(f),
        }
    }
}

impl std::error::Error for ConnectionLost {}

/// Serves a connection until it ends.
struct ConnectionTask {
    multiplexer: Arc<Multiplexer>,
    stream: Pin<Box<dyn Stream>>,
    listener: Option<PushListener>,
    /// Bytes being written, and how many of them already were.
    writing: Commands,
    written: usize,
    flushed: bool,
    /// Whether the task yielded when it last ran.
    has_yielded: bool,
    /// Bytes read but not parsed.
    input: Vec<u8>,
    filled: usize,
    /// Callers whose replies have arrived, to be woken.
    wakers: VecDeque<Waker>,
    /// Dropped with the task, which completes the receiver.
    _done: oneshot::Sender<()>,
}

impl Future for ConnectionTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let why: Cause = match ready!(self.serve(cx)) {
            Ok(()) => return Poll::Ready(()),
            Err(ConnectionEnd::Lost(error)) => Arc::new(ConnectionLost(error)),
            Err(ConnectionEnd::Malformed(what)) => Arc::new(what),
        };
        self.multiplexer.end(why);
        Poll::Ready(())
    }
}

enum ConnectionEnd {
    Lost(io::Error),
    Malformed(Malformed),
}

impl From<io::Error> for ConnectionEnd {
    fn from(error: io::Error) -> Self {
        Self::Lost(error)
    }
}

impl From<Malformed> for ConnectionEnd {
    fn from(what: Malformed) -> Self {
        Self::Malformed(what)
    }
}

impl ConnectionTask {
    fn serve(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ConnectionEnd>> {
        loop {
            let mut state = self.multiplexer.state();
            let waiting = state.out.bytes().len();
            if state.end.is_some() && !(waiting > 0 && planted(Bug::WriteAfterHangUp)) {
                return Poll::Ready(Ok(()));
            }
            let is_busy = !self.has_yielded && state.unanswered.len() >= MANY;
            let awaits_more = (1..ENOUGH).contains(&waiting) && (is_busy || !self.wakers.is_empty());
            if waiting > 0 && !awaits_more && self.written == self.writing.bytes().len() {
                self.writing.clear();
                self.written = 0;
                mem::swap(&mut state.out, &mut self.writing);
            }
            let burst = self.wakers.len().min(BURST);
            let yields = awaits_more || burst > 1;
            if !yields {
                state.task.get_or_insert_with(|| cx.waker().clone());
            }
            drop(state);
            self.write(cx)?;
            self.wakers.drain(..burst).for_each(Waker::wake);
            if yields {
                // To the end of the run queue, from which an idle worker thread can take it.
                self.has_yielded = true;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            self.has_yielded = false;
            if self.read(cx)?.is_pending() {
                return Poll::Pending;
            }
        }
    }

    fn write(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while let Some(rest) = self.writing.bytes().get(self.written..).filter(|rest| !rest.is_empty()) {
            match self.stream.as_mut().poll_write(cx, rest)? {
                Poll::Ready(0) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(written) => self.written += written,
                Poll::Pending => return Ok(()),
            }
            self.flushed = false;
        }
        if !self.flushed {
            self.flushed = self.stream.as_mut().poll_flush(cx)?.is_ready();
        }
        Ok(())
    }

    /// Reads once, and takes the replies that have arrived to their callers' slots.
    fn read(&mut self, cx: &mut Context<'_>) -> Result<Poll<()>, ConnectionEnd> {
        if self.filled == self.input.len() {
            // A line does not fit; the parser limits its length.
            self.input.resize(2 * self.filled, 0);
        }
        let mut buffer = ReadBuf::new(&mut self.input[self.filled..]);
        if self.stream.as_mut().poll_read(cx, &mut buffer)?.is_pending() {
            return Ok(Poll::Pending);
        }
        let read = buffer.filled().len();
        if read == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let filled = self.filled + read;
        let taken = self.multiplexer.receive(&self.input[..filled], self.listener.as_ref(), &mut self.wakers);
        let taken = taken?;
        self.input.copy_within(taken..filled, 0);
        self.filled = filled - taken;
        Ok(Poll::Ready(()))
    }
}

impl Drop for ConnectionTask {
    fn drop(&mut self) {
        // The task's runtime may have ended first.
        self.multiplexer.hang_up();
        // The callers whose replies arrived before the end.
        self.wakers.drain(..).for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;
    use std::time::Duration;

    use futures_util::future::{BoxFuture, FutureExt};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio::runtime::Builder;

    use super::*;
    use crate::replies::bytes;
    use crate::resp::encode::command;

    /// A connection whose other end is driven by the test, step by step.
    struct Scene {
        open: MultiplexerHandle,
        task: BoxFuture<'static, ()>,
        server: DuplexStream,
        heard: Arc<Locked<Vec<Value>>>,
    }

    impl Scene {
        fn new(is_subscribed: bool) -> Self {
            let (ours, server) = tokio::io::duplex(1 << 16);
            let heard = Arc::<Locked<Vec<Value>>>::default();
            let pushes = Arc::clone(&heard);
            let listener: PushListener = Arc::new(move |push| pushes.lock().extend(push.to_vec()));
            let (open, task, _) = Multiplexer::open(Box::pin(ours), is_subscribed.then_some(listener));
            Self { open, task: task.boxed(), server, heard }
        }

        /// Lets the task run; `true` if it has ended.
        fn run(&mut self) -> bool {
            // The task may yield early, to let other tasks run before a write.
            (0..4).any(|_| (&mut self.task).now_or_never().is_some())
        }

        /// Sends bytes from the server.
        fn say(&mut self, reply: &str) -> bool {
            self.server.write_all(reply.as_bytes()).now_or_never();
            self.run()
        }

        /// The bytes that have arrived at the server.
        fn arrived(&mut self) -> String {
            let mut bytes = vec![0; 1 << 16];
            let read = self.server.read(&mut bytes).now_or_never();
            String::from_utf8_lossy(&bytes[..read.map_or(0, |read| read.expect("a pipe"))]).into_owned()
        }
    }

    fn send<'a>(connection: &'a Multiplexer, word: &str, times: Times) -> InFlight<'a> {
        let command = command(&[word]);
        connection.send(times, |out| out.extend(&command)).expect("an open connection")
    }

    fn ask<'a>(connection: &'a Multiplexer, word: &str) -> InFlight<'a> {
        send(connection, word, Times::NONE)
    }

    fn now<T>(future: impl Future<Output = T>) -> Option<T> {
        future.now_or_never()
    }

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[cfg(tenure_planted)]
    fn finds(bug: Bug, is_right: impl Fn() -> bool) {
        use tenure_core::planted::plant;
        assert!(is_right());
        plant(Some(bug));
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| !is_right())).unwrap_or(true);
        plant(None);
        assert!(found, "{bug:?}");
    }

    #[test]
    fn replies_reach_their_requests_wherever_they_are_cut() {
        let replies = "+OK\r\n$1\r\na\r\n$1\r\nb\r\n*2\r\n:1\r\n_\r\n";
        for cut in 0..=replies.len() {
            let mut scene = Scene::new(false);
            let both = command(&["X"]);
            let (server, task) = (&mut scene.server, &mut scene.task);
            let pair = scene.open.send(Times::NONE, |out| {
                out.extend(&both);
                out.extend(&both);
            });
            let (pair, one) = (pair.expect("open"), scene.open.send(Times::NONE, |out| out.extend(&both)));
            let mut say = |text: &str| {
                server.write_all(text.as_bytes()).now_or_never();
                assert!(task.now_or_never().is_none());
            };
            let other = scene.open.send(Times::NONE, |out| out.extend(&both)).expect("open");
            say(&replies[..cut]);
            say(&replies[cut..]);
            let list = Value::Array(vec![Value::Int(1), Value::Nil]);
            assert_eq!(now(other.last()).expect("a reply").ok(), Some(list));
            let okay = Value::SimpleString("OK".into());
            assert_eq!(now(pair.all()).expect("replies").ok(), Some(vec![okay, bulk("a")]));
            assert_eq!(now(one.expect("open").last()).expect("a reply").ok(), Some(bulk("b")));
        }
    }

    /// Whether a request gets its own reply although the caller before it has left.
    fn passes_over_what_nobody_waits_for() -> bool {
        let mut scene = Scene::new(false);
        drop(ask(&scene.open, "A"));
        let open = scene.open.shared();
        let mut next = ask(&open, "B").last().boxed();
        scene.say("$1\r\na\r\n");
        let early = now(&mut next);
        scene.say("$1\r\nb\r\n");
        early.is_none() && now(next).and_then(Result::ok) == Some(bulk("b"))
    }

    #[test]
    fn the_reply_to_a_dropped_request_reaches_nobody() {
        assert!(passes_over_what_nobody_waits_for());
        #[cfg(tenure_planted)]
        for bug in [Bug::ReplyOfAnother, Bug::SlotReusedEarly] {
            finds(bug, passes_over_what_nobody_waits_for);
        }
    }

    #[test]
    fn slots_are_reused() {
        let mut scene = Scene::new(false);
        let open = scene.open.shared();
        for round in 0..100 {
            let [one, other] = ["A", "B"].map(|word| ask(&open, word));
            assert!(!scene.say(&format!(":{round}\r\n+{round}\r\n")));
            assert_eq!(now(other.last()).and_then(Result::ok), Some(Value::SimpleString(round.to_string())));
            assert_eq!(now(one.last()).and_then(Result::ok), Some(Value::Int(round)));
        }
        assert_eq!(open.state().slots.len(), 2);
    }

    /// Whether a request from before the end of a connection is not written after it.
    fn writes_nothing_after_its_end() -> bool {
        let mut scene = Scene::new(false);
        let open = scene.open.shared();
        let sent = ask(&open, "A");
        scene.open.hang_up();
        assert!(scene.run(), "its task is over");
        drop(sent);
        scene.arrived().is_empty()
    }

    #[test]
    fn nothing_is_written_after_a_hang_up() {
        assert!(writes_nothing_after_its_end());
        #[cfg(tenure_planted)]
        finds(Bug::WriteAfterHangUp, writes_nothing_after_its_end);
    }

    #[test]
    fn requests_of_a_closed_connection_have_an_unknown_outcome() {
        let mut scene = Scene::new(false);
        let open = scene.open.shared();
        let ping = command(&["PING"]);
        let mut before = pin!(open.ask(&ping).boxed());
        assert!(before.as_mut().now_or_never().is_none(), "no server answers");
        scene.open.hang_up();
        let after = open.ask(&ping).boxed();
        for answer in [now(before), now(after)] {
            assert!(matches!(answer, Some(Err(Failure::Unknown(_)))), "{answer:?}");
        }
        assert!(scene.run());
    }

    /// Whether a push between a request and its reply is not taken for the reply.
    fn tells_pushes_from_replies() -> bool {
        let mut scene = Scene::new(true);
        let open = scene.open.shared();
        let asked = ask(&open, "A");
        scene.say(">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n$1\r\na\r\n");
        let heard = scene.heard.lock().clone();
        now(asked.last()).and_then(Result::ok) == Some(bulk("a"))
            && heard == [bulk("message"), bulk("c"), bulk("m")]
    }

    #[test]
    fn a_push_is_no_reply() {
        assert!(tells_pushes_from_replies());
        #[cfg(tenure_planted)]
        finds(Bug::PushTakenForReply, tells_pushes_from_replies);
    }

    #[test]
    fn a_push_confirms_only_its_own_kind_of_request() {
        let mut scene = Scene::new(true);
        let open = scene.open.shared();
        let subscribe = command(&["SSUBSCRIBE", "c"]);
        let mut asked = pin!(open.subscribe(&subscribe, "SSUBSCRIBE").boxed());
        assert!(asked.as_mut().now_or_never().is_none());
        scene.say(">3\r\n$12\r\nsunsubscribe\r\n$1\r\nd\r\n:0\r\n");
        assert!(asked.as_mut().now_or_never().is_none(), "the slot of another channel has moved");
        scene.say(">3\r\n$10\r\nssubscribe\r\n$1\r\nc\r\n:1\r\n");
        let Some(Ok(Value::Array(push))) = now(asked) else { panic!("no confirmation") };
        assert_eq!(push.iter().filter_map(bytes).collect::<Vec<_>>(), [&b"ssubscribe"[..], b"c"]);
        assert_eq!(scene.heard.lock().len(), 6, "the listener hears both");
    }

    #[test]
    fn unexpected_replies_and_pushes_end_the_connection() {
        for said in ["+OK\r\n", ">1\r\n+x\r\n", "x"] {
            let mut scene = Scene::new(false);
            assert!(scene.say(said), "{said:?}");
            assert!(scene.open.is_closed());
        }
        let mut scene = Scene::new(false);
        let open = scene.open.shared();
        let asked = ask(&open, "A");
        assert!(scene.say("+one\r\n+two\r\n"));
        assert_eq!(now(asked.last()).and_then(Result::ok), Some(Value::SimpleString("one".into())));
    }

    #[test]
    fn requests_leave_together_where_many_are_under_way() {
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let mut scene = Scene::new(false);
            let open = scene.open.shared();
            let all = |count: usize| (0..count).map(|_| ask(&open, "PING"));
            let _few: Vec<_> = all(MANY - 1).collect();
            assert!((&mut scene.task).now_or_never().is_none());
            let piece = "*1\r\n$4\r\nPING\r\n";
            assert_eq!(scene.arrived(), piece.repeat(MANY - 1), "few leave at once");
            let _more: Vec<_> = all(1).collect();
            assert!((&mut scene.task).now_or_never().is_none());
            assert_eq!(scene.arrived(), "", "with many, others run first");
            let _others: Vec<_> = all(2).collect();
            assert!((&mut scene.task).now_or_never().is_none());
            assert_eq!(scene.arrived(), piece.repeat(3));
            let _enough: Vec<_> = all(ENOUGH / piece.len() + 1).collect();
            assert!((&mut scene.task).now_or_never().is_none());
            assert_eq!(scene.arrived(), piece.repeat(ENOUGH / piece.len() + 1), "that is enough");
        });
    }

    /// The number of times that callers were woken.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn callers_are_woken_a_few_at_a_time_and_send_together() {
        const ALL: usize = 2 * BURST;
        let piece = "*1\r\n$4\r\nPING\r\n";
        // What follows the replies, and the number of requests that the first callers send then.
        for (rest, requests) in [("", BURST), ("", ENOUGH / piece.len() + 1), ("?\r\n", 0)] {
            let mut scene = Scene::new(false);
            let open = scene.open.shared();
            let woken = Arc::new(Woken::default());
            let mut callers = [(); ALL].map(|()| ask(&open, "PING").last().boxed());
            let waker = Waker::from(Arc::clone(&woken));
            let mut cx = Context::from_waker(&waker);
            assert!(callers.iter_mut().all(|caller| caller.poll_unpin(&mut cx).is_pending()));
            scene.run();
            scene.arrived();
            scene.server.write_all(("+PONG\r\n".repeat(ALL) + rest).as_bytes()).now_or_never();
            if (&mut scene.task).now_or_never().is_some() {
                assert_eq!(rest, "?\r\n");
                drop(scene);
                assert_eq!(woken.0.load(Ordering::Relaxed), ALL, "also those whose replies precede the end");
                continue;
            }
            assert_eq!(woken.0.load(Ordering::Relaxed), BURST);
            let _first: Vec<_> = (0..requests).map(|_| ask(&open, "PING")).collect();
            assert!((&mut scene.task).now_or_never().is_none());
            let is_enough = requests > BURST;
            assert_eq!(scene.arrived(), if is_enough { piece.repeat(requests) } else { String::new() });
            assert_eq!(woken.0.load(Ordering::Relaxed), ALL);
            let _rest: Vec<_> = (0..BURST).map(|_| ask(&open, "PING")).collect();
            scene.run();
            assert_eq!(scene.arrived(), piece.repeat(if is_enough { BURST } else { ALL }));
        }
    }

    #[test]
    fn a_silent_connection_is_one_with_an_overdue_request_and_no_reply() {
        let mut scene = Scene::new(false);
        let open = scene.open.shared();
        let at = |ms: u64| Moment(0) + Duration::from_millis(ms);
        let timed = |sent: u64, due: u64| {
            let times = Times { sent: at(sent), due: at(due) };
            send(&open, "A", times)
        };
        let hasty = timed(0, 10);
        assert!(!open.state().overdue(at(9)).1);
        assert!(!open.state().overdue(at(10)).1, "its time is over too soon to tell");
        assert!(matches!(now(hasty.last()), Some(Err(Failure::Unknown(_)))));
        assert!(open.is_silent_since(at(0)) && open.state().overdue(at(200)).1);
        scene.say("+OK\r\n");
        let (left, patient) = (timed(300, 600), timed(300, 600));
        drop(left);
        scene.say("+OK\r\n");
        assert!(!open.is_silent_since(at(300)), "a reply has come in since");
        assert!(!open.state().overdue(at(600)).1);
        drop(patient);
        scene.say("+OK\r\n");
        drop(timed(700, 800));
        assert!(!open.has_unanswered() && !open.state().overdue(at(750)).1, "its caller left in time");
        assert!(open.state().overdue(at(2_000)).1, "nobody waits, and nothing has come in since");
    }

    #[test]
    fn a_connection_that_leaves_a_reply_out_is_over() {
        let mut scene = Scene::new(false);
        let open = scene.open.shared();
        let at = |ms: u64| Moment(0) + Duration::from_millis(ms);
        let pair = |sent: u64| {
            let times = Times { sent: at(sent), due: at(sent + 10) };
            open.send(times, |out| _ = out.command(&["A"]).command(&["B"])).expect("an open connection")
        };
        let _whole = pair(0);
        scene.say("+OK\r\n+OK\r\n");
        assert!(!open.state().overdue(at(10)).1);
        let _begun = pair(20);
        scene.say("+OK\r\n");
        assert!(!open.state().overdue(at(29)).1);
        assert!(open.state().overdue(at(30)).1);
    }
}
