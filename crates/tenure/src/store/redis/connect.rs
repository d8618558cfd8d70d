//! Opens connections: dials, logs in, and puts an end to the connection before.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, FutureExt, join, select};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, ProtocolVersion, PushInfo, RedisConnectionInfo, Value};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;

use super::failure;
use super::frame::Checked;
#[cfg(feature = "tls")]
use super::tls;
use super::topology::{Address, Target};
use crate::runtime::{Moment, Runtime};
use crate::store::{Failure, Life};

/// An open stream of bytes.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// The door to the network: a simulation hands in streams of its own.
pub trait Dial: fmt::Debug + Send + Sync + 'static {
    /// Opens a stream. The future is polled by a task of the runtime.
    fn dial(&self, to: &Address) -> BoxFuture<'static, io::Result<Pin<Box<dyn Stream>>>>;
}

/// The system's network.
#[derive(Debug)]
pub(super) struct Network;

impl Dial for Network {
    fn dial(&self, to: &Address) -> BoxFuture<'static, io::Result<Pin<Box<dyn Stream>>>> {
        let to = to.clone();
        async move {
            Ok(match to {
                Address::Tcp(host, port) => {
                    let stream = TcpStream::connect((host, port)).await?;
                    // A request is one small write that wants to leave at once.
                    stream.set_nodelay(true)?;
                    Box::pin(stream) as Pin<Box<dyn Stream>>
                }
                Address::Unix(path) => Box::pin(UnixStream::connect(path).await?),
            })
        }
        .boxed()
    }
}

const DIALS: &str = "it has not been reached";
/// How long a connection may take until it can be used.
const DIAL: Duration = Duration::from_secs(2);
/// So many requests may be on their way into a connection before further ones wait.
const QUEUE: usize = 1024;

/// What receives the messages of a connection; it must not block.
pub(super) type Ear = Box<dyn Fn(PushInfo) + Send + Sync>;

/// Opens connections to one server.
pub(super) struct Connector {
    pub(super) runtime: Arc<dyn Runtime>,
    dial: Arc<dyn Dial>,
    target: Target,
    /// Whether it was said that old connections cannot be ended.
    warned: AtomicBool,
    /// How far the connection for requests is that is being made: for those who cannot wait for it any longer.
    stage: Mutex<&'static str>,
}

/// An open connection, logged in.
pub(super) struct Connection {
    pub(super) pipe: MultiplexedConnection,
    /// What the server calls it, if it told.
    pub(super) peer: Option<Peer>,
    /// Which start of the server it is, and since when it has been up, if it told.
    pub(super) life: Life,
    /// How many replies and messages came in.
    pub(super) heard: Arc<AtomicU64>,
    /// Dropping or firing this closes it.
    pub(super) hangup: oneshot::Sender<()>,
    /// Completes when it is closed.
    pub(super) over: oneshot::Receiver<()>,
}

/// A connection as its server sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    id: u64,
    addr: String,
}

impl Connector {
    pub(super) fn new(runtime: Arc<dyn Runtime>, dial: Arc<dyn Dial>, target: Target) -> Self {
        Self { runtime, dial, target, warned: AtomicBool::new(false), stage: Mutex::new(DIALS) }
    }

    /// Dials and logs in. If there was a connection before, it is ended on the server before this one can be used: a request
    /// of it that is still on its way must not arrive after one of this.
    pub(super) async fn connect(
        &self,
        ear: Option<Ear>,
        before: Option<&Peer>,
    ) -> Result<Connection, Failure> {
        let deadline = self.runtime.now() + DIAL;
        let stage = |stage| {
            if ear.is_none() {
                *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = stage;
            }
        };
        stage(DIALS);
        let dialled = self.by(deadline, self.dial.dial(&self.target.address)).await?;
        let stream = dialled.map_err(|error| Failure::NotSent(Arc::new(error)))?;
        #[cfg(feature = "tls")]
        let stream = match (&self.target.access.tls, &self.target.address) {
            (Some(tls), Address::Tcp(host, _)) => {
                stage("it has not answered the TLS handshake; one without TLS is redis://");
                self.by(deadline, tls::encrypt(stream, host, tls)).await??
            }
            _ => stream,
        };
        stage("it has not answered the login");
        let heard = Arc::new(AtomicU64::new(0));
        let stream = Checked::new(stream, Arc::clone(&heard), ear.is_some());
        let mut config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_connection_timeout(None)
            .set_pipeline_buffer_size(QUEUE);
        if let Some(ear) = ear {
            config = config.set_push_sender(move |info| {
                ear(info);
                Ok::<(), ()>(())
            });
        }
        let login = self.login();
        let opened = MultiplexedConnection::new_with_config(&login, stream, config);
        let (mut pipe, driver) = self.by(deadline, opened).await?.map_err(|error| {
            let silent = heard.load(Ordering::Relaxed) == 0;
            match refusal(error) {
                Failure::NotSent(cause) if silent && self.target.access.tls.is_none() => {
                    Failure::NotSent(Failure::cause(format!(
                        "it hung up before it said anything; one that speaks TLS is rediss:// ({cause})"
                    )))
                }
                failure => failure,
            }
        })?;
        let (hangup, hung) = oneshot::channel();
        let (done, over) = oneshot::channel();
        self.runtime.spawn(
            async move {
                select(hung, pin!(driver)).await;
                let _ = done.send(());
            }
            .boxed(),
        );
        let (peer, life) = self.by(deadline, self.greet(&mut pipe)).await??;
        if let Some(before) = before {
            self.by(deadline, self.end(&mut pipe, before, peer.as_ref())).await??;
        }
        Ok(Connection { pipe, peer, life, heard, hangup, over })
    }

    async fn by<F: Future>(&self, deadline: Moment, work: F) -> Result<F::Output, Failure> {
        by(&*self.runtime, deadline, work).await.ok_or_else(|| {
            let (most, stage) = (DIAL.as_secs(), self.stage());
            Failure::NotSent(Failure::cause(format!("it could not be connected to within {most} s: {stage}")))
        })
    }

    /// What a connection for requests waits for that is being made.
    pub(super) fn stage(&self) -> &'static str {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn login(&self) -> RedisConnectionInfo {
        let mut info =
            RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name();
        if let Some(user) = &self.target.access.user {
            info = info.set_username(user);
        }
        if let Some(password) = &self.target.access.password {
            info = info.set_password(password);
        }
        info
    }

    /// Says who we are, chooses the database, and asks what the server calls this connection and how long it has been up. A
    /// connection does not outlive its server, so once is enough.
    async fn greet(&self, pipe: &mut MultiplexedConnection) -> Result<(Option<Peer>, Life), Failure> {
        if self.target.access.db != 0 {
            done(pipe.send_packed_command(&command(&["SELECT", &self.target.access.db.to_string()])).await)?;
        }
        // Neither is needed; a user without the right to them can lock all the same.
        let _ = ask(pipe, &["CLIENT", "SETNAME", "tenure"]).await?;
        let (mut pipe, mut other) = (pipe.clone(), pipe.clone());
        let (peer, server) =
            join(ask(&mut pipe, &["CLIENT", "INFO"]), ask(&mut other, &["INFO", "server"])).await;
        let peer = peer?.as_ref().and_then(Peer::read);
        Ok((peer, server?.as_ref().map_or(Life::Unknown, |server| life(server, self.runtime.now()))))
    }

    async fn end(
        &self,
        pipe: &mut MultiplexedConnection,
        before: &Peer,
        now: Option<&Peer>,
    ) -> Result<(), Failure> {
        // Ids of a server grow. If they do not, it is another server by now, and there the old id is somebody else's.
        if now.is_some_and(|now| now.id <= before.id) {
            return Ok(());
        }
        let id = before.id.to_string();
        let killed = pipe
            .send_packed_command(&command(&["CLIENT", "KILL", "ID", &id, "ADDR", &before.addr]))
            .await
            .map_err(unknown)?;
        if let Value::ServerError(error) = killed {
            if let (failure @ Failure::NotSent(_), _) = failure::of(&error) {
                return Err(failure);
            }
            if !self.warned.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    target: "tenure",
                    store = %self.target.shown(),
                    error = error.details().unwrap_or(error.code()),
                    "an old connection cannot be ended: a request that was lost with it may still be carried out"
                );
            }
        }
        Ok(())
    }
}

/// `work`'s output, unless the deadline comes first.
pub(super) async fn by<F: Future>(runtime: &dyn Runtime, deadline: Moment, work: F) -> Option<F::Output> {
    match select(pin!(work), runtime.sleep_until(deadline)).await {
        Either::Left((output, _)) => Some(output),
        Either::Right(_) => None,
    }
}

pub(super) fn command(words: &[&str]) -> Cmd {
    let mut command = Cmd::new();
    for word in words {
        command.arg(*word);
    }
    command
}

/// Asks for what we can do without: an error of the server is no answer.
async fn ask(pipe: &mut MultiplexedConnection, words: &[&str]) -> Result<Option<Value>, Failure> {
    match pipe.send_packed_command(&command(words)).await.map_err(unknown)? {
        Value::ServerError(_) => Ok(None),
        value => Ok(Some(value)),
    }
}

fn done(reply: redis::RedisResult<Value>) -> Result<(), Failure> {
    match reply.map_err(unknown)? {
        Value::ServerError(error) => Err(failure::of(&error).0),
        _ => Ok(()),
    }
}

/// What comes of logging in.
fn refusal(error: redis::RedisError) -> Failure {
    #[cfg(feature = "tls")]
    if let Some(failure) = tls::said(&error) {
        return failure;
    }
    match failure::said(&error) {
        Some(error) => failure::of(&error).0,
        None if error.kind() == redis::ErrorKind::RESP3NotSupported => {
            Failure::Refused(Failure::cause("it does not speak RESP3: Redis 6.2 or Valkey 7.2 is needed"))
        }
        None => unknown(error),
    }
}

/// Nothing of a caller's is on a connection that is being made.
fn unknown(error: redis::RedisError) -> Failure {
    Failure::NotSent(Arc::new(error))
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::VerbatimString { text, .. } => Some(text),
        _ => None,
    }
}

/// Reads `run_id:…`, `uptime_in_seconds:…`, a line each. Whole seconds, rounded down: it has been up for at least so long.
fn life(server: &Value, at: Moment) -> Life {
    let field = |name: &str| {
        let fields = text(server)?.lines().filter_map(|line| line.split_once(':'));
        fields.into_iter().find_map(|(field, value)| (field == name).then_some(value))
    };
    let up = field("uptime_in_seconds").and_then(|seconds| seconds.parse::<i64>().ok());
    match (field("run_id"), up) {
        // By its own clock, which may have been set back since.
        (Some(id), Some(up)) => Life::Since { id: id.into(), up: Duration::from_secs(up.max(0) as u64), at },
        _ => Life::Unknown,
    }
}

impl Peer {
    /// Reads `id=… addr=… …`.
    fn read(info: &Value) -> Option<Self> {
        let text = text(info)?;
        let field = |name: &str| text.split(' ').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        Some(Self { id: field("id")?.parse().ok()?, addr: field("addr")?.to_owned() })
    }
}
