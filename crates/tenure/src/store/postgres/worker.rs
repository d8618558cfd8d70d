//! Carries out requests on one connection, in the order in which they were asked.
//!
//! The requests about one lock stand in a queue: one statement about a lock is under way at a time.
//! What is alone there takes one statement, if it is an acquire or release of a mutex. All else
//! takes two: the rows of many locks are read, the machine is run here, and what it says is written
//! where the row is still as it was read. Where it is not, it is read again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::mem;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, FutureExt, select};
use futures_util::stream::{FuturesUnordered, Stream};
use tokio_postgres::{Error, Row};

use super::asking::{Done, Renewals, acquire, plain, read_rows, release, renew, sweep, write};
use super::connection::{Connection, Line};
use super::failure;
use super::group::{Change, Group, Said};
use super::inbox::{Ask, Inbox, Request};
use super::names::Key;
use super::state::{Seen, messages, signed, unsigned};
use super::statements::Which;
use crate::events::event;
use crate::moment::Moment;
use crate::protocol::{Answer, Fence, LockSpec, Notification, ReleaseScope, Verb};
use crate::store::Failure;
use crate::store::dial::pause;

/// A connection on which a request is due, and on which nothing at all came in for this long since
/// it was sent, is dead. With less, one hasty caller on a slow network would cost all the
/// connection.
const SILENCE: Duration = Duration::from_millis(200);
/// A connection that lasted this long was a good one.
const STEADY: Duration = Duration::from_secs(1);
/// So many short connections in a row are followed by the next at once.
const SHORT: u32 = 3;
/// So many requests about one lock are carried out together.
const TOGETHER: usize = 256;
/// So many locks are asked about by one statement: with the longest names, a few megabytes.
pub(super) const LOCKS: usize = 2_000;
/// After so many vain writes in a row, of which none met a change, a transaction is open that has
/// checked a hold in.
const VAIN: u32 = 4;
/// How often a part of the table is looked at for rows of no use, and how soon the next part.
const SWEEP: Duration = Duration::from_secs(600);
const SWEEP_ON: Duration = Duration::from_millis(500);
/// An answer of a grant that took longer may have a token that is not the greatest any more.
const FRESH: Duration = Duration::from_secs(600);

pub(super) struct Worker {
    inbox: Arc<Inbox>,
    locks: BTreeMap<String, LockQueue>,
    /// LockQueues whose next requests may be sent.
    ready: BTreeSet<String>,
    /// LockQueues that wait a little before they are read again.
    resting: BTreeSet<(Moment, String)>,
    /// Statements about no lock in particular, by their request.
    plain: BTreeMap<u64, Ask>,
    waiting: VecDeque<Request>,
    dues: BTreeMap<(Moment, u64), Option<String>>,
    /// When the connection is given up unless something was heard, and how much was when that was
    /// decided.
    doubt: Option<(Moment, u64)>,
    /// The last request that was sent: when, and how much had been heard.
    sent: BTreeMap<u64, (Moment, u64)>,
    sweeps_at: Moment,
    swept: String,
    /// Why the server could not be connected to, last.
    failure: Option<Failure>,
    /// Statements that are sent next.
    writes: Vec<BoxFuture<'static, Done>>,
}

/// The requests about one lock.
struct LockQueue {
    key: Key,
    queue: VecDeque<Request>,
    /// What is under way.
    running: Vec<Request>,
    step: Step,
    /// Vain writes in a row.
    tries: u32,
    /// The row that the last vain write met.
    met: Option<i64>,
}

enum Step {
    Idle,
    /// One statement that may do all.
    Fast {
        sent: Moment,
    },
    Reading,
    Writing {
        group: Group,
    },
}

enum Event {
    Done(Done),
    Over,
    Look,
}

type UnderWay = FuturesUnordered<BoxFuture<'static, Done>>;

impl Worker {
    pub(super) fn new(inbox: Arc<Inbox>) -> Self {
        let sweeps_at =
            inbox.connector.runtime.now() + SWEEP.mul_f64(share(inbox.connector.runtime.random()));
        Self {
            inbox,
            locks: BTreeMap::new(),
            ready: BTreeSet::new(),
            resting: BTreeSet::new(),
            plain: BTreeMap::new(),
            waiting: VecDeque::new(),
            dues: BTreeMap::new(),
            doubt: None,
            sent: BTreeMap::new(),
            sweeps_at,
            swept: String::new(),
            failure: None,
            writes: Vec::new(),
        }
    }

    fn now(&self) -> Moment {
        self.inbox.connector.runtime.now()
    }

    pub(super) async fn run(mut self) {
        let (inbox, connector) = (Arc::clone(&self.inbox), Arc::clone(&self.inbox.connector));
        let (mut before, mut tries, mut short): (Option<String>, u32, u32) = (None, 0, 0);
        while !self.inbox.is_closed() {
            let connected = {
                let mut connecting = pin!(connector.connect(before.as_deref()));
                loop {
                    self.take();
                    let timer = connector.runtime.sleep_until(self.first_due());
                    let work = pin!(inbox.work.notified());
                    match select(connecting.as_mut(), select(work, timer)).await {
                        Either::Left((connected, _)) => break connected,
                        Either::Right(_) if self.inbox.is_closed() => return,
                        Either::Right(_) => {
                            self.expire(None);
                        }
                    }
                }
            };
            match connected {
                Ok(connection) => {
                    let since = self.now();
                    before = Some(connection.line.label.clone());
                    self.failure = None;
                    self.inbox.connected();
                    self.serve(connection).await;
                    if self.now().since(since) >= STEADY {
                        (tries, short) = (0, 0);
                    } else {
                        short += 1;
                        tries = if short <= SHORT { 0 } else { tries + 1 };
                    }
                }
                Err(failure) => {
                    tries += 1;
                    self.unconnected(&failure);
                }
            }
            if tries > 0 {
                let until = self.now() + pause(tries, connector.runtime.random());
                while self.now() < until && !self.inbox.is_closed() {
                    let work = pin!(inbox.work.notified());
                    let timer = connector.runtime.sleep_until(until.min(self.first_due()));
                    select(work, timer).await;
                    self.take();
                    self.expire(None);
                }
            }
        }
    }

    /// Serves one connection until it ends.
    async fn serve(&mut self, connection: Connection) {
        let Connection { line, messages: _messages, mut over, .. } = connection;
        let mut under_way = UnderWay::new();
        loop {
            if self.inbox.is_closed() {
                return;
            }
            self.take();
            let dead = self.expire(Some(&line));
            if dead {
                event!(
                    WARN,
                    target: "tenure",
                    "connection_silent",
                    "the store is silent: its connection is given up",
                    server = crate::events::text(self.inbox.connector.target.shown()),
                );
                break;
            }
            self.send(&line, &mut under_way);
            match self.next(&mut under_way, &mut over).await {
                Event::Done(done) => {
                    let mut goes_on = self.done(done, &line);
                    while let Some(Some(done)) = futures_util::StreamExt::next(&mut under_way).now_or_never()
                    {
                        goes_on &= self.done(done, &line);
                    }
                    if !goes_on {
                        break;
                    }
                }
                Event::Over => break,
                Event::Look => {}
            }
        }
        // What has been answered by now counts.
        while let Some(Some(done)) = futures_util::StreamExt::next(&mut under_way).now_or_never() {
            self.done(done, &line);
        }
        self.cut_off();
    }

    async fn next(
        &mut self,
        under_way: &mut UnderWay,
        over: &mut tokio::sync::oneshot::Receiver<()>,
    ) -> Event {
        let rests = self.resting.first().map_or(Moment(u64::MAX), |(until, _)| *until);
        let doubt = self.doubt.map_or(Moment(u64::MAX), |(at, _)| at);
        let until = self.first_due().min(rests).min(doubt).min(self.sweeps_at);
        let mut timer = self.inbox.connector.runtime.sleep_until(until);
        let mut work = pin!(self.inbox.work.notified());
        poll_fn(|context| {
            if let Poll::Ready(Some(done)) = Pin::new(&mut *under_way).poll_next(context) {
                return Poll::Ready(Event::Done(done));
            }
            if over.poll_unpin(context).is_ready() {
                return Poll::Ready(Event::Over);
            }
            if work.as_mut().poll(context).is_ready() || timer.poll_unpin(context).is_ready() {
                return Poll::Ready(Event::Look);
            }
            Poll::Pending
        })
        .await
    }

    /// Puts what was asked into its locks.
    fn take(&mut self) {
        for request in self.inbox.take() {
            let name = match &request.ask {
                Ask::Lock(op, _) => &op.name,
                Ask::Record(op, _) => &op.lock,
                Ask::Plain { .. } => {
                    self.dues.insert((request.due, request.number), None);
                    self.waiting.push_back(request);
                    continue;
                }
            };
            let key = Key::of(name);
            let name = key.name.clone();
            self.dues.insert((request.due, request.number), Some(name.clone()));
            let lock = self.locks.entry(name.clone()).or_insert_with(|| LockQueue::new(key));
            lock.queue.push_back(request);
            if lock.is_idle() {
                self.ready.insert(name);
            }
        }
    }

    fn first_due(&self) -> Moment {
        self.dues.first_key_value().map_or(Moment(u64::MAX), |((due, _), _)| *due)
    }

    /// Answers those whose time is over. Returns whether the connection is to be given up.
    fn expire(&mut self, line: Option<&Line>) -> bool {
        let now = self.now();
        while let Some(first) = self.dues.first_entry().filter(|first| first.key().0 <= now) {
            let ((_, number), name) = first.remove_entry();
            let late = || Failure::cause("no answer came in time");
            let unsent = || match (line, &self.failure) {
                (Some(_), _) => Failure::NotSent(late()),
                (None, Some(failure)) => failure.clone(),
                (None, None) => {
                    let stage = self.inbox.connector.stage();
                    Failure::NotSent(Failure::cause(format!("there was no connection in time: {stage}")))
                }
            };
            if let Some(name) = name {
                let Some(lock) = self.locks.get_mut(&name) else { continue };
                if let Some(at) = lock.queue.iter().position(|request| request.number == number) {
                    if let Some(request) = lock.queue.remove(at) {
                        request.ask.fail(unsent());
                    }
                } else if let Some(at) = lock.running.iter().position(|request| request.number == number) {
                    let failure = match lock.step {
                        Step::Fast { .. } => Failure::Unknown(late()),
                        // What is written is what all of these ask for.
                        Step::Writing { ref mut group } => {
                            group.forget(at);
                            Failure::Unknown(late())
                        }
                        Step::Idle | Step::Reading => Failure::NotSent(late()),
                    };
                    lock.running.remove(at).ask.fail(failure);
                }
                if lock.is_over() {
                    self.locks.remove(&name);
                    self.ready.remove(&name);
                }
            } else if let Some(ask) = self.plain.remove(&number) {
                ask.fail(Failure::Unknown(late()));
            } else if let Some(at) = self.waiting.iter().position(|request| request.number == number)
                && let Some(request) = self.waiting.remove(at)
            {
                request.ask.fail(unsent());
            }
            if let (Some((sent, heard)), Some(line)) = (self.sent.remove(&number), line)
                && line.heard() == heard
            {
                let at = sent + SILENCE;
                if self.doubt.is_none_or(|(known, _)| known > at) {
                    self.doubt = Some((at, heard));
                }
            }
        }
        match (self.doubt, line) {
            (Some((_, heard)), Some(line)) if line.heard() != heard => self.doubt = None,
            (Some((at, _)), Some(_)) => return at <= now,
            _ => {}
        }
        false
    }

    /// Sends what may be sent.
    fn send(&mut self, line: &Arc<Line>, under_way: &mut UnderWay) {
        let now = self.now();
        under_way.extend(self.writes.drain(..));
        while let Some((until, _)) = self.resting.first()
            && *until <= now
            && let Some((_, name)) = self.resting.pop_first()
        {
            self.ready.insert(name);
        }
        while let Some(request) = self.waiting.pop_front() {
            if let Ask::Plain { which, arguments, .. } = &request.ask {
                let (which, arguments) = (*which, arguments.clone());
                under_way.push(plain(Arc::clone(line), request.number, which, arguments));
                self.sent.insert(request.number, (now, line.heard()));
                self.plain.insert(request.number, request.ask);
            }
        }
        if now >= self.sweeps_at {
            self.sweeps_at = Moment(u64::MAX);
            under_way.push(sweep(Arc::clone(line), self.swept.clone()));
        }
        while !self.ready.is_empty() {
            self.send_locks(now, line, under_way);
        }
    }

    fn send_locks(&mut self, now: Moment, line: &Arc<Line>, under_way: &mut UnderWay) {
        let (mut read, mut with_records, mut renewals) = (Vec::new(), false, Renewals::default());
        while read.len() < LOCKS
            && renewals.names.len() < LOCKS
            && let Some(name) = self.ready.pop_first()
        {
            let Some(lock) = self.locks.get_mut(&name).filter(|lock| matches!(lock.step, Step::Idle)) else {
                continue;
            };
            let dues = &mut self.dues;
            lock.queue.retain(|request| {
                let is_left = request.ask.is_left();
                if is_left {
                    dues.remove(&(request.due, request.number));
                }
                !is_left
            });
            let is_again = !lock.running.is_empty();
            if lock.is_over() {
                self.locks.remove(&name);
                continue;
            }
            if !is_again {
                let count = lock.queue.len().min(TOGETHER);
                lock.running.extend(lock.queue.drain(..count));
            }
            let heard = line.heard();
            for request in &lock.running {
                self.sent.insert(request.number, (now, heard));
            }
            if let ([Request { ask: Ask::Lock(op, _), .. }], false) = (&lock.running[..], is_again)
                && op.rule == LockSpec::Mutex
            {
                let (line, key, owner) = (Arc::clone(line), lock.key.clone(), op.owner.to_string());
                match op.verb {
                    Verb::Acquire { ttl_ms, fence: Fence::Assign | Fence::Optional, .. } => {
                        lock.step = Step::Fast { sent: now };
                        under_way.push(acquire(line, key, owner, signed(ttl_ms)));
                        continue;
                    }
                    Verb::Release {
                        whose: ReleaseScope::Own,
                        fence: Fence::Assign | Fence::Optional,
                        ..
                    } => {
                        lock.step = Step::Fast { sent: now };
                        let wake = Notification::Free { by: Some(op.owner.clone()) };
                        let message = messages(&key, &wake).concat();
                        under_way.push(release(line, name, owner, message));
                        continue;
                    }
                    // To detach a hold from its process changes nothing in a store that knows none.
                    Verb::Renew { ttl_ms, .. } => {
                        lock.step = Step::Fast { sent: now };
                        renewals.push(name, owner, signed(ttl_ms));
                        continue;
                    }
                    _ => {}
                }
            }
            lock.step = Step::Reading;
            with_records |= lock.running.iter().any(|request| matches!(request.ask, Ask::Record(..)));
            read.push(name);
        }
        if !renewals.names.is_empty() {
            under_way.push(renew(Arc::clone(line), renewals));
        }
        if !read.is_empty() {
            under_way.push(read_rows(Arc::clone(line), read, with_records));
        }
    }

    /// Goes on with what has come of a statement. Returns whether the connection is still of use.
    fn done(&mut self, done: Done, line: &Arc<Line>) -> bool {
        let now = self.now();
        match done {
            Done::Acquired(name, Ok(Some(fence))) => {
                let since = match self.locks.get(&name).map(|lock| &lock.step) {
                    Some(Step::Fast { sent }) => now.since(*sent),
                    _ => Duration::ZERO,
                };
                let answer = match since > FRESH {
                    true => Err(Failure::Unknown(Failure::cause("the answer took too long"))),
                    false => Ok(Answer::Held { fence: unsigned(fence) }),
                };
                self.answered(&name, vec![answer.map(Said::Lock)]);
                true
            }
            Done::Acquired(name, Ok(None)) | Done::Released(name, Ok(false)) => {
                self.again(&name);
                true
            }
            Done::Released(name, Ok(true)) => {
                self.answered(&name, vec![Ok(Said::Lock(Answer::Released { left: 0 }))]);
                true
            }
            Done::Renewed(names, Ok(held)) => {
                let held: BTreeMap<String, i64> = held.into_iter().collect();
                for name in names {
                    match held.get(&name) {
                        Some(fence) => {
                            let answer = Answer::Held { fence: unsigned(*fence) };
                            self.answered(&name, vec![Ok(Said::Lock(answer))]);
                        }
                        None => self.again(&name),
                    }
                }
                true
            }
            Done::Read(names, with_records, Ok(rows)) => {
                self.read(names, with_records, &rows, line);
                true
            }
            Done::Wrote(names, Ok(written)) => {
                for name in names {
                    self.wrote(&name, written.contains(&name));
                }
                true
            }
            Done::Plain(number, _, Ok(rows)) => {
                self.forget(number);
                if let Some(Ask::Plain { reply, .. }) = self.plain.remove(&number) {
                    let _ = reply.send(Ok(rows));
                }
                true
            }
            Done::Swept(Ok(last)) => {
                self.sweeps_at = now + if last.is_some() { SWEEP_ON } else { SWEEP };
                self.swept = last.unwrap_or_default();
                true
            }
            Done::Acquired(name, Err(error)) => self.failed([name], error, Which::Acquire),
            Done::Released(name, Err(error)) => self.failed([name], error, Which::Release),
            Done::Renewed(names, Err(error)) => self.failed(names, error, Which::Renew),
            Done::Read(names, _, Err(error)) => self.failed(names, error, Which::Read),
            Done::Wrote(names, Err(error)) => self.failed(names, error, Which::Write),
            Done::Plain(number, which, Err(error)) => {
                self.forget(number);
                let goes_on = !failure::ends_connection(&error);
                if let Some(ask) = self.plain.remove(&number) {
                    ask.fail(failure::of(error, which));
                }
                goes_on
            }
            Done::Swept(Err(error)) => {
                self.sweeps_at = now + SWEEP;
                !failure::ends_connection(&error)
            }
        }
    }

    /// A statement has failed: so have all that it was about.
    fn failed(&mut self, names: impl IntoIterator<Item = String>, error: Error, which: Which) -> bool {
        let goes_on = !failure::ends_connection(&error);
        let failure = failure::of(error, which);
        for name in names {
            self.fail(&name, &failure);
        }
        goes_on
    }

    fn fail(&mut self, name: &str, failure: &Failure) {
        let count = self.locks.get(name).map_or(0, |lock| lock.running.len());
        self.answered(name, (0..count).map(|_| Err(failure.clone())).collect());
    }

    fn forget(&mut self, number: u64) {
        self.sent.remove(&number);
        if self.doubt.is_some() && self.sent.is_empty() {
            self.doubt = None;
        }
    }

    /// Answers what is under way about a lock. The lock goes on with the next.
    fn answered(&mut self, name: &str, said: Vec<Result<Said, Failure>>) {
        let Some(lock) = self.locks.get_mut(name) else { return };
        for (request, said) in mem::take(&mut lock.running).into_iter().zip(said) {
            self.dues.remove(&(request.due, request.number));
            self.sent.remove(&request.number);
            answer(request.ask, said);
        }
        (lock.step, lock.tries, lock.met) = (Step::Idle, 0, None);
        if lock.is_over() {
            self.locks.remove(name);
        } else {
            self.ready.insert(name.to_owned());
        }
    }

    /// The one statement did not do it: the row is to be read.
    fn again(&mut self, name: &str) {
        let Some(lock) = self.locks.get_mut(name) else { return };
        lock.step = Step::Idle;
        if lock.is_over() {
            self.locks.remove(name);
        } else {
            self.ready.insert(name.to_owned());
        }
    }

    /// Runs the machines on what was read, and writes what they change.
    fn read(&mut self, names: Vec<String>, with_records: bool, rows: &[Row], line: &Arc<Line>) {
        let mut rows: BTreeMap<&str, &Row> = rows.iter().map(|row| (row.get(0), row)).collect();
        let mut changes: Vec<(Key, Change)> = Vec::new();
        for name in names {
            let Some(lock) = self.locks.get_mut(&name) else { continue };
            // All of them were answered meanwhile, because their time was over.
            if lock.running.is_empty() {
                self.again(&name);
                continue;
            }
            let seen = match rows.remove(name.as_str()).map(|row| Seen::of(row, with_records)) {
                Some(Ok(seen)) => seen,
                Some(Err(failure)) => {
                    self.fail(&name, &failure);
                    continue;
                }
                None => {
                    self.fail(&name, &Failure::NotSent(Failure::cause("the answer does not name the lock")));
                    continue;
                }
            };
            let serial = seen.serial;
            let is_checked_in = lock.tries >= VAIN && lock.met == serial;
            if lock.met != serial {
                (lock.tries, lock.met) = (lock.tries.min(VAIN - 1), serial);
            }
            let asks: Vec<&Ask> = lock.running.iter().map(|request| &request.ask).collect();
            let group = Group::run(&lock.key, &seen, &asks, is_checked_in);
            match group {
                Group { change: None, said } => self.answered(&name, said),
                mut group => {
                    let change = group.change.take().expect("it was just looked at");
                    lock.step = Step::Writing { group };
                    changes.push((lock.key.clone(), change));
                }
            }
        }
        if !changes.is_empty() {
            self.writes.push(write(Arc::clone(line), changes));
        }
    }

    /// A write has come back.
    fn wrote(&mut self, name: &str, is_written: bool) {
        let now = self.now();
        let Some(lock) = self.locks.get_mut(name) else { return };
        let Step::Writing { group } = mem::replace(&mut lock.step, Step::Idle) else { return };
        if is_written {
            self.answered(name, group.said);
            return;
        }
        lock.tries += 1;
        if lock.is_over() {
            self.locks.remove(name);
        } else if lock.running.is_empty() || lock.tries == 1 {
            self.ready.insert(name.to_owned());
        } else {
            // Others change it too: not all at the same moment again.
            let most = Duration::from_millis(1) * lock.tries.min(8);
            let pause = most.mul_f64(share(self.inbox.connector.runtime.random()));
            self.resting.insert((now + pause, name.to_owned()));
        }
    }

    /// The server could not be connected to.
    fn unconnected(&mut self, failure: &Failure) {
        self.take();
        // Wrong credentials do not become right by waiting.
        let is_refused = matches!(failure, Failure::Refused(_));
        self.failure = Some(failure.clone());
        let kept = mem::take(&mut self.waiting);
        for request in kept {
            match request.ask {
                Ask::Plain { at_once, .. } if at_once || is_refused => {
                    self.dues.remove(&(request.due, request.number));
                    request.ask.fail(failure.clone());
                }
                _ => self.waiting.push_back(request),
            }
        }
        if is_refused {
            for lock in mem::take(&mut self.locks).into_values() {
                for request in lock.running.into_iter().chain(lock.queue) {
                    self.dues.remove(&(request.due, request.number));
                    request.ask.fail(failure.clone());
                }
            }
            self.ready.clear();
            self.resting.clear();
        }
    }

    /// The connection is over. What may have been carried out is unknown; what was only read, or
    /// not sent, goes on over the next.
    fn cut_off(&mut self) {
        let cause = || Failure::cause("the connection was closed meanwhile");
        self.sent.clear();
        self.doubt = None;
        for (number, ask) in mem::take(&mut self.plain) {
            self.dues.retain(|(_, known), _| *known != number);
            ask.fail(Failure::Unknown(cause()));
        }
        self.resting.clear();
        self.sweeps_at = self.sweeps_at.min(self.now() + SWEEP);
        let names: Vec<String> = self.locks.keys().cloned().collect();
        for name in names {
            let Some(lock) = self.locks.get_mut(&name) else { continue };
            match lock.step {
                Step::Fast { .. } | Step::Writing { .. } => self.fail(&name, &Failure::Unknown(cause())),
                Step::Idle | Step::Reading => {
                    lock.step = Step::Idle;
                    (lock.tries, lock.met) = (0, None);
                    self.ready.insert(name);
                }
            }
        }
    }
}

impl LockQueue {
    fn new(key: Key) -> Self {
        let (queue, running) = (VecDeque::new(), Vec::new());
        Self { key, queue, running, step: Step::Idle, tries: 0, met: None }
    }

    fn is_idle(&self) -> bool {
        matches!(self.step, Step::Idle) && self.running.is_empty()
    }

    fn is_over(&self) -> bool {
        self.is_idle() && self.queue.is_empty()
    }
}

fn answer(ask: Ask, said: Result<Said, Failure>) {
    match (ask, said) {
        (Ask::Lock(_, reply), Ok(Said::Lock(answer))) => drop(reply.send(Ok(answer))),
        (Ask::Record(_, reply), Ok(Said::Record(answer))) => drop(reply.send(Ok(answer))),
        (ask, Err(failure)) => ask.fail(failure),
        (ask, Ok(_)) => ask.fail(Failure::Unknown(Failure::cause("an answer to another question"))),
    }
}

/// A number from 0 to 1.
fn share(random: u64) -> f64 {
    (random >> 11) as f64 / (1_u64 << 53) as f64
}
