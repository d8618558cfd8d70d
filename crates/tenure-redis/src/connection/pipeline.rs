//! One connection for requests, and the watch over what is unanswered on it.
//!
//! The caller's future sends its request itself. A task on the runtime watches all of them: it
//! sleeps until the first is due, so a request costs neither a timer nor a wake-up.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use futures_util::future::{FutureExt, select};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisResult, Value};
use tokio::sync::{Notify, oneshot};

use crate::connection::scriptless::{Delete, Scriptless};
use crate::connection::server_clock::ServerClock;
use crate::connection::tokens::Tokens;
use crate::connection::{Connection, Peer};
use crate::topology::Address;
use tenure_core::events::{event, text};
use tenure_core::moment::Moment;
use tenure_core::runtime::Runtime;
use tenure_core::store::Failure;

/// A connection on which a request is due, and on which no reply at all came in for this long since
/// it was sent, is dead. With less, one hasty caller on a slow network would cost all callers the
/// connection.
const SILENCE: Duration = Duration::from_millis(200);

/// An open connection that many callers use at once.
pub(crate) struct Pipeline {
    pipe: MultiplexedConnection,
    /// Where it goes.
    pub(crate) to: Address,
    pub(crate) peer: Option<Peer>,
    heard: Arc<AtomicU64>,
    unanswered: Arc<AtomicUsize>,
    /// How much of that was said while logging in.
    greeted: u64,
    runtime: Arc<dyn Runtime>,
    flights: Mutex<Flights>,
    /// Tells the watch to look again.
    look: Notify,
    /// What is known of the server's counter of tokens.
    pub(crate) tokens: Tokens,
    /// The server sees this machine's own address: no proxy could put another server in its place.
    pub(crate) is_direct: bool,
    /// The command that deletes a key with a certain value, once the server was asked.
    pub(crate) delete: OnceLock<Option<Delete>>,
    /// The commands in place of scripts, once the server was found to forbid scripts.
    pub(crate) plain: OnceLock<Scriptless>,
    /// The server's clock, once it was asked for it.
    clock: Mutex<Option<ServerClock>>,
    /// The server may not know our scripts: it may be another than before, or an empty one.
    brings_script: AtomicBool,
    closed: AtomicBool,
    hangup: Mutex<Option<oneshot::Sender<()>>>,
}

/// Requests that are unanswered, by the moment at which the watch looks at them.
#[derive(Default)]
struct Flights {
    by_due: BTreeMap<(Moment, u64), Flight>,
    next: u64,
    /// When the watch will look next; `None` while it rests.
    looks_at: Option<Moment>,
}

struct Flight {
    sent: Moment,
    /// How many replies had come in when it was sent.
    heard: u64,
    /// The caller; `None` once its time was over and only the connection is still in question.
    waker: Option<Waker>,
}

impl Pipeline {
    /// A pipeline over a new connection, and what completes when it is over. `again`: there was one
    /// before.
    pub(crate) fn new(
        connection: Connection,
        again: bool,
        runtime: Arc<dyn Runtime>,
    ) -> (Arc<Self>, oneshot::Receiver<()>) {
        let Connection { pipe, to, peer, is_direct, heard, unanswered, hangup, over, .. } = connection;
        let greeted = heard.load(Ordering::Relaxed);
        let pipeline = Arc::new(Self {
            pipe,
            to,
            peer,
            heard,
            unanswered,
            greeted,
            runtime,
            flights: Mutex::default(),
            look: Notify::new(),
            tokens: Tokens::default(),
            is_direct,
            delete: OnceLock::new(),
            plain: OnceLock::new(),
            clock: Mutex::default(),
            brings_script: AtomicBool::new(again),
            closed: AtomicBool::new(false),
            hangup: Mutex::new(Some(hangup)),
        });
        pipeline.runtime.spawn(Arc::clone(&pipeline).watch().boxed());
        (pipeline, over)
    }

    pub(crate) fn clock(&self) -> Option<ServerClock> {
        *self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_clock(&self, clock: Option<ServerClock>) {
        *self.clock.lock().unwrap_or_else(PoisonError::into_inner) = clock;
    }

    /// Sends a command and waits for its reply. An error of the server is a reply.
    pub(crate) async fn ask(&self, command: &Cmd, deadline: Moment) -> Result<Value, Failure> {
        let mut pipe = self.pipe.clone();
        self.reply(pin!(pipe.send_packed_command(command)), deadline).await
    }

    /// The same of a server that is about to get the slot that this is about. It listens only if it
    /// is told so directly before, so both leave in one piece.
    pub(crate) async fn ask_for_slot(&self, command: &Cmd, deadline: Moment) -> Result<Value, Failure> {
        let mut pipe = self.pipe.clone();
        let mut both = redis::pipe();
        both.cmd("ASKING").add_command(command.clone());
        let replies = pipe.send_packed_commands(&both, 0, 2);
        let last = replies.map(|replies| replies.map(|mut replies| replies.pop().unwrap_or(Value::Nil)));
        self.reply(pin!(last), deadline).await
    }

    /// Sends several commands in one piece, with no other between them, and waits for all replies.
    pub(crate) fn ask_all(
        &self,
        commands: impl IntoIterator<Item = Cmd>,
        deadline: Moment,
    ) -> impl Future<Output = Result<Vec<Value>, Failure>> {
        let commands = commands.into_iter();
        let mut all = redis::Pipeline::with_capacity(commands.size_hint().0);
        for command in commands {
            all.add_command(command);
        }
        let mut pipe = self.pipe.clone();
        async move { self.reply(pin!(pipe.send_packed_commands(&all, 0, all.len())), deadline).await }
    }

    async fn reply<T>(
        &self,
        mut reply: Pin<&mut impl Future<Output = RedisResult<T>>>,
        deadline: Moment,
    ) -> Result<T, Failure> {
        let mut ticket: Option<Ticket<'_>> = None;
        poll_fn(|cx| {
            if let Poll::Ready(reply) = reply.as_mut().poll(cx) {
                return Poll::Ready(reply.map_err(|error| {
                    // The connection is dead, which its own task may not have noticed yet; the next
                    // request need not meet it.
                    self.hang_up();
                    // It had been handed over.
                    Failure::Unknown(Arc::new(error))
                }));
            }
            let waits = match &ticket {
                Some(ticket) => ticket.waits(cx.waker()),
                None => {
                    ticket = self.board(deadline, cx.waker());
                    ticket.is_some()
                }
            };
            if waits {
                return Poll::Pending;
            }
            let is_late = self.runtime.now() >= deadline;
            let why = if is_late { "no answer came in time" } else { "the connection was closed meanwhile" };
            Poll::Ready(Err(Failure::Unknown(Failure::cause(why))))
        })
        .await
    }

    /// Whether the next request is to bring its script along; said once.
    pub(crate) fn brings_script(&self) -> bool {
        self.brings_script.load(Ordering::Relaxed) && self.brings_script.swap(false, Ordering::Relaxed)
    }

    /// Closes the connection. Callers of unanswered requests are told.
    pub(crate) fn hang_up(&self) {
        self.closed.store(true, Ordering::Release);
        self.hangup.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.look.notify_one();
    }

    /// Whether it was closed, by this side or the other.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Whether it has ever answered a request.
    pub(crate) fn has_answered(&self) -> bool {
        self.heard.load(Ordering::Relaxed) > self.greeted
    }

    /// Whether a request is unanswered.
    pub(crate) fn has_unanswered(&self) -> bool {
        !self.flights().by_due.is_empty()
    }

    /// Whether a request is unanswered that was sent before this moment, and no reply at all came
    /// in since.
    pub(crate) fn is_silent_since(&self, moment: Moment) -> bool {
        let heard = self.heard.load(Ordering::Relaxed);
        self.flights().by_due.values().any(|flight| flight.sent <= moment && flight.heard == heard)
    }

    fn flights(&self) -> MutexGuard<'_, Flights> {
        // Nothing in here panics half-way, so poisoned flights are as good as others.
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From here on the watch looks after a request, until it is due or the pipeline is closed.
    /// `None` if the pipeline is closed already.
    fn board(&self, due: Moment, waker: &Waker) -> Option<Ticket<'_>> {
        let flight = Flight {
            sent: self.runtime.now(),
            heard: self.heard.load(Ordering::Relaxed),
            waker: Some(waker.clone()),
        };
        let mut flights = self.flights();
        if self.is_closed() {
            return None;
        }
        let key = (due, flights.next);
        flights.next += 1;
        flights.by_due.insert(key, flight);
        if flights.looks_at.is_none_or(|at| at > due) {
            flights.looks_at = Some(due);
            self.look.notify_one();
        }
        self.unanswered.fetch_add(1, Ordering::Relaxed);
        Some(Ticket { pipeline: self, key })
    }

    async fn watch(self: Arc<Self>) {
        while !self.is_closed() {
            let next = {
                let mut flights = self.flights();
                flights.looks_at = flights.by_due.first_key_value().map(|((due, _), _)| *due);
                flights.looks_at
            };
            let told = self.look.notified();
            match next {
                None => told.await,
                Some(due) => {
                    select(pin!(told), self.runtime.sleep_until(due)).await;
                }
            }
            let (late, dead) = self.overdue(self.runtime.now());
            if dead {
                self.hang_up();
            }
            // Only now, so that a request that is repeated goes over another connection.
            late.into_iter().for_each(Waker::wake);
            if dead {
                event!(
                    WARN,
                    target: "tenure",
                    "connection_silent",
                    "the store is silent: its connection is given up",
                    server = text(&self.to),
                );
            }
        }
        // The connection's end does not tell all of them: what was handed over in that very moment
        // is kept and never answered.
        let left = std::mem::take(&mut self.flights().by_due);
        left.into_values().filter_map(|flight| flight.waker).for_each(Waker::wake);
    }

    /// Those whose time is over, and whether the connection is to be given up.
    fn overdue(&self, now: Moment) -> (Vec<Waker>, bool) {
        let heard = self.heard.load(Ordering::Relaxed);
        let mut late = Vec::new();
        let mut dead = false;
        let mut flights = self.flights();
        while let Some(first) = flights.by_due.first_entry()
            && first.key().0 <= now
        {
            let ((_, number), flight) = first.remove_entry();
            late.extend(flight.waker);
            if flight.heard == heard {
                let end = flight.sent + SILENCE;
                if end <= now {
                    dead = true;
                } else {
                    flights.by_due.insert((end, number), Flight { waker: None, ..flight });
                }
            }
        }
        (late, dead)
    }
}

/// A request's place among the unanswered; it leaves when dropped.
struct Ticket<'a> {
    pipeline: &'a Pipeline,
    key: (Moment, u64),
}

impl Ticket<'_> {
    /// Whether it is still looked after: its time is not over, and its pipeline not closed. Then
    /// `waker` is woken at its end.
    fn waits(&self, waker: &Waker) -> bool {
        match self.pipeline.flights().by_due.get_mut(&self.key).and_then(|flight| flight.waker.as_mut()) {
            Some(waits) => {
                waits.clone_from(waker);
                true
            }
            None => false,
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.pipeline.unanswered.fetch_sub(1, Ordering::Relaxed);
        self.pipeline.flights().by_due.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use redis::{AsyncConnectionConfig, RedisConnectionInfo};

    use super::*;
    use crate::command::command;
    use tenure_core::net::by;
    use tenure_core::runtime::Driver;
    use tenure_core::runtime::block_on;

    /// A pipeline over a connection that never answers and, as long as the last of these lives,
    /// never says that it is over.
    async fn silent(runtime: &Arc<Driver>, login: &RedisConnectionInfo) -> (Arc<Pipeline>, impl Sized) {
        let (ours, theirs) = tokio::io::duplex(4_096);
        let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
        let opened = MultiplexedConnection::new_with_config(login, ours, config).await;
        let (pipe, driver) = opened.expect("a connection");
        let ((hangup, hung), (done, over)) = (oneshot::channel(), oneshot::channel());
        let (to, life) = (Address::Tcp("h".into(), 1), tenure_core::store::Incarnation::Unknown);
        let connection = Connection {
            pipe,
            to,
            peer: None,
            local: None,
            is_direct: false,
            life,
            heard: Arc::default(),
            unanswered: Arc::default(),
            hangup,
            over,
        };
        let (pipeline, over) = Pipeline::new(connection, false, Arc::clone(runtime) as Arc<dyn Runtime>);
        (pipeline, (theirs, driver, hung, done, over))
    }

    #[test]
    fn a_request_ends_with_its_line_whatever_becomes_of_its_reply() {
        let runtime = Driver::start().expect("a thread");
        let asked = block_on(async {
            let login = RedisConnectionInfo::default().set_skip_set_lib_name();
            let (pipeline, _connection) = silent(&runtime, &login).await;
            let far = runtime.now() + Duration::from_secs(3_600);
            let ping = command(&["PING"]);
            let mut before = pin!(pipeline.ask(&ping, far));
            assert!(before.as_mut().now_or_never().is_none(), "no server answers");
            pipeline.hang_up();
            let limit = runtime.now() + Duration::from_secs(10);
            let after = pipeline.ask(&ping, far);
            [by(&*runtime, limit, before).await, by(&*runtime, limit, after).await]
        });
        for answer in asked {
            assert!(matches!(answer, Some(Err(Failure::Unknown(_)))), "{answer:?}");
        }
    }
}
