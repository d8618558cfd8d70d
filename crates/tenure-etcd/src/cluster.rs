//! The connection to an etcd cluster, the login, and the meaning of errors.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::stream::Stream;
use http::Uri;
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use tokio::sync::Mutex;
use tonic::client::Grpc;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::service_fn;

use super::gather::TxnQueue;
use super::url::EtcdTarget;
use super::wire::{AuthenticateRequest, AuthenticateResponse};
use tenure_core::net::{Address, ConnectError, Stream as ByteStream, Tls, dial, encrypt};
use tenure_core::runtime::Runtime;
use tenure_core::store::Failure;
use tenure_core::sync::Locked;

/// Interval of keep-alive pings while a request or a watch is open. By default, etcd closes a connection that
/// sends them more often than every 5 s, or without either (`too_many_pings`).
const PING: Duration = Duration::from_millis(5_200);
/// Timeout of a keep-alive ping, and of connecting.
const PONG: Duration = Duration::from_secs(2);
/// The end of a member's error while it knows no leader.
pub(super) const NO_LEADER: &str = "no leader";
pub(super) const IS_FULL: &str = "space exceeded";
/// In the failure for a reply over the maximum.
pub(super) const TOO_LONG: &str = "the reply exceeds";
/// Maximum size of a reply: it bounds what a faulty server makes the client allocate. The longest replies are
/// pages of a listing, which shrink to fit, and reads of `PARTS` parts of a queue, of up to 3.2 MB. That of
/// transactions that have left together may be longer (`flight.rs`).
const REPLY_MAX: usize = 4 << 20;
/// State shared by all clones.
pub(super) struct EtcdShared {
    pub(super) target: EtcdTarget,
    pub(super) runtime: Arc<dyn Runtime>,
    /// Index of the server to dial first.
    first: AtomicUsize,
    pub(super) connection: Locked<Option<Arc<EtcdConnection>>>,
    /// Held by the request that dials, for all others.
    dials: Mutex<()>,
    token: Locked<Option<String>>,
    /// Whether the version of a server was found new enough.
    pub(super) is_new_enough: AtomicBool,
}

/// A connection to one of the servers.
pub(super) struct EtcdConnection {
    channel: Channel,
    /// Index of the server.
    at: usize,
    pub(super) queue: TxnQueue,
}

/// An etcd cluster. Clones share its connection.
#[derive(Clone)]
pub(super) struct EtcdCluster(pub(super) Arc<EtcdShared>);

impl EtcdCluster {
    pub(super) fn new(target: EtcdTarget, runtime: Arc<dyn Runtime>) -> Self {
        Self(Arc::new(EtcdShared {
            target,
            runtime,
            first: AtomicUsize::new(0),
            connection: Locked::default(),
            dials: Mutex::default(),
            token: Locked::default(),
            is_new_enough: AtomicBool::new(false),
        }))
    }

    /// The connection, opened if there is none, to the first server that accepts it.
    pub(super) async fn connection(&self) -> Result<Arc<EtcdConnection>, Failure> {
        let shared = &self.0;
        let open = || shared.connection.lock().clone();
        if let Some(connection) = open() {
            return Ok(connection);
        }
        let _turn = shared.dials.lock().await;
        if let Some(connection) = open() {
            return Ok(connection);
        }
        let first = shared.first.load(Ordering::Relaxed);
        let count = shared.target.addresses.len();
        let mut failed = Failure::NotSent(Failure::cause("there is no server"));
        for at in (first..first + count).map(|at| at % count) {
            // The next dial begins behind it, also if this one is dropped: a silent server outlasts a request.
            shared.first.store((at + 1) % count, Ordering::Relaxed);
            match self.dial(at).await {
                Ok(channel) => {
                    shared.first.store(at, Ordering::Relaxed);
                    let connection = Arc::new(EtcdConnection { channel, at, queue: TxnQueue::default() });
                    *shared.connection.lock() = Some(Arc::clone(&connection));
                    return Ok(connection);
                }
                Err(failure) => failed = failure,
            }
        }
        Err(failed)
    }

    async fn dial(&self, at: usize) -> Result<Channel, Failure> {
        let EtcdShared { target, runtime, .. } = &*self.0;
        let address = &target.addresses[at];
        let cause =
            |error: &dyn std::error::Error| Failure::cause(format!("{address}: {}", innermost(error)));
        let uri = |scheme: &str| Uri::try_from(format!("{scheme}://{address}"));
        let scheme = if target.tls.is_some() { "https" } else { "http" };
        let (plain, origin) = uri("http")
            .and_then(|plain| Ok((plain, uri(scheme)?)))
            .map_err(|error| Failure::Refused(cause(&error)))?;
        let endpoint = Endpoint::from(plain)
            .origin(origin)
            .connect_timeout(PONG)
            .http2_keep_alive_interval(PING)
            .keep_alive_timeout(PONG);
        let (runtime, to, tls) = (Arc::clone(runtime), address.clone(), target.tls.clone());
        let connector = service_fn(move |_| {
            let (runtime, to, tls) = (Arc::clone(&runtime), to.clone(), tls.clone());
            async move { open(&to, tls.as_ref(), &*runtime).await.map(TokioIo::new).map_err(ConnectError) }
        });
        endpoint.connect_with_connector(connector).await.map_err(|error| match ConnectError::behind(&error) {
            Some(Failure::Refused(said)) => Failure::Refused(Failure::cause(format!("{address}: {said}"))),
            Some(failure) => {
                let said = failure.why().to_string();
                Failure::NotSent(Failure::cause(format!("{address}: {said}{}", self.hint(&said))))
            }
            None => {
                let said = innermost(&error);
                Failure::NotSent(Failure::cause(format!("{address}: {said}{}", self.hint(&said))))
            }
        })
    }

    /// A hint about a missing certificate. A server that requires one rejects its absence only after the client
    /// considers itself connected.
    fn hint(&self, said: &str) -> &'static str {
        let ends = ["closed", "reset", "alert", "eof"];
        match &self.0.target.tls {
            Some(files) if files.identity.is_none() && ends.iter().any(|word| said.contains(word)) => {
                "; it may require a client certificate (cert=FILE and key=FILE in the URL), or not use TLS \
                 (etcd://)"
            }
            _ => "",
        }
    }

    /// Makes the next request use the next server, unless another connection has replaced this one already.
    pub(super) fn leave(&self, connection: &Arc<EtcdConnection>) {
        let mut open = self.0.connection.lock();
        if open.take_if(|open| Arc::ptr_eq(open, connection)).is_some() {
            self.0.first.store((connection.at + 1) % self.0.target.addresses.len(), Ordering::Relaxed);
        }
    }

    /// A request with the login's token, which is fetched if there is none.
    pub(super) async fn signed<T>(
        &self,
        message: T,
        connection: &Arc<EtcdConnection>,
    ) -> Result<Request<T>, Failure> {
        let mut request = Request::new(message);
        let login = &self.0.target.login;
        let Some(user) = &login.user else { return Ok(request) };
        let known = self.0.token.lock().clone();
        let token = match known {
            Some(token) => token,
            None => {
                let asked = AuthenticateRequest {
                    name: user.clone(),
                    password: login.password()?.unwrap_or_default(),
                };
                let path = "/etcdserverpb.Auth/Authenticate";
                let answer: Result<AuthenticateResponse, Status> =
                    unary(connection, Request::new(asked), path).await;
                let token = answer.map_err(|status| self.failure(&status, connection).not_sent())?.token;
                *self.0.token.lock() = Some(token.clone());
                token
            }
        };
        let token: MetadataValue<_> = token
            .parse()
            .map_err(|_| Failure::Refused(Failure::cause("etcd gave a token that no header can have")))?;
        request.metadata_mut().insert("token", token);
        Ok(request)
    }

    /// A request that a member without a leader fails at once, or a stream that such a member ends. Otherwise it
    /// would keep both open.
    pub(super) async fn led<T>(
        &self,
        message: T,
        connection: &Arc<EtcdConnection>,
    ) -> Result<Request<T>, Failure> {
        let mut request = self.signed(message, connection).await?;
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        Ok(request)
    }

    pub(super) async fn ask<M, A>(&self, message: M, path: &'static str) -> Result<A, Failure>
    where
        M: prost::Message + Clone + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let connection = self.connection().await?;
        let request = self.signed(message.clone(), &connection).await?;
        let mut answer = unary(&connection, request, path).await;
        if let Err(status) = &answer
            && self.forgets_token(status.message())
        {
            // It was not executed.
            let request = self.signed(message, &connection).await?;
            answer = unary(&connection, request, path).await;
        }
        answer.map_err(|status| self.failure(&status, &connection))
    }

    /// Whether the reply exceeds [`REPLY_MAX`]. From etcd itself, the code means a revision that is not kept, and
    /// no request here names one.
    pub(super) fn is_too_long(status: &Status) -> bool {
        status.code() == Code::OutOfRange
    }

    /// Forgets the token if the server has said that it is no longer good.
    pub(super) fn forgets_token(&self, said: &str) -> bool {
        let is_over = said.contains("auth token") || said.contains("auth store is old");
        if is_over {
            *self.0.token.lock() = None;
        }
        is_over
    }

    /// The failure for an error of the server, or of the connection, which is then used no more.
    pub(super) fn failure(&self, status: &Status, connection: &Arc<EtcdConnection>) -> Failure {
        let said = match std::error::Error::source(status) {
            Some(error) => innermost(error),
            None => status.message().trim_start_matches("etcdserver: ").to_owned(),
        };
        let address = &self.0.target.addresses[connection.at];
        let refused = |what: String| Failure::Refused(Failure::cause(format!("{address}: {what}")));
        match status.code() {
            Code::PermissionDenied => refused(format!(
                "{said}; the user needs the permission readwrite on the prefix {}",
                self.0.target.prefix
            )),
            // Tokens expire after five minutes, and some with each change of a user. The request was not executed.
            Code::Unauthenticated | Code::InvalidArgument if self.forgets_token(&said) => {
                Failure::NotSent(Failure::cause(format!("{address}: {said}")))
            }
            Code::Unauthenticated => refused(said),
            Code::InvalidArgument if said.contains("user name is empty") => {
                refused(format!("it requires a user and a password: etcd://USER:PASSWORD@{address}"))
            }
            Code::InvalidArgument if said.contains("authentication failed") => {
                refused(format!("{said}: is the user, or the password in the URL, right?"))
            }
            Code::InvalidArgument => refused(said),
            Code::FailedPrecondition if said.contains("authentication is not enabled") => refused(
                "it has no users, and the URL names one: leave out USER:PASSWORD@, or enable authentication"
                    .into(),
            ),
            Code::ResourceExhausted if said.contains(IS_FULL) => refused(format!(
                "{said}: compact and defragment it, and then disarm the alarm (etcdctl alarm disarm)"
            )),
            // No other server gives a shorter one.
            _ if Self::is_too_long(status) => {
                Failure::Unknown(Failure::cause(format!("{address}: {TOO_LONG} {REPLY_MAX} bytes")))
            }
            // A lease that has ended: the connection is fine.
            Code::NotFound => Failure::Unknown(Failure::cause(format!("{address}: {said}"))),
            Code::Unimplemented => refused(format!("{said}: is this an etcd of 3.4 or newer?")),
            _ => {
                self.leave(connection);
                Failure::Unknown(Failure::cause(format!("{address}: {said}{}", self.hint(&said))))
            }
        }
    }
}

/// Opens a byte stream.
async fn open(
    to: &Address,
    tls: Option<&Tls>,
    runtime: &dyn Runtime,
) -> Result<Pin<Box<dyn ByteStream>>, Failure> {
    let dialled = dial(to, runtime).await.map_err(|error| Failure::NotSent(Arc::new(error)))?;
    let stream: Pin<Box<dyn ByteStream>> = match tls {
        Some(tls) => encrypt(dialled.stream, to.host(), tls, "etcd://").await?.stream,
        None => dialled.stream,
    };
    dialled.attempt.succeeded();
    Ok(stream)
}

pub(super) async fn unary<M, A>(
    connection: &EtcdConnection,
    request: Request<M>,
    path: &'static str,
) -> Result<A, Status>
where
    M: prost::Message + Send + Sync + 'static,
    A: prost::Message + Default + Send + Sync + 'static,
{
    let mut grpc = grpc(connection);
    grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
    let answer = grpc.unary(request, PathAndQuery::from_static(path), ProstCodec::default()).await?;
    Ok(answer.into_inner())
}

pub(super) async fn streaming<M, A>(
    connection: &EtcdConnection,
    request: Request<impl Stream<Item = M> + Send + 'static>,
    path: &'static str,
) -> Result<Streaming<A>, Status>
where
    M: prost::Message + Send + Sync + 'static,
    A: prost::Message + Default + Send + Sync + 'static,
{
    let mut grpc = grpc(connection);
    grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
    let answers = grpc.streaming(request, PathAndQuery::from_static(path), ProstCodec::default()).await?;
    Ok(answers.into_inner())
}

fn grpc(connection: &EtcdConnection) -> Grpc<Channel> {
    Grpc::new(connection.channel.clone()).max_decoding_message_size(REPLY_MAX)
}

/// The root cause: the error of the system or of the peer.
pub(super) fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}
