//! Opens connections: dials, logs in, and kills the previous connection on the server.
//!
//! | module | what it holds |
//! |---|---|
//! | `pipelines` | which connection a request takes, in what order |
//! | `multiplexer` | a connection shared by many callers |
//! | `pipeline` | a connection for requests, with what is known of its server |
//! | `scriptless` | what a server offers in place of scripts |
//! | `server_clock` | the server's clock as last observed |
//! | `supervisor` | keeps one connection open, with backoff |
//! | `tokens` | the server's token counter as last observed |

pub(crate) mod multiplexer;
pub(crate) mod pipeline;
pub(crate) mod pipelines;
pub(crate) mod scriptless;
pub(crate) mod server_clock;
pub(crate) mod supervisor;
pub(crate) mod tokens;

use std::fmt;
use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, join3};
use tokio::sync::{Notify, oneshot};

use crate::connection::multiplexer::{ConnectionLost, Multiplexer, MultiplexerHandle, PushListener};
use crate::replies::failure;
use crate::replies::{bytes, prose};
use crate::resp::Value;
use crate::resp::encode::{Commands, command};
use crate::resp::parse::Malformed;
use crate::topology::sentinel::{self, SentinelResolver};
use crate::topology::{Access, Address, Sentinels, Target};
use tenure_core::CLIENT;
use tenure_core::credentials::Credentials;
use tenure_core::events::{event, text};
use tenure_core::moment::Moment;
pub use tenure_core::net::Stream;
use tenure_core::net::url::Password;
pub use tenure_core::net::{DialAttempt, Dialled};
use tenure_core::net::{DialStage, dial, encrypt, failure_of};
use tenure_core::runtime::Runtime;
use tenure_core::store::{Failure, FirstConnection, FullWarning, Incarnation, SETUP};
use tenure_core::sync::Locked;

/// The unencrypted URL scheme, for hints.
const PLAIN: &str = "redis://";

/// Access to the network; simulations substitute their own streams.
pub trait Dial: fmt::Debug + Send + Sync + 'static {
    /// Opens a stream. The future is polled on a task of the runtime.
    fn dial(&self, to: &Address) -> BoxFuture<'static, io::Result<Dialled>>;
}

/// The operating system's network.
#[derive(Debug)]
pub(crate) struct Network(Arc<dyn Runtime>);

impl Network {
    pub(crate) fn of(runtime: &Arc<dyn Runtime>) -> Arc<Self> {
        Arc::new(Self(Arc::clone(runtime)))
    }
}

impl Dial for Network {
    fn dial(&self, to: &Address) -> BoxFuture<'static, io::Result<Dialled>> {
        let (to, runtime) = (to.clone(), Arc::clone(&self.0));
        async move { dial(&to, &*runtime).await }.boxed()
    }
}

/// Timeout for dialling and login together.
const DIAL: Duration = Duration::from_secs(2);

/// Opens connections to one server, or to the current master.
pub(crate) struct Connector {
    /// The runtime that the connections live on.
    pub(crate) runtime: Arc<dyn Runtime>,
    /// The runtime that watches the deadlines of requests.
    pub(crate) home: Arc<dyn Runtime>,
    dial: Arc<dyn Dial>,
    goal: Goal,
    /// Whether the warning that old connections cannot be killed was logged.
    // Relaxed: it only decides who logs.
    warned: AtomicBool,
    full: Arc<FullWarning>,
    /// The store's own connection for requests.
    pub(crate) first: Arc<FirstConnection>,
    /// Whether this is the connector of callers, beside that of the store.
    is_beside: bool,
    pub(crate) stage: DialStage,
    /// The server of the last connection for requests.
    at: Locked<Option<(Address, Incarnation)>>,
    /// Notified when that is another one, also at the same address.
    pub(crate) moved: Notify,
    /// Notified whenever a connection is lost or cannot be opened.
    pub(crate) trouble: Arc<Notify>,
}

/// What to connect to.
enum Goal {
    /// One of several servers, in any role: the caller chose it.
    Node(Target),
    /// The only server of the store; must not be a replica.
    Only(Target),
    Master(SentinelResolver),
}

/// Whether a connection leads to another server than `at`.
fn is_other(at: Option<&(Address, Incarnation)>, (to, life): (&Address, &Incarnation)) -> bool {
    at.is_some_and(|(address, incarnation)| address != to || incarnation.differs(life))
}

/// An open connection, logged in.
pub(crate) struct Connection {
    pub(crate) multiplexer: MultiplexerHandle,
    /// The server's address.
    pub(crate) to: Address,
    /// The connection as the server identifies it, if it does.
    pub(crate) peer: Option<Peer>,
    /// The local address in the form in which the server would show it without a proxy in between.
    pub(crate) local: Option<String>,
    /// Whether the server sees exactly that address, so no proxy is in between.
    pub(crate) is_direct: bool,
    /// The server's incarnation (run id and uptime), if it reported one.
    pub(crate) life: Incarnation,
    /// Completes when the connection is closed.
    pub(crate) over: oneshot::Receiver<()>,
}

/// A connection as its server identifies it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    id: u64,
    addr: String,
}

impl Peer {
    /// Kills the connection. `ADDR` guards against killing another client that reuses the id.
    fn kill(&self) -> Commands {
        command(&["CLIENT", "KILL", "ID", &self.id.to_string(), "ADDR", &self.addr])
    }
}

impl Connector {
    pub(crate) fn new(runtime: Arc<dyn Runtime>, dial: Arc<dyn Dial>, target: Target) -> Self {
        Self::to(Goal::Node(target), dial, runtime)
    }

    /// Connections to the store's only server. Each dial fails if the server reports that it is a replica.
    pub(crate) fn only(runtime: Arc<dyn Runtime>, dial: Arc<dyn Dial>, target: Target) -> Self {
        Self::to(Goal::Only(target), dial, runtime)
    }

    /// Connections to the server that the sentinels name as master, resolved at each dial.
    pub(crate) fn led(runtime: Arc<dyn Runtime>, dial: Arc<dyn Dial>, sentinels: Sentinels) -> Self {
        Self::to(Goal::Master(SentinelResolver::new(sentinels)), dial, runtime)
    }

    /// Silence after which a connection for messages is probed. TCP keepalives notice a server that cannot be
    /// reached ([`Keepalive`](tenure_core::platform::Keepalive)). The probe notices one that is stopped, whose
    /// locks another server may have taken over; where there is none, a stuck proxy.
    pub(crate) fn probes_after(&self) -> Duration {
        match self.goal {
            Goal::Only(_) => Duration::from_secs(45),
            Goal::Node(_) | Goal::Master(_) => Duration::from_secs(5),
        }
    }

    fn to(goal: Goal, dial: Arc<dyn Dial>, runtime: Arc<dyn Runtime>) -> Self {
        let (stage, at) = (DialStage::default(), Locked::default());
        let (warned, moved) = (AtomicBool::new(false), Notify::new());
        let (full, first, trouble) = (Arc::default(), Arc::default(), Arc::default());
        let home = Arc::clone(&runtime);
        Self { runtime, home, dial, goal, warned, full, first, is_beside: false, stage, at, moved, trouble }
    }

    /// A connector to the same server on another runtime.
    pub(crate) fn beside(&self, runtime: Arc<dyn Runtime>) -> Self {
        let goal = match &self.goal {
            Goal::Node(target) => Goal::Node(target.clone()),
            Goal::Only(target) => Goal::Only(target.clone()),
            Goal::Master(resolver) => Goal::Master(resolver.fresh()),
        };
        let (home, trouble) = (Arc::clone(&self.home), Arc::clone(&self.trouble));
        let (full, first) = (Arc::clone(&self.full), Arc::clone(&self.first));
        Self {
            home,
            trouble,
            full,
            first,
            is_beside: true,
            ..Self::to(goal, Arc::clone(&self.dial), runtime)
        }
    }

    /// The same connector, notifying `trouble` when a connection is lost or cannot be opened.
    pub(crate) fn telling(self, trouble: Arc<Notify>) -> Self {
        Self { trouble, ..self }
    }

    /// Dials and logs in. The connection `before`, if given, is killed on the server before this one is used,
    /// so that none of its requests still in flight can arrive after a request of the new one.
    pub(crate) async fn connect(
        &self,
        listener: Option<PushListener>,
        before: Option<&Peer>,
    ) -> Result<Connection, Failure> {
        let deadline = self.runtime.now() + DIAL;
        let requests = listener.is_none();
        let is_first = requests && !self.is_beside;
        if let Some(failure) = self.first.yields().filter(|_| !is_first) {
            return Err(failure);
        }
        let opened = match &self.goal {
            Goal::Node(target) | Goal::Only(target) => self.open(target, listener, before, deadline).await,
            Goal::Master(resolver) => self.find(resolver, listener, before, deadline).await,
        };
        if is_first {
            self.first.dialled(&opened);
        }
        let connection = opened?;
        if requests {
            let mut at = self.at();
            if is_other(at.as_ref(), (&connection.to, &connection.life)) {
                self.moved.notify_one();
            }
            *at = Some((connection.to.clone(), connection.life.clone()));
        }
        Ok(connection)
    }

    /// Whether requests now go to another server; messages are published there.
    pub(crate) fn is_elsewhere(&self, to: &Address, life: &Incarnation) -> bool {
        is_other(self.at().as_ref(), (to, life))
    }

    fn at(&self) -> MutexGuard<'_, Option<(Address, Incarnation)>> {
        self.at.lock()
    }

    /// Connects to the master. The remaining time is divided among the sentinels, and among the servers that
    /// each of them names, because the next sentinel may know better.
    async fn find(
        &self,
        resolver: &SentinelResolver,
        listener: Option<PushListener>,
        before: Option<&Peer>,
        deadline: Moment,
    ) -> Result<Connection, Failure> {
        let sentinels = resolver.in_turn();
        let mut named: Vec<Address> = Vec::new();
        let mut said = Vec::new();
        for (at, sentinel) in sentinels.iter().enumerate() {
            let share = |parts: usize| {
                let now = self.runtime.now();
                now + deadline.since(now) / u32::try_from(parts).unwrap_or(u32::MAX)
            };
            let others = sentinels.len() - at;
            let master = match self.ask_sentinel(resolver, sentinel, share(others + 1)).await {
                Ok(master) => master,
                Err(failure) => {
                    said.push((sentinel.address.clone(), failure));
                    continue;
                }
            };
            resolver.remember(sentinel);
            if named.contains(&master.address) {
                continue;
            }
            named.push(master.address.clone());
            let end = share(if others > 1 { 2 } else { 1 });
            match self.open(&master, listener.clone(), before, end).await {
                Ok(connection) => return Ok(connection),
                Err(failure) => said.push((master.address, failure)),
            }
        }
        Err(resolver.failure(&said, &named))
    }

    async fn ask_sentinel(
        &self,
        resolver: &SentinelResolver,
        sentinel: &Target,
        deadline: Moment,
    ) -> Result<Target, Failure> {
        let (connection, attempt) = self.log_in(sentinel, None, deadline).await?;
        attempt.succeeded();
        self.stage.set(format!("{} has not reported the master", sentinel.address));
        let reply = self.by(deadline, connection.multiplexer.ask(&resolver.question())).await?;
        resolver.master(reply.map_err(Failure::not_sent)?)
    }

    /// Dials one server and prepares the connection for use.
    async fn open(
        &self,
        target: &Target,
        listener: Option<PushListener>,
        before: Option<&Peer>,
        deadline: Moment,
    ) -> Result<Connection, Failure> {
        let requests = listener.is_none();
        let logged_in = self.log_in(target, listener, deadline).await;
        let (connection, attempt) =
            logged_in.inspect_err(|failure| self.full.note(target.shown(), failure))?;
        let multiplexer = &connection.multiplexer;
        if let Goal::Master(_) = self.goal {
            let role = self.by(deadline, multiplexer.ask(&command(&["ROLE"]))).await?;
            sentinel::is_master(&role.map_err(Failure::not_sent)?)?;
        }
        let now = || self.runtime.now();
        let Greeting { peer, life, is_replica } =
            self.by(deadline, greet(multiplexer, target, now)).await??;
        if is_replica && matches!(self.goal, Goal::Only(_)) {
            // A replica lacks locks that its master has not replicated yet, and may be promoted at any time.
            return Err(Failure::NotSent(Failure::cause("this server is a replica; name its master")));
        }
        attempt.succeeded();
        if let Some(before) = before {
            self.by(deadline, self.end(multiplexer, target, before, peer.as_ref())).await??;
        }
        if requests && peer.is_none() {
            self.warn_of_late_requests(&target.shown(), "it does not report the connection's id");
        }
        let is_direct = peer.as_ref().is_some_and(|peer| connection.local.as_ref() == Some(&peer.addr));
        Ok(Connection { peer, is_direct, life, ..connection })
    }

    /// A connection without the preparation for locks. Pushes are ignored.
    pub(crate) async fn log_in_only(&self, target: &Target) -> Result<Connection, Failure> {
        self.stage.set(format!("{} has not answered", target.address));
        let until = self.runtime.now() + DIAL;
        let (connection, attempt) = self.log_in(target, Some(Arc::new(|_| ())), until).await?;
        attempt.succeeded();
        Ok(connection)
    }

    /// Dials one server, sets up TLS, and logs in.
    async fn log_in(
        &self,
        target: &Target,
        listener: Option<PushListener>,
        deadline: Moment,
    ) -> Result<(Connection, DialAttempt), Failure> {
        let requests = listener.is_none();
        let stage = |stage: &str| {
            if requests {
                self.stage.set(format!("{} {stage}", target.address));
            }
        };
        stage("has not been reached");
        let dialled = self.by(deadline, self.dial.dial(&target.address)).await?;
        let Dialled { stream, local, attempt } =
            dialled.map_err(|error| Failure::NotSent(Arc::new(error)))?;
        let stream = match (&target.access.tls, &target.address) {
            (Some(tls), Address::Tcp(host, _)) => {
                stage("has not answered the TLS handshake; without TLS, use redis://");
                self.by(deadline, encrypt(stream, host, tls, PLAIN)).await??.stream
            }
            _ => stream,
        };
        stage("has not answered the login");
        let hello = hello(&target.access)?;
        let (multiplexer, task, over) = Multiplexer::open(stream, listener);
        self.runtime.spawn(task.boxed());
        let said = self.by(deadline, multiplexer.ask(&hello)).await?;
        accepted(said).map_err(|failure| match failure {
            Failure::NotSent(cause) if multiplexer.heard() == 0 && cause.is::<Malformed>() => {
                let hint = if target.access.tls.is_none() { "; for TLS, use rediss://" } else { "" };
                Failure::NotSent(Failure::cause(format!(
                    "it does not speak the Redis protocol{hint} ({cause})"
                )))
            }
            Failure::NotSent(cause) if multiplexer.heard() == 0 && target.access.tls.is_none() => {
                Failure::NotSent(Failure::cause(format!(
                    "it closed the connection without a reply; for TLS, use rediss:// ({cause})"
                )))
            }
            Failure::Refused(cause) => match &target.access.login.password {
                Some(Password::File(file)) if target.access.provider.is_none() => {
                    let file = file.display();
                    Failure::Refused(Failure::cause(format!("{cause} (password file: {file})")))
                }
                _ => Failure::Refused(cause),
            },
            failure => failure,
        })?;
        let (to, life) = (target.address.clone(), Incarnation::Unknown);
        Ok((Connection { multiplexer, to, peer: None, local, is_direct: false, life, over }, attempt))
    }

    async fn by<F: Future>(&self, deadline: Moment, work: F) -> Result<F::Output, Failure> {
        self.stage.by(&*self.runtime, deadline, work).await
    }

    async fn end(
        &self,
        multiplexer: &Multiplexer,
        target: &Target,
        before: &Peer,
        now: Option<&Peer>,
    ) -> Result<(), Failure> {
        // Client ids grow monotonically on a server. If they did not, this is a different server, where the
        // old id may belong to another client.
        if now.is_some_and(|now| now.id <= before.id) {
            return Ok(());
        }
        let killed = multiplexer.ask(&before.kill()).await.map_err(Failure::not_sent)?;
        self.has_ended(&target.shown(), &killed)
    }

    /// Handles the reply to `CLIENT KILL`.
    fn has_ended(&self, server: &str, said: &Value) -> Result<(), Failure> {
        if let Value::ServerError(error) = said {
            if let (failure @ Failure::NotSent(_), _) = failure::of(error) {
                return Err(failure);
            }
            self.warn_of_late_requests(server, error.details().unwrap_or(error.code()));
        }
        Ok(())
    }

    fn warn_of_late_requests(&self, server: &str, error: &str) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            event!(
                WARN,
                target: SETUP,
                "connection_not_ended",
                "cannot close the old connection: a request that was lost with it may still be carried out",
                store = text(server),
                error = error.to_owned(),
            );
        }
    }
}

/// The command that switches to RESP3 and logs in.
fn hello(access: &Access) -> Result<Commands, Failure> {
    let told = access.provider.as_ref().map(|provider| (provider.0)()).transpose();
    let told = told.map_err(Failure::NotSent)?;
    let (user, password) = match told {
        Some(Credentials { user, password }) => (user, Some(password)),
        None => (access.login.user.clone(), access.login.password()?),
    };
    Ok(match password {
        Some(password) => command(&["HELLO", "3", "AUTH", user.as_deref().unwrap_or("default"), &password]),
        None => command(&["HELLO", "3"]),
    })
}

struct Greeting {
    peer: Option<Peer>,
    life: Incarnation,
    is_replica: bool,
}

/// Selects the database, names the connection, and asks for its id, the server's uptime and its role. Once
/// per connection is enough, because a connection does not outlive its server.
async fn greet(
    multiplexer: &Multiplexer,
    target: &Target,
    now: impl Fn() -> Moment,
) -> Result<Greeting, Failure> {
    if target.access.db != 0 {
        accepted(multiplexer.ask(&command(&["SELECT", &target.access.db.to_string()])).await)?;
    }
    // All optional: locking works for a user without the rights to these commands.
    let _ = ask(multiplexer, &["CLIENT", "SETNAME", CLIENT]).await?;
    let (peer, server, hello) = join3(
        ask(multiplexer, &["CLIENT", "INFO"]),
        ask(multiplexer, &["INFO", "server"]),
        ask(multiplexer, &["HELLO"]),
    )
    .await;
    let peer = peer?.as_ref().and_then(Peer::read);
    let life = server?.as_ref().map_or(Incarnation::Unknown, |server| life(server, now()));
    Ok(Greeting { peer, life, is_replica: hello?.as_ref().is_some_and(is_replica) })
}

/// Reads `role` from a reply to HELLO. A reply without it counts as a master.
fn is_replica(hello: &Value) -> bool {
    let Value::Array(fields) = hello else { return false };
    let (fields, _) = fields.as_chunks::<2>();
    let role = fields.iter().find(|[field, _]| bytes(field) == Some(b"role"));
    role.and_then(|[_, role]| bytes(role)).is_some_and(|role| role == b"replica" || role == b"slave")
}

async fn ask(multiplexer: &Multiplexer, words: &[&str]) -> Result<Option<Value>, Failure> {
    match multiplexer.ask(&command(words)).await.map_err(Failure::not_sent)? {
        Value::ServerError(error) => match failure::of(&error).0 {
            // It runs a script, for example, and would answer later.
            failure @ Failure::NotSent(_) => Err(failure),
            _ => Ok(None),
        },
        value => Ok(Some(value)),
    }
}

/// The outcome of a login step. No caller's request is on the connection yet, so a lost connection is never
/// an unknown outcome.
fn accepted(said: Result<Value, Failure>) -> Result<(), Failure> {
    match said {
        Ok(Value::ServerError(error)) => Err(failure::of(&error).0),
        Ok(_) => Ok(()),
        Err(Failure::Unknown(cause)) => {
            let refused = cause.downcast_ref().and_then(|ConnectionLost(error)| failure_of(error, PLAIN));
            Err(refused.unwrap_or(Failure::NotSent(cause)))
        }
        Err(failure) => Err(failure.not_sent()),
    }
}

/// Reads `run_id:…` and `uptime_in_seconds:…`, one field per line. The uptime is the difference of two times in whole
/// seconds, so it may be up to a second too long.
fn life(server: &Value, at: Moment) -> Incarnation {
    let field = |name: &str| {
        let fields = prose(server)?.lines().filter_map(|line| line.split_once(':'));
        fields.into_iter().find_map(|(field, value)| (field == name).then_some(value))
    };
    let up = field("uptime_in_seconds").and_then(|seconds| seconds.parse::<i64>().ok());
    match (field("run_id"), up) {
        // Measured by the server's wall clock, which may have been set back: negative values count as 0.
        (Some(id), Some(up)) => {
            let up = up.saturating_sub(1);
            Incarnation::Since { id: id.into(), up: Duration::from_secs(up.max(0) as u64), at }
        }
        _ => Incarnation::Unknown,
    }
}

impl Peer {
    /// Reads `id=… addr=… …`.
    fn read(info: &Value) -> Option<Self> {
        let text = prose(info)?;
        let (id, rest) = text.strip_prefix("id=")?.split_once(" addr=")?;
        // The path of a Unix socket may contain spaces.
        let end = rest.find(" laddr=").or_else(|| rest.find(' '))?;
        Some(Self { id: id.parse().ok()?, addr: rest[..end].to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_named_by_its_number_and_its_address() {
        for (info, addr) in [
            ("id=7 addr=127.0.0.1:5 laddr=127.0.0.1:6379 fd=8 name=", "127.0.0.1:5"),
            ("id=7 addr=/a b/s:0 laddr=/a b/s:0 fd=8 name=", "/a b/s:0"),
            ("id=7 addr=[::1]:5 fd=8 name=", "[::1]:5"),
        ] {
            let peer = Peer::read(&Value::BulkString(info.into())).expect("a peer");
            assert_eq!((peer.id, &*peer.addr), (7, addr));
        }
        assert!(Peer::read(&Value::BulkString("no id".into())).is_none());
    }

    /// A server that started at 10.95 s says at 12.00 s that it has been up for 2 s.
    #[test]
    fn an_uptime_in_whole_seconds_counts_as_one_less() {
        for (said, least) in [(2, 1), (1, 0), (0, 0), (-5, 0)] {
            let info = format!("# Server\r\nrun_id:a\r\nuptime_in_seconds:{said}\r\n");
            let life = life(&Value::BulkString(info.into()), Moment(0));
            assert!(
                matches!(life, Incarnation::Since { up, .. } if up == Duration::from_secs(least)),
                "{said}"
            );
        }
    }
}
