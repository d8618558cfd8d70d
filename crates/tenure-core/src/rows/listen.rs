//! Notifications for waiters, on a separate connection that all of this process's listeners share.
//!
//! It opens for the first listener and stays open a little longer than the last. Each row records until when
//! clients listen, because a release without listeners sends no notification. While a client waits in a queue,
//! another row names this session (see `sessions`). Where the server sends no notifications, listeners poll
//! instead.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::{Either, FutureExt, select};
use tokio::sync::{Notify, mpsc};

use super::inbox::{Inbox, PlainStatement, QueuedOp};
use super::names::{LockKey, client_row};
use super::server::{Server, ServerConnection, StatementError, StatementSession};
use super::state::{RowSight, heard};
use crate::moment::Moment;
use crate::net::{Supervision, by, jittered};
use crate::owner::Client;
use crate::planted::{Bug, planted};
use crate::protocol::{Listening, Notification};
use crate::runtime::Runtime;
use crate::store::{Failure, Listener, Publisher, Signals, Station};
use crate::sync::{Locked, wait_for};

/// How long the connection stays open after the last listener has left.
const KEPT: Duration = Duration::from_secs(5);
/// Silence after which the connection is probed. A broken network is noticed sooner, by the system
/// ([`Keepalive`](crate::platform::Keepalive)); the probe notices a stuck server or proxy.
const IDLE: Duration = Duration::from_secs(15);
/// Timeout of the probe and of the other statements on this connection.
const ANSWER: Duration = Duration::from_secs(2);
/// Pause before a mark that the server has refused for the moment is set again.
const NOTE_AGAIN: Duration = Duration::from_millis(100);
/// Interval at which the rows are marked again as having listeners. The mark lasts for five minutes, which is
/// longer.
const AGAIN: Duration = Duration::from_secs(120);
/// Range of the interval at which one statement polls all locks that this process waits for: short after a
/// change, and growing without one. Jitter shortens each interval by up to half.
const POLLS: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(250)];
/// Polling interval of watchers and holders. Jitter shortens it by up to half.
const WATCHES: Duration = Duration::from_secs(1);

/// Marks a request of a client whose row names its session.
const SESSION: Option<Listening> = Listening::new(1);

/// The listeners, and the task that serves their connection.
pub(super) struct NotificationHub {
    server: Arc<dyn Server>,
    runtime: Arc<dyn Runtime>,
    inbox: Arc<Inbox>,
    state: Locked<ListenState>,
    /// Set while the rows of the waiting clients name the session of this connection.
    station: Station,
    /// Wakes the connection's task.
    work: Notify,
    /// Notifies pending subscriptions that some were confirmed or refused.
    told: Notify,
}

#[derive(Default)]
struct ListenState {
    locks: BTreeMap<String, ListenedLock>,
    next: u64,
    /// The clients with waiters in queues, and the number of their listeners.
    clients: BTreeMap<Client, usize>,
    /// The rows of clients, and the session of this process that each names.
    named: BTreeMap<String, NamedSession>,
    /// Whether the connection's task is running.
    runs: bool,
    closed: bool,
    /// When the last listener left.
    left: Option<Moment>,
    failure: Option<Failure>,
}

struct NamedSession {
    label: String,
    /// Whether the server has confirmed it, and the session has not ended since.
    is_confirmed: bool,
}

struct ListenedLock {
    key: LockKey,
    listeners: BTreeMap<u64, Publisher>,
    /// Whether its row is marked and the connection is listening.
    is_heard: bool,
    refused: Option<Failure>,
    /// Whether an earlier connection was listening for it, so that notifications may have been missed since.
    was_heard: bool,
}

impl NotificationHub {
    pub(super) fn new(inbox: Arc<Inbox>) -> Arc<Self> {
        let (server, runtime) = (Arc::clone(&inbox.server), Arc::clone(&inbox.runtime));
        let (state, work, told) = (Locked::default(), Notify::new(), Notify::new());
        Arc::new(Self { server, runtime, inbox, state, station: Station::default(), work, told })
    }

    /// Subscribes to a lock; ready once the subscription is active. If the server sends no notifications, the
    /// listener polls, and a waiter's polls more often. `client` waits in the lock's queue.
    pub(super) async fn listen(
        self: &Arc<Self>,
        key: LockKey,
        is_waiter: bool,
        client: Option<Client>,
        within: Duration,
    ) -> Result<Listener, Failure> {
        let deadline = self.runtime.now() + within;
        let name = key.name.clone();
        if !self.server.has_notifications() && !is_waiter {
            return Ok(self.polling());
        }
        let enter = |publisher| Box::new(self.enter(key, client, publisher)) as Box<dyn Any + Send>;
        let listener = Listener::new(enter).at(self.station.clone());
        if !self.server.has_notifications() {
            return Ok(listener);
        }
        let confirmed = wait_for(&self.told, || self.confirmed(&name, client));
        match by(&*self.runtime, deadline, confirmed).await {
            Some(Ok(())) => Ok(listener),
            Some(Err(failure)) => Err(failure),
            None => Err(self.state.lock().failure.clone().unwrap_or_else(unconfirmed)),
        }
    }

    /// Whether the subscription of a lock is active, and the row of the client that waits names the session;
    /// `None` if that is not known yet.
    fn confirmed(&self, name: &str, client: Option<Client>) -> Option<Result<(), Failure>> {
        let state = self.state.lock();
        let is_named = client.is_none_or(|client| {
            state.named.get(&client_row(client)).is_some_and(|named| named.is_confirmed)
        });
        match state.locks.get(name) {
            Some(ListenedLock { is_heard: true, .. }) if is_named => Some(Ok(())),
            Some(ListenedLock { refused, .. }) => refused.clone().map(Err),
            None => Some(Err(unconfirmed())),
        }
    }

    /// A listener that is told at intervals that it may have missed something.
    fn polling(&self) -> Listener {
        let runtime = Arc::clone(&self.runtime);
        Listener::new(|publisher| {
            let spawner = Arc::clone(&runtime);
            spawner.spawn(
                async move {
                    while !publisher.is_over() {
                        let pause = jittered(WATCHES, runtime.random());
                        select(pin!(publisher.over()), runtime.sleep_until(runtime.now() + pause)).await;
                        publisher.say(Notification::Reconnected);
                    }
                }
                .boxed(),
            );
            Box::new(())
        })
    }

    /// Reads the rows of the locks that are waited for, and reports changes, while there are any.
    async fn poll_rows(self: Arc<Self>) {
        let runtime = Arc::clone(&self.runtime);
        let (mut seen, mut pause) = (BTreeMap::<String, RowSight>::new(), POLLS[0]);
        loop {
            let names: Vec<String> = {
                let mut state = self.state.lock();
                state.runs = !state.closed && !state.locks.is_empty();
                if !state.runs {
                    return;
                }
                state.locks.keys().cloned().collect()
            };
            seen.retain(|name, _| names.binary_search(name).is_ok());
            let plain = PlainStatement::Read { names };
            let ask = |reply| QueuedOp::Plain { plain, at_once: false, reply };
            // A closed inbox answers no more.
            let rows = by(&*runtime, runtime.now() + ANSWER, self.inbox.ask(ANSWER, ask)).await;
            let rows = rows.and_then(Result::ok).unwrap_or_default();
            pause = (pause * 3 / 2).min(POLLS[1]);
            for row in rows {
                let sight = RowSight::of(&row);
                if seen.get(&row.name) != Some(&sight) {
                    self.tell(&row.name, &sight.wake());
                    seen.insert(row.name, sight);
                    pause = POLLS[0];
                }
            }
            let until = runtime.now() + jittered(pause, runtime.random());
            let (work, timer) = (pin!(self.work.notified()), runtime.sleep_until(until));
            if let Either::Left(_) = select(work, timer).await {
                pause = POLLS[0];
            }
        }
    }

    /// Adds a listener, and starts the connection's task if it is not running.
    fn enter(
        self: &Arc<Self>,
        key: LockKey,
        client: Option<Client>,
        publisher: Publisher,
    ) -> ListenRegistration {
        let mut state = self.state.lock();
        let (id, name) = (state.next, key.name.clone());
        state.next += 1;
        let fresh = || ListenedLock {
            key,
            listeners: BTreeMap::new(),
            is_heard: false,
            refused: None,
            was_heard: false,
        };
        let lock = state.locks.entry(name.clone()).or_insert_with(fresh);
        lock.listeners.insert(id, publisher);
        self.inbox.set_listeners(true);
        lock.refused = None;
        let mut is_new = !lock.is_heard;
        if let Some(client) = client {
            let count = state.clients.entry(client).or_default();
            *count += 1;
            is_new |= *count == 1;
        }
        state.left = None;
        if !state.runs && !state.closed {
            state.runs = true;
            let hub = Arc::clone(self);
            self.runtime.spawn(match self.server.has_notifications() {
                true => hub.serve().boxed(),
                false => hub.poll_rows().boxed(),
            });
        } else if is_new {
            self.work.notify_one();
        }
        ListenRegistration { notifications: Arc::downgrade(self), name, id, client }
    }

    fn leave(&self, name: &str, id: u64, client: Option<Client>) {
        let now = self.runtime.now();
        let mut state = self.state.lock();
        if let Some(client) = client
            && let Some(count) = state.clients.get_mut(&client)
        {
            *count -= 1;
            if *count == 0 {
                state.clients.remove(&client);
            }
        }
        if let Some(lock) = state.locks.get_mut(name) {
            lock.listeners.remove(&id);
            if lock.listeners.is_empty() {
                state.locks.remove(name);
            }
        }
        if state.locks.is_empty() {
            state.left = Some(now);
            self.inbox.set_listeners(false);
        }
    }

    /// Closes the connection.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.work.notify_one();
    }

    /// Keeps a connection open while there are listeners.
    async fn serve(self: Arc<Self>) {
        let runtime = Arc::clone(&self.runtime);
        let mut supervision = Supervision::new(Arc::clone(&runtime), Signals::default());
        loop {
            let connected = match self.inbox.first.yields() {
                Some(failure) => Err(failure),
                None => self.server.connect(None).await,
            };
            match connected {
                Ok(connection) => {
                    self.state.lock().failure = None;
                    supervision.connected();
                    let is_over = self.attend(connection).await;
                    self.station.set(None);
                    if is_over {
                        return;
                    }
                    supervision.ended(false);
                }
                Err(failure) => {
                    supervision.failed();
                    self.cut_off(&failure);
                }
            }
            if self.rests() {
                self.forget(None).await;
                return;
            }
            runtime.sleep_until(supervision.retry_later()).await;
        }
    }

    /// Deletes the rows that name a session which is no longer needed: its end would count as that of the
    /// client, whose next place may be older than its next session. The session does so itself, if it lives.
    async fn forget(&self, session: Option<&dyn StatementSession>) {
        let named = mem::take(&mut self.state.lock().named);
        if named.is_empty() || self.inbox.is_closed() || planted(Bug::RowsSessionKept) {
            return;
        }
        let key = |(name, session): (String, NamedSession)| LockKey { name, whole: Some(session.label) };
        let keys: Vec<LockKey> = named.into_iter().map(key).collect();
        let limit = self.runtime.now() + ANSWER;
        if let Some(session) = session {
            by(&*self.runtime, limit, session.forget_sessions(&keys)).await;
            return;
        }
        let plain = PlainStatement::ForgetSessions { keys };
        let forget = self.inbox.ask(ANSWER, |reply| QueuedOp::Plain { plain, at_once: false, reply });
        by(&*self.runtime, limit, forget).await;
    }

    /// Whether the task has nothing left to do and ends.
    fn rests(&self) -> bool {
        let mut state = self.state.lock();
        for lock in state.locks.values_mut() {
            lock.was_heard |= mem::take(&mut lock.is_heard);
        }
        state.named.values_mut().for_each(|named| named.is_confirmed = false);
        let is_over = state.closed || state.locks.is_empty();
        state.runs = !is_over;
        is_over
    }

    /// The connection attempt failed. Pending subscriptions fail only if the failure is permanent. Confirmed
    /// listeners are dropped, which tells them that they receive nothing during the outage.
    fn cut_off(&self, failure: &Failure) {
        let mut state = self.state.lock();
        let mut unheard = Vec::new();
        for lock in state.locks.values_mut() {
            if mem::take(&mut lock.was_heard) {
                unheard.push(mem::take(&mut lock.listeners));
            }
            if let Failure::Refused(_) = failure {
                lock.refused = Some(failure.clone());
            }
        }
        state.locks.retain(|_, lock| !lock.listeners.is_empty());
        state.failure = Some(failure.clone());
        drop(state);
        drop(unheard);
        self.told.notify_waiters();
    }

    /// Serves one connection until it fails, or until it is no longer needed and returns `true`.
    async fn attend(&self, connection: ServerConnection) -> bool {
        let ServerConnection { session, messages, driver } = connection;
        match select(pin!(self.hear_from(session, messages)), driver).await {
            Either::Left((is_over, _)) => is_over,
            // What came before the end is heard.
            Either::Right(((), hears)) => hears.now_or_never().unwrap_or(false),
        }
    }

    /// Serves the connection, whose driver runs meanwhile.
    async fn hear_from(
        &self,
        session: Arc<dyn StatementSession>,
        mut messages: mpsc::UnboundedReceiver<String>,
    ) -> bool {
        let runtime = &*self.runtime;
        match by(runtime, runtime.now() + ANSWER, session.listen()).await {
            Some(Ok(())) => {}
            _ => return false,
        }
        let again = if planted(Bug::RowsListensOnce) { 100 * AGAIN } else { AGAIN };
        let (mut count, mut alive_until, mut again_at) =
            (session.heard(), runtime.now() + IDLE, runtime.now() + again);
        loop {
            let now = runtime.now();
            // The last listener has left some time ago.
            let Some(until) = self.is_needed_until(now) else {
                self.forget(Some(&*session)).await;
                return true;
            };
            // The server has no room for a second connection, and requests have none.
            if self.inbox.first.is_starved() {
                self.forget(Some(&*session)).await;
                return false;
            }
            let is_again = now >= again_at;
            let keys = self.to_await(session.label(), is_again);
            if is_again {
                again_at = now + again;
            }
            // New listeners, or marks that are about to end.
            if !keys.is_empty() {
                if planted(Bug::RowsHeardTooSoon) {
                    self.awaited(&keys);
                }
                match self.note(&*session, &keys).await {
                    Some(Ok(())) => self.awaited(&keys),
                    _ => return false,
                }
                continue;
            }
            if session.heard() != count {
                (count, alive_until) = (session.heard(), now + IDLE);
            // Silent for long: it may be a stuck server, or only quiet.
            } else if alive_until <= now {
                match by(runtime, now + ANSWER, session.ping()).await {
                    Some(Ok(())) => continue,
                    _ => return false,
                }
            }
            let timer = runtime.sleep_until(until.min(alive_until).min(again_at));
            let (work, starved) = (pin!(self.work.notified()), pin!(self.inbox.first.starved()));
            let (work, message) = (select(work, starved), pin!(messages.recv()));
            match select(message, select(work, timer)).await {
                Either::Left((Some(message), _)) => self.hear(&message),
                // The connection has ended.
                Either::Left((None, _)) => return false,
                // Something is due, or listeners have come or left.
                Either::Right(_) => {}
            }
        }
    }

    /// Marks these rows as having listeners. A transaction that the server chose to end a deadlock is repeated.
    async fn note(
        &self,
        session: &dyn StatementSession,
        keys: &[LockKey],
    ) -> Option<Result<(), StatementError>> {
        let limit = self.runtime.now() + ANSWER;
        loop {
            match by(&*self.runtime, limit, session.note_listeners(keys)).await {
                Some(Err(StatementError { failure: Failure::NotSent(_), ends_connection: false }))
                    if self.runtime.now() < limit =>
                {
                    self.runtime.sleep_until(self.runtime.now() + NOTE_AGAIN).await;
                }
                noted => return noted,
            }
        }
    }

    /// When the connection will no longer be needed; `None` if that is now.
    fn is_needed_until(&self, now: Moment) -> Option<Moment> {
        let mut state = self.state.lock();
        let until = match state.left.filter(|_| state.locks.is_empty()) {
            Some(left) => left + KEPT,
            None => Moment(u64::MAX),
        };
        if state.closed || until <= now {
            state.runs = false;
            return None;
        }
        Some(until)
    }

    /// The rows to be marked as having listeners, those of clients in queues included.
    fn to_await(&self, session: &str, is_again: bool) -> Vec<LockKey> {
        let mut state = self.state.lock();
        let ListenState { locks, clients, named, .. } = &mut *state;
        let locks = locks.values().filter(|lock| is_again || !lock.is_heard);
        let mut keys: Vec<LockKey> = locks.map(|lock| lock.key.clone()).collect();
        let rows: Vec<String> = clients.keys().map(|client| client_row(*client)).collect();
        let is_named = |row: &String| named.get(row).is_some_and(|known| known.label == session);
        let fresh: Vec<String> = rows.into_iter().filter(|row| !is_named(row)).collect();
        let name =
            |row: &String| (row.clone(), NamedSession { label: session.to_owned(), is_confirmed: false });
        named.extend(fresh.iter().map(name));
        let rows = if is_again { named.keys().cloned().collect() } else { fresh };
        keys.extend(rows.into_iter().map(|name| LockKey { name, whole: Some(session.to_owned()) }));
        keys
    }

    /// Confirms the subscriptions of rows that were marked.
    fn awaited(&self, keys: &[LockKey]) {
        let names: BTreeSet<&str> = keys.iter().map(|key| &*key.name).collect();
        let mut state = self.state.lock();
        for (row, named) in &mut state.named {
            named.is_confirmed |= names.contains(&**row);
        }
        if state.named.values().any(|named| named.is_confirmed) {
            self.station.set(SESSION);
        }
        for (name, lock) in &mut state.locks {
            if names.contains(&**name)
                && !mem::replace(&mut lock.is_heard, true)
                && mem::take(&mut lock.was_heard)
                && !planted(Bug::RowsMissedUnsaid)
            {
                lock.listeners.values().for_each(|listener| listener.say(Notification::Reconnected));
            }
        }
        drop(state);
        self.told.notify_waiters();
    }

    fn hear(&self, message: &str) {
        let Some((name, wake)) = heard(message) else { return };
        self.tell(&name, &wake);
    }

    fn tell(&self, name: &str, wake: &Notification) {
        if let Some(lock) = self.state.lock().locks.get(name) {
            lock.listeners.values().for_each(|listener| listener.say(wake.clone()));
        }
    }
}

fn unconfirmed() -> Failure {
    Failure::NotSent(Failure::cause("the subscription was not confirmed in time"))
}

/// A listener's registration, removed on drop.
struct ListenRegistration {
    notifications: Weak<NotificationHub>,
    name: String,
    id: u64,
    client: Option<Client>,
}

impl Drop for ListenRegistration {
    fn drop(&mut self) {
        if let Some(notifications) = self.notifications.upgrade() {
            notifications.leave(&self.name, self.id, self.client);
        }
    }
}
