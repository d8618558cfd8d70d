//! One ZooKeeper session, and the connection that keeps it alive.
//!
//! Requests are answered in the order they were sent. The outcome of a request whose connection ended first
//! is unknown. A kept session is resumed on another connection until a server reports it expired.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{mpsc, oneshot};

use super::dial::{Dialer, Wire};
use super::jute::Reader;
use super::messages::{ConnectRequest, WatcherEvent, close, fixed};
use tenure_core::moment::Moment;
use tenure_core::net::{Supervision, by};
use tenure_core::runtime::Runtime;
use tenure_core::store::{Failure, Signals};
use tenure_core::sync::Locked;

/// Maximum interval between requests or pings on a session. The leader learns of them a while later; see
/// `server::SLACK`.
const PING: Duration = Duration::from_secs(1);
/// Lower bound of the silence after which a server that owes an answer is given up: a third of the session
/// timeout.
const SILENCE_MIN: Duration = Duration::from_secs(1);
/// Upper bound of that silence.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// How long an answer must be overdue before a failed request makes the session move to another server.
const OWED: Duration = Duration::from_millis(500);
/// Timeout for sending the end of a session.
const CLOSING: Duration = Duration::from_millis(500);

/// What happens to a session when its connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lives {
    /// It is resumed on another connection.
    Kept,
    /// It ends with its connection.
    Connection,
    /// It is not kept alive and expires on its own.
    Alone,
}

/// An answer.
#[derive(Clone, Debug)]
pub(super) struct LinkReply {
    pub(super) code: i32,
    pub(super) body: Vec<u8>,
}

/// What a watch reports.
#[derive(Clone, Debug)]
pub(super) enum News {
    /// The watched node has changed.
    Changed,
    /// A node below `ends_below` was deleted.
    Gone(String),
}

/// The nodes a watch reports on.
pub(super) struct WatchedNodes {
    /// Any change of this node.
    pub(super) path: String,
    /// Deletions of the nodes whose paths start with this.
    pub(super) ends_below: String,
    news: mpsc::UnboundedSender<News>,
}

struct Order {
    requests: Vec<Vec<u8>>,
    /// Send only on this connection.
    connection: Option<u64>,
    replies: oneshot::Sender<Result<(u64, Vec<LinkReply>), Failure>>,
}

enum LinkCall {
    Ask(Order),
    /// Move to another server if this connection owes an answer.
    Cut(u64),
    /// End the session.
    End,
}

/// A session. It ends when the last session is dropped.
pub(super) struct Link {
    calls: mpsc::UnboundedSender<LinkCall>,
    shared: Arc<LinkShared>,
    runtime: Arc<dyn Runtime>,
    /// The session timeout granted by the server.
    pub(super) life: Duration,
}

#[derive(Default)]
struct LinkShared(Locked<LinkState>);

#[derive(Default)]
struct LinkState {
    is_over: bool,
    is_connected: bool,
    /// When the server last answered.
    heard_at: Option<Moment>,
    /// Number of the current connection.
    connection: u64,
    watches: BTreeMap<u64, WatchedNodes>,
    next_watch: u64,
}

impl LinkShared {
    fn lock(&self) -> MutexGuard<'_, LinkState> {
        self.0.lock()
    }
}

impl Link {
    /// Starts a session.
    pub(super) async fn open(dialer: &Arc<Dialer>, life: Duration, lives: Lives) -> Result<Self, Failure> {
        let life_ms = i32::try_from(life.as_millis()).unwrap_or(i32::MAX);
        let wanted = ConnectRequest { life_ms, ..ConnectRequest::default() };
        let over = || Failure::NotSent(Failure::cause("ZooKeeper ended a session when it began"));
        let (wire, session, at) = dialer.dial(&wanted).await?.ok_or_else(over)?;
        let life = Duration::from_millis(session.life_ms.unsigned_abs().into());
        let (calls, received) = mpsc::unbounded_channel();
        let shared = Arc::<LinkShared>::default();
        shared.lock().is_connected = true;
        let silence = (life / 3).clamp(SILENCE_MIN, SILENCE_MAX);
        let dialer = Arc::clone(dialer);
        let runtime = Arc::clone(&dialer.runtime);
        let task =
            SessionTask { dialer, shared: Arc::clone(&shared), calls: received, session, lives, silence };
        runtime.spawn(task.run(wire, at).boxed());
        Ok(Self { calls, shared, runtime, life })
    }

    /// Whether the session has ended, or its connection if it ends with that.
    pub(super) fn is_over(&self) -> bool {
        self.shared.lock().is_over
    }

    pub(super) fn is_connected(&self) -> bool {
        self.shared.lock().is_connected
    }

    /// Sends requests in order and waits for their answers. With `connection`, only if that is still the
    /// current connection.
    pub(super) async fn ask(
        &self,
        requests: Vec<Vec<u8>>,
        connection: Option<u64>,
    ) -> Result<(u64, Vec<LinkReply>), Failure> {
        let (replies, answered) = oneshot::channel();
        let over = || Failure::NotSent(Failure::cause("this ZooKeeper session has ended"));
        let order = Order { requests, connection, replies };
        self.calls.send(LinkCall::Ask(order)).map_err(|_| over())?;
        answered.await.unwrap_or_else(|_| Err(cut("the store was closed")))
    }

    /// Moves to another server if the current one has owed an answer for a while.
    pub(super) fn cut(&self) {
        let state = self.shared.lock();
        if state.is_connected {
            let _ = self.calls.send(LinkCall::Cut(state.connection));
        }
    }

    /// Ends the session although there are sessions, and waits until its connection is closed.
    pub(super) async fn end(&self) {
        let _ = self.calls.send(LinkCall::End);
        self.calls.closed().await;
    }

    /// Reports changes from now on, until the connection ends.
    pub(super) fn watch(&self, path: String, ends_below: String) -> (u64, mpsc::UnboundedReceiver<News>) {
        let (news, heard) = mpsc::unbounded_channel();
        let mut state = self.shared.lock();
        state.next_watch += 1;
        let id = state.next_watch;
        // Without a connection it ends immediately.
        if state.is_connected {
            state.watches.insert(id, WatchedNodes { path, ends_below, news });
        }
        (id, heard)
    }

    /// Whether the server has answered a request or a ping within this time.
    pub(super) fn heard_within(&self, time: Duration) -> bool {
        let heard_at = self.shared.lock().heard_at;
        heard_at.is_some_and(|at| self.runtime.now().since(at) < time)
    }

    /// Ends the watches, which their readers take for the end of the connection.
    pub(super) fn end_watches(&self) {
        self.shared.lock().watches.clear();
    }

    pub(super) fn unwatch(&self, id: u64) {
        self.shared.lock().watches.remove(&id);
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("life", &self.life).finish_non_exhaustive()
    }
}

/// The task that keeps a session alive.
struct SessionTask {
    dialer: Arc<Dialer>,
    shared: Arc<LinkShared>,
    calls: mpsc::UnboundedReceiver<LinkCall>,
    session: ConnectRequest,
    lives: Lives,
    silence: Duration,
}

/// How a connection ended.
enum LinkEnd {
    /// The last session was dropped.
    Left,
    Cut(String),
}

/// Requests sent together, and their answers so far.
struct Batch {
    left: usize,
    heard: Vec<LinkReply>,
    replies: oneshot::Sender<Result<(u64, Vec<LinkReply>), Failure>>,
}

/// What a session's task reacts to.
enum LinkEvent {
    Heard(Vec<u8>),
    Called(LinkCall),
    Tick,
    End(LinkEnd),
}

/// The requests in flight on a connection, in the order in which they were sent.
struct Pipelined {
    connection: u64,
    /// Number of the next request.
    next: i32,
    /// Number of the next answer.
    awaited: i32,
    batches: VecDeque<Batch>,
    /// When a request or ping was last sent.
    sent_at: Moment,
    /// Since when the server owes an answer.
    asked_at: Option<Moment>,
}

impl Pipelined {
    fn new(connection: u64, now: Moment) -> Self {
        Self { connection, next: 1, awaited: 1, batches: VecDeque::new(), sent_at: now, asked_at: None }
    }

    fn owes_for(&self, time: Duration, now: Moment) -> bool {
        self.asked_at.is_some_and(|asked| now.since(asked) >= time)
    }

    fn note_sent(&mut self, now: Moment) {
        self.sent_at = now;
        self.asked_at.get_or_insert(now);
    }

    fn send(&mut self, order: Order, wire: &mut Wire, now: Moment) {
        if order.connection.is_some_and(|wanted| wanted != self.connection) {
            let moved = Failure::cause("the session has another connection by now");
            let _ = order.replies.send(Err(Failure::NotSent(moved)));
            return;
        }
        // The caller is gone, and the request was never sent.
        if order.replies.is_closed() {
            return;
        }
        // No reply would complete it.
        if order.requests.is_empty() {
            let _ = order.replies.send(Ok((self.connection, Vec::new())));
            return;
        }
        for request in &order.requests {
            wire.push(&[&self.next.to_be_bytes(), request]);
            self.next = self.next.checked_add(1).unwrap_or(1);
        }
        self.note_sent(now);
        let left = order.requests.len();
        self.batches.push_back(Batch { left, heard: Vec::new(), replies: order.replies });
    }

    /// Takes the answer to the request of this number. Returns whether that is the next one.
    fn answer(&mut self, number: i32, reply: LinkReply) -> bool {
        let Some(batch) = self.batches.front_mut().filter(|_| number == self.awaited) else { return false };
        self.awaited = self.awaited.checked_add(1).unwrap_or(1);
        batch.heard.push(reply);
        batch.left -= 1;
        if batch.left == 0
            && let Some(batch) = self.batches.pop_front()
        {
            let _ = batch.replies.send(Ok((self.connection, batch.heard)));
        }
        true
    }
}

impl SessionTask {
    async fn run(mut self, mut wire: Wire, mut at: usize) {
        loop {
            let end = self.serve(&mut wire).await;
            {
                let mut state = self.shared.lock();
                state.is_connected = false;
                state.connection += 1;
                state.watches.clear();
            }
            let cause = match end {
                LinkEnd::Left => {
                    if self.lives != Lives::Alone {
                        wire.push(&[&1i32.to_be_bytes(), &close()]);
                        let until = self.dialer.runtime.now() + CLOSING;
                        let sent = poll_fn(|context| wire.poll_sent(context));
                        by(&*self.dialer.runtime, until, sent).await;
                    }
                    return;
                }
                LinkEnd::Cut(cause) => cause,
            };
            drop(wire);
            self.dialer.use_next_server(at);
            if self.lives != Lives::Kept {
                return self.over(&Failure::NotSent(Failure::cause(cause)));
            }
            let Some((next, to)) = self.reconnect().await else { return };
            (wire, at) = (next, to);
            self.shared.lock().is_connected = true;
        }
    }

    /// Resumes the session on another connection; `None` if it has expired or no session is left.
    async fn reconnect(&mut self) -> Option<(Wire, usize)> {
        let mut supervision = Supervision::new(Arc::clone(&self.dialer.runtime), Signals::default());
        loop {
            let failure = match self.dialer.dial(&self.session).await {
                Ok(Some((wire, session, at))) => {
                    self.session = session;
                    return Some((wire, at));
                }
                Ok(None) => {
                    let over = "ZooKeeper ended this session: this client was paused or cut off for too long";
                    self.over(&Failure::NotSent(Failure::cause(over)));
                    return None;
                }
                Err(failure) => failure,
            };
            loop {
                match self.calls.try_recv() {
                    Ok(LinkCall::Ask(order)) => drop(order.replies.send(Err(failure.clone()))),
                    Ok(LinkCall::Cut(_)) => {}
                    Err(TryRecvError::Empty) => break,
                    Ok(LinkCall::End) | Err(TryRecvError::Disconnected) => return None,
                }
            }
            supervision.failed();
            self.dialer.runtime.sleep_until(supervision.retry_later()).await;
        }
    }

    /// Marks the session as ended and fails the pending requests.
    fn over(&mut self, failure: &Failure) {
        self.shared.lock().is_over = true;
        self.calls.close();
        while let Ok(call) = self.calls.try_recv() {
            if let LinkCall::Ask(order) = call {
                let _ = order.replies.send(Err(failure.clone()));
            }
        }
    }

    /// Sends requests and dispatches answers until the connection ends.
    async fn serve(&mut self, wire: &mut Wire) -> LinkEnd {
        let runtime = Arc::clone(&self.dialer.runtime);
        let mut pipeline = Pipelined::new(self.shared.lock().connection, runtime.now());
        let mut tick = runtime.sleep_until(pipeline.sent_at + PING);
        let end = loop {
            let event = poll_fn(|context| self.poll_event(wire, &mut tick, context)).await;
            let now = runtime.now();
            match event {
                LinkEvent::End(end) => break end,
                LinkEvent::Called(LinkCall::End) => break LinkEnd::Left,
                LinkEvent::Called(LinkCall::Cut(whose)) => {
                    // A request may have waited for this connection; that does not count against the server.
                    if whose == pipeline.connection && pipeline.owes_for(OWED, now) {
                        break LinkEnd::Cut("a request was not answered in time".into());
                    }
                }
                LinkEvent::Called(LinkCall::Ask(order)) => pipeline.send(order, wire, now),
                LinkEvent::Tick => {
                    if pipeline.owes_for(self.silence, now) {
                        break LinkEnd::Cut("it is silent".into());
                    }
                    if now.since(pipeline.sent_at) >= PING && self.lives != Lives::Alone {
                        wire.push(&[&fixed::ping()]);
                        pipeline.note_sent(now);
                    }
                    tick = runtime.sleep_until((pipeline.sent_at + PING).max(now + PING / 10));
                }
                LinkEvent::Heard(frame) => {
                    let mut read = Reader(&frame);
                    let head = (read.int(), read.long(), read.int());
                    let (Some(number), Some(_), Some(code)) = head else {
                        break LinkEnd::Cut("an answer is cut short".into());
                    };
                    match number {
                        fixed::WATCHED => self.tell(read.0),
                        fixed::PINGED | fixed::AUTHENTICATED => {}
                        number => {
                            if !pipeline.answer(number, LinkReply { code, body: read.0.to_vec() }) {
                                break LinkEnd::Cut("an answer is to another request".into());
                            }
                        }
                    }
                    self.shared.lock().heard_at = Some(now);
                    pipeline.asked_at = (!pipeline.batches.is_empty()).then_some(now);
                }
            }
        };
        let cause = match &end {
            LinkEnd::Left => "the store was closed",
            LinkEnd::Cut(cause) => cause,
        };
        for batch in pipeline.batches {
            let _ = batch.replies.send(Err(cut(cause)));
        }
        end
    }

    fn poll_event(
        &mut self,
        wire: &mut Wire,
        tick: &mut BoxFuture<'static, ()>,
        context: &mut Context<'_>,
    ) -> Poll<LinkEvent> {
        let failed = |error: std::io::Error| Poll::Ready(LinkEvent::End(LinkEnd::Cut(error.to_string())));
        if let Poll::Ready(Err(error)) = wire.poll_sent(context) {
            return failed(error);
        }
        match wire.poll_received(context) {
            Poll::Ready(Ok(frame)) => return Poll::Ready(LinkEvent::Heard(frame)),
            Poll::Ready(Err(error)) => return failed(error),
            Poll::Pending => {}
        }
        match self.calls.poll_recv(context) {
            Poll::Ready(Some(call)) => return Poll::Ready(LinkEvent::Called(call)),
            Poll::Ready(None) => return Poll::Ready(LinkEvent::End(LinkEnd::Left)),
            Poll::Pending => {}
        }
        tick.as_mut().poll(context).map(|()| LinkEvent::Tick)
    }

    fn tell(&self, event: &[u8]) {
        let Some(WatcherEvent { path, is_deleted }) = WatcherEvent::read(event) else { return };
        for watch in self.shared.lock().watches.values() {
            if watch.path == path {
                let _ = watch.news.send(News::Changed);
            }
            if is_deleted && path.starts_with(&watch.ends_below) {
                let _ = watch.news.send(News::Gone(path.clone()));
            }
        }
    }
}

/// Error for requests in flight when the connection ended.
fn cut(why: &str) -> Failure {
    Failure::Unknown(Failure::cause(format!("the connection to ZooKeeper ended: {why}")))
}
