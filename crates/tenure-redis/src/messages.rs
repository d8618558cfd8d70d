//! Pub/Sub messages to waiters, on a connection of their own.
//!
//! A separate connection, because a push the client did not expect would make it impossible to match replies
//! with requests. It opens with the first subscription and stays open for a while after the last.

use std::any::Any;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, MutexGuard, Weak};
use std::time::Duration;

use futures_util::future::{Either, FutureExt, select, try_join_all};
use tokio::sync::Notify;

use crate::connection::multiplexer::{Multiplexer, PushListener};
use crate::connection::{Connection, Connector};
use crate::replies::failure;
use crate::replies::{bytes, text};
use crate::requests::Publish;
use crate::resp::Value;
use crate::resp::encode::command;
use tenure_core::events::event;
use tenure_core::moment::Moment;
use tenure_core::net::{Supervision, by};
use tenure_core::protocol::{Listening, LockSpec, Notification, parse_value};
use tenure_core::runtime::Runtime;
use tenure_core::store::{Failure, Incarnation, Listener, Publisher, Signals, Station};
use tenure_core::sync::{Locked, wait_for};

/// How long a channel stays subscribed after its last listener left, so that hand-overs do not resubscribe
/// each time.
const KEPT: Duration = Duration::from_secs(5);
/// Timeout of the probe.
const ANSWER: Duration = Duration::from_secs(1);

/// All subscriptions to one server.
pub(crate) struct Notifications {
    connector: Arc<Connector>,
    state: Locked<MessagesState>,
    /// Wakes the connection's task.
    work: Notify,
    /// Notified when a subscription was confirmed or refused.
    told: Notify,
}

#[derive(Default)]
struct MessagesState {
    channels: BTreeMap<String, Channel>,
    next: u64,
    /// Whether the connection's task is running.
    runs: bool,
    closed: bool,
    /// An unexpected message arrived: the connection must be replaced.
    spoiled: bool,
    /// The incarnation of the connected server, if it reported one.
    life: Option<Incarnation>,
    failure: Option<Failure>,
}

struct Channel {
    publish: Publish,
    /// The channel belongs to one client, and PUBLISH returns the number of its subscribers.
    is_counted: bool,
    station: Station,
    /// By subscription id: the rule of the awaited lock, and where its notifications go.
    listeners: BTreeMap<u64, (LockSpec, Publisher)>,
    /// When the last listener left.
    left: Option<Moment>,
    state: ChannelState,
    /// Confirmed on an earlier connection, so messages may have been missed since.
    was_heard: bool,
}

impl Channel {
    /// Subscribes it again if it was refused.
    fn ask_again(&mut self) {
        if let ChannelState::Refused(_) = self.state {
            self.state = ChannelState::New;
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.station.set(None);
    }
}

/// The subscription's state on the server.
enum ChannelState {
    New,
    Confirmed,
    Refused(Failure),
}

impl Notifications {
    pub(crate) fn new(connector: Arc<Connector>) -> Arc<Self> {
        Arc::new(Self { connector, state: Locked::default(), work: Notify::new(), told: Notify::new() })
    }

    fn state(&self) -> MutexGuard<'_, MessagesState> {
        self.state.lock()
    }

    /// Subscribes to a channel; ready once the server has confirmed. With `is_counted`, a publisher learns
    /// from the reply to PUBLISH whether the client is listening.
    pub(crate) async fn listen(
        self: &Arc<Self>,
        channel: String,
        publish: Publish,
        is_counted: bool,
        spec: LockSpec,
        deadline: Moment,
    ) -> Result<Listener, Failure> {
        let name = channel.clone();
        let mut station = Station::default();
        let listener = Listener::new(|publisher| {
            let subscription = self.enter(channel, publish, is_counted, spec, publisher);
            station = subscription.station.clone();
            Box::new(subscription) as Box<dyn Any + Send>
        });
        let listener = listener.at(station);
        let confirmed = || match self.state().channels.get(&name).map(|channel| &channel.state) {
            Some(ChannelState::Confirmed) => Some(Ok(())),
            Some(ChannelState::Refused(failure)) => Some(Err(failure.clone())),
            Some(ChannelState::New) => None,
            None => Some(Err(unconfirmed())),
        };
        match by(&*self.connector.runtime, deadline, wait_for(&self.told, confirmed)).await {
            Some(Ok(())) => Ok(listener),
            Some(Err(failure)) => Err(failure),
            None => Err(self.state().failure.clone().unwrap_or_else(unconfirmed)),
        }
    }

    /// Adds a listener, and starts the connection's task if it is not running.
    fn enter(
        self: &Arc<Self>,
        name: String,
        publish: Publish,
        is_counted: bool,
        spec: LockSpec,
        publisher: Publisher,
    ) -> ChannelSubscription {
        let mut state = self.state();
        let id = state.next;
        state.next += 1;
        let channel = state.channels.entry(name.clone()).or_insert_with(|| Channel {
            publish,
            is_counted,
            station: Station::default(),
            listeners: BTreeMap::new(),
            left: None,
            state: ChannelState::New,
            was_heard: false,
        });
        channel.listeners.insert(id, (spec, publisher));
        channel.left = None;
        let station = channel.station.clone();
        channel.ask_again();
        let new = matches!(channel.state, ChannelState::New);
        if !state.runs && !state.closed {
            state.runs = true;
            self.connector.runtime.spawn(Arc::clone(self).serve().boxed());
        } else if new {
            self.work.notify_one();
        }
        ChannelSubscription { notifications: Arc::downgrade(self), name, id, station }
    }

    /// Notes how many subscribers a message of this client has reached.
    pub(crate) fn reached(&self, channel: &str, subscribers: u64) {
        if let Some(channel) = self.state().channels.get(channel) {
            channel.station.set_alone(subscribers == 1 && matches!(channel.state, ChannelState::Confirmed));
        }
    }

    fn leave(&self, name: &str, id: u64) {
        let now = self.connector.runtime.now();
        let mut state = self.state();
        if let Some(channel) = state.channels.get_mut(name) {
            channel.listeners.remove(&id);
            if channel.listeners.is_empty() {
                channel.left = Some(now);
            }
        }
    }

    /// Drops the subscriptions to all other channels, because their messages are now published elsewhere.
    pub(crate) fn keep(&self, is_here: impl Fn(&str, Publish) -> bool) {
        let gone: Vec<_> = {
            let mut state = self.state();
            let elsewhere = |(name, channel): &(&String, &Channel)| !is_here(name, channel.publish);
            let names: Vec<_> =
                state.channels.iter().filter(elsewhere).map(|(name, _)| name.clone()).collect();
            names.iter().filter_map(|name| state.channels.remove(name)).collect()
        };
        // Drop the listeners outside the lock: dropping one may run code that takes it.
        if !gone.is_empty() {
            drop(gone);
            self.told.notify_waiters();
            self.work.notify_one();
        }
    }

    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.work.notify_one();
    }

    /// Keeps a connection open as long as there are channels.
    async fn serve(self: Arc<Self>) {
        let runtime = Arc::clone(&self.connector.runtime);
        let mut supervision = Supervision::new(Arc::clone(&runtime), Signals::default());
        loop {
            let notifications = Arc::downgrade(&self);
            let listener: PushListener = Arc::new(move |push| {
                if let Some(notifications) = notifications.upgrade() {
                    notifications.hear(push);
                }
            });
            match self.connector.connect(Some(listener), None).await {
                Ok(connection) => {
                    {
                        let mut state = self.state();
                        (state.failure, state.life) = (None, Some(connection.life.clone()));
                        state.channels.values_mut().for_each(Channel::ask_again);
                    }
                    supervision.connected();
                    let mut was_of_use = false;
                    if self.attend(connection, &mut was_of_use).await {
                        return;
                    }
                    self.connector.trouble.notify_one();
                    supervision.ended(was_of_use);
                }
                Err(failure) => {
                    self.cut_off(failure);
                    supervision.failed();
                }
            }
            if self.rest() {
                return;
            }
            let pause = runtime.sleep_until(supervision.retry_later());
            select(pause, pin!(self.connector.moved.notified())).await;
        }
    }

    /// Whether the task can end because there are no channels left. Also resets all channels for the next
    /// connection.
    fn rest(&self) -> bool {
        let now = self.connector.runtime.now();
        let mut state = self.state();
        for channel in state.channels.values_mut() {
            channel.was_heard |= matches!(channel.state, ChannelState::Confirmed);
            // A subscriber that was refused has yet to learn of it.
            if !matches!(channel.state, ChannelState::Refused(_)) {
                channel.state = ChannelState::New;
            }
            channel.station.set(None);
        }
        state.life = None;
        state.channels.retain(|_, channel| channel.left.is_none_or(|left| left + KEPT > now));
        state.spoiled = false;
        state.runs = !(state.closed || state.channels.is_empty());
        !state.runs
    }

    /// Handles a failed connect. New subscribers learn of the failure only if it is permanent (`Refused`);
    /// subscribers that may be missing messages are dropped, which notifies them.
    fn cut_off(&self, failure: Failure) {
        let mut state = self.state();
        let mut unheard = Vec::new();
        for channel in state.channels.values_mut() {
            if std::mem::take(&mut channel.was_heard) {
                unheard.push(std::mem::take(&mut channel.listeners));
            }
        }
        if let Failure::Refused(_) = failure {
            for channel in state.channels.values_mut() {
                channel.state = ChannelState::Refused(failure.clone());
            }
        }
        state.failure = Some(failure);
        drop(state);
        drop(unheard);
        self.connector.trouble.notify_one();
        self.told.notify_waiters();
    }

    /// Serves one connection until it fails (`false`) or is no longer needed (`true`). Sets `was_of_use`: a
    /// connection that is repeatedly useless, such as one to a master that requests have not moved to yet, is
    /// reopened with backoff.
    async fn attend(&self, connection: Connection, was_of_use: &mut bool) -> bool {
        let Connection { multiplexer, to, life, mut over, .. } = connection;
        let (runtime, idle) = (&*self.connector.runtime, self.connector.probes_after());
        let (mut count, mut alive_until) = (multiplexer.heard(), runtime.now() + idle);
        loop {
            let Some(todo) = self.todo() else { return true };
            if todo.spoiled {
                event!(
                    DEBUG,
                    target: "tenure",
                    "message_unexpected",
                    "unexpected message: resubscribing"
                );
                return false;
            }
            if self.connector.is_elsewhere(&to, &life) || self.connector.first.is_starved() {
                return false;
            }
            if !todo.is_empty() {
                match carried_out(runtime, &todo, &multiplexer).await {
                    Some(Ok(joined)) if self.joined(&joined) => {
                        *was_of_use = true;
                        continue;
                    }
                    _ => return false,
                }
            }
            let now = runtime.now();
            let heard = multiplexer.heard();
            if heard != count {
                (count, alive_until) = (heard, now + idle);
            } else if alive_until <= now {
                let ping = command(&["PING"]);
                match by(runtime, now + ANSWER, multiplexer.ask(&ping)).await {
                    Some(Ok(_)) => continue,
                    _ => return false,
                }
            }
            let (work, moved) = (pin!(self.work.notified()), pin!(self.connector.moved.notified()));
            let starved = pin!(self.connector.first.starved());
            let work = select(select(work, moved), starved);
            // A listener leaves without waking this task.
            let until = todo.next.unwrap_or(now + KEPT).min(alive_until);
            let wait = select(work, runtime.sleep_until(until));
            if let Either::Right(_) = select(wait, &mut over).await {
                return false;
            }
        }
    }

    /// Pending subscriptions and unsubscriptions; `None` when the connection is no longer needed.
    fn todo(&self) -> Option<Todo> {
        let now = self.connector.runtime.now();
        let mut state = self.state();
        let mut todo = Todo { spoiled: state.spoiled, ..Todo::default() };
        state.channels.retain(|name, channel| {
            match (channel.left, &channel.state) {
                (Some(left), ChannelState::Confirmed) if left + KEPT > now => {
                    todo.next = Some(todo.next.map_or(left + KEPT, |next| next.min(left + KEPT)));
                }
                (Some(_), ChannelState::Confirmed) => {
                    todo.leave.push((name.clone(), channel.publish));
                    return false;
                }
                (Some(_), _) => return false,
                (None, ChannelState::New) => todo.join.push((name.clone(), channel.publish)),
                (None, _) => {}
            }
            true
        });
        if state.closed || state.channels.is_empty() {
            state.runs = false;
            return None;
        }
        Some(todo)
    }

    /// Records the server's answer to each subscription; `false` if a reply was malformed.
    fn joined(&self, joined: &[(&str, Value)]) -> bool {
        let mut state = self.state();
        for (name, answer) in joined {
            match answer {
                Value::Array(push)
                    if is_confirmation(push.first())
                        && push.get(1).and_then(bytes) == Some(name.as_bytes()) => {}
                Value::ServerError(_) => {}
                _ => return false,
            }
            let MessagesState { channels, life, .. } = &mut *state;
            let Some(channel) = channels.get_mut(*name) else { continue };
            if let Value::ServerError(error) = answer {
                channel.state = ChannelState::Refused(failure::of(error).0);
                // Subscribers receive nothing from here on; dropping them notifies them.
                channel.listeners.clear();
                continue;
            }
            channel.state = ChannelState::Confirmed;
            let life = life.as_ref().filter(|_| channel.is_counted);
            channel.station.set(life.and_then(|life| listening(life, channel.publish)));
            if std::mem::take(&mut channel.was_heard) {
                tell(channel, |_| Notification::Reconnected);
            }
        }
        drop(state);
        self.told.notify_waiters();
        true
    }

    /// Handles a push. Runs on the connection's task, so that a wake-up takes no detour.
    fn hear(&self, push: &[Value]) {
        let mut state = self.state();
        let (kind, data) = push.split_first().map_or((None, push), |(kind, data)| (bytes(kind), data));
        match (kind.unwrap_or_default(), data) {
            (b"message" | b"smessage", [channel, message]) => {
                if let (Some(channel), Some(message)) = (bytes(channel), text(message)) {
                    if let Some(channel) =
                        std::str::from_utf8(channel).ok().and_then(|name| state.channels.get(name))
                    {
                        tell(channel, |spec| meant(&message, spec));
                    }
                    return;
                }
                state.spoiled = true;
            }
            (b"subscribe" | b"ssubscribe", _) => return,
            // Expected only for an abandoned channel. A cluster node also sends it unprompted when a slot
            // migrates away: dropping the channel notifies its subscribers, and the connection may have taken
            // the push for a reply.
            (kind @ (b"unsubscribe" | b"sunsubscribe"), [Value::BulkString(channel), _]) => {
                let Some(name) =
                    std::str::from_utf8(channel).ok().filter(|name| state.channels.contains_key(*name))
                else {
                    return;
                };
                if kind == b"sunsubscribe" {
                    state.channels.remove(name);
                }
                state.spoiled = true;
            }
            _ => state.spoiled = true,
        }
        drop(state);
        self.work.notify_one();
    }
}

#[derive(Default)]
struct Todo {
    spoiled: bool,
    join: Vec<(String, Publish)>,
    leave: Vec<(String, Publish)>,
    /// When the next unsubscription is due.
    next: Option<Moment>,
}

impl Todo {
    fn is_empty(&self) -> bool {
        self.join.is_empty() && self.leave.is_empty()
    }

    /// One command per channel, because a server rejects a command as a whole.
    async fn carry_out(&self, multiplexer: &Multiplexer) -> Result<Vec<(&str, Value)>, Failure> {
        let joins = self.join.iter().map(|(name, publish)| async move {
            let verb = publish.subscribe();
            let answer = multiplexer.subscribe(&command(&[verb, name]), verb).await;
            answer.map(|answer| (&**name, answer))
        });
        let joined = try_join_all(joins).await?;
        let leaves = self.leave.iter().map(|(name, publish)| async move {
            let verb = publish.unsubscribe();
            multiplexer.subscribe(&command(&[verb, name]), verb).await
        });
        try_join_all(leaves).await?;
        Ok(joined)
    }
}

/// Carries it out for as long as the server answers; `None` once it is silent.
async fn carried_out<'a>(
    runtime: &dyn Runtime,
    todo: &'a Todo,
    multiplexer: &Multiplexer,
) -> Option<Result<Vec<(&'a str, Value)>, Failure>> {
    let mut work = pin!(todo.carry_out(multiplexer));
    loop {
        let heard = multiplexer.heard();
        let done = by(runtime, runtime.now() + ANSWER, work.as_mut()).await;
        if done.is_some() || multiplexer.heard() == heard {
            return done;
        }
    }
}

fn is_confirmation(kind: Option<&Value>) -> bool {
    matches!(kind.and_then(bytes), Some(b"subscribe" | b"ssubscribe"))
}

/// The listening state to record at a waiter's place: three hex digits of the server's run id, the last two
/// bits replaced by the kind of channel. The script that wakes the waiter computes the same for the server it
/// runs on.
fn listening(life: &Incarnation, publish: Publish) -> Option<Listening> {
    let Incarnation::Since { id, .. } = life else { return None };
    let digits = u16::from_str_radix(id.get(..3)?, 16).ok()?;
    let kind = match publish {
        Publish::Plain => 1,
        Publish::Sharded => 3,
    };
    Listening::new(digits - digits % 4 + kind)
}

/// The notification that a message carries for waiters of this rule.
pub(crate) fn meant(message: &str, spec: LockSpec) -> Notification {
    if let LockSpec::Queue(_) = spec
        && let Some(tickets) = message.split(',').map(ticket).collect()
    {
        return Notification::Granted { tickets };
    }
    Notification::Free { by: parse_value(message).map(|(owner, _)| owner) }
}

/// A ticket number in canonical form. Strict, because its owner will hold the lock.
fn ticket(text: &str) -> Option<u64> {
    text.parse().ok().filter(|ticket: &u64| ticket.to_string() == text)
}

fn tell(channel: &Channel, wake: impl Fn(LockSpec) -> Notification) {
    for (spec, listener) in channel.listeners.values() {
        listener.say(wake(*spec));
    }
}

fn unconfirmed() -> Failure {
    Failure::NotSent(Failure::cause("the subscription was not confirmed in time"))
}

/// A listener's entry, removed on drop.
struct ChannelSubscription {
    notifications: Weak<Notifications>,
    name: String,
    id: u64,
    station: Station,
}

impl Drop for ChannelSubscription {
    fn drop(&mut self) {
        if let Some(notifications) = self.notifications.upgrade() {
            notifications.leave(&self.name, self.id);
        }
    }
}
